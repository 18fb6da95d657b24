//! What a host sent, played to a target.

use std::net::TcpStream;
use std::time::Instant;

use ringfab_fabric::rdma::Access;
use ringfab_spec::sqe::DsmRange;
use ringfab_spec::{IntoBytes, Status, SubmissionEntry};
use ringfab_tests::busy::Busy;
use ringfab_tests::player::{play, stream_of, with_stream};
use ringfab_tests::raw_host::{Association, RawHost};
use ringfab_tests::recording::{From, Recorder, Recording};
use ringfab_tests::{TestTarget, wait_until};

use crate::damage::damaged;

/// What a host says on an admin queue, from its first byte to its last.
fn admin_session(target: &TestTarget) -> Recording {
    let recorder = Recorder::start(target.address(), 1);
    let mut host = RawHost::new(recorder.address);
    let association = host.associate(0);
    host.enable(association);
    let admin = association.admin;
    for entry in [
        SubmissionEntry::identify(100, 1, 0, 0, 0),
        SubmissionEntry::identify(101, 0, 1, 0, 0),
        SubmissionEntry::get_log_page(102, 2, u32::MAX, 0, 512, false),
    ] {
        let length = if entry.cid.get() == 102 { 512 } else { 4096 };
        assert_eq!(host.fetch(admin, &entry, length).0.status(), Status::SUCCESS);
    }
    host.send(admin, SubmissionEntry::async_event_request(103).as_bytes(), None);
    host.command(admin, &SubmissionEntry::set_features(104, 7, false, 0x0001_0001));
    host.command(admin, &SubmissionEntry::keep_alive(105));
    host.command(admin, &SubmissionEntry::abort(106, 1, 7));
    host.close(admin);
    recorder.finish().remove(0)
}

/// What it says on an I/O queue of a controller that stays.
fn io_session(target: &TestTarget, association: Association) -> Recording {
    let recorder = Recorder::start(target.address(), 1);
    let mut host = RawHost::new(recorder.address);
    let io = host.attach_io(association, 1, 8);
    let written = vec![0x31; 4096];
    let short = SubmissionEntry::write(1, 1, 100, 1, true);
    assert_eq!(host.command_with(io, &short, &written[..512]).status(), Status::SUCCESS);
    let memory = host.expose(&written, Access::RemoteRead);
    let long = SubmissionEntry::write(2, 1, 200, 8, false).with_sgl(memory.sgl());
    assert_eq!(host.command(io, &long).status(), Status::SUCCESS);
    let same = SubmissionEntry::compare(3, 1, 200, 1);
    assert_eq!(host.command_with(io, &same, &written[..512]).status(), Status::SUCCESS);
    assert_eq!(host.fetch(io, &SubmissionEntry::read(4, 1, 200, 8), 4096).1, written);
    host.command(io, &SubmissionEntry::flush(5, 1));
    host.command(io, &SubmissionEntry::write_zeroes(6, 1, 100, 200, true, false));
    let range = DsmRange::new(300, 4);
    host.command_with(io, &SubmissionEntry::deallocate(7, 1, 1), range.as_bytes());
    host.close(io);
    recorder.finish().remove(0)
}

/// Plays a recording with one of `streams` instead of what the host said.
fn play_one(busy: &Busy, recording: &Recording, played: &(String, Vec<u8>)) {
    let (what, stream) = played;
    let changed = with_stream(recording, From::Host, stream);
    let socket = TcpStream::connect(busy.target.address()).expect("the target still listens");
    play(socket, &changed, From::Host, what);
}

/// Says what was tried since then.
#[expect(clippy::print_stderr, reason = "what was tried is part of the result")]
fn report(streams: &[(String, Vec<u8>)], begun: Instant) {
    let (first, last) = (&streams[0].0, &streams[streams.len() - 1].0);
    eprintln!("{} sessions, from {first} to {last}, in {:?}", streams.len(), begun.elapsed());
}

fn cuts(stream: &[u8]) -> Vec<(String, Vec<u8>)> {
    (0..=stream.len()).map(|at| (format!("cut at {at}"), stream[..at].to_vec())).collect()
}

fn admin_replay(streams: impl FnOnce(&[u8]) -> Vec<(String, Vec<u8>)>) {
    let busy = Busy::start();
    let recording = admin_session(&busy.target);
    let (begun, all) = (Instant::now(), streams(&stream_of(&recording, From::Host)));
    all.iter().for_each(|stream| play_one(&busy, &recording, stream));
    report(&all, begun);
    busy.finish();
}

/// An admin queue whose controller the I/O queues of a recording belong to.
struct Keeper {
    host: RawHost,
    association: Association,
    recording: Recording,
}

impl Keeper {
    fn new(target: &TestTarget) -> Self {
        let mut host = RawHost::new(target.address());
        let association = host.attach();
        let recording = io_session(target, association);
        Self { host, association, recording }
    }

    /// Waits until the queue's identifier is free. Returns whether the controller is there still: a session that was
    /// cut off with commands outstanding takes it along.
    fn is_free(&self, target: &TestTarget) -> bool {
        let mut is_there = true;
        wait_until("the queue's identifier is free", || {
            let controllers = target.target.controllers();
            let mine = controllers.iter().find(|one| one.id() == self.association.controller_id);
            is_there = mine.is_some();
            mine.is_none_or(|one| one.io_queues() == 0)
        });
        is_there
    }
}

fn io_replay(streams: impl Fn(&[u8]) -> Vec<(String, Vec<u8>)>) {
    let busy = Busy::start();
    let mut keeper = Keeper::new(&busy.target);
    let begun = Instant::now();
    let mut all = streams(&stream_of(&keeper.recording, From::Host));
    for index in 0..all.len() {
        if !keeper.is_free(&busy.target) {
            keeper = Keeper::new(&busy.target);
            all = streams(&stream_of(&keeper.recording, From::Host));
        }
        let Some(stream) = all.get(index) else { break };
        play_one(&busy, &keeper.recording, stream);
    }
    report(&all, begun);
    if keeper.is_free(&busy.target) {
        keeper.host.controller_status(keeper.association);
        keeper.host.close(keeper.association.admin);
    }
    drop(keeper);
    busy.finish();
}

#[test]
fn an_admin_session_may_be_cut_anywhere() {
    admin_replay(cuts);
}

#[test]
fn an_admin_session_may_be_damaged_anywhere() {
    admin_replay(damaged);
}

#[test]
fn an_io_session_may_be_cut_anywhere() {
    io_replay(cuts);
}

#[test]
fn an_io_session_may_be_damaged_anywhere() {
    io_replay(damaged);
}
