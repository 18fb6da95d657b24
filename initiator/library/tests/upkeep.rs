//! What keeps an attachment alive and up to date, and how it is left: asynchronous events, Keep Alive, Abort and
//! Disconnect, with a controller that does what it is told.

#[allow(dead_code, reason = "each test program uses its part")]
mod support;

use std::time::{Duration, Instant};

use ringfab_initiator::{
    Cause, ConnectOptions, ControllerId, Host, HostEvent, IoError, IoRequest, SubmitError,
};
use ringfab_spec::Status;
use ringfab_spec::log::{AsyncEvent, SmartInfo};
use support::host::{attached_with, done, next_event, nothing_for, read, until, write};
use support::{BLOCKS, Disconnects, Peer};

const MOMENT: Duration = Duration::from_millis(100);

#[test]
fn a_namespace_that_grows_while_attached_is_noticed_each_time() {
    let (mut host, mut peer, controller) = attached_with(|_| {}, |_| {});
    for blocks in [BLOCKS as u64 * 2, BLOCKS as u64 * 3] {
        until(&mut host, &mut peer, |peer| peer.event_request.is_some());
        peer.blocks = blocks;
        peer.notify(AsyncEvent::namespace_attribute_changed());
        match next_event(&mut host, &mut peer) {
            HostEvent::NamespacesChanged { controller: changed } => assert_eq!(changed, controller),
            event => panic!("{event:?}"),
        }
        assert_eq!(host.namespaces(controller)[0].blocks, blocks);
    }
}

#[test]
fn a_change_during_the_look_at_the_one_before_is_looked_at_too() {
    let (mut host, mut peer, controller) = attached_with(|_| {}, |_| {});
    until(&mut host, &mut peer, |peer| peer.event_request.is_some());
    peer.blocks += 1;
    peer.notify(AsyncEvent::namespace_attribute_changed());
    // The next request comes before the answers to the first look's questions.
    until(&mut host, &mut peer, |peer| peer.event_request.is_some());
    peer.notify(AsyncEvent::namespace_attribute_changed());
    let looked = |host: &mut Host, peer: &mut Peer| {
        let event = next_event(host, peer);
        assert!(matches!(event, HostEvent::NamespacesChanged { .. }), "{event:?}");
    };
    looked(&mut host, &mut peer);
    peer.blocks += 1;
    looked(&mut host, &mut peer);
    assert_eq!(host.namespaces(controller)[0].blocks, BLOCKS as u64 + 2);
}

#[test]
fn an_event_of_another_kind_changes_nothing_and_the_next_one_is_waited_for() {
    let (mut host, mut peer, _) = attached_with(|_| {}, |_| {});
    until(&mut host, &mut peer, |peer| peer.event_request.is_some());
    peer.identified.clear();
    peer.notify(AsyncEvent::smart(SmartInfo::TEMPERATURE_THRESHOLD));
    until(&mut host, &mut peer, |peer| peer.event_request.is_some());
    nothing_for(&mut host, &mut peer, MOMENT);
    assert!(peer.identified.is_empty(), "nothing was looked at: {:?}", peer.identified);
}

/// Keep Alive commands in five times half of the timeout, idle or busy.
fn keep_alives(traffic_based: bool, busy: bool) -> u32 {
    let prepare = |peer: &mut Peer| peer.traffic_based_keep_alive = traffic_based;
    let (mut host, mut peer, controller) = attached_with(prepare, |options| options.keep_alive = 4 * MOMENT);
    let start = Instant::now();
    while start.elapsed() < 10 * MOMENT {
        if busy {
            let request = read(&host, 1, 0, 1);
            host.submit(controller, request).expect("taken");
            assert_eq!(done(&mut host, &mut peer).result, Ok(()));
        } else {
            nothing_for(&mut host, &mut peer, MOMENT / 10);
        }
    }
    peer.keep_alives
}

#[test]
fn a_controller_hears_of_its_host_in_time_and_of_a_busy_one_by_its_traffic_where_that_counts() {
    // A stall of the machine delays those that are due, and may look like silence once.
    let on_time = |traffic_based, busy| (0..5).any(|_| keep_alives(traffic_based, busy) >= 3);
    assert!(on_time(false, false), "idle");
    assert!(on_time(false, true), "busy, but only Keep Alive counts");
    assert!(on_time(true, false), "idle, where traffic would count");
    assert!(keep_alives(true, true) <= 1, "busy, and traffic counts");
}

#[test]
fn a_keep_alive_without_an_answer_costs_the_connection() {
    let (mut host, mut peer, _) = attached_with(
        |peer| peer.faults.mute_keep_alive = true,
        |options| (options.keep_alive, options.timeouts.admin) = (MOMENT, MOMENT),
    );
    match next_event(&mut host, &mut peer) {
        HostEvent::Lost { error, .. } => {
            assert!(matches!(error.cause, Cause::TimedOut { what: "Keep Alive", .. }), "{error}");
        }
        event => panic!("{event:?}"),
    }
    assert_eq!(peer.keep_alives, 1, "one is outstanding at a time");
}

/// A host whose write is not answered in time, up to its request to abort it.
fn overdue(aborts: bool) -> (Host, Peer, ControllerId) {
    let prepare = |peer: &mut Peer| peer.aborts = aborts;
    let (mut host, mut peer, controller) = attached_with(prepare, |options| options.timeouts.io = 5 * MOMENT);
    peer.faults.mute = true;
    let request = write(&host, 7, 3, 1, 9);
    host.submit(controller, request).expect("taken");
    until(&mut host, &mut peer, |peer| !peer.withheld.is_empty());
    let asked_for = peer.withheld[0].1.cid.get();
    peer.faults.mute = false;
    until(&mut host, &mut peer, |peer| peer.abort_asked.is_some());
    assert_eq!(peer.abort_asked, Some((1, asked_for)), "the first queue's command");
    (host, peer, controller)
}

#[test]
fn an_overdue_command_is_aborted_and_the_connection_stays() {
    let (mut host, mut peer, controller) = overdue(true);
    let aborted = done(&mut host, &mut peer);
    assert_eq!((aborted.tag, aborted.result), (7, Err(IoError::TimedOut)));
    assert!(aborted.source.is_some(), "the source comes back");
    let request = write(&host, 8, 3, 1, 9);
    host.submit(controller, request).expect("taken");
    assert_eq!(done(&mut host, &mut peer).result, Ok(()));
}

#[test]
fn an_overdue_command_that_could_not_be_aborted_may_still_end_well() {
    let (mut host, mut peer, _) = overdue(false);
    nothing_for(&mut host, &mut peer, MOMENT);
    peer.release(Status::SUCCESS);
    assert_eq!(done(&mut host, &mut peer).result, Ok(()));
}

/// Detaches, and gives the I/O queues that were disconnected.
fn leave(disconnects: Disconnects) -> Vec<u16> {
    let (mut host, mut peer, controller) = attached_with(|peer| peer.disconnects = disconnects, |_| {});
    let request = write(&host, 1, 0, 1, 1);
    host.submit(controller, request).expect("taken");
    assert_eq!(done(&mut host, &mut peer).result, Ok(()));
    host.detach(controller);
    match next_event(&mut host, &mut peer) {
        HostEvent::Detached { trouble, .. } => assert!(trouble.is_none(), "{disconnects:?}: {trouble:?}"),
        event => panic!("{event:?}"),
    }
    assert!(peer.shut_down);
    assert_eq!(peer.flushed, [1]);
    assert_eq!(host.rnic_counters().queue_pairs, 0);
    peer.disconnected
}

#[test]
fn whoever_leaves_in_order_disconnects_each_io_queue_where_the_controller_can() {
    assert_eq!(leave(Disconnects::Unknown), []);
    assert_eq!(leave(Disconnects::Answer(Status::SUCCESS)), [1, 2]);
}

#[test]
fn a_disconnect_that_is_refused_or_not_answered_does_not_keep_a_host_from_leaving_in_order() {
    assert_eq!(leave(Disconnects::Answer(Status::INVALID_OPCODE.with_dnr())), [1, 2]);
    assert_eq!(leave(Disconnects::Close), [1, 2]);
}

#[test]
fn whoever_leaves_flushes_what_it_wrote_to_though_the_controller_listed_it_out_of_order() {
    let list = |peer: &mut Peer| peer.nsids = vec![5, 1, 3, 5, 2];
    let (mut host, mut peer, controller) = attached_with(list, |_| {});
    let known: Vec<u32> = host.namespaces(controller).iter().map(|namespace| namespace.nsid).collect();
    assert_eq!(known, [1, 2, 3, 5]);
    for nsid in [5, 2, 5] {
        let request = IoRequest { nsid, ..write(&host, nsid.into(), 0, 1, 1) };
        host.submit(controller, request).expect("taken");
        assert_eq!(done(&mut host, &mut peer).result, Ok(()));
    }
    let request = IoRequest { nsid: 3, ..read(&host, 3, 0, 1) };
    host.submit(controller, request).expect("taken");
    assert_eq!(done(&mut host, &mut peer).result, Ok(()));
    let refused = host.submit(controller, IoRequest { nsid: 4, ..write(&host, 4, 0, 1, 1) });
    assert_eq!(refused.expect_err("there is none").reason, SubmitError::NoNamespace(4));
    host.detach(controller);
    match next_event(&mut host, &mut peer) {
        HostEvent::Detached { trouble, .. } => assert!(trouble.is_none(), "{trouble:?}"),
        event => panic!("{event:?}"),
    }
    assert_eq!(peer.flushed, [2, 5]);
}

#[test]
fn what_was_written_to_a_namespace_that_has_gone_is_not_flushed() {
    let (mut host, mut peer, controller) = attached_with(|peer| peer.nsids = vec![1, 2, 3], |_| {});
    for nsid in 1..=3 {
        let request = IoRequest { nsid, ..write(&host, nsid.into(), 0, 1, 1) };
        host.submit(controller, request).expect("taken");
        assert_eq!(done(&mut host, &mut peer).result, Ok(()));
    }
    until(&mut host, &mut peer, |peer| peer.event_request.is_some());
    peer.nsids = vec![1, 3];
    peer.notify(AsyncEvent::namespace_attribute_changed());
    let event = next_event(&mut host, &mut peer);
    assert!(matches!(event, HostEvent::NamespacesChanged { .. }), "{event:?}");
    host.detach(controller);
    match next_event(&mut host, &mut peer) {
        HostEvent::Detached { trouble, .. } => assert!(trouble.is_none(), "{trouble:?}"),
        event => panic!("{event:?}"),
    }
    assert_eq!(peer.flushed, [1, 3]);
}

/// Writes and leaves while the namespace is being removed; what was wrong with that, if anything.
fn leave_a_namespace_that_has_gone(named: bool) -> Option<String> {
    let remove = |peer: &mut Peer| peer.faults.namespace_removed = true;
    let name = |options: &mut ConnectOptions| options.url.namespace = named.then_some(1);
    let (mut host, mut peer, controller) = attached_with(remove, name);
    let request = write(&host, 1, 0, 1, 1);
    host.submit(controller, request).expect("taken");
    assert_eq!(done(&mut host, &mut peer).result, Ok(()));
    host.detach(controller);
    match next_event(&mut host, &mut peer) {
        HostEvent::Detached { trouble, .. } => trouble.map(|error| error.to_string()),
        event => panic!("{event:?}"),
    }
}

#[test]
fn a_namespace_that_was_removed_keeps_nobody_from_leaving_in_order_but_who_came_for_it() {
    assert_eq!(leave_a_namespace_that_has_gone(false), None);
    let trouble = leave_a_namespace_that_has_gone(true).expect("what was written there may be lost");
    assert!(trouble.contains("Flush"), "{trouble}");
}
