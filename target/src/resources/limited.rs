//! Commands that wait because a limit has been reached: of their namespace, of their host, or of their host on their
//! namespace.
//!
//! What a host sends to a namespace in one direction is a flow, if any limit concerns it. Its commands begin in order.
//! The first one begins when each of the limits has given it what it costs. A flow asks a limit for little at a time,
//! and for no more before it has that (see `model/rate.rs`). So several flows that share a limit, on whichever cores,
//! get from it in turns, and each gets as much as it has shares.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use ringfab_reactor::{Reactor, Time, TimerId, Token};

use super::{HostId, RequestId, owner};
use crate::config::DEFAULT_SHARES;
use crate::model::{Direction, Rate, Unit};

/// A limit is asked for what it gives in a second, divided by this, at a time.
const QUANTA_PER_SECOND: u64 = 1000;

/// A low limit of bytes is asked less often, for no more than [`QUANTUM_BYTES`].
const QUANTA_PER_SECOND_MIN: u64 = 100;

/// What a low limit of bytes is asked for.
const QUANTUM_BYTES: u64 = 16 << 10;

/// What is limited together: a host's commands to a namespace, by its index, in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FlowKey {
    pub(crate) host: HostId,
    pub(crate) namespace: usize,
    pub(crate) direction: Direction,
}

/// What limits a flow, and how much its host gets in relation to others.
#[derive(Debug, Default)]
pub(crate) struct FlowLimits {
    pub(crate) rates: Vec<Arc<Rate>>,
    pub(crate) shares: u32,
}

/// The commands of a core that a limit concerns.
#[derive(Debug, Default)]
pub(crate) struct LimitedCommands {
    /// Whether there is any limit.
    active: bool,
    /// Of each flow that has been seen: its place, if anything limits it.
    places: HashMap<FlowKey, Option<usize>>,
    flows: Vec<Option<Flow>>,
    /// When flows with commands that wait go on, by place.
    due: BTreeSet<(Time, usize)>,
    /// The timer that is set, and for when.
    timer: Option<(Time, TimerId)>,
}

/// A flow that is limited.
#[derive(Debug)]
struct Flow {
    key: FlowKey,
    meters: Vec<Meter>,
    /// Commands that wait, in order, and how many bytes each is about.
    line: VecDeque<(RequestId, u64)>,
    /// When it goes on, if commands wait.
    due: Option<Time>,
}

/// What a limit has given to a flow.
#[derive(Debug)]
struct Meter {
    rate: Arc<Rate>,
    /// How much it is asked for at a time.
    quantum: u64,
    /// What was given and is not used. Less than nothing when more was used than there was.
    credit: i64,
    /// From when on a quantum that was asked for may be used.
    reserved: Option<Time>,
}

impl LimitedCommands {
    /// Whether there is any limit.
    #[inline]
    pub(crate) fn are_possible(&self) -> bool {
        self.active
    }

    /// Whether commands may wait.
    #[inline]
    pub(crate) fn any_wait(&self) -> bool {
        !self.due.is_empty()
    }

    /// A command about so many bytes has come. Returns whether it begins at once; otherwise it waits. `limits` says
    /// what limits the flow, when that is not known yet.
    pub(crate) fn admit(
        &mut self,
        key: FlowKey,
        request: RequestId,
        bytes: u64,
        now: Time,
        limits: impl FnOnce() -> FlowLimits,
    ) -> bool {
        let Some(place) = self.place(key, limits) else { return true };
        let Some(flow) = &mut self.flows[place] else { return true };
        if flow.line.is_empty() && flow.begin(bytes, now).is_ok() {
            return true;
        }
        flow.line.push_back((request, bytes));
        self.schedule(place, now);
        false
    }

    /// A command that has begun has cost so many bytes more than it was known to: later ones wait for these.
    pub(crate) fn charge(&mut self, key: FlowKey, bytes: u64, limits: impl FnOnce() -> FlowLimits) {
        let Some(place) = self.place(key, limits) else { return };
        let Some(flow) = &mut self.flows[place] else { return };
        flow.meters.iter_mut().for_each(|meter| meter.take(0, bytes));
    }

    /// The next command that may begin now.
    pub(crate) fn next(&mut self, now: Time) -> Option<RequestId> {
        while let Some((at, place)) = self.due.first().copied().filter(|(at, _)| *at <= now) {
            self.due.remove(&(at, place));
            let Some(flow) = &mut self.flows[place] else { continue };
            flow.due = None;
            let Some((request, bytes)) = flow.line.front().copied() else { continue };
            let begins = flow.begin(bytes, now).is_ok();
            if begins {
                flow.line.pop_front();
            }
            self.schedule(place, now);
            if begins {
                return Some(request);
            }
        }
        None
    }

    /// Notes when the first command of a flow can begin, if one waits.
    fn schedule(&mut self, place: usize, now: Time) {
        let Some(flow) = &mut self.flows[place] else { return };
        let Some((_, bytes)) = flow.line.front().copied() else { return };
        if flow.due.is_none() {
            let at = flow.ready_at(bytes, now);
            flow.due = Some(at);
            self.due.insert((at, place));
        }
    }

    /// Has the core look again when the first of those that wait can begin.
    pub(crate) fn arm_timer(&mut self, reactor: &mut Reactor) {
        let Some(at) = self.timer_needed() else { return };
        if let Some((_, timer)) = self.timer {
            reactor.cancel_timer(timer);
        }
        let timer = reactor.set_timer(at, Token::new(owner::CORE, owner::timer::LIMIT, 0, 0));
        self.timer = Some((at, timer));
    }

    /// When to look again, if there is no timer for that.
    fn timer_needed(&self) -> Option<Time> {
        let (at, _) = *self.due.first()?;
        self.timer.is_none_or(|(set, _)| set > at).then_some(at)
    }

    /// The timer has fired.
    pub(crate) fn timer_fired(&mut self) {
        self.timer = None;
    }

    /// Other limits are served. Commands that wait go on waiting, for these; those that nothing limits any more begin.
    pub(crate) fn refresh(&mut self, active: bool, now: Time, limits: impl Fn(&FlowKey) -> FlowLimits) {
        self.active = active;
        self.due.clear();
        self.places.clear();
        for place in 0..self.flows.len() {
            let Some(mut flow) = self.flows[place].take() else { continue };
            if flow.line.is_empty() {
                continue;
            }
            flow.meters = limits(&flow.key).into_meters();
            flow.due = Some(now);
            self.places.insert(flow.key, Some(place));
            self.due.insert((now, place));
            self.flows[place] = Some(flow);
        }
    }

    /// A host has left the core, with all its commands.
    pub(crate) fn leave(&mut self, host: HostId) {
        self.places.retain(|key, _| key.host != host);
        for (place, entry) in self.flows.iter_mut().enumerate() {
            if let Some(flow) = entry.take_if(|flow| flow.key.host == host) {
                flow.due.map(|at| self.due.remove(&(at, place)));
            }
        }
    }

    fn place(&mut self, key: FlowKey, limits: impl FnOnce() -> FlowLimits) -> Option<usize> {
        if let Some(known) = self.places.get(&key) {
            return *known;
        }
        let meters = limits().into_meters();
        let place = (!meters.is_empty()).then(|| {
            let free = self.flows.iter().position(Option::is_none);
            let place = free.unwrap_or_else(|| {
                self.flows.push(None);
                self.flows.len() - 1
            });
            self.flows[place] = Some(Flow { key, meters, line: VecDeque::new(), due: None });
            place
        });
        self.places.insert(key, place);
        place
    }
}

impl FlowLimits {
    fn into_meters(self) -> Vec<Meter> {
        let shares = u64::from(self.shares);
        let quantum = |rate: &Rate| {
            let least = match rate.unit() {
                Unit::Bytes => (rate.per_second() / QUANTA_PER_SECOND_MIN).min(QUANTUM_BYTES),
                Unit::Commands => 1,
            };
            let at_a_time = (rate.per_second() / QUANTA_PER_SECOND).max(least).max(1);
            // Rounded up: a host with few shares gets something each time.
            (at_a_time * shares).div_ceil(u64::from(DEFAULT_SHARES))
        };
        let meter = |rate: Arc<Rate>| Meter { quantum: quantum(&rate), rate, credit: 0, reserved: None };
        self.rates.into_iter().map(meter).collect()
    }
}

impl Flow {
    /// Begins a command if all limits have given what it costs; otherwise it is to wait.
    fn begin(&mut self, bytes: u64, now: Time) -> Result<(), Time> {
        let at = self.ready_at(bytes, now);
        if at > now {
            return Err(at);
        }
        self.meters.iter_mut().for_each(|meter| meter.take(1, bytes));
        Ok(())
    }

    /// When all limits will have given what a command costs, as far as that is known.
    fn ready_at(&mut self, bytes: u64, now: Time) -> Time {
        self.meters.iter_mut().map(|meter| meter.ready_at(bytes, now)).max().unwrap_or(now)
    }
}

impl Meter {
    fn cost(&self, commands: u64, bytes: u64) -> i64 {
        let cost = if self.rate.unit() == Unit::Commands { commands } else { bytes };
        i64::try_from(cost).unwrap_or(i64::MAX)
    }

    /// Uses what was given.
    fn take(&mut self, commands: u64, bytes: u64) {
        self.credit = self.credit.saturating_sub(self.cost(commands, bytes));
    }

    /// When there will be enough for a command, or when to ask for more.
    fn ready_at(&mut self, bytes: u64, now: Time) -> Time {
        let cost = self.cost(1, bytes);
        while self.credit < cost {
            let at = *self.reserved.get_or_insert_with(|| self.rate.reserve(self.quantum, now));
            if at > now {
                return at;
            }
            self.reserved = None;
            self.credit = self.credit.saturating_add(i64::try_from(self.quantum).unwrap_or(i64::MAX));
        }
        now
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const BURST: Duration = Duration::from_millis(5);

    fn key(host: usize) -> FlowKey {
        FlowKey { host: HostId::at(host), namespace: 0, direction: Direction::Read }
    }

    fn request(number: usize) -> RequestId {
        RequestId { queue: 0, slot: number as u16, generation: 0 }
    }

    fn at(micros: u64) -> Time {
        Time::from_nanos(1_000_000_000 + micros * 1000)
    }

    /// A core for which this limits all hosts. Host `n` has `shares[n]`.
    struct World {
        cores: Vec<LimitedCommands>,
        rates: Vec<Arc<Rate>>,
        shares: Vec<u32>,
        /// Commands that each host has had begun.
        begun: Vec<u64>,
    }

    impl World {
        fn new(cores: usize, rates: Vec<Rate>, shares: &[u32]) -> Self {
            let rates = rates.into_iter().map(Arc::new).collect();
            let cores = (0..cores).map(|_| LimitedCommands { active: true, ..LimitedCommands::default() });
            Self { cores: cores.collect(), rates, shares: shares.to_vec(), begun: vec![0; shares.len()] }
        }

        /// A host sends a command, and another one as soon as that has begun, until one waits.
        fn send(&mut self, core: usize, host: usize, bytes: u64, now: Time) {
            loop {
                let limits = || FlowLimits { rates: self.rates.clone(), shares: self.shares[host] };
                if !self.cores[core].admit(key(host), request(host), bytes, now, limits) {
                    return;
                }
                self.begun[host] += 1;
            }
        }

        /// Each host has `depth` commands of `bytes[host]` waiting on its core, all the time, for so many milliseconds.
        fn run(&mut self, core_of: &[usize], bytes: &[u64], millis: u64) {
            let depth = 32;
            for (host, core) in core_of.iter().enumerate() {
                (0..depth).for_each(|_| self.send(*core, host, bytes[host], at(0)));
            }
            for step in 1..=millis * 10 {
                let now = at(step * 100);
                for core in 0..self.cores.len() {
                    while let Some(RequestId { slot, .. }) = self.cores[core].next(now) {
                        let host = usize::from(slot);
                        self.begun[host] += 1;
                        self.send(core, host, bytes[host], now);
                    }
                }
            }
        }
    }

    #[test]
    fn a_limit_of_commands_is_kept_and_used_up() {
        let mut world = World::new(1, vec![Rate::new(Unit::Commands, 20_000, BURST)], &[100]);
        world.run(&[0], &[4096], 2000);
        assert!((40_000..=40_200).contains(&world.begun[0]), "{}", world.begun[0]);
    }

    #[test]
    fn the_narrowest_of_several_limits_counts() {
        let rates =
            vec![Rate::new(Unit::Commands, 50_000, BURST), Rate::new(Unit::Bytes, 4096 * 3000, BURST)];
        let mut world = World::new(1, rates, &[100]);
        world.run(&[0], &[4096], 1000);
        assert!((2990..=3030).contains(&world.begun[0]), "{}", world.begun[0]);
    }

    #[test]
    fn a_command_that_is_larger_than_a_second_of_its_limit_begins_in_time() {
        let mut world = World::new(1, vec![Rate::new(Unit::Bytes, 100 << 10, BURST)], &[100]);
        world.run(&[0], &[128 << 10], 13_000);
        assert!((9..=11).contains(&world.begun[0]), "{}", world.begun[0]);
    }

    #[test]
    fn hosts_share_a_limit_by_their_shares_on_whichever_cores_they_are() {
        for core_of in [[0, 0, 0], [0, 1, 2], [0, 0, 1]] {
            let mut world = World::new(3, vec![Rate::new(Unit::Commands, 60_000, BURST)], &[100, 200, 300]);
            world.run(&core_of, &[4096; 3], 1000);
            let [one, two, three] = [0, 1, 2].map(|host| world.begun[host]);
            assert!((59_900..=60_600).contains(&(one + two + three)), "{:?}", world.begun);
            assert!((9_500..=10_500).contains(&one), "{core_of:?} {:?}", world.begun);
            assert!((19_000..=21_000).contains(&two), "{core_of:?} {:?}", world.begun);
        }
    }

    #[test]
    fn hosts_share_a_limit_of_bytes_by_bytes_however_large_their_commands_are() {
        let rate = Rate::new(Unit::Bytes, 100 << 20, BURST);
        let mut world = World::new(2, vec![rate], &[100, 100]);
        world.run(&[0, 1], &[4 << 10, 128 << 10], 2000);
        let [small, large] = [world.begun[0] * (4 << 10), world.begun[1] * (128 << 10)];
        assert!(small.abs_diff(large) < small / 20, "{small} {large}");
        assert!((198 << 20..=204 << 20).contains(&(small + large)), "{small} {large}");
    }

    #[test]
    fn what_was_not_known_to_be_used_is_paid_back() {
        let mut world = World::new(1, vec![Rate::new(Unit::Bytes, 1 << 20, BURST)], &[100]);
        let limits = || FlowLimits { rates: world.rates.clone(), shares: 100 };
        world.cores[0].charge(key(0), 1 << 20, limits);
        world.run(&[0], &[4096], 2000);
        assert!((250..=262).contains(&world.begun[0]), "one second of two: {}", world.begun[0]);
    }

    #[test]
    fn who_waits_begins_when_the_limit_goes_and_goes_on_waiting_for_another() {
        let mut world = World::new(1, vec![Rate::new(Unit::Commands, 1, BURST)], &[100]);
        (0..4).for_each(|_| world.send(0, 0, 4096, at(0)));
        assert_eq!(world.begun[0], 1);
        let core = &mut world.cores[0];
        assert!(core.any_wait() && core.next(at(10)).is_none());
        assert!(core.timer_needed().is_some());
        let other = Arc::new(Rate::new(Unit::Commands, 1000, Duration::ZERO));
        core.refresh(true, at(20), |_| FlowLimits { rates: vec![Arc::clone(&other)], shares: 100 });
        assert_eq!(core.next(at(20)), Some(request(0)));
        assert_eq!(core.next(at(20)), None);
        core.refresh(false, at(30), |_| FlowLimits::default());
        let begun: Vec<RequestId> = std::iter::from_fn(|| core.next(at(30))).collect();
        assert_eq!(begun, [request(0); 3]);
        assert!(!core.any_wait() && !core.are_possible());
    }

    #[test]
    fn a_host_that_leaves_takes_its_commands_along_and_others_are_not_limited() {
        let mut world = World::new(1, vec![Rate::new(Unit::Commands, 1, BURST)], &[100, 100]);
        (0..4).for_each(|_| world.send(0, 0, 4096, at(0)));
        let core = &mut world.cores[0];
        assert!(core.admit(key(1), request(1), 1, at(0), FlowLimits::default));
        core.leave(HostId::at(0));
        assert!(!core.any_wait());
        assert_eq!(core.next(Time::MAX), None);
    }
}
