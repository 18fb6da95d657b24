//! What a large message may go on with.

use ringfab_proto::iwarp::mpa::Role;
use ringfab_proto::iwarp::{Access, Continuation, Pause, ReadRequest, WorkRequest, crc};

use super::support::{Host, fpdu, local, negotiated, tagged};

const WRITE: u8 = 0;
const READ_RESPONSE: u8 = 2;
const BASE: u64 = 0x1000;

/// A host with a region of 20,000 bytes for writing; its smallest direct placement has 2,048.
fn host() -> (Host, u32) {
    let mut host = Host::new(negotiated(Role::Responder));
    let handle = host.allocate(vec![0; 20_000]);
    let writable = host.expose(handle, BASE, Access::RemoteWrite);
    (host, writable)
}

/// Has a segment of `len` bytes come whole, header first, and returns what may follow it.
fn segment(host: &mut Host, opcode: u8, last: bool, stag: u32, to: u64, len: usize) -> Option<Continuation> {
    let payload = vec![7; len];
    let bytes = fpdu(&tagged(opcode, last, stag, to, &payload));
    let (header, rest) = bytes.split_at(16);
    let (consumed, pause) = host.take(header);
    let Pause::Direct { remaining, continuation, .. } = pause else { panic!("{pause:?}") };
    assert_eq!((consumed, remaining), (16, len));
    host.engine.direct_received(len, |state| crc::update(state, &payload));
    assert_eq!(host.take(&rest[len..]).0, rest.len() - len);
    continuation
}

#[test]
fn a_write_may_go_on_to_the_end_of_its_region() {
    let (mut host, stag) = host();
    let continuation = segment(&mut host, WRITE, false, stag, BASE, 6000);
    // The last 2,000 bytes would not be placed directly.
    assert_eq!(continuation, Some(Continuation { gap: 20, step: 6000, total: 12_000 }));
    let continuation = segment(&mut host, WRITE, false, stag, BASE + 6000, 5001);
    assert_eq!(
        continuation,
        Some(Continuation { gap: 23, step: 5001, total: 8999 }),
        "behind three bytes of padding"
    );
    assert_eq!(segment(&mut host, WRITE, false, stag, BASE + 11_001, 6999), None, "too little is left");
}

#[test]
fn nothing_goes_on_behind_the_last_segment() {
    let (mut host, stag) = host();
    assert_eq!(segment(&mut host, WRITE, true, stag, BASE, 6000), None);
}

#[test]
fn a_write_does_not_go_on_over_what_has_been_written() {
    let (mut host, stag) = host();
    assert_eq!(segment(&mut host, WRITE, true, stag, BASE + 12_000, 3000), None);
    assert_eq!(segment(&mut host, WRITE, false, stag, BASE, 6000), None);
    assert_eq!(segment(&mut host, WRITE, false, stag, BASE + 12_000, 3000), None, "written before");
    let continuation = segment(&mut host, WRITE, false, stag, BASE + 15_000, 2500);
    assert_eq!(continuation, Some(Continuation { gap: 20, step: 2500, total: 2500 }));
}

#[test]
fn the_answer_to_a_read_may_go_on_to_its_end() {
    let mut host = Host::new(negotiated(Role::Initiator));
    let sink = host.allocate(vec![0; 13_000]);
    let read = ReadRequest { stag: 9, to: 0, sink_stag: 77, sink_to: 5, sink: local(sink, 500, 12_000) };
    host.engine.post(1, WorkRequest::Read(read)).expect("room");
    host.emit_all();
    let continuation = segment(&mut host, READ_RESPONSE, false, 77, 5, 5002);
    assert_eq!(continuation, Some(Continuation { gap: 22, step: 5002, total: 6998 - 1996 }));
    let continuation = segment(&mut host, READ_RESPONSE, false, 77, 5007, 3000);
    assert_eq!(continuation, Some(Continuation { gap: 20, step: 3000, total: 3998 - 998 }));
    assert_eq!(segment(&mut host, READ_RESPONSE, true, 77, 8007, 3998), None);
}
