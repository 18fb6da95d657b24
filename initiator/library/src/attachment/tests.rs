//! An attachment with two paths, each to a controller of its own over loopback.

#[allow(dead_code, reason = "it is for the other tests of this crate, too")]
#[path = "../../tests/support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use ringfab_fabric::rdma::RnicConfig;
use ringfab_memory::ClassLayout;
use ringfab_reactor::{Reactor, ReactorConfig, Wait};
use ringfab_spec::SubmissionEntry;
use ringfab_spec::log::AsyncEvent;

use super::*;
use crate::host::{Host, HostConfig};
use crate::request::{AdminData, IoDone};
use crate::url::HostName;
use support::host::{options, write};
use support::{BLOCK, Peer};

const ONE: PathId = PathId(0);
const OTHER: PathId = PathId(1);

/// For what never comes.
const DEADLINE: Duration = Duration::from_secs(20);

impl Attachment {
    /// Starts to attach by several paths, each with options of its own.
    pub(crate) fn attach_paths(
        id: ControllerId,
        options: Vec<ConnectOptions>,
        resources: &mut Resources,
    ) -> Self {
        let options: Vec<_> = options.into_iter().map(Arc::new).collect();
        let share = QueueShare { engine: 0, engines: 1 };
        let volumes = volumes(id, &options[0], share, options.len(), resources);
        let attach = |(options, path)| {
            let (handle, alone) =
                (PathHandle { controller: id, path }, Followers::expect(0, FinalError::default()));
            Path::attach(handle, options, alone, resources)
        };
        let paths = options.into_iter().zip((0..).map(PathId)).map(attach).collect();
        Self::with_paths(id, volumes, paths, resources)
    }
}

/// A host with two paths, and what it was told.
struct Pair {
    host: Host,
    peers: [Peer; 2],
    controller: ControllerId,
    done: Vec<IoDone>,
    told: Vec<HostEvent>,
}

impl Pair {
    /// Both paths are ready.
    fn attached(change: impl Fn(&mut ConnectOptions)) -> Self {
        let peers = [Peer::new(), Peer::new()];
        let ring = ReactorConfig { entries: 64, spin: Duration::ZERO, descriptors_max: 64 };
        let pool = [(4096, 128), (65_536, 8)];
        let pool = pool.map(|(buffer_bytes, count)| ClassLayout { buffer_bytes, count }).to_vec();
        let config = HostConfig { pool, rnic: RnicConfig::new(0, [7; 32]), seed: 7 };
        let mut host = Host::new(Reactor::new(&ring).expect("a ring"), config).expect("a host");
        let options_of = |peer| {
            let mut options = options(peer);
            options.queues = 1;
            change(&mut options);
            options
        };
        let mut options = peers.each_ref().map(options_of).to_vec();
        // A thread looks for the address, and its answer is for this path.
        options[1].url.host = HostName::Name("localhost".to_owned());
        let controller = host.attach_paths(options);
        let mut this = Self { host, peers, controller, done: Vec::new(), told: Vec::new() };
        this.until("both are ready", |this| this.is_told(ready(ONE)) && this.is_told(ready(OTHER)));
        this.told.clear();
        this
    }

    fn until(&mut self, what: &str, so: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !so(self) {
            assert!(start.elapsed() < DEADLINE, "{what}: never; {:?} {:?}", self.done, self.told);
            self.host.turn(Wait::No).expect("a turn");
            self.peers.iter_mut().for_each(Peer::turn);
            while let Some(event) = self.host.next_event() {
                match event {
                    HostEvent::IoDone(done) => self.done.push(done),
                    event => self.told.push(event),
                }
            }
        }
    }

    fn is_told(&self, what: impl Fn(&HostEvent) -> bool) -> bool {
        self.told.iter().any(what)
    }

    /// Writes a block, all of whose bytes are the tag.
    fn write(&mut self, tag: u64) {
        let request = write(&self.host, tag, tag, 1, tag as u8);
        self.host.submit(self.controller, request).expect("taken");
    }

    /// The writes that have ended, in this order, and how.
    fn ended(&self) -> Vec<(u64, Result<(), IoError>)> {
        self.done.iter().map(|done| (done.tag, done.result)).collect()
    }

    /// Path `ONE` is sent two writes, is lost without having answered them, and does not come back yet.
    fn lose_one(&mut self) {
        self.peers[0].faults.mute = true;
        self.write(1);
        self.until("the first command is there", |this| this.peers[0].withheld.len() == 1);
        let faults = &mut self.peers[0].faults;
        (faults.mute, faults.cut_after, faults.reject) = (false, Some(0), true);
        self.write(2);
        self.until("the path is lost", |this| this.is_told(lost(ONE)));
    }
}

fn ready(of: PathId) -> impl Fn(&HostEvent) -> bool {
    move |event| matches!(event, HostEvent::Ready { path, .. } if *path == of)
}

fn lost(of: PathId) -> impl Fn(&HostEvent) -> bool {
    move |event| matches!(event, HostEvent::Lost { path, .. } if *path == of)
}

#[test]
fn what_a_lost_path_has_not_answered_goes_by_the_other_only_when_it_is_over() {
    let mut pair = Pair::attached(|_| {});
    pair.lose_one();
    pair.write(3);
    pair.until("the other path answers", |pair| pair.done.len() == 1);
    assert_eq!(pair.ended(), [(3, Ok(()))]);
    assert_eq!(pair.peers[1].executed, [1], "the path that is lost may still execute its two");
    assert_eq!(pair.host.outstanding(pair.controller), 2);
    pair.peers[0].faults.reject = false;
    pair.until("they go on", |pair| pair.done.len() == 3);
    assert!(pair.is_told(ready(ONE)), "the path that comes back says that they are over");
    assert_eq!(pair.ended(), [(3, Ok(())), (1, Ok(())), (2, Ok(()))], "in their order");
    assert_eq!(pair.peers[1].executed, [1, 1, 1], "by the path in use");
    let blocks = [1, 2, 3].map(|lba| pair.peers[1].memory[lba * BLOCK]);
    assert_eq!(blocks, [1, 2, 3]);
    assert!(!pair.is_told(lost(OTHER)));
}

#[test]
fn a_path_that_is_given_up_fails_what_is_held_for_it_and_nothing_of_another() {
    let mut pair = Pair::attached(|options| {
        options.reconnect.controller_loss_timeout = Some(Duration::from_millis(200));
    });
    pair.lose_one();
    pair.peers[1].faults.mute = true;
    pair.write(3);
    pair.until("the path is given up", |pair| pair.done.len() == 2);
    assert_eq!(pair.ended(), [(1, Err(IoError::NoPath)), (2, Err(IoError::NoPath))]);
    assert!(!pair.told.iter().any(|event| matches!(event, HostEvent::Failed { .. })), "{:?}", pair.told);
    pair.until("the other one was sent its command", |pair| pair.peers[1].withheld.len() == 1);
    pair.peers[1].faults.mute = false;
    pair.peers[1].release(ringfab_spec::Status::SUCCESS);
    pair.write(4);
    pair.until("the other path answers", |pair| pair.done.len() == 4);
    assert_eq!(pair.ended()[2..], [(3, Ok(())), (4, Ok(()))]);
    let faults = &mut pair.peers[1].faults;
    (faults.cut_after, faults.reject) = (Some(0), true);
    pair.write(5);
    pair.until("the last path is given up", |pair| !pair.host.is_attached(pair.controller));
    assert_eq!(pair.ended()[4..], [(5, Err(IoError::NoPath))]);
    let ends = pair.told.iter().filter(|event| matches!(event, HostEvent::Failed { .. }));
    assert_eq!(ends.count(), 1, "{:?}", pair.told);
}

#[test]
fn io_stops_waiting_for_one_path_and_goes_on_by_the_other() {
    let mut pair = Pair::attached(|options| {
        options.reconnect.fast_io_fail_timeout = Some(Duration::from_millis(20));
    });
    pair.lose_one();
    pair.until("what is held fails", |pair| pair.done.len() == 2);
    assert_eq!(pair.ended(), [(1, Err(IoError::NoPath)), (2, Err(IoError::NoPath))]);
    pair.write(3);
    pair.until("the other path answers", |pair| pair.done.len() == 3);
    assert_eq!(pair.ended()[2..], [(3, Ok(()))]);
    let faults = &mut pair.peers[1].faults;
    (faults.cut_after, faults.reject) = (Some(0), true);
    pair.write(4);
    pair.until("there is no path to wait for", |pair| pair.done.len() == 4);
    pair.write(5);
    pair.until("it fails at once", |pair| pair.done.len() == 5);
    assert_eq!(pair.ended()[3..], [(4, Err(IoError::NoPath)), (5, Err(IoError::NoPath))]);
    pair.peers[0].faults = support::Faults::default();
    pair.until("the first path is back", |pair| pair.is_told(ready(ONE)));
    pair.write(6);
    pair.until("it answers", |pair| pair.done.len() == 6);
    assert_eq!(pair.ended()[5..], [(6, Ok(()))]);
}

#[test]
fn a_path_that_is_lost_while_it_looks_at_the_namespaces_holds_up_no_other() {
    let mut pair = Pair::attached(|_| {});
    pair.until("events are asked for", |pair| pair.peers[0].event_request.is_some());
    pair.peers[0].faults.mute_log = true;
    pair.peers[0].notify(AsyncEvent::namespace_attribute_changed());
    pair.until("the first path looks", |pair| pair.peers[0].withheld.len() == 1);
    pair.write(3);
    pair.peers[0] = Peer::new();
    pair.until("the other path answers", |pair| pair.done.len() == 1);
    assert_eq!(pair.ended(), [(3, Ok(()))]);
    assert!(pair.is_told(lost(ONE)), "until then it waits");
    assert_eq!(pair.peers[1].executed, [1]);
}

#[test]
fn an_admin_command_goes_by_a_path_that_takes_it_and_leaving_ends_all() {
    let mut pair = Pair::attached(|_| {});
    pair.lose_one();
    let mut entry = SubmissionEntry::zeroed();
    entry.opcode = 0x0a;
    let data = AdminData::FromController(pair.host.pool().take(4096).expect("a buffer"));
    let request = AdminRequest { entry, data, tag: 9 };
    pair.host.admin(pair.controller, request).expect("taken");
    let is_answered = |event: &HostEvent| matches!(event, HostEvent::AdminDone(done) if done.result.is_ok());
    pair.until("the other path answers", |pair| pair.is_told(is_answered));
    pair.host.detach(pair.controller);
    pair.until("it is detached", |pair| !pair.host.is_attached(pair.controller));
    assert_eq!(pair.ended(), [(1, Err(IoError::Cancelled)), (2, Err(IoError::Cancelled))]);
    let ends = pair.told.iter().filter(|event| matches!(event, HostEvent::Detached { .. }));
    assert_eq!(ends.count(), 1, "{:?}", pair.told);
    assert!(pair.peers[1].shut_down, "the one that is there is left in order");
}
