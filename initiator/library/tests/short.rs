//! Controllers that write fewer bytes over RDMA than there is room for: nobody says how many, so what they have not
//! written is zero and never what was there before.

#[allow(dead_code, reason = "each test program uses its part")]
mod support;

use ringfab_initiator::{AdminData, AdminRequest, HostEvent};
use ringfab_spec::log::AsyncEvent;
use ringfab_spec::{Status, SubmissionEntry};
use support::host::{attached_with, next_event, until};

const IDENTIFY: u8 = 0x06;

#[test]
fn what_an_earlier_answer_has_left_in_the_memory_is_not_read() {
    let (mut host, mut peer, controller) = attached_with(
        |peer| {
            peer.nsids = vec![1, 2];
            // The limits lie where a third and fourth namespace would.
            peer.announced.dmsl = 5 | 7 << 32;
            // The controller; the limits; two namespaces and no zero behind them; each up to its format.
            peer.cuts = vec![(IDENTIFY, 1, 1806), (IDENTIFY, 6, 16), (IDENTIFY, 2, 8), (IDENTIFY, 0, 132)];
            // No descriptor: what the namespace's data left would be one.
            peer.cuts.push((IDENTIFY, 3, 0));
        },
        |_| {},
    );
    let known: Vec<u32> = host.namespaces(controller).iter().map(|namespace| namespace.nsid).collect();
    assert_eq!(known, [1, 2]);
    let namespaces = host.namespaces(controller).to_vec();
    assert!(namespaces.iter().all(|namespace| namespace.identity.uuid.is_none()));

    // The same for the list of those that have changed.
    until(&mut host, &mut peer, |peer| peer.event_request.is_some());
    (peer.changed, peer.blocks) = (vec![2], peer.blocks * 2);
    peer.cuts.push((0x02, 4, 4));
    peer.notify(AsyncEvent::namespace_attribute_changed());
    let event = next_event(&mut host, &mut peer);
    assert!(matches!(event, HostEvent::NamespacesChanged { .. }), "{event:?}");
    assert_eq!(host.namespaces(controller).len(), 2);
}

#[test]
fn a_program_finds_zeroes_where_the_controller_wrote_nothing() {
    let (mut host, mut peer, controller) = attached_with(|peer| peer.cuts = vec![(0x0a, 0, 100)], |_| {});
    let mut buffer = host.pool().take(4096).expect("a buffer");
    buffer.fill(0xee);
    let entry = SubmissionEntry::get_features(0, 0, 0, 0);
    let request = AdminRequest { entry, data: AdminData::FromController(buffer), tag: 9 };
    host.admin(controller, request).expect("taken");
    match next_event(&mut host, &mut peer) {
        HostEvent::AdminDone(done) => {
            assert_eq!(done.result.map(|entry| entry.status()), Ok(Status::SUCCESS));
            assert_eq!(done.received, 4096, "nobody says how much it was");
            let buffer = done.buffer.expect("it comes back");
            assert!(buffer[..100].iter().all(|byte| *byte == 0x0a));
            assert!(buffer[100..].iter().all(|byte| *byte == 0), "what was there before is gone");
        }
        event => panic!("{event:?}"),
    }
}
