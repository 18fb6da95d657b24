//! The attacks of SECURITY.md: that each takes what it is after, and how long the host that may connect waits
//! meanwhile.

use std::time::{Duration, Instant};

use ringfab_tests::PATIENCE;

use crate::attack::{Act, Attack, Going, Origin};
use crate::target::{Over, Process};

/// How often the host attaches, and the longest that it may take in the median. It takes a few milliseconds; one that
/// is far off may be the machine's doing, which has other tests to run, two cannot.
const ATTACHES: usize = 5;
const ATTACH_MAX: Duration = Duration::from_secs(1);
/// Where it takes long without an attack, too, it may take so many times as long.
const TIMES_LONGER_MAX: u32 = 50;

/// The longest that an attack may take until it has filled what it is after.
const FILL_PATIENCE: Duration = Duration::from_secs(20);
const FILL_INTERVAL: Duration = Duration::from_millis(10);

/// What a target says when an attack has filled what it is after. Only who would be one too many is told so, or ended
/// for it.
const HANDSHAKES: &[&str] = &["too many connections in handshake, and this address has most of them"];
const CONNECTS: &[&str] = &[
    "it has not sent its Connect command, and its address has most of those",
    "it has not sent its Connect command for a while, and there are many of those",
];
const CONTROLLERS: &[&str] = &[
    "there is no free controller",
    "its address has most controllers, and there is no room for another one",
];
const QUEUES: &[&str] = &[
    "its address has most connections, and there is no room for another one",
    "there is no room for another connection, and no address has more than this one",
];

const PROOFS: &[&str] = &[
    "it has not sent its Connect command, and its address has most of those",
    "its host has not gone on to authenticate for a while, and there are many of those",
];

/// An attack, with its name in SECURITY.md, and what the target says, in one of these ways.
pub(crate) type Case = (&'static str, Attack, &'static [&'static str]);

/// All.
pub(crate) fn attacks() -> Vec<Case> {
    use Act::*;
    use Over::{Rdma, Tcp};
    let attack = |over, act, from, count| Attack { over, act, from, count };
    let (same, one, many) = (Origin::Same, Origin::Others(1), Origin::Others(250));
    vec![
        ("TCP, silent", attack(Tcp, Silent, one, 2000), HANDSHAKES),
        ("TCP, silent, the host's own address", attack(Tcp, Silent, same, 2000), HANDSHAKES),
        ("TCP, silent, 250 addresses", attack(Tcp, Silent, many, 2000), HANDSHAKES),
        ("TCP, silent, 2,000 addresses", attack(Tcp, Silent, Origin::Others(2000), 2000), HANDSHAKES),
        ("TCP, half an ICReq", attack(Tcp, HalfGreeting, one, 2000), HANDSHAKES),
        ("TCP, ICReq a byte at a time", attack(Tcp, Trickle, one, 2000), HANDSHAKES),
        ("TCP, ICReq only", attack(Tcp, Greeting, one, 2000), HANDSHAKES),
        ("TCP, half a Connect", attack(Tcp, HalfConnect, one, 2000), CONNECTS),
        ("TCP, half a Connect, the host's own address", attack(Tcp, HalfConnect, same, 2000), CONNECTS),
        ("TCP, half a Connect, 250 addresses", attack(Tcp, HalfConnect, many, 2000), CONNECTS),
        ("TCP, refused Connects", attack(Tcp, Refused, one, 2000), CONNECTS),
        ("discovery controllers", attack(Tcp, Discovery, one, 1200), CONTROLLERS),
        ("controllers under the host's name", attack(Tcp, Impostor, one, 1200), CONTROLLERS),
        (
            "controllers under the host's name, its own address",
            attack(Tcp, Impostor, same, 1200),
            CONTROLLERS,
        ),
        ("I/O queues under the host's name", attack(Tcp, Queues, one, 60), QUEUES),
        ("TCP, no authentication", attack(Tcp, Unproved, one, 2000), PROOFS),
        ("TCP, no authentication, the host's own address", attack(Tcp, Unproved, same, 2000), PROOFS),
        ("TCP, no authentication, 250 addresses", attack(Tcp, Unproved, many, 2000), PROOFS),
        (
            "TCP, no authentication, I/O queues of its controller",
            attack(Tcp, UnprovedQueue, one, 2000),
            PROOFS,
        ),
        (
            "TCP, no authentication, I/O queues of its controller, its own address",
            attack(Tcp, UnprovedQueue, same, 2000),
            PROOFS,
        ),
        ("TCP, half a Negotiate", attack(Tcp, HalfMessage, one, 2000), PROOFS),
        ("TCP, Negotiate only", attack(Tcp, Negotiate, one, 2000), PROOFS),
        ("TCP, Negotiate only, 250 addresses", attack(Tcp, Negotiate, many, 2000), PROOFS),
        ("TCP, no reply to the challenge", attack(Tcp, Challenge, one, 2000), PROOFS),
        ("TCP, no reply to the challenge, 250 addresses", attack(Tcp, Challenge, many, 2000), PROOFS),
        ("TCP, wrong replies", attack(Tcp, Reply, one, 2000), PROOFS),
        ("TCP, wrong replies, 250 addresses", attack(Tcp, Reply, many, 2000), PROOFS),
        ("RDMA, silent", attack(Rdma, Silent, one, 2000), HANDSHAKES),
        ("RDMA, half an MPA request", attack(Rdma, HalfGreeting, one, 2000), HANDSHAKES),
        ("RDMA, MPA request a byte at a time", attack(Rdma, Trickle, one, 2000), HANDSHAKES),
        ("RDMA, MPA only", attack(Rdma, QueuePair, one, 2000), CONNECTS),
        ("RDMA, MPA only, the host's own address", attack(Rdma, QueuePair, same, 2000), CONNECTS),
    ]
}

/// How long the host takes to attach each time, the shortest first. Each time it is served. When it does not get in
/// once, it tries no more.
pub(crate) fn attaches(process: &Process, over: Over, limit: Duration) -> Vec<Option<Duration>> {
    let attach = |_| {
        let (mut newcomer, took) = process.try_guest(over, limit)?;
        newcomer.read().ok()?;
        Some(took)
    };
    let mut times: Vec<Option<Duration>> =
        (0..ATTACHES).map_while(|number| attach(number).map(Some)).collect();
    times.sort();
    times.resize(ATTACHES, None);
    times
}

/// What is wrong under an attack, if anything is. Prints a row of the table.
#[expect(clippy::print_stdout, reason = "the table is worth reading")]
fn fault_under(case: Case) -> Option<String> {
    let (name, attack, evidence) = case;
    let process = Process::start_for(attack.act);
    let mut there = process.guest(attack.over);
    let calm = attaches(&process, attack.over, PATIENCE)[ATTACHES / 2].expect("it gets in without an attack");
    let going = Going::start(attack, process.address(attack.over));
    // On a slow machine it takes longer until the attack has filled what it is after.
    let is_full = || evidence.iter().any(|words| process.service.log().contains(words));
    let begun = Instant::now();
    while !is_full() && begun.elapsed() < FILL_PATIENCE {
        std::thread::sleep(FILL_INTERVAL);
    }
    let times = attaches(&process, attack.over, PATIENCE);
    let files = process.open_files();
    // Who was there has lost nothing, not even a connection.
    let goes_on = there.read();
    drop(going);
    let (median, most) = (times[ATTACHES / 2], times[ATTACHES - 1]);
    println!("| {name} | {files} | {median:.1?} | {most:.1?} |");
    if !is_full() {
        return Some(format!("{name}: it takes nothing away: {}", process.tail()));
    }
    if let Err(error) = goes_on {
        return Some(format!("{name}: who was there has failed: {error}"));
    }
    let attach_max = ATTACH_MAX.max(calm * TIMES_LONGER_MAX);
    let late = median.is_none_or(|median| median > attach_max);
    late.then(|| format!("{name}: late: {times:?}, without it {calm:?}"))
}

#[test]
#[expect(clippy::print_stdout, reason = "the table is worth reading")]
fn the_host_that_may_connect_gets_in_under_every_attack_and_who_was_there_goes_on() {
    println!("| attack | files open | attach, median | most |\n| --- | --- | --- | --- |");
    let faults: Vec<String> = attacks().into_iter().filter_map(fault_under).collect();
    assert!(faults.is_empty(), "{faults:#?}");
}

/// A host that has not asked for the challenge costs no computation, wherever it comes from.
#[test]
fn nothing_is_computed_for_hosts_that_never_ask_for_the_challenge() {
    let attack = Attack { over: Over::Tcp, act: Act::Negotiate, from: Origin::Others(250), count: 500 };
    let process = Process::start_for(attack.act);
    let going = Going::start(attack, process.address(attack.over));
    let is_full = || PROOFS.iter().any(|words| process.service.log().contains(words));
    ringfab_tests::wait_until("hosts that did not go on", is_full);
    assert_eq!(process.threads("authentication"), 0, "threads that compute");
    let (mut guest, _) = process.try_guest(attack.over, PATIENCE).expect("it gets in");
    guest.read().expect("it is served");
    assert!(process.threads("authentication") > 0, "one that goes on is computed for");
    drop(going);
}

#[test]
fn the_table_of_attacks_in_security_md_is_what_is_tested() {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../SECURITY.md"));
    let text = text.expect("SECURITY.md");
    let rows = text.lines().skip_while(|line| !line.starts_with("| attack |")).skip(2);
    let named: Vec<&str> = rows.map_while(|line| line.strip_prefix("| ")?.split(" |").next()).collect();
    let tested: Vec<&str> = attacks().into_iter().map(|(name, ..)| name).collect();
    assert_eq!(named, tested);
}

#[test]
fn who_is_refused_or_ended_is_named_with_the_reason() {
    let process = Process::start();
    let attack = Attack { over: Over::Tcp, act: Act::Silent, from: Origin::Others(1), count: 2000 };
    let _going = Going::start(attack, process.address(attack.over));
    process.attach(attack.over);
    let log = process.service.log();
    let named = |line: &&str| line.contains("127.0.0.2:") && line.contains("this address has most of them");
    assert!(log.lines().any(|line| named(&line)), "{}", process.tail());
}
