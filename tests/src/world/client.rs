//! A simulated host: engines of the initiator, a workload, and the model of what its sectors may hold.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use ringfab_auth::{Group, Hash, Policy};
use ringfab_initiator::{
    Authentication, Cause, ConnectOptions, HostEvent, HostIdentity, IoDone, IoError, IoOperation, IoRequest,
    Key, Keys, PathChooser, PathId, SubmitError, TlsKey, Url,
};
use ringfab_reactor::sim::{HostId, World};
use ringfab_reactor::{Time, Wait};
use ringfab_spec::Status;

use super::checker::{Checker, Outcome};
use super::content::{Random, SECTOR_BYTES};
use super::engines::{Engine, Engines, Phase};
use super::scenario::{Incidents, Scenario, Tls};
use super::server::{NQN, Server, host_nqn, key, tls_key};
use super::trace::Trace;

/// How long after the loss of a path, as the engine that leads finds it, another engine may still have an answer by it.
const LATE_ANSWER: Duration = Duration::from_millis(200);

/// Before another attempt to attach, when the first has failed.
const ATTACH_PAUSE: Duration = Duration::from_millis(50);

/// Between two authentications of a connection, and where they take real time to compute.
const REPEAT: Duration = Duration::from_millis(300);
const REPEAT_SELDOM: Duration = Duration::from_secs(5);
const REPEAT_OVER_TLS: Duration = Duration::from_secs(1);

/// The one namespace.
const NSID: u32 = 1;

/// A host of the world.
pub struct Client {
    /// Its host.
    pub host: HostId,
    pub(super) engines: Engines,
    options: ConnectOptions,
    /// When it attaches, while it is not attached.
    attach_at: Time,
    world: World,
    name: String,
    pub(super) checker: Checker,
    pub(super) pending: BTreeMap<u64, Kind>,
    pub(super) random: Random,
    pub(super) block_sectors: u64,
    pub(super) transfer_sectors_max: u64,
    next_tag: u64,
    in_flight_max: usize,
    /// Commands of the workload that are still to be submitted.
    remaining: u64,
    failures: u64,
    /// Whether a failure is a bug: nothing is wrong any more.
    strict: bool,
    /// When a command has last succeeded before a loss.
    answered: Time,
    /// How often it has lost the controller.
    losses: u32,
    /// Whether its right may be withdrawn.
    may_be_refused: bool,
    /// How often it has authenticated again on a connection, and was refused for its keys.
    proofs: (u64, u64),
}

/// What a command in flight is, to judge its end by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Read(Range<u64>),
    Compare,
    Change,
    Flush,
}

impl Client {
    /// The host with this number; it is not attached yet.
    pub fn new(world: &World, server: &Server, scenario: &Scenario, number: u64) -> Self {
        let name = format!("host{number}");
        let host = world.add_host(&name);
        server.ways().iter().for_each(|way| world.set_link(host, *way, scenario.link.clone()));
        world.set_mailbox_delay(host, Duration::ZERO, scenario.machines.mailbox_delay);
        let engines = Engines::new(world, host, scenario, number);
        let first = number * scenario.sectors;
        let options = options(server, scenario, number);
        Self {
            host,
            engines,
            options,
            attach_at: Time::ZERO,
            world: world.clone(),
            name,
            checker: Checker::new(first..first + scenario.sectors),
            pending: BTreeMap::new(),
            random: Random::new(scenario.seed, 10 + number),
            block_sectors: u64::from(scenario.block_bytes) / SECTOR_BYTES as u64,
            transfer_sectors_max: 0,
            // Stamps are tags, and differ between hosts.
            next_tag: (number + 1) << 40,
            in_flight_max: scenario.in_flight,
            remaining: scenario.commands,
            failures: 0,
            strict: false,
            answered: Time::ZERO,
            losses: 0,
            may_be_refused: scenario.incidents == Incidents::CutsAndKeys,
            proofs: (0, 0),
        }
    }

    /// Whether every command of the workload has ended.
    pub fn is_finished(&self) -> bool {
        self.remaining == 0 && self.is_idle()
    }

    /// Whether nothing is in flight.
    pub fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }

    /// Whether it can submit.
    pub fn is_ready(&self) -> bool {
        self.engines.list.iter().any(Engine::is_ready)
    }

    /// Whether it is attached, as far as it knows.
    pub fn is_connected(&self) -> bool {
        let paths = 1 + self.options.further_urls.len() - self.engines.removed_paths();
        self.engines.list.iter().all(|engine| engine.is_ready() && engine.has_paths(paths))
    }

    /// How often it has lost its controller.
    pub fn losses(&self) -> u32 {
        self.losses
    }

    /// Its host NQN.
    pub fn host_nqn(&self) -> &str {
        &self.options.host.nqn
    }

    /// From here on the target may refuse it.
    pub fn set_may_be_refused(&mut self) {
        self.may_be_refused = true;
    }

    /// Whether it has detached.
    pub fn is_gone(&self) -> bool {
        self.engines.list.iter().all(|engine| matches!(engine.phase, Phase::Gone))
    }

    /// Commands that failed.
    pub fn failures(&self) -> u64 {
        self.failures
    }

    /// How often it has authenticated again on a connection, and was refused for its keys.
    pub fn proofs(&self) -> (u64, u64) {
        self.proofs
    }

    /// The model, for a look at the disk itself.
    pub fn checker(&self) -> &Checker {
        &self.checker
    }

    /// The target's disk has lost its volatile cache.
    pub fn power_lost(&mut self) {
        self.checker.power_lost();
    }

    /// Nothing is wrong from here on: every command has to succeed.
    pub fn set_strict(&mut self) {
        self.strict = true;
    }

    /// When it acts by itself, beside what its engines wait for.
    pub fn due(&self) -> Time {
        if self.engines.are_away() { self.attach_at } else { Time::MAX }
    }

    /// A turn for each of its engines, in any order; some may be busy elsewhere, and miss it. Whether anything was
    /// done.
    pub fn turn(&mut self, trace: &mut Trace) -> bool {
        let mut active = self.attach_when_due();
        for number in self.engines.those_that_turn() {
            active |= self.turn_engine(number, trace);
        }
        active | self.submit_more(trace)
    }

    fn turn_engine(&mut self, number: usize, trace: &mut Trace) -> bool {
        let mut active = self.engines.list[number].join_when_invited();
        self.engines.list[number].host.turn(Wait::No).expect("a turn of the engine");
        while let Some(event) = self.engines.list[number].host.next_event() {
            active = true;
            self.on_event(number, event, trace);
        }
        active
    }

    fn submit_more(&mut self, trace: &mut Trace) -> bool {
        let mut active = false;
        while self.remaining > 0 && self.is_ready() && self.pending.len() < self.in_flight_max {
            self.remaining -= 1;
            active = true;
            self.submit_random(trace);
        }
        active
    }

    /// Leaves in an orderly way.
    pub fn detach(&mut self) {
        assert!(self.is_connected(), "{} is not attached", self.name);
        self.engines.detach();
    }

    /// What it still holds after it has left, in words.
    pub fn leftovers(&self) -> Option<String> {
        self.engines.list.iter().find_map(|engine| {
            let (usage, counters) = (engine.host.pool().usage(), engine.host.rnic_counters());
            let clean = usage.taken == 0 && counters.queue_pairs == 0 && counters.regions == 0;
            (!clean).then(|| format!("{}: {usage:?}, {counters:?}", self.name))
        })
    }

    /// Submits a command; its model has been told by then.
    pub(super) fn submit(
        &mut self,
        tag: u64,
        kind: Kind,
        operation: IoOperation,
        what: &str,
        trace: &mut Trace,
    ) {
        let Engine { host, phase, .. } = self.engines.next();
        let Phase::Ready(controller) = *phase else { panic!("{} is not attached", self.name) };
        trace.tell(self.world.now(), &format!("{} {tag:x} {what}", self.name));
        self.pending.insert(tag, kind);
        match host.submit(controller, IoRequest { nsid: NSID, tag, operation }) {
            Ok(()) => {}
            Err(refused) if refused.reason == SubmitError::Full => {
                self.ended(tag, Err(IoError::Refused(SubmitError::Full)), None, trace);
            }
            Err(refused) => panic!("{} {tag:x} {what} was refused: {}", self.name, refused.reason),
        }
    }

    /// A name for the next command.
    pub(super) fn tag(&mut self) -> u64 {
        self.next_tag += 1;
        self.next_tag
    }

    fn attach_when_due(&mut self) -> bool {
        if self.world.now() < self.due() {
            return false;
        }
        self.engines.attach(&self.options);
        true
    }

    fn on_event(&mut self, number: usize, event: HostEvent, trace: &mut Trace) {
        if let HostEvent::IoDone(IoDone { tag, result, buffer, .. }) = event {
            return self.ended(tag, result, buffer.as_deref(), trace);
        }
        trace.tell(self.world.now(), &format!("{}.{number}: {event:?}", self.name));
        let has_several = !self.options.further_urls.is_empty();
        let engine = &mut self.engines.list[number];
        note_paths(&mut engine.paths, &event, self.world.now());
        self.proofs.1 += u64::from(number == 0 && is_refusal(&event));
        match (event, &engine.phase) {
            (HostEvent::Ready { .. }, &Phase::Attaching(controller)) => {
                engine.phase = Phase::Ready(controller);
                let namespace = &engine.host.namespaces(controller)[0];
                self.transfer_sectors_max = u64::from(namespace.transfer_bytes_max()) / SECTOR_BYTES as u64;
            }
            (HostEvent::Failed { error, .. } | HostEvent::Lost { error, .. }, _)
                if !self.may_be_refused && matches!(error.cause, Cause::Authentication(_)) =>
            {
                panic!("{} and the target have the same keys, and yet: {error}", self.name)
            }
            (HostEvent::Reauthenticated { result, .. }, Phase::Ready(_) | Phase::Detaching) => {
                assert!(result.is_ok() || self.may_be_refused, "a key that is known: {result:?}");
                self.proofs.0 += u64::from(result.is_ok());
            }
            (HostEvent::Failed { .. }, Phase::Attaching(_)) => {
                engine.leave();
                self.attach_at = self.world.now() + ATTACH_PAUSE;
            }
            (HostEvent::Detached { trouble, .. }, Phase::Detaching) => {
                assert!(trouble.is_none(), "{} left with trouble: {trouble:?}", self.name);
                engine.phase = Phase::Gone;
            }
            (HostEvent::Lost { .. }, Phase::Ready(_)) => self.losses += u32::from(number == 0),
            (HostEvent::Ready { reconnected: true, .. }, Phase::Ready(_)) => {}
            (
                HostEvent::Reconnecting { .. }
                | HostEvent::NamespacesChanged { .. }
                | HostEvent::AccessChanged { .. },
                Phase::Ready(_),
            ) => {}
            (event, phase) if has_several && is_of_another_path(&event, phase) => {}
            (HostEvent::PathRemoved { .. }, Phase::Ready(_)) if self.may_be_refused => {}
            // Its administrator attaches again.
            (HostEvent::Failed { .. }, Phase::Ready(_)) if self.may_be_refused => {
                engine.leave();
                self.attach_at = self.world.now() + ATTACH_PAUSE;
            }
            // A connection of its own had ended before the leader said that all is ready.
            (HostEvent::Lost { .. } | HostEvent::Reconnecting { .. }, Phase::Attaching(_)) if number > 0 => {}
            (HostEvent::NamespacesChanged { .. }, Phase::Attaching(_) | Phase::Detaching) => {}
            (event, phase) => panic!("{}.{number} did not expect {event:?} while {phase:?}", self.name),
        }
    }

    /// A command waits for its path as long as the policy says, counted from a loss. A loss is a new one if any engine
    /// had answers before it, as the engine that leads finds it.
    fn check_waited(&mut self, tag: u64, result: Result<(), IoError>) {
        let now = self.world.now();
        if result.is_ok() && !self.engines.list[0].is_cut_off() {
            self.answered = now;
        }
        // Its administrator may take the last path that works.
        let was_taken = self.engines.removed_paths() > 0;
        if result != Err(IoError::NoPath) || self.may_be_refused || was_taken {
            return;
        }
        // The path that has answered last may have been lost shortly before, as the engine that leads finds it.
        let leader = &self.engines.list[0];
        let shortly = |at: &Time| *at + LATE_ANSWER >= self.answered;
        let since = leader.away_since().filter(shortly).min().unwrap_or(self.answered).min(self.answered);
        let limit = self.options.reconnect.fast_io_fail_timeout;
        let waited = limit.is_some_and(|limit| now >= since + limit);
        assert!(waited, "{} {tag:x} was to wait for longer: {limit:?} from {since:?}", self.name);
    }

    /// A command has ended: the model judges.
    fn ended(&mut self, tag: u64, result: Result<(), IoError>, bytes: Option<&[u8]>, trace: &mut Trace) {
        let kind = self.pending.remove(&tag).expect("a command ends once");
        trace.tell(self.world.now(), &format!("{} {tag:x} ends: {result:?}", self.name));
        let unequal =
            matches!(result, Err(IoError::Status(status)) if status.code() == Status::COMPARE_FAILURE);
        if result.is_err() && !unequal {
            assert!(!self.strict, "{} {tag:x} failed with {result:?} although nothing is wrong", self.name);
            self.failures += 1;
        }
        self.check_waited(tag, result);
        let judged = match kind {
            Kind::Read(_) => self.checker.end_read(tag, bytes.filter(|_| result.is_ok())),
            Kind::Compare if result.is_ok() => self.checker.end_compare(tag, Some(true)),
            Kind::Compare => self.checker.end_compare(tag, unequal.then_some(false)),
            Kind::Change | Kind::Flush => {
                let outcome = if result.is_ok() { Outcome::Done } else { Outcome::Unknown };
                self.checker.end(tag, outcome);
                Ok(())
            }
        };
        if let Err(wrong) = judged {
            panic!("{} {tag:x}: {wrong}", self.name);
        }
    }
}

/// Whether one end has refused the other for its keys.
fn is_refusal(event: &HostEvent) -> bool {
    let (HostEvent::Failed { error, .. } | HostEvent::Lost { error, .. }) = event else { return false };
    matches!(error.cause, Cause::Authentication(_) | Cause::Tls(_))
}

/// Whether it is what one of several paths does, beside those that take I/O. None is given up.
fn is_of_another_path(event: &HostEvent, phase: &Phase) -> bool {
    match event {
        HostEvent::Ready { .. } => matches!(phase, Phase::Ready(_) | Phase::Detaching),
        HostEvent::Lost { .. } | HostEvent::Reconnecting { .. } => {
            matches!(phase, Phase::Attaching(_) | Phase::Detaching)
        }
        // While none was ready, all are given up together, and the last one says that the attachment has failed.
        HostEvent::PathRemoved { error, .. } => error.is_none() || matches!(phase, Phase::Attaching(_)),
        HostEvent::PathAdded { .. } | HostEvent::FailedOver { .. } | HostEvent::AccessChanged { .. } => true,
        _ => false,
    }
}

/// Which paths there are now, and since when others are away.
fn note_paths(paths: &mut BTreeMap<PathId, Option<Time>>, event: &HostEvent, now: Time) {
    match event {
        HostEvent::Ready { path, .. } => paths.extend([(*path, None)]),
        HostEvent::PathAdded { path, .. } | HostEvent::Lost { path, .. } => {
            paths.extend([(*path, Some(now))]);
        }
        HostEvent::PathRemoved { path, .. } => paths.retain(|known, _| known != path),
        _ => {}
    }
}

fn url(address: SocketAddr, scenario: &Scenario) -> Url {
    let text = if scenario.tcp {
        let [header, data] = scenario.digests.map(|on| if on { "on" } else { "off" });
        format!("nvme+tcp://{address}/{NQN}?ns={NSID}&hdgst={header}&ddgst={data}")
    } else {
        format!("nvme+rdma://{address}/{NQN}?provider=iwarp&ns={NSID}")
    };
    text.parse().expect("a URL")
}

fn options(server: &Server, scenario: &Scenario, number: u64) -> ConnectOptions {
    let mut urls: Vec<Url> = server.addresses().into_iter().map(|address| url(address, scenario)).collect();
    let first = urls.remove(0);
    let id = format!("00000000-0000-4000-8000-{number:012}");
    let host = HostIdentity { nqn: host_nqn(number), id: id.parse().expect("a UUID") };
    let mut options = ConnectOptions::new(first, host);
    options.further_urls = urls;
    options.paths.well_for = Duration::from_millis([0, 50, 2000][(scenario.seed % 3) as usize]);
    options.paths.chooser = PathChooser::ALL[(scenario.seed / 3 % 3) as usize];
    options.protections.hold_changes = scenario.protections.holding;
    options.authentication = scenario.authentication.map(|group| {
        let keys = Keys { host: Key::Known(key(1)), controller: Some(Key::Known(key(2))) };
        let mut authentication = Authentication::new(keys);
        authentication.policy = Policy::new(&[Hash::Sha256], &[group]).expect("a policy");
        authentication.repeat = Some(match (group, scenario.tls) {
            (Group::Null, _) => REPEAT,
            (_, Tls::Generated) => REPEAT_OVER_TLS,
            _ => REPEAT_SELDOM,
        });
        authentication
    });
    match scenario.tls {
        Tls::Off => {}
        Tls::Configured => options.tls = Some(ringfab_initiator::Tls::new(TlsKey::Known(tls_key(1)))),
        Tls::Generated => options.concatenation = true,
    }
    (options.queues, options.depth) = (scenario.queues.max(scenario.machines.engines), scenario.depth);
    options.keep_alive = Duration::from_secs(2);
    options.timeouts.connect = Duration::from_secs(1);
    options.timeouts.admin = Duration::from_secs(4);
    options.reconnect = scenario.reconnect;
    options
}
