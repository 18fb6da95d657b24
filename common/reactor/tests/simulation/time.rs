//! Virtual time: timers, wake-ups, and what moves the clock.

use std::time::Duration;

use ringfab_reactor::sim::World;
use ringfab_reactor::{Reactor, Token, Wait, mailbox};

use crate::{collect, run};

fn token(index: u32) -> Token {
    Token::new(9, 0, 0, index)
}

#[test]
fn timers_fire_in_order_at_their_time_and_never_earlier() {
    let world = World::new(1);
    let host = world.add_host("a");
    let mut reactor = Reactor::simulated(&world, host);
    let start = reactor.now();
    for millis in [5_u32, 1, 3, 1000, 3] {
        reactor.set_timer(start + Duration::from_millis(u64::from(millis)), token(millis));
    }
    let mut fired = Vec::new();
    run(&world, &mut [&mut reactor], |reactor, _, completion| {
        let index = completion.token.index;
        assert_eq!(reactor.now() - start, Duration::from_millis(u64::from(index)));
        fired.push(index);
    });
    assert_eq!(fired, [1, 3, 3, 5, 1000]);
}

#[test]
fn a_timer_in_the_past_fires_with_the_next_turn_and_a_cancelled_one_never() {
    let world = World::new(2);
    let host = world.add_host("a");
    let mut reactor = Reactor::simulated(&world, host);
    reactor.set_timer(ringfab_reactor::Time::ZERO, token(1));
    let cancelled = reactor.set_timer(reactor.now() + Duration::from_secs(1), token(2));
    reactor.set_timer(reactor.now() + Duration::from_secs(1), token(3));
    reactor.turn(Wait::No).expect("a turn");
    assert_eq!(reactor.next_completion().expect("the past is due").token, token(1));
    assert!(world.advance(), "a second passes");
    reactor.cancel_timer(cancelled);
    let rest = collect(&world, &mut reactor);
    assert_eq!(rest.iter().map(|completion| completion.token).collect::<Vec<_>>(), [token(3)]);
    reactor.cancel_timer(cancelled);
    assert!(!world.advance());
}

#[test]
fn the_time_of_a_turn_stands_still_while_the_clock_goes_on() {
    let world = World::new(3);
    let host = world.add_host("a");
    let mut reactor = Reactor::simulated(&world, host);
    let (start, wall) = (reactor.now(), reactor.wall_clock());
    assert!(!world.advance_until(start + Duration::from_secs(5)));
    assert_eq!((reactor.now(), reactor.clock() - start), (start, Duration::from_secs(5)));
    assert_eq!(reactor.wall_clock() - wall, Duration::from_secs(5));
    reactor.turn(Wait::Event).expect("it never waits");
    assert_eq!(reactor.now(), reactor.clock());
}

#[test]
fn a_limit_on_advancing_stops_the_clock_before_the_next_event() {
    let world = World::new(4);
    let host = world.add_host("a");
    let mut reactor = Reactor::simulated(&world, host);
    let start = reactor.now();
    reactor.set_timer(start + Duration::from_secs(10), token(1));
    assert!(!world.advance_until(start + Duration::from_secs(9)));
    assert_eq!(world.now() - start, Duration::from_secs(9));
    assert!(world.advance_until(start + Duration::from_secs(20)));
    assert_eq!(world.now() - start, Duration::from_secs(10));
}

#[test]
fn a_message_makes_the_world_turn_its_receiver() {
    let world = World::new(5);
    let host = world.add_host("a");
    let mut reactor = Reactor::simulated(&world, host);
    let (sender, mut receiver) = mailbox::<u32>(reactor.waker());
    assert!(!world.has_ready());
    std::thread::spawn(move || sender.send(42)).join().expect("the thread").expect("a receiver");
    assert!(world.has_ready() && world.advance());
    reactor.turn(Wait::Event).expect("a turn");
    assert_eq!(receiver.try_receive(), Some(42));
    assert!(!world.has_ready() && !world.advance());
}
