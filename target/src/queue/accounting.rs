//! What is counted and recorded of commands that have ended, where their queue is attached.

use ringfab_reactor::Time;
use ringfab_spec::{IoOpcode, Status, SubmissionEntry};

use super::attachment::Attachment;
use super::request::Request;
use crate::controller::ErrorRecord;
use crate::failure::ErrorLocation;
use crate::model::IoRecord;
use crate::nvm::{Access, Action};
use crate::resources::Resources;

impl Attachment {
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
        self.record_error(now, queue_id, &request.command, request.status, request.location);
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
        status: Status,
        location: Option<ErrorLocation>,
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
    match action.access() {
        Access::Reads => record.note_read(action.bytes().0),
        Access::Writes => record.note_write(action.bytes().0),
        Access::Changes | Access::Flushes | Access::None => record.note_other(),
    }
}
