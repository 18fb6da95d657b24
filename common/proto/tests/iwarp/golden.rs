//! The bytes on the wire, written down by hand from the specifications' figures.

use ringfab_proto::iwarp::mpa::{Negotiated, Role};
use ringfab_proto::iwarp::{ReadRequest, SendRequest, WorkRequest, WriteRequest, crc};

use super::support::{Host, local, negotiated, send_inline};

fn emit(crc: bool, works: &[WorkRequest<usize>]) -> Vec<u8> {
    let mut host = Host::new(Negotiated { crc, ..negotiated(Role::Initiator) });
    host.allocate(b"payload!".to_vec());
    works.iter().for_each(|work| host.engine.post(0, *work).unwrap());
    host.emit_all()
}

#[test]
fn a_send_is_an_untagged_segment_on_queue_0() {
    let bytes = emit(false, &[WorkRequest::Send(send_inline(b"hello"))]);
    let expected = [
        &[0, 23, 0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0][..],
        b"hello",
        &[0, 0, 0, 0, 0, 0, 0],
    ]
    .concat();
    assert_eq!(bytes, expected);
}

#[test]
fn the_crc_covers_length_ulpdu_and_padding_and_is_little_endian() {
    let plain = emit(false, &[WorkRequest::Send(send_inline(b"hello"))]);
    let with_crc = emit(true, &[WorkRequest::Send(send_inline(b"hello"))]);
    let (covered, field) = with_crc.split_at(28);
    assert_eq!(covered, &plain[..28]);
    assert_eq!(field, crc::of(covered));
    assert_eq!(field, bitwise_crc32c(covered).to_le_bytes());
}

/// The definition of CRC32C, one bit at a time.
fn bitwise_crc32c(bytes: &[u8]) -> u32 {
    let mut register = u32::MAX;
    for byte in bytes {
        register ^= u32::from(*byte);
        for _ in 0..8 {
            register = register >> 1 ^ if register & 1 == 1 { 0x82f6_3b78 } else { 0 };
        }
    }
    !register
}

#[test]
fn a_solicited_send_with_invalidate_carries_the_stag() {
    let work = SendRequest { invalidate: Some(0x0102_0304), solicited: true, ..send_inline(b"") };
    let bytes = emit(false, &[WorkRequest::Send(work), WorkRequest::Send(work)]);
    let one = |msn| [0, 18, 0x41, 0x46, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, msn, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(bytes, [one(1), one(2)].concat());
}

#[test]
fn a_write_is_a_tagged_segment() {
    let work = WriteRequest { stag: 0xaabb_ccdd, to: 0x0102_0304_0506_0708, payload: local(0, 2, 3) };
    let bytes = emit(false, &[WorkRequest::Write(work)]);
    let expected =
        [&[0, 17, 0xc1, 0x40, 0xaa, 0xbb, 0xcc, 0xdd, 1, 2, 3, 4, 5, 6, 7, 8][..], b"ylo", &[0, 0, 0, 0, 0]]
            .concat();
    assert_eq!(bytes, expected);
}

#[test]
fn a_read_request_has_sink_size_and_source_on_queue_1() {
    let work = ReadRequest {
        stag: 0x1111_1111,
        to: 0x22,
        sink_stag: 0x3333_3333,
        sink_to: 0x44,
        sink: local(0, 0, 8),
    };
    let bytes = emit(false, &[WorkRequest::Read(work)]);
    let expected = [
        &[0, 46, 0x41, 0x41, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0][..],
        &[0x33, 0x33, 0x33, 0x33, 0, 0, 0, 0, 0, 0, 0, 0x44],
        &[0, 0, 0, 8],
        &[0x11, 0x11, 0x11, 0x11, 0, 0, 0, 0, 0, 0, 0, 0x22],
        &[0; 4],
    ]
    .concat();
    assert_eq!(bytes, expected);
}

#[test]
fn a_large_write_is_cut_into_even_segments_with_rising_offsets() {
    let mut host = Host::new(Negotiated { crc: false, ..negotiated(Role::Initiator) });
    let handle = host.allocate(vec![1; 131_072]);
    let work = WriteRequest { stag: 1, to: 0x1000, payload: local(handle, 0, 131_072) };
    host.engine.post(0, WorkRequest::Write(work)).unwrap();
    let bytes = host.emit_all();
    let mut at = 0;
    let mut segments = Vec::new();
    while at < bytes.len() {
        let ulpdu_len = usize::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]));
        segments.push((bytes[at + 2], u16::from_be_bytes([bytes[at + 13], bytes[at + 14]]), ulpdu_len - 14));
        at += (2 + ulpdu_len).next_multiple_of(4) + 4;
    }
    assert_eq!(segments, [(0x81, 0x10, 45_056), (0x81, 0xc0, 45_056), (0xc1, 0x170, 40_960)]);
}
