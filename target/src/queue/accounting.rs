//! What a queue is attached to, and what is counted and recorded there of its commands.

use std::sync::Arc;

use ringfab_reactor::Time;
use ringfab_spec::{IoOpcode, Status, SubmissionEntry};

use super::request::Request;
use crate::controller::{Controller, ErrorRecord, IoAccess};
use crate::failure::{ErrorLocation, Failure};
use crate::model::{IoRecord, Namespace, QueueRecord};
use crate::nvm::{self, Action, NamespaceView, Transfer};
use crate::resources::Resources;

/// What a queue belongs to, once its Connect succeeded.
#[derive(Debug)]
pub(super) struct Attachment {
    pub(super) controller: Arc<Controller>,
    pub(super) record: Arc<QueueRecord>,
    /// The namespaces that its host sees and others do not, by ascending identifier.
    own: Vec<Arc<Namespace>>,
}

impl Attachment {
    /// What a queue belongs to from now on.
    pub(super) fn new(controller: Arc<Controller>, record: Arc<QueueRecord>, resources: &Resources) -> Self {
        let mut this = Self { controller, record, own: Vec::new() };
        this.refresh_namespaces(resources);
        this
    }

    /// Its core serves something else: the host may see other namespaces.
    pub(super) fn refresh_namespaces(&mut self, resources: &Resources) {
        let served = resources.served.of(self.controller.subsystem());
        let shown = served.into_iter().flat_map(|one| one.shown_only_to_some(&self.controller.host().nqn));
        self.own = shown.cloned().collect();
    }

    /// A namespace that its host sees and others do not.
    #[cold]
    fn own_namespace(&self, nsid: u32) -> Option<&Arc<Namespace>> {
        let index = self.own.binary_search_by_key(&nsid, |namespace| namespace.nsid());
        index.ok().map(|index| &self.own[index])
    }

    /// A namespace that its host sees.
    #[inline(always)]
    fn namespace<'a>(&'a self, resources: &'a Resources, nsid: u32) -> Option<&'a Arc<Namespace>> {
        let found = resources.namespaces.find(self.controller.subsystem(), nsid);
        found.or_else(|| self.own_namespace(nsid))
    }

    /// The host still sees the namespace, at this place of the table, for which a command of it has waited.
    pub(super) fn check_seen(&self, resources: &Resources, nsid: u32, disk: usize) -> Result<(), Failure> {
        let seen = self.namespace(resources, nsid).is_some_and(|namespace| namespace.index() == disk);
        if seen { Ok(()) } else { Err(nvm::NO_NAMESPACE) }
    }

    /// What an I/O command asks for.
    #[inline(always)]
    pub(super) fn parse(
        &self,
        resources: &Resources,
        command: &SubmissionEntry,
    ) -> Result<(Action, Transfer), Failure> {
        let controller = &self.controller;
        if controller.io_access() == IoAccess::Refused {
            return Err(Failure::new(Status::COMMAND_SEQUENCE_ERROR));
        }
        let namespace = |nsid| self.namespace(resources, nsid).map(|namespace| NamespaceView::of(namespace));
        let (action, transfer) = nvm::parse(command, namespace)?;
        Ok((if controller.write_cache_enabled() { action } else { action.durable() }, transfer))
    }

    #[cold]
    pub(super) fn is_disk_hung_or_fenced(
        &self,
        resources: &Resources,
        action: &Action,
        fenced: bool,
    ) -> bool {
        action.disk().is_some_and(|disk| {
            let open = resources.disks.get(disk);
            open.is_some_and(|open| open.progress.is_hung()) || (fenced && self.controller.is_fenced(disk))
        })
    }

    /// Counts a command that is about to be answered.
    pub(super) fn note_outcome(&self, resources: &Resources, queue_id: u16, request: &Request) {
        if queue_id != 0 {
            self.record.note_traffic();
            count(self.record.io(), &request.action);
            if let Some(namespace) = resources.io_of(&request.action) {
                count(namespace, &request.action);
            }
        }
    }

    /// Counts a command that has failed, and records that in the controller.
    #[cold]
    pub(super) fn note_failure(&self, resources: &Resources, queue_id: u16, request: &Request) {
        if queue_id != 0 {
            self.record.io().note_failed();
            self.note_failed(resources, request);
        }
        let now = resources.reactor.now();
        self.record_error(now, queue_id, &request.command, (request.status, request.location));
    }

    /// Counts an I/O command that has failed where its namespace is counted.
    fn note_failed(&self, resources: &Resources, request: &Request) {
        match resources.io_of(&request.action) {
            Some(namespace) => namespace.note_failed(),
            None => {
                let refused = self.namespace(resources, request.command.nsid.get());
                refused.inspect(|namespace| namespace.note_refused());
            }
        }
    }

    /// Puts a failed command into the controller's Error Information log.
    #[cold]
    pub(super) fn record_error(
        &self,
        now: Time,
        queue_id: u16,
        command: &SubmissionEntry,
        (status, location): (Status, Option<ErrorLocation>),
    ) {
        self.controller.record_error(ErrorRecord {
            queue_id,
            command_id: command.cid.get(),
            status,
            location,
            lba: if queue_id != 0 && is_of_blocks(command) { command.slba() } else { 0 },
            nsid: command.nsid.get(),
            at: now,
        });
    }
}

/// Whether a command has the address of a first logical block. In the same place others have something else.
fn is_of_blocks(command: &SubmissionEntry) -> bool {
    [
        IoOpcode::WRITE,
        IoOpcode::READ,
        IoOpcode::WRITE_UNCORRECTABLE,
        IoOpcode::COMPARE,
        IoOpcode::WRITE_ZEROES,
        IoOpcode::VERIFY,
    ]
    .contains(&IoOpcode(command.opcode))
}

#[inline(always)]
fn count(record: &IoRecord, action: &Action) {
    match action {
        Action::Read(extent) | Action::Compare(extent) | Action::Verify { extent, .. } => {
            record.note_read(extent.length.0);
        }
        Action::Write { extent, .. } => record.note_write(extent.length.0),
        _ => record.note_other(),
    }
}
