//! Admin commands of a program.

use ringfab_spec::identify::DATA_LEN as IDENTIFY_BYTES;
use ringfab_spec::log::{LogId, Smart};
use ringfab_spec::{CompletionEntry, SubmissionEntry};

use super::Controller;
use super::message::{Answer, Operation, Order};
use crate::error::IoError;
use crate::wire;
use crate::wire::answers;
use crate::wire::data::{AnswerData, Short};

/// The most bytes of a log page that one command reads: every controller allows a page.
const LOG_BYTES_MAX: usize = 4096;

const GET_LOG_PAGE: &str = "Get Log Page";

impl Controller {
    /// Runs an admin command with an allocation length of `length` bytes (zero for none), and returns the data that
    /// came: not more, but perhaps less. Over RDMA a controller does not say how much it has written. Then it is all,
    /// zero where it has written nothing.
    ///
    /// # Errors
    /// The command's.
    pub fn admin_read(
        &self,
        entry: SubmissionEntry,
        length: usize,
    ) -> Result<(CompletionEntry, Vec<u8>), IoError> {
        let answer = self.admin(Operation::AdminRead { entry, length })?;
        Ok((answer.entry.unwrap_or_default(), answer.data))
    }

    /// Runs an admin command that sends `data` to the controller.
    ///
    /// # Errors
    /// The command's.
    pub fn admin_write(&self, entry: SubmissionEntry, data: &[u8]) -> Result<CompletionEntry, IoError> {
        let answer = self.admin(Operation::AdminWrite { entry, data: data.to_vec() })?;
        Ok(answer.entry.unwrap_or_default())
    }

    fn admin(&self, operation: Operation) -> Result<Answer, IoError> {
        self.engine.call(Order { operation, disk: None, claimed: false })
    }

    /// The whole Identify Controller data structure, 4096 bytes: zero where the controller has sent nothing.
    ///
    /// # Errors
    /// The command's; [`IoError::Short`] when less came than every controller has to say.
    pub fn identify_controller(&self) -> Result<Vec<u8>, IoError> {
        let (_, data) = self.admin_read(wire::identify_controller(), IDENTIFY_BYTES)?;
        let enough = |data: AnswerData<'_>| answers::parse_controller(data).map(drop);
        padded("Identify Controller", data, IDENTIFY_BYTES, enough)
    }

    /// The whole Identify Namespace data structure, 4096 bytes: zero where the controller has sent nothing.
    ///
    /// # Errors
    /// The command's; [`IoError::Short`] when less came than is to be said of every namespace.
    pub fn identify_namespace(&self, nsid: u32) -> Result<Vec<u8>, IoError> {
        let (_, data) = self.admin_read(wire::identify_namespace(nsid), IDENTIFY_BYTES)?;
        let enough = |data: AnswerData<'_>| answers::parse_namespace(data).map(drop);
        padded("Identify Namespace", data, IDENTIFY_BYTES, enough)
    }

    /// `length` bytes of a log page from `offset`, both multiples of four; others are rounded up and down. They are
    /// fewer when the controller sends fewer.
    ///
    /// # Errors
    /// The command's.
    pub fn log_page(&self, page: u8, nsid: u32, offset: u64, length: usize) -> Result<Vec<u8>, IoError> {
        let mut data = Vec::with_capacity(length);
        let offset = offset & !3;
        while data.len() < length {
            let part = (length - data.len()).min(LOG_BYTES_MAX).next_multiple_of(4);
            let entry = wire::log_page(page, nsid, offset + data.len() as u64, part as u32);
            let (_, came) = self.admin_read(entry, part)?;
            let is_short = came.len() < part;
            data.extend(came);
            if is_short {
                break;
            }
        }
        data.truncate(length);
        Ok(data)
    }

    /// The first `length` bytes of a log page, zero where the controller has sent nothing.
    ///
    /// # Errors
    /// The command's; [`IoError::Short`] when fewer than `needed` bytes came.
    pub fn log_page_start(
        &self,
        page: u8,
        nsid: u32,
        length: usize,
        needed: usize,
    ) -> Result<Vec<u8>, IoError> {
        let data = self.log_page(page, nsid, 0, length)?;
        padded(GET_LOG_PAGE, data, length, |data| data.require(needed))
    }

    /// The SMART / Health Information log page, 512 bytes: zero where the controller has sent nothing.
    ///
    /// # Errors
    /// The command's; [`IoError::Short`] when less came than the counters that every controller has.
    pub fn smart(&self) -> Result<Vec<u8>, IoError> {
        let needed = std::mem::offset_of!(Smart, error_log_entries) + size_of::<u128>();
        self.log_page_start(LogId::SMART.0, wire::NSID_ALL, Smart::SIZE, needed)
    }
}

/// What came for a structure of `size` bytes, and zeroes behind it; if it is enough.
fn padded(
    command: &'static str,
    mut data: Vec<u8>,
    size: usize,
    enough: impl FnOnce(AnswerData<'_>) -> Result<(), Short>,
) -> Result<Vec<u8>, IoError> {
    let received = data.len();
    data.resize(size, 0);
    enough(AnswerData::new(&data, received)).map_err(|short| short.error(command))?;
    Ok(data)
}
