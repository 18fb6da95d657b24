//! How much may be done in a second, kept by all cores together.
//!
//! A [`Rate`] is one limit of one namespace, host, or host on a namespace. It is a point in time: until then everything
//! has been given away. Whoever wants to do something moves it on by the time that this takes at that rate, and may
//! begin where it was before (the generic cell rate algorithm). So nothing is lost when somebody begins late, and those
//! who ask one after the other get what they asked for in that order, on whichever cores they are.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ringfab_reactor::Time;

use crate::config::{HostConfig, NamespaceLimits, RateLimits};
use crate::sync::{AtomicU64, Ordering};

const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// What is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Commands.
    Commands,
    /// Bytes of their data.
    Bytes,
}

/// Which commands are limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Those that read: Read, Compare and Verify.
    Read,
    /// Those that change blocks: Write, Write Zeroes, Dataset Management and Copy. A fused pair is one of them.
    Write,
}

/// One limit.
#[derive(Debug)]
pub struct Rate {
    unit: Unit,
    per_second: u64,
    burst: Duration,
    /// Until when everything has been given away, in nanoseconds of [`Time`].
    given_until: AtomicU64,
}

impl Rate {
    /// A limit of which nothing has been used. `per_second` is not zero.
    pub fn new(unit: Unit, per_second: u64, burst: Duration) -> Self {
        Self { unit, per_second, burst, given_until: AtomicU64::new(0) }
    }

    /// What it limits.
    pub fn unit(&self) -> Unit {
        self.unit
    }

    /// How much may be done in a second.
    pub fn per_second(&self) -> u64 {
        self.per_second
    }

    /// Gives so many units away, and says from when on they may be used. What was not asked for is kept for the time of
    /// a burst.
    pub fn reserve(&self, units: u64, now: Time) -> Time {
        let nanos = u128::from(units) * NANOS_PER_SECOND / u128::from(self.per_second);
        let nanos = u64::try_from(nanos).unwrap_or(u64::MAX);
        let burst = u64::try_from(self.burst.as_nanos()).unwrap_or(u64::MAX);
        let earliest = now.as_nanos().saturating_sub(burst);
        // Nothing else is published with it.
        let mut given = self.given_until.load(Ordering::Relaxed);
        loop {
            let from = given.max(earliest);
            let until = from.saturating_add(nanos);
            match self.given_until.compare_exchange_weak(given, until, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Time::from_nanos(from),
                Err(changed) => given = changed,
            }
        }
    }
}

/// The limits of a namespace, a host, or a host on a namespace.
#[derive(Debug)]
pub struct Limiter {
    read: Vec<Arc<Rate>>,
    write: Vec<Arc<Rate>>,
}

impl Limiter {
    /// Limits of which nothing has been used.
    pub fn new(limits: &RateLimits) -> Self {
        let rate = |unit, per_second: u64| Arc::new(Rate::new(unit, per_second, limits.burst));
        let rates = |iops: Option<u64>, bytes_per_s: Option<u64>| {
            let commands = iops.map(|iops| rate(Unit::Commands, iops));
            let bytes = bytes_per_s.map(|bytes_per_s| rate(Unit::Bytes, bytes_per_s));
            commands.into_iter().chain(bytes).collect()
        };
        Self {
            read: rates(limits.read_iops, limits.read_bytes_per_s),
            write: rates(limits.write_iops, limits.write_bytes_per_s),
        }
    }

    fn rates(&self, direction: Direction) -> impl Iterator<Item = &Arc<Rate>> {
        match direction {
            Direction::Read => self.read.iter(),
            Direction::Write => self.write.iter(),
        }
    }
}

/// A namespace's limits as they are served.
#[derive(Debug)]
pub struct LimitedNamespace {
    limits: NamespaceLimits,
    all: Limiter,
    hosts: BTreeMap<String, Limiter>,
}

impl LimitedNamespace {
    pub(super) fn new(limits: NamespaceLimits) -> Self {
        let hosts = limits.hosts.iter().map(|(nqn, limits)| (nqn.clone(), Limiter::new(limits)));
        Self { all: Limiter::new(&limits.all), hosts: hosts.collect(), limits }
    }

    /// What was configured.
    pub fn limits(&self) -> &NamespaceLimits {
        &self.limits
    }

    /// What limits a host on the namespace.
    pub(super) fn rates(&self, host_nqn: &str, direction: Direction) -> impl Iterator<Item = &Arc<Rate>> {
        let own = self.hosts.get(host_nqn).into_iter().flat_map(move |limiter| limiter.rates(direction));
        self.all.rates(direction).chain(own)
    }
}

/// A host's shares and limits as they are served.
#[derive(Debug)]
pub struct LimitedHost {
    config: HostConfig,
    limiter: Limiter,
}

impl LimitedHost {
    pub(super) fn new(config: HostConfig) -> Self {
        Self { limiter: Limiter::new(&config.limits), config }
    }

    /// What was configured.
    pub fn config(&self) -> &HostConfig {
        &self.config
    }

    /// What limits it on all namespaces together.
    pub(super) fn rates(&self, direction: Direction) -> impl Iterator<Item = &Arc<Rate>> {
        self.limiter.rates(direction)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(millis: u64) -> Time {
        Time::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn what_is_reserved_follows_each_other_at_the_rate() {
        let rate = Rate::new(Unit::Commands, 1000, Duration::from_millis(10));
        let from: Vec<u64> = (0..13).map(|_| rate.reserve(1, at(100)).as_nanos() / 1_000_000).collect();
        assert_eq!(
            from,
            [90, 91, 92, 93, 94, 95, 96, 97, 98, 99, 100, 101, 102],
            "a burst, and then one in 1 ms"
        );
        // Who comes late finds what has become free since, up to a burst.
        assert_eq!(rate.reserve(1, at(108)), at(103));
        assert_eq!(rate.reserve(1, at(500)), at(490));
    }

    #[test]
    fn numbers_without_measure_overflow_nothing() {
        let rate = Rate::new(Unit::Bytes, 1, Duration::MAX);
        assert_eq!(rate.reserve(u64::MAX, at(1)), Time::ZERO);
        assert_eq!(rate.reserve(u64::MAX, at(1)), Time::MAX);
    }

    proptest! {
        /// In no interval is more begun than the rate allows for it and a burst before.
        #[test]
        fn a_rate_is_kept_whoever_asks_and_when(
            asks in proptest::collection::vec((0_u64..50, 1_u64..100), 1..200),
            per_second in 1_000_u64..100_000,
            burst_ms in 1_u64..50,
        ) {
            let rate = Rate::new(Unit::Commands, per_second, Duration::from_millis(burst_ms));
            let mut now = 1_000;
            let mut begun = Vec::new();
            for (pause, units) in asks {
                now += pause;
                begun.push((rate.reserve(units, at(now)).max(at(now)), units));
            }
            let (first, last) = (begun[0].0, begun.iter().map(|(from, _)| *from).max().unwrap());
            let last_units = begun.iter().filter(|(from, _)| *from == last).map(|(_, units)| *units).max();
            let total: u64 = begun.iter().map(|(_, units)| units).sum();
            let time = (last - first).as_secs_f64() + Duration::from_millis(burst_ms).as_secs_f64();
            let most = time * per_second as f64 + last_units.unwrap() as f64 + 1.0 + begun.len() as f64 * 1e-4;
            prop_assert!(total as f64 <= most, "{} in {} s", total, time);
        }
    }
}
