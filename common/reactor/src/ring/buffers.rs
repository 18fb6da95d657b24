//! Memory of pools that is registered with the kernel, so that file I/O uses fixed buffers.

use std::io;
use std::mem::ManuallyDrop;

use io_uring::Submitter;
use ringfab_memory::Pool;

/// Regions that can be registered with the kernel: its own limit is 16384 in all.
const BUFFER_SLOTS: u32 = 256;
/// The kernel registers no region larger than this as one buffer.
const BUFFER_BYTES_MAX: usize = 1 << 30;

/// The registered buffers of a ring.
pub(super) struct Buffers {
    /// Leaked together with the ring.
    pub(super) pools: ManuallyDrop<Vec<Registration>>,
    /// Whether the kernel has a table for them.
    available: bool,
}

/// A pool that the kernel knows, kept alive as long as it does.
pub(super) struct Registration {
    pub(super) pool: Pool,
    slot_first: u16,
    slots: u16,
}

impl Buffers {
    pub(super) fn new(submitter: &Submitter<'_>) -> Self {
        let available = submitter.register_buffers_sparse(BUFFER_SLOTS).is_ok();
        Self { pools: ManuallyDrop::new(Vec::new()), available }
    }

    /// Registers the memory of a pool; whether the kernel took it.
    pub(super) fn register(&mut self, submitter: &Submitter<'_>, pool: &Pool) -> bool {
        if let Some(known) = self.pools.iter().find(|known| known.pool.extent() == pool.extent()) {
            pool.set_registration(Some(known.slot_first));
            return true;
        }
        match self.register_memory(submitter, pool) {
            Ok(()) => true,
            Err(error) => {
                let (_, bytes) = pool.extent();
                // Its owner knows how much all rings need, and says that once.
                tracing::debug!(%error, bytes, "a pool is not registered with the kernel");
                false
            }
        }
    }

    fn register_memory(&mut self, submitter: &Submitter<'_>, pool: &Pool) -> io::Result<()> {
        let (base, bytes) = pool.extent();
        let slot_first = self.pools.last().map_or(0, |last| last.slot_first + last.slots);
        let slots = bytes.div_ceil(BUFFER_BYTES_MAX);
        if !self.available || slot_first as usize + slots > BUFFER_SLOTS as usize {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "no slot for another registered buffer"));
        }
        let chunks: Vec<libc::iovec> = (0..slots)
            .map(|chunk| {
                let offset = chunk * BUFFER_BYTES_MAX;
                let length = BUFFER_BYTES_MAX.min(bytes - offset);
                let address = base.as_ptr().wrapping_add(offset);
                libc::iovec { iov_base: address.cast(), iov_len: length }
            })
            .collect();
        // SAFETY: the chunks lie in the pool's mapping. `self.pools` keeps a clone of the pool, and with it the
        // mapping, until the ring is gone or is leaked together with it.
        unsafe { submitter.register_buffers_update(u32::from(slot_first), &chunks, None) }?;
        self.pools.push(Registration { pool: pool.clone(), slot_first, slots: slots as u16 });
        pool.set_registration(Some(slot_first));
        Ok(())
    }

    /// The registered buffer that holds all of a range of a pool's memory, if this ring knows it.
    pub(super) fn slot(&self, registration: Option<u16>, pointer: *const u8, length: usize) -> Option<u16> {
        let slot_first = registration?;
        let known = self.pools.iter().find(|known| known.slot_first == slot_first)?;
        let (base, bytes) = known.pool.extent();
        let offset = (pointer as usize).checked_sub(base.as_ptr() as usize)?;
        let end = offset.checked_add(length).filter(|end| *end <= bytes && length > 0)?;
        let (first, last) = (offset / BUFFER_BYTES_MAX, (end - 1) / BUFFER_BYTES_MAX);
        (first == last).then_some(slot_first + first as u16)
    }
}
