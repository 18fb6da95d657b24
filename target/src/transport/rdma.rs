//! NVMe/RDMA, the controller's side (NVM Express RDMA Transport 1.0): capsules by SEND, data by RDMA READ and
//! RDMA WRITE, each queue on a queue pair of its own.

use ringfab_fabric::rdma::{Inline, PostError, QueuePairId, Rnic, SendRequest, Slice, Work};
use ringfab_memory::{Buffer, Lease};
use ringfab_spec::{CompletionEntry, IntoBytes};

/// A queue's end of its queue pair, with the room in its send queue.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) queue_pair: QueuePairId,
    depth: u32,
    used: u32,
}

/// Names a work request: which life of which request, which piece, and how many work requests end with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WorkId {
    pub(crate) slot: u16,
    pub(crate) generation: u16,
    pub(crate) piece: u8,
    /// Work requests up to and including this one that its completion accounts for.
    chain: u8,
}

impl WorkId {
    /// Unpacks what [`WorkId::to_bits`] packed.
    pub(crate) fn from_bits(bits: u64) -> Self {
        let [s0, s1, g0, g1, piece, chain, ..] = bits.to_le_bytes();
        let (slot, generation) = (u16::from_le_bytes([s0, s1]), u16::from_le_bytes([g0, g1]));
        Self { slot, generation, piece, chain }
    }

    fn to_bits(self) -> u64 {
        let ([s0, s1], [g0, g1]) = (self.slot.to_le_bytes(), self.generation.to_le_bytes());
        u64::from_le_bytes([s0, s1, g0, g1, self.piece, self.chain, 0, 0])
    }
}

/// Why a work request could not be posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The queue pair has ended, which it reports on its own.
    Ended,
    /// The host's memory cannot be reached: it accepts no reads, or its range is none.
    Unusable,
}

/// The host's registered memory of one command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Remote {
    pub(crate) address: u64,
    pub(crate) key: u32,
}

impl Link {
    /// The send queue that a queue of so many entries needs: a data transfer and a response for each. A command
    /// of many pieces waits until there is room for all of them.
    pub(crate) fn send_depth(entries: u16) -> u32 {
        u32::from(entries) * 2 + Self::PIECES_MAX + 1
    }

    /// The most pieces of one command's data.
    pub(crate) const PIECES_MAX: u32 = 64;

    pub(crate) fn new(queue_pair: QueuePairId, entries: u16) -> Self {
        Self { queue_pair, depth: Self::send_depth(entries), used: 0 }
    }

    /// Whether so many work requests can be posted now.
    pub(crate) fn has_room(&self, count: usize) -> bool {
        self.depth - self.used >= count as u32
    }

    /// Whether nothing is in flight to the host.
    pub(crate) fn is_idle(&self) -> bool {
        self.used == 0
    }

    /// A completion has come: its chain's room is free again.
    pub(crate) fn completed(&mut self, id: WorkId) {
        self.used = self.used.saturating_sub(u32::from(id.chain));
    }

    /// Fetches `length` bytes of the host's memory into `sink`.
    pub(crate) fn read(
        &mut self,
        rnic: &mut Rnic,
        (slot, generation, piece): (u16, u16, u8),
        remote: Remote,
        sink: Buffer,
        length: u32,
    ) -> Result<(), Refused> {
        let id = WorkId { slot, generation, piece, chain: 1 }.to_bits();
        let work = Work::Read { sink, length, remote_key: remote.key, remote_address: remote.address };
        self.post(rnic, SendRequest { id, work, signaled: true })
    }

    /// Appends a transfer to the host; the response that follows accounts for it.
    pub(crate) fn write(
        &mut self,
        rnic: &mut Rnic,
        remote: Remote,
        lease: Lease,
        length: u32,
    ) -> Result<(), Refused> {
        let source = Slice { lease, offset: 0, length };
        let work = Work::Write { source, remote_key: remote.key, remote_address: remote.address };
        self.post(rnic, SendRequest { id: 0, work, signaled: false })
    }

    /// Appends the response capsule behind `transfers` of [`Link::write`].
    pub(crate) fn respond(
        &mut self,
        rnic: &mut Rnic,
        (slot, generation): (u16, u16),
        entry: &CompletionEntry,
        invalidate: Option<u32>,
        transfers: usize,
    ) -> Result<(), Refused> {
        let id = WorkId { slot, generation, piece: 0, chain: transfers as u8 + 1 }.to_bits();
        let work =
            Work::Send { head: Inline::new(entry.as_bytes()), data: None, invalidate, solicited: false };
        self.post(rnic, SendRequest { id, work, signaled: true })
    }

    fn post(&mut self, rnic: &mut Rnic, request: SendRequest) -> Result<(), Refused> {
        match rnic.post_send(self.queue_pair, request) {
            Ok(()) => {
                self.used += 1;
                Ok(())
            }
            // The room was checked before.
            Err(PostError::Full(_)) => unreachable!("the send queue is as deep as its room was counted"),
            Err(PostError::Ended(_)) => Err(Refused::Ended),
            Err(PostError::NoReads(_) | PostError::Range(_) | PostError::Unregistered(_)) => {
                Err(Refused::Unusable)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::WorkId;

    #[test]
    fn a_work_identifier_survives_its_packing() {
        let id = WorkId { slot: 1023, generation: 65_535, piece: 7, chain: 9 };
        assert_eq!(WorkId::from_bits(id.to_bits()), id);
    }
}
