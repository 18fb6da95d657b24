//! What a command asks for, as it arrives: its action, the size and place of its data, and the epoch in which it may
//! run.

use ringfab_memory::Buffer;
use ringfab_spec::{Status, SubmissionEntry};

use super::attachment::Attachment;
use super::connection::Connection;
use super::request::Request;
use super::{admin, early};
use crate::controller::IoAccess;
use crate::failure::Failure;
use crate::nvm::{self, Action, NamespaceView, Transfer};
use crate::resources::Resources;

impl Request {
    /// Parses the command into what it asks for, and the size and place of its data.
    #[inline(always)]
    pub(super) fn plan(
        &mut self,
        connection: &mut Connection,
        resources: &Resources,
        capsule_bytes: u32,
    ) -> Result<(), Failure> {
        self.epoch = resources.target.epoch.now();
        let (action, transfer) = connection.parse(resources, &self.command)?;
        let host = nvm::host_memory(&self.command, action, transfer, capsule_bytes)?;
        if !connection.link.reaches(&host) {
            return Err(nvm::SGL_OF_ANOTHER_TRANSPORT);
        }
        (self.action, self.host, self.transfer) = (action, host, transfer);
        self.length = transfer.length();
        Ok(())
    }

    /// Data that came in the capsule needs no buffer and no transfer.
    pub(super) fn keep_capsule_data(&mut self, offset: usize, data: Option<Buffer>) {
        let length = self.length.0 as usize;
        let Some(mut data) = data else { unreachable!("the offset was checked against the capsule") };
        // Disks want aligned memory, which only the first byte of the buffer is sure to be.
        if offset != 0 {
            data.copy_within(offset..offset + length, 0);
        }
        data.set_len(length);
        self.pieces.push(data);
    }
}

impl Connection {
    /// What a command asks for, and the direction and size of its data.
    fn parse(
        &mut self,
        resources: &Resources,
        command: &SubmissionEntry,
    ) -> Result<(Action, Transfer), Failure> {
        if let Some(authentication) = &self.authentication {
            let parsed = authentication.parse(command);
            if !authentication.is_over() {
                early::count(self);
            }
            if let Some(parsed) = parsed {
                return parsed;
            }
        }
        let Some(attached) = &self.attached else {
            early::count(self);
            return admin::before_connect(command);
        };
        if self.id == 0 || command.is_fabrics() {
            return admin::transfer_of(&attached.controller, command, self.id);
        }
        attached.parse(resources, command)
    }
}

impl Attachment {
    /// What an I/O command asks for.
    #[inline(always)]
    fn parse(&self, resources: &Resources, command: &SubmissionEntry) -> Result<(Action, Transfer), Failure> {
        let controller = &self.controller;
        match controller.io_access() {
            IoAccess::Allowed | IoAccess::Fenced => {}
            IoAccess::Refused => return Err(Failure::new(Status::COMMAND_SEQUENCE_ERROR)),
            IoAccess::Ended => return Err(Failure::transient(Status::INTERNAL_PATH_ERROR)),
        }
        let namespace = |nsid| self.namespace(resources, nsid).map(|namespace| NamespaceView::of(namespace));
        let nsid = command.nsid.get();
        self.check_access(resources, nsid)?;
        let parsed = nvm::parse(command, namespace);
        let (action, transfer) = parsed.map_err(|failure| self.explained(resources, nsid, failure))?;
        Ok((if controller.write_cache_enabled() { action } else { action.durable() }, transfer))
    }
}
