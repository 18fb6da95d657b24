//! Disks over the real ring: files, memory, null, and faults on purpose.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ringfab_block::{
    Backing, BlockError, Discarded, Disk, DiskTokens, Faults, Finished, OpenError, Operation, Pace, Shared,
    Started, Tag,
};
use ringfab_memory::{ClassLayout, Pool, SharedMemory};
use ringfab_reactor::{Reactor, ReactorConfig, Time, Token, Wait};

const DISK_BYTES: u64 = 1 << 20;

struct Bench {
    reactor: Reactor,
    pool: Pool,
    shared: Shared,
}

impl Bench {
    fn new() -> Self {
        let config = ReactorConfig { entries: 64, spin: Duration::ZERO, descriptors_max: 64 };
        let mut reactor = Reactor::new(&config).expect("a ring");
        let layout =
            [ClassLayout { buffer_bytes: 4096, count: 8 }, ClassLayout { buffer_bytes: 65_536, count: 8 }];
        let pool = Pool::new(&layout).expect("a pool");
        reactor.register_pool(&pool);
        let shared = Shared::new(&pool).expect("zeroes");
        Self { reactor, pool, shared }
    }

    fn open(&mut self, backing: &Backing) -> Result<Disk, OpenError> {
        Disk::open(backing, &mut self.reactor, &self.shared, DiskTokens::new(7, 11))
    }

    fn run(&mut self, disk: &mut Disk, operation: Operation) -> Finished {
        let tag = Tag { kind: 1, generation: 2, index: 3 };
        match disk.start(&mut self.reactor, operation, tag) {
            Started::Finished(finished) => finished,
            Started::Pending => self.finish(disk, tag),
        }
    }

    fn finish(&mut self, disk: &mut Disk, tag: Tag) -> Finished {
        let limit = self.reactor.clock() + Duration::from_secs(10);
        self.reactor.set_timer(limit, Token::new(0, 0, 0, 0));
        loop {
            self.reactor.turn(Wait::Event).expect("a turn");
            while let Some(completion) = self.reactor.next_completion() {
                assert_eq!(completion.token.owner, 7, "the disk did not answer in time");
                assert_eq!(DiskTokens::disk_of(completion.token), 11);
                if let Some(finished) = disk.on_completion(&mut self.reactor, completion) {
                    assert_eq!(finished.tag, tag);
                    return finished;
                }
            }
            assert!(self.reactor.now() < Time::MAX);
        }
    }

    /// Starts a read of each of so many blocks. Returns their numbers in the order in which they finish, and the time
    /// of each.
    fn read_blocks(&mut self, disk: &mut Disk, count: u32) -> Vec<(u32, Duration)> {
        // The time that disks go by: that of the turn.
        let begun = self.reactor.now();
        for index in 0..count {
            let buffer = self.pool.take(4096).expect("a buffer");
            let operation = Operation::Read { offset: u64::from(index) * 4096, buffer, may_borrow: false };
            let started = disk.start(&mut self.reactor, operation, Tag { kind: 0, generation: 0, index });
            assert!(matches!(started, Started::Pending));
        }
        let mut ended = Vec::new();
        while ended.len() < count as usize {
            self.reactor.turn(Wait::Event).expect("a turn");
            while let Some(completion) = self.reactor.next_completion() {
                let mut next = disk.on_completion(&mut self.reactor, completion);
                while let Some(finished) = next {
                    finished.result.expect("read");
                    assert!(finished.buffer.is_some_and(|buffer| buffer.iter().all(|byte| *byte == 7)));
                    ended.push((finished.tag.index, self.reactor.clock().since(begun)));
                    next = disk.next_finished(&mut self.reactor);
                }
            }
        }
        ended
    }

    fn write(&mut self, disk: &mut Disk, offset: u64, byte: u8, length: u32, durable: bool) -> Finished {
        let mut buffer = self.pool.take(length as usize).expect("a buffer");
        buffer.fill(byte);
        self.run(disk, Operation::Write { offset, source: buffer.share(), at: 0, length, durable })
    }

    fn read(&mut self, disk: &mut Disk, offset: u64, length: usize) -> (Result<(), BlockError>, Vec<u8>) {
        let buffer = self.pool.take(length).expect("a buffer");
        let finished = self.run(disk, Operation::Read { offset, buffer, may_borrow: false });
        (finished.result, finished.buffer.expect("a read gives its buffer back").to_vec())
    }
}

fn file(bytes: u64) -> (tempfile::NamedTempFile, Backing) {
    let file = tempfile::NamedTempFile::new().expect("a file");
    file.as_file().set_len(bytes).expect("its size");
    let backing = backing_of(file.path());
    (file, backing)
}

fn backing_of(path: &Path) -> Backing {
    Backing::File { path: path.to_path_buf(), direct: false, read_only: false }
}

fn behaves_like_a_disk(backing: &Backing) {
    let mut bench = Bench::new();
    let mut disk = bench.open(backing).expect("a disk");
    assert_eq!(disk.properties().bytes, DISK_BYTES);
    bench.write(&mut disk, 0, 0xab, 65_536, false).result.expect("written");
    bench.write(&mut disk, 4096, 0xcd, 4096, true).result.expect("written durably");
    let (result, bytes) = bench.read(&mut disk, 0, 65_536);
    result.expect("read");
    assert!(bytes[..4096].iter().all(|byte| *byte == 0xab));
    assert!(bytes[4096..8192].iter().all(|byte| *byte == 0xcd));
    bench.run(&mut disk, Operation::Flush).result.expect("flushed");
    for (deallocate, durable) in [(false, false), (true, true)] {
        bench.write(&mut disk, 0, 0xab, 65_536, false).result.expect("written");
        let zero = Operation::WriteZeroes { offset: 4096, length: 8192, deallocate, durable };
        bench.run(&mut disk, zero).result.expect("zeroed");
        let (_, bytes) = bench.read(&mut disk, 0, 65_536);
        for (offset, byte) in bytes.iter().enumerate() {
            assert_eq!(*byte, if (4096..12_288).contains(&offset) { 0 } else { 0xab }, "byte {offset}");
        }
    }
    bench.run(&mut disk, Operation::Discard { offset: 0, length: DISK_BYTES }).result.expect("discarded");
    assert_eq!(disk.properties().discarded, Discarded::Zeroes);
    assert!(disk.properties().write_zeroes_deallocates && disk.properties().preferred.write >= 512);
    assert!(bench.read(&mut disk, 0, 65_536).1.iter().all(|byte| *byte == 0));
    let (result, _) = bench.read(&mut disk, DISK_BYTES - 4096, 8192);
    assert_eq!(result, Err(BlockError::OutOfRange));
    let beyond = bench.write(&mut disk, u64::MAX, 0, 4096, false);
    assert_eq!(beyond.result, Err(BlockError::OutOfRange));
    assert!(beyond.source.is_some(), "a refused write gives its source back");
    disk.close(&mut bench.reactor);
}

#[test]
fn a_file_behaves_like_a_disk() {
    let (_file, backing) = file(DISK_BYTES);
    behaves_like_a_disk(&backing);
}

#[test]
fn memory_behaves_like_a_disk() {
    let memory = SharedMemory::new(DISK_BYTES as usize).expect("memory");
    behaves_like_a_disk(&Backing::Memory(Arc::new(memory)));
}

#[test]
fn what_is_copied_from_and_to_memory_is_counted_and_nothing_else() {
    let mut bench = Bench::new();
    let memory = SharedMemory::new(DISK_BYTES as usize).expect("memory");
    let mut disk = bench.open(&Backing::Memory(Arc::new(memory))).expect("it opens");
    bench.write(&mut disk, 4096, 7, 8192, false);
    let _read = bench.read(&mut disk, 0, 4096);
    bench.run(&mut disk, Operation::Flush);
    let zeroes = Operation::WriteZeroes { offset: 0, length: 4096, deallocate: false, durable: false };
    bench.run(&mut disk, zeroes);
    assert_eq!(disk.copied_bytes(), 8192 + 4096);
}

#[test]
fn memory_lends_what_may_be_lent_until_it_is_settled_and_other_disks_fill_the_buffer() {
    let mut bench = Bench::new();
    let memory = Arc::new(SharedMemory::new(DISK_BYTES as usize).expect("memory"));
    let mut disk = bench.open(&Backing::Memory(Arc::clone(&memory))).expect("it opens");
    bench.write(&mut disk, 4096, 7, 4096, false);
    let borrow = |bench: &mut Bench, disk: &mut Disk| {
        let buffer = bench.pool.take(4096).expect("a buffer");
        bench.run(disk, Operation::Read { offset: 4096, buffer, may_borrow: true })
    };
    let finished = borrow(&mut bench, &mut disk);
    assert!(finished.result.is_ok() && finished.buffer.is_none());
    let shared_buffer = finished.source.expect("what was lent");
    assert!(shared_buffer.is_borrowed() && !bench.shared.borrowed_pages().is_empty());
    assert_eq!(disk.copied_bytes(), 4096, "written, and not copied when it was read");
    bench.write(&mut disk, 4096, 8, 4096, false);
    assert!(!shared_buffer.is_borrowed() && bench.shared.borrowed_pages().is_empty());
    assert_eq!(bench.shared.borrowed_pages().copied_bytes(), 4096);
    shared_buffer.with_bytes(0..4096, |bytes| assert!(bytes.iter().all(|byte| *byte == 7)));
    let (_file, backing) = file(DISK_BYTES);
    for backing in [backing, Backing::Null { bytes: DISK_BYTES }] {
        let mut disk = bench.open(&backing).expect("it opens");
        assert!(
            borrow(&mut bench, &mut disk).buffer.is_some_and(|buffer| buffer.iter().all(|byte| *byte == 0))
        );
    }
}

#[test]
fn only_what_is_read_from_or_written_to_memory_can_be_prefetched_and_only_where_it_is() {
    let mut bench = Bench::new();
    let memory = Backing::Memory(Arc::new(SharedMemory::new(8192).expect("memory")));
    let disk = bench.open(&memory).expect("a disk");
    let buffer = || bench.pool.take(4096).expect("a buffer");
    let read = |offset| Operation::Read { offset, buffer: buffer(), may_borrow: false };
    let write =
        |length| Operation::Write { offset: 4096, source: buffer().share(), at: 0, length, durable: true };
    assert!(disk.prefetch(&read(4096)) && disk.prefetch(&write(4096)) && disk.prefetch(&write(1)));
    for operation in [read(4097), read(u64::MAX), write(4097), Operation::Flush] {
        assert!(!disk.prefetch(&operation), "{operation:?}");
    }
    assert!(!disk.prefetch(&Operation::Discard { offset: 0, length: 4096 }));
    let null = bench.open(&Backing::Null { bytes: 8192 }).expect("a disk");
    assert!(!null.prefetch(&Operation::Read {
        offset: 0,
        buffer: bench.pool.take(4096).expect("a buffer"),
        may_borrow: true
    }));
}

#[test]
fn a_null_disk_shows_zeroes_without_any_copy() {
    let mut bench = Bench::new();
    let mut disk = bench.open(&Backing::Null { bytes: DISK_BYTES }).expect("a disk");
    bench.write(&mut disk, 0, 0xab, 4096, false).result.expect("forgotten");
    assert!(bench.read(&mut disk, 0, 4096).1.iter().all(|byte| *byte == 0));
    let shown = disk.peek(DISK_BYTES - 4096, 4096).expect("its zeroes");
    shown.with_bytes(0..4096, |bytes| assert!(bytes.iter().all(|byte| *byte == 0)));
    assert!(disk.peek(DISK_BYTES - 4095, 4096).is_none());
    assert!(disk.peek(u64::MAX, 1).is_none());
}

#[test]
fn a_file_that_was_cut_off_fails_its_reads_instead_of_passing_for_short_ones() {
    let (file, backing) = file(DISK_BYTES);
    let mut bench = Bench::new();
    let mut disk = bench.open(&backing).expect("a disk");
    file.as_file().set_len(4096).expect("cut off");
    assert_eq!(bench.read(&mut disk, 0, 8192).0, Err(BlockError::Shrunk));
    assert_eq!(bench.read(&mut disk, 0, 4096).0, Ok(()));
    // A write to its end would make it look whole, with zeroes in between that nobody wrote.
    let end = bench.write(&mut disk, DISK_BYTES - 4096, 0xab, 4096, false).result;
    assert_eq!(end, Err(BlockError::Shrunk));
    assert_eq!(file.as_file().metadata().expect("its size").len(), 4096, "it is as it was left");
    disk.resize(4096);
    assert_eq!(bench.read(&mut disk, 4096, 4096).0, Err(BlockError::OutOfRange));
}

#[test]
fn a_disk_that_grows_while_its_file_is_asked_how_long_it_is_has_not_shrunk() {
    let (_file, backing) = file(DISK_BYTES);
    let mut bench = Bench::new();
    let mut disk = bench.open(&backing).expect("a disk");
    let source = bench.pool.take(4096).expect("a buffer").share();
    let tag = Tag { kind: 1, generation: 2, index: 3 };
    let write = Operation::Write { offset: DISK_BYTES - 4096, source, at: 0, length: 4096, durable: false };
    assert!(matches!(disk.start(&mut bench.reactor, write, tag), Started::Pending));
    // The disk hears that it has grown before it has the answer, which is from before that.
    disk.resize(2 * DISK_BYTES);
    assert_eq!(bench.finish(&mut disk, tag).result, Ok(()));
}

#[test]
fn a_read_only_disk_refuses_every_change() {
    let (file, _) = file(DISK_BYTES);
    let mut bench = Bench::new();
    let backing = Backing::File { path: file.path().to_path_buf(), direct: false, read_only: true };
    let mut disk = bench.open(&backing).expect("a disk");
    assert_eq!(bench.write(&mut disk, 0, 1, 4096, false).result, Err(BlockError::ReadOnly));
    let zero = Operation::WriteZeroes { offset: 0, length: 4096, deallocate: false, durable: false };
    assert_eq!(bench.run(&mut disk, zero).result, Err(BlockError::ReadOnly));
    assert_eq!(bench.read(&mut disk, 0, 4096).0, Ok(()));
}

#[test]
fn what_cannot_be_a_disk_is_named() {
    let mut bench = Bench::new();
    let missing = bench.open(&backing_of(Path::new("/nonexistent/disk.img"))).expect_err("missing");
    assert!(missing.to_string().contains("/nonexistent/disk.img"), "{missing}");
    let (_file, empty) = file(0);
    let empty = bench.open(&empty).expect_err("empty");
    assert!(empty.to_string().contains("is empty"), "{empty}");
}

#[test]
fn faults_strike_as_often_as_they_were_asked_to_and_the_same_way_each_time() {
    let strikes = |seed| {
        let mut bench = Bench::new();
        let inner = Box::new(Backing::Null { bytes: DISK_BYTES });
        let faults = Faults { seed, read_one_in: 4, write_one_in: 0, flush_one_in: 1 };
        let mut disk = bench.open(&Backing::Faulty { inner, faults }).expect("a disk");
        assert_eq!(bench.run(&mut disk, Operation::Flush).result, Err(BlockError::Write));
        assert_eq!(bench.write(&mut disk, 0, 1, 4096, false).result, Ok(()));
        (0..400).map(|_| bench.read(&mut disk, 0, 4096).0.is_err()).collect::<Vec<bool>>()
    };
    let first = strikes(1);
    let count = first.iter().filter(|struck| **struck).count();
    assert!((60..140).contains(&count), "{count} of 400");
    assert_eq!(first, strikes(1));
    assert_ne!(first, strikes(2));
}

/// The same disk, slow, over each kind of disk that finishes operations at once or later.
fn paced(pace: Pace) -> Vec<(tempfile::NamedTempFile, Backing)> {
    let (file, on_file) = file(DISK_BYTES);
    let memory = Backing::Memory(Arc::new(SharedMemory::new(DISK_BYTES as usize).expect("memory")));
    let other = tempfile::NamedTempFile::new().expect("a file");
    let slow = |inner| Backing::Paced { inner: Box::new(inner), pace };
    vec![(file, slow(on_file)), (other, slow(memory))]
}

#[test]
fn a_slow_disk_behaves_like_a_disk() {
    let pace = Pace::Delay { seed: 1, min: Duration::ZERO, max: Duration::from_micros(100) };
    for (_file, backing) in paced(pace) {
        behaves_like_a_disk(&backing);
    }
}

#[test]
fn delayed_operations_wait_as_long_as_was_asked_for_and_finish_in_another_order() {
    let (min, max) = (Duration::from_millis(2), Duration::from_millis(20));
    for (_file, backing) in paced(Pace::Delay { seed: 3, min, max }) {
        let mut bench = Bench::new();
        let mut disk = bench.open(&backing).expect("a disk");
        bench.write(&mut disk, 0, 7, 65_536, false).result.expect("written");
        let ended = bench.read_blocks(&mut disk, 8);
        assert!(ended.iter().all(|(_, took)| *took >= min), "{ended:?}");
        assert!(ended.windows(2).any(|pair| pair[0].0 > pair[1].0), "{ended:?}");
    }
}

#[test]
fn a_limited_disk_keeps_the_order_and_starts_no_more_than_its_rate_allows() {
    for (_file, backing) in paced(Pace::Limit { operations_per_second: 500 }) {
        let mut bench = Bench::new();
        let mut disk = bench.open(&backing).expect("a disk");
        bench.write(&mut disk, 0, 7, 65_536, false).result.expect("written");
        let ended = bench.read_blocks(&mut disk, 8);
        // Reads of a file may overtake each other after they have started; copies of memory cannot.
        let (count, (_, last)) = (ended.len() as u32, ended[ended.len() - 1]);
        assert!(last >= Duration::from_millis(2) * (count - 1), "{ended:?}");
    }
}
