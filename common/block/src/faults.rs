//! Faults on purpose: a wrapper around another device.

use ringfab_base::SplitMix64;
use ringfab_reactor::{Completion, Reactor};

use crate::device::{BlockDevice, OpenedFile};
use crate::operation::{DiskProperties, Finished, Operation, Started, Tag};
use crate::{BlockError, OpenError};

/// How often a disk fails: of so many operations of a kind, one, chosen by a seeded generator. Zero is never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Seed of the generator.
    pub seed: u64,
    /// Reads.
    pub read_one_in: u32,
    /// Writes, zeroing and discarding.
    pub write_one_in: u32,
    /// Flushes.
    pub flush_one_in: u32,
}

/// A device that fails now and then.
#[derive(Debug)]
pub(crate) struct FaultyDevice {
    inner: Box<dyn BlockDevice>,
    faults: Faults,
    random: SplitMix64,
}

impl FaultyDevice {
    pub(crate) fn new(inner: Box<dyn BlockDevice>, faults: Faults) -> Self {
        Self { inner, faults, random: SplitMix64::new(faults.seed) }
    }

    /// The error with which an operation fails, if its turn has come. It fails before it touches the disk.
    fn strike(&mut self, operation: &Operation) -> Option<BlockError> {
        let (one_in, error) = match operation {
            Operation::Read { .. } => (self.faults.read_one_in, BlockError::Read),
            Operation::Flush => (self.faults.flush_one_in, BlockError::Write),
            _ => (self.faults.write_one_in, BlockError::Write),
        };
        (one_in != 0 && self.random.below(u64::from(one_in)) == 0).then_some(error)
    }
}

impl BlockDevice for FaultyDevice {
    fn properties(&self) -> DiskProperties {
        self.inner.properties()
    }

    fn start(&mut self, reactor: &mut Reactor, operation: Operation, tag: Tag) -> Started {
        match self.strike(&operation) {
            Some(error) => Started::Finished(operation.finish(tag, Err(error))),
            None => self.inner.start(reactor, operation, tag),
        }
    }

    fn on_completion(&mut self, reactor: &mut Reactor, completion: Completion) -> Option<Finished> {
        self.inner.on_completion(reactor, completion)
    }

    fn next_finished(&mut self, reactor: &mut Reactor) -> Option<Finished> {
        self.inner.next_finished(reactor)
    }

    fn close(&mut self, reactor: &mut Reactor) {
        self.inner.close(reactor);
    }

    fn resize(&mut self, bytes: u64) {
        self.inner.resize(bytes);
    }

    fn replace(&mut self, opened: &OpenedFile, reactor: &mut Reactor) -> std::io::Result<()> {
        self.inner.replace(opened, reactor)
    }

    fn reopen(&mut self, reactor: &mut Reactor) -> Result<(), OpenError> {
        self.inner.reopen(reactor)
    }

    fn copied_bytes(&self) -> u64 {
        self.inner.copied_bytes()
    }
}
