//! The admin commands of a controller (NVM Express Base 2.0, section 5).

mod abort;
mod discovery;
mod features;
mod identify;
mod lba_status;
mod log;
mod page;
mod reset;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use ringfab_reactor::Time;
use ringfab_spec::identify::DATA_LEN;
use ringfab_spec::log::ControllerInstance;
use ringfab_spec::{AdminOpcode, AsciiField, Status, SubmissionEntry};

use crate::command::Command;
use crate::controller::{Controller, NOT_READY};
use crate::failure::Failure;
use crate::model::Served;
use crate::target::Target;
use crate::worker::Task;

/// How long a worker may take for an admin command.
const WORK_LIMIT: Duration = Duration::from_secs(5);

/// The firmware revision that hosts see.
pub(crate) const FIRMWARE: &str = env!("CARGO_PKG_VERSION");

/// Which way the data of an admin command goes, and exactly how many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// No data.
    None,
    /// From the host; to be fetched before [`Controller::admin`].
    ToController(u32),
    /// To the host; [`AdminOutcome::Data`] will have so many bytes.
    ToHost(u32),
}

/// What a command may need beside its controller.
#[derive(Clone, Copy, Debug)]
pub struct AdminContext<'a> {
    /// What is served.
    pub served: &'a Arc<Served>,
    /// Who is connected.
    pub target: &'a Target,
    /// On the clock of timers.
    pub now: Time,
    /// Since 1970.
    pub wall: Duration,
}

/// How an admin command goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminOutcome {
    /// It is done, with dword 0 of its completion.
    Complete {
        /// Command specific.
        dw0: u32,
    },
    /// It is done, and these bytes go to the host first.
    Data {
        /// As many as [`Controller::admin_transfer`] said.
        bytes: Vec<u8>,
        /// Command specific.
        dw0: u32,
    },
    /// It waits: an event of the controller will complete it.
    Park,
    /// It takes longer than a core has: a worker is to do it, and what that returns goes to the host.
    Slow(AdminWork),
    /// End this instance of another controller at once. The command waits until that is over, or for a while.
    Reset(ControllerInstance),
    /// Abort a command that still waits, if that can be; of an Asynchronous Event Request, tell
    /// [`Controller::forget_event_request`]. Then complete the Abort: bit 0 of dword 0 is zero if it was
    /// aborted, and one if not.
    Abort {
        /// Queue of the command; it is connected.
        queue_id: u16,
        /// Identifier of the command.
        command_id: u16,
    },
}

/// What takes too long for a core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminWork(Work);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Work {
    /// Make a log page.
    Page(log::SlowPage),
    /// Look where a file has data.
    Scan(lba_status::Scan),
}

impl AdminWork {
    /// What it is, for the worker.
    pub(crate) fn task(&self) -> Task {
        match &self.0 {
            Work::Page(_) => Task::new("listing", "the subsystems for discovery", WORK_LIMIT),
            Work::Scan(scan) => scan.task(),
        }
    }

    /// Does it. Returns the bytes for the host, as many as [`Controller::admin_transfer`] said.
    ///
    /// # Errors
    /// The status of the completion.
    pub(crate) fn run(self) -> Result<Vec<u8>, Failure> {
        match self.0 {
            Work::Page(page) => page.build(),
            Work::Scan(scan) => Ok(scan.run()),
        }
    }
}

/// The opcodes that a controller has, as the log of supported commands lists them. A discovery controller has fewer
/// (section 3.1.2.3).
fn opcodes(discovery: bool) -> &'static [AdminOpcode] {
    let all = &[
        AdminOpcode::GET_LOG_PAGE,
        AdminOpcode::IDENTIFY,
        AdminOpcode::ABORT,
        AdminOpcode::SET_FEATURES,
        AdminOpcode::GET_FEATURES,
        AdminOpcode::ASYNC_EVENT_REQUEST,
        AdminOpcode::KEEP_ALIVE,
        AdminOpcode::CROSS_CONTROLLER_RESET,
        AdminOpcode::GET_LBA_STATUS,
    ];
    const DISCOVERY: &[AdminOpcode] = &[
        AdminOpcode::GET_LOG_PAGE,
        AdminOpcode::IDENTIFY,
        AdminOpcode::SET_FEATURES,
        AdminOpcode::GET_FEATURES,
        AdminOpcode::ASYNC_EVENT_REQUEST,
        AdminOpcode::KEEP_ALIVE,
    ];
    if discovery { DISCOVERY } else { all }
}

/// Text that was checked or is our own, in a field of the wire.
fn ascii<const N: usize>(text: &str) -> AsciiField<N> {
    AsciiField::new(text).expect("printable, and not longer than its field")
}

/// The NSID field of a command.
const NSID: u16 = 4;

impl Controller {
    /// Which way the data of a command goes. Also refuses what can be refused without data.
    ///
    /// # Errors
    /// The status of the completion.
    pub fn admin_transfer(&self, entry: &SubmissionEntry) -> Result<Transfer, Failure> {
        let command = Command::new(entry);
        self.check_command(command)?;
        match AdminOpcode(command.opcode()) {
            AdminOpcode::IDENTIFY => Ok(Transfer::ToHost(DATA_LEN as u32)),
            AdminOpcode::GET_LOG_PAGE => log::transfer(command),
            AdminOpcode::SET_FEATURES => Ok(features::set_transfer(command)),
            AdminOpcode::GET_FEATURES => Ok(features::get_transfer(command)),
            AdminOpcode::GET_LBA_STATUS => lba_status::transfer(command),
            _ => Ok(Transfer::None),
        }
    }

    /// Executes a command. `data` is what [`Controller::admin_transfer`] asked to fetch.
    ///
    /// # Errors
    /// The status of the completion.
    pub fn admin(
        &self,
        context: &AdminContext<'_>,
        entry: &SubmissionEntry,
        data: &[u8],
    ) -> Result<AdminOutcome, Failure> {
        let command = Command::new(entry);
        self.check_command(command)?;
        match AdminOpcode(command.opcode()) {
            AdminOpcode::IDENTIFY => identify::identify(self, context, command),
            AdminOpcode::GET_LOG_PAGE => log::get_log_page(self, context, command),
            AdminOpcode::SET_FEATURES => features::set(self, context, command, data),
            AdminOpcode::GET_FEATURES => features::get(self, context, command),
            AdminOpcode::ASYNC_EVENT_REQUEST => self.park(command),
            AdminOpcode::KEEP_ALIVE => Ok(self.renew(context)),
            AdminOpcode::ABORT => Ok(abort::abort(self, command)),
            AdminOpcode::CROSS_CONTROLLER_RESET => reset::reset(self, context, command),
            AdminOpcode::GET_LBA_STATUS => lba_status::get(self, context, command),
            _ => Err(Failure::at(Status::INVALID_OPCODE, 0)),
        }
    }

    /// The checks that come before all others: the order is that of a controller, which looks at the opcode first.
    fn check_command(&self, command: Command<'_>) -> Result<(), Failure> {
        /// Bits of byte 1: fused operation, and whether PRPs or SGLs are used.
        const FUSE: u8 = 0b11;
        if !opcodes(self.is_discovery()).contains(&AdminOpcode(command.opcode())) {
            return Err(Failure::at(Status::INVALID_OPCODE, 0));
        }
        if command.u8(1) & FUSE != 0 {
            return Err(Failure::invalid_field(1));
        }
        if !self.state().registers.is_ready() { Err(NOT_READY) } else { Ok(()) }
    }

    fn park(&self, command: Command<'_>) -> Result<AdminOutcome, Failure> {
        if !self.events().park(command.command_id()) {
            return Err(Failure::new(Status::AER_LIMIT_EXCEEDED));
        }
        Ok(AdminOutcome::Park)
    }

    fn renew(&self, context: &AdminContext<'_>) -> AdminOutcome {
        self.state().keep_alive.restart(context.now);
        AdminOutcome::Complete { dw0: 0 }
    }
}
