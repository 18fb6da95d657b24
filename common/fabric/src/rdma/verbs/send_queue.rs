//! The requests of a queue pair, from their posting to their completion.

use std::collections::VecDeque;

use ringfab_memory::{ClassLayout, Pool, SharedBuffer};

use super::domain::Domain;
use super::exposure::Exposures;
use super::numbers::queue_pair_id;
use super::posted::{Chained, Held, Outcome, Outstanding, Posted, bind};
use super::sys::{DeviceLimits, Operation, Piece, Region, Rights, WorkCompletion, WorkRequest};
use crate::events::Events;
use crate::rdma::{Inline, PostError, RnicEvent, SendRequest, Slice, Work};
use crate::table::Key;

/// The send queue of a queue pair.
#[derive(Debug)]
pub(super) struct SendQueue {
    /// The queue pair.
    key: Key,
    /// Entries on the device.
    entries: u32,
    heads: Option<Heads>,
    /// Requests for the next doorbell.
    chain: Vec<Chained>,
    /// Requests that have not completed, oldest first.
    posted: VecDeque<Posted>,
    /// Number of the oldest.
    oldest: u32,
    /// Requests since the last whose completion will be reported.
    unsignaled: u32,
    /// SENDs and WRITEs that have completed since the last event that told of one.
    untold: u32,
}

/// Registered memory for the heads of messages: one for each entry of the send queue, used in turn.
#[derive(Debug)]
struct Heads {
    memory: SharedBuffer,
    region: Region,
}

/// Requests after which one is reported in any case, so that the queue's entries come back: a quarter of them.
const SIGNAL_EVERY: u32 = 4;

impl SendQueue {
    /// That of a queue pair which is on no device yet.
    pub(super) fn new(key: Key) -> Self {
        Self {
            key,
            entries: 0,
            heads: None,
            chain: Vec::new(),
            posted: VecDeque::new(),
            oldest: 0,
            unsignaled: 0,
            untold: 0,
        }
    }

    /// Gives it its entries on a device, with memory there for the heads of messages.
    pub(super) fn open(&mut self, domain: &Domain, entries: u32) -> std::io::Result<()> {
        let buffer_bytes = entries as usize * Inline::LEN_MAX;
        let pool = Pool::new(&[ClassLayout { buffer_bytes, count: 1 }]).map_err(std::io::Error::other)?;
        let memory = pool.take(buffer_bytes).expect("the pool is one buffer").share();
        self.heads = Some(Heads { memory, region: Region::new(domain.raw(), &pool, Rights::default())? });
        self.entries = entries;
        Ok(())
    }

    /// Entries of the send queue that are free.
    pub(super) fn room(&self) -> u32 {
        self.entries - self.posted.len() as u32
    }

    /// Opens a window with the next doorbell.
    pub(super) fn chain_bind(&mut self, exposure: Key) {
        let id = self.next_id();
        self.chain.push(Chained::Bind { id, exposure });
        self.push(Posted { id: None, reported: false, signaled: false, held: Held::Nothing, outcome: None });
    }

    /// Appends a request of the caller. Returns what it will report.
    pub(super) fn post(
        &mut self,
        domain: &Domain,
        request: SendRequest,
        limits: &DeviceLimits,
        inline_bytes: u32,
    ) -> Result<Outstanding, PostError> {
        if self.room() == 0 {
            return Err(PostError::Full(Box::new(request)));
        }
        let range = match &request.work {
            Work::Read { length, remote_address, .. } => Some((*remote_address, *length)),
            Work::Write { source, remote_address, .. } => Some((*remote_address, source.length)),
            Work::Send { .. } => None,
        };
        if range.is_some_and(|(address, length)| address.checked_add(u64::from(length)).is_none()) {
            return Err(PostError::Range(Box::new(request)));
        }
        let mut translated = match self.translate(domain, &request.work, limits, inline_bytes) {
            Ok(translated) => translated,
            Err(Unregistered) => return Err(PostError::Unregistered(Box::new(request))),
        };
        let SendRequest { id, work, signaled } = request;
        let (held, is_read) = match work {
            Work::Send { data: None, .. } => (Held::Nothing, false),
            Work::Send { data: Some(slice), .. } | Work::Write { source: slice, .. } => {
                (Held::SharedBuffer(slice.shared_buffer, slice.length), false)
            }
            Work::Read { sink, .. } => (Held::Sink(sink), true),
        };
        let reported = signaled || is_read;
        // Memory comes back with a completion, which must not wait for requests that may never come.
        let holds = matches!(held, Held::SharedBuffer(..))
            && (limits.own_completions || matches!(translated.operation, Operation::Send));
        let signal = reported || holds || self.unsignaled + 1 >= (self.entries / SIGNAL_EVERY).max(1);
        translated.signaled = signal;
        self.chain.push(Chained::Request(translated));
        let posted = Posted { id: Some(id), reported, signaled: signal, held, outcome: None };
        let outstanding = posted.outstanding();
        self.push(posted);
        Ok(outstanding)
    }

    fn push(&mut self, posted: Posted) {
        self.unsignaled = if posted.signaled { 0 } else { self.unsignaled + 1 };
        self.posted.push_back(posted);
    }

    /// The number of the next request: the queue pair's, and a count.
    fn next_id(&self) -> u64 {
        send_id(self.key, self.oldest.wrapping_add(self.posted.len() as u32))
    }

    fn translate(
        &self,
        domain: &Domain,
        work: &Work,
        limits: &DeviceLimits,
        inline_bytes: u32,
    ) -> Result<WorkRequest, Unregistered> {
        let mut request = WorkRequest {
            id: self.next_id(),
            operation: Operation::Send,
            pieces: [Piece::default(); 2],
            piece_count: 1,
            signaled: false,
            inline: false,
            solicited: false,
        };
        match work {
            Work::Send { head, data, invalidate, solicited } => {
                // A host that asked for it in vain invalidates the key itself.
                if let Some(key) = invalidate.filter(|_| limits.sends_invalidate) {
                    request.operation = Operation::SendInvalidate(key);
                }
                request.pieces[0] = self.place_head(head);
                request.solicited = *solicited;
                request.inline = data.is_none() && request.pieces[0].length <= inline_bytes;
                if let Some(data) = data.as_ref().filter(|data| data.length > 0) {
                    request.pieces[1] = slice_piece(domain, data)?;
                    request.piece_count = 2;
                }
            }
            Work::Write { source, remote_key, remote_address } => {
                request.operation = Operation::Write { address: *remote_address, key: *remote_key };
                request.pieces[0] = slice_piece(domain, source)?;
            }
            Work::Read { sink, length, remote_key, remote_address } => {
                request.operation = Operation::Read { address: *remote_address, key: *remote_key };
                request.pieces[0] = piece(domain, sink.io_pointer(0, *length as usize) as u64, *length)?;
            }
        }
        if request.pieces[0].length == 0 {
            request.piece_count = 0;
        }
        Ok(request)
    }

    /// Copies the head of a message to where the device finds it: the place of its entry in the send queue, which no
    /// outstanding request has.
    fn place_head(&self, head: &Inline) -> Piece {
        let bytes = head.as_slice();
        let Some(heads) = &self.heads else { return Piece::default() };
        let count = self.oldest.wrapping_add(self.posted.len() as u32);
        let at = (count % self.entries) as usize * Inline::LEN_MAX;
        heads.memory.write_at(at, bytes);
        let address = heads.memory.io_pointer(at, bytes.len()) as u64;
        Piece { address, length: bytes.len() as u32, key: heads.region.local_key() }
    }

    /// Takes the requests for the next doorbell.
    pub(super) fn take_chain(
        &mut self,
        domain: &Domain,
        exposures: &Exposures,
    ) -> impl Iterator<Item = WorkRequest> {
        self.chain.drain(..).filter_map(|chained| match chained {
            Chained::Request(request) => Some(request),
            Chained::Bind { id, exposure } => bind(id, exposure, domain, exposures),
        })
    }

    /// A request has completed, and with it those before it that have no completion of their own. Some drivers report a
    /// READ after what was posted behind it; the caller hears of everything in the order of posting. Returns what is
    /// owed no more.
    pub(super) fn completed(
        &mut self,
        count: u32,
        completion: &WorkCompletion,
        events: &mut Events<RnicEvent>,
    ) -> Outstanding {
        let mut completed = Outstanding::default();
        // An unknown number is of a request that was given up.
        let age = count.wrapping_sub(self.oldest) as usize;
        let Some(posted) = self.posted.get_mut(age) else { return completed };
        posted.outcome = Some(if completion.status == 0 { Outcome::Done } else { Outcome::Failed });
        for earlier in self.posted.range_mut(..age).filter(|earlier| !earlier.signaled) {
            earlier.outcome.get_or_insert(Outcome::Done);
        }
        let id = queue_pair_id(self.key);
        while let Some(outcome) = self.posted.front().and_then(|posted| posted.outcome) {
            let Some(posted) = self.pop() else { break };
            completed.add(posted.outstanding());
            match outcome {
                Outcome::Done => posted.succeed(id, &mut self.untold, events),
                Outcome::Failed => posted.flush(id, events),
            }
        }
        completed
    }

    /// What its requests have not reported yet.
    pub(super) fn outstanding(&self) -> Outstanding {
        let mut outstanding = Outstanding::default();
        self.posted.iter().for_each(|posted| outstanding.add(posted.outstanding()));
        outstanding
    }

    /// Gives back everything that is outstanding. The device must have let go of it.
    pub(super) fn flush_all(&mut self, events: &mut Events<RnicEvent>) {
        let id = queue_pair_id(self.key);
        self.chain.clear();
        while let Some(posted) = self.pop() {
            posted.flush(id, events);
        }
    }

    /// Whether nothing is outstanding that the caller would hear of. The device says nothing of the rest.
    pub(super) fn is_drained(&self) -> bool {
        self.posted.iter().all(|posted| !posted.reported)
    }

    fn pop(&mut self) -> Option<Posted> {
        let posted = self.posted.pop_front()?;
        self.oldest = self.oldest.wrapping_add(1);
        Some(posted)
    }
}

/// Memory that no pool of the queue pair's domain holds.
struct Unregistered;

fn piece(domain: &Domain, address: u64, length: u32) -> Result<Piece, Unregistered> {
    if length == 0 {
        return Ok(Piece::default());
    }
    let key = domain.local_key(address, length).ok_or(Unregistered)?;
    Ok(Piece { address, length, key })
}

fn slice_piece(domain: &Domain, slice: &Slice) -> Result<Piece, Unregistered> {
    let address = slice.shared_buffer.io_pointer(slice.offset as usize, slice.length as usize) as u64;
    piece(domain, address, slice.length)
}

/// The number of a send request: which queue pair, and the how-manieth.
fn send_id(key: Key, count: u32) -> u64 {
    u64::from(key.generation & 0x3ff) << 52 | u64::from(key.index & 0xf_ffff) << 32 | u64::from(count)
}

/// The queue pair's index, a part of its generation, and the count of a send request.
pub(super) fn send_of(id: u64) -> (u32, u32, u32) {
    ((id >> 32) as u32 & 0xf_ffff, (id >> 52) as u32 & 0x3ff, id as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_a_request_names_its_queue_pair_and_its_place() {
        let key = Key { index: 0xf_fffe, generation: 0x7ff };
        assert_eq!(send_of(send_id(key, u32::MAX)), (0xf_fffe, 0x3ff, u32::MAX));
        assert_eq!(super::super::domain::ReceiveId::from_bits(send_id(key, u32::MAX)), None);
    }
}
