//! Admin commands of a program.

use ringfab_spec::identify::DATA_LEN as IDENTIFY_BYTES;
use ringfab_spec::log::{LogId, Smart};
use ringfab_spec::{CompletionEntry, SubmissionEntry};

use super::Controller;
use super::message::Operation;
use crate::error::IoError;
use crate::wire;

/// The most bytes of a log page that one command reads: every controller allows a page.
const LOG_BYTES_MAX: usize = 4096;

impl Controller {
    /// Runs an admin command that reads `length` bytes (zero for none) from the controller.
    ///
    /// # Errors
    /// The command's.
    pub fn admin_read(
        &self,
        entry: SubmissionEntry,
        length: usize,
    ) -> Result<(CompletionEntry, Vec<u8>), IoError> {
        let answer = self.engine.call(Operation::AdminRead { entry, length }, None)?;
        Ok((answer.entry.unwrap_or_default(), answer.data))
    }

    /// Runs an admin command that sends `data` to the controller.
    ///
    /// # Errors
    /// The command's.
    pub fn admin_write(&self, entry: SubmissionEntry, data: &[u8]) -> Result<CompletionEntry, IoError> {
        let answer = self.engine.call(Operation::AdminWrite { entry, data: data.to_vec() }, None)?;
        Ok(answer.entry.unwrap_or_default())
    }

    /// The whole Identify Controller data structure, 4096 bytes.
    ///
    /// # Errors
    /// The command's.
    pub fn identify_controller(&self) -> Result<Vec<u8>, IoError> {
        self.admin_read(wire::identify_controller(), IDENTIFY_BYTES).map(|(_, data)| data)
    }

    /// The whole Identify Namespace data structure, 4096 bytes.
    ///
    /// # Errors
    /// The command's.
    pub fn identify_namespace(&self, nsid: u32) -> Result<Vec<u8>, IoError> {
        self.admin_read(wire::identify_namespace(nsid), IDENTIFY_BYTES).map(|(_, data)| data)
    }

    /// `length` bytes of a log page from `offset`, both multiples of four; others are rounded up and down.
    ///
    /// # Errors
    /// The command's.
    pub fn log_page(&self, page: u8, nsid: u32, offset: u64, length: usize) -> Result<Vec<u8>, IoError> {
        let mut data = Vec::with_capacity(length);
        let offset = offset & !3;
        while data.len() < length {
            let part = (length - data.len()).min(LOG_BYTES_MAX).next_multiple_of(4);
            let entry = wire::log_page(page, nsid, offset + data.len() as u64, part as u32);
            data.extend(self.admin_read(entry, part)?.1);
        }
        data.truncate(length);
        Ok(data)
    }

    /// The SMART / Health Information log page, 512 bytes.
    ///
    /// # Errors
    /// The command's.
    pub fn smart(&self) -> Result<Vec<u8>, IoError> {
        self.log_page(LogId::SMART.0, wire::NSID_ALL, 0, Smart::SIZE)
    }
}
