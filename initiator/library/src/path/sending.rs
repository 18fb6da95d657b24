//! Sends the commands of the sequence that attaches a controller and keeps it up: one at a time, with memory of its
//! own.

use std::time::Duration;

use ringfab_memory::SharedBuffer;
use ringfab_spec::{IntoBytes, SubmissionEntry};

use super::Path;
use super::sequence::SCRATCH_BYTES;
use crate::command::{Command, Direction, Owner};
use crate::core::Core;
use crate::error::{Cause, Step};
use crate::url::Transport;
use crate::wire;

impl Path {
    pub(super) fn send_connect(&mut self, core: &mut Core, number: u16) {
        let qid = self.qid(number);
        let size = if qid == 0 { super::ADMIN_QUEUE_SIZE } else { self.sequence.facts.queue_size };
        let cntlid = if qid == 0 { wire::CNTLID_DYNAMIC } else { self.sequence.facts.cntlid };
        let keep_alive = if qid == 0 { self.options.keep_alive_wanted() } else { Duration::ZERO };
        let data = match wire::connect_data(&self.options.host, cntlid, self.options.url.subsystem_nqn()) {
            Ok(data) => data,
            Err(error) => {
                return self.lose(core, Step::FabricsConnect, Cause::Unsupported(error.to_string()));
            }
        };
        // Over TCP that spares the responses of reads: without flow control they say nothing that the data cannot.
        let flow_control = self.options.url.transport != Transport::Tcp;
        self.send_with_data(
            core,
            number,
            wire::connect(qid, size, keep_alive, flow_control),
            data.as_bytes(),
        );
    }

    pub(super) fn send_host_behavior(&mut self, core: &mut Core) {
        let (entry, data) = wire::set_host_behavior();
        self.send_with_data(core, 0, entry, data.as_bytes());
    }

    pub(super) fn send_with_data(
        &mut self,
        core: &mut Core,
        number: u16,
        entry: SubmissionEntry,
        data: &[u8],
    ) {
        let Some(shared_buffer) = self.take_scratch(core) else { return };
        shared_buffer.write_at(0, data);
        let command = Command::new(entry, Owner::Sequence);
        let command = command.with_data(Direction::ToController, shared_buffer, 0, data.len() as u32);
        self.send_sequence(core, number, command);
    }

    pub(super) fn send_identify(&mut self, core: &mut Core, entry: SubmissionEntry) {
        let Some(shared_buffer) = self.take_scratch(core) else { return };
        let command = Command::new(entry, Owner::Sequence);
        let command = command.with_data(Direction::ToHost, shared_buffer, 0, SCRATCH_BYTES as u32);
        self.send_sequence(core, 0, command);
    }

    /// The sequence's own memory; it is taken from the pool once.
    pub(super) fn take_scratch(&mut self, core: &mut Core) -> Option<SharedBuffer> {
        let scratch = self.sequence.scratch.take().filter(SharedBuffer::is_unique);
        let scratch = scratch.or_else(|| core.pool.take(SCRATCH_BYTES).map(ringfab_memory::Buffer::share));
        if scratch.is_none() {
            let step = self.step();
            let text = "no buffer of 4 KiB is left in the pool for the commands of attaching";
            self.lose(core, step, Cause::Local(text.to_owned()));
        }
        scratch
    }

    pub(super) fn send_sequence(&mut self, core: &mut Core, number: u16, mut command: Box<Command>) {
        command.deadline = core.now() + self.options.timeouts.admin;
        self.watch(command.deadline);
        let Some(queue) = self.queue_mut(number) else { return };
        if let Err((command, reason)) = queue.send(&mut core.transports, command) {
            self.sequence.scratch = command.memory.or(self.sequence.scratch.take());
            tracing::debug!(peer = self.peer, ?reason, "a command of the sequence could not be sent");
            let step = self.step();
            self.lose(core, step, Cause::Protocol("the queue takes no command"));
        }
    }
}
