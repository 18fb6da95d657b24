//! Which connections give way when a core is full.
//!
//! | what is bounded | the most | who gives way when there is no more |
//! | --- | --- | --- |
//! | connections in handshake, for each listener | 512, and as many again twice that wait | `common/fabric/src/stream/listener.rs` |
//! | queues without a Connect, on each core | [`OPENING_MANY`], or what comes at once | the oldest of the address that has most |
//! | those for more than [`ROUNDS_MAX`] | [`OPENING_FEW`] | the oldest |
//! | queues, on each core | what its descriptors allow | of the address that has most: those without a Connect, discovery controllers, the controller that came last |
//! | controllers, those of discovery apart | `target/src/target/pools.rs` | of the address that has most |

use std::collections::BTreeMap;
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ringfab_memory::has_headroom;
use ringfab_reactor::Time;

use super::queues::Queues;
use super::timer::CoreTimer;
use crate::resources::{Resources, owner};

/// The most queues without a Connect on a core before some give way, and at all: many may come in one turn, each with
/// its Connect right behind.
const OPENING_MANY: usize = 512;
const OPENING_MAX: usize = 2048;

/// Queues that may be ending while newcomers have their places.
const ENDING_MAX: usize = 64;

/// How long a queue may be without a Connect before it gives way to another one of the same address.
const GRACE: Duration = Duration::from_millis(100);

/// How many queues may be without a Connect for so many looks, whoever has them, and how long after one look the next
/// comes while there are more. Half a Connect may hold a buffer that others wait for, of which there are not many.
/// Looks are counted and not time, since a core that is behind acts on the Connects that have come between one look and
/// the next.
const OPENING_FEW: usize = 16;
const ROUNDS_MAX: u8 = 100;
const EVICTION_INTERVAL: Duration = Duration::from_millis(3);

/// How many end at one look. Each takes some tens of microseconds, in which nobody is served.
const EVICTED_AT_ONCE: usize = 8;

/// What a connection and everything that is not asked for fallibly may take until the next one is looked at, with much
/// to spare: a queue of 1,024 entries has tables of less than a megabyte.
const ROOM_BYTES: usize = 32 << 20;

/// What each connection that is there may yet take without being asked: a send of its own in flight.
const SEND_BYTES: usize = 80 << 10;

/// The most queues of a core with so many descriptors. Disks have some of them, and what is in handshake or ending has
/// others, but never more than half: a process that may open few files serves few hosts, and not none.
fn queues_max(descriptors: usize, half_open: usize, disks: usize) -> usize {
    let passing = (3 * half_open + 2 * ENDING_MAX).min(descriptors / 2);
    descriptors.saturating_sub(passing + disks).max(1)
}

/// What decides on a core who gets in, and who gives way.
#[derive(Debug)]
pub(super) struct Admission {
    /// Descriptors that the core may have.
    descriptors: usize,
    /// Runs while there are many queues without a Connect.
    timer: CoreTimer,
    rounds: Rounds,
}

impl Admission {
    /// Of a core that may have so many descriptors.
    pub(super) fn new(descriptors: usize) -> Self {
        Self { descriptors, timer: CoreTimer::new(owner::timer::EVICTION), rounds: Rounds::default() }
    }

    /// Makes room for the queue of a newcomer, if that takes any. Says why there is none.
    pub(super) fn make_room(
        &self,
        queues: &mut Queues,
        resources: &mut Resources,
        half_open: usize,
        newcomer: SocketAddr,
    ) -> Result<(), &'static str> {
        if !has_headroom(ROOM_BYTES + resources.hosts.queues() * SEND_BYTES) {
            return Err("the process may have no more memory");
        }
        if resources.hosts.opening() >= OPENING_MANY {
            end_an_opening(queues, resources, newcomer.ip())?;
        }
        let most = queues_max(self.descriptors, half_open, resources.disks.iter().count());
        if resources.hosts.queues() < most {
            return Ok(());
        }
        if resources.hosts.queues() >= most + ENDING_MAX {
            return Err("others that have to make room are still ending");
        }
        end_a_queue(queues, resources, newcomer.ip())
    }

    /// Looks after queues without a Connect while there are many.
    pub(super) fn arm_timer(&mut self, resources: &mut Resources) {
        if resources.hosts.opening() > OPENING_FEW {
            self.timer.arm(&mut resources.reactor, EVICTION_INTERVAL);
        }
    }

    /// Ends queues that take their time for the Connect, the oldest first, until there are few.
    pub(super) fn timer_fired(&mut self, queues: &mut Queues, resources: &mut Resources) {
        self.timer.fired();
        for number in self.rounds.next(queues.asked()) {
            let opening = queues.get_mut(number).and_then(|queue| queue.opening());
            let reason = if opening.is_some_and(|opening| opening.is_connected) {
                "its host has not gone on to authenticate for a while, and there are many of those"
            } else {
                "it has not sent its Connect command for a while, and there are many of those"
            };
            queues.evict(resources, number, reason);
        }
        self.arm_timer(resources);
    }
}

/// How often queues without a Connect were looked at, by when they came and by number.
#[derive(Debug, Default)]
struct Rounds(BTreeMap<(Time, u16), u8>);

impl Rounds {
    /// One more look at those that are without a Connect now. Returns which are to end.
    fn next(&mut self, opening: impl Iterator<Item = (Time, u16)>) -> Vec<u16> {
        let before = mem::take(&mut self.0);
        for queue in opening {
            let rounds = before.get(&queue).map_or(1, |rounds| rounds.saturating_add(1));
            self.0.insert(queue, rounds);
        }
        let many = self.0.len().saturating_sub(OPENING_FEW).min(EVICTED_AT_ONCE);
        let overdue = self.0.iter().filter(|(_, rounds)| **rounds > ROUNDS_MAX);
        overdue.map(|((_, number), _)| *number).take(many).collect()
    }
}

/// Ends a queue that has no Connect in favour of a newcomer.
fn end_an_opening(
    queues: &mut Queues,
    resources: &mut Resources,
    newcomer: IpAddr,
) -> Result<(), &'static str> {
    let (hosts, now) = (&resources.hosts, resources.reactor.now());
    let oldest = match hosts.eviction_candidate(newcomer, |host| host.opening) {
        Some(host) => queues.oldest_opening(Some(host)),
        None => queues.oldest_opening(None).filter(|(_, since)| now >= *since + GRACE),
    };
    let Some((number, _)) = oldest else {
        let few = hosts.opening() < OPENING_MAX;
        return few.then_some(()).ok_or("too many connections have not sent their Connect command");
    };
    let reason = "it has not sent its Connect command, and its address has most of those";
    queues.evict(resources, number, reason);
    Ok(())
}

/// Ends one queue, or all of a controller, in favour of a newcomer.
fn end_a_queue(queues: &mut Queues, resources: &mut Resources, newcomer: IpAddr) -> Result<(), &'static str> {
    const FULL: &str = "there is no room for another connection, and no address has more than this one";
    const REASON: &str = "its address has most connections, and there is no room for another one";
    let now = resources.reactor.now();
    let Some(host) = resources.hosts.eviction_candidate(newcomer, |host| host.queues) else {
        let (number, _) =
            queues.oldest_opening(None).filter(|(_, since)| now >= *since + GRACE).ok_or(FULL)?;
        let reason = "it has not sent its Connect command, and there is no room for another one";
        queues.evict(resources, number, reason);
        return Ok(());
    };
    let opening = queues.oldest_opening(Some(host)).map(|(number, _)| number);
    // One that has yet to authenticate must not bring down the controller that it has named.
    if let Some(number) = opening.or_else(|| queues.a_candidate(host)) {
        queues.evict(resources, number, REASON);
        return Ok(());
    }
    let controller = queues.least_missed(host).ok_or(FULL)?;
    resources.evict(&controller, REASON);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::ZERO + Duration::from_millis(ms)
    }

    /// So many queues; the last came first.
    fn opening(count: usize) -> impl Iterator<Item = (Time, u16)> {
        (0..count as u16).map(move |number| (at(1000 - u64::from(number)), number))
    }

    #[test]
    fn disks_and_what_is_in_passing_have_some_of_the_descriptors_and_never_all() {
        assert_eq!(queues_max(8192, 512, 10), 8192 - (3 * 512 + 2 * ENDING_MAX) - 10);
        assert_eq!(queues_max(64, 512, 10), 22, "half of few are for what is in passing");
        assert_eq!(queues_max(64, 512, 100), 1);
    }

    #[test]
    fn the_oldest_of_many_end_after_so_many_looks() {
        let mut rounds = Rounds::default();
        let count = OPENING_FEW + 3;
        for _ in 0..ROUNDS_MAX {
            assert_eq!(rounds.next(opening(count)), Vec::<u16>::new());
        }
        let oldest: Vec<u16> = (0..3).map(|more| (count - 1 - more) as u16).collect();
        assert_eq!(rounds.next(opening(count)), oldest);
        assert_eq!(rounds.next(opening(OPENING_FEW)), Vec::<u16>::new(), "few may stay");
    }

    #[test]
    fn not_all_end_at_one_look() {
        let mut rounds = Rounds::default();
        let ended = (0..=ROUNDS_MAX).map(|_| rounds.next(opening(500)).len());
        assert_eq!(ended.last(), Some(EVICTED_AT_ONCE));
    }

    #[test]
    fn a_queue_that_was_asked_again_is_counted_anew() {
        let mut rounds = Rounds::default();
        let queues = |since| (0..=OPENING_FEW as u16).map(move |number| (since, number));
        for _ in 0..ROUNDS_MAX {
            rounds.next(queues(at(1)));
        }
        assert_eq!(rounds.next(queues(at(2))), Vec::<u16>::new());
    }
}
