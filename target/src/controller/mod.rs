//! One controller: what a host has connected to.
//!
//! Its control state is behind one lock, which the admin queue's core takes for each admin command and nobody holds
//! for long. Its events have a lock of their own. I/O reads only the atomics; the cores have tables of their own of the
//! namespaces.

mod access;
mod access_log;
mod candidate;
mod errors;
mod events;
pub(crate) mod features;
mod fence;
mod instance;
mod io_access;
mod keep_alive;
mod lost;
mod queues;
mod quiesce;
mod registers;
mod resets;

use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringfab_auth::Authenticated;
use ringfab_reactor::Time;
use ringfab_spec::Status;
use ringfab_spec::log::ControllerInstance;
use ringfab_spec::sqe::PropertySize;

pub use errors::ErrorRecord;
pub use registers::PropertyEffect;

pub(crate) use access::Access;
pub(crate) use candidate::{Candidate, proved};
pub(crate) use errors::{ENTRIES_MAX_Z as ERROR_ENTRIES_MAX_Z, ErrorLog};
pub(crate) use events::{Event, REQUESTS_MAX_Z as EVENT_REQUESTS_MAX_Z, supported as supported_events};
pub(crate) use features::{Features, Timestamp};
pub(crate) use io_access::IoAccess;
pub(crate) use keep_alive::{GRANULARITY as KEEP_ALIVE_GRANULARITY, KeepAlive};
pub(crate) use lost::{LostController, LostControllers};
pub(crate) use queues::ConnectedQueues;
pub(crate) use quiesce::COMMAND_QUIESCE_TIME;
pub(crate) use registers::{LEFT_BEHIND_PATIENCE, NOT_READY, Registers, VERSION};
pub(crate) use resets::{IN_PROGRESS_MAX as RESETS_MAX, ResetAnswer, ResetEntry, ResetNews, Resets};

use access_log::AccessLog;
use events::AsyncEvents;
use instance::Instance;
use io_access::IoGate;

use crate::command::{connect_data, connect_field};
use crate::failure::Failure;
use crate::model::{ControllerLimits, Epoch, Listener, QueueRecord, Subsystem, TlsChannel, Way};

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
    /// In which commands of all controllers are judged.
    epoch: Arc<Epoch>,
    write_cache: AtomicBool,
    events: AsyncEvents,
    access: AccessLog,
    state: Mutex<State>,
}

/// What only the control side reads.
pub(crate) struct State {
    /// By which its host came. A listener that takes the place of another has its controllers, too.
    way: Way,
    /// Another one at each readiness.
    instance: Instance,
    pub(crate) registers: Registers,
    pub(crate) keep_alive: KeepAlive,
    pub(crate) errors: ErrorLog,
    pub(crate) features: Features,
    pub(crate) queues: ConnectedQueues,
    /// Those of other controllers that its host has asked it for.
    pub(crate) resets: Resets,
    /// Other controllers of its host that have lost it.
    pub(crate) lost: LostControllers,
    /// Whether others were told that it has lost its host.
    pub(crate) loss_is_told: bool,
    /// Whether it takes no queue any more, for good.
    has_ended: bool,
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
    /// By which it came.
    pub(crate) way: Way,
    pub(crate) limits: ControllerLimits,
    pub(crate) keep_alive_ms: u32,
    pub(crate) now: Time,
    pub(crate) epoch: Arc<Epoch>,
    /// Whether its host has yet to prove who it is.
    pub(crate) unproved: bool,
}

impl Controller {
    pub(crate) fn new(parameters: ControllerParameters) -> Self {
        let ControllerParameters {
            id,
            subsystem,
            host,
            address,
            way,
            limits,
            keep_alive_ms,
            now,
            epoch,
            unproved,
        } = parameters;
        let discovery = subsystem.is_discovery();
        let state = State {
            way,
            instance: Instance::new(id),
            registers: Registers::new(limits.queue_entries_max, discovery),
            keep_alive: KeepAlive::new(keep_alive_ms, discovery, now),
            errors: ErrorLog::default(),
            features: Features::new(limits.io_queues_max, now),
            queues: ConnectedQueues::default(),
            resets: Resets::default(),
            lost: LostControllers::default(),
            loss_is_told: false,
            has_ended: false,
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
            epoch,
            write_cache: AtomicBool::new(true),
            events: AsyncEvents::default(),
            access: AccessLog::default(),
            state: Mutex::new(state),
        }
    }

    /// Controller identifier, unique in the whole target.
    pub fn id(&self) -> u16 {
        self.id
    }

    /// Which instance it is now: another one each time that it becomes ready.
    pub fn instance(&self) -> ControllerInstance {
        self.state().instance.numbers()
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

    /// By which its host came.
    pub fn way(&self) -> Way {
        self.state().way.clone()
    }

    /// Another listener has taken the place of the one by which its host came.
    pub(crate) fn set_listener(&self, listener: Arc<Listener>) {
        self.state().way.listener = listener;
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
            state.registers.hold_ready(now);
        }
        if effect != PropertyEffect::None {
            let ready = state.registers.io_allowed();
            state.keep_alive.set_enabled(ready, now);
            if ready {
                state.begin_instance();
            }
            self.io_access.set(ready, false);
        }
        if effect == PropertyEffect::Disabled {
            self.reset(&mut state, now);
        }
        Ok(effect)
    }

    /// What its host is told when it happens.
    pub(crate) fn events(&self) -> &AsyncEvents {
        &self.events
    }

    /// Whether the host has been silent too long. Traffic on any of its queues since the last look restarts the timer
    /// (traffic based keep-alive), so that a `false` means: look again at the next deadline.
    pub fn expired(&self, now: Time) -> bool {
        let mut state = self.state();
        if state.keep_alive.deadline().is_none_or(|deadline| now < deadline) {
            return false;
        }
        let traffic = state.queues.take_traffic();
        if traffic {
            state.keep_alive.restart(now);
        }
        !traffic
    }

    /// It is over for this controller, whether its host has been silent too long or has to leave: it takes neither
    /// commands nor queues from now on, and what of it waits on any core does not reach a disk. Its queues are still to
    /// be ended by their cores.
    pub fn end(&self) {
        self.io_access.end();
        self.epoch.begin();
        let mut state = self.state();
        state.has_ended = true;
        state.keep_alive.expire();
    }

    /// Whether its commands are to be stopped where they are, for good.
    pub(crate) fn has_ended(&self) -> bool {
        self.io_access.has_ended()
    }

    /// Says in the log that it is ended, and why.
    pub(crate) fn log_ended(&self, reason: &str) {
        self.state().end_is_told = true;
        let (host, subsystem) = (self.host.nqn.as_str(), self.subsystem.nqn());
        tracing::warn!(peer = %self.address, host, subsystem, controller = self.id, reason, "controller ended");
    }

    /// Notes a command that ended with an error, for the Error Information log.
    pub fn record_error(&self, record: ErrorRecord) {
        let internal = record.status.code() == Status::INTERNAL_ERROR;
        self.state().errors.add(record);
        if internal {
            self.events.post(Event::InternalError);
        }
    }

    /// A queue has left the controller; its identifier is free again, unless another queue has it. Disks may still work
    /// for it: the subsystem counts it until [`Subsystem::queue_ended`]. The admin queue is ended by
    /// [`Controller::admin_ended`].
    pub fn queue_left(&self, queue: &Arc<QueueRecord>) {
        self.state().queues.leave(queue);
    }

    /// The admin queue has ended: the controller takes no further queue. Its I/O queues are still to be ended by their
    /// cores, and the target is to forget it.
    pub(crate) fn admin_ended(&self) {
        self.end();
        self.events.set_wake(None);
        self.state().queues.end_admin();
    }

    /// The queues that are connected now, by identifier; the admin queue is the first.
    pub fn queues(&self) -> Vec<Arc<QueueRecord>> {
        self.state().queues.iter().cloned().collect()
    }

    /// How many I/O queues are connected now.
    pub fn io_queues(&self) -> usize {
        self.state().queues.io_count()
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
        // Under the lock, so that neither a reset nor the end can come between this look and the insertion.
        state.check_free(queue.id())?;
        queue.join(state.instance.numbers());
        state.queues.join(queue);
        if !state.awaits_proof {
            self.subsystem.queue_connected(Arc::clone(queue), &self.host.nqn, self.created);
        }
        Ok(())
    }

    /// A controller level reset: what the host configured is forgotten, except its keep-alive timeout.
    fn reset(&self, state: &mut State, now: Time) {
        self.events.reset();
        self.access.reset();
        state.features = Features::new(self.limits.io_queues_max, now);
        self.set_write_cache(true);
    }
}

impl State {
    /// The controller is ready: what was before is over for its host.
    fn begin_instance(&mut self) {
        self.instance.renew();
        self.resets.renew();
        self.lost.renew();
    }

    /// Whether its host is to be told when other controllers of it are over.
    pub(crate) fn awaits_others(&self) -> bool {
        self.resets.are_any_in_progress() || self.lost.are_any_busy()
    }

    /// Whether the controller would take a queue with this identifier now.
    pub(crate) fn check_free(&self, queue_id: u16) -> Result<(), Failure> {
        if self.has_ended {
            return Err(Failure::invalid_connect_data(connect_data::CNTLID));
        }
        if queue_id != 0 {
            if !self.registers.io_allowed() {
                return Err(NOT_READY);
            }
            if queue_id > self.features.io_queues() {
                return Err(Failure::invalid_connect_command(connect_field::QID));
            }
        }
        if self.queues.has(queue_id) {
            return Err(Failure::new(Status::COMMAND_SEQUENCE_ERROR));
        }
        Ok(())
    }
}

/// Whether both are controllers of one host, in one subsystem.
pub(crate) fn are_of_one_host(one: &Controller, other: &Controller) -> bool {
    let is_same = (&one.host.nqn, one.host.id) == (&other.host.nqn, other.host.id);
    is_same && Arc::ptr_eq(&one.subsystem, &other.subsystem)
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
        for queue in state.queues.take_all() {
            self.subsystem.queue_ended(&queue);
        }
    }
}
