//! One controller: what a host has connected to.
//!
//! Its control state is behind one lock, which the admin queue's core takes for each admin command and nobody holds
//! for long. I/O reads only the atomics; the cores have tables of their own of the namespaces.

mod candidate;
mod errors;
mod events;
pub(crate) mod features;
mod fence;
mod io_access;
mod keep_alive;
mod registers;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringfab_auth::Authenticated;
use ringfab_reactor::Time;
use ringfab_spec::Status;
use ringfab_spec::sqe::PropertySize;

pub use errors::ErrorRecord;
pub use registers::PropertyEffect;

pub(crate) use candidate::{Candidate, proved};
pub(crate) use errors::{ENTRIES_MAX_Z as ERROR_ENTRIES_MAX_Z, ErrorLog};
pub(crate) use events::{
    Event, Events, REQUESTS_MAX_Z as EVENT_REQUESTS_MAX_Z, supported as supported_events,
};
pub(crate) use features::{Features, Timestamp};
pub(crate) use fence::LEFT_BEHIND_PATIENCE;
pub(crate) use io_access::IoAccess;
pub(crate) use keep_alive::{GRANULARITY as KEEP_ALIVE_GRANULARITY, KeepAlive};
pub(crate) use registers::{NOT_READY, Registers, VERSION};

use io_access::IoGate;

use crate::command::connect_field;
use crate::failure::Failure;
use crate::model::{ControllerLimits, QueueRecord, Subsystem, TlsChannel};

/// Who connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Host NQN.
    pub nqn: String,
    /// Host Identifier.
    pub id: [u8; 16],
    /// The TLS of its admin queue, unless its connections are in clear text: all of them are over TLS, or none.
    pub tls: Option<Arc<TlsChannel>>,
}

/// One controller.
pub struct Controller {
    id: u16,
    subsystem: Arc<Subsystem>,
    host: Host,
    address: IpAddr,
    created: Time,
    limits: ControllerLimits,
    io_access: IoGate,
    write_cache: AtomicBool,
    state: Mutex<State>,
    wake: Mutex<Option<Wake>>,
}

/// Tells the core of the admin queue that [`Controller::next_event`] has something.
pub type Wake = Box<dyn Fn() + Send + Sync>;

/// What only the control side reads.
pub(crate) struct State {
    pub(crate) registers: Registers,
    pub(crate) keep_alive: KeepAlive,
    pub(crate) events: Events,
    pub(crate) errors: ErrorLog,
    pub(crate) features: Features,
    pub(crate) changed_namespaces: BTreeSet<u32>,
    pub(crate) created: Time,
    /// Until when a controller that was enabled waits for what its host has left behind.
    held_until: Time,
    queues: BTreeMap<u16, Arc<QueueRecord>>,
    /// The identifiers that a [`Candidate`] has.
    candidates: BTreeSet<u16>,
    io_queues_joined: u32,
    /// Whether the log says already why it ends, so that its connections need not.
    pub(crate) end_is_told: bool,
    /// Whether the log says already that its host does nothing any more: all queues may find it.
    pub(crate) stall_is_told: bool,
    /// Whether the log says already that connections of it were cut off.
    pub(crate) cut_is_told: bool,
    /// How its host has proved who it is, if it had to.
    pub(crate) authenticated: Option<Authenticated>,
    /// Whether its host has yet to do that. Until then it could be anybody, and counts as nobody's.
    pub(crate) awaits_proof: bool,
}

/// What a controller is made from.
pub(crate) struct ControllerParameters {
    pub(crate) id: u16,
    pub(crate) subsystem: Arc<Subsystem>,
    pub(crate) host: Host,
    /// Where its host is.
    pub(crate) address: IpAddr,
    pub(crate) limits: ControllerLimits,
    pub(crate) keep_alive_ms: u32,
    pub(crate) now: Time,
    /// Whether its host has yet to prove who it is.
    pub(crate) unproved: bool,
}

impl Controller {
    pub(crate) fn new(parameters: ControllerParameters) -> Self {
        let ControllerParameters { id, subsystem, host, address, limits, keep_alive_ms, now, unproved } =
            parameters;
        let discovery = subsystem.is_discovery();
        let state = State {
            registers: Registers::new(limits.queue_entries_max, discovery),
            keep_alive: KeepAlive::new(keep_alive_ms, discovery, now),
            events: Events::default(),
            errors: ErrorLog::default(),
            features: Features::new(limits.io_queues_max, now),
            created: now,
            held_until: now,
            changed_namespaces: BTreeSet::new(),
            queues: BTreeMap::new(),
            candidates: BTreeSet::new(),
            io_queues_joined: 0,
            end_is_told: false,
            stall_is_told: false,
            cut_is_told: false,
            authenticated: None,
            awaits_proof: unproved,
        };
        Self {
            id,
            subsystem,
            host,
            address,
            created: now,
            limits,
            io_access: IoGate::new(),
            write_cache: AtomicBool::new(true),
            state: Mutex::new(state),
            wake: Mutex::new(None),
        }
    }

    /// Controller identifier, unique in the whole target.
    pub fn id(&self) -> u16 {
        self.id
    }

    /// The subsystem that it belongs to.
    pub fn subsystem(&self) -> &Arc<Subsystem> {
        &self.subsystem
    }

    /// Who connected.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Where its host is.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// When its host connected.
    pub(crate) fn created(&self) -> Time {
        self.created
    }

    /// What it may use.
    pub fn limits(&self) -> ControllerLimits {
        self.limits
    }

    /// Whether it is a discovery controller, which has no I/O queues.
    pub fn is_discovery(&self) -> bool {
        self.subsystem.is_discovery()
    }

    /// Whether I/O commands may run; otherwise they end with Command Sequence Error. For every I/O command: no lock.
    #[inline]
    pub fn io_allowed(&self) -> bool {
        self.io_access() != IoAccess::Refused
    }

    /// Whether the host has the write cache on (feature 06h). While it is off, every write has to reach stable
    /// storage before it completes. For every write: no lock.
    #[inline]
    pub fn write_cache_enabled(&self) -> bool {
        self.write_cache.load(Ordering::Relaxed)
    }

    /// Reads a property; `size` is none when the command's ATTRIB says neither four nor eight bytes.
    ///
    /// # Errors
    /// Invalid Field in Command for an unknown offset or a wrong size.
    pub fn property_get(&self, offset: u32, size: Option<PropertySize>) -> Result<u64, Failure> {
        self.state().registers.get(offset, size)
    }

    /// Writes a property; `size` is none when the command's ATTRIB says neither four nor eight bytes.
    ///
    /// # Errors
    /// Invalid Field in Command for an unknown or read-only property, or a wrong size.
    pub fn property_set(
        &self,
        offset: u32,
        size: Option<PropertySize>,
        value: u64,
        now: Time,
    ) -> Result<PropertyEffect, Failure> {
        let mut state = self.state();
        let effect = state.registers.set(offset, size, value)?;
        if effect == PropertyEffect::Enabled && self.subsystem.has_orphans(&self.host.id) {
            state.registers.hold_ready();
            state.held_until = now + LEFT_BEHIND_PATIENCE;
        }
        if effect != PropertyEffect::None {
            let ready = state.registers.io_allowed();
            state.keep_alive.set_enabled(ready, now);
            self.io_access.set(ready, false);
        }
        if effect == PropertyEffect::Disabled {
            self.reset(&mut state, now);
        }
        Ok(effect)
    }

    /// The I/O queues have ended after [`PropertyEffect::Disabled`]: the host sees CSTS.RDY become zero.
    /// Asynchronous Event Requests that were parked are dropped by the reset, without a completion.
    pub fn disabled_done(&self) {
        self.state().registers.disabled_done();
    }

    /// The I/O has ended after [`PropertyEffect::Shutdown`]: the host sees that the shutdown is complete.
    pub fn shutdown_done(&self) {
        self.state().registers.shutdown_done();
    }

    /// A disk could not be flushed after [`PropertyEffect::Shutdown`]: the host sees a fatal status, and no end of the
    /// shutdown.
    pub fn shutdown_failed(&self) {
        self.state().registers.shutdown_failed();
    }

    /// A parked Asynchronous Event Request to complete, with dword 0 of its completion.
    pub fn next_event(&self) -> Option<(u16, u32)> {
        self.state().events.next()
    }

    /// A parked Asynchronous Event Request is aborted: it will not be completed by an event. Whether it was parked.
    pub fn forget_event_request(&self, command_id: u16) -> bool {
        self.state().events.unpark(command_id)
    }

    /// Sets what tells the core of the admin queue to call [`Controller::next_event`]. It is called from any thread
    /// and must not call back into the controller.
    pub fn set_wake(&self, wake: Option<Wake>) {
        *self.wake.lock().unwrap_or_else(PoisonError::into_inner) = wake;
    }

    /// When to call [`Controller::expired`] next; none when nothing bounds the host's silence.
    pub fn keep_alive_deadline(&self) -> Option<Time> {
        self.state().keep_alive.deadline()
    }

    /// Whether the host has been silent too long. Traffic on any of its queues since the last look restarts the timer
    /// (traffic based keep-alive), so that a `false` means: ask for the deadline again.
    pub fn expired(&self, now: Time) -> bool {
        let mut state = self.state();
        if state.keep_alive.deadline().is_none_or(|deadline| now < deadline) {
            return false;
        }
        // All flags are taken: traffic on one queue must not count again at the next look.
        let traffic = state.queues.values().fold(false, |seen, queue| queue.take_traffic() | seen);
        if traffic {
            state.keep_alive.restart(now);
        }
        !traffic
    }

    /// It is over for this controller, whether its host has been silent too long or has to leave: it takes no further
    /// I/O, and its queues are to be ended.
    pub fn end(&self) {
        self.io_access.end();
        self.state().keep_alive.expire();
    }

    /// Says in the log that it is ended, and why.
    pub(crate) fn log_ended(&self, reason: &str) {
        self.state().end_is_told = true;
        let (host, subsystem) = (self.host.nqn.as_str(), self.subsystem.nqn());
        tracing::warn!(peer = %self.address, host, subsystem, controller = self.id, reason, "controller ended");
    }

    /// Notes a command that ended with an error, for the Error Information log.
    pub fn record_error(&self, record: ErrorRecord) {
        let mut state = self.state();
        state.errors.add(record);
        let internal = record.status.code() == Status::INTERNAL_ERROR;
        let deliverable = internal && state.events.post(Event::InternalError);
        drop(state);
        self.wake_if(deliverable);
    }

    /// A queue has left the controller; its identifier is free again, unless another queue has it. Disks may still work
    /// for it: the subsystem counts it until [`Subsystem::queue_ended`]. The admin queue is ended by
    /// [`Controller::admin_ended`].
    pub fn queue_left(&self, queue: &Arc<QueueRecord>) {
        let mut state = self.state();
        if state.queues.get(&queue.id()).is_some_and(|known| Arc::ptr_eq(known, queue)) {
            state.queues.remove(&queue.id());
        }
    }

    /// The admin queue has ended: the controller takes no further queue. Its I/O queues are still to be ended by their
    /// cores, and the target is to forget it.
    pub(crate) fn admin_ended(&self) {
        self.io_access.end();
        self.set_wake(None);
        self.state().queues.remove(&0);
    }

    /// The queues that are connected now, by identifier; the admin queue is the first.
    pub fn queues(&self) -> Vec<Arc<QueueRecord>> {
        self.state().queues.values().cloned().collect()
    }

    /// How many I/O queues are connected now.
    pub fn io_queues(&self) -> usize {
        self.state().queues.keys().filter(|id| **id != 0).count()
    }

    /// How many I/O queues have connected in its life.
    pub fn io_queues_joined(&self) -> u32 {
        self.state().io_queues_joined
    }

    /// The core that serves a connected queue.
    pub fn core_of_queue(&self, queue_id: u16) -> Option<usize> {
        self.state().queues.get(&queue_id).map(|queue| queue.core())
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_write_cache(&self, enabled: bool) {
        self.write_cache.store(enabled, Ordering::Relaxed);
    }

    /// Takes a queue that connects, or whose host has proved who it is, unless its identifier is in use.
    pub(crate) fn attach(&self, queue: &Arc<QueueRecord>) -> Result<(), Failure> {
        let mut state = self.state();
        // Under the lock, so that a reset cannot come between this look and the insertion.
        state.check_free(queue.id())?;
        state.queues.insert(queue.id(), Arc::clone(queue));
        state.io_queues_joined += u32::from(queue.id() != 0);
        if !state.awaits_proof {
            self.subsystem.queue_connected(Arc::clone(queue), &self.host.nqn, self.created);
        }
        Ok(())
    }

    /// A namespace appeared, vanished or changed size.
    pub(crate) fn namespace_changed(&self, nsid: u32) {
        let mut state = self.state();
        state.changed_namespaces.insert(nsid);
        let deliverable = state.events.post(Event::NamespaceAttributeChanged);
        drop(state);
        self.wake_if(deliverable);
    }

    /// What discovery shows has changed.
    pub(crate) fn discovery_changed(&self) {
        let deliverable = self.state().events.post(Event::DiscoveryLogChanged);
        self.wake_if(deliverable);
    }

    pub(crate) fn wake_if(&self, deliverable: bool) {
        if deliverable && let Some(wake) = &*self.wake.lock().unwrap_or_else(PoisonError::into_inner) {
            wake();
        }
    }

    /// A controller level reset: what the host configured is forgotten, except its keep-alive timeout.
    fn reset(&self, state: &mut State, now: Time) {
        state.events.reset();
        state.changed_namespaces.clear();
        state.features = Features::new(self.limits.io_queues_max, now);
        self.set_write_cache(true);
    }
}

impl State {
    /// Whether the controller would take a queue with this identifier now.
    pub(crate) fn check_free(&self, queue_id: u16) -> Result<(), Failure> {
        if queue_id != 0 {
            if !self.registers.io_allowed() {
                return Err(NOT_READY);
            }
            if queue_id > self.features.io_queues() {
                return Err(Failure::invalid_connect_command(connect_field::QID));
            }
        }
        if self.queues.contains_key(&queue_id) {
            return Err(Failure::new(Status::COMMAND_SEQUENCE_ERROR));
        }
        Ok(())
    }

    /// Whether I/O queues are connected.
    pub(crate) fn has_io_queues(&self) -> bool {
        self.queues.keys().any(|id| *id != 0)
    }

    /// Whether a queue is connected.
    pub(crate) fn has_queue(&self, queue_id: u16) -> bool {
        self.queues.contains_key(&queue_id)
    }
}

impl fmt::Debug for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Controller");
        debug.field("id", &self.id).field("nqn", &self.subsystem.nqn()).field("host", &self.host.nqn);
        debug.finish_non_exhaustive()
    }
}

/// A controller that goes away takes its queues' counters to the subsystem.
impl Drop for Controller {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        for queue in std::mem::take(&mut state.queues).into_values() {
            self.subsystem.queue_ended(&queue);
        }
    }
}
