//! Sixty-four hosts of both transports, with four I/O queues each, come, work and leave in any order, while namespaces
//! come, grow and go: every byte is what its host wrote, and when all have left, the target has in use what it had
//! before.
//!
//! `CHURN_SECONDS` says for how long, and `SEED` which choices are made.

mod busy;
mod control;
mod crew;
mod guest;
mod rude;

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ringfab_tests::PATIENCE;

use busy::{BusyTarget, InUse};

/// Hosts that are an engine's, by the thread that runs it.
const CREWS: u64 = 4;
const GUESTS: u64 = 15;

/// Hosts that keep to no rule of politeness: half of them for each transport.
const RUDE: u64 = 4;

/// For how long, unless it is said.
const SECONDS: u64 = 10;

/// Where hosts find a target.
#[derive(Clone, Copy, Debug)]
struct Addresses {
    rdma: SocketAddr,
    tcp: SocketAddr,
}

#[test]
#[expect(clippy::print_stdout, reason = "the seed of a random test and what it did belong in its output")]
fn hosts_that_come_work_and_leave_leave_nothing_behind() {
    let seconds = number("CHURN_SECONDS").unwrap_or(SECONDS);
    let seed = number("SEED").unwrap_or_else(any_seed);
    println!("CHURN_SECONDS={seconds} SEED={seed}");
    let target = BusyTarget::start();
    let before = target.in_use();
    let (polite, rude) = target.addresses();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let crews: Vec<_> =
            (0..CREWS).map(|number| scope.spawn(move || crew::work(polite, seed, number, seconds))).collect();
        let others: Vec<_> = (0..RUDE)
            .map(|number| {
                let over = &over;
                scope.spawn(move || rude::work(rude, seed, number, over))
            })
            .collect();
        // What fails must not leave the others working for ever.
        let (target, told) = (&target, &over);
        let control = scope.spawn(move || control::work(target, seed, told));
        let crews: Vec<_> = crews.into_iter().map(|crew| crew.join()).collect();
        over.store(true, Ordering::Relaxed);
        for did in crews {
            println!("{:?}", did.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        for did in others {
            println!("{:?}", did.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        let did = control.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        println!("{did:?}");
    });
    let after = settled(&target, &before);
    println!("before {before:?}\nafter  {after:?}");
    assert_eq!(after, before, "left behind, with SEED={seed}; the log: {}", target.log());
}

/// What is in use once that is as little as before, or patience is at its end.
fn settled(target: &BusyTarget, before: &InUse) -> InUse {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let now = target.in_use();
        if now == *before || Instant::now() > deadline {
            return now;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

fn any_seed() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970").as_nanos() as u64 >> 10
}

/// The address of a second host on this machine, as the target sees it, if there is one.
fn second_address() -> &'static str {
    if TcpListener::bind("[::1]:0").is_ok() { "::1" } else { "127.0.0.1" }
}
