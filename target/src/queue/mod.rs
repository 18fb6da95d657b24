//! A queue pair of a controller on its core: the table of its requests and their one life.
//!
//! | state | what it waits for |
//! | --- | --- |
//! | `NeedBuffer` | buffers of the core's pool, in order among all queues of its host |
//! | `DataIn` | the host's data, which the transport fetches |
//! | `Execute` | the disk, or the controller (an Asynchronous Event Request waits here) |
//! | `DataOut` | room in the send queue for data and response |
//! | `Complete` | nothing: the slot becomes free in the same step |

mod at_disk;
mod control;
mod disk;
mod fused;
mod identifiers;
mod life;
mod request;
mod steps;
mod told;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ringfab_block::Finished;
use ringfab_memory::Buffer;
use ringfab_reactor::Time;
use ringfab_spec::SubmissionEntry;

use crate::controller::{Controller, LEFT_BEHIND_PATIENCE};
use crate::model::QueueRecord;
use crate::nvm::{Action, Extent};
use crate::placement::Place;
use crate::resources::{HostId, Resources};
use crate::transport::{Endpoint, Link, WorkId};

pub(crate) use at_disk::AtDisk;
use fused::FirstHalf;
pub use request::State;
pub(crate) use request::{Requests, Slot};
pub(crate) use told::tell_keep_alive_expired;

/// How long a host may take from the connection to its Connect command.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Commands that a queue can hold before its Connect is done, so that a peer which never sends one costs little. An
/// ordinary host sends nothing else before it has the answer.
const HALF_OPEN_ENTRIES: u16 = 4;

/// How long a host may take none of what we send and give nothing of what we fetch. What is in flight to it holds
/// buffers that the other queues of the core wait for.
const STALL_TIMEOUT: Duration = Duration::from_secs(10);

/// One queue, from the connection's arrival until nothing of it is in flight.
#[derive(Debug)]
pub(crate) struct Queue {
    /// Its place in the core's table.
    number: u16,
    link: Link,
    id: u16,
    entries: u16,
    peer: SocketAddr,
    listener: SocketAddr,
    host: HostId,
    requests: Requests,
    /// Requests that wait for room in the send queue, in order.
    blocked: std::collections::VecDeque<Slot>,
    /// The first half of a fused operation whose second has not come.
    first_half: FirstHalf,
    attached: Option<Attachment>,
    /// When its connection came.
    opened: Time,
    /// When something was last in flight to the host and came to its end, or nothing was in flight.
    progress: Time,
    submission_head: u16,
    phase: Phase,
    /// When the connection was gone.
    gone_at: Time,
    /// Whether its controller knows that it is gone.
    has_left: bool,
    /// Of an I/O queue: where it is counted.
    _place: Option<Place>,
}

/// What a queue belongs to, once its Connect succeeded.
#[derive(Debug)]
struct Attachment {
    controller: Arc<Controller>,
    record: Arc<QueueRecord>,
}

/// Where a queue is in its own life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Its connection is up.
    Open,
    /// It takes no more commands; the connection ends once what is outstanding has completed.
    Ending,
    /// We have asked for the connection's end.
    Disconnecting,
    /// The connection is gone; what the disks still hold is awaited.
    Gone,
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
    pub(crate) listener: SocketAddr,
    pub(crate) host: HostId,
    /// Its place on the core, if it is an I/O queue.
    pub(crate) place: Option<Place>,
}

impl Queue {
    pub(crate) fn new(parameters: QueueParameters, now: Time) -> Self {
        let QueueParameters { number, endpoint, id, entries, peer, listener, host, place } = parameters;
        Self {
            number,
            link: Link::new(endpoint, entries),
            id,
            entries,
            peer,
            listener,
            host,
            requests: Requests::new(entries.min(HALF_OPEN_ENTRIES)),
            blocked: std::collections::VecDeque::new(),
            first_half: FirstHalf::None,
            attached: None,
            opened: now,
            progress: now,
            submission_head: 0,
            phase: Phase::Open,
            gone_at: now,
            has_left: false,
            _place: place,
        }
    }

    /// The connection that it runs on.
    pub(crate) fn endpoint(&self) -> Endpoint {
        self.link.endpoint()
    }

    /// Whose it is.
    pub(crate) fn host(&self) -> HostId {
        self.host
    }

    /// Queue identifier; zero is an admin queue.
    pub(crate) fn id(&self) -> u16 {
        self.id
    }

    /// The controller that it belongs to, once connected.
    pub(crate) fn controller(&self) -> Option<&Arc<Controller>> {
        self.attached.as_ref().map(|attached| &attached.controller)
    }

    /// Whether it belongs to a controller.
    pub(crate) fn belongs_to(&self, controller: &Arc<Controller>) -> bool {
        self.controller().is_some_and(|own| Arc::ptr_eq(own, controller))
    }

    /// A command capsule has arrived; none when it was too short for one. `intact` says that its data are as they
    /// were sent.
    pub(crate) fn on_capsule(
        &mut self,
        resources: &mut Resources,
        command: Option<&SubmissionEntry>,
        data: Option<Buffer>,
        intact: bool,
    ) {
        if self.phase != Phase::Open {
            return;
        }
        let Some(command) = command else {
            self.violation(resources, "a capsule shorter than a command");
            return;
        };
        if let Some(attached) = &self.attached {
            attached.record.note_traffic();
        }
        resources.commands += u32::from(self.id() != 0);
        self.begin(resources, command, data, intact);
    }

    /// A piece of the host's data is here; without its buffer the connection has ended.
    pub(crate) fn on_fetched(
        &mut self,
        resources: &mut Resources,
        id: WorkId,
        sink: Option<Buffer>,
        intact: bool,
    ) {
        self.link.completed(1);
        self.progress = resources.reactor.now();
        if let Some(slot) = self.requests.find(id.slot, id.generation) {
            self.data_arrived(resources, slot, usize::from(id.piece), sink, intact);
        }
        self.unblock(resources);
    }

    /// So many responses and pieces of data have been sent.
    pub(crate) fn on_sent(&mut self, resources: &mut Resources, count: u32) {
        self.link.completed(count);
        self.progress = resources.reactor.now();
        self.unblock(resources);
    }

    /// A disk has finished an operation of the request with this slot and generation.
    pub(crate) fn on_disk(&mut self, resources: &mut Resources, finished: Finished) {
        let number = (finished.tag.index & 0xffff) as u16;
        if let Some(slot) = self.requests.find(number, finished.tag.generation) {
            self.disk_finished(resources, slot, finished);
        }
    }

    /// Buffers may have come back: tries a request that waited. Returns whether it still waits.
    pub(crate) fn retry_buffers(&mut self, resources: &mut Resources, number: u16, generation: u16) -> bool {
        let Some(slot) = self.requests.find(number, generation) else { return false };
        if self.requests[slot].state() != State::NeedBuffer {
            return false;
        }
        if self.phase == Phase::Gone {
            self.requests.release(slot);
            return false;
        }
        !self.take_buffers(resources, slot)
    }

    /// Commands that have no answer yet.
    pub(crate) fn outstanding(&self) -> usize {
        self.requests.outstanding().count()
    }

    /// Whether a request works, or is going to work, on a disk.
    pub(crate) fn uses_disk(&self, disk: usize) -> bool {
        self.requests.outstanding().map(|slot| &self.requests[slot]).any(|request| match request.action {
            Action::FlushAll { .. } => request.pending != 0,
            action => action.disk() == Some(disk),
        })
    }

    /// What a disk works on for this queue.
    pub(crate) fn at_disk(&self, disk: usize) -> impl Iterator<Item = AtDisk> {
        let at_disk = move |slot: &Slot| {
            let request = &self.requests[*slot];
            request.state() == State::Execute && request.pending != 0 && request.action.disk() == Some(disk)
        };
        self.requests.outstanding().filter(at_disk).map(|slot| AtDisk::of(&self.requests[slot].action))
    }

    /// Whether a disk works on these blocks for a request.
    pub(crate) fn is_working_on(&self, extent: &Extent) -> bool {
        self.requests.outstanding().map(|slot| &self.requests[slot]).any(|request| {
            let at_disk = request.state() == State::Execute && request.pending != 0;
            at_disk && request.action.extent().is_some_and(|own| own.overlaps(extent))
        })
    }

    /// The blocks that a request waited for are free, perhaps.
    pub(crate) fn resume(&mut self, resources: &mut Resources, number: u16, generation: u16) {
        if let Some(slot) = self.requests.find(number, generation).filter(|slot| self.requests[*slot].delayed)
        {
            self.run_io(resources, slot);
        }
    }

    /// Takes no more commands, and ends the connection once the outstanding ones have completed. Parked event
    /// requests are not waited for.
    pub(crate) fn end(&mut self, resources: &mut Resources) {
        if self.phase == Phase::Open {
            self.phase = Phase::Ending;
            self.end_half(resources);
            self.note_unfinished();
        }
        self.end_when_quiet(resources);
    }

    /// Ends the connection now, because its controller is gone or is being reset. Nobody waits for answers any more,
    /// so that what waits for buffers, or for the host to give or take data, ends with it. Only disks are waited for.
    pub(crate) fn abandon(&mut self, resources: &mut Resources) {
        if self.phase == Phase::Gone {
            return;
        }
        self.phase = Phase::Disconnecting;
        self.release_waiting();
        self.note_unfinished();
        let endpoint = self.link.endpoint();
        if self.link.is_idle() {
            resources.transports.disconnect(&mut resources.reactor, endpoint);
        } else {
            resources.transports.abort(&mut resources.reactor, endpoint);
        }
    }

    /// Ends the requests that have not got buffers yet.
    fn release_waiting(&mut self) {
        self.first_half = FirstHalf::None;
        let waits = |slot: &Slot| self.requests[*slot].state() == State::NeedBuffer;
        let waiting: Vec<Slot> = self.requests.outstanding().filter(waits).collect();
        for slot in waiting {
            self.requests.release(slot);
        }
    }

    /// Ends the connection now, whatever is outstanding.
    pub(crate) fn disconnect(&mut self, resources: &mut Resources) {
        if matches!(self.phase, Phase::Open | Phase::Ending) {
            self.phase = Phase::Disconnecting;
            self.note_unfinished();
            resources.transports.disconnect(&mut resources.reactor, self.link.endpoint());
        }
    }

    /// Ends the connection now and without another word, since somebody else needs its place.
    pub(crate) fn evict(&mut self, resources: &mut Resources, reason: &str) {
        if matches!(self.phase, Phase::Open | Phase::Ending) {
            tracing::warn!(peer = %self.peer, queue = self.id, reason, "connection closed");
            self.phase = Phase::Disconnecting;
            self.note_unfinished();
            resources.transports.abort(&mut resources.reactor, self.link.endpoint());
        }
    }

    /// Whether it takes commands.
    pub(crate) fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    /// Since when it is there without a Connect, unless it has one or is ending.
    pub(crate) fn opening_since(&self) -> Option<Time> {
        (self.attached.is_none() && self.phase == Phase::Open).then_some(self.opened)
    }

    /// The connection is gone and its transport has given everything back.
    pub(crate) fn on_disconnected(&mut self, now: Time) {
        self.phase = Phase::Gone;
        self.gone_at = now;
        if !self.requests.is_idle() {
            let outstanding = self.requests.counts();
            tracing::debug!(peer = %self.peer, queue = self.id, ?outstanding, "requests end with their connection");
        }
        self.blocked.clear();
        self.keep_claims();
        let idle: Vec<Slot> =
            self.requests.outstanding().filter(|slot| self.requests[*slot].pending == 0).collect();
        for slot in idle {
            self.requests.release(slot);
        }
        self.note_unfinished();
    }

    /// Whether the connection is gone and no disk holds anything of it.
    pub(crate) fn is_finished(&self) -> bool {
        self.phase == Phase::Gone && self.requests.is_idle()
    }

    /// Whether the connection is gone.
    pub(crate) fn is_gone(&self) -> bool {
        self.phase == Phase::Gone
    }

    /// Tells its controller, once, that it is gone, and returns that. An I/O queue waits for its disks first, but not
    /// for ever: what they do not end in time is fenced (see [`Controller::is_fenced`]), and stays in its slot until
    /// they do.
    pub(crate) fn leave(&mut self, now: Time) -> Option<Arc<Controller>> {
        let unfinished = self.id != 0 && !self.requests.is_idle();
        if self.has_left || (unfinished && now < self.gone_at + LEFT_BEHIND_PATIENCE) {
            return None;
        }
        self.has_left = true;
        let controller = Arc::clone(self.controller()?);
        // Without its admin queue a controller is over, which the target has to know: see `Core::queue_left`.
        if self.id != 0 {
            controller.queue_left(self.id);
        }
        Some(controller)
    }

    /// Nothing of it is left: its counters go to the subsystem.
    pub(crate) fn finish(self) {
        if let Some(Attachment { controller, record }) = self.attached {
            controller.subsystem().queue_ended(&record);
        }
    }

    /// From time to time: deadlines, and the events that an admin queue has to report.
    pub(crate) fn tick(&mut self, resources: &mut Resources, now: Time) {
        if self.attached.is_none() && self.phase == Phase::Open && now >= self.opened + CONNECT_TIMEOUT {
            tracing::warn!(peer = %self.peer, queue = self.id, "no Connect command in time");
            self.disconnect(resources);
        }
        if self.link.is_idle() {
            self.progress = now;
        } else if matches!(self.phase, Phase::Open | Phase::Ending) && now >= self.progress + STALL_TIMEOUT {
            self.violation(resources, "the host neither takes nor gives data");
        }
        self.expire_half(resources, now);
        self.report_events(resources);
        self.end_when_quiet(resources);
    }

    /// Once in a while: gives back what a busy queue needs, if it has been idle. Returns whether anything went.
    pub(crate) fn rest(&mut self) -> bool {
        self.requests.rest()
    }

    /// The peer broke the protocol in a way that no status can tell it.
    fn violation(&mut self, resources: &mut Resources, what: &str) {
        self.tell_violation(what);
        self.disconnect(resources);
    }

    /// It takes no more commands. While some still run, their host's next controller is not ready, or not for all
    /// disks.
    fn note_unfinished(&self) {
        let Some(Attachment { record, .. }) = self.attached.as_ref().filter(|_| self.id != 0) else { return };
        if self.phase == Phase::Gone {
            let disks = self.requests.outstanding().filter_map(|slot| self.requests[slot].action.disk());
            record.set_left_on(disks.collect::<BTreeSet<usize>>());
        }
        record.set_unfinished(!self.requests.is_idle());
    }

    fn end_when_quiet(&mut self, resources: &mut Resources) {
        if self.phase == Phase::Ending && self.requests.outstanding().all(|slot| self.is_parked(slot)) {
            self.disconnect(resources);
        }
    }
}
