//! What goes on after the loss of a path, and when.

use ringfab_spec::Status;
use ringfab_spec::log::{CrossControllerResetStatus, LostHostEntry};

use super::support::resets::{LostPaths, Reset};
use super::*;

/// Two paths whose controllers are instances, and reset each other.
fn pair(change: impl Fn(&mut ConnectOptions)) -> Pair {
    let prepare = |peers: &mut [Peer; 2]| {
        for (peer, uniquifier) in peers.iter_mut().zip(7..) {
            peer.lost_paths = LostPaths::known(uniquifier);
        }
    };
    Pair::attached_to(prepare, |options| {
        options.paths.chooser = PathChooser::OneInUse;
        change(options);
    })
}

/// What a lost path has not answered, and new writes of the same blocks, are not sent yet. Others are.
fn is_held(pair: &mut Pair) {
    let done = pair.done.len();
    let request = write(&pair.host, 9, 1, 1, 9);
    pair.host.submit(pair.controller, request).expect("taken");
    let request = read(&pair.host, 10, 1, 1);
    pair.host.submit(pair.controller, request).expect("taken");
    pair.write(3);
    pair.until("the other path answers", |pair| pair.done.len() == done + 2);
    let mut tags: Vec<_> = pair.done[done..].iter().map(|done| done.tag).collect();
    tags.sort_unstable();
    assert_eq!(tags, [3, 10], "a read, and a write of another block");
    let writes = pair.peers[1].executed.iter().filter(|opcode| **opcode == 1);
    assert_eq!(writes.count(), 1, "the lost path may still write");
}

/// They go on, by the other path, and the older content does not come last.
fn goes_on(pair: &mut Pair, count: usize) {
    pair.until("they go on", |pair| pair.done.len() == count);
    assert!(pair.done.iter().all(|done| done.result.is_ok()), "{:?}", pair.ended());
    let blocks = [1, 2, 3].map(|lba| pair.peers[1].memory[lba * BLOCK]);
    assert_eq!(blocks, [9, 2, 3]);
    assert!(!pair.is_told(lost(OTHER)));
}

#[test]
fn what_a_lost_path_has_not_answered_goes_by_the_other_when_its_instance_is_reset() {
    let mut pair = pair(|_| {});
    pair.peers[1].lost_paths.reset = Reset::Withheld;
    pair.lose_one();
    pair.until("the other path is asked", |pair| !pair.peers[1].resets_withheld.is_empty());
    let asked = pair.peers[1].lost_paths.asked[0];
    assert_eq!((asked.cntlid, asked.ciu, asked.cirn), (1, 7, 7 << 40));
    is_held(&mut pair);
    pair.peers[1].finish_resets();
    goes_on(&mut pair, 5);
    assert!(!pair.is_told(ready(ONE)), "the path is still away");
}

#[test]
fn a_reset_that_has_begun_is_over_when_the_log_says_so() {
    let mut pair = pair(|_| {});
    pair.peers[1].lost_paths.reset = Reset::Begun;
    pair.until("events are asked for", |pair| pair.peers[1].event_request.is_some());
    pair.lose_one();
    pair.until("the other path is asked", |pair| !pair.peers[1].lost_paths.asked.is_empty());
    pair.peers[1].lost_paths.note(CrossControllerResetStatus::IN_PROGRESS);
    is_held(&mut pair);
    pair.peers[1].lost_paths.note(CrossControllerResetStatus::SUCCESS);
    pair.peers[1].notify(AsyncEvent::cross_controller_reset_completed());
    goes_on(&mut pair, 5);
    assert!(pair.peers[1].lost_paths.read_with.iter().all(|parameter| *parameter == 1), "Remove Completed");
    assert_eq!(pair.peers[1].lost_paths.asked.len(), 1);
}

#[test]
fn a_reset_that_is_refused_is_asked_for_by_the_path_itself_when_it_is_back() {
    let mut pair = pair(|_| {});
    pair.peers[1].lost_paths.reset = Reset::Refused(Status::INVALID_FIELD.with_dnr());
    pair.lose_one();
    pair.until("the other path is asked", |pair| !pair.peers[1].lost_paths.asked.is_empty());
    is_held(&mut pair);
    let one = &mut pair.peers[0];
    one.faults.reject = false;
    one.lost_paths.instance = (8, 8);
    goes_on(&mut pair, 5);
    assert!(pair.is_told(ready(ONE)));
    let asked = pair.peers[0].lost_paths.asked[0];
    assert_eq!((asked.ciu, asked.cirn), (7, 7 << 40));
    assert_eq!(pair.peers[1].lost_paths.asked.len(), 1, "who refuses is not asked again");
}

#[test]
fn a_controller_that_has_too_much_to_do_is_asked_again() {
    let mut pair = pair(|_| {});
    pair.peers[1].lost_paths.reset = Reset::Refused(Status::CROSS_CONTROLLER_RESET_LIMIT_EXCEEDED);
    pair.lose_one();
    pair.until("the other path is asked twice", |pair| pair.peers[1].lost_paths.asked.len() > 1);
    is_held(&mut pair);
    pair.peers[1].lost_paths.reset = Reset::Refused(Status::CROSS_CONTROLLER_RESET_LOG_FULL);
    pair.until("the log is read", |pair| !pair.peers[1].lost_paths.read_with.is_empty());
    pair.peers[1].lost_paths.reset = Reset::AtOnce;
    goes_on(&mut pair, 5);
}

#[test]
fn where_nobody_resets_the_clock_says_when() {
    let mut pair = Pair::attached(|options| options.replay_delay = Some(Duration::from_millis(1)));
    pair.lose_one();
    pair.until("they go on", |pair| pair.done.len() == 2);
    assert!(pair.done.iter().all(|done| done.result.is_ok()), "{:?}", pair.ended());
    assert_eq!(pair.peers[1].executed, [1, 1]);
}

#[test]
fn a_write_that_has_failed_while_it_may_still_be_executed_leaves_its_blocks_behind() {
    let mut pair = pair(|options| options.reconnect.fast_io_fail_timeout = Some(Duration::from_millis(20)));
    pair.peers[1].lost_paths.reset = Reset::Withheld;
    pair.lose_one();
    let faults = &mut pair.peers[1].faults;
    (faults.cut_after, faults.reject) = (Some(0), true);
    pair.write(4);
    pair.until("what is held fails", |pair| pair.done.len() == 3);
    assert!(pair.done.iter().all(|done| done.result == Err(IoError::NoPath)), "{:?}", pair.ended());
    pair.done.clear();
    pair.told.clear();
    pair.peers[1].faults = super::support::Faults::default();
    pair.until("the other path is back", |pair| pair.is_told(ready(OTHER)));
    is_held(&mut pair);
    pair.until("it is asked", |pair| !pair.peers[1].resets_withheld.is_empty());
    pair.peers[1].finish_resets();
    pair.until("the newer write goes on", |pair| pair.done.len() == 3);
    assert_eq!(pair.peers[1].memory[BLOCK], 9);
}

#[test]
fn a_test_that_switches_holding_off_finds_writes_that_are_sent_too_early() {
    let mut pair = pair(|options| options.protections.hold_changes = false);
    pair.peers[1].lost_paths.reset = Reset::Withheld;
    pair.lose_one();
    pair.until("they go on", |pair| pair.done.len() == 2);
    assert_eq!(pair.peers[1].executed, [1, 1], "though the lost path may still write");
}

#[test]
fn a_path_is_lost_when_another_tells_that_its_controller_has_lost_this_host() {
    let mut pair = pair(|_| {});
    pair.until("events are asked for", |pair| pair.peers[1].event_request.is_some());
    let entry = |ciu| {
        let mut entry = LostHostEntry::zeroed();
        (entry.cntlid, entry.ciu) = (1.into(), ciu);
        entry
    };
    pair.peers[1].lost_paths.lost = vec![entry(6)];
    pair.peers[1].notify(AsyncEvent::lost_host_communication());
    pair.until("events are asked for", |pair| pair.peers[1].event_request.is_some());
    pair.write(3);
    pair.until("it is written", |pair| pair.done.len() == 1);
    assert!(!pair.is_told(lost(ONE)), "that was an earlier instance");
    pair.peers[1].lost_paths.lost = vec![entry(6), entry(7)];
    pair.peers[1].notify(AsyncEvent::lost_host_communication());
    pair.until("the path is lost", |pair| pair.is_told(lost(ONE)));
    let is_why = |event: &HostEvent| {
        let HostEvent::Lost { error, .. } = event else { return false };
        matches!(error.cause, crate::error::Cause::LostHost)
    };
    assert!(pair.is_told(is_why), "{:?}", pair.told);
}
