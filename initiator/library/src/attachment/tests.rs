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
use crate::options::PathChooser;
use crate::path_status::{AnaState, PathState};
use crate::request::{AdminData, IoDone};
use support::host::{options, read, write};
use support::{BLOCK, Peer};

const ONE: PathId = PathId::first(0);
const OTHER: PathId = PathId::first(1);

/// For what never comes.
const DEADLINE: Duration = Duration::from_secs(20);

/// A host with two paths, and what it was told.
struct Pair {
    host: Host,
    peers: [Peer; 2],
    controller: ControllerId,
    done: Vec<IoDone>,
    told: Vec<HostEvent>,
}

impl Pair {
    /// Both paths are ready, one of which is used.
    fn attached(change: impl Fn(&mut ConnectOptions)) -> Self {
        Self::attached_to(
            |_| {},
            |options| {
                options.paths.chooser = PathChooser::OneInUse;
                change(options);
            },
        )
    }

    /// Both paths are ready, to peers that `prepare` has changed.
    fn attached_to(prepare: impl Fn(&mut [Peer; 2]), change: impl Fn(&mut ConnectOptions)) -> Self {
        let mut this = Self::attaching(prepare, change);
        this.until("both are ready", |this| this.is_told(ready(ONE)) && this.is_told(ready(OTHER)));
        this.told.clear();
        this
    }

    fn attaching(prepare: impl Fn(&mut [Peer; 2]), change: impl Fn(&mut ConnectOptions)) -> Self {
        let mut peers = [Peer::new(), Peer::new()];
        prepare(&mut peers);
        let ring = ReactorConfig { entries: 64, spin: Duration::ZERO, descriptors_max: 64 };
        let pool = [(4096, 128), (65_536, 8)];
        let pool = pool.map(|(buffer_bytes, count)| ClassLayout { buffer_bytes, count }).to_vec();
        let config = HostConfig { pool, rnic: RnicConfig::new(0, [7; 32]), seed: 7 };
        let mut host = Host::new(Reactor::new(&ring).expect("a ring"), config).expect("a host");
        let mut all = options(&peers[0]);
        all.queues = 1;
        // A thread looks for the address, and its answer is for this path.
        let mut other = options(&peers[1]).url;
        other.host = HostName::Name("localhost".to_owned());
        all.further_urls = vec![other];
        all.replay_delay = None;
        change(&mut all);
        let controller = host.attach(all);
        Self { host, peers, controller, done: Vec::new(), told: Vec::new() }
    }

    /// How a path is.
    fn status(&self, path: PathId) -> PathStatus {
        let paths = self.host.paths(self.controller);
        paths.into_iter().find(|one| one.id == path).expect("it is there")
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

mod lost;

#[test]
fn what_is_held_for_a_path_that_is_given_up_goes_on_by_the_other() {
    let mut pair = Pair::attached(|options| {
        options.reconnect.controller_loss_timeout = Some(Duration::from_millis(100));
        options.replay_delay = Some(Duration::from_millis(400));
    });
    pair.lose_one();
    let given_up =
        |event: &HostEvent| matches!(event, HostEvent::PathRemoved { path: ONE, error: Some(_), .. });
    pair.until("the path is given up", |pair| pair.is_told(given_up));
    pair.until("what was held is answered", |pair| pair.done.len() == 2);
    assert_eq!(pair.ended(), [(1, Ok(())), (2, Ok(()))]);
    let faults = &mut pair.peers[1].faults;
    (faults.cut_after, faults.reject) = (Some(0), true);
    pair.write(3);
    pair.until("the last path is given up", |pair| !pair.host.is_attached(pair.controller));
    assert_eq!(pair.ended()[2..], [(3, Err(IoError::NoPath))]);
    let ends = pair.told.iter().filter(|event| matches!(event, HostEvent::Failed { .. }));
    assert_eq!(ends.count(), 1, "{:?}", pair.told);
}

#[test]
fn io_fails_when_it_has_waited_for_every_path_and_not_for_one_of_them() {
    let mut pair = Pair::attached(|options| {
        options.reconnect.fast_io_fail_timeout = Some(Duration::from_millis(20));
        options.replay_delay = Some(Duration::from_millis(200));
    });
    pair.lose_one();
    pair.until("what was held is answered", |pair| pair.done.len() == 2);
    assert_eq!(pair.ended(), [(1, Ok(())), (2, Ok(()))]);
    let faults = &mut pair.peers[1].faults;
    (faults.cut_after, faults.reject) = (Some(0), true);
    pair.write(3);
    pair.until("there is no path to wait for", |pair| pair.done.len() == 3);
    pair.write(4);
    pair.until("it fails at once", |pair| pair.done.len() == 4);
    assert_eq!(pair.ended()[2..], [(3, Err(IoError::NoPath)), (4, Err(IoError::NoPath))]);
    pair.peers[0].faults = support::Faults::default();
    pair.until("the first path is back", |pair| pair.is_told(ready(ONE)));
    pair.write(5);
    pair.until("it answers", |pair| pair.done.len() == 5);
    assert_eq!(pair.ended()[4..], [(5, Ok(()))]);
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

fn failed_over(event: &HostEvent) -> bool {
    matches!(event, HostEvent::FailedOver { from: ONE, to: OTHER, .. })
}

fn removed(of: PathId) -> impl Fn(&HostEvent) -> bool {
    move |event| matches!(event, HostEvent::PathRemoved { path, .. } if *path == of)
}

fn access_changed(event: &HostEvent) -> bool {
    matches!(event, HostEvent::AccessChanged { .. })
}

#[test]
fn equal_paths_take_turns_and_what_each_has_done_is_counted() {
    let mut pair = Pair::attached_to(|_| {}, |_| {});
    (1..=4).for_each(|tag| pair.write(tag));
    pair.until("all are answered", |pair| pair.done.len() == 4);
    assert_eq!(pair.peers.each_ref().map(|peer| peer.executed.len()), [2, 2]);
    for path in [ONE, OTHER] {
        let status = pair.status(path);
        assert_eq!((status.commands, status.bytes, status.outstanding), (2, 2 * BLOCK as u64, 0));
        assert_eq!((status.state, status.losses, status.cntlid), (PathState::Ready, 0, Some(1)));
    }
}

#[test]
fn what_changes_nothing_goes_by_another_path_as_soon_as_the_lost_one_has_let_go() {
    let mut pair = Pair::attached(|_| {});
    pair.peers[0].faults.mute = true;
    pair.write(1);
    let request = read(&pair.host, 2, 0, 1);
    pair.host.submit(pair.controller, request).expect("taken");
    pair.until("both are there", |pair| pair.peers[0].withheld.len() == 2);
    let faults = &mut pair.peers[0].faults;
    (faults.mute, faults.cut_after, faults.reject) = (false, Some(0), true);
    pair.write(3);
    pair.until("the other path has read", |pair| pair.done.len() == 1);
    assert_eq!(pair.ended(), [(2, Ok(()))]);
    assert_eq!(pair.peers[1].executed, [2], "no write goes there while the lost path may still do it");
    assert!(pair.is_told(failed_over), "{:?}", pair.told);
    let status = pair.status(ONE);
    assert_eq!((status.losses, status.state), (1, PathState::Lost));
    assert!(status.last_failover.is_some() && status.last_loss.is_some());
}

#[test]
fn optimized_paths_come_first_and_a_change_that_is_told_is_followed() {
    let states = |state| Some(vec![(1, state)]);
    let prepare = |peers: &mut [Peer; 2]| {
        peers[0].access = states(AnaState::NON_OPTIMIZED);
        peers[1].access = states(AnaState::OPTIMIZED);
    };
    let mut pair = Pair::attached_to(prepare, |_| {});
    (1..=3).for_each(|tag| pair.write(tag));
    pair.until("all are answered", |pair| pair.done.len() == 3);
    assert_eq!(pair.peers.each_ref().map(|peer| peer.executed.len()), [0, 3]);
    assert_eq!(pair.status(ONE).groups[0].state, AnaState::NON_OPTIMIZED);
    pair.until("events are asked for", |pair| pair.peers[1].event_request.is_some());
    pair.peers[1].access = states(AnaState::INACCESSIBLE);
    pair.peers[1].notify(AsyncEvent::ana_change());
    pair.until("it is told", |pair| pair.is_told(access_changed));
    (4..=6).for_each(|tag| pair.write(tag));
    pair.until("all are answered", |pair| pair.done.len() == 6);
    assert_eq!(pair.peers.each_ref().map(|peer| peer.executed.len()), [3, 3]);
    assert!(pair.done.iter().all(|done| done.result.is_ok()));
}

#[test]
fn a_path_that_refuses_a_command_is_left_at_once_and_asked_once_what_it_can_do() {
    let states = |state| Some(vec![(1, state)]);
    let prepare = |peers: &mut [Peer; 2]| {
        peers.iter_mut().for_each(|peer| peer.access = states(AnaState::OPTIMIZED));
    };
    let mut pair = Pair::attached_to(prepare, |options| options.paths.chooser = PathChooser::OneInUse);
    let before = pair.peers[0].access_told;
    pair.peers[0].access = states(AnaState::PERSISTENT_LOSS);
    pair.peers[0].refuses_io = Some(ringfab_spec::Status::ANA_PERSISTENT_LOSS);
    (1..=8).for_each(|tag| pair.write(tag));
    pair.until("the other path answers all", |pair| pair.done.len() == 8);
    assert!(pair.done.iter().all(|done| done.result.is_ok()), "{:?}", pair.done);
    assert_eq!(pair.peers[1].executed.len(), 8);
    pair.until("it was asked", |pair| pair.peers[0].access_told > before);
    assert_eq!(pair.peers[0].access_told, before + 1, "not for each command");
    assert!(!pair.is_told(lost(ONE)), "its connection is as good as before");
}

#[test]
fn without_a_path_that_is_accessible_commands_wait_as_the_policy_says() {
    let states = |state| Some(vec![(1, state)]);
    let prepare = |peers: &mut [Peer; 2]| {
        peers.iter_mut().for_each(|peer| peer.access = states(AnaState::INACCESSIBLE));
    };
    let mut pair = Pair::attached_to(prepare, |_| {});
    pair.write(1);
    pair.until("events are asked for", |pair| pair.peers[0].event_request.is_some());
    assert!(pair.done.is_empty());
    pair.peers[0].access = states(AnaState::OPTIMIZED);
    pair.peers[0].notify(AsyncEvent::ana_change());
    pair.until("it goes on", |pair| pair.done.len() == 1);
    assert_eq!(pair.ended(), [(1, Ok(()))]);
    let mut hasty = Pair::attached_to(prepare, |options| {
        options.reconnect.fast_io_fail_timeout = Some(Duration::from_millis(50));
    });
    hasty.write(1);
    hasty.until("it fails", |pair| pair.done.len() == 1);
    hasty.write(2);
    hasty.until("it fails at once", |pair| pair.done.len() == 2);
    assert_eq!(hasty.ended(), [(1, Err(IoError::NoPath)), (2, Err(IoError::NoPath))]);
}

#[test]
fn a_transition_is_waited_for_as_long_as_the_controller_says() {
    let states = |state| Some(vec![(1, state)]);
    let prepare = |peers: &mut [Peer; 2]| {
        peers.iter_mut().for_each(|peer| peer.access = states(AnaState::CHANGE));
    };
    let mut pair = Pair::attached_to(prepare, |_| {});
    let begun = Instant::now();
    pair.write(1);
    pair.until("it has waited", |pair| pair.done.len() == 1);
    assert_eq!(pair.ended(), [(1, Err(IoError::NoPath))]);
    assert!(begun.elapsed() > Duration::from_secs(1), "ANATT is 2 s, and began when the paths came");
}

#[test]
fn a_log_page_of_access_states_that_cannot_be_is_refused() {
    let prepare = |peers: &mut [Peer; 2]| {
        let twice = vec![(1, AnaState::OPTIMIZED), (1, AnaState::INACCESSIBLE)];
        peers.iter_mut().for_each(|peer| peer.access = Some(twice.clone()));
    };
    let mut pair = Pair::attaching(prepare, |_| {});
    pair.until("it fails", |pair| !pair.host.is_attached(pair.controller));
    let is_twice = |error: &ConnectError| error.to_string().contains("it has group 1 twice");
    let sentence = |event: &HostEvent| matches!(event, HostEvent::Failed { error, .. } if is_twice(error));
    assert!(pair.is_told(sentence), "{:?}", pair.told);
}

#[test]
fn a_path_that_was_lost_is_used_again_when_it_has_been_well_for_a_while() {
    let mut pair = Pair::attached_to(
        |_| {},
        |options| {
            options.reconnect.delay = Duration::from_millis(10);
            options.paths.well_for = Duration::from_millis(400);
            options.replay_delay = Some(Duration::ZERO);
        },
    );
    pair.peers[0].faults.cut_after = Some(0);
    (1..=2).for_each(|tag| pair.write(tag));
    pair.until("it is lost", |pair| pair.is_told(lost(ONE)));
    pair.peers[0].faults = support::Faults::default();
    pair.until("it is back, and all is answered", |pair| pair.is_told(ready(ONE)) && pair.done.len() == 2);
    let before = pair.peers[0].executed.len();
    if pair.status(ONE).state == PathState::Recovering {
        (3..=6).for_each(|tag| pair.write(tag));
        assert_eq!(pair.status(ONE).outstanding, 0, "it is not trusted yet");
        pair.until("the other one answers", |pair| pair.done.len() == 6);
        assert_eq!(pair.peers[0].executed.len(), before);
    }
    pair.until("it is well", |pair| pair.status(ONE).state == PathState::Ready);
    let ended = pair.done.len();
    (7..=10).for_each(|tag| pair.write(tag));
    pair.until("all are answered", |pair| pair.done.len() == ended + 4);
    assert!(pair.peers[0].executed.len() > before, "it takes its turns again");
}

#[test]
fn one_address_that_answers_is_enough_and_the_other_is_tried_again() {
    let mut pair = Pair::attaching(|peers| peers[0].faults.reject = true, |_| {});
    pair.until("the other one is ready", |pair| pair.is_told(ready(OTHER)));
    pair.write(1);
    pair.until("it answers", |pair| pair.done.len() == 1);
    pair.until("the first has failed", |pair| pair.status(ONE).state == PathState::Lost);
    assert!(pair.status(ONE).last_loss.is_some(), "it says why");
    pair.peers[0].faults.reject = false;
    pair.until("the first one is ready, too", |pair| pair.is_told(ready(ONE)));
    let mut none =
        Pair::attaching(|peers| peers.iter_mut().for_each(|peer| peer.faults.reject = true), |_| {});
    none.until("it fails", |pair| !pair.host.is_attached(pair.controller));
    let ends = none.told.iter().filter(|event| matches!(event, HostEvent::Failed { .. }));
    assert_eq!(ends.count(), 1, "{:?}", none.told);
}

#[test]
fn paths_are_added_and_removed_while_io_runs() {
    let mut pair = Pair::attached_to(|_| {}, |_| {});
    let third = Peer::new();
    let url = options(&third).url;
    let refused = |pair: &mut Pair, url: &crate::Url| pair.host.add_path(pair.controller, url.clone()).err();
    let other = crate::Url { subsystem: Some("nqn.2026-01.org.example:other".to_owned()), ..url.clone() };
    let another = SubmitError::Path("the address is of another subsystem");
    assert_eq!(refused(&mut pair, &other), Some(another));
    let known = options(&pair.peers[0]).url;
    let there = SubmitError::Path("there is a path to that address already");
    assert_eq!(refused(&mut pair, &known), Some(there));
    (1..=4).for_each(|tag| pair.write(tag));
    pair.host.remove_path(pair.controller, ONE).expect("begun");
    pair.until("all are answered, and it is removed", |pair| {
        pair.done.len() == 4 && pair.is_told(removed(ONE))
    });
    assert!(pair.done.iter().all(|done| done.result.is_ok()), "{:?}", pair.done);
    assert!(pair.peers[0].shut_down, "it is left in order");
    assert_eq!(pair.host.remove_path(pair.controller, ONE), Err(SubmitError::NoPath), "its name is dead");
    let last = SubmitError::Path("it is the last path; detaching ends it, too");
    assert_eq!(pair.host.remove_path(pair.controller, OTHER), Err(last));
    pair.peers[0] = third;
    let added = pair.host.add_path(pair.controller, url).expect("taken");
    assert_ne!(added, ONE, "a new name in the same place");
    pair.until("it is ready", |pair| pair.is_told(ready(added)));
    (5..=8).for_each(|tag| pair.write(tag));
    pair.until("all are answered", |pair| pair.done.len() == 8);
    assert_eq!(pair.peers[0].executed.len(), 2, "it takes its turns");
}

#[test]
fn the_last_path_that_works_is_not_removed_while_another_is_away() {
    let mut pair = Pair::attached(|options| options.replay_delay = Some(Duration::ZERO));
    pair.lose_one();
    let refused = pair.host.remove_path(pair.controller, OTHER).expect_err("the only one that works");
    assert!(refused.to_string().contains("no other path is ready"), "{refused}");
    pair.host.remove_path(pair.controller, ONE).expect("one that is lost");
    pair.until("it has gone", |pair| pair.is_told(removed(ONE)));
    pair.write(3);
    pair.until("the other one goes on", |pair| pair.done.len() == 3);
}

#[test]
fn a_path_to_another_disk_is_refused_with_a_sentence() {
    let mut pair = Pair::attached_to(|_| {}, |_| {});
    let mut third = Peer::new();
    third.faults.other_nguid = true;
    let url = options(&third).url;
    pair.host.remove_path(pair.controller, ONE).expect("begun");
    pair.until("it is removed", |pair| pair.is_told(removed(ONE)));
    pair.peers[0] = third;
    let added = pair.host.add_path(pair.controller, url).expect("taken");
    pair.until("it is refused", |pair| pair.is_told(removed(added)));
    let sentence = |event: &HostEvent| {
        let HostEvent::PathRemoved { error: Some(error), .. } = event else { return false };
        error.to_string().contains("not known to be the one that other paths lead to")
    };
    assert!(pair.is_told(sentence), "{:?}", pair.told);
    pair.write(1);
    pair.until("I/O goes on", |pair| pair.done.len() == 1);
    assert_eq!((pair.ended(), pair.peers[0].executed.len()), (vec![(1, Ok(()))], 0));
}
