//! Protection domains, and the memory that is registered in them.

use std::io;
use std::ptr::{self, NonNull};

use rdma_sys as ffi;
use ringfab_memory::Pool;

use super::{Context, made};

/// A protection domain.
#[derive(Debug)]
pub(crate) struct Domain(pub(super) NonNull<ffi::ibv_pd>);

impl Domain {
    pub(crate) fn new(context: Context) -> io::Result<Self> {
        // SAFETY: the context is open.
        Ok(Self(made(unsafe { ffi::ibv_alloc_pd(context.0.as_ptr()) })?))
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: it is ours; whoever owns it drops what is in it first. If something is left the call fails and the
        // domain stays, which does no harm.
        unsafe { ffi::ibv_dealloc_pd(self.0.as_ptr()) };
    }
}

/// Rights on registered memory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rights {
    pub(crate) remote_read: bool,
    pub(crate) remote_write: bool,
    /// Windows may be bound to it.
    pub(crate) windows: bool,
}

impl Rights {
    fn raw(self) -> u32 {
        use ffi::ibv_access_flags as flag;
        let mut raw = flag::IBV_ACCESS_LOCAL_WRITE.0;
        for (wanted, bit) in [
            (self.remote_read, flag::IBV_ACCESS_REMOTE_READ.0),
            (self.remote_write, flag::IBV_ACCESS_REMOTE_WRITE.0),
            (self.windows, flag::IBV_ACCESS_MW_BIND.0),
        ] {
            raw |= if wanted { bit } else { 0 };
        }
        raw
    }
}

/// Registered memory of a pool, which it keeps mapped.
#[derive(Debug)]
pub(crate) struct Region {
    pub(super) raw: NonNull<ffi::ibv_mr>,
    pub(crate) pool: Pool,
    base: u64,
    bytes: usize,
}

impl Region {
    /// Registers a whole pool.
    pub(crate) fn new(domain: &Domain, pool: &Pool, rights: Rights) -> io::Result<Self> {
        let (base, bytes) = pool.extent();
        Self::part(domain, pool, base, bytes, rights)
    }

    /// Registers a part of a pool: `bytes` bytes from `base` on.
    pub(crate) fn part(
        domain: &Domain,
        pool: &Pool,
        base: NonNull<u8>,
        bytes: usize,
        rights: Rights,
    ) -> io::Result<Self> {
        let (first, whole) = pool.extent();
        let end = base.as_ptr() as usize + bytes;
        assert!(base >= first && end <= first.as_ptr() as usize + whole, "a part of the pool");
        // SAFETY: the range lies in the mapping by the assertion, and the mapping lives as long as the pool, of which
        // a handle is kept until the region is gone.
        let raw =
            unsafe { ffi::ibv_reg_mr(domain.0.as_ptr(), base.as_ptr().cast(), bytes, rights.raw() as i32) };
        let raw = made(raw).map_err(|error| {
            let why =
                format!("cannot register {bytes} bytes of memory (see the limit of locked memory): {error}");
            io::Error::new(error.kind(), why)
        })?;
        Ok(Self { raw, pool: pool.clone(), base: base.as_ptr() as u64, bytes })
    }

    /// The key for our own requests.
    pub(crate) fn local_key(&self) -> u32 {
        // SAFETY: the region lives as long as `self`.
        unsafe { self.raw.as_ref().lkey }
    }

    /// The key for the peer's.
    pub(crate) fn remote_key(&self) -> u32 {
        // SAFETY: as above.
        unsafe { self.raw.as_ref().rkey }
    }

    /// Whether the bytes at an address are in it.
    pub(crate) fn holds(&self, address: u64, length: u32) -> bool {
        address >= self.base && address + u64::from(length) <= self.base + self.bytes as u64
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: it is ours; no queue pair that uses it is left, by the owner's order.
        let code = unsafe { ffi::ibv_dereg_mr(self.raw.as_ptr()) };
        if code != 0 {
            // What the device may still write must never be used for anything else.
            tracing::error!(code, "a memory region stays registered; its memory is not freed");
            std::mem::forget(self.pool.clone());
        }
    }
}

/// A memory window of type 2: it opens a part of a region to one queue pair's peer.
#[derive(Debug)]
pub(crate) struct Window {
    pub(super) raw: NonNull<ffi::ibv_mw>,
    /// The key of its present or last binding.
    pub(crate) key: u32,
}

impl Window {
    pub(crate) fn new(domain: &Domain) -> io::Result<Self> {
        // SAFETY: the domain lives.
        let raw = unsafe { ffi::ibv_alloc_mw(domain.0.as_ptr(), ffi::ibv_mw_type::IBV_MW_TYPE_2) };
        let raw = made(raw.unwrap_or(ptr::null_mut()))?;
        // SAFETY: it was just made.
        let key = unsafe { raw.as_ref().rkey };
        Ok(Self { raw, key })
    }

    /// The key of its next binding: the same window, another last byte.
    pub(crate) fn advance(&mut self) -> u32 {
        self.key = (self.key & !0xff) | (self.key.wrapping_add(1) & 0xff);
        self.key
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: it is ours. When this returns, no peer reaches anything through it.
        let code = unsafe { ffi::ibv_dealloc_mw(self.raw.as_ptr()) };
        if code != 0 {
            tracing::error!(code, "a memory window stays open");
        }
    }
}
