//! What a target sent, played to an initiator.

use std::net::SocketAddr;
use std::time::Instant;

use ringfab_tests::busy::alone;
use ringfab_tests::player::{self, await_threads, play_session, stream_of, threads};
use ringfab_tests::recording::{From, Recorder, Recording, fpdus, mpa_bytes};
use ringfab_tests::{NQN, TestTarget};

use crate::damage::damaged;

const NULL: &str = "[[subsystem.namespace]]\nnull = \"64MiB\"\nblock_bytes = 512\n";

/// An attach, a read and a detach: whether all of it worked.
fn session(address: SocketAddr) -> bool {
    player::session(&format!("nvme+rdma://{address}/{NQN}?provider=iwarp"), 16_384).1
}

/// The two connections of a session: admin queue and I/O queue.
fn recorded() -> Vec<Recording> {
    let target = TestTarget::start(NULL);
    let recorder = Recorder::start(target.address(), 2);
    assert!(session(recorder.address));
    recorder.finish()
}

#[expect(clippy::print_stderr, reason = "what was tried is part of the result")]
fn replay(which: usize, streams: impl FnOnce(&[u8]) -> Vec<(String, Vec<u8>)>) {
    let _alone = alone();
    let recordings = recorded();
    let before = threads();
    let begun = Instant::now();
    let streams = streams(&stream_of(&recordings[which], From::Target));
    for (what, stream) in &streams {
        play_session(&recordings, which, stream, what, session);
    }
    eprintln!("{} sessions on connection {which} in {:?}", streams.len(), begun.elapsed());
    await_threads(before);
    let target = TestTarget::start(NULL);
    assert!(session(target.address()), "a healthy session works");
}

/// An attach takes some milliseconds: every byte of the MPA frame, of each FPDU's headers and of the response behind
/// them is a place to cut at, and of longer payloads one in so many.
fn cuts(stream: &[u8]) -> Vec<(String, Vec<u8>)> {
    const HEADER_BYTES: usize = 24;
    const PAYLOAD_STEP: usize = 1021;
    let mut places: Vec<usize> = (0..mpa_bytes(stream)).collect();
    for (at, length) in fpdus(stream) {
        let end = (at + length).min(stream.len());
        places.extend((at..end.min(at + HEADER_BYTES)).chain((at + HEADER_BYTES..end).step_by(PAYLOAD_STEP)));
    }
    places.into_iter().map(|at| (format!("cut at {at}"), stream[..at].to_vec())).collect()
}

fn some_damage(stream: &[u8]) -> Vec<(String, Vec<u8>)> {
    damaged(stream).into_iter().step_by(5).collect()
}

#[test]
fn an_admin_session_may_be_cut_anywhere() {
    replay(0, cuts);
}

#[test]
fn an_admin_session_may_be_damaged_anywhere() {
    replay(0, some_damage);
}

#[test]
fn an_io_session_may_be_cut_anywhere() {
    replay(1, cuts);
}

#[test]
fn an_io_session_may_be_damaged_anywhere() {
    replay(1, some_damage);
}
