//! A thread with one engine, and the hosts that use it.

use std::time::{Duration, Instant};

use ringfab_fabric::rdma::RnicConfig;
use ringfab_initiator::{Host, HostConfig};
use ringfab_memory::ClassLayout;
use ringfab_reactor::{Reactor, ReactorConfig, Wait};
use ringfab_tests::PATIENCE;
use ringfab_tests::world::content::Random;

use super::guest::Guest;
use super::{Addresses, GUESTS};

/// What a crew has done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Did {
    pub(crate) attached: u64,
    pub(crate) detached: u64,
    pub(crate) dropped: u64,
    /// Commands that were in flight when their hosts dropped the connection.
    pub(crate) cut_short: u64,
    pub(crate) written_bytes: u64,
    pub(crate) compared_bytes: u64,
    /// Commands on namespaces that come and go: done, and refused because it had gone.
    pub(crate) visits: u64,
    pub(crate) missed: u64,
}

/// Its hosts come and leave for so many seconds. Then each reads what it has written, and leaves in order.
pub(crate) fn work(addresses: Addresses, seed: u64, crew: u64, seconds: u64) -> Did {
    let (mut engine, mut did) = (engine(seed, crew), Did::default());
    let mut guests: Vec<Guest> =
        (0..GUESTS).map(|index| Guest::new(addresses, seed, crew * GUESTS + index)).collect();
    let end = Instant::now() + Duration::from_secs(seconds);
    while !guests.iter().all(Guest::is_gone) {
        let now = Instant::now();
        assert!(now < end + PATIENCE, "crew {crew} does not come to its end: {guests:?}");
        for guest in &mut guests {
            guest.act(&mut engine, now, now >= end, &mut did);
        }
        turn(&mut engine, &mut guests, &mut did);
    }
    let (usage, counters) = (engine.pool().usage(), engine.rnic_counters());
    assert_eq!((usage.taken, counters.queue_pairs, counters.regions), (0, 0, 0), "crew {crew}");
    did
}

fn turn(engine: &mut Host, guests: &mut [Guest], did: &mut Did) {
    engine.turn(Wait::No).expect("a turn");
    let mut quiet = true;
    while let Some(event) = engine.next_event() {
        quiet = false;
        let Some(controller) = event.controller() else { continue };
        let guest = guests.iter_mut().find(|guest| guest.has(controller));
        guest.unwrap_or_else(|| panic!("{event:?} is nobody's")).on_event(engine, event, did);
    }
    if quiet {
        // Nothing to do in this round of its loop.
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn engine(seed: u64, crew: u64) -> Host {
    let config = ReactorConfig { entries: 512, spin: Duration::ZERO, descriptors_max: 512 };
    let pool = vec![
        ClassLayout { buffer_bytes: 4096, count: 256 },
        ClassLayout { buffer_bytes: 64 << 10, count: 96 },
        ClassLayout { buffer_bytes: 256 << 10, count: 24 },
    ];
    let mut random = Random::new(seed, 1000 + crew);
    let mut key = [0; 32];
    key.fill_with(|| random.below(256) as u8);
    let rnic = RnicConfig::new(0, key);
    let reactor = Reactor::new(&config).expect("a ring");
    Host::new(reactor, HostConfig::new(pool, rnic, seed)).expect("an engine")
}
