//! What a peer must not do: each violation ends its connection with a Terminate that says why, and nothing else.

use ringfab_fabric::rdma::{Access, DisconnectReason, QueuePairId, RemoteBuffer, Work};

use crate::support::{End, Pair, scenarios, send_work, slice};

scenarios! {
    a_write_with_an_unknown_key_is_refused,
    a_write_beyond_the_end_is_refused_and_one_up_to_it_is_not,
    a_write_before_the_start_is_refused,
    a_write_to_memory_exposed_for_reading_is_refused,
    a_read_of_memory_exposed_for_writing_is_refused,
    a_read_beyond_the_end_is_refused,
    memory_of_another_domain_is_out_of_reach,
    revoked_memory_is_out_of_reach,
    memory_of_a_deallocated_domain_is_out_of_reach,
    an_unknown_key_cannot_be_invalidated,
    a_key_of_another_domain_cannot_be_invalidated,
    a_send_without_a_credit_is_refused,
    a_message_larger_than_its_receive_is_refused,
    a_violation_leaves_other_connections_alone,
}

/// The host does `work`, which must end the connection at both ends with `code`.
fn refused(pair: &mut Pair, ends: (QueuePairId, QueuePairId), work: Work, code: &str) {
    let (here, there) = ends;
    pair.host.post(here, 5, work);
    pair.host.send(here, 6, b"never delivered");
    let (reason, flushed) = pair.disconnected(End::Target, there);
    assert!(matches!(reason, DisconnectReason::Violation(_)), "{reason:?}");
    assert!(flushed.is_empty());
    match pair.disconnected(End::Host, here).0 {
        DisconnectReason::PeerTerminated(said) => assert!(said.contains(code), "{said} is not {code}"),
        other => panic!("{other:?}"),
    }
    let left: Vec<_> = pair.target.events.drain(..).collect();
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(pair.target.rnic.counters().violations, 1);
}

fn write(pair: &Pair, remote: RemoteBuffer, offset: i64, length: usize) -> Work {
    let source = slice(&pair.host.shared_buffer(&vec![1; length]));
    let remote_address = remote.address.wrapping_add_signed(offset);
    Work::Write { source, remote_key: remote.key, remote_address }
}

fn read(pair: &Pair, remote: RemoteBuffer, offset: i64, length: usize) -> Work {
    let sink = pair.host.buffer(&vec![1; length]);
    let remote_address = remote.address.wrapping_add_signed(offset);
    Work::Read { sink, length: length as u32, remote_key: remote.key, remote_address }
}

/// Memory of the target.
fn exposed(pair: &mut Pair, access: Access) -> RemoteBuffer {
    let shared_buffer = pair.target.shared_buffer(&[0; 4096]);
    pair.target.expose(&shared_buffer, access)
}

fn a_write_with_an_unknown_key_is_refused(pair: &mut Pair) {
    let ends = pair.connected();
    let mut remote = exposed(pair, Access::RemoteWrite);
    remote.key ^= 1;
    let work = write(pair, remote, 0, 16);
    refused(pair, ends, work, "Tagged Buffer Error: Invalid STag");
}

fn a_write_beyond_the_end_is_refused_and_one_up_to_it_is_not(pair: &mut Pair) {
    let ends = pair.connected();
    let remote = exposed(pair, Access::RemoteWrite);
    let inside = write(pair, remote, 4000, 96);
    pair.host.post(ends.0, 1, inside);
    assert_eq!(pair.sent(End::Host), 1);
    let work = write(pair, remote, 4000, 97);
    refused(pair, ends, work, "Tagged Buffer Error: Base or bounds violation");
}

fn a_write_before_the_start_is_refused(pair: &mut Pair) {
    let ends = pair.connected();
    let remote = exposed(pair, Access::RemoteWrite);
    let work = write(pair, remote, -1, 16);
    refused(pair, ends, work, "Tagged Buffer Error: Base or bounds violation");
}

fn a_write_to_memory_exposed_for_reading_is_refused(pair: &mut Pair) {
    let ends = pair.connected();
    let remote = exposed(pair, Access::RemoteRead);
    let work = write(pair, remote, 0, 16);
    refused(pair, ends, work, "Remote Protection Error: Access rights violation");
}

fn a_read_of_memory_exposed_for_writing_is_refused(pair: &mut Pair) {
    let ends = pair.connected();
    let remote = exposed(pair, Access::RemoteWrite);
    let work = read(pair, remote, 0, 16);
    refused(pair, ends, work, "Remote Protection Error: Access rights violation");
}

fn a_read_beyond_the_end_is_refused(pair: &mut Pair) {
    let ends = pair.connected();
    let remote = exposed(pair, Access::RemoteRead);
    let work = read(pair, remote, 1, 4096);
    refused(pair, ends, work, "Remote Protection Error: Base or bounds violation");
}

/// Memory of a domain of the target that no queue pair belongs to.
fn foreign(pair: &mut Pair) -> RemoteBuffer {
    let other = pair.target.rnic.allocate_domain();
    let shared_buffer = pair.target.shared_buffer(&[0; 4096]);
    pair.target.rnic.expose(other, shared_buffer, 0, 4096, Access::RemoteWrite).expect("room")
}

fn memory_of_another_domain_is_out_of_reach(pair: &mut Pair) {
    let ends = pair.connected();
    let remote = foreign(pair);
    let work = write(pair, remote, 0, 16);
    refused(pair, ends, work, "Tagged Buffer Error: STag not associated with DDP Stream");
    assert!(pair.target.rnic.revoke(remote.region).is_some());
}

fn revoked_memory_is_out_of_reach(pair: &mut Pair) {
    let ends = pair.connected();
    let remote = exposed(pair, Access::RemoteWrite);
    assert!(pair.target.rnic.revoke(remote.region).is_some());
    let work = write(pair, remote, 0, 16);
    refused(pair, ends, work, "Tagged Buffer Error: Invalid STag");
}

fn memory_of_a_deallocated_domain_is_out_of_reach(pair: &mut Pair) {
    let ends = pair.connected();
    let remote = exposed(pair, Access::RemoteRead);
    pair.target.rnic.deallocate_domain(pair.target.domain);
    assert_eq!(pair.target.pool.usage().taken, 0, "its shared_buffer is gone too");
    let work = read(pair, remote, 0, 16);
    refused(pair, ends, work, "Remote Protection Error: Invalid STag");
}

fn invalidating(key: u32) -> Work {
    let Work::Send { head, data, solicited, .. } = send_work(b"done", None) else { unreachable!() };
    Work::Send { head, data, solicited, invalidate: Some(key) }
}

fn an_unknown_key_cannot_be_invalidated(pair: &mut Pair) {
    let ends = pair.connected();
    refused(pair, ends, invalidating(77), "STag cannot be Invalidated");
}

fn a_key_of_another_domain_cannot_be_invalidated(pair: &mut Pair) {
    let ends = pair.connected();
    let remote = foreign(pair);
    refused(pair, ends, invalidating(remote.key), "STag cannot be Invalidated");
    assert!(pair.target.rnic.revoke(remote.region).is_some());
}

fn a_send_without_a_credit_is_refused(pair: &mut Pair) {
    let (host, mut target) = (pair.host.attributes(), pair.target.attributes());
    target.receive_depth = 2;
    let ends = pair.connected_with(host, &target);
    for id in 0..2 {
        pair.host.send(ends.0, id, b"within the credits");
        pair.received(End::Target);
    }
    refused(pair, ends, send_work(b"beyond them", None), "Invalid MSN, no buffer available");
}

fn a_message_larger_than_its_receive_is_refused(pair: &mut Pair) {
    let ends = pair.connected();
    let data = pair.host.shared_buffer(&[0; 8193]);
    refused(pair, ends, send_work(&[0; 64], Some(slice(&data))), "DDP Message too long for available buffer");
}

fn a_violation_leaves_other_connections_alone(pair: &mut Pair) {
    let (ends, (here, _)) = (pair.connected(), pair.connected());
    refused(pair, ends, invalidating(77), "STag cannot be Invalidated");
    pair.host.send(here, 1, b"alive");
    assert_eq!(pair.received(End::Target).head.as_slice(), b"alive");
}
