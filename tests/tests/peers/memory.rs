//! What connections leave behind in memory.

use std::net::Ipv4Addr;

use ringfab_spec::tcp::Digests;
use ringfab_spec::{SubmissionEntry, tcp};
use ringfab_tests::NQN;
use ringfab_tests::raw_host::RawHost;
use ringfab_tests::raw_tcp::{RawTcp, capsule, connect_as, stream_from};

use crate::target::{FRIEND, Over, Process};

/// Commands of 4 KiB that come in one go.
const BURST: u16 = 120;

/// I/O queues of a controller, and entries of each.
pub(crate) const EACH: u16 = 100;
const ENTRIES: u32 = 128;

/// KiB that a queue which was busy once may have more than one that never was. It had about 170. If all are busy at
/// once, 13 stay. If they are busy one after the other, on a slow machine, it is 25: the allocator loses more between
/// the blocks of a queue that grows while another shrinks.
const ONCE_BUSY_KIB: u64 = 36;

/// KiB that may stay for each queue that is gone.
const GONE_KIB: u64 = 8;

/// A controller with I/O queues of so many entries over TCP.
pub(crate) fn tcp_queues(process: &Process, entries: u32) -> Vec<RawTcp> {
    let none = Digests::default();
    let open = || {
        let stream =
            stream_from(Ipv4Addr::LOCALHOST.into(), process.address(Over::Tcp), ringfab_tests::PATIENCE);
        RawTcp::over(stream.expect("a connection")).greet(none)
    };
    let mut admin = open();
    admin.say(&connect_as(none, 0, 32, 0xffff, NQN, FRIEND));
    let controller = admin.enable();
    let io = (1..=EACH).map(|qid| {
        let mut queue = open();
        queue.say(&connect_as(none, qid, entries, controller, NQN, FRIEND));
        assert!(queue.response().status().is_success());
        queue
    });
    let mut queues: Vec<RawTcp> = io.collect();
    queues.push(admin);
    queues
}

/// So many writes with data in their capsules, all at once.
pub(crate) fn burst(queue: &mut RawTcp, count: u16) {
    let none: tcp::Digests = Digests::default();
    let capsules = (0..count).map(|cid| {
        let write = SubmissionEntry::write(cid, 1, u64::from(cid) * 8, 8, false);
        capsule(none, write, &[7; 4096])
    });
    let all: Vec<u8> = capsules.flatten().collect();
    queue.say(&all);
    for _ in 0..count {
        assert!(queue.response().status().is_success());
    }
}

/// What a target has resident once that is less than it may be, or when there is no more patience. It gives back in
/// steps.
fn kib_below(process: &Process, bound: u64) -> u64 {
    let begun = std::time::Instant::now();
    loop {
        let kib = process.status("VmRSS:");
        if kib < bound || begun.elapsed() > ringfab_tests::PATIENCE {
            return kib;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}

/// What a target has resident, in KiB.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    /// Connections that came.
    pub(crate) count: u64,
    /// Before they did.
    pub(crate) before: u64,
    /// With all of them, and nothing said.
    pub(crate) idle: u64,
    /// When each has been busy once, the last of them just now.
    pub(crate) busy: u64,
    /// Some time later.
    pub(crate) rested: u64,
    /// Some time after all have left.
    pub(crate) left: u64,
}

/// Waits until what was used is given back, if it is, and says what is resident then. It is told what to expect.
pub(crate) type Settle = fn(&Process, u64) -> u64;

/// So many controllers with their queues over TCP.
pub(crate) fn of_tcp(process: &Process, controllers: usize, settle: Settle) -> Figures {
    // What the first ones touch of pools and tables stays.
    tcp_queues(process, ENTRIES).iter_mut().take(4).for_each(|queue| burst(queue, BURST));
    let before = process.settled_kib();
    let mut controllers: Vec<Vec<RawTcp>> = (0..controllers).map(|_| tcp_queues(process, ENTRIES)).collect();
    let count = controllers.iter().map(Vec::len).sum::<usize>() as u64;
    let idle = process.settled_kib();
    for controller in &mut controllers {
        controller.iter_mut().take(usize::from(EACH)).for_each(|queue| burst(queue, BURST));
    }
    let busy = process.status("VmRSS:");
    let rested = settle(process, idle + ONCE_BUSY_KIB * count);
    drop(controllers);
    let left = settle(process, before + GONE_KIB * count);
    Figures { count, before, idle, busy, rested, left }
}

/// The same by the software RNIC.
pub(crate) fn of_rdma(process: &Process, controllers: usize, settle: Settle) -> Figures {
    let address = process.address(Over::Rdma);
    let attach = |host: &mut RawHost| {
        let association = host.attach_as(FRIEND);
        (1..=EACH).map(|qid| host.attach_io_as(association, FRIEND, qid, ENTRIES as u16)).collect::<Vec<_>>()
    };
    let write_all = |host: &mut RawHost, queue| {
        let entries: Vec<SubmissionEntry> =
            (0..BURST).map(|cid| SubmissionEntry::write(cid, 1, u64::from(cid) * 8, 8, false)).collect();
        host.send_together(queue, &entries, &[7; 4096]);
        for _ in 0..BURST {
            assert!(host.completion(queue).status().is_success());
        }
    };
    let warm = &mut RawHost::new(address);
    let queues = attach(warm);
    queues.iter().take(4).for_each(|queue| write_all(warm, *queue));
    let before = process.settled_kib();
    let mut hosts: Vec<RawHost> = (0..controllers).map(|_| RawHost::new(address)).collect();
    let all: Vec<_> = hosts.iter_mut().map(attach).collect();
    let count = all.iter().map(|queues| queues.len() + 1).sum::<usize>() as u64;
    let idle = process.settled_kib();
    for (host, queues) in hosts.iter_mut().zip(&all) {
        queues.iter().for_each(|queue| write_all(host, *queue));
    }
    let busy = process.status("VmRSS:");
    let rested = settle(process, idle + ONCE_BUSY_KIB * count);
    drop(hosts);
    let left = settle(process, before + GONE_KIB * count);
    Figures { count, before, idle, busy, rested, left }
}

#[expect(clippy::print_stdout, reason = "the figures are worth reading")]
fn check(figures: Figures) {
    let Figures { count, before, idle, busy, rested, left } = figures;
    println!("{figures:?}");
    assert!(busy > idle + ONCE_BUSY_KIB * count, "they were not busy: {figures:?}");
    assert!(rested < idle + ONCE_BUSY_KIB * count, "{figures:?}");
    assert!(left < before + GONE_KIB * count, "{figures:?}");
}

#[test]
fn queues_over_tcp_that_were_busy_once_cost_little_more_than_others_and_leave_little_behind() {
    check(of_tcp(&Process::start(), 10, kib_below));
}

#[test]
fn queue_pairs_of_the_software_rnic_that_were_busy_once_cost_little_more_and_leave_little_behind() {
    check(of_rdma(&Process::start(), 5, kib_below));
}
