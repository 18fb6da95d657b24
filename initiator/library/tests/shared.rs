//! Two engines that share a controller, with a controller that does what it is told. Only the leader has the admin
//! queue.

#[allow(dead_code, reason = "each test program uses its part")]
mod support;

use std::time::{Duration, Instant};

use ringfab_initiator::{ControllerId, Host, HostEvent, IoError, Wait};
use ringfab_spec::Status;
use support::Peer;
use support::host::{host, options, write};

const MOMENT: Duration = Duration::from_millis(100);
const DEADLINE: Duration = Duration::from_secs(20);

/// Engines that are attached to one controller.
struct Pair {
    leader: Host,
    /// What the leader calls it.
    led: ControllerId,
    follower: Host,
    controller: ControllerId,
    peer: Peer,
}

impl Pair {
    /// The leader has queue 1, the follower queue 2. `aborts` is how many Aborts the controller takes at once.
    fn attached(aborts: u8) -> Self {
        let (mut leader, mut follower, mut peer) = (host(), host(), Peer::new());
        peer.announced.acl = aborts - 1;
        let mut options = options(&peer);
        options.timeouts.io = 5 * MOMENT;
        let (led, shared) = leader.attach_shared(options, 1);
        let mut controllers = shared.into_iter().map(|shared| follower.join(shared));
        let controller = controllers.next().expect("one follower");
        let mut this = Self { leader, led, follower, controller, peer };
        this.until(|pair| matches!(pair.leader.next_event(), Some(HostEvent::Ready { .. })));
        this.until(|pair| matches!(pair.follower.next_event(), Some(HostEvent::Ready { .. })));
        this
    }

    /// Turns all until something is so.
    fn until(&mut self, mut so: impl FnMut(&mut Self) -> bool) {
        let start = Instant::now();
        while !so(self) {
            self.leader.turn(Wait::No).expect("a turn");
            self.follower.turn(Wait::No).expect("a turn");
            self.peer.turn();
            assert!(start.elapsed() < DEADLINE, "never");
        }
    }

    /// The follower sends so many writes, which are not answered. Their command identifiers.
    fn unanswered(&mut self, count: usize) -> Vec<u16> {
        self.peer.faults.mute = true;
        for tag in 0..count as u64 {
            let request = write(&self.follower, tag, tag, 1, 9);
            self.follower.submit(self.controller, request).expect("taken");
        }
        self.until(|pair| pair.peer.withheld.len() == count);
        assert_eq!(self.peer.withheld_by(2), count, "they came by the follower's queue");
        self.peer.faults.mute = false;
        self.peer.withheld.iter().map(|(_, entry)| entry.cid.get()).collect()
    }

    /// The result of the follower's next command.
    fn done(&mut self) -> Result<(), IoError> {
        let mut result = None;
        self.until(|pair| {
            match pair.follower.next_event() {
                Some(HostEvent::IoDone(done)) => result = Some(done.result),
                Some(event) => panic!("{event:?}"),
                None => {}
            }
            result.is_some()
        });
        result.expect("it came")
    }
}

#[test]
fn an_overdue_command_of_a_follower_is_aborted_through_the_admin_queue_of_its_leader() {
    let mut pair = Pair::attached(4);
    pair.peer.aborts = true;
    let cids = pair.unanswered(1);
    pair.until(|pair| pair.peer.abort_asked.is_some());
    assert_eq!(pair.peer.abort_asked, Some((2, cids[0])), "the follower's queue and command");
    assert_eq!(pair.done(), Err(IoError::TimedOut));
    let request = write(&pair.follower, 8, 3, 1, 9);
    pair.follower.submit(pair.controller, request).expect("taken");
    assert_eq!(pair.done(), Ok(()), "the connection stays");
}

#[test]
fn the_leader_asks_for_no_more_aborts_at_once_than_the_controller_takes_and_forgets_none() {
    let mut pair = Pair::attached(1);
    pair.peer.faults.mute_abort = true;
    let mut cids = pair.unanswered(3);
    pair.until(|pair| !pair.peer.aborts_withheld.is_empty());
    let start = Instant::now();
    pair.until(|_| start.elapsed() >= MOMENT);
    assert_eq!(pair.peer.aborts_withheld.len(), 1, "the others wait for its answer");
    let mut asked = Vec::new();
    while asked.len() < 3 {
        pair.until(|pair| !pair.peer.aborts_withheld.is_empty());
        asked.push(pair.peer.aborts_withheld[0].1.abort_cid());
        pair.peer.answer_aborts();
        pair.peer.faults.mute_abort = true;
    }
    cids.sort_unstable();
    asked.sort_unstable();
    assert_eq!(asked, cids);
    pair.peer.release(Status::SUCCESS);
    assert_eq!([pair.done(), pair.done(), pair.done()], [Ok(()); 3]);
}

#[test]
fn an_engine_that_hears_late_of_a_path_is_told_that_it_was_removed() {
    let mut pair = Pair::attached(1);
    let mut url = options(&pair.peer).url;
    // Nobody listens there.
    url.port = 1;
    for _ in 0..2 {
        let added = pair.leader.add_path(pair.led, url.clone()).expect("taken");
        pair.leader.remove_path(pair.led, added).expect("it is there");
        pair.until(|pair| match pair.follower.next_event() {
            Some(HostEvent::PathRemoved { path, error, .. }) => path == added && error.is_none(),
            Some(HostEvent::PathAdded { .. }) | None => false,
            Some(event) => panic!("{event:?}"),
        });
    }
}
