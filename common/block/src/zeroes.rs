//! Zeroes that the disks of a core share.

use ringfab_memory::{Pool, SharedBuffer};

/// The most zeroes that a core's disks share.
const ZEROES_BYTES_MAX: usize = 128 * 1024;

/// Bytes of zeroes, for all disks of a core.
#[derive(Clone, Debug)]
pub(crate) struct Zeroes(pub(crate) SharedBuffer);

impl Zeroes {
    /// Takes them from a pool: its largest buffer, but no more than 128 KiB. `None` when none is left.
    pub(crate) fn new(pool: &Pool) -> Option<Self> {
        let mut buffer = pool.take(ZEROES_BYTES_MAX.min(pool.buffer_bytes_max()))?;
        buffer.fill(0);
        Some(Self(buffer.share()))
    }
}
