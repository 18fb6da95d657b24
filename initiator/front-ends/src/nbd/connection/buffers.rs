//! The buffers that a connection may have.

use ringfab_memory::{Buffer, Pool};

use super::{LARGE_BUFFERS, SMALL_BUFFERS, SMALL_BYTES};

/// Buffers that reads leave to writes: a client may read no replies before all of its write is taken.
const LARGE_BUFFERS_WRITES: usize = 4;
const SMALL_BUFFERS_WRITES: usize = 8;

/// Small and large buffers that a connection has taken and not returned.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BufferQuota {
    small: usize,
    large: usize,
}

impl BufferQuota {
    /// A buffer for so many bytes, if the connection may have one more.
    pub(super) fn take(&mut self, bytes: u32, for_read: bool, pool: &Pool) -> Option<Buffer> {
        let (taken, all, reserve) = if bytes <= SMALL_BYTES {
            (&mut self.small, SMALL_BUFFERS, SMALL_BUFFERS_WRITES)
        } else {
            (&mut self.large, LARGE_BUFFERS, LARGE_BUFFERS_WRITES)
        };
        let limit = if for_read { all - reserve } else { all };
        if *taken >= limit {
            return None;
        }
        let buffer = pool.take(bytes as usize)?;
        *taken += 1;
        Some(buffer)
    }

    /// Counts a small buffer that `make` takes itself.
    pub(super) fn take_small<T>(&mut self, make: impl FnOnce() -> Option<T>) -> Option<T> {
        if self.small >= SMALL_BUFFERS {
            return None;
        }
        let made = make()?;
        self.small += 1;
        Some(made)
    }

    /// A buffer of so many bytes went back.
    pub(super) fn put_back(&mut self, bytes: u32) {
        let taken = if bytes <= SMALL_BYTES { &mut self.small } else { &mut self.large };
        *taken -= 1;
    }

    /// The buffers of a send went back.
    pub(super) fn put_back_all(&mut self, returned: Self) {
        self.small -= returned.small;
        self.large -= returned.large;
    }

    /// Counts one more of so many bytes.
    pub(super) fn add(&mut self, bytes: u32) {
        let taken = if bytes <= SMALL_BYTES { &mut self.small } else { &mut self.large };
        *taken += 1;
    }
}
