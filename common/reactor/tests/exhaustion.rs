//! A process without descriptors left. It is alone in its file because the limit is the whole process's.

mod support;

use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use ringfab_reactor::{Payload, Wait};
use support::*;

#[test]
fn a_listener_without_descriptors_rests_and_accepts_everybody_later() {
    const CLIENTS: usize = 12;
    let mut reactor = reactor_with(Duration::ZERO);
    let (_bind, address) = listen(&mut reactor, token(0));
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("the limit");
    let clients: Vec<_> = (0..CLIENTS).map(|_| TcpStream::connect(address).expect("connected")).collect();
    let highest = clients.iter().map(AsRawFd::as_raw_fd).max().expect("some") as u64;
    setrlimit(Resource::RLIMIT_NOFILE, highest + 4, hard).expect("a lower limit");

    let end = reactor.clock() + Duration::from_millis(450);
    reactor.set_timer(end, token(1));
    let (mut accepted, mut rested) = (0, false);
    while !rested {
        let completion = next_patiently(&mut reactor);
        match completion.payload {
            Payload::Accepted(..) => accepted += 1,
            _ => rested = completion.token == token(1),
        }
    }
    let enters = reactor.counters().enters;
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).expect("the old limit");
    assert!((1..CLIENTS).contains(&accepted), "{accepted} were accepted below the limit");
    assert!(enters < 60, "{enters} system calls in half a second of resting");

    while accepted < CLIENTS {
        let Payload::Accepted(..) = expect(&mut reactor, token(0)).payload else { panic!("not accepted") };
        accepted += 1;
    }
    reactor.turn(Wait::No).expect("a turn");
    assert!(reactor.next_completion().is_none());
}

/// Like `next`, whose own guard is a timer of the same reactor and would count as activity here.
fn next_patiently(reactor: &mut ringfab_reactor::Reactor) -> ringfab_reactor::Completion {
    loop {
        if let Some(completion) = reactor.next_completion() {
            return completion;
        }
        reactor.turn(Wait::Event).expect("a turn");
    }
}
