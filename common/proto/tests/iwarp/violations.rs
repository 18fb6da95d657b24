//! Each broken rule gives exactly the Terminate that the specifications name.

use ringfab_proto::iwarp::mpa::{Negotiated, Role};
use ringfab_proto::iwarp::{
    Access, EngineError, ProtectionDomain, QueuePairId, ReadRequest, Region, TerminateCode, WorkRequest,
};

use super::support::{Host, PD, fpdu, local, negotiated, parse_terminate, read_request, tagged, untagged};

const LENGTH_AND_DDP: u8 = 0xc0;
const AND_RDMAP: u8 = 0xe0;
const NOTHING: u8 = 0;

/// A responder with a 4 KiB region for reading and one for writing, and two receive buffers of 100 bytes.
struct Victim {
    host: Host,
    readable: u32,
    writable: u32,
    foreign: u32,
    bound: u32,
}

fn victim() -> Victim {
    victim_serving(4)
}

/// The same, with so many incoming reads negotiated.
fn victim_serving(ird: u16) -> Victim {
    let mut host = Host::new(Negotiated { ird, ..negotiated(Role::Responder) });
    let handle = host.allocate(vec![0; 4096]);
    let readable = host.expose(handle, 0x1000, Access::RemoteRead);
    let writable = host.expose(handle, 0x1000, Access::RemoteWrite);
    let region = Region { pd: PD, qp: None, base: 0x1000, len: 4096, access: Access::RemoteWrite, handle };
    let foreign = host.register(Region { pd: ProtectionDomain(99), ..region });
    let bound = host.register(Region { qp: Some(QueuePairId(99)), access: Access::RemoteRead, ..region });
    host.engine.post_recv(100).unwrap();
    host.engine.post_recv(100).unwrap();
    Victim { host, readable, writable, foreign, bound }
}

/// Feeds ULPDUs, all good but the last one, and expects this Terminate with these header control bits.
#[track_caller]
fn refused(mut victim: Victim, ulpdus: &[Vec<u8>], code: TerminateCode, quoted: u8) {
    let (bad, good) = ulpdus.split_last().expect("something to feed");
    for ulpdu in good {
        victim.host.feed(&fpdu(ulpdu)).expect("good so far");
        victim.host.emit_all();
    }
    refused_bytes(&mut victim.host, &fpdu(bad), code, quoted);
}

#[track_caller]
fn refused_bytes(host: &mut Host, bytes: &[u8], code: TerminateCode, quoted: u8) {
    let error = host.feed(bytes).expect_err("must be refused");
    let EngineError::Violation(violation) = error else { panic!("not a violation: {error}") };
    assert_eq!(violation.terminate_code(), code, "{violation}");
    let (sent, control, headers) = parse_terminate(&host.emit_all());
    assert_eq!(sent, code, "{violation}");
    assert_eq!(control, quoted, "{violation}");
    let quoted_len = match quoted {
        NOTHING => 0,
        AND_RDMAP => 2 + 18 + 28,
        _ if bytes[2] & 0x80 != 0 => 2 + 14,
        _ => 2 + 18,
    };
    assert_eq!(headers, bytes[..quoted_len], "the Terminate quotes the offending headers");
    assert!(host.emit_all().is_empty(), "only one Terminate");
    assert_eq!(host.feed(&[]), Err(error), "the connection stays dead");
}

fn send(msn: u32, mo: u32, last: bool, payload: &[u8]) -> Vec<u8> {
    untagged(3, last, [0, 0, msn, mo], payload)
}

fn read(msn: u32, len: u32, source: (u32, u64)) -> Vec<u8> {
    untagged(1, true, [0, 1, msn, 0], &read_request((1, 2), len, source))
}

#[test]
fn a_wrong_crc() {
    let mut bytes = fpdu(&send(1, 0, true, b"abc"));
    *bytes.last_mut().unwrap() ^= 1;
    refused_bytes(&mut victim().host, &bytes, TerminateCode::MPA_CRC, NOTHING);
}

#[test]
fn a_wrong_crc_behind_a_direct_placement() {
    let mut v = victim();
    let mut bytes = fpdu(&tagged(0, true, v.writable, 0x1000, &[7; 4096]));
    *bytes.last_mut().unwrap() ^= 1;
    let (front, back) = bytes.split_at(16);
    v.host.feed(front).unwrap();
    assert!(v.host.engine.direct().is_some());
    refused_bytes(&mut v.host, back, TerminateCode::MPA_CRC, NOTHING);
}

#[test]
fn a_ulpdu_too_short_for_its_header() {
    refused(victim(), &[Vec::new()], TerminateCode::DDP_LOCAL_CATASTROPHIC, NOTHING);
    refused(victim(), &[vec![0x41, 0x43, 0]], TerminateCode::DDP_LOCAL_CATASTROPHIC, NOTHING);
    let tagged = tagged(0, true, 1, 0, &[])[..13].to_vec();
    refused(victim(), &[tagged], TerminateCode::DDP_LOCAL_CATASTROPHIC, NOTHING);
}

#[test]
fn versions_other_than_one() {
    let with = |mut ulpdu: Vec<u8>, at: usize, mask: u8, bits: u8| {
        ulpdu[at] = ulpdu[at] & !mask | bits;
        ulpdu
    };
    let write = |v: &Victim| tagged(0, true, v.writable, 0x1000, &[1]);
    for version in [0, 2, 3] {
        let bad = with(send(1, 0, true, b""), 0, 3, version);
        refused(victim(), &[bad], TerminateCode::DDP_UNTAGGED_INVALID_VERSION, LENGTH_AND_DDP);
        let v = victim();
        let bad = with(write(&v), 0, 3, version);
        refused(v, &[bad], TerminateCode::DDP_TAGGED_INVALID_VERSION, LENGTH_AND_DDP);
        let bad = with(send(1, 0, true, b""), 1, 0xc0, version << 6);
        refused(victim(), &[bad], TerminateCode::RDMAP_INVALID_VERSION, LENGTH_AND_DDP);
    }
}

#[test]
fn a_version_other_than_one_before_the_payload_has_come() {
    for (at, mask, version, code) in [
        (0, 0x03, 0x02, TerminateCode::DDP_TAGGED_INVALID_VERSION),
        (1, 0xc0, 0x80, TerminateCode::RDMAP_INVALID_VERSION),
    ] {
        let mut v = victim();
        let mut ulpdu = tagged(0, true, v.writable, 0x1000, &[7; 4096]);
        ulpdu[at] = ulpdu[at] & !mask | version;
        refused_bytes(&mut v.host, &fpdu(&ulpdu)[..16], code, LENGTH_AND_DDP);
    }
}

#[test]
fn opcodes_that_are_reserved_or_on_the_wrong_queue() {
    let code = TerminateCode::RDMAP_UNEXPECTED_OPCODE;
    for opcode in [0, 1, 2, 7, 8, 15] {
        refused(victim(), &[untagged(opcode, true, [0, 0, 1, 0], b"")], code, LENGTH_AND_DDP);
    }
    for opcode in [1, 3, 4, 5, 6, 7, 9] {
        let v = victim();
        let bad = tagged(opcode, true, v.writable, 0x1000, b"x");
        refused(v, &[bad], code, LENGTH_AND_DDP);
    }
    refused(victim(), &[untagged(3, true, [0, 1, 1, 0], b"")], code, LENGTH_AND_DDP);
    refused(victim(), &[untagged(3, true, [0, 2, 1, 0], b"")], code, LENGTH_AND_DDP);
}

#[test]
fn a_queue_that_does_not_exist() {
    for qn in [3, u32::MAX] {
        refused(
            victim(),
            &[untagged(3, true, [0, qn, 1, 0], b"")],
            TerminateCode::DDP_INVALID_QN,
            LENGTH_AND_DDP,
        );
    }
}

#[test]
fn a_send_without_a_receive_buffer() {
    let sends: Vec<_> = (1..=3).map(|msn| send(msn, 0, true, b"x")).collect();
    refused(victim(), &sends, TerminateCode::DDP_NO_BUFFER, LENGTH_AND_DDP);
}

#[test]
fn a_send_that_overruns_its_buffer_by_one_byte() {
    let mut exact = victim();
    exact.host.feed(&fpdu(&send(1, 0, true, &[1; 100]))).expect("exactly fits");
    refused(victim(), &[send(1, 0, true, &[1; 101])], TerminateCode::DDP_MESSAGE_TOO_LONG, LENGTH_AND_DDP);
    let pieces = [send(1, 0, false, &[1; 60]), send(1, 60, true, &[1; 41])];
    refused(victim(), &pieces, TerminateCode::DDP_MESSAGE_TOO_LONG, LENGTH_AND_DDP);
}

#[test]
fn sequence_numbers_out_of_order() {
    let code = TerminateCode::DDP_MSN_RANGE;
    for msn in [0, 2, u32::MAX] {
        refused(victim(), &[send(msn, 0, true, b"")], code, LENGTH_AND_DDP);
        let v = victim();
        let bad = read(msn, 1, (v.readable, 0x1000));
        refused(v, &[bad], code, LENGTH_AND_DDP);
        refused(victim(), &[untagged(7, true, [0, 2, msn, 0], &[0; 4])], code, LENGTH_AND_DDP);
    }
    refused(victim(), &[send(1, 0, true, b""), send(1, 0, true, b"")], code, LENGTH_AND_DDP);
}

#[test]
fn message_offsets_that_skip_or_repeat() {
    let code = TerminateCode::DDP_INVALID_MO;
    refused(victim(), &[send(1, 1, true, b"x")], code, LENGTH_AND_DDP);
    for mo in [0, 9, 11] {
        refused(victim(), &[send(1, 0, false, &[1; 10]), send(1, mo, true, b"x")], code, LENGTH_AND_DDP);
    }
    let v = victim();
    let mut bad = read(1, 1, (v.readable, 0x1000));
    bad[17] = 4;
    refused(v, &[bad], code, LENGTH_AND_DDP);
}

#[test]
fn a_send_that_changes_its_kind_midway() {
    let bad = untagged(5, true, [0, 0, 1, 1], b"y");
    let code = TerminateCode::RDMAP_UNEXPECTED_OPCODE;
    refused(victim(), &[send(1, 0, false, b"x"), bad], code, LENGTH_AND_DDP);
}

#[test]
fn a_write_through_a_wrong_stag_or_beyond_a_region() {
    let cases = |v: &Victim| {
        [
            (v.writable ^ 1, 0x1000, 1, TerminateCode::DDP_INVALID_STAG),
            (0, 0x1000, 1, TerminateCode::DDP_INVALID_STAG),
            (v.foreign, 0x1000, 1, TerminateCode::DDP_STAG_NOT_ASSOCIATED),
            (v.readable, 0x1000, 1, TerminateCode::RDMAP_ACCESS_RIGHTS),
            (v.writable, 0xfff, 1, TerminateCode::DDP_BASE_OR_BOUNDS),
            (v.writable, 0x2000, 1, TerminateCode::DDP_BASE_OR_BOUNDS),
            (v.writable, 0x1001, 4096, TerminateCode::DDP_BASE_OR_BOUNDS),
            (v.writable, 0, 4096, TerminateCode::DDP_BASE_OR_BOUNDS),
            (v.writable, u64::MAX, 2, TerminateCode::DDP_TO_WRAP),
        ]
    };
    for case in 0..9 {
        let v = victim();
        let (stag, to, len, code) = cases(&v)[case];
        refused(v, &[tagged(0, true, stag, to, &vec![1; len])], code, LENGTH_AND_DDP);
    }
    let mut whole = victim();
    let good = tagged(0, true, whole.writable, 0x1000, &[1; 4096]);
    whole.host.feed(&fpdu(&good)).expect("exactly fits");
}

#[test]
fn a_large_write_through_a_wrong_stag_is_refused_at_its_first_bytes() {
    let mut v = victim();
    let bytes = fpdu(&tagged(0, true, v.writable ^ 1, 0x1000, &[1; 4096]));
    refused_bytes(&mut v.host, &bytes[..16], TerminateCode::DDP_INVALID_STAG, LENGTH_AND_DDP);
}

#[test]
fn a_write_of_no_bytes_is_not_checked() {
    let mut v = victim();
    v.host.feed(&fpdu(&tagged(0, true, 0xdead_beef, 5, b""))).expect("nothing to check");
}

#[test]
fn a_read_from_a_wrong_stag_or_beyond_a_region() {
    let cases = |v: &Victim| {
        [
            (v.readable ^ 1, 0x1000, 1, TerminateCode::RDMAP_INVALID_STAG),
            (v.bound, 0x1000, 1, TerminateCode::RDMAP_STAG_NOT_ASSOCIATED),
            (v.writable, 0x1000, 1, TerminateCode::RDMAP_ACCESS_RIGHTS),
            (v.readable, 0xfff, 1, TerminateCode::RDMAP_BASE_OR_BOUNDS),
            (v.readable, 0x1000, 4097, TerminateCode::RDMAP_BASE_OR_BOUNDS),
            (v.readable, 0x1000, u32::MAX, TerminateCode::RDMAP_BASE_OR_BOUNDS),
            (v.readable, u64::MAX - 3, 5, TerminateCode::RDMAP_TO_WRAP),
        ]
    };
    for case in 0..7 {
        let v = victim();
        let (stag, to, len, code) = cases(&v)[case];
        refused(v, &[read(1, len, (stag, to))], code, AND_RDMAP);
    }
}

#[test]
fn a_read_request_of_wrong_shape() {
    let code = TerminateCode::RDMAP_CATASTROPHIC_STREAM;
    let v = victim();
    let good = read_request((1, 2), 1, (v.readable, 0x1000));
    refused(v, &[untagged(1, true, [0, 1, 1, 0], &good[..27])], code, LENGTH_AND_DDP);
    refused(victim(), &[untagged(1, true, [0, 1, 1, 0], &[0; 29])], code, LENGTH_AND_DDP);
    refused(victim(), &[untagged(1, false, [0, 1, 1, 0], &good)], code, AND_RDMAP);
}

#[test]
fn more_reads_than_the_ird_allows() {
    // What is no power of two counts as the next one: some peers round what they were granted.
    for (ird, served) in [(1, 1), (4, 4), (5, 8)] {
        let mut v = victim_serving(ird);
        for msn in 1..=served {
            let good = read(msn, 16, (v.readable, 0x1000));
            v.host.feed(&fpdu(&good)).expect("within the limit");
        }
        let bad = fpdu(&read(served + 1, 16, (v.readable, 0x1000)));
        refused_bytes(&mut v.host, &bad, TerminateCode::DDP_NO_BUFFER, LENGTH_AND_DDP);
    }
    let mut v = victim_serving(0);
    let bad = fpdu(&read(1, 16, (v.readable, 0x1000)));
    refused_bytes(&mut v.host, &bad, TerminateCode::DDP_NO_BUFFER, LENGTH_AND_DDP);
}

#[test]
fn a_terminate_without_its_control_word() {
    let bad = untagged(7, true, [0, 2, 1, 0], &[0; 3]);
    refused(victim(), &[bad], TerminateCode::RDMAP_CATASTROPHIC_STREAM, LENGTH_AND_DDP);
}

#[test]
fn an_invalidate_of_what_is_not_the_peers() {
    for pick in [|v: &Victim| v.foreign, |v: &Victim| v.bound, |v: &Victim| v.writable ^ 1] {
        let v = victim();
        let bad = untagged(4, true, [pick(&v), 0, 1, 0], b"");
        refused(v, &[bad], TerminateCode::RDMAP_PROTECTION_CANNOT_INVALIDATE, LENGTH_AND_DDP);
    }
}

/// An initiator with one read of 100 bytes outstanding, into STag 5 at 1000.
fn reader() -> Victim {
    let mut v = victim();
    v.host = Host::new(negotiated(Role::Initiator));
    let sink = v.host.allocate(vec![0; 100]);
    let work = ReadRequest { stag: 9, to: 0, sink_stag: 5, sink_to: 1000, sink: local(sink, 0, 100) };
    v.host.engine.post(1, WorkRequest::Read(work)).unwrap();
    v.host.emit_all();
    v
}

#[test]
fn a_response_that_does_not_fit_the_oldest_read() {
    let response = |last, stag, to, len: usize| tagged(2, last, stag, to, &vec![1; len]);
    let bounds = TerminateCode::DDP_BASE_OR_BOUNDS;
    let end = TerminateCode::RDMAP_CATASTROPHIC_STREAM;
    refused(reader(), &[response(true, 6, 1000, 100)], TerminateCode::DDP_INVALID_STAG, LENGTH_AND_DDP);
    refused(reader(), &[response(true, 5, 999, 100)], bounds, LENGTH_AND_DDP);
    refused(reader(), &[response(true, 5, 1000, 101)], bounds, LENGTH_AND_DDP);
    refused(reader(), &[response(true, 5, 1000, 99)], end, LENGTH_AND_DDP);
    refused(reader(), &[response(false, 5, 1000, 100)], end, LENGTH_AND_DDP);
    refused(reader(), &[response(false, 5, 1000, 40), response(true, 5, 1041, 60)], bounds, LENGTH_AND_DDP);
    refused(reader(), &[response(false, 5, 1000, 40), response(true, 5, 1000, 40)], bounds, LENGTH_AND_DDP);
    let done = response(true, 5, 1000, 100);
    let unasked = TerminateCode::RDMAP_UNEXPECTED_OPCODE;
    refused(reader(), &[done.clone(), done], unasked, LENGTH_AND_DDP);
}

#[test]
fn the_log_line_says_what_was_tried() {
    let mut v = victim();
    let error = v.host.feed(&fpdu(&tagged(0, true, 0x1234, 0x1000, b"abc"))).unwrap_err().to_string();
    for part in ["RemoteWrite", "3 bytes", "0x1000", "0x00001234", "no region"] {
        assert!(error.contains(part), "{part:?} is missing in {error:?}");
    }
}

#[test]
fn a_stream_that_ends_inside_an_fpdu_is_not_a_clean_close() {
    let mut v = victim();
    assert_eq!(v.host.engine.stream_ended(0), EngineError::Closed);
    let mut v = victim();
    v.host.feed(&[0, 20, 0x41]).unwrap();
    assert!(matches!(v.host.engine.stream_ended(3), EngineError::Truncated { .. }));
    let mut v = victim();
    let bytes = fpdu(&tagged(0, true, v.writable, 0x1000, &[7; 4096]));
    v.host.feed(&bytes[..100]).unwrap();
    assert!(
        matches!(v.host.engine.stream_ended(0), EngineError::Truncated { missing } if missing == bytes.len() - 100)
    );
}
