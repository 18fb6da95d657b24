//! A drive in memory that answers what a test says, with its own statuses and values, as a passed-through one does.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use ringfab_block::{
    BlockDevice, BlockError, Discarded, DiskProperties, DiskTokens, Driver, Finished, OpenError, Operation,
    Started, Tag,
};
use ringfab_reactor::{Completion, Reactor};

/// What the drive says to an operation: how it went, and dwords 0 and 1 of its completion.
pub type Answer = (Result<(), BlockError>, u64);

/// The drive, of which all cores have handles.
#[derive(Debug, Default)]
pub struct Drive {
    bytes: Mutex<Vec<u8>>,
    answers: Mutex<VecDeque<Answer>>,
    compare_and_write_max: u32,
    /// How often it has compared and written.
    compared: AtomicUsize,
}

impl Drive {
    /// A drive of zeroes.
    pub fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self { bytes: Mutex::new(vec![0; bytes]), ..Self::default() })
    }

    /// The same, which compares and writes so many bytes at once.
    pub fn with_compare_and_write(bytes: usize, bytes_max: u32) -> Arc<Self> {
        let bytes = Mutex::new(vec![0; bytes]);
        Arc::new(Self { bytes, compare_and_write_max: bytes_max, ..Self::default() })
    }

    /// How often it has compared, and written if that was right.
    pub fn compared(&self) -> usize {
        self.compared.load(Ordering::Relaxed)
    }

    /// It says this to the next operation that it has no answer for yet, whatever that is. Without an answer, it does
    /// what it is asked for.
    pub fn answer(&self, answer: Answer) {
        lock(&self.answers).push_back(answer);
    }

    /// Its bytes.
    pub fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        lock(&self.bytes)
    }

    fn run(&self, operation: &mut Operation) -> Result<(), BlockError> {
        let mut bytes = self.bytes();
        match operation {
            Operation::Read { offset, buffer, .. } => {
                let length = buffer.len();
                buffer.copy_from_slice(&bytes[*offset as usize..][..length]);
            }
            Operation::Write { offset, source, at, length, .. } => {
                source.read_at(*at as usize, &mut bytes[*offset as usize..][..*length as usize]);
            }
            Operation::WriteZeroes { offset, length, .. } | Operation::Discard { offset, length } => {
                bytes[*offset as usize..][..*length as usize].fill(0);
            }
            Operation::Flush => {}
            Operation::CompareAndWrite { offset, expected, source, length, .. } => {
                self.compared.fetch_add(1, Ordering::Relaxed);
                let range = &mut bytes[*offset as usize..][..*length as usize];
                let mut content = vec![0; range.len()];
                expected.read_at(0, &mut content);
                if content != *range {
                    return Err(BlockError::Miscompare);
                }
                source.read_at(0, range);
            }
            _ => return Err(BlockError::NotSupported),
        }
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens a drive on each core.
#[derive(Debug)]
pub struct DriveDriver(pub Arc<Drive>);

impl Driver for DriveDriver {
    fn name(&self) -> String {
        "drive".to_owned()
    }

    fn open(&self, _: &mut Reactor, _: DiskTokens) -> Result<Box<dyn BlockDevice>, OpenError> {
        Ok(Box::new(DriveDevice(Arc::clone(&self.0))))
    }
}

/// A core's handle of the drive, whose operations are done at once.
#[derive(Debug)]
struct DriveDevice(Arc<Drive>);

impl BlockDevice for DriveDevice {
    fn properties(&self) -> DiskProperties {
        let properties = DiskProperties::new(self.0.bytes().len() as u64).with_volatile_cache(true);
        let properties = properties.with_discarded(Discarded::Zeroes);
        properties.with_compare_and_write(self.0.compare_and_write_max)
    }

    fn start(&mut self, _: &mut Reactor, mut operation: Operation, tag: Tag) -> Started {
        let answer = lock(&self.0.answers).pop_front();
        let (result, value) = answer.unwrap_or_else(|| (self.0.run(&mut operation), 0));
        // Whoever else uses the drive may come between two operations.
        thread::yield_now();
        Started::Finished(operation.finish(tag, result).with_value(value))
    }

    fn on_completion(&mut self, _: &mut Reactor, _: Completion) -> Option<Finished> {
        None
    }

    fn close(&mut self, _: &mut Reactor) {}
}
