//! Namespaces that only some hosts of their subsystem see, as the queues of two hosts meet them.

use std::net::SocketAddr;

use ringfab_fabric::rdma::QueuePairId;
use ringfab_initiator::blocking::{Controller, EngineOptions};
use ringfab_initiator::{ConnectOptions, HostIdentity, Url};
use ringfab_spec::sqe::CopyRange;
use ringfab_spec::{IntoBytes, SglDescriptor, Status, SubmissionEntry};
use ringfab_target::Config;
use ringfab_target::config::Access;
use ringfab_tests::devices::socket::SocketServer;
use ringfab_tests::raw_host::{Association, RawHost};
use ringfab_tests::{TestTarget, wait_until};

const FRIEND: &str = "nqn.2026-11.org.ringfab:friend";
const STRANGER: &str = "nqn.2026-11.org.ringfab:stranger";
const NQN: &str = ringfab_tests::NQN;

/// Everybody sees namespace 1. Only [`FRIEND`] sees namespace 2.
const NAMESPACES: &str = "[[subsystem.namespace]]\nmemory = \"1MiB\"\n\
    [[subsystem.namespace]]\nmemory = \"1MiB\"\nhosts = [\"nqn.2026-11.org.ringfab:friend\"]\n";

const BLOCK: usize = 512;

/// A host with one I/O queue.
struct Guest {
    host: RawHost,
    association: Association,
    io: QueuePairId,
}

impl Guest {
    fn new(target: &TestTarget, name: &str) -> Self {
        Self::at(target.address(), name)
    }

    fn at(address: SocketAddr, name: &str) -> Self {
        let mut host = RawHost::new(address);
        let association = host.attach_as(name);
        let io = host.attach_io_as(association, name, 1, 32);
        Self { host, association, io }
    }

    /// The statuses of every kind of I/O command for namespace 2, and of a fused pair.
    fn statuses(&mut self) -> Vec<(&'static str, Status)> {
        let mut all = Vec::new();
        let mut cid = || self.host.next_cid();
        let (read, write, compare) = (
            SubmissionEntry::read(cid(), 2, 0, 1),
            SubmissionEntry::write(cid(), 2, 0, 1, false),
            SubmissionEntry::compare(cid(), 2, 0, 1),
        );
        let (flush, zeroes, verify) = (
            SubmissionEntry::flush(cid(), 2),
            SubmissionEntry::write_zeroes(cid(), 2, 0, 1, true, false),
            SubmissionEntry::verify(cid(), 2, 0, 1),
        );
        let (deallocate, copy) =
            (SubmissionEntry::deallocate(cid(), 2, 1), SubmissionEntry::copy(cid(), 2, 8, 1));
        let zero = [0; BLOCK];
        all.push(("Read", self.host.fetch(self.io, &read, BLOCK).0.status()));
        all.push(("Write", self.host.command_with(self.io, &write, &zero).status()));
        all.push(("Compare", self.host.command_with(self.io, &compare, &zero).status()));
        for (name, entry) in [("Flush", flush), ("Write Zeroes", zeroes), ("Verify", verify)] {
            all.push((name, self.host.command(self.io, &entry).status()));
        }
        // One range of one block, of both kinds.
        let mut range = [0; 16];
        range[4] = 1;
        all.push(("Dataset Management", self.host.command_with(self.io, &deallocate, &range).status()));
        let mut source = CopyRange::zeroed();
        source.slba.set(0);
        all.push(("Copy", self.host.command_with(self.io, &copy, source.as_bytes()).status()));
        for (name, entry) in [
            ("first of a pair", compare.with_fuse(SubmissionEntry::FUSE_FIRST)),
            ("second of a pair", write.with_fuse(SubmissionEntry::FUSE_SECOND)),
        ] {
            let entry = entry.with_sgl(SglDescriptor::in_capsule(0, BLOCK as u32));
            self.host.send(self.io, entry.as_bytes(), Some(&zero));
            all.push((name, Status::SUCCESS));
        }
        let pair = all.len() - 2;
        for (_, status) in &mut all[pair..] {
            *status = self.host.completion(self.io).status();
        }
        all
    }

    fn flush_all(&mut self) -> Status {
        let entry = SubmissionEntry::flush(self.host.next_cid(), u32::MAX);
        self.host.command(self.io, &entry).status()
    }

    fn read(&mut self, nsid: u32) -> Status {
        let entry = SubmissionEntry::read(self.host.next_cid(), nsid, 0, 1);
        self.host.fetch(self.io, &entry, BLOCK).0.status()
    }

    fn active(&mut self) -> Vec<u32> {
        let entry = SubmissionEntry::identify(self.host.next_cid(), 2, 0, 0, 0);
        let (completion, page) = self.host.fetch(self.association.admin, &entry, 4096);
        assert_eq!(completion.status(), Status::SUCCESS);
        let nsids = page.chunks_exact(4).map(|nsid| u32::from_le_bytes(nsid.try_into().expect("four")));
        nsids.take_while(|nsid| *nsid != 0).collect()
    }
}

/// Attaches the initiator under a name.
fn attach(target: &TestTarget, name: &str) -> Controller {
    let url: Url = format!("nvme+tcp://{}/{NQN}", target.address()).parse().expect("a URL");
    let host = HostIdentity { nqn: name.to_owned(), ..HostIdentity::for_url(&url).expect("an identity") };
    Controller::connect(ConnectOptions::new(url, host), EngineOptions::default()).expect("attached")
}

#[test]
fn every_command_for_a_hidden_namespace_ends_as_for_one_that_is_not_there() {
    let target = TestTarget::start(NAMESPACES);
    let (mut friend, mut stranger) = (Guest::new(&target, FRIEND), Guest::new(&target, STRANGER));
    assert_eq!((friend.active(), stranger.active()), (vec![1, 2], vec![1]));
    for (name, status) in friend.statuses() {
        assert_eq!(status, Status::SUCCESS, "{name}");
    }
    for (name, status) in stranger.statuses() {
        assert_eq!(status, Status::INVALID_NAMESPACE.with_dnr(), "{name}");
    }
    assert_eq!((friend.read(1), stranger.read(1)), (Status::SUCCESS, Status::SUCCESS));
}

#[test]
fn a_flush_of_all_namespaces_is_of_those_that_the_host_sees() {
    let disk = SocketServer::start(1 << 20).expect("a disk behind a socket");
    let target = TestTarget::with_device(disk.driver(1 << 20));
    let mut manager = target.manager();
    manager.set_hosts(None, 1, Access::Hosts([FRIEND.to_owned()].into())).expect("shown");
    let text = "[[listener]]\naddress = \"127.0.0.1\"\nport = 0\n[[subsystem]]\n\
                nqn = \"nqn.2026-11.org.ringfab:none\"\nallow_any_host = true\nnamespace = []\n";
    let listener = Config::parse(text, "rdma").expect("valid").listeners.remove(0);
    let (_, address) = manager.add_listener(listener).expect("bound");
    let (mut friend, mut stranger) = (Guest::at(address, FRIEND), Guest::at(address, STRANGER));
    assert_eq!((friend.flush_all(), stranger.flush_all()), (Status::SUCCESS, Status::SUCCESS));
    disk.cut();
    assert_eq!((friend.flush_all(), stranger.flush_all()), (Status::WRITE_FAULT.with_dnr(), Status::SUCCESS));
    target.end().expect_err("what was written may be lost");
}

#[test]
fn hosts_that_see_a_namespace_before_and_after_are_not_disturbed_when_others_do() {
    let target = TestTarget::with_target("cores = 2\nspin_us = 20", NAMESPACES);
    let mut manager = target.manager();
    let (mut friend, mut stranger) = (Guest::new(&target, FRIEND), Guest::new(&target, STRANGER));
    let mut show = |nsid: u32, hosts: Access| {
        manager.set_hosts(None, nsid, hosts).expect("it is shown");
    };
    let hosts = |names: &[&str]| Access::Hosts(names.iter().map(|&name| name.to_owned()).collect());
    let hidden = Status::INVALID_NAMESPACE.with_dnr();
    assert_eq!((friend.read(2), stranger.read(2)), (Status::SUCCESS, hidden));
    show(2, hosts(&[FRIEND, STRANGER]));
    assert_eq!((friend.read(2), stranger.read(2)), (Status::SUCCESS, Status::SUCCESS));
    assert_eq!((friend.active(), stranger.active()), (vec![1, 2], vec![1, 2]));
    show(2, hosts(&[STRANGER]));
    assert_eq!((friend.read(2), stranger.read(2)), (hidden, Status::SUCCESS));
    show(2, Access::AnyHost);
    assert_eq!((friend.read(2), stranger.read(2)), (Status::SUCCESS, Status::SUCCESS));
    show(1, hosts(&[FRIEND]));
    assert_eq!((friend.read(1), stranger.read(1)), (Status::SUCCESS, hidden));
    assert_eq!((friend.active(), stranger.active()), (vec![1, 2], vec![2]));
    // A queue that comes later sees the same.
    let (mut friend, mut stranger) = (Guest::new(&target, FRIEND), Guest::new(&target, STRANGER));
    assert_eq!((friend.read(1), stranger.read(1)), (Status::SUCCESS, hidden));
    assert_eq!((friend.read(2), stranger.read(2)), (Status::SUCCESS, Status::SUCCESS));
}

#[test]
fn the_users_of_a_namespace_are_the_controllers_whose_hosts_see_it() {
    let target = TestTarget::start(NAMESPACES);
    let manager = target.manager();
    let users = || {
        let status = manager.status().expect("a status");
        status.namespaces.iter().map(|one| one.controllers).collect::<Vec<_>>()
    };
    assert_eq!(users(), [0, 0]);
    let _friend = Guest::new(&target, FRIEND);
    let mut stranger = Guest::new(&target, STRANGER);
    assert_eq!(users(), [2, 1]);
    // Its last error has a time.
    assert_ne!(stranger.read(2), Status::SUCCESS);
    let controllers = manager.status().expect("a status").controllers;
    let errors = controllers.iter().filter_map(|one| Some((one.host.as_str(), one.last_error.as_ref()?)));
    let errors: Vec<_> = errors.map(|(host, error)| (host, error.nsid, error.seconds_ago < 30)).collect();
    assert_eq!(errors, [(STRANGER, 2, true)]);
}

/// What the initiator makes of it: the notice has it look.
#[test]
fn a_namespace_comes_and_goes_for_a_host_to_which_it_is_shown() {
    let target = TestTarget::with_listener("transport = \"tcp\"", NAMESPACES);
    let mut manager = target.manager();
    let (friend, stranger) = (attach(&target, FRIEND), attach(&target, STRANGER));
    let count = |host: &Controller| host.namespaces().len();
    assert_eq!((count(&friend), count(&stranger)), (2, 1));
    manager.set_hosts(None, 2, Access::AnyHost).expect("shown");
    wait_until("it comes", || count(&stranger) == 2);
    stranger.write_at(2, 0, &[9; BLOCK], true).expect("a write");
    manager.set_hosts(None, 2, Access::Hosts([FRIEND.to_owned()].into())).expect("hidden");
    wait_until("it goes", || count(&stranger) == 1);
    let mut read = [0; BLOCK];
    friend.read_at(2, 0, &mut read).expect("a read");
    assert_eq!((read, count(&friend)), ([9; BLOCK], 2));
}
