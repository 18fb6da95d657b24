//! A core with one disk.

use std::time::{Duration, Instant};

use ringfab_block::{BlockDevice, BlockError, DiskTokens, Driver as _, Finished, Operation, Started, Tag};
use ringfab_memory::{ClassLayout, Pool};
use ringfab_nbd::NbdDriver;
use ringfab_reactor::{Reactor, ReactorConfig, Token, Wait};

/// Whoever waits longer than this waits for ever.
const PATIENCE: Duration = Duration::from_secs(60);

/// The owners of the timer that says so, and of one that lets time pass.
const ALARM: u8 = 0;
const NAP: u8 = 1;

pub(crate) struct Bench {
    reactor: Reactor,
    pool: Pool,
    pub(crate) disk: Box<dyn BlockDevice>,
    in_flight: usize,
    finished: Vec<Finished>,
    next: u32,
}

/// What belongs at a place.
pub(crate) fn content(offset: u64, length: usize) -> Vec<u8> {
    (0..length as u64).map(|at| ((offset + at) >> 9) as u8 ^ (at as u8).wrapping_mul(31)).collect()
}

impl Bench {
    pub(crate) fn open(driver: &NbdDriver) -> Self {
        let config = ReactorConfig { entries: 64, spin: Duration::ZERO, descriptors_max: 64 };
        let mut reactor = Reactor::new(&config).expect("a ring");
        let layout = [
            ClassLayout { buffer_bytes: 65_536, count: 80 },
            ClassLayout { buffer_bytes: 1 << 20, count: 4 },
        ];
        let pool = Pool::new(&layout).expect("a pool");
        let disk = driver.open(&mut reactor, DiskTokens::new(7, 11)).expect("a disk");
        Self { reactor, pool, disk, in_flight: 0, finished: Vec::new(), next: 0 }
    }

    pub(crate) fn start(&mut self, operation: Operation) {
        self.next += 1;
        let tag = Tag { kind: 0, generation: 0, index: self.next };
        match self.disk.start(&mut self.reactor, operation, tag) {
            Started::Finished(finished) => self.finished.push(finished),
            Started::Pending => self.in_flight += 1,
        }
    }

    pub(crate) fn start_write(&mut self, offset: u64, bytes: &[u8]) {
        let operation = self.write_of(offset, bytes, false);
        self.start(operation);
    }

    pub(crate) fn start_read(&mut self, offset: u64, length: usize) {
        let operation = self.read_of(offset, length);
        self.start(operation);
    }

    fn write_of(&self, offset: u64, bytes: &[u8], durable: bool) -> Operation {
        let mut buffer = self.pool.take(bytes.len()).expect("a buffer");
        buffer.copy_from_slice(bytes);
        Operation::Write { offset, source: buffer.share(), at: 0, length: bytes.len() as u32, durable }
    }

    fn read_of(&self, offset: u64, length: usize) -> Operation {
        let mut buffer = self.pool.take(length).expect("a buffer");
        buffer.fill(0x5a);
        Operation::Read { offset, buffer, may_borrow: false }
    }

    fn turn(&mut self) {
        self.turn_with(Wait::Event);
    }

    fn turn_with(&mut self, wait: Wait) {
        self.reactor.turn(wait).expect("a turn");
        while let Some(completion) = self.reactor.next_completion() {
            assert_ne!(completion.token.owner, ALARM, "nothing has come of what was asked for");
            if completion.token.owner == NAP {
                continue;
            }
            let mut next = self.disk.on_completion(&mut self.reactor, completion);
            while let Some(finished) = next {
                self.in_flight -= 1;
                self.finished.push(finished);
                next = self.disk.next_finished(&mut self.reactor);
            }
        }
    }

    /// Flushes, while another core does its part: it is asked whether what it has written is covered.
    pub(crate) fn flush_beside(&mut self, other: &mut Self) -> Result<(), BlockError> {
        self.start(Operation::Flush);
        let end = Instant::now() + PATIENCE;
        while self.in_flight > 0 {
            assert!(Instant::now() < end, "a flush does not end");
            self.turn_with(Wait::No);
            other.turn_with(Wait::No);
        }
        self.finished.pop().expect("an outcome").result
    }

    /// How many operations have no outcome.
    pub(crate) const fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Waits until all that was started is over.
    pub(crate) fn finish_all(&mut self) -> Vec<Finished> {
        let at = self.reactor.clock() + PATIENCE;
        let alarm = self.reactor.set_timer(at, Token::new(ALARM, 0, 0, 0));
        while self.in_flight > 0 {
            self.turn();
        }
        self.reactor.cancel_timer(alarm);
        std::mem::take(&mut self.finished)
    }

    /// Lets what was started go to the server.
    pub(crate) fn turn_until_sent(&mut self) {
        let sent = self.reactor.counters().completed + 1;
        while self.reactor.counters().completed < sent {
            self.turn();
        }
    }

    pub(crate) fn run(&mut self, operation: Operation) -> Result<(), BlockError> {
        self.start(operation);
        self.finish_all().pop().expect("an outcome").result
    }

    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8], durable: bool) -> Result<(), BlockError> {
        let operation = self.write_of(offset, bytes, durable);
        self.run(operation)
    }

    pub(crate) fn read(&mut self, offset: u64, length: usize) -> Result<Vec<u8>, BlockError> {
        self.start_read(offset, length);
        let finished = self.finish_all().pop().expect("an outcome");
        let buffer = finished.buffer.expect("a read gives its buffer back");
        finished.result.map(|()| buffer.to_vec())
    }

    /// Reads until that succeeds.
    pub(crate) fn read_when_back(&mut self, offset: u64, expected: &[u8]) {
        let end = self.reactor.clock() + PATIENCE;
        loop {
            match self.read(offset, expected.len()) {
                Ok(bytes) => return assert!(bytes == expected),
                Err(error) => assert!(self.reactor.clock() < end, "{error}"),
            }
            let at = self.reactor.clock() + Duration::from_millis(20);
            self.reactor.set_timer(at, Token::new(NAP, 0, 0, 0));
            self.turn();
        }
    }

    /// So many writes at once, and then so many reads.
    pub(crate) fn at_once(&mut self, count: u64, length: usize) {
        for index in 0..count {
            let offset = index * length as u64;
            self.start_write(offset, &content(offset, length));
        }
        assert!(self.finish_all().iter().all(|finished| finished.result.is_ok()));
        for index in 0..count {
            self.start_read(index * length as u64, length);
        }
        let first = self.next - count as u32 + 1;
        for finished in self.finish_all() {
            let offset = u64::from(finished.tag.index - first) * length as u64;
            finished.result.expect("read");
            assert!(finished.buffer.expect("a buffer")[..] == content(offset, length)[..], "at {offset}");
        }
    }

    pub(crate) fn reopen(&mut self) {
        self.disk.reopen(&mut self.reactor).expect("opened anew");
    }

    /// What was not flushed may be lost with a server; who knows that goes on.
    pub(crate) fn flush_and_reopen_if_lost(&mut self) {
        if self.run(Operation::Flush).is_err() {
            self.reopen();
            self.run(Operation::Flush).expect("flushed");
        }
    }

    pub(crate) fn close(mut self) {
        assert_eq!(self.in_flight, 0);
        self.disk.close(&mut self.reactor);
    }
}
