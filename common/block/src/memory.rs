//! A disk in this process's memory.

use std::sync::Arc;

use crate::disk::{DiskProperties, Finished, Memory, Operation, Tag};

/// One core's handle of shared memory. Its operations are copies, done at once; ranges were checked before.
#[derive(Debug)]
pub(crate) struct MemoryDisk {
    memory: Memory,
    copied_bytes: u64,
}

impl MemoryDisk {
    pub(crate) fn new(memory: Memory) -> Self {
        Self { memory, copied_bytes: 0 }
    }

    pub(crate) fn properties(&self) -> DiskProperties {
        DiskProperties {
            bytes: self.memory.bytes() as u64,
            offset_align: 1,
            memory_align: 1,
            volatile_cache: false,
            read_only: false,
            discard_zeroes: true,
        }
    }

    pub(crate) fn copied_bytes(&self) -> u64 {
        self.copied_bytes
    }

    /// Ranges were checked before.
    pub(crate) fn prefetch(&self, operation: &Operation) -> bool {
        let (Operation::Read { .. } | Operation::Write { .. }, Some((offset, length))) =
            (operation, operation.range())
        else {
            return false;
        };
        self.memory.prefetch(offset as usize, length as usize);
        true
    }

    pub(crate) fn run(&mut self, mut operation: Operation, tag: Tag) -> Finished {
        let memory = Arc::as_ref(&self.memory);
        match &mut operation {
            Operation::Read { offset, buffer } => {
                let length = buffer.len();
                self.copied_bytes += length as u64;
                memory.read(*offset as usize, buffer, 0, length);
            }
            Operation::Write { offset, source, at, length, .. } => {
                self.copied_bytes += u64::from(*length);
                memory.write(*offset as usize, source, *at as usize, *length as usize);
            }
            Operation::WriteZeroes { offset, length, .. } | Operation::Discard { offset, length } => {
                memory.zero(*offset as usize, *length as usize);
            }
            Operation::Flush => {}
        }
        operation.finish(tag, Ok(()))
    }
}
