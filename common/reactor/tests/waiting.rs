//! Timers, wake-ups and the cost of waiting, over the real kernel.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use ringfab_reactor::{
    Payload, Reactor, ReactorConfig, ReceiveOp, SendBatch, Wait, mailbox, pin_current_thread,
};
use support::*;

#[test]
fn timers_fire_in_order_not_early_and_not_when_cancelled() {
    let mut reactor = reactor();
    let start = reactor.clock();
    let at = |millis| start + Duration::from_millis(millis);
    reactor.set_timer(at(30), token(3));
    reactor.set_timer(at(10), token(1));
    let cancelled = reactor.set_timer(at(15), token(9));
    reactor.set_timer(at(20), token(2));
    reactor.cancel_timer(cancelled);
    for (index, millis) in [(1, 10), (2, 20), (3, 30)] {
        expect(&mut reactor, token(index));
        assert!(reactor.now() >= at(millis), "timer {index} fired early");
        assert!(reactor.now() < at(millis + 2000), "timer {index} fired much too late");
    }
}

#[test]
fn a_timer_in_the_past_fires_in_the_next_turn_without_waiting() {
    let mut reactor = reactor();
    reactor.set_timer(ringfab_reactor::Time::ZERO, token(1));
    reactor.turn(Wait::No).expect("a turn");
    assert_eq!(reactor.next_completion().expect("the timer").token, token(1));
}

#[test]
fn no_wake_up_is_lost_in_a_hundred_thousand_sleeps() {
    const ROUNDS: u32 = 100_000;
    let mut reactor = reactor_with(Duration::ZERO);
    let waker = reactor.waker();
    let (asked, answered) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let (theirs, answers) = (Arc::clone(&asked), Arc::clone(&answered));
    let thread = std::thread::spawn(move || {
        let mut random = Random(3);
        for round in 1..=ROUNDS {
            theirs.store(round, Ordering::Release);
            waker.wake();
            // Varies where in the loop's path to sleep the next wake-up meets it.
            for _ in 0..random.below(2000) {
                std::hint::spin_loop();
            }
            while answers.load(Ordering::Acquire) < round {
                std::thread::yield_now();
            }
        }
    });
    let guard = reactor.set_timer(reactor.clock() + Duration::from_secs(120), token(1));
    let mut seen = 0;
    while seen < ROUNDS {
        reactor.turn(Wait::Event).expect("a turn");
        assert!(reactor.next_completion().is_none(), "a wake-up was lost after {seen}");
        seen = asked.load(Ordering::Acquire);
        answered.store(seen, Ordering::Release);
    }
    reactor.cancel_timer(guard);
    thread.join().expect("the waking thread");
    assert!(reactor.counters().sleeps > u64::from(ROUNDS) / 100, "{:?}", reactor.counters());
}

/// A turn of a program that waits with poll(2). What never comes fails it.
fn turn_outside(reactor: &mut Reactor) {
    if reactor.prepare_to_wait().expect("a ring that works") {
        let descriptor = reactor.descriptor().expect("a descriptor");
        let mut watched = [PollFd::new(descriptor, PollFlags::POLLIN)];
        let readable = poll(&mut watched, PollTimeout::from(20_000_u16));
        assert_eq!(readable, Ok(1), "nothing has made the descriptor readable");
    }
    reactor.turn(Wait::No).expect("a turn");
}

fn next_outside(reactor: &mut Reactor) -> ringfab_reactor::Token {
    loop {
        if let Some(completion) = reactor.next_completion() {
            return completion.token;
        }
        turn_outside(reactor);
    }
}

#[test]
fn a_timer_makes_the_descriptor_readable_also_one_that_was_set_after_a_later_one() {
    let mut reactor = reactor();
    let start = reactor.clock();
    let at = |millis| start + Duration::from_millis(millis);
    reactor.set_timer(at(300_000), token(9));
    reactor.prepare_to_wait().expect("a ring that works");
    reactor.set_timer(at(30), token(2));
    let cancelled = reactor.set_timer(at(20), token(8));
    reactor.prepare_to_wait().expect("a ring that works");
    reactor.set_timer(at(10), token(1));
    reactor.cancel_timer(cancelled);
    for (index, millis) in [(1, 10), (2, 30)] {
        assert_eq!(next_outside(&mut reactor), token(index));
        assert!(reactor.now() >= at(millis), "timer {index} fired early");
    }
}

#[test]
fn no_wake_up_is_lost_by_who_waits_on_the_descriptor() {
    const ROUNDS: u32 = 20_000;
    let mut reactor = reactor();
    let waker = reactor.waker();
    let (asked, answered) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let (theirs, answers) = (Arc::clone(&asked), Arc::clone(&answered));
    let thread = std::thread::spawn(move || {
        for round in 1..=ROUNDS {
            theirs.store(round, Ordering::Release);
            waker.wake();
            while answers.load(Ordering::Acquire) < round {
                std::thread::yield_now();
            }
        }
    });
    let mut seen = 0;
    while seen < ROUNDS {
        turn_outside(&mut reactor);
        seen = asked.load(Ordering::Acquire);
        answered.store(seen, Ordering::Release);
    }
    thread.join().expect("the waking thread");
}

#[test]
fn a_completion_makes_the_descriptor_readable() {
    let mut reactor = reactor();
    let (ours, mut theirs) = std::os::unix::net::UnixStream::pair().expect("sockets");
    for index in 1..=3 {
        reactor.poll_readable(std::os::fd::AsRawFd::as_raw_fd(&ours), token(index));
        assert!(reactor.prepare_to_wait().expect("a ring that works"), "nothing has come");
        std::io::Write::write_all(&mut theirs, &[1]).expect("sent");
        assert_eq!(next_outside(&mut reactor), token(index));
        std::io::Read::read_exact(&mut &ours, &mut [0]).expect("received");
    }
}

#[test]
fn messages_of_many_senders_all_arrive_in_each_senders_order() {
    const SENDERS: usize = 4;
    const MESSAGES: u64 = 20_000;
    let mut reactor = reactor();
    let (sender, mut receiver) = mailbox::<(usize, u64)>(reactor.waker());
    let threads: Vec<_> = (0..SENDERS)
        .map(|index| {
            let sender = sender.clone();
            std::thread::spawn(move || {
                for number in 0..MESSAGES {
                    sender.send((index, number)).expect("the receiver lives");
                }
            })
        })
        .collect();
    let mut next_of = [0; SENDERS];
    while next_of != [MESSAGES; SENDERS] {
        reactor.turn(Wait::Event).expect("a turn");
        while let Some((index, number)) = receiver.try_receive() {
            assert_eq!(number, next_of[index]);
            next_of[index] += 1;
        }
    }
    for thread in threads {
        thread.join().expect("a sender");
    }
}

#[test]
fn a_wake_up_sent_while_awake_ends_the_next_turn() {
    let mut reactor = reactor_with(Duration::from_secs(100));
    reactor.waker().wake();
    let start = Instant::now();
    reactor.turn(Wait::Event).expect("a turn");
    assert!(start.elapsed() < Duration::from_secs(10));
}

#[test]
fn an_idle_reactor_sleeps_and_uses_no_processor_time() {
    let done = Arc::new(AtomicBool::new(false));
    let theirs = Arc::clone(&done);
    let (hand_over, handed) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let mut reactor = reactor();
        let _pair = connected_pair(&mut reactor);
        hand_over.send((reactor.waker(), reactor.monitor())).expect("the test waits");
        let before = thread_time();
        while !theirs.load(Ordering::Acquire) {
            reactor.turn(Wait::Event).expect("a turn");
        }
        (thread_time() - before, reactor.counters())
    });
    let (waker, monitor) = handed.recv().expect("the thread runs");
    let begun = Instant::now();
    while !monitor.is_sleeping() {
        assert!(begun.elapsed() < Duration::from_secs(30), "it never sleeps");
        std::thread::sleep(Duration::from_millis(1));
    }
    // It must be seen to do nothing.
    std::thread::sleep(Duration::from_millis(500));
    assert!(monitor.is_sleeping());
    done.store(true, Ordering::Release);
    waker.wake();
    let (used, counters) = thread.join().expect("the loop");
    assert!(used < Duration::from_millis(5), "{used:?} of processor time in half a second");
    assert!(counters.slept > Duration::from_millis(400), "{counters:?}");
    assert!(!monitor.is_sleeping() && monitor.slept() == counters.slept);
    assert_eq!(monitor.turns(), counters.turns);
}

#[test]
fn a_reactor_whose_waits_are_long_stops_spinning() {
    const WAITS: u32 = 20;
    let most = Duration::from_millis(4);
    let mut reactor = reactor_with(most);
    let before = thread_time();
    for _ in 0..WAITS {
        let timer = reactor.clock() + most * 2;
        reactor.set_timer(timer, token(1));
        expect(&mut reactor, token(1));
    }
    let counters = reactor.counters();
    // Spinning each time would take four times as much.
    let used = thread_time() - before;
    assert!(used <= most * WAITS / 4, "{used:?} of processor time, {counters:?}");
    assert!(counters.sleeps >= u64::from(WAITS) - 2, "{counters:?}");
}

#[test]
fn a_reactor_that_has_worked_spins_through_a_long_wait() {
    // The shorter a wait is, the more seldom something else wants the processor meanwhile.
    let most = Duration::from_micros(200);
    // Where something did, no spin is tried for so long.
    let shared_time = Duration::from_millis(60);
    let mut reactor = reactor_with(most);
    let mut sleeps_after = |work| {
        for _ in 0..200 {
            // Nothing is left of what was saved before, nor of the usual spin.
            for wait in [most * 2; 20].into_iter().chain([shared_time]) {
                let timer = reactor.clock() + wait;
                reactor.set_timer(timer, token(1));
                expect(&mut reactor, token(1));
            }
            let before = reactor.counters();
            reactor.worked(work);
            let timer = reactor.clock() + most * 2;
            reactor.set_timer(timer, token(2));
            expect(&mut reactor, token(2));
            let after = reactor.counters();
            // Who shares the processor sleeps in any case.
            if after.shared == before.shared {
                return after.sleeps > before.sleeps;
            }
        }
        panic!("others want this processor all the time");
    };
    for (work, sleeps) in [(20, false), (0, true), (20, false)] {
        assert_eq!(sleeps_after(work), sleeps, "after {work} pieces of work");
    }
}

#[test]
fn a_reactor_whose_processor_others_want_sleeps_where_it_would_spin() {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (say, said) = std::sync::mpsc::channel();
        let done = &done;
        let busy = scope.spawn(move || {
            let processor = nix::sched::sched_getcpu().expect("this thread's processor");
            pin_current_thread(processor).expect("pinned");
            say.send(processor).expect("the test waits");
            while !done.load(Ordering::Acquire) {
                std::hint::spin_loop();
            }
        });
        let processor = said.recv().expect("a processor");
        let loops = scope.spawn(move || {
            pin_current_thread(processor).expect("pinned");
            let mut reactor = reactor_with(Duration::from_secs(100));
            reactor.set_timer(reactor.clock() + Duration::from_millis(500), token(1));
            expect(&mut reactor, token(1));
            let shared = reactor.counters();
            reactor.set_timer(reactor.clock() + Duration::from_millis(50), token(2));
            while reactor.next_completion().is_none() {
                reactor.turn(Wait::Answer).expect("a turn");
            }
            (shared, reactor.counters())
        });
        let (shared, answered) = loops.join().expect("the loop");
        done.store(true, Ordering::Release);
        busy.join().expect("the busy thread");
        assert!(shared.shared > 0 && shared.sleeps > 0, "{shared:?}");
        assert_eq!(answered.sleeps, shared.sleeps, "who waits for an answer spins all the same");
    });
}

#[test]
fn a_reactor_that_goes_to_sleep_submits_with_the_same_system_call() {
    use std::os::fd::AsRawFd;
    let eventfd = nix::sys::eventfd::EventFd::from_value(1).expect("an eventfd");
    let mut reactor = reactor_with(Duration::ZERO);
    for index in 0..10 {
        let before = reactor.counters();
        reactor.poll_readable(eventfd.as_raw_fd(), token(index));
        expect(&mut reactor, token(index)).result.expect("readable");
        let after = reactor.counters();
        assert_eq!((after.submitted - before.submitted, after.enters - before.enters), (1, 1));
    }
}

#[test]
fn a_spinning_reactor_sees_data_and_connections_without_system_calls_of_its_own() {
    let mut reactor = reactor_with(Duration::from_secs(100));
    let (_bind, address) = listen(&mut reactor, token(0));
    let peer = std::thread::spawn(move || {
        use std::io::Write;
        // The loop finds nothing for a while first.
        std::thread::sleep(Duration::from_millis(50));
        let mut stream = std::net::TcpStream::connect(address).expect("connected");
        // And again, between the two.
        std::thread::sleep(Duration::from_millis(50));
        stream.write_all(b"data").expect("written");
        stream
    });
    let Payload::Accepted(socket, _) = next_by(&mut reactor, Wait::Answer).payload else {
        panic!("not accepted")
    };
    let mut operation = ReceiveOp::new(16);
    operation.set_target(None, 0, 16);
    reactor.receive(socket, operation, token(1));
    assert_eq!(next_by(&mut reactor, Wait::Answer).result.expect("received"), 4);
    let counters = reactor.counters();
    assert_eq!(counters.sleeps, 0);
    assert!(counters.enters < 12, "{counters:?}");
    assert!(counters.spun > Duration::from_millis(60), "{counters:?}");
    drop(peer.join().expect("the peer"));
}

#[test]
fn a_lone_send_of_a_spinning_reactor_needs_no_ring_and_what_the_socket_does_not_take_goes_on_there() {
    const LARGE: usize = 64 << 20;
    let mut reactor = reactor_with(Duration::from_secs(100));
    let (near, far) = connected_pair(&mut reactor);
    let mut batch = SendBatch::new(16, 1);
    batch.push_bytes(b"alone");
    // What the listener has left behind goes first.
    reactor.turn(Wait::No).expect("a turn");
    let before = reactor.counters();
    reactor.send(near, batch, token(1));
    assert_eq!(expect(&mut reactor, token(1)).result.expect("sent"), 5);
    assert_eq!(reactor.counters().submitted, before.submitted);

    let buffer = pool(LARGE, 1).take(LARGE).expect("a buffer");
    let mut batch = SendBatch::new(16, 1);
    batch.push_shared(buffer.share(), 0, LARGE);
    reactor.send(near, batch, token(2));
    let mut received = 0;
    let mut operation = ReceiveOp::new(1 << 20);
    while received < 5 + LARGE {
        operation.set_target(None, 0, 1 << 20);
        reactor.receive(far, operation, token(3));
        operation = loop {
            let completion = next(&mut reactor);
            match completion.payload {
                Payload::Receive(operation) => {
                    received += completion.result.expect("received") as usize;
                    break operation;
                }
                _ => assert_eq!(completion.result.expect("sent") as usize, LARGE),
            }
        };
    }
    assert_eq!(received, 5 + LARGE);
    assert!(reactor.counters().submitted > before.submitted);
}

#[test]
fn more_completions_than_the_completion_queue_holds_are_not_lost() {
    const WRITES: u64 = 2000;
    // Eight entries, so 32 completions.
    let config = ReactorConfig { entries: 8, spin: Duration::ZERO, descriptors_max: 8 };
    let mut reactor = Reactor::new(&config).expect("a ring");
    let eventfd =
        nix::sys::eventfd::EventFd::from_value_and_flags(0, nix::sys::eventfd::EfdFlags::EFD_SEMAPHORE)
            .expect("an eventfd");
    for index in 0..WRITES {
        reactor.poll_readable(std::os::fd::AsRawFd::as_raw_fd(&eventfd), token(index as u32));
    }
    reactor.turn(Wait::No).expect("a turn");
    eventfd.write(1).expect("written");
    let mut seen = vec![false; WRITES as usize];
    for _ in 0..WRITES {
        let index = next(&mut reactor).token.index as usize;
        assert!(!std::mem::replace(&mut seen[index], true));
    }
}

#[test]
fn a_foreign_descriptor_is_reported_once_when_it_becomes_readable() {
    use std::os::fd::AsRawFd;
    let eventfd = nix::sys::eventfd::EventFd::new().expect("an eventfd");
    let mut reactor = reactor();
    reactor.poll_readable(eventfd.as_raw_fd(), token(1));
    for _ in 0..10 {
        reactor.turn(Wait::No).expect("a turn");
    }
    assert!(reactor.next_completion().is_none());
    eventfd.write(1).expect("written");
    expect(&mut reactor, token(1)).result.expect("readable");
    reactor.turn(Wait::No).expect("a turn");
    assert!(reactor.next_completion().is_none(), "once");
}

#[test]
fn a_foreign_descriptor_is_let_go_of_when_it_is_polled_no_more() {
    use std::os::fd::AsRawFd;
    let (kept, given) = std::os::unix::net::UnixStream::pair().expect("a pair");
    let mut reactor = reactor();
    reactor.poll_readable(given.as_raw_fd(), token(1));
    reactor.turn(Wait::No).expect("a turn");
    reactor.stop_polling(given.as_raw_fd());
    let error = expect(&mut reactor, token(1)).result.expect_err("nothing to read");
    assert_eq!(error.raw_os_error(), Some(libc::ECANCELED));
    drop(given);
    let read = std::io::Read::read(&mut &kept, &mut [0]).expect("the other end is closed");
    assert_eq!(read, 0);
}

fn thread_time() -> Duration {
    let time = nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID.now().expect("the thread's clock");
    Duration::from(time)
}
