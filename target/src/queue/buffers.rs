//! What a request is to move between the host and the disk, and the buffers that it needs for that.

use ringfab_memory::Buffer;

use super::automaton::Step;
use super::commands::{Stop, piece_ranges};
use super::connection::Connection;
use super::request::Request;
use crate::failure::Failure;
use crate::limits::COPY_PIECE_BYTES;
use crate::model::Direction;
use crate::nvm::{self, Action, DataBytes, HostMemory, Transfer};
use crate::resources::Resources;
use crate::resources::hosts::PoolKind;
use crate::resources::limited::FlowKey;
use crate::resources::states::State;

impl Request {
    /// Parses the command into what it asks for, and the size and place of its data.
    #[inline(always)]
    pub(super) fn plan(
        &mut self,
        connection: &mut Connection,
        resources: &Resources,
        capsule_bytes: u32,
    ) -> Result<(), Failure> {
        let (action, transfer) = connection.parse(resources, &self.command)?;
        let host = nvm::host_memory(&self.command, (action, transfer), capsule_bytes)?;
        if !connection.link.reaches(&host) {
            return Err(nvm::SGL_OF_ANOTHER_TRANSPORT);
        }
        (self.action, self.host, self.transfer) = (action, host, transfer);
        self.length = transfer.length();
        Ok(())
    }

    /// An I/O command waits while a limit is reached, then for the turn of its host. The halves of a fused pair wait
    /// for each other, and have no turns.
    #[inline(never)]
    pub(super) fn await_begin(
        &self,
        connection: &Connection,
        resources: &mut Resources,
        from: Step,
    ) -> Result<(), Stop> {
        if connection.id == 0 || self.action == Action::Controller || self.has_failed() {
            return Ok(());
        }
        if from == Step::Begin
            && let Some((flow, bytes)) = limited_as(self, connection)
            && !resources.passes_limits(flow, (self.id(), bytes))
        {
            return Err(Stop::Wait(State::AwaitLimit));
        }
        if self.is_fused || resources.turns.is_alone(connection.host) {
            return Ok(());
        }
        let needs = (self.pool_kind(connection.id), self.length.0);
        match resources.turns.admit(connection.host, needs, self.id()) {
            true => Ok(()),
            false => Err(Stop::Wait(State::AwaitTurn)),
        }
    }

    /// Its namespace may have been hidden from its host, or removed, while it waited.
    fn check_seen(&self, connection: &Connection, resources: &Resources) -> Result<(), Failure> {
        let attached = connection.attached.as_ref().filter(|_| connection.id != 0);
        match (attached, self.action.disk()) {
            (Some(attached), Some(disk)) => attached.check_seen(resources, self.command.nsid.get(), disk),
            _ => Ok(()),
        }
    }

    /// It fails if so.
    pub(super) fn stop_if_hidden(
        &mut self,
        connection: &Connection,
        resources: &Resources,
    ) -> Result<(), Stop> {
        if let Err(failure) = self.check_seen(connection, resources)
            && !self.has_failed()
        {
            self.fail(failure);
            return Err(Stop::Answer);
        }
        Ok(())
    }

    /// What has failed is answered, and what the disk can answer without I/O. What is for a disk that is hung is held
    /// back.
    #[inline(always)]
    pub(super) fn admit(&mut self, connection: &Connection, resources: &mut Resources) -> Result<(), Stop> {
        if self.has_failed() || self.peek(resources) {
            return Err(Stop::Answer);
        }
        if connection.holds_back(resources, &self.action) {
            resources.held_back.push(self.id(), resources.states.now());
            return Err(Stop::Wait(State::HeldBack));
        }
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

    /// Whether the host's data is needed.
    pub(super) fn takes_data(&self) -> bool {
        matches!(self.transfer, Transfer::ToController(DataBytes(1..)))
    }

    /// Whether the host's data is to be fetched.
    #[inline(always)]
    pub(super) fn fetches_data(&self) -> bool {
        self.takes_data() && !matches!(self.host, HostMemory::Capsule { .. })
    }

    /// Whether data goes to the host with the answer.
    #[inline(always)]
    pub(super) fn sends_data(&self) -> bool {
        matches!(self.transfer, Transfer::ToHost(DataBytes(1..))) && !self.has_failed()
    }

    /// Where it waits for buffers, on a queue with this identifier.
    #[inline(always)]
    pub(super) fn pool_kind(&self, queue_id: u16) -> PoolKind {
        match self.host {
            _ if queue_id == 0 => PoolKind::Admin,
            _ if self.is_fused => PoolKind::Compare,
            HostMemory::Capsule { .. } => PoolKind::Compare,
            _ => PoolKind::Io,
        }
    }

    /// Bytes that it needs buffers for: the host's data, and what the disk holds in its place. Data that came in
    /// the capsule is in a buffer.
    #[inline(always)]
    pub(super) fn bytes_to_take(&self, chunk_bytes: u32) -> [DataBytes; 2] {
        let in_capsule = matches!(self.host, HostMemory::Capsule { .. });
        [if in_capsule { DataBytes(0) } else { self.length }, self.bytes_of_disk(chunk_bytes)]
    }

    /// Bytes of the disk that it needs buffers for beside the host's: to compare the two, or to pass on.
    #[inline(always)]
    fn bytes_of_disk(&self, chunk_bytes: u32) -> DataBytes {
        match self.action {
            Action::Compare(extent) => extent.length.checked_data(),
            Action::Verify { extent, .. } => extent.length.checked_data().min(DataBytes(chunk_bytes)),
            Action::Copy(_) => DataBytes(COPY_PIECE_BYTES),
            _ => DataBytes(0),
        }
    }

    /// All the buffers that it will ever need, or none.
    #[inline(always)]
    pub(super) fn take_buffers(&mut self, connection: &Connection, resources: &Resources) -> bool {
        let pool = resources.hosts.pool(connection.host, self.pool_kind(connection.id));
        let here = self.pieces.len();
        for bytes in self.bytes_to_take(resources.chunk_bytes) {
            for (_, piece) in piece_ranges(bytes, resources.chunk_bytes) {
                let Some(mut buffer) = pool.take(piece as usize) else {
                    self.pieces.truncate(here);
                    return false;
                };
                buffer.set_len(piece as usize);
                self.pieces.push(buffer);
            }
        }
        true
    }

    /// Behind a request that waits already, one that needs buffers waits too, so that those go to the first in order.
    #[inline(always)]
    pub(super) fn is_behind_others(&self, connection: &Connection, resources: &Resources) -> bool {
        resources.hosts.first_waiting(connection.host, self.pool_kind(connection.id)).is_some()
            && (self.is_fused || self.bytes_to_take(resources.chunk_bytes) != [DataBytes(0); 2])
    }

    /// Room that a request needs in the send queue for its answer.
    #[inline(always)]
    pub(super) fn room_to_answer(&self, chunk_bytes: u32) -> usize {
        1 + if self.sends_data() { piece_ranges(self.length, chunk_bytes).count() } else { 0 }
    }
}

/// What limits take a request for, and how many bytes it is about. A pair is its Write. What a Copy is about is not
/// known before its list of ranges is here.
fn limited_as(request: &Request, connection: &Connection) -> Option<(FlowKey, u64)> {
    let (direction, bytes) = match request.action {
        Action::Read(_) | Action::Compare(_) => (Direction::Read, request.length.0.into()),
        Action::Verify { extent, .. } => (Direction::Read, extent.length.0),
        Action::Write { .. } => (Direction::Write, request.length.0.into()),
        // A disk may have to write them, so they cost what a Write of them does.
        Action::WriteZeroes { extent, .. } => (Direction::Write, extent.length.0),
        Action::Discard { .. } | Action::Copy(_) => (Direction::Write, 0),
        Action::Flush { .. } | Action::FlushAll { .. } | Action::Nothing | Action::Controller => return None,
    };
    let namespace = request.action.disk()?;
    Some((FlowKey { host: connection.host, namespace, direction }, bytes))
}
