//! The number of a namespace that is in use is given to another disk, with a controller that tells of it at the worst
//! time.

#[allow(dead_code, reason = "each test program uses its part")]
mod support;

use std::time::Duration;

use ringfab_initiator::{ControllerId, Host, HostEvent, IoError, SubmitError};
use ringfab_spec::Status;
use ringfab_spec::log::AsyncEvent;
use support::host::{attached_with, done, next_event, nothing_for, read, until, write};
use support::{BLOCKS, Peer};

/// A host that has heard that some namespaces changed, and has not looked at them yet.
fn told(change: impl FnOnce(&mut Peer)) -> (Host, Peer, ControllerId) {
    let (mut host, mut peer, controller) = attached_with(|_| {}, |_| {});
    until(&mut host, &mut peer, |peer| peer.event_request.is_some());
    change(&mut peer);
    peer.notify(AsyncEvent::namespace_attribute_changed());
    // The next request comes before the answers to the look's questions.
    until(&mut host, &mut peer, |peer| peer.event_request.is_some());
    (host, peer, controller)
}

fn looked(host: &mut Host, peer: &mut Peer) {
    let event = next_event(host, peer);
    assert!(matches!(event, HostEvent::NamespacesChanged { .. }), "{event:?}");
}

#[test]
fn what_waits_for_a_disk_that_is_gone_ends_and_what_comes_for_it_is_refused() {
    let (mut host, mut peer, controller) = told(|peer| {
        peer.changed = vec![1];
        peer.faults.other_nguid = true;
    });
    let old = host.namespaces(controller)[0].identity;
    let request = write(&host, 7, 0, 1, 9);
    host.submit_to(controller, &old, request).expect("it is not known yet");
    let ended = done(&mut host, &mut peer);
    let gone = IoError::Refused(SubmitError::NoNamespace(1));
    assert_eq!((ended.tag, ended.result), (7, Err(gone)));
    looked(&mut host, &mut peer);
    let request = write(&host, 8, 0, 1, 9);
    let refused = host.submit_to(controller, &old, request).expect_err("another disk");
    assert_eq!(refused.reason, SubmitError::NoNamespace(1));
    assert_eq!(peer.executed, [], "nothing reached it");
    let new = host.namespaces(controller)[0].identity;
    assert!(!new.agrees_with(&old));
    let request = write(&host, 9, 0, 1, 9);
    host.submit_to(controller, &new, request).expect("the one that is meant");
    assert_eq!(done(&mut host, &mut peer).result, Ok(()));
    let request = write(&host, 10, 0, 1, 9);
    host.submit(controller, request).expect("whichever it is");
    assert_eq!(done(&mut host, &mut peer).result, Ok(()));
}

#[test]
fn what_was_told_to_come_again_does_not_come_to_another_disk() {
    let (mut host, mut peer, controller) = attached_with(|_| {}, |_| {});
    until(&mut host, &mut peer, |peer| peer.event_request.is_some());
    peer.faults.mute = true;
    let request = write(&host, 7, 0, 1, 9);
    host.submit(controller, request).expect("taken");
    until(&mut host, &mut peer, |peer| !peer.withheld.is_empty());
    peer.faults.mute = false;
    peer.release(Status::NAMESPACE_NOT_READY);
    (peer.changed, peer.faults.other_nguid) = (vec![1], true);
    peer.notify(AsyncEvent::namespace_attribute_changed());
    assert!(done(&mut host, &mut peer).result.is_err());
    looked(&mut host, &mut peer);
    nothing_for(&mut host, &mut peer, Duration::from_millis(300));
    assert_eq!(peer.executed, []);
}

#[test]
fn what_waits_for_a_disk_that_has_only_grown_goes_on() {
    let (mut host, mut peer, controller) = told(|peer| {
        peer.changed = vec![1];
        peer.blocks += 1;
    });
    let request = write(&host, 7, 0, 1, 9);
    host.submit(controller, request).expect("taken");
    looked(&mut host, &mut peer);
    assert_eq!(peer.executed, [], "it waited");
    assert_eq!(done(&mut host, &mut peer).result, Ok(()));
    assert_eq!(host.namespaces(controller)[0].blocks, BLOCKS as u64 + 1);
}

#[test]
fn nobody_waits_for_a_look_at_what_is_new() {
    let (mut host, mut peer, controller) = told(|peer| {
        peer.changed = vec![2, 3];
        peer.nsids = vec![1, 2, 3];
    });
    let request = read(&host, 7, 0, 1);
    host.submit(controller, request).expect("taken");
    assert_eq!(done(&mut host, &mut peer).result, Ok(()), "before the look has ended");
    looked(&mut host, &mut peer);
    assert_eq!(host.namespaces(controller).len(), 3);
}
