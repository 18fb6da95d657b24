//! A disk that is not there: reads give zeroes, writes are forgotten.

use ringfab_memory::{Lease, Pool};

use crate::disk::{DiskProperties, Finished, Operation, Tag};

/// The most zeroes that a core's disks share.
const ZEROES_BYTES_MAX: usize = 128 * 1024;

/// Bytes of zeroes, for all disks of a core.
#[derive(Clone, Debug)]
pub(crate) struct Zeroes(pub(crate) Lease);

impl Zeroes {
    /// Takes them from a pool: its largest buffer, but no more than 128 KiB. `None` when none is left.
    pub(crate) fn new(pool: &Pool) -> Option<Self> {
        let mut buffer = pool.take(ZEROES_BYTES_MAX.min(pool.buffer_bytes_max()))?;
        buffer.fill(0);
        Some(Self(buffer.share()))
    }
}

/// A null disk with the zeroes that it shows.
#[derive(Debug)]
pub(crate) struct NullDisk {
    bytes: u64,
    zeroes: Zeroes,
}

impl NullDisk {
    pub(crate) fn new(bytes: u64, zeroes: &Zeroes) -> Self {
        Self { bytes, zeroes: zeroes.clone() }
    }

    pub(crate) fn properties(&self) -> DiskProperties {
        DiskProperties {
            bytes: self.bytes,
            offset_align: 1,
            memory_align: 1,
            volatile_cache: false,
            read_only: false,
            discard_zeroes: true,
        }
    }

    pub(crate) fn peek(&self, offset: u64, length: u32) -> Option<Lease> {
        let end = offset.checked_add(u64::from(length))?;
        (end <= self.bytes && length as usize <= self.zeroes.0.len()).then(|| self.zeroes.0.clone())
    }

    pub(crate) fn run(mut operation: Operation, tag: Tag) -> Finished {
        if let Operation::Read { buffer, .. } = &mut operation {
            buffer.fill(0);
        }
        operation.finish(tag, Ok(()))
    }
}
