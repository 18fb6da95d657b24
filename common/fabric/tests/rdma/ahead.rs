//! Large messages are received further than their segments are known. What was expected wrongly does no harm.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use ringfab_fabric::rdma::{Access, DisconnectReason, QueuePairId, RemoteBuffer};
use ringfab_memory::SharedBuffer;

use crate::hostile::{accepted, fpdu, pair, stranger, write_fpdu};
use crate::support::{End, Pair, pattern};

/// The segments that go straight to their place, and the room for three of them.
const SEGMENT: usize = 20_000;
const ROOM: usize = 3 * SEGMENT;

/// A peer that speaks FPDUs by hand, and the memory that it may write to.
struct Peer {
    pair: Pair,
    stream: TcpStream,
    there: QueuePairId,
    room: SharedBuffer,
    remote: RemoteBuffer,
    sent: u32,
}

impl Peer {
    fn new() -> Self {
        let mut pair = pair();
        let stream = stranger(&pair);
        let (stream, there) = accepted(&mut pair, stream);
        let room = pair.target.shared_buffer(&vec![0xee; ROOM]);
        let remote = pair.target.expose(&room, Access::RemoteWrite);
        Self { pair, stream, there, room, remote, sent: 0 }
    }

    /// Other memory than before, which nobody has written to.
    fn renew(&mut self) {
        drop(self.pair.target.rnic.revoke(self.remote.region).expect("still exposed"));
        self.room = self.pair.target.shared_buffer(&vec![0xee; ROOM]);
        self.remote = self.pair.target.expose(&self.room, Access::RemoteWrite);
    }

    /// A segment of the message, with its place as its pattern.
    fn write(&self, at: usize, length: usize, last: bool) -> Vec<u8> {
        write_fpdu(self.remote, at, &content(at, length), last)
    }

    fn send(&mut self) -> Vec<u8> {
        self.sent += 1;
        let numbers = [0, 0, self.sent, 0].map(u32::to_be_bytes).concat();
        fpdu(&[&[0x41, 0x43], numbers.as_slice(), b"done"].concat())
    }

    /// Has the first segment's header and a little of it arrive alone, so that the rest is waited for in its place, and
    /// then all up to `cut` and all behind it.
    fn bytes(&mut self, fpdus: &[Vec<u8>], cut: usize) {
        let bytes = fpdus.concat();
        let (head, rest) = bytes.split_at(100);
        let (before, behind) = rest.split_at(cut.min(rest.len()));
        for piece in [head, before, behind] {
            self.stream.write_all(piece).expect("written");
            self.pair.run_for(Duration::from_millis(1));
        }
    }

    fn done(&mut self) {
        assert_eq!(self.pair.received(End::Target).head.as_slice(), b"done");
        self.pair.target.rnic.post_receive(self.there, 1);
    }

    fn assert_written(&self, at: usize, length: usize, case: &str) {
        self.room.with_bytes(at..at + length, |bytes| assert!(bytes == content(at, length), "{case}"));
    }
}

/// What belongs to a place, whichever segment brings it.
fn content(at: usize, length: usize) -> Vec<u8> {
    pattern(ROOM, 9)[at..at + length].to_vec()
}

/// Where the bytes behind the head are cut in two: around each end of what is expected, and not at all.
fn cuts() -> impl Iterator<Item = usize> {
    let end = 2 + 14 + SEGMENT - 100;
    [
        0,
        1,
        5000,
        end - 1,
        end,
        end + 1,
        end + 4,
        end + 19,
        end + 20,
        end + 21,
        end + 5000,
        40_000,
        40_100,
        99_999,
    ]
    .into_iter()
}

#[test]
fn segments_of_one_length_come_to_their_places_at_once() {
    let mut peer = Peer::new();
    for cut in cuts() {
        peer.renew();
        let before = peer.pair.target.rnic.counters();
        let fpdus = [
            peer.write(0, SEGMENT, false),
            peer.write(SEGMENT, SEGMENT, false),
            peer.write(2 * SEGMENT, SEGMENT, true),
        ];
        let fpdus = [&fpdus[..], &[peer.send()]].concat();
        peer.bytes(&fpdus, cut);
        peer.done();
        peer.assert_written(0, ROOM, &format!("cut at {cut}"));
        let after = peer.pair.target.rnic.counters();
        if cut == 99_999 {
            let copied = after.copied_bytes.received - before.copied_bytes.received;
            assert!(copied < 200, "{copied} bytes were copied");
            assert!(after.received_direct_bytes - before.received_direct_bytes > ROOM as u64 - 200);
        }
    }
}

#[test]
fn what_comes_instead_of_the_expected_segment_goes_where_it_belongs() {
    type Segments = &'static [(usize, usize, bool)];
    let cases: [(&str, Segments); 7] = [
        ("a shorter last one", &[(0, SEGMENT, false), (SEGMENT, 100, true)]),
        ("a shorter one", &[(0, SEGMENT, false), (SEGMENT, 17_000, false), (37_000, 1000, true)]),
        ("a longer one", &[(0, SEGMENT, false), (SEGMENT, 30_000, false), (50_000, 10_000, true)]),
        ("none", &[(0, SEGMENT, false)]),
        ("an empty one", &[(0, SEGMENT, false), (SEGMENT, 0, true)]),
        ("another message", &[(0, SEGMENT, false), (2 * SEGMENT, SEGMENT, true), (SEGMENT, SEGMENT, true)]),
        (
            "the expected, then a short one",
            &[(0, SEGMENT, false), (SEGMENT, SEGMENT, false), (40_000, 8, true)],
        ),
    ];
    for (case, segments) in cases {
        let mut peer = Peer::new();
        for cut in cuts() {
            peer.renew();
            let mut fpdus: Vec<_> =
                segments.iter().map(|&(at, length, last)| peer.write(at, length, last)).collect();
            fpdus.extend([peer.send(), peer.send()]);
            peer.bytes(&fpdus, cut);
            peer.done();
            peer.done();
            for &(at, length, _) in segments {
                peer.assert_written(at, length, &format!("{case}, cut at {cut}"));
            }
        }
    }
}

#[test]
fn what_has_been_written_is_not_expected_again() {
    let mut peer = Peer::new();
    for cut in cuts() {
        peer.renew();
        let first = [peer.write(SEGMENT + 200, SEGMENT, true), peer.send()].concat();
        peer.stream.write_all(&first).expect("written");
        peer.done();
        let fpdus = [peer.write(0, SEGMENT, false), peer.write(SEGMENT, 200, true), peer.send()];
        peer.bytes(&fpdus, cut);
        peer.done();
        peer.assert_written(0, 2 * SEGMENT + 200, &format!("cut at {cut}"));
    }
}

#[test]
fn a_segment_that_is_expected_is_checked_as_any_other() {
    for cut in cuts() {
        let mut peer = Peer::new();
        let mut wrong = peer.write(SEGMENT, SEGMENT, true);
        *wrong.last_mut().expect("a CRC") ^= 1;
        peer.bytes(&[peer.write(0, SEGMENT, false), wrong], cut);
        let (reason, _) = peer.pair.disconnected(End::Target, peer.there);
        assert!(matches!(&reason, DisconnectReason::Violation(what) if what.contains("CRC")), "{reason:?}");
    }
}

#[test]
fn memory_that_is_revoked_while_more_is_expected_comes_back() {
    let mut peer = Peer::new();
    let fpdus = [peer.write(0, SEGMENT, false), peer.write(SEGMENT, SEGMENT, true)].concat();
    peer.stream.write_all(&fpdus[..100]).expect("written");
    peer.pair.run_for(Duration::from_millis(1));
    drop(peer.pair.target.rnic.revoke(peer.remote.region).expect("exposed"));
    peer.stream.write_all(&fpdus[100..]).expect("written");
    let (reason, _) = peer.pair.disconnected(End::Target, peer.there);
    assert!(matches!(reason, DisconnectReason::Violation(_)), "{reason:?}");
    peer.room.into_unique().expect("nothing in flight holds it");
}
