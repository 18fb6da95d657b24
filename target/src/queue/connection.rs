//! The host's end of a queue, as its requests see it: the link, the controller, and the head of the submission queue.

use std::net::SocketAddr;
use std::sync::Arc;

use ringfab_spec::{CompletionEntry, Status, SubmissionEntry};

use super::attachment::Attachment;
use super::authentication::Authentication;
use crate::controller::Controller;
use crate::failure::Failure;
use crate::model::{TlsChannel, Way};
use crate::nvm::{DataBytes, HostMemory};
use crate::resources::{HostId, Resources};
use crate::transport::{CommandData, Link};

/// Where a queue is in its own life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Its connection is up.
    Open,
    /// It takes no more commands; the connection ends once what is outstanding has completed.
    Ending,
    /// We have asked for the connection's end.
    Disconnecting,
    /// The connection is gone; what the disks still hold is awaited.
    Closed,
}

/// The host's end of a queue.
#[derive(Debug)]
pub(super) struct Connection {
    /// Queue identifier; zero is an admin queue.
    pub(super) id: u16,
    /// Entries of the submission queue.
    pub(super) entries: u16,
    /// Where it is reached.
    pub(super) peer: SocketAddr,
    /// By which it came.
    pub(super) way: Way,
    /// Its TLS, unless it is in clear text.
    pub(super) tls: Option<Arc<TlsChannel>>,
    /// The address that it came from, among the hosts of the core.
    pub(super) address: HostId,
    /// Whose it is: of a host that is known by its NQN once it has a Connect, and by its address before.
    pub(super) host: HostId,
    pub(super) link: Link,
    pub(super) phase: Phase,
    /// What it belongs to, once its Connect succeeded.
    pub(super) attached: Option<Attachment>,
    /// How its host proves who it is, if it has to.
    pub(super) authentication: Option<Box<Authentication>>,
    /// Commands that came before its host was let in.
    pub(super) early: u16,
    pub(super) submission_head: u16,
}

impl Connection {
    /// The controller that it belongs to, once connected.
    pub(super) fn controller(&self) -> Option<&Arc<Controller>> {
        self.attached.as_ref().map(|attached| &attached.controller)
    }

    /// The same, for a command that needs one.
    pub(super) fn own_controller(&self) -> Result<&Arc<Controller>, Failure> {
        self.controller().ok_or(Failure::new(Status::COMMAND_SEQUENCE_ERROR))
    }

    /// Whether its controller has taken it. An I/O queue is taken once its host has proved who it is.
    pub(super) fn has_joined(&self) -> bool {
        self.attached.is_some()
            && (self.id == 0 || self.authentication.as_deref().is_none_or(Authentication::is_proved))
    }

    /// Whether it takes commands.
    #[inline(always)]
    pub(super) fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    /// Whether the connection is gone.
    #[inline(always)]
    pub(super) fn is_closed(&self) -> bool {
        self.phase == Phase::Closed
    }

    /// Whether somebody may still be answered on it.
    pub(super) fn is_up(&self) -> bool {
        matches!(self.phase, Phase::Open | Phase::Ending)
    }

    /// SQHD of the next completion: a command frees its entry when it completes, so that a host that keeps to the
    /// queue's size never has more commands outstanding than there are slots.
    pub(super) fn next_submission_head(&mut self) -> u16 {
        let head = self.submission_head + 1;
        self.submission_head = if head < self.entries { head } else { 0 };
        match &self.attached {
            Some(attached) if !attached.record.flow_control() => u16::MAX,
            _ => self.submission_head,
        }
    }

    /// A command has ended without an answer. Its entry of the queue is free again, as a later SQHD says.
    pub(super) fn skip_answer(&mut self, resources: &mut Resources) {
        self.next_submission_head();
        self.link.replenish(&mut resources.transports);
    }

    /// The peer broke the protocol in a way that no status can tell it.
    #[cold]
    pub(super) fn violation(&mut self, resources: &mut Resources, what: &str, unfinished: bool) {
        self.log_violation(what);
        self.disconnect(resources, unfinished);
    }

    /// Its host neither receives nor sends data: ends the connection now.
    pub(super) fn stalled(&mut self, resources: &mut Resources, unfinished: bool) {
        self.log_stalled();
        self.disconnect(resources, unfinished);
    }

    /// Ends the connection now, whatever is outstanding; `unfinished` says whether something is.
    pub(super) fn disconnect(&mut self, resources: &mut Resources, unfinished: bool) {
        if self.is_up() {
            self.phase = Phase::Disconnecting;
            self.note_unfinished(unfinished);
            resources.transports.disconnect(&mut resources.reactor, self.link.endpoint());
        }
    }

    /// Ends the connection now and without another word, since somebody else needs its place.
    #[cold]
    pub(super) fn evict(&mut self, resources: &mut Resources, reason: &str, unfinished: bool) {
        if self.is_up() {
            tracing::warn!(peer = %self.peer, queue = self.id, reason, "connection closed");
            self.phase = Phase::Disconnecting;
            self.note_unfinished(unfinished);
            resources.transports.abort(&mut resources.reactor, self.link.endpoint());
        }
    }

    /// It takes no more commands. While some still run, their host's next controller is not ready, or not for all
    /// disks.
    pub(super) fn note_unfinished(&self, unfinished: bool) {
        if let Some(Attachment { record, .. }) = self.attached.as_ref().filter(|_| self.id != 0) {
            record.set_unfinished(unfinished);
        }
    }

    /// A command whose identifier is in use gets its status at once; it never had a slot.
    pub(super) fn refuse_identifier(&mut self, resources: &mut Resources, command: &SubmissionEntry) {
        if !self.link.has_room(1) {
            return self.violation(resources, "identifiers in use, again and again", true);
        }
        let head = self.next_submission_head();
        let status = Status::COMMAND_ID_CONFLICT.with_dnr();
        self.log_failed(command, status);
        if let Some(attached) = self.attached.as_ref().filter(|_| self.has_joined()) {
            attached.record_error(resources.reactor.now(), self.id, command, status, None);
        }
        let entry = CompletionEntry::new(command.cid.get(), head, status);
        let (slot, generation, cid) = (u16::MAX, 0, command.cid.get());
        let transfer = CommandData { slot, generation, cid, memory: HostMemory::None, length: DataBytes(0) };
        let nothing = std::iter::empty();
        let _ended = self.link.answer(&mut resources.transports, &transfer, 0, nothing, &entry);
        self.link.replenish(&mut resources.transports);
    }
}
