//! A disk that is not there: reads give zeroes, writes are forgotten.

use ringfab_memory::SharedBuffer;
use ringfab_reactor::{Completion, PreferredSizes, Reactor};

use crate::device::BlockDevice;
use crate::operation::{Discarded, DiskProperties, Finished, Operation, Started, Tag};
use crate::zeroes::Zeroes;

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

    /// Zeroes for a range, if it lies within the disk and there are as many.
    #[inline]
    pub(crate) fn peek(&self, offset: u64, length: u32) -> Option<SharedBuffer> {
        let end = offset.checked_add(u64::from(length))?;
        (end <= self.bytes && length as usize <= self.zeroes.0.len()).then(|| self.zeroes.0.clone())
    }
}

impl BlockDevice for NullDisk {
    fn properties(&self) -> DiskProperties {
        DiskProperties {
            discarded: Discarded::Zeroes,
            write_zeroes_deallocates: true,
            // What it stands in for likes pages.
            preferred: PreferredSizes { write: 4096, discard: 4096, optimal_write: 0 },
            ..DiskProperties::new(self.bytes)
        }
    }

    fn start(&mut self, _: &mut Reactor, mut operation: Operation, tag: Tag) -> Started {
        if let Operation::Read { buffer, .. } = &mut operation {
            buffer.fill(0);
        }
        Started::Finished(operation.finish(tag, Ok(())))
    }

    fn on_completion(&mut self, _: &mut Reactor, _: Completion) -> Option<Finished> {
        None
    }

    fn close(&mut self, _: &mut Reactor) {}
}
