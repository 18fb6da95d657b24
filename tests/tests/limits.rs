//! Limits of namespaces and hosts, as the queues of hosts meet them.

use std::time::{Duration, Instant};

use ringfab_fabric::rdma::QueuePairId;
use ringfab_spec::sqe::CopyRange;
use ringfab_spec::{CompletionEntry, IntoBytes, SglDescriptor, Status, SubmissionEntry};
use ringfab_target::config::{Access, HostConfig, RateLimits};
use ringfab_target::core::State;
use ringfab_tests::raw_host::{Association, Exposed, RawHost};
use ringfab_tests::{NQN, TestTarget, wait_until};

const HOST: &str = "nqn.2026-11.org.ringfab:host";
const OTHER: &str = "nqn.2026-11.org.ringfab:other";

/// Two namespaces. Of the first one, a block can be read in half a minute.
const NAMESPACES: &str = "[[subsystem.namespace]]\nmemory = \"1MiB\"\n\
    limits = { read_bytes_per_s = 17, write_bytes_per_s = 17, burst_ms = 1 }\n\
    [[subsystem.namespace]]\nmemory = \"1MiB\"\n";

const BLOCK: usize = 512;

/// What is as good as no limit, and is one.
const MUCH: RateLimits = RateLimits {
    read_iops: Some(1_000_000_000),
    write_iops: Some(1_000_000_000),
    read_bytes_per_s: None,
    write_bytes_per_s: None,
    burst: Duration::from_millis(50),
};

/// A host with one I/O queue.
struct Guest {
    host: RawHost,
    association: Association,
    io: QueuePairId,
}

impl Guest {
    fn new(target: &TestTarget, name: &str) -> Self {
        let mut host = RawHost::new(target.address());
        let association = host.attach_as(name);
        let io = host.attach_io_as(association, name, 1, 32);
        Self { host, association, io }
    }

    /// Sends a Read of a block, with the memory that it goes to.
    fn send_read(&mut self, nsid: u32) -> (u16, Exposed) {
        let memory = self.host.expose(&[0xee; BLOCK], ringfab_fabric::rdma::Access::RemoteWrite);
        let cid = self.host.next_cid();
        let entry = SubmissionEntry::read(cid, nsid, 0, 1).with_sgl(memory.sgl());
        self.host.send(self.io, entry.as_bytes(), None);
        (cid, memory)
    }

    fn read(&mut self, nsid: u32) -> Status {
        let entry = SubmissionEntry::read(self.host.next_cid(), nsid, 0, 1);
        self.host.fetch(self.io, &entry, BLOCK).0.status()
    }

    fn identify(&mut self) -> Status {
        let entry = SubmissionEntry::identify(self.host.next_cid(), 2, 0, 0, 0);
        self.host.fetch(self.association.admin, &entry, 4096).0.status()
    }

    fn completions(&mut self, count: usize) -> Vec<CompletionEntry> {
        (0..count).map(|_| self.host.completion(self.io)).collect()
    }
}

/// How many commands wait for a limit, and how many buffers for I/O are taken.
fn waiting(target: &TestTarget) -> (u64, usize) {
    let usage = target.usage();
    let limited = usage.iter().map(|core| core.commands_in(State::AwaitLimit)).sum();
    (limited, usage.iter().map(|core| core.io_buffers.taken).sum())
}

/// Waits until so many do. The host, which has sent them, hears nothing meanwhile.
fn expect_waiting(target: &TestTarget, guest: &mut Guest, commands: u64) {
    let turn = Duration::from_millis(5);
    wait_until("commands wait for the limit", || {
        assert!(guest.host.is_silent(guest.io, turn), "an answer");
        waiting(target).0 == commands
    });
}

#[test]
fn what_waits_for_a_limit_holds_no_buffer_and_nothing_else_waits() {
    let target = TestTarget::start(NAMESPACES);
    let (mut guest, mut other) = (Guest::new(&target, HOST), Guest::new(&target, OTHER));
    let (_, before) = waiting(&target);
    let sent: Vec<_> = (0..8).map(|_| guest.send_read(1)).collect();
    expect_waiting(&target, &mut guest, 8);
    assert_eq!(waiting(&target), (8, before));
    // Other namespaces, other commands and other hosts are not limited.
    assert_eq!(
        (guest.read(2), other.read(2), guest.identify()),
        (Status::SUCCESS, Status::SUCCESS, Status::SUCCESS)
    );
    let flush = SubmissionEntry::flush(guest.host.next_cid(), 1);
    assert_eq!(guest.host.command(guest.io, &flush).status(), Status::SUCCESS);
    // What waits can be aborted.
    let abort = SubmissionEntry::abort(guest.host.next_cid(), 1, sent[3].0);
    let answer = guest.host.command(guest.association.admin, &abort);
    assert_eq!((answer.status(), answer.dw0.get()), (Status::SUCCESS, 0));
    let aborted = guest.host.completion(guest.io);
    assert_eq!((aborted.cid.get(), aborted.status()), (sent[3].0, Status::ABORT_REQUESTED));
    expect_waiting(&target, &mut guest, 7);
    // Without the limit, all others are done.
    let changes = target.manager().limit_namespace(None, 1, None, RateLimits::default()).expect("no limit");
    assert_eq!(changes.len(), 1);
    let done = guest.completions(7);
    assert!(done.iter().all(|one| one.status() == Status::SUCCESS && one.cid.get() != sent[3].0), "{done:?}");
    assert!(sent.iter().filter(|(cid, _)| *cid != sent[3].0).all(|(_, memory)| memory.bytes() == [0; BLOCK]));
    assert_eq!(waiting(&target), (0, before));
}

#[test]
fn a_host_that_leaves_while_its_commands_wait_leaves_nothing_behind() {
    let target = TestTarget::start(NAMESPACES);
    let mut guest = Guest::new(&target, HOST);
    let (_, before) = waiting(&target);
    (0..8).for_each(|_| drop(guest.send_read(1)));
    expect_waiting(&target, &mut guest, 8);
    guest.host.close(guest.io);
    wait_until("nothing waits", || waiting(&target).0 == 0);
    assert_eq!(waiting(&target), (0, before));
    let mut again = Guest::new(&target, HOST);
    assert_eq!(again.read(2), Status::SUCCESS);
}

#[test]
fn every_command_that_reads_or_changes_blocks_is_limited() {
    let target = TestTarget::start(NAMESPACES);
    let slow =
        RateLimits { read_iops: Some(4), write_iops: Some(4), burst: Duration::from_millis(1), ..MUCH };
    target.manager().limit_namespace(None, 2, None, slow).expect("limited");
    let mut guest = Guest::new(&target, HOST);
    let zero = [0; BLOCK];
    let in_capsule =
        |entry: SubmissionEntry, bytes: usize| entry.with_sgl(SglDescriptor::in_capsule(0, bytes as u32));
    // The first one of each direction begins at once, and the others a quarter of a second after the one before.
    let begun = Instant::now();
    let write = SubmissionEntry::write(1, 2, 0, 1, false);
    assert_eq!(guest.host.command_with(guest.io, &write, &zero).status(), Status::SUCCESS);
    let mut range = [0; 16];
    range[4] = 1;
    let source = CopyRange::new(0, 1);
    for (entry, data) in [
        (in_capsule(SubmissionEntry::write(10, 2, 0, 1, false), BLOCK), Some(&zero[..])),
        (SubmissionEntry::write_zeroes(11, 2, 0, 1, true, false), None),
        (in_capsule(SubmissionEntry::deallocate(12, 2, 1), 16), Some(&range[..])),
        (in_capsule(SubmissionEntry::copy(13, 2, 8, 1), 32), Some(source.as_bytes())),
    ] {
        guest.host.send(guest.io, entry.as_bytes(), data);
    }
    for (entry, fuse) in [
        (SubmissionEntry::compare(14, 2, 0, 1), SubmissionEntry::FUSE_FIRST),
        (SubmissionEntry::write(15, 2, 0, 1, false), SubmissionEntry::FUSE_SECOND),
    ] {
        let entry = in_capsule(entry, BLOCK).with_fuse(fuse);
        guest.host.send(guest.io, entry.as_bytes(), Some(&zero));
    }
    let done = guest.completions(6);
    assert!(done.iter().all(|one| one.status() == Status::SUCCESS), "{done:?}");
    assert!(begun.elapsed() >= Duration::from_millis(1240), "five, of which the pair is one");
    let begun = Instant::now();
    let compare = SubmissionEntry::compare(20, 2, 0, 1);
    assert_eq!(guest.host.command_with(guest.io, &compare, &zero).status(), Status::SUCCESS);
    let verify = SubmissionEntry::verify(21, 2, 0, 1);
    guest.host.send(guest.io, verify.as_bytes(), None);
    let _memory = guest.send_read(2);
    guest.completions(2);
    assert!(begun.elapsed() >= Duration::from_millis(490));
}

#[test]
fn zeroes_cost_as_many_bytes_as_what_they_are_written_to() {
    let target = TestTarget::start(&NAMESPACES.replace("17", "17000000"));
    let mut guest = Guest::new(&target, HOST);
    let slow = RateLimits {
        write_bytes_per_s: Some(8 * BLOCK as u64),
        burst: Duration::from_millis(1),
        ..RateLimits::default()
    };
    target.manager().limit_namespace(None, 2, None, slow).expect("limited");
    // 32 KiB at 4 KiB in a second: eight seconds. What frees blocks has no bytes.
    let mut range = [0; 16];
    range[4] = 1;
    let deallocate = SubmissionEntry::deallocate(guest.host.next_cid(), 2, 1);
    assert_eq!(guest.host.command_with(guest.io, &deallocate, &range).status(), Status::SUCCESS);
    let zeroes = SubmissionEntry::write_zeroes(guest.host.next_cid(), 2, 0, 64, false, false);
    guest.host.send(guest.io, zeroes.as_bytes(), None);
    expect_waiting(&target, &mut guest, 1);
    assert!(guest.host.is_silent(guest.io, Duration::from_millis(500)), "not before what they cost is there");
    target.manager().limit_namespace(None, 2, None, MUCH).expect("limited less");
    assert_eq!(guest.completions(1)[0].status(), Status::SUCCESS);
}

/// A byte in a second for whoever writes to the first namespace, so that what is written waits for ever.
fn hide_while_it_waits(hide: impl FnOnce(&TestTarget)) {
    let namespaces = "[[subsystem.namespace]]\nmemory = \"1MiB\"\n\
        limits = { write_bytes_per_s = 1, read_bytes_per_s = 1, burst_ms = 1 }\n\
        [[subsystem.namespace]]\nmemory = \"1MiB\"\n";
    let target = TestTarget::with_target("cores = 2\nspin_us = 20", namespaces);
    let mut guest = Guest::new(&target, HOST);
    let (_, before) = waiting(&target);
    let nine = [9; BLOCK];
    let in_capsule = |entry: SubmissionEntry| entry.with_sgl(SglDescriptor::in_capsule(0, BLOCK as u32));
    guest.host.send(guest.io, in_capsule(SubmissionEntry::write(50, 1, 0, 1, false)).as_bytes(), Some(&nine));
    guest.host.send(guest.io, SubmissionEntry::write_zeroes(51, 1, 0, 1, true, false).as_bytes(), None);
    let (read, memory) = guest.send_read(1);
    expect_waiting(&target, &mut guest, 3);
    hide(&target);
    // They end at once, as a command that comes now.
    let mut ended: Vec<_> = guest.completions(3).iter().map(|one| (one.cid.get(), one.status())).collect();
    ended.sort_by_key(|(cid, _)| *cid);
    let gone = guest.read(1);
    assert_eq!(gone, Status::INVALID_NAMESPACE.with_dnr());
    let mut expected = vec![(50, gone), (51, gone), (read, gone)];
    expected.sort_by_key(|(cid, _)| *cid);
    assert_eq!(ended, expected);
    assert_eq!((memory.bytes(), guest.read(2)), (vec![0xee; BLOCK], Status::SUCCESS));
    assert_eq!(waiting(&target), (0, before));
}

#[test]
fn what_waits_for_a_limit_does_not_run_once_its_namespace_is_hidden() {
    let hidden = |target: &TestTarget| {
        let others = Access::Hosts([OTHER.to_owned()].into());
        let mut manager = target.manager();
        manager.set_hosts(None, 1, others).expect("hidden");
        // Nobody waits who could run: the limit lets all pass now.
        manager.limit_namespace(None, 1, None, RateLimits::default()).expect("no limit");
    };
    hide_while_it_waits(hidden);
}

#[test]
fn what_waits_for_a_limit_does_not_run_once_its_namespace_is_removed() {
    hide_while_it_waits(|target| {
        target.manager().remove(None, 1).expect("removed");
    });
}

#[test]
fn what_waits_for_a_limit_does_not_run_once_its_namespace_is_not_ready() {
    let target = TestTarget::start(NAMESPACES);
    let mut guest = Guest::new(&target, HOST);
    let write = SubmissionEntry::write(50, 1, 0, 1, false);
    let write = write.with_sgl(SglDescriptor::in_capsule(0, BLOCK as u32));
    guest.host.send(guest.io, write.as_bytes(), Some(&[9; BLOCK]));
    expect_waiting(&target, &mut guest, 1);
    // Its disk can still be written, but hosts would take that for something else.
    let namespace = &target.target.namespaces()[0];
    namespace.set_not_ready("a test");
    target.manager().limit_namespace(None, 1, None, RateLimits::default()).expect("no limit");
    let ended = &guest.completions(1)[0];
    assert_eq!((ended.cid.get(), ended.status()), (50, Status::NAMESPACE_NOT_READY));
    namespace.set_ready(1 << 20, false);
    let (_, memory) = guest.send_read(1);
    assert_eq!(guest.completions(1)[0].status(), Status::SUCCESS);
    assert_eq!(memory.bytes(), [0; BLOCK], "it was not written");
}

#[test]
fn what_waits_for_a_limit_does_not_run_once_its_host_is_revoked() {
    let target = TestTarget::start(NAMESPACES);
    let mut manager = target.manager();
    let mut guest = Guest::new(&target, HOST);
    let nine = [9; BLOCK];
    let write = SubmissionEntry::write(50, 1, 0, 1, false);
    let write = write.with_sgl(SglDescriptor::in_capsule(0, BLOCK as u32));
    guest.host.send(guest.io, write.as_bytes(), Some(&nine));
    expect_waiting(&target, &mut guest, 1);
    manager.set_access(NQN, Access::Hosts([OTHER.to_owned()].into())).expect("revoked");
    wait_until("nothing waits", || waiting(&target).0 == 0);
    manager.limit_namespace(None, 1, None, RateLimits::default()).expect("no limit");
    let mut other = Guest::new(&target, OTHER);
    let (memory, cid) = (other.host.expose(&nine, ringfab_fabric::rdma::Access::RemoteWrite), 7);
    let read = SubmissionEntry::read(cid, 1, 0, 1).with_sgl(memory.sgl());
    other.host.send(other.io, read.as_bytes(), None);
    assert_eq!(other.completions(1)[0].status(), Status::SUCCESS);
    assert_eq!(memory.bytes(), [0; BLOCK], "it was not written");
}

#[test]
fn a_host_may_be_limited_on_all_namespaces_and_on_one() {
    let target = TestTarget::start(&NAMESPACES.replace("17", "17000000"));
    let mut manager = target.manager();
    let (mut guest, mut other) = (Guest::new(&target, HOST), Guest::new(&target, OTHER));
    let slow =
        RateLimits { read_bytes_per_s: Some(17), burst: Duration::from_millis(1), ..RateLimits::default() };
    manager.limit_namespace(None, 2, Some(HOST.to_owned()), slow.clone()).expect("limited");
    guest.send_read(2);
    expect_waiting(&target, &mut guest, 1);
    assert_eq!((guest.read(1), other.read(2)), (Status::SUCCESS, Status::SUCCESS));
    // The other one is limited everywhere, and what waits begins when its limit goes.
    manager.set_host(HostConfig { limits: slow, ..HostConfig::new(OTHER.to_owned()) }).expect("limited");
    other.send_read(1);
    other.send_read(2);
    expect_waiting(&target, &mut other, 3);
    manager.set_host(HostConfig::new(OTHER.to_owned())).expect("not limited");
    assert!(other.completions(2).iter().all(|one| one.status() == Status::SUCCESS));
    manager.limit_namespace(None, 2, Some(HOST.to_owned()), MUCH).expect("limited less");
    assert_eq!(guest.completions(1)[0].status(), Status::SUCCESS);
}

#[test]
fn a_copy_is_paid_for_by_what_comes_after_it() {
    let target = TestTarget::start(&NAMESPACES.replace("17", "17000000"));
    let mut guest = Guest::new(&target, HOST);
    let slow = RateLimits {
        write_bytes_per_s: Some(8 * BLOCK as u64),
        burst: Duration::from_millis(1),
        ..RateLimits::default()
    };
    target.manager().limit_namespace(None, 2, None, slow).expect("limited");
    // 32 KiB at 4 KiB in a second.
    let source = CopyRange::new(0, 64);
    let copy = SubmissionEntry::copy(guest.host.next_cid(), 2, 128, 1);
    assert_eq!(guest.host.command_with(guest.io, &copy, source.as_bytes()).status(), Status::SUCCESS);
    let write = SubmissionEntry::write(guest.host.next_cid(), 2, 0, 1, false);
    let write = write.with_sgl(SglDescriptor::in_capsule(0, BLOCK as u32));
    guest.host.send(guest.io, write.as_bytes(), Some(&[0; BLOCK]));
    expect_waiting(&target, &mut guest, 1);
    assert!(guest.host.is_silent(guest.io, Duration::from_millis(500)), "eight seconds of it are owed");
    target.manager().limit_namespace(None, 2, None, MUCH).expect("limited less");
    assert_eq!(guest.completions(1)[0].status(), Status::SUCCESS);
}
