//! The attacks of SECURITY.md, and how long the host that may connect waits meanwhile.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use ringfab_initiator::blocking::Controller;

use crate::attack::{Act, Attack, Going};
use crate::target::{Over, Process};

/// How long the host may take to attach. It takes a few milliseconds; the machine of a test may be busy.
const ATTACH_MAX: Duration = Duration::from_secs(3);

/// How long the latencies of its reads are looked at.
const READ_TIME: Duration = Duration::from_millis(400);

/// Where the host is.
const SAME: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn attacks() -> Vec<Attack> {
    let (rdma, tcp) = (Over::Rdma, Over::Tcp);
    let same =
        Attack { from: SAME, ..Attack::elsewhere("TCP, silent, same address", tcp, Act::Silent, 1200) };
    vec![
        Attack::elsewhere("TCP, silent", tcp, Act::Silent, 2000),
        same,
        Attack::elsewhere("TCP, half an ICReq", tcp, Act::HalfGreeting, 2000),
        Attack::elsewhere("TCP, ICReq only", tcp, Act::Greeting, 2000),
        Attack::elsewhere("TCP, half a Connect", tcp, Act::HalfConnect, 2000),
        Attack::elsewhere("TCP, refused Connects", tcp, Act::Refused, 2000),
        Attack::elsewhere("discovery controllers", tcp, Act::Discovery, 1200),
        Attack::elsewhere("controllers under its name", tcp, Act::Impostor, 1200),
        Attack::elsewhere("I/O queues under its name", tcp, Act::Queues, 60),
        Attack::elsewhere("RDMA, silent", rdma, Act::Silent, 2000),
        Attack::elsewhere("RDMA, half an MPA request", rdma, Act::HalfGreeting, 2000),
        Attack::elsewhere("RDMA, MPA only", rdma, Act::QueuePair, 2000),
    ]
}

/// The latency that one of a hundred reads exceeds.
fn read_p99(controller: &Controller) -> Duration {
    let begun = Instant::now();
    let mut times = Vec::new();
    let mut block = vec![0; 4096];
    while begun.elapsed() < READ_TIME {
        let started = Instant::now();
        let offset = (times.len() as u64 * 7919 % 16_384) * 4096;
        controller.read_at(1, offset, &mut block).expect("the host that was there goes on");
        times.push(started.elapsed());
    }
    times.sort();
    times[times.len() * 99 / 100]
}

/// Whether a host gets in under an attack, in time. Prints a row of the table.
#[expect(clippy::print_stdout, reason = "the table is worth reading")]
fn gets_in(attack: Attack) -> bool {
    let process = Process::start();
    let (there, _) = process.attach(attack.over);
    let before = read_p99(&there);
    let going = Going::start(attack, process.address(attack.over));
    let attached = process.try_attach(attack.over);
    let during = read_p99(&there);
    let took = attached.as_ref().map_or_else(|| "never".to_owned(), |(_, took)| format!("{took:.1?}"));
    println!("| {} | {took} | {before:.0?} | {during:.0?} |", attack.name);
    let in_time = attached.filter(|(_, took)| *took < ATTACH_MAX);
    if let Some((newcomer, _)) = &in_time {
        newcomer.read_at(1, 0, &mut [0; 4096]).expect("and is served");
    }
    drop(going);
    in_time.is_some()
}

#[test]
#[expect(clippy::print_stdout, reason = "the table is worth reading")]
fn the_host_that_may_connect_gets_in_under_every_attack_and_who_was_there_goes_on() {
    let mut late = Vec::new();
    println!("| attack | attach | p99 of 4 KiB reads before | during |\n| --- | --- | --- | --- |");
    for attack in attacks() {
        // A machine that is busy with other tests may be slow once.
        if !gets_in(attack) && !gets_in(attack) {
            late.push(attack.name);
        }
    }
    assert!(late.is_empty(), "late under: {late:?}");
}

#[test]
fn who_is_refused_or_ended_is_named_with_the_reason() {
    let process = Process::start();
    let attack = Attack::elsewhere("silent", Over::Tcp, Act::Silent, 2000);
    let _going = Going::start(attack, process.address(attack.over));
    process.attach(attack.over);
    let log = process.service.log();
    let named = |line: &&str| line.contains("127.0.0.2:") && line.contains("this address has most of them");
    assert!(log.lines().any(|line| named(&line)), "{}", process.tail());
}
