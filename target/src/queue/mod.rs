//! A queue pair of a controller on its core.
//!
//! | module | what it owns |
//! | --- | --- |
//! | `connection` | the host's end: the link, the controller, the head of the submission queue, and the end of the connection |
//! | `commands` | the life of each request, from its arrival to its answer |
//! | `automaton` | which event leads from which state to which step of that life |
//! | `request` | a request, and the table of requests |
//! | `pieces` | the memory of a request's data |
//! | `parse` | what a command asks for |
//! | `gates` | what may keep it from its disk |
//! | `buffers`, `disk`, `steps` | what a request needs of the pool, and asks of the disks |
//! | `fused` | pairs of commands that are done as one |
//! | `authentication` | how the host proves who it is |
//! | `early` | how many commands come before the host is let in |
//! | `aborts` | what ends commands that wait, from outside |
//! | `leaving` | what the end of a connection means for others of its host |
//! | `admin` | what the controller does for Fabrics and admin commands |
//! | `resets` | the ends of other controllers that it is asked for |
//! | `attachment` | what the queue belongs to, and the namespaces that its host sees |
//! | `accounting` | what is counted and recorded of commands that have ended |
//! | `samples` | sampled commands whose answer is on its way |
//!
//! The states are in [`crate::resources::states`], where they are counted for all queues of the core.

mod aborts;
mod accounting;
mod admin;
mod attachment;
mod authentication;
mod automaton;
mod buffers;
mod commands;
mod connection;
mod disk;
mod early;
mod fused;
mod gates;
mod identifiers;
mod leaving;
mod log;
mod parse;
mod pieces;
mod request;
mod resets;
mod samples;
mod steps;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ringfab_auth::Computed;
use ringfab_block::Finished;
use ringfab_memory::Buffer;
use ringfab_reactor::Time;
use ringfab_spec::{Status, SubmissionEntry};

use crate::controller::{Controller, LEFT_BEHIND_PATIENCE};
use crate::failure::Failure;
use crate::model::{TlsChannel, Way};
use crate::nvm::Kind;
use crate::placement::Place;
use crate::resources::scope::Scope;
use crate::resources::{ClaimId, HostId, RequestId, Resources};
use crate::transport::{Disconnection, Endpoint, FetchId, Link};
use crate::worker::WorkError;
use aborts::{Aborted, WaitingCommands};
use attachment::Attachment;
use automaton::Event;
use commands::Commands;
use connection::{Connection, Phase};
use request::Slot;

pub use crate::resources::states::State;
pub(crate) use log::keep_alive_expired as log_keep_alive_expired;

/// How long a host may take from the connection to its Connect command.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a host may take none of what we send and give nothing of what we fetch. What is in flight to it holds
/// buffers that the other queues of the core wait for.
const STALL_TIMEOUT: Duration = Duration::from_secs(10);

/// One queue, from the connection's arrival until nothing of it is in flight.
#[derive(Debug)]
pub(crate) struct Queue {
    connection: Connection,
    commands: Commands,
    /// When its connection came.
    opened: Time,
    /// When something was last in flight to the host and came to its end, or nothing was in flight.
    progress: Time,
    /// When the connection was gone.
    gone_at: Time,
    /// Whether disks worked for it then.
    has_left_behind: bool,
    /// Whether its controller knows that it is gone.
    has_left: bool,
    /// Of an I/O queue: where it is counted.
    _place: Option<Place>,
}

/// Where a request may have to wait before it takes buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    /// While a limit of its namespace or its host is reached.
    Limits,
    /// Until it is the turn of its host.
    Turn,
}

/// What becomes of what a connection that ends still holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remainder {
    /// Answers that were given to it may be sent, if nothing else is under way.
    MayBeSent,
    /// Nothing of it may have an effect: the connection is reset.
    IsDropped,
}

/// Whose a queue is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    /// The address that it came from.
    pub(crate) address: HostId,
    /// The host by its NQN, once it is let in; before, the address.
    pub(crate) host: HostId,
    /// Whether it counts among those without a Connect.
    pub(crate) is_opening: bool,
}

/// A queue without a Connect, or whose host has yet to prove who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Opening {
    /// Since when it is there.
    pub(crate) since: Time,
    /// Since when it is the host's turn. None while we compute.
    pub(crate) asked: Option<Time>,
    /// Whether it has a Connect.
    pub(crate) is_connected: bool,
}

/// What a connection brings with it.
#[derive(Debug)]
pub(crate) struct QueueParameters {
    pub(crate) number: u16,
    pub(crate) endpoint: Endpoint,
    /// Queue identifier that the connection was made for; Connect must name the same.
    pub(crate) id: u16,
    /// Entries of the submission queue that the connection was made for.
    pub(crate) entries: u16,
    pub(crate) peer: SocketAddr,
    pub(crate) way: Way,
    /// The TLS of the connection, unless it is in clear text.
    pub(crate) tls: Option<Arc<TlsChannel>>,
    /// The address that it comes from, among the hosts of the core.
    pub(crate) address: HostId,
    /// Its place on the core, if it is an I/O queue.
    pub(crate) place: Option<Place>,
}

impl Queue {
    pub(crate) fn new(parameters: QueueParameters, now: Time) -> Self {
        let QueueParameters { number, endpoint, id, entries, peer, way, tls, address, place } = parameters;
        let connection = Connection {
            id,
            entries,
            peer,
            way,
            tls,
            address,
            host: address,
            link: Link::new(endpoint, entries),
            phase: Phase::Open,
            attached: None,
            authentication: None,
            early: 0,
            submission_head: 0,
        };
        Self {
            connection,
            commands: Commands::new(number, entries),
            opened: now,
            progress: now,
            gone_at: now,
            has_left_behind: false,
            has_left: false,
            _place: place,
        }
    }

    /// The connection that it runs on.
    pub(crate) fn endpoint(&self) -> Endpoint {
        self.connection.link.endpoint()
    }

    /// Whose it is.
    pub(crate) fn owner(&self) -> Owner {
        let Connection { address, host, .. } = self.connection;
        Owner { address, host, is_opening: self.connection.is_opening() }
    }

    /// Queue identifier; zero is an admin queue.
    pub(crate) fn id(&self) -> u16 {
        self.connection.id
    }

    /// The controller that it belongs to, once connected.
    pub(crate) fn controller(&self) -> Option<&Arc<Controller>> {
        self.connection.controller()
    }

    /// Whether it belongs to a controller.
    pub(crate) fn belongs_to(&self, controller: &Arc<Controller>) -> bool {
        self.controller().is_some_and(|own| Arc::ptr_eq(own, controller))
    }

    /// Its core serves something else: the host may see other namespaces. What waits for those that it does not see any
    /// more ends.
    pub(crate) fn refresh_namespaces(&mut self, resources: &mut Resources) {
        let Self { connection, commands, .. } = self;
        if let Some(attached) = &mut connection.attached {
            attached.refresh_namespaces(resources);
            WaitingCommands { commands, connection, resources }.end_refused();
        }
    }

    /// A command capsule has arrived; none when it was too short for one. `intact` says that its data are as they were
    /// sent.
    pub(crate) fn on_capsule(
        &mut self,
        resources: &mut Resources,
        command: Option<&SubmissionEntry>,
        data: Option<Buffer>,
        intact: bool,
    ) {
        if !self.connection.is_open() {
            return;
        }
        let Some(command) = command else {
            let unfinished = !self.commands.table.is_idle();
            return self.connection.violation(resources, "a capsule shorter than a command", unfinished);
        };
        if let Some(attached) = &self.connection.attached {
            attached.record.note_traffic();
        }
        resources.states.arrived(self.id() != 0);
        self.commands.begin(&mut self.connection, resources, command, data, intact);
        if self.connection.phase == Phase::Ending {
            self.stop_taking_commands(resources);
        }
    }

    /// A piece of the host's data is here; without its buffer the connection has ended.
    pub(crate) fn on_fetched(
        &mut self,
        resources: &mut Resources,
        id: FetchId,
        sink: Option<Buffer>,
        intact: bool,
    ) {
        let Self { connection, commands, .. } = self;
        connection.link.completed(1);
        self.progress = resources.reactor.now();
        if let Some(slot) = commands.table.find(id.slot, id.generation) {
            commands.data_arrived(connection, resources, slot, usize::from(id.piece), sink, intact);
        }
        commands.room_freed(connection, resources);
    }

    /// So many responses and pieces of data have been sent.
    pub(crate) fn on_sent(&mut self, resources: &mut Resources, count: u32) {
        self.connection.link.sent(count);
        self.progress = resources.reactor.now();
        self.commands.samples.sent(&self.connection, resources.states.now());
        self.commands.room_freed(&mut self.connection, resources);
    }

    /// A disk has finished an operation of the request with this slot and generation.
    pub(crate) fn on_disk(&mut self, resources: &mut Resources, finished: Finished) {
        let Self { connection, commands, .. } = self;
        let number = (finished.tag.index & 0xffff) as u16;
        if let Some(slot) = commands.table.find(number, finished.tag.generation)
            && commands.disk_finished(connection, resources, slot, finished)
        {
            self.note_unfinished();
        }
    }

    /// Something has happened to a request that waits, if it is there still. Returns in which state it is now.
    fn on_event(&mut self, resources: &mut Resources, request: RequestId, event: Event) -> Option<State> {
        let Self { connection, commands, .. } = self;
        let slot = commands.table.find(request.slot, request.generation)?;
        commands.on_event(connection, resources, slot, event);
        Some(commands.table[slot].state())
    }

    /// A request that waits at a gate may pass.
    pub(crate) fn pass(&mut self, resources: &mut Resources, request: RequestId, gate: Gate) {
        let event = if gate == Gate::Limits { Event::LimitPassed } else { Event::TurnCame };
        self.on_event(resources, request, event);
    }

    /// Buffers may have come back: tries a request that waited. Returns whether it still waits.
    pub(crate) fn retry_buffers(&mut self, resources: &mut Resources, request: RequestId) -> bool {
        self.on_event(resources, request, Event::BuffersFree) == Some(State::NeedBuffer)
    }

    /// The blocks that a request waited for are free, perhaps.
    pub(crate) fn blocks_released(&mut self, resources: &mut Resources, request: RequestId) {
        self.on_event(resources, request, Event::BlocksReleased);
    }

    /// Looks again at a request that is held back; `late` says that it has waited long enough. Returns whether it waits
    /// on.
    pub(crate) fn retry_held_back(
        &mut self,
        resources: &mut Resources,
        request: RequestId,
        late: bool,
    ) -> bool {
        let table = &mut self.commands.table;
        let slot = table.find(request.slot, request.generation);
        let Some(slot) = slot.filter(|slot| table[*slot].state() == State::HeldBack) else { return false };
        if !self.connection.holds_back(resources, &table[slot].action) {
            self.on_event(resources, request, Event::Unheld);
            return false;
        }
        if late {
            table[slot].fail(Failure::transient(Status::NAMESPACE_NOT_READY));
            self.on_event(resources, request, Event::TimedOut);
        }
        !late
    }

    /// A fused pair has its blocks. False when the pair that asked is not there any more.
    pub(crate) fn claimed(&mut self, resources: &mut Resources, claim: ClaimId) -> bool {
        self.commands.claimed(&mut self.connection, resources, claim)
    }

    /// Aborts a command that still waits. Returns whether it has ended at once; one that a disk works on goes on.
    pub(crate) fn abort(&mut self, resources: &mut Resources, command_id: u16) -> bool {
        // Another connection may be the queue that is meant.
        let Self { connection, commands, .. } = self;
        connection.has_joined()
            && WaitingCommands { commands, connection, resources }.abort(command_id) == Aborted::AtOnce
    }

    /// An Abort that ran elsewhere (or here) has an answer: whether the command was aborted.
    pub(crate) fn abort_answered(&mut self, resources: &mut Resources, request: RequestId, aborted: bool) {
        let table = &mut self.commands.table;
        // The answer may come to another queue than asked: one that has the place of a queue that has ended.
        let slot = table.find(request.slot, request.generation);
        if let Some(slot) = slot.filter(|slot| table[*slot].state() == State::Aborting) {
            // Bit 0 of dword 0 is set when the command was not aborted (Base 2.0, section 5.1).
            table[slot].result = u64::from(!aborted);
            self.on_event(resources, request, Event::AbortAnswered);
        }
    }

    /// A worker has done what a request asked for.
    pub(crate) fn worker_done(
        &mut self,
        resources: &mut Resources,
        request: RequestId,
        outcome: Result<Vec<u8>, Failure>,
    ) {
        let table = &mut self.commands.table;
        let slot = table.find(request.slot, request.generation);
        if let Some(slot) = slot.filter(|slot| table[*slot].state() == State::AtWorker) {
            match outcome {
                Ok(bytes) => table[slot].pieces.fill(&bytes),
                Err(failure) => table[slot].fail(failure),
            }
            self.on_event(resources, request, Event::WorkerDone);
        }
    }

    /// A worker has computed for the authentication of its host.
    pub(crate) fn computed(&mut self, resources: &mut Resources, outcome: Result<Computed, WorkError>) {
        authentication::computed(&mut self.commands, &mut self.connection, resources, outcome);
        if self.connection.phase == Phase::Ending {
            self.stop_taking_commands(resources);
        }
    }

    /// Whether a request works, or is going to work, on a disk.
    pub(crate) fn uses_disk(&self, disk: usize) -> bool {
        let table = &self.commands.table;
        table.waiting().any(|slot| table[slot].uses_disk(disk))
    }

    /// What a disk works on for this queue.
    pub(crate) fn at_disk(&self, disk: usize) -> impl Iterator<Item = &'static Kind> {
        let table = &self.commands.table;
        let at_disk = move |slot: &Slot| table[*slot].is_at_disk(disk);
        table.waiting().filter(at_disk).map(|slot| table[slot].action.kind())
    }

    /// Whether a disk works in this scope for a request.
    pub(crate) fn is_working_in(&self, scope: &Scope) -> bool {
        let Some(attached) = &self.connection.attached else { return false };
        let (table, host) = (&self.commands.table, attached.host_id());
        table.waiting().any(|slot| table[slot].is_working_in(scope, host))
    }

    /// Takes no more commands, and ends the connection once the outstanding ones have completed. Parked event
    /// requests are not waited for.
    pub(crate) fn end(&mut self, resources: &mut Resources) {
        if self.connection.phase == Phase::Open {
            self.connection.phase = Phase::Ending;
            self.stop_taking_commands(resources);
        }
        self.end_when_quiet(resources);
    }

    fn stop_taking_commands(&mut self, resources: &mut Resources) {
        self.commands.end_half(&mut self.connection, resources);
        self.note_unfinished();
        self.end_when_quiet(resources);
    }

    /// Ends the connection now, because its controller is gone or is being reset. Nobody waits for answers any more, so
    /// that what waits for buffers, or for the host to give or take data, ends with it. Only disks are waited for.
    pub(crate) fn abandon(&mut self, resources: &mut Resources, remainder: Remainder) {
        if self.connection.is_closed() {
            return;
        }
        self.connection.phase = Phase::Disconnecting;
        self.commands.on_event_of_all(&mut self.connection, resources, Event::Abandoned);
        self.note_unfinished();
        leaving::fence_others(&self.connection, &self.commands, resources);
        let endpoint = self.endpoint();
        if remainder == Remainder::MayBeSent && self.connection.link.is_idle() {
            resources.transports.disconnect(&mut resources.reactor, endpoint);
        } else {
            resources.transports.abort(&mut resources.reactor, endpoint);
        }
    }

    /// Ends the connection now and without another word, since somebody else needs its place.
    pub(crate) fn evict(&mut self, resources: &mut Resources, reason: &str) {
        let unfinished = !self.commands.table.is_idle();
        self.connection.evict(resources, reason, unfinished);
    }

    /// Whether it takes commands.
    pub(crate) fn is_open(&self) -> bool {
        self.connection.is_open()
    }

    /// What it lacks, if its host has no Connect, or could be anybody, and may still change that.
    pub(crate) fn opening(&self) -> Option<Opening> {
        let connection = &self.connection;
        (connection.is_opening() && self.is_open()).then(|| Opening {
            since: self.opened,
            asked: connection.host_is_asked_since(self.opened),
            is_connected: connection.attached.is_some(),
        })
    }

    /// The connection is gone and its transport has given everything back.
    pub(crate) fn on_disconnected(&mut self, resources: &mut Resources, disconnection: Disconnection<'_>) {
        let has_left = self.connection.is_open();
        self.connection.phase = Phase::Closed;
        self.gone_at = resources.reactor.now();
        let is_idle = self.commands.table.is_idle();
        if !is_idle {
            let outstanding = self.commands.table.counts();
            let (peer, queue) = (self.connection.peer, self.id());
            tracing::debug!(%peer, queue, ?outstanding, "requests end with their connection");
        }
        self.commands.disconnected(&mut self.connection, resources);
        self.has_left_behind = !self.commands.table.is_idle();
        self.note_unfinished();
        self.connection.log_disconnected(disconnection, has_left, is_idle);
        if !is_idle {
            leaving::end_lost_controller(&self.connection, resources);
        }
        leaving::fence_others(&self.connection, &self.commands, resources);
    }

    /// Whether the connection is gone and no disk holds anything of it.
    pub(crate) fn is_finished(&self) -> bool {
        self.is_closed() && self.commands.table.is_idle()
    }

    /// Whether the connection is gone.
    pub(crate) fn is_closed(&self) -> bool {
        self.connection.is_closed()
    }

    /// Tells its controller, once, that it is gone, and returns that. An I/O queue waits for its disks first, but not
    /// for ever: what they do not end in time is fenced (see [`Controller::is_fenced`]), and stays in its slot until
    /// they do.
    pub(crate) fn leave(&mut self, now: Time) -> Option<Arc<Controller>> {
        let unfinished = self.id() != 0 && !self.commands.table.is_idle();
        if self.has_left || (unfinished && now < self.gone_at + LEFT_BEHIND_PATIENCE) {
            return None;
        }
        self.has_left = true;
        let controller = Arc::clone(self.controller()?);
        // Without its admin queue a controller is over, which the target has to know: see `core::queues`.
        if self.id() != 0 {
            controller.queue_left(&self.connection.attached.as_ref()?.record);
        }
        Some(controller)
    }

    /// Nothing of it is left: its counters go to the subsystem. Returns whether disks worked for it when its connection
    /// was gone: others may wait for that.
    pub(crate) fn finish(self) -> bool {
        if let Some(Attachment { controller, record, .. }) = self.connection.attached {
            controller.subsystem().queue_ended(&record);
        }
        self.has_left_behind
    }

    /// From time to time: deadlines, and the events that an admin queue has to report.
    pub(crate) fn tick(&mut self, resources: &mut Resources, now: Time) {
        let Self { connection, commands, .. } = self;
        let unfinished = !commands.table.is_idle();
        if connection.attached.is_none() && connection.is_open() && now >= self.opened + CONNECT_TIMEOUT {
            tracing::warn!(peer = %connection.peer, queue = connection.id, "no Connect command in time");
            connection.disconnect(resources, unfinished);
        }
        if connection.authentication_is_overdue(now) && connection.is_open() {
            log::authentication_overdue(connection);
            connection.disconnect(resources, unfinished);
        }
        if connection.link.is_idle() {
            self.progress = now;
        } else if connection.is_up() && now >= self.progress + STALL_TIMEOUT {
            connection.stalled(resources, unfinished);
            leaving::end_lost_controller(connection, resources);
        }
        commands.expire_half(connection, resources, now);
        if connection.id == 0 && connection.is_up() {
            resets::report(commands, connection, resources);
        }
        if connection.id == 0 && connection.is_open() {
            WaitingCommands { commands, connection, resources }.report_events();
        }
        self.end_when_quiet(resources);
    }

    /// Once in a while: gives back what a busy queue needs, if it has been idle. Returns whether anything went.
    pub(crate) fn trim(&mut self) -> bool {
        self.commands.table.trim()
    }

    /// It takes no more commands. While some still run, their host's next controller is not ready, or not for all
    /// disks.
    fn note_unfinished(&self) {
        let Some(Attachment { record, .. }) = self.connection.attached.as_ref().filter(|_| self.id() != 0)
        else {
            return;
        };
        let table = &self.commands.table;
        if self.is_closed() {
            let disks = table.waiting().filter_map(|slot| table[slot].action.disk());
            record.set_orphaned_on(disks.collect::<BTreeSet<usize>>());
        }
        record.set_unfinished(!table.is_idle());
    }

    fn end_when_quiet(&mut self, resources: &mut Resources) {
        if self.connection.phase == Phase::Ending && self.commands.table.are_all(State::Parked) {
            self.connection.disconnect(resources, !self.commands.table.is_idle());
        }
    }
}
