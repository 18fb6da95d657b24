//! Which connections give way when a core is full.
//!
//! | what is bounded | the most | who gives way when there is no more |
//! | --- | --- | --- |
//! | connections in handshake, for each listener | 512, and as many again twice that wait | `common/fabric/src/stream/listener.rs` |
//! | queues without a Connect, on each core | [`OPENING_MANY`], or what comes at once | the oldest of the address that has most |
//! | those for more than [`ROUNDS_MAX`] | [`OPENING_FEW`] | the oldest |
//! | queues, on each core | what its descriptors allow | of the address that has most: those without a Connect, discovery controllers, the controller that came last |
//! | controllers, those of discovery apart | `target/src/target/pools.rs` | of the address that has most |

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ringfab_memory::has_headroom;
use ringfab_reactor::{Time, Token};

use super::{Core, EVICTION_KIND, owner};
use crate::controller::Controller;
use crate::queue::Queue;
use crate::resources::HostId;

/// The most queues without a Connect on a core before some give way, and at all: many may come in one turn, each with
/// its Connect right behind.
const OPENING_MANY: usize = 512;
const OPENING_MAX: usize = 2048;

/// Queues that may be ending while newcomers have their places.
pub(super) const ENDING_MAX: usize = 64;

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
pub(super) fn queues_max(descriptors: usize, half_open: usize, disks: usize) -> usize {
    let passing = (3 * half_open + 2 * ENDING_MAX).min(descriptors / 2);
    descriptors.saturating_sub(passing + disks).max(1)
}

impl Core {
    /// Makes room for the queue of a newcomer, if that takes any. Says why there is none.
    pub(super) fn make_room(&mut self, newcomer: SocketAddr) -> Result<(), &'static str> {
        if !has_headroom(ROOM_BYTES + self.resources.hosts.queues() * SEND_BYTES) {
            return Err("the process may have no more memory");
        }
        let now = self.resources.reactor.now();
        if self.resources.hosts.opening() >= OPENING_MANY {
            self.end_an_opening(newcomer.ip(), now)?;
        }
        let disks = self.resources.disks.iter().flatten().count();
        let most = queues_max(self.descriptors, self.listeners.half_open(), disks);
        if self.resources.hosts.queues() < most {
            return Ok(());
        }
        if self.resources.hosts.queues() >= most + ENDING_MAX {
            return Err("others that have to make room are still ending");
        }
        self.end_a_queue(newcomer.ip(), now)
    }

    /// Ends a queue that has no Connect in favour of a newcomer.
    fn end_an_opening(&mut self, newcomer: IpAddr, now: Time) -> Result<(), &'static str> {
        let hosts = &self.resources.hosts;
        let eviction_candidate = hosts.eviction_candidate(newcomer, |host| host.opening);
        let oldest = match eviction_candidate {
            Some(host) => self.oldest_opening(Some(host)),
            None => self.oldest_opening(None).filter(|(_, since)| now >= *since + GRACE),
        };
        let Some((number, _)) = oldest else {
            let few = hosts.opening() < OPENING_MAX;
            return few.then_some(()).ok_or("too many connections have not sent their Connect command");
        };
        self.evict(number, "it has not sent its Connect command, and its address has most of those");
        Ok(())
    }

    /// Looks after queues without a Connect while there are many.
    pub(super) fn arm_eviction(&mut self) {
        if self.resources.hosts.opening() > OPENING_FEW && !self.eviction_armed {
            self.eviction_armed = true;
            let at = self.resources.reactor.now() + EVICTION_INTERVAL;
            self.resources.reactor.set_timer(at, Token::new(owner::CORE, EVICTION_KIND, 0, 0));
        }
    }

    /// Ends queues that take their time for the Connect, the oldest first, until there are few.
    pub(super) fn evict_overdue(&mut self) {
        self.eviction_armed = false;
        let before = std::mem::take(&mut self.rounds_without_connect);
        for (number, queue) in self.queues.iter().enumerate() {
            if let Some(since) = queue.as_ref().and_then(|queue| queue.opening()?.asked) {
                let rounds = before.get(&(since, number)).map_or(1, |rounds| rounds.saturating_add(1));
                self.rounds_without_connect.insert((since, number), rounds);
            }
        }
        let many = self.rounds_without_connect.len().saturating_sub(OPENING_FEW).min(EVICTED_AT_ONCE);
        let overdue =
            self.rounds_without_connect.iter().filter(|(_, rounds)| **rounds > ROUNDS_MAX).take(many);
        for number in overdue.map(|((_, number), _)| *number).collect::<Vec<usize>>() {
            let opening = self.queues[number].as_ref().and_then(|queue| queue.opening());
            self.evict(
                number,
                if opening.is_some_and(|opening| opening.is_connected) {
                    "its host has not gone on to authenticate for a while, and there are many of those"
                } else {
                    "it has not sent its Connect command for a while, and there are many of those"
                },
            );
        }
        self.arm_eviction();
    }

    /// Ends one queue, or all of a controller, in favour of a newcomer.
    fn end_a_queue(&mut self, newcomer: IpAddr, now: Time) -> Result<(), &'static str> {
        const FULL: &str = "there is no room for another connection, and no address has more than this one";
        let Some(host) = self.resources.hosts.eviction_candidate(newcomer, |host| host.queues) else {
            let (number, _) =
                self.oldest_opening(None).filter(|(_, since)| now >= *since + GRACE).ok_or(FULL)?;
            self.evict(number, "it has not sent its Connect command, and there is no room for another one");
            return Ok(());
        };
        if let Some((number, _)) = self.oldest_opening(Some(host)) {
            self.evict(number, "its address has most connections, and there is no room for another one");
            return Ok(());
        }
        // One that has yet to authenticate must not bring down the controller that it has named.
        if let Some(number) = a_candidate(&self.queues, host) {
            self.evict(number, "its address has most connections, and there is no room for another one");
            return Ok(());
        }
        let controller = self.least_missed(host).ok_or(FULL)?;
        self.resources
            .evict(&controller, "its address has most connections, and there is no room for another one");
        Ok(())
    }

    /// The queue that has been without a Connect longest, of a host or of all, and since when it is there.
    fn oldest_opening(&self, host: Option<HostId>) -> Option<(usize, Time)> {
        let queues = self.queues.iter().enumerate();
        let queues = queues.filter_map(|(number, queue)| Some((number, queue.as_ref()?)));
        let queues = queues.filter(|(_, queue)| host.is_none_or(|host| queue.owner().address == host));
        let waiting = queues.filter_map(|(number, queue)| Some((number, queue.opening()?.since)));
        waiting.min_by_key(|(_, since)| *since)
    }

    /// Of a host's controllers with a queue here, one of discovery, or the one that came last.
    fn least_missed(&self, host: HostId) -> Option<Arc<Controller>> {
        let queues =
            self.queues.iter().flatten().filter(|queue| queue.owner().address == host && queue.is_open());
        let controllers = queues.filter_map(|queue| queue.controller());
        controllers.max_by_key(|one| (one.is_discovery(), one.created())).cloned()
    }

    /// Ends a queue at once.
    fn evict(&mut self, number: usize, reason: &str) {
        if let Some(queue) = &mut self.queues[number] {
            queue.evict(&mut self.resources, reason);
        }
    }

    /// Ends the queues of a controller on this core at once.
    pub(super) fn evict_queues(&mut self, controller: &Arc<Controller>) {
        for queue in self.queues.iter_mut().flatten().filter(|queue| queue.belongs_to(controller)) {
            queue.evict(&mut self.resources, "its controller gives way to another one");
        }
    }
}

/// A queue from an address whose host has yet to be let in.
fn a_candidate(queues: &[Option<Box<Queue>>], address: HostId) -> Option<usize> {
    let is_one = |queue: &Queue| {
        let owner = queue.owner();
        owner.address == address && owner.host == address && queue.is_open()
    };
    queues.iter().position(|queue| queue.as_deref().is_some_and(is_one))
}
