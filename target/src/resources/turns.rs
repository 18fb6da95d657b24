//! Whose turn it is. A core that serves one host starts what comes as it comes. While it serves several, each host
//! has turns: a command waits, before it takes buffers, until its host may have as much done as it costs. So a host
//! with one command does not wait for all that another one has sent.
//!
//! The turns are those of deficit round robin. In each round, a host with commands that wait may have
//! [`QUANTUM_BYTES`] more done, or more if it has more shares, and what it does not use while it waits is kept. A host
//! without commands that wait keeps no more than one quantum, with which its next commands begin at once. In all, a
//! turn of the core's loop begins so much ([`LOOP_TURN_BYTES`]) and one command more, before it looks at its
//! connections again.

use std::collections::VecDeque;
use std::time::Duration;

use ringfab_reactor::Time;

use super::hosts::PoolKind;
use super::{HostId, RequestId};
use crate::config::DEFAULT_SHARES;

/// What a command costs beside its data, as bytes that move in the same time.
const COMMAND_BYTES: i64 = 8 << 10;

/// What a host with one share may have done in a round: a few dozen microseconds.
const QUANTUM_BYTES: i64 = 160 << 10;

/// What is begun in one turn of the core's loop, for all hosts that wait.
const LOOP_TURN_BYTES: i64 = QUANTUM_BYTES;

/// A host is alone again when no other has sent a command for so long.
const ALONE_AFTER: Duration = Duration::from_secs(1);

/// The turns of a core's hosts.
#[derive(Debug)]
pub(crate) struct Turns {
    /// The host whose commands need no turn. Nobody while several hosts are served.
    alone: HostId,
    /// The same, while nothing is limited: its commands begin as they come.
    free: HostId,
    /// Whether anything is limited.
    limited: bool,
    /// By [`HostId::index`].
    hosts: Vec<HostTurns>,
    /// Hosts with commands that wait, in the order of their turns.
    round: VecDeque<HostId>,
    /// What may still be begun in this turn of the loop.
    left: i64,
    /// Turns of the loop, as far as they are counted.
    loop_turn: u64,
    /// The host that sent the last command, and when another one had before.
    last: HostId,
    changed: Time,
    now: Time,
    /// Whether commands wait for no more than the next turn of the loop.
    ready: bool,
    /// Whether a command has begun at once in this turn of the loop.
    at_once: bool,
    /// How many have waited.
    waited: u64,
}

/// What a host may have done.
#[derive(Debug)]
struct HostTurns {
    /// By [`PoolKind`]. Those that have come with their data hold a buffer, and do not wait behind others that wait for
    /// one.
    lines: [VecDeque<Waiter>; PoolKind::ALL.len()],
    deficit: i64,
    /// What it may have more done in a round.
    quantum: i64,
    /// The turn of the loop in which the deficit was last brought up to date.
    loop_turn: u64,
    in_round: bool,
}

/// A command that waits, and what it costs.
#[derive(Clone, Copy, Debug)]
struct Waiter {
    request: RequestId,
    cost: i64,
    /// Which of all that have waited it is.
    number: u64,
}

impl Default for Turns {
    fn default() -> Self {
        Self {
            alone: HostId::NOBODY,
            free: HostId::NOBODY,
            limited: false,
            hosts: Vec::new(),
            round: VecDeque::new(),
            left: 0,
            loop_turn: 0,
            last: HostId::NOBODY,
            changed: Time::ZERO,
            now: Time::ZERO,
            ready: false,
            at_once: false,
            waited: 0,
        }
    }
}

impl Turns {
    /// Whether a host is the only one, and nothing is limited, so that its commands begin as they come.
    #[inline(always)]
    pub(crate) fn is_free(&self, host: HostId) -> bool {
        self.free == host
    }

    /// Whether a host is the only one, so that its commands need no turns.
    #[inline]
    pub(crate) fn is_alone(&self, host: HostId) -> bool {
        self.alone == host
    }

    /// Whether hosts have turns.
    #[inline]
    pub(crate) fn are_taken(&self) -> bool {
        self.alone == HostId::NOBODY
    }

    /// A turn of the core's loop begins.
    #[inline]
    pub(crate) fn begin_loop_turn(&mut self, now: Time) {
        self.now = now;
        if self.are_taken() {
            self.left = LOOP_TURN_BYTES;
            self.loop_turn += 1;
            (self.ready, self.at_once) = (false, false);
            if self.round.is_empty() && now >= self.changed + ALONE_AFTER {
                self.set_alone(self.last);
            }
        }
    }

    /// A command with so much data has come, which will take buffers of a pool. Returns whether it begins at once;
    /// otherwise it waits for its turn.
    #[inline(never)]
    pub(crate) fn admit(
        &mut self,
        host: HostId,
        kind: PoolKind,
        data_bytes: u32,
        request: RequestId,
    ) -> bool {
        self.note(host);
        let cost = COMMAND_BYTES + i64::from(data_bytes);
        let turns = &mut self.hosts[host.index()];
        if !turns.in_round {
            turns.catch_up(self.loop_turn);
            if turns.deficit > 0 {
                turns.deficit -= cost;
                self.at_once = true;
                return true;
            }
            turns.in_round = true;
            self.round.push_back(host);
        }
        turns.lines[kind as usize].push_back(Waiter { request, cost, number: self.waited });
        self.waited += 1;
        false
    }

    /// How much a host gets in relation to others.
    pub(crate) fn set_shares(&mut self, host: HostId, shares: u32) {
        self.make_room(host);
        // What is too little for any command is only more rounds.
        let quantum = QUANTUM_BYTES * i64::from(shares) / i64::from(DEFAULT_SHARES);
        self.hosts[host.index()].quantum = quantum.max(1);
    }

    /// Whether anything is limited: every command is looked at then.
    pub(crate) fn set_limited(&mut self, limited: bool) {
        self.limited = limited;
        self.set_alone(self.alone);
    }

    fn set_alone(&mut self, host: HostId) {
        self.alone = host;
        self.free = if self.limited { HostId::NOBODY } else { host };
    }

    fn make_room(&mut self, host: HostId) {
        if self.hosts.len() <= host.index() {
            self.hosts.resize_with(host.index() + 1, HostTurns::default);
            self.round.reserve(self.hosts.len());
        }
    }

    /// A command comes from this host.
    fn note(&mut self, host: HostId) {
        self.make_room(host);
        if self.last == host {
            return;
        }
        let first = self.last == HostId::NOBODY && self.round.is_empty();
        self.set_alone(if first { host } else { HostId::NOBODY });
        (self.last, self.changed) = (host, self.now);
    }

    /// The next command to begin in this turn of the loop. Those of a host that need buffers of a pool are passed over
    /// while they are `blocked`, because another of its commands waits for these.
    pub(crate) fn next(&mut self, blocked: impl Fn(HostId, PoolKind) -> bool) -> Option<RequestId> {
        let mut passed_over = 0;
        while let Some(host) = self.round.front().copied() {
            let turns = &mut self.hosts[host.index()];
            if turns.lines.iter().all(VecDeque::is_empty) {
                turns.in_round = false;
                turns.loop_turn = self.loop_turn;
                self.round.pop_front();
                continue;
            }
            let Some(kind) = turns.first(|kind| !blocked(host, kind)) else {
                passed_over += 1;
                if passed_over > self.round.len() {
                    return None;
                }
                self.round.rotate_left(1);
                continue;
            };
            if self.left <= 0 {
                self.ready = true;
                return None;
            }
            passed_over = 0;
            if turns.deficit <= 0 {
                turns.deficit += turns.quantum;
                self.round.rotate_left(1);
                continue;
            }
            let Waiter { request, cost, .. } = turns.lines[kind as usize].pop_front()?;
            turns.deficit -= cost;
            self.left -= cost;
            return Some(request);
        }
        None
    }

    /// Whether commands have begun at once while others wait: their answers should leave before those begin.
    pub(crate) fn take_at_once(&mut self) -> bool {
        std::mem::take(&mut self.at_once) && !self.round.is_empty()
    }

    /// Whether commands wait for no more than the next turn of the loop, which must not sleep then.
    #[inline]
    pub(crate) fn are_ready(&self) -> bool {
        self.ready
    }

    /// A host has left the core.
    pub(crate) fn leave(&mut self, host: HostId) {
        if let Some(turns) = self.hosts.get_mut(host.index()) {
            *turns = HostTurns::default();
            self.round.retain(|other| *other != host);
        }
        if self.last == host {
            self.last = HostId::NOBODY;
            self.set_alone(HostId::NOBODY);
        }
    }
}

impl Default for HostTurns {
    fn default() -> Self {
        Self {
            lines: std::array::from_fn(|_| VecDeque::new()),
            deficit: 0,
            quantum: QUANTUM_BYTES,
            loop_turn: 0,
            in_round: false,
        }
    }
}

impl HostTurns {
    /// In which line the command is that has waited longest, of those that are open.
    fn first(&self, is_open: impl Fn(PoolKind) -> bool) -> Option<PoolKind> {
        let first = |kind: &PoolKind| self.lines[*kind as usize].front().map(|waiter| waiter.number);
        let waits = PoolKind::ALL.into_iter().filter(|kind| first(kind).is_some() && is_open(*kind));
        waits.min_by_key(first)
    }

    /// What a host without commands that wait may have done since it was last looked at, but no more than a quantum.
    fn catch_up(&mut self, loop_turn: u64) {
        let turns = i64::try_from(loop_turn - self.loop_turn).unwrap_or(i64::MAX);
        self.deficit = turns.saturating_mul(self.quantum).saturating_add(self.deficit).min(self.quantum);
        self.loop_turn = loop_turn;
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use ringfab_memory::{ClassLayout, Pool};

    use super::super::hosts::{Hosts, SharedPool};
    use super::*;

    /// As many hosts as there are names.
    fn hosts<const N: usize>() -> [HostId; N] {
        let pool = Pool::new(&[ClassLayout { buffer_bytes: 64, count: 8 }]).expect("a small pool");
        let mut hosts = Hosts::new(std::array::from_fn(|_| SharedPool { pool: pool.clone(), least: 1 }));
        std::array::from_fn(|index| hosts.enter(IpAddr::from([10, 0, 0, index as u8])))
    }

    fn request(queue: u16, slot: u16) -> RequestId {
        RequestId { queue, slot, generation: 0 }
    }

    /// Begins a turn of the loop at so many milliseconds.
    fn begin(turns: &mut Turns, millis: u64) {
        turns.begin_loop_turn(Time::ZERO + Duration::from_millis(millis));
    }

    /// What begins in this turn of the loop, of all that waits.
    fn started(turns: &mut Turns) -> Vec<RequestId> {
        std::iter::from_fn(|| turns.next(|_, _| false)).collect()
    }

    const KIB: u32 = 1 << 10;

    #[test]
    fn busy_hosts_get_as_much_as_they_have_shares() {
        let [one, two] = hosts();
        let mut turns = Turns::default();
        turns.set_shares(two, 3 * DEFAULT_SHARES);
        begin(&mut turns, 0);
        for slot in 0..1000 {
            let _at_once = turns.admit(one, PoolKind::Io, 16 * KIB, request(1, slot));
            let _at_once = turns.admit(two, PoolKind::Io, 16 * KIB, request(2, slot));
        }
        let mut begun = [0_u32; 2];
        for turn in 0..100 {
            begin(&mut turns, turn);
            started(&mut turns).iter().for_each(|request| begun[usize::from(request.queue) - 1] += 1);
        }
        let [of_one, of_two] = begun;
        assert!((28 * of_one..=32 * of_one).contains(&(10 * of_two)), "{of_one} and {of_two}");
    }

    #[test]
    fn while_something_is_limited_nobody_is_free_and_who_is_alone_needs_no_turns_still() {
        let [one, _] = hosts();
        let mut turns = Turns::default();
        turns.set_limited(true);
        begin(&mut turns, 0);
        assert!(turns.admit(one, PoolKind::Io, 4 * KIB, request(1, 0)));
        assert!(turns.is_alone(one) && !turns.is_free(one));
        turns.set_limited(false);
        assert!(turns.is_free(one));
    }

    #[test]
    fn a_host_that_is_alone_needs_no_turns_and_one_among_others_does_until_they_have_been_silent() {
        let [one, two] = hosts();
        let mut turns = Turns::default();
        begin(&mut turns, 0);
        assert!(turns.admit(one, PoolKind::Io, 4 * KIB, request(1, 0)));
        assert!(turns.is_alone(one) && !turns.is_alone(two));
        assert!(turns.admit(two, PoolKind::Io, 4 * KIB, request(2, 0)));
        assert!(turns.are_taken() && !turns.is_alone(one));
        for millis in [1, 999] {
            begin(&mut turns, millis);
            assert!(turns.are_taken());
        }
        begin(&mut turns, 1000);
        assert!(turns.is_alone(two), "the one that came last");
        assert!(turns.admit(one, PoolKind::Io, 4 * KIB, request(1, 0)));
        assert!(turns.are_taken());
        turns.leave(one);
        assert!(turns.admit(two, PoolKind::Io, 4 * KIB, request(2, 0)) && turns.is_alone(two));
    }

    #[test]
    fn a_command_of_a_quiet_host_begins_at_once_however_much_of_a_busy_one_waits() {
        let [busy, quiet] = hosts();
        let mut turns = Turns::default();
        begin(&mut turns, 0);
        assert!(turns.admit(quiet, PoolKind::Io, 4 * KIB, request(2, 0)));
        for slot in 0..128 {
            let _at_once = turns.admit(busy, PoolKind::Io, 128 * KIB, request(1, slot));
        }
        for millis in 0..50 {
            begin(&mut turns, millis);
            assert!(!turns.take_at_once());
            assert!(turns.admit(quiet, PoolKind::Io, 4 * KIB, request(2, 0)), "in each turn of the loop");
            assert!(turns.take_at_once() && !turns.take_at_once());
            let begun = started(&mut turns).len();
            assert!((1..=2).contains(&begun), "{begun} commands of 128 KiB begin in a turn of the loop");
            assert!(turns.are_ready());
        }
    }

    #[test]
    fn busy_hosts_share_by_what_their_commands_cost_and_each_has_its_own_in_order() {
        let [large, small] = hosts();
        let mut turns = Turns::default();
        begin(&mut turns, 0);
        for slot in 0..1000 {
            let _at_once = turns.admit(large, PoolKind::Io, 120 * KIB, request(1, slot));
            let _at_once = turns.admit(small, PoolKind::Io, 8 * KIB, request(2, slot));
        }
        let mut begun: [Vec<u16>; 2] = [Vec::new(), Vec::new()];
        for turn in 0..100 {
            begin(&mut turns, turn);
            for RequestId { queue, slot, .. } in started(&mut turns) {
                begun[usize::from(queue) - 1].push(slot);
            }
        }
        assert!(begun.iter().all(|slots| slots.is_sorted()));
        let [of_large, of_small] = begun.map(|slots| slots.len());
        // 128 KiB and 16 KiB with the cost of a command.
        assert!((7 * of_large..=9 * of_large).contains(&of_small), "{of_large} large and {of_small} small");
    }

    #[test]
    fn commands_that_hold_a_buffer_go_on_while_others_of_their_host_wait_for_one() {
        let [host, other] = hosts();
        let mut turns = Turns::default();
        begin(&mut turns, 0);
        assert!(turns.admit(other, PoolKind::Io, 4 * KIB, request(2, 0)));
        assert!(turns.admit(host, PoolKind::Io, 1024 * KIB, request(1, 0)));
        assert!(!turns.admit(host, PoolKind::Io, 4 * KIB, request(1, 1)));
        assert!(!turns.admit(host, PoolKind::Compare, 4 * KIB, request(1, 2)));
        begin(&mut turns, 1);
        let next = |turns: &mut Turns, waits| turns.next(|_, kind| waits && kind == PoolKind::Io);
        assert_eq!([next(&mut turns, true), next(&mut turns, true)], [Some(request(1, 2)), None]);
        assert_eq!(next(&mut turns, false), Some(request(1, 1)));
    }

    #[test]
    fn who_waits_for_buffers_is_passed_over_and_does_not_keep_the_loop_awake() {
        let [blocked, other] = hosts();
        let mut turns = Turns::default();
        begin(&mut turns, 0);
        for slot in 0..64 {
            let _at_once = turns.admit(blocked, PoolKind::Io, 128 * KIB, request(1, slot));
            let _at_once = turns.admit(other, PoolKind::Io, 128 * KIB, request(2, slot));
        }
        for millis in 1..100 {
            begin(&mut turns, millis);
            while let Some(RequestId { queue, .. }) = turns.next(|host, _| host == blocked) {
                assert_eq!(queue, 2);
            }
        }
        assert!(!turns.are_ready());
        assert!(!started(&mut turns).is_empty(), "it goes on when it has its buffers");
        turns.leave(blocked);
        assert_eq!(started(&mut turns), []);
    }
}
