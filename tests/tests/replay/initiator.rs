//! What a target sent, played to an initiator.

use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use ringfab_initiator::blocking::{Controller, EngineOptions};
use ringfab_initiator::{ConnectOptions, HostIdentity, ReconnectPolicy, Timeouts, Url};
use ringfab_tests::recording::{From, Recorder, Recording, fpdus, mpa_bytes};
use ringfab_tests::{NQN, TestTarget};

use crate::player::{damaged, play, stream_of, with_stream};

const NULL: &str = "[[subsystem.namespace]]\nnull = \"64MiB\"\nblock_bytes = 512\n";

/// The longest that an attach and a detach may take, whatever is wrong.
const BOUND: Duration = Duration::from_secs(8);

/// An attach, a read and a detach: whether all of it worked.
fn session(address: SocketAddr) -> bool {
    let url: Url = format!("nvme+rdma://{address}/{NQN}?provider=iwarp").parse().expect("a URL");
    let host = HostIdentity::for_url(&url).expect("an identity");
    let second = Duration::from_secs(1);
    let timeouts = Timeouts { resolve: second, connect: second, admin: second, io: second, shutdown: second };
    let reconnect = ReconnectPolicy {
        controller_loss_timeout: Some(Duration::ZERO),
        fast_io_fail_timeout: Some(Duration::ZERO),
        ..ReconnectPolicy::default()
    };
    let options = ConnectOptions { timeouts, reconnect, ..ConnectOptions::new(url, host) };
    let Ok(controller) = Controller::connect(options, EngineOptions::default()) else { return false };
    let read = controller.read_at(1, 0, &mut vec![0; 16_384]).is_ok();
    controller.detach().is_ok() && read
}

/// The two connections of a session: admin queue and I/O queue.
fn recorded() -> Vec<Recording> {
    let target = TestTarget::start(NULL);
    let recorder = Recorder::start(target.address(), 2);
    assert!(session(recorder.address));
    recorder.finish()
}

/// A session with a target that says what was recorded, with `stream` on one of its two connections.
fn play_session(recordings: &[Recording], which: usize, stream: &[u8], what: &str) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let mut parts = recordings.to_vec();
    parts[which] = with_stream(&parts[which], From::Target, stream);
    let named = what.to_owned();
    let target = std::thread::spawn(move || {
        let mut players = Vec::new();
        for part in parts {
            let Ok((socket, _)) = listener.accept() else { break };
            let what = named.clone();
            players.push(std::thread::spawn(move || play(socket, &part, From::Target, &what)));
        }
        for player in players {
            player.join().expect("the initiator ends its connections");
        }
    });
    let begun = Instant::now();
    session(address);
    let took = begun.elapsed();
    assert!(took < BOUND, "{what}: {took:?}");
    // The player may still wait for connections that the initiator has no reason to make.
    while !target.is_finished() {
        drop(std::net::TcpStream::connect(address));
        std::thread::sleep(Duration::from_millis(1));
    }
    target.join().expect("the target played its part");
}

#[expect(clippy::print_stderr, reason = "what was tried is part of the result")]
fn replay(which: usize, streams: impl FnOnce(&[u8]) -> Vec<(String, Vec<u8>)>) {
    let _alone = crate::alone();
    let recordings = recorded();
    let before = threads();
    let begun = Instant::now();
    let streams = streams(&stream_of(&recordings[which], From::Target));
    for (what, stream) in &streams {
        play_session(&recordings, which, stream, what);
    }
    eprintln!("{} sessions on connection {which} in {:?}", streams.len(), begun.elapsed());
    assert_eq!(threads(), before, "threads were left behind");
    let target = TestTarget::start(NULL);
    assert!(session(target.address()), "a healthy session works");
}

/// Threads of this process that are an initiator's.
fn threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("proc").flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.trim() == "ringfab").count()
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
