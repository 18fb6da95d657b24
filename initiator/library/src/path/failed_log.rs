//! Logs commands that failed.

use ringfab_spec::{AdminOpcode, CompletionEntry, IoOpcode};

use super::Path;
use crate::command::Command;

impl Path {
    /// A command was answered with a status that is no success.
    #[cold]
    pub(super) fn log_failed(&self, number: u16, command: &Command, entry: &CompletionEntry) {
        if !tracing::enabled!(tracing::Level::DEBUG) {
            return;
        }
        let (qid, sent) = (self.qid(number), &command.entry);
        let name = match qid {
            _ if sent.is_fabrics() => sent.fabrics_type().to_string(),
            0 => AdminOpcode(sent.opcode).to_string(),
            _ => IoOpcode(sent.opcode).to_string(),
        };
        let (peer, cid, nsid, status) = (&self.peer, entry.cid.get(), sent.nsid.get(), entry.status());
        tracing::debug!(peer, queue = qid, command = name, cid, nsid, %status, "command failed");
    }
}
