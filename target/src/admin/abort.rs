//! Abort (NVM Express Base 2.0, section 5.1).

use super::AdminOutcome;
use crate::command::Command;
use crate::controller::Controller;

/// Dword 0 of an Abort whose command was not aborted.
const NOT_ABORTED: u32 = 1;

/// Offsets of SQID and CID in the command.
const SQID: u16 = 40;
const CID: u16 = 42;

/// The data path knows the commands: here is only said which queue to look in.
pub(super) fn abort(controller: &Controller, command: Command<'_>) -> AdminOutcome {
    let queue_id = command.u16(SQID);
    let command_id = command.u16(CID);
    if !controller.state().queues.has(queue_id) {
        return AdminOutcome::Complete { dw0: NOT_ABORTED };
    }
    AdminOutcome::Abort { queue_id, command_id }
}
