//! A core of a target: a reactor with buffers, which does one operation after the other, or several at once.

use std::collections::HashMap;
use std::time::Duration;

use ringfab_block::{
    Backing, BlockError, Disk, DiskTokens, DriverHandle, Finished, Operation, Seen, Shared, Started, Tag,
};
use ringfab_memory::{Buffer, ClassLayout, Pool};
use ringfab_reactor::{Reactor, ReactorConfig, Token, Wait};

/// How long something may take that does come: clusters on busy machines are slow.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

/// Whose tokens these are: those of disks, and the core's own.
const OWNER_DISKS: u8 = 7;
const OWNER_TIMER: u8 = 1;

/// The number of the disk on its core.
const DISK: u16 = 11;

pub(crate) struct Core {
    pub(crate) reactor: Reactor,
    pub(crate) pool: Pool,
    shared: Shared,
}

impl Core {
    pub(crate) fn new() -> Self {
        let config = ReactorConfig { entries: 64, spin: Duration::ZERO, descriptors_max: 64 };
        let mut reactor = Reactor::new(&config).expect("a ring");
        let layout = [
            ClassLayout { buffer_bytes: 4096, count: 256 },
            ClassLayout { buffer_bytes: 131_072, count: 32 },
            ClassLayout { buffer_bytes: 1 << 20, count: 8 },
        ];
        let pool = Pool::new(&layout).expect("a pool");
        reactor.register_pool(&pool);
        let shared = Shared::new(&pool).expect("zeroes");
        Self { reactor, pool, shared }
    }

    /// Opens a driver's disk, which somebody has looked at.
    pub(crate) fn open(&mut self, driver: &DriverHandle) -> Disk {
        let tokens = DiskTokens::new(OWNER_DISKS, DISK);
        Disk::open(&Backing::Device(driver.clone()), &mut self.reactor, &self.shared, tokens).expect("a disk")
    }

    pub(crate) fn buffer(&self, length: usize) -> Buffer {
        self.pool.take(length).expect("a buffer")
    }

    pub(crate) fn write_operation(&self, offset: u64, bytes: &[u8], durable: bool) -> Operation {
        let mut buffer = self.buffer(bytes.len());
        buffer.copy_from_slice(bytes);
        Operation::Write { offset, source: buffer.share(), at: 0, length: bytes.len() as u32, durable }
    }

    pub(crate) fn read_operation(&self, offset: u64, length: usize) -> Operation {
        Operation::Read { offset, buffer: self.buffer(length), may_borrow: false }
    }

    /// Starts an operation that librbd takes.
    pub(crate) fn start(&mut self, disk: &mut Disk, operation: Operation, index: u32) {
        let started = disk.start(&mut self.reactor, operation, Tag { kind: 1, generation: 2, index });
        assert!(matches!(started, Started::Pending), "{started:?}");
    }

    /// Does one operation.
    pub(crate) fn run(&mut self, disk: &mut Disk, operation: Operation) -> Finished {
        let tag = Tag { kind: 1, generation: 2, index: 0 };
        match disk.start(&mut self.reactor, operation, tag) {
            Started::Finished(finished) => finished,
            Started::Pending => self.finish(disk, 1).remove(&0).expect("this one"),
        }
    }

    /// Waits until so many operations have finished; each by its index.
    pub(crate) fn finish(&mut self, disk: &mut Disk, count: usize) -> HashMap<u32, Finished> {
        let mut all = HashMap::new();
        let timer = self.set_timer(PATIENCE);
        while all.len() < count {
            self.turn(disk, &mut all, true);
        }
        self.reactor.cancel_timer(timer);
        all
    }

    /// Turns for so long, and returns what has finished.
    pub(crate) fn turn_for(&mut self, disk: &mut Disk, time: Duration) -> HashMap<u32, Finished> {
        let mut all = HashMap::new();
        self.set_timer(time);
        while self.turn(disk, &mut all, false) {}
        all
    }

    fn set_timer(&mut self, time: Duration) -> ringfab_reactor::TimerId {
        let at = self.reactor.clock() + time;
        self.reactor.set_timer(at, Token::new(OWNER_TIMER, 0, 0, 0))
    }

    /// One turn. Returns whether the timer has not struck, which is an error if `must` says so.
    fn turn(&mut self, disk: &mut Disk, all: &mut HashMap<u32, Finished>, must: bool) -> bool {
        self.reactor.turn(Wait::Event).expect("a turn");
        let mut goes_on = true;
        while let Some(completion) = self.reactor.next_completion() {
            if completion.token.owner == OWNER_TIMER {
                assert!(!must, "the disk did not answer in time");
                goes_on = false;
                continue;
            }
            assert_eq!(DiskTokens::disk_of(completion.token), DISK);
            let mut next = disk.on_completion(&mut self.reactor, completion);
            while let Some(finished) = next {
                let index = finished.tag.index;
                assert!(all.insert(index, finished).is_none(), "{index} has finished twice");
                next = disk.next_finished(&mut self.reactor);
            }
        }
        goes_on
    }

    pub(crate) fn write(&mut self, disk: &mut Disk, offset: u64, bytes: &[u8]) -> Result<(), BlockError> {
        let operation = self.write_operation(offset, bytes, false);
        let finished = self.run(disk, operation);
        assert!(finished.source.is_some(), "a write gives its source back");
        finished.result
    }

    pub(crate) fn read(
        &mut self,
        disk: &mut Disk,
        offset: u64,
        length: usize,
    ) -> Result<Vec<u8>, BlockError> {
        let operation = self.read_operation(offset, length);
        let finished = self.run(disk, operation);
        let buffer = finished.buffer.expect("a read gives its buffer back");
        finished.result.map(|()| buffer.to_vec())
    }

    pub(crate) fn close(&mut self, disk: Disk) {
        disk.close(&mut self.reactor);
    }
}

/// Looks at a disk that is there.
pub(crate) fn look(driver: &DriverHandle) -> Seen {
    driver.look().expect("it can be looked at")
}

/// A detail that the driver tells.
pub(crate) fn detail(driver: &DriverHandle, name: &str) -> Option<String> {
    driver.details().into_iter().find(|detail| detail.name == name).map(|detail| detail.text)
}
