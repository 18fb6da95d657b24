//! What a target of NVMe/TCP sent, played to an initiator: cut at every byte and with bytes flipped. It ends in an
//! error, or with the data that there are.

use std::net::SocketAddr;
use std::time::Instant;

use ringfab_proto::crc;
use ringfab_spec::FromBytes;
use ringfab_spec::tcp::{CommonHeader, PduType};
use ringfab_tests::busy::alone;
use ringfab_tests::player::{self, await_threads, flipped, play_session, stream_of, threads};
use ringfab_tests::recording::{From, Recorder, Recording};
use ringfab_tests::{NQN, TestTarget};

const MEMORY: &str = "[[subsystem.namespace]]\nmemory = \"1MiB\"\nblock_bytes = 512\n";

/// Bytes that a session reads.
const LENGTH: usize = 16_384;

/// Of the bytes behind a header, one in so many is tried.
const DATA_STEP: usize = 997;

/// A PDU in a stream: where it begins, and the bytes of its header and of all of it.
struct Place {
    at: usize,
    hlen: usize,
    plen: usize,
}

fn pattern() -> Vec<u8> {
    (0..LENGTH).map(|at| (at * 13 + at / 512) as u8).collect()
}

fn target() -> TestTarget {
    let target = TestTarget::with_listener("transport = \"tcp\"", MEMORY);
    let controller = target.attach();
    controller.write_at(1, 0, &pattern(), false).expect("written");
    controller.detach().expect("detached");
    target
}

fn session(address: SocketAddr, digests: (bool, bool)) -> (Option<Vec<u8>>, bool) {
    let [header, data] = [digests.0, digests.1].map(|on| if on { "on" } else { "off" });
    player::session(&format!("nvme+tcp://{address}/{NQN}?hdgst={header}&ddgst={data}"), LENGTH)
}

/// The two connections of a session: admin queue and I/O queue.
fn recorded(digests: (bool, bool)) -> Vec<Recording> {
    let target = target();
    let recorder = Recorder::start(target.address(), 2);
    assert_eq!(session(recorder.address, digests), (Some(pattern()), true));
    recorder.finish()
}

fn pdus(stream: &[u8]) -> Vec<Place> {
    let (mut at, mut found) = (0, Vec::new());
    while let Ok((ch, _)) = CommonHeader::read_from_prefix(&stream[at..]) {
        let (hlen, plen) = (usize::from(ch.hlen), ch.plen.get() as usize);
        found.push(Place { at, hlen, plen });
        at += plen;
    }
    assert_eq!(at, stream.len(), "whole PDUs were recorded");
    found
}

/// Every byte of the headers and of the digests around them, and some of the data. Of ICResp the bytes that say
/// something.
fn places(stream: &[u8]) -> Vec<usize> {
    let places = pdus(stream).into_iter().flat_map(|Place { at, hlen, plen }| {
        let said = if stream[at] == PduType::IC_RESP.0 { 17 } else { (hlen + 4).min(plen) };
        let data = (at + hlen + 4..at + plen).step_by(DATA_STEP);
        (at..at + said).chain(data).chain((at + plen).saturating_sub(4)..at + plen)
    });
    places.collect()
}

/// Plays the streams that `change` makes of a recorded one. What was read is right if somebody vouches for it.
#[expect(clippy::print_stderr, reason = "what was tried is part of the result")]
fn replay(
    digests: (bool, bool),
    which: usize,
    vouched: bool,
    change: impl FnOnce(&[u8]) -> Vec<(String, Vec<u8>)>,
) {
    let recordings = recorded(digests);
    let (before, begun) = (threads(), Instant::now());
    let streams = change(&stream_of(&recordings[which], From::Target));
    let mut whole = 0;
    for (what, stream) in &streams {
        let (read, all) = play_session(&recordings, which, stream, what, |address| session(address, digests));
        assert!(!vouched || read.is_none_or(|bytes| bytes == pattern()), "{what}: other data");
        whole += usize::from(all);
    }
    let (count, took) = (streams.len(), begun.elapsed());
    eprintln!("{digests:?}: {count} sessions on connection {which}, {whole} of them whole, in {took:?}");
    await_threads(before);
    assert_eq!(session(target().address(), digests), (Some(pattern()), true), "a healthy session works");
}

fn cuts(stream: &[u8]) -> Vec<(String, Vec<u8>)> {
    places(stream).into_iter().map(|at| (format!("cut at {at}"), stream[..at].to_vec())).collect()
}

fn flips(masks: &[u8]) -> impl Fn(&[u8]) -> Vec<(String, Vec<u8>)> {
    |stream| {
        let changed = |at| {
            masks.iter().map(move |mask| (format!("byte {at} by {mask:#x}"), flipped(stream, at, *mask)))
        };
        places(stream).into_iter().flat_map(changed).collect()
    }
}

/// Headers that a careless target could have signed itself.
fn signed_flips(stream: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    for Place { at, hlen, .. } in pdus(stream).into_iter().filter(|pdu| stream[pdu.at] != PduType::IC_RESP.0)
    {
        for byte in at..at + hlen {
            let mut changed = flipped(stream, byte, 0x01);
            let digest = crc::of(&changed[at..at + hlen]);
            changed[at + hlen..at + hlen + 4].copy_from_slice(&digest);
            all.push((format!("byte {byte}, signed"), changed));
        }
    }
    all
}

#[test]
fn a_session_may_be_cut_anywhere() {
    let _alone = alone();
    for which in [0, 1] {
        replay((true, true), which, true, cuts);
        replay((false, false), which, true, cuts);
    }
}

#[test]
fn with_both_digests_a_session_that_is_damaged_anywhere_never_brings_other_data() {
    let _alone = alone();
    for which in [0, 1] {
        replay((true, true), which, true, flips(&[0x01]));
    }
}

#[test]
fn without_digests_a_session_may_be_damaged_anywhere() {
    let _alone = alone();
    for which in [0, 1] {
        replay((false, false), which, false, flips(&[0x01, 0xff]));
    }
}

#[test]
fn headers_that_are_wrong_and_signed_end_a_session_in_order() {
    let _alone = alone();
    for which in [0, 1] {
        replay((true, true), which, false, signed_flips);
    }
}
