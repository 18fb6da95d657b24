//! The buffers that a request needs for what it moves between the host and the disk.

use super::commands::piece_ranges;
use super::connection::Connection;
use super::request::Request;
use crate::nvm::{DataBytes, HostMemory, Transfer};
use crate::resources::Resources;
use crate::resources::hosts::PoolKind;

impl Request {
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
        [if in_capsule { DataBytes(0) } else { self.length }, self.action.buffered_bytes(chunk_bytes)]
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
