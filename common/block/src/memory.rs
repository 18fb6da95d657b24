//! A disk in this process's memory.

use std::rc::Rc;
use std::sync::Arc;

use ringfab_memory::{BorrowedPages, Buffer, CoreMemory, PAGE_BYTES, SharedMemory};
use ringfab_reactor::{Completion, PreferredSizes, Reactor};

use crate::device::BlockDevice;
use crate::operation::{Discarded, DiskProperties, Finished, Operation, Started, Tag};

/// Memory is lent, and given back, in pages.
const PAGES: PreferredSizes =
    PreferredSizes { write: PAGE_BYTES as u32, discard: PAGE_BYTES as u32, optimal_write: 0 };

/// The bytes of a memory disk.
pub type Memory = Arc<SharedMemory>;

/// One core's handle of shared memory. Its operations are copies or borrows, done at once.
#[derive(Debug)]
pub(crate) struct MemoryDisk {
    memory: Rc<CoreMemory>,
    borrowed: BorrowedPages,
    copied_bytes: u64,
}

impl MemoryDisk {
    pub(crate) fn new(memory: Memory, borrowed: &BorrowedPages) -> Self {
        Self { memory: CoreMemory::new(memory), borrowed: borrowed.clone(), copied_bytes: 0 }
    }

    /// Has the processor fetch what a read or write touches. The range was checked.
    #[inline]
    pub(crate) fn prefetch(&self, operation: &Operation) -> bool {
        let (Operation::Read { .. } | Operation::Write { .. }, Some((offset, length))) =
            (operation, operation.range())
        else {
            return false;
        };
        self.memory.prefetch(offset as usize, length as usize);
        true
    }

    fn run(&mut self, mut operation: Operation, tag: Tag) -> Finished {
        let (memory, borrowed) = (&self.memory, &self.borrowed);
        match &mut operation {
            Operation::Read { offset, buffer, .. } => {
                let length = buffer.len();
                self.copied_bytes += length as u64;
                memory.read(borrowed, *offset as usize, buffer, 0, length);
            }
            Operation::Write { offset, source, at, length, .. } => {
                self.copied_bytes += u64::from(*length);
                memory.write(borrowed, *offset as usize, source, *at as usize, *length as usize);
            }
            Operation::WriteZeroes { offset, length, .. } | Operation::Discard { offset, length } => {
                memory.zero(borrowed, *offset as usize, *length as usize);
            }
            Operation::Flush => {}
            Operation::CompareAndWrite { .. } => unreachable!("memory cannot do that, and says so"),
        }
        operation.finish(tag, Ok(()))
    }

    /// A read whose bytes are lent to its buffer, or copied into it while somebody writes there.
    #[inline]
    fn read_borrowed(&mut self, offset: u64, buffer: Buffer, tag: Tag) -> Finished {
        match self.memory.borrow_pages(&self.borrowed, offset as usize, buffer) {
            Ok(shared_buffer) => {
                let (buffer, source) = (None, Some(shared_buffer));
                Finished { tag, result: Ok(()), errno: None, value: 0, buffer, source }
            }
            Err(buffer) => self.run(Operation::Read { offset, buffer, may_borrow: false }, tag),
        }
    }
}

impl BlockDevice for MemoryDisk {
    fn properties(&self) -> DiskProperties {
        DiskProperties {
            discarded: Discarded::Zeroes,
            write_zeroes_deallocates: true,
            preferred: PAGES,
            ..DiskProperties::new(self.memory.bytes() as u64)
        }
    }

    #[inline]
    fn start(&mut self, _: &mut Reactor, operation: Operation, tag: Tag) -> Started {
        Started::Finished(match operation {
            Operation::Read { offset, buffer, may_borrow: true } => self.read_borrowed(offset, buffer, tag),
            operation => self.run(operation, tag),
        })
    }

    fn on_completion(&mut self, _: &mut Reactor, _: Completion) -> Option<Finished> {
        None
    }

    fn close(&mut self, _: &mut Reactor) {}

    fn copied_bytes(&self) -> u64 {
        self.copied_bytes
    }
}
