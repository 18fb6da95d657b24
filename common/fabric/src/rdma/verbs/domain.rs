//! A protection domain on a device: the memory that is registered in it, and the receives that its queue pairs share.

use std::collections::HashMap;
use std::io;

use ringfab_memory::{Buffer, ClassLayout, Pool, SharedBuffer};

use super::sys::{self, DeviceLimits, Piece, ReceiveChain, Region, Rights, SharedReceiveQueue, Window};
use crate::rdma::{ProtectionDomain, ReceivedHead};

/// The first part of a message, which goes into the event.
const HEAD_BYTES: usize = ReceivedHead::LENGTH_MAX;

/// The most receives that queue pairs of one domain share.
const RECEIVES_MAX: u32 = 4096;

/// Buffers for what follows the head of a message are made so many at a time.
const SLAB_BUFFERS: usize = 128;

/// A domain of the caller on one device. The fields are dropped in this order: what uses a thing before the thing.
#[derive(Debug)]
pub(super) struct Domain {
    pub(super) number: ProtectionDomain,
    index: u16,
    pub(super) adapter: usize,
    /// Queue pairs in it.
    pub(super) queue_pairs: u32,
    receives: Vec<Receives>,
    windows: Vec<Window>,
    memory: Vec<Memory>,
    raw: sys::Domain,
}

/// A registered pool.
#[derive(Debug)]
struct Memory {
    /// Buffers that are registered by themselves, by their first byte: on devices that do not keep a peer within the
    /// part of a region that is exposed, the region is the buffer. They stay, since registering costs more than a
    /// command.
    buffers: HashMap<u64, Region>,
    local: Region,
}

/// Receives of one size.
#[derive(Debug)]
struct Receives {
    queue: SharedReceiveQueue,
    /// Bytes after the head.
    data_bytes: usize,
    /// What the queue pairs were promised together.
    promised: u32,
    posted: u32,
    capacity: u32,
    /// By number: the buffer behind a posted receive.
    buffers: Vec<Option<Buffer>>,
    free: Vec<u32>,
    heads: Region,
    head_buffer: SharedBuffer,
    slabs: Vec<Region>,
    /// For the next doorbell.
    chain: ReceiveChain,
}

impl Domain {
    /// `index` is its place among the domains of the core.
    pub(super) fn new(
        number: ProtectionDomain,
        index: u16,
        adapter: usize,
        context: sys::Context,
    ) -> io::Result<Self> {
        let raw = sys::Domain::new(context)?;
        Ok(Self {
            number,
            index,
            adapter,
            queue_pairs: 0,
            receives: Vec::new(),
            windows: Vec::new(),
            memory: Vec::new(),
            raw,
        })
    }

    /// The domain as the library knows it.
    pub(super) fn raw(&self) -> &sys::Domain {
        &self.raw
    }

    // --- memory ----------------------------------------------------------------------------------------------------

    /// Registers a pool, once.
    pub(super) fn register(&mut self, pool: &Pool, limits: &DeviceLimits) -> io::Result<()> {
        let base = pool.extent().0;
        if self.memory.iter().any(|memory| memory.local.pool.extent().0 == base) {
            return Ok(());
        }
        let windows = limits.windows && limits.bounded_windows;
        let rights = Rights { windows, remote_write: limits.writable_sinks, remote_read: false };
        let local = Region::new(&self.raw, pool, rights)?;
        self.memory.push(Memory { buffers: HashMap::new(), local });
        Ok(())
    }

    /// The region that holds some bytes.
    fn memory_of(&self, address: u64, length: u32) -> Option<usize> {
        self.memory.iter().position(|memory| memory.local.holds(address, length))
    }

    /// The key for requests of our own on some bytes.
    pub(super) fn local_key(&self, address: u64, length: u32) -> Option<u32> {
        self.memory_of(address, length).map(|index| self.memory[index].local.local_key())
    }

    /// The region that a window on some bytes is bound to: that of the buffer, if it has one.
    pub(super) fn region(&self, buffer: u64, address: u64, length: u32) -> Option<&Region> {
        let memory = &self.memory[self.memory_of(address, length)?];
        Some(memory.buffers.get(&buffer).unwrap_or(&memory.local))
    }

    /// Prepares a buffer for an exposure, and gives the key under which a peer reaches it where there are no windows.
    pub(super) fn prepare(&mut self, shared_buffer: &SharedBuffer, limits: &DeviceLimits) -> io::Result<u32> {
        let (base, bytes) = shared_buffer.slot();
        let address = base.as_ptr() as u64;
        let index = self.memory_of(address, 0).ok_or(io::ErrorKind::NotFound)?;
        let memory = &mut self.memory[index];
        if limits.windows && limits.bounded_windows {
            return Ok(0);
        }
        if let Some(region) = memory.buffers.get(&address) {
            return Ok(region.remote_key());
        }
        let open = !limits.windows;
        let rights = Rights { remote_read: open, remote_write: open, windows: limits.windows };
        let region = Region::part(&self.raw, &memory.local.pool, base, bytes, rights)?;
        let key = region.remote_key();
        memory.buffers.insert(address, region);
        Ok(key)
    }

    /// A closed window.
    pub(super) fn take_window(&mut self) -> io::Result<Window> {
        self.windows.pop().map_or_else(|| Window::new(&self.raw), Ok)
    }

    /// Takes a window back that its peer has closed.
    pub(super) fn give_window(&mut self, window: Window) {
        self.windows.push(window);
    }

    // --- receives --------------------------------------------------------------------------------------------------

    /// The receives for messages of a size, made when they are needed.
    pub(super) fn receives_for(
        &mut self,
        message_bytes_max: u32,
        limits: &DeviceLimits,
    ) -> io::Result<usize> {
        let data_bytes = (message_bytes_max as usize).saturating_sub(HEAD_BYTES);
        if let Some(index) = self.receives.iter().position(|receives| receives.data_bytes == data_bytes) {
            return Ok(index);
        }
        let capacity = limits.shared_receives.min(RECEIVES_MAX);
        let heads = slab(&self.raw, HEAD_BYTES * capacity as usize, 1)?;
        let head_buffer =
            heads.pool.take(HEAD_BYTES * capacity as usize).expect("the slab is one buffer").share();
        self.receives.push(Receives {
            queue: SharedReceiveQueue::new(&self.raw, capacity)?,
            data_bytes,
            promised: 0,
            posted: 0,
            capacity,
            buffers: (0..capacity).map(|_| None).collect(),
            free: (0..capacity).rev().collect(),
            heads,
            head_buffer,
            slabs: Vec::new(),
            chain: ReceiveChain::default(),
        });
        Ok(self.receives.len() - 1)
    }

    /// The queue that a queue pair takes its receives from.
    pub(super) fn receive_queue(&self, index: usize) -> &SharedReceiveQueue {
        &self.receives[index].queue
    }

    /// Promises a queue pair receives.
    ///
    /// # Errors
    /// When a peer that knows no "receiver not ready" could find none.
    pub(super) fn reserve_receives(&mut self, index: usize, count: u32, strictly: bool) -> io::Result<()> {
        let receives = &mut self.receives[index];
        let promised = receives.promised.saturating_add(count);
        if strictly && promised > receives.capacity {
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, "all shared receives are promised"));
        }
        receives.promised = promised;
        Ok(())
    }

    /// Takes a promise back, or what a message has used of it.
    pub(super) fn unreserve_receives(&mut self, index: usize, count: u32) {
        let receives = &mut self.receives[index];
        receives.promised = receives.promised.saturating_sub(count);
    }

    /// Posts receives as far as they were promised and buffers are there.
    pub(super) fn fill(&mut self) {
        let Self { raw, receives, index: domain, .. } = self;
        for (queue, receives) in receives.iter_mut().enumerate() {
            receives.fill(raw, |number| ReceiveId { domain: *domain, queue: queue as u16, number });
        }
    }

    /// Takes a completed receive: its head, and what followed.
    pub(super) fn received(
        &mut self,
        index: usize,
        number: u32,
        bytes: usize,
    ) -> (ReceivedHead, Option<Buffer>) {
        let receives = &mut self.receives[index];
        let mut head = ReceivedHead { bytes: [0; HEAD_BYTES], length: bytes.min(HEAD_BYTES) as u64 };
        let at = number as usize * HEAD_BYTES;
        receives.head_buffer.read_at(at, &mut head.bytes[..bytes.min(HEAD_BYTES)]);
        let mut data = receives.recycle(number);
        if let Some(data) = &mut data {
            data.set_len(bytes.saturating_sub(HEAD_BYTES));
        }
        (head, data.filter(|data| !data.is_empty()))
    }

    /// Takes a receive back that has no message.
    pub(super) fn recycle(&mut self, index: usize, number: u32) {
        drop(self.receives[index].recycle(number));
    }
}

impl Receives {
    fn recycle(&mut self, number: u32) -> Option<Buffer> {
        self.posted -= 1;
        self.free.push(number);
        self.buffers[number as usize].take()
    }

    fn fill(&mut self, domain: &sys::Domain, name: impl Fn(u32) -> ReceiveId) {
        let wanted = self.promised.min(self.capacity);
        while self.posted < wanted {
            let Some(number) = self.free.pop() else { break };
            if let Err(error) = self.append(domain, name(number)) {
                tracing::warn!(%error, "no buffer for a receive");
                self.free.push(number);
                break;
            }
            self.posted += 1;
        }
        if self.chain.len() > 0 {
            self.ring();
        }
    }

    /// Rings the doorbell. Receives that the device refuses are tried again with the next one.
    fn ring(&mut self) {
        // SAFETY: the memory of a head belongs to the receive with its number, which was not posted; the buffer is kept
        // with it until it has completed or the queue is gone.
        let (taken, outcome) = unsafe { self.queue.post(&mut self.chain) };
        if let Err(error) = outcome {
            tracing::warn!(%error, refused = self.chain.len() - taken, "receives could not be posted");
            for name in self.chain.ids().skip(taken).filter_map(ReceiveId::from_bits) {
                self.posted -= 1;
                self.free.push(name.number);
                self.buffers[name.number as usize] = None;
            }
        }
        self.chain.clear();
    }

    /// Makes a receive for the next doorbell.
    fn append(&mut self, domain: &sys::Domain, name: ReceiveId) -> io::Result<()> {
        let number = name.number;
        let head = self.head_buffer.io_pointer(number as usize * HEAD_BYTES, HEAD_BYTES) as u64;
        let head = Piece { address: head, length: HEAD_BYTES as u32, key: self.heads.local_key() };
        let mut data = Piece::default();
        if self.data_bytes > 0 {
            let (buffer, key) = self.take_buffer(domain)?;
            let address = buffer.io_pointer(0, self.data_bytes) as u64;
            data = Piece { address, length: self.data_bytes as u32, key };
            self.buffers[number as usize] = Some(buffer);
        }
        self.chain.push(name.to_bits(), [head, data]);
        Ok(())
    }

    fn take_buffer(&mut self, domain: &sys::Domain) -> io::Result<(Buffer, u32)> {
        let take = |slab: &Region| slab.pool.take(self.data_bytes).map(|buffer| (buffer, slab.local_key()));
        if let Some(taken) = self.slabs.iter().rev().find_map(take) {
            return Ok(taken);
        }
        // As many as there are receives, and as many again for messages that are being worked on.
        if self.slabs.len() * SLAB_BUFFERS >= 2 * self.capacity as usize {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        self.slabs.push(slab(domain, self.data_bytes, SLAB_BUFFERS)?);
        let taken = self.slabs.last().and_then(take);
        taken.ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }
}

/// Registered memory for receives.
fn slab(domain: &sys::Domain, buffer_bytes: usize, count: usize) -> io::Result<Region> {
    let pool = Pool::new(&[ClassLayout { buffer_bytes, count }]).map_err(io::Error::other)?;
    Region::new(domain, &pool, Rights::default())
}

/// Names a receive in its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReceiveId {
    pub(super) domain: u16,
    /// Which of the domain's queues.
    pub(super) queue: u16,
    pub(super) number: u32,
}

impl ReceiveId {
    /// The bit that tells a receive from a send.
    const MARK: u64 = 1 << 63;

    fn to_bits(self) -> u64 {
        Self::MARK | u64::from(self.domain) << 48 | u64::from(self.queue) << 32 | u64::from(self.number)
    }

    /// Which receive a completion is of, unless it is of a send.
    pub(super) fn from_bits(bits: u64) -> Option<Self> {
        let rest = bits & !Self::MARK;
        let receive = Self { domain: (rest >> 48) as u16, queue: (rest >> 32) as u16, number: rest as u32 };
        (bits & Self::MARK != 0).then_some(receive)
    }
}
