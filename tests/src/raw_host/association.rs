//! From a connection to a controller that is ready, and to its I/O queues.

use std::time::Instant;

use ringfab_fabric::rdma::QueuePairId;
use ringfab_spec::nqn::Nqn;
use ringfab_spec::property::offset;
use ringfab_spec::sqe::{ConnectData, PropertySize};
use ringfab_spec::{CompletionEntry, IntoBytes, Status, SubmissionEntry};

use super::{HOST_ID, HOST_NQN, PATIENCE, RawHost};
use crate::NQN;

/// CC of an ordinary host: entries of 64 and 16 bytes, enabled.
pub const CC_ENABLE: u64 = 0x0046_0001;

/// An admin queue whose controller is ready, or may become it.
#[derive(Clone, Copy, Debug)]
pub struct Association {
    /// The admin queue.
    pub admin: QueuePairId,
    /// Its controller.
    pub controller_id: u16,
}

impl RawHost {
    /// The data of our Connect commands.
    ///
    /// # Panics
    /// Never: the names are well formed.
    pub fn connect_data(controller_id: u16) -> ConnectData {
        Self::connect_data_as(HOST_NQN, controller_id)
    }

    fn connect_data_as(host: &str, controller_id: u16) -> ConnectData {
        let (subsystem, host) = (Nqn::new(NQN).expect("a name"), Nqn::new(host).expect("a name"));
        ConnectData::new(HOST_ID, controller_id, subsystem, host)
    }

    /// An admin queue of 32 entries whose controller is not yet enabled.
    pub fn associate(&mut self, keep_alive_ms: u32) -> Association {
        self.associate_as(HOST_NQN, keep_alive_ms)
    }

    fn associate_as(&mut self, host: &str, keep_alive_ms: u32) -> Association {
        let admin = self.open_queue(0, 32);
        let cid = self.next_cid();
        let entry = SubmissionEntry::connect(cid, 0, 32, keep_alive_ms, false);
        let data = Self::connect_data_as(host, ConnectData::CNTLID_DYNAMIC);
        let completion = self.command_with(admin, &entry, data.as_bytes());
        assert_eq!(completion.status(), Status::SUCCESS);
        Association { admin, controller_id: completion.connect_cntlid() }
    }

    /// Enables the controller and waits until it is ready.
    pub fn enable(&mut self, association: Association) {
        self.set_configuration(association, CC_ENABLE);
        self.wait_ready(association, 1);
    }

    /// Writes CC.
    pub fn set_configuration(&mut self, association: Association, value: u64) {
        let cid = self.next_cid();
        let entry = SubmissionEntry::property_set(cid, offset::CC, PropertySize::Four, value);
        assert_eq!(self.command(association.admin, &entry).status(), Status::SUCCESS);
    }

    /// Reads CSTS until CSTS.RDY has a value.
    ///
    /// # Panics
    /// When it never has.
    pub fn wait_ready(&mut self, association: Association, ready: u64) {
        let begun = Instant::now();
        while self.controller_status(association) & 1 != ready {
            assert!(begun.elapsed() < PATIENCE, "CSTS.RDY never became {ready}");
        }
    }

    /// CSTS.
    pub fn controller_status(&mut self, association: Association) -> u64 {
        let cid = self.next_cid();
        let entry = SubmissionEntry::property_get(cid, offset::CSTS, PropertySize::Four);
        self.command(association.admin, &entry).result()
    }

    /// A controller that is ready.
    pub fn attach(&mut self) -> Association {
        let association = self.associate(0);
        self.enable(association);
        association
    }

    /// The same under any name.
    pub fn attach_as(&mut self, host: &str) -> Association {
        let association = self.associate_as(host, 0);
        self.enable(association);
        association
    }

    /// An I/O queue of that controller.
    ///
    /// # Panics
    /// When the target refuses.
    pub fn attach_io_as(
        &mut self,
        association: Association,
        host: &str,
        queue_id: u16,
        entries: u16,
    ) -> QueuePairId {
        let queue = self.open_queue(queue_id, entries);
        let cid = self.next_cid();
        let entry = SubmissionEntry::connect(cid, queue_id, entries.into(), 0, false);
        let data = Self::connect_data_as(host, association.controller_id);
        assert_eq!(self.command_with(queue, &entry, data.as_bytes()).status(), Status::SUCCESS);
        queue
    }

    /// An I/O queue of a controller that is ready.
    pub fn attach_io(&mut self, association: Association, queue_id: u16, entries: u16) -> QueuePairId {
        let queue = self.open_queue(queue_id, entries);
        let completion = self.connect_io(queue, association, queue_id, entries);
        assert_eq!(completion.status(), Status::SUCCESS);
        queue
    }

    /// Sends the Connect of an I/O queue.
    pub fn connect_io(
        &mut self,
        queue: QueuePairId,
        association: Association,
        queue_id: u16,
        entries: u16,
    ) -> CompletionEntry {
        let cid = self.next_cid();
        let entry = SubmissionEntry::connect(cid, queue_id, entries.into(), 0, false);
        let data = Self::connect_data(association.controller_id);
        self.command_with(queue, &entry, data.as_bytes())
    }
}
