//! Disks: what a completed operation promises, and what a crash takes.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use ringfab_memory::{Pool, SharedBuffer};
use ringfab_reactor::sim::{DiskFaults, HostId, World};
use ringfab_reactor::{
    Allocate, Completion, FileId, FileOptions, FileRange, OnClose, Payload, Reactor, Token, Wait,
};

use crate::{collect, errno_of, only, pool};

const PATH: &str = "/dev/disk";
const DISK_BYTES: u64 = 1 << 20;
const WRITE: Token = Token::new(2, 1, 0, 0);
const READ: Token = Token::new(2, 2, 0, 0);
const SYNC: Token = Token::new(2, 3, 0, 0);
const ZERO: Token = Token::new(2, 4, 0, 0);

struct Machine {
    world: World,
    host: HostId,
    reactor: Reactor,
    file: FileId,
    pool: Pool,
}

impl Machine {
    fn new(seed: u64, faults: DiskFaults) -> Self {
        let world = World::new(seed);
        let host = world.add_host("storage");
        world.add_disk(host, PATH, DISK_BYTES, faults);
        let mut reactor = Reactor::simulated(&world, host);
        let options = FileOptions { direct: true, read_only: false };
        let (file, info) = reactor.files().open(Path::new(PATH), options).expect("the disk");
        assert_eq!((info.bytes, info.offset_align, info.memory_align), (DISK_BYTES, 512, 512));
        Self { world, host, reactor, file, pool: pool(16384, 16) }
    }

    fn filled(&self, byte: u8, length: usize) -> SharedBuffer {
        let mut buffer = self.pool.take(length).expect("a buffer");
        buffer.fill(byte);
        buffer.share()
    }

    fn start_write(&mut self, offset: u64, byte: u8, length: usize, durable: bool) {
        let source = self.filled(byte, length);
        self.reactor.files().write(self.file, FileRange { offset, at: 0, length }, source, durable, WRITE);
    }

    fn write(&mut self, offset: u64, byte: u8, length: usize, durable: bool) -> Completion {
        self.start_write(offset, byte, length, durable);
        only(&self.world, &mut self.reactor)
    }

    fn start_read(&mut self, offset: u64, length: usize) {
        let buffer = self.pool.take(length).expect("a buffer");
        self.reactor.files().read(self.file, FileRange { offset, at: 0, length }, buffer, READ);
    }

    fn read(&mut self, offset: u64, length: usize) -> Vec<u8> {
        self.start_read(offset, length);
        let completion = only(&self.world, &mut self.reactor);
        let bytes = completion.result.expect("read") as usize;
        let Payload::Buffer(buffer) = completion.payload else { panic!("a buffer comes back") };
        buffer[..bytes].to_vec()
    }

    fn sync(&mut self) {
        self.reactor.files().sync(self.file, SYNC);
        only(&self.world, &mut self.reactor).result.expect("synced");
    }

    /// Cuts the power and boots again.
    fn crash(&mut self) {
        self.world.crash(self.host);
        self.reactor = Reactor::simulated(&self.world, self.host);
        let options = FileOptions { direct: true, read_only: false };
        self.file = self.reactor.files().open(Path::new(PATH), options).expect("it is still there").0;
    }

    /// The first byte of each sector, after checking that the sector is uniform.
    fn sectors(&mut self, offset: u64, length: usize) -> Vec<u8> {
        let bytes = self.read(offset, length);
        let first = |sector: &[u8]| {
            assert!(sector.iter().all(|byte| *byte == sector[0]), "a sector is never torn");
            sector[0]
        };
        bytes.chunks(512).map(first).collect()
    }
}

#[test]
fn what_one_host_writes_to_a_disk_that_it_shares_another_reads_and_no_crash_of_either_takes_it() {
    let world = World::new(3);
    let hosts = [world.add_host("a"), world.add_host("b")];
    world.add_disk(hosts[0], "/disk", 4096, DiskFaults::default());
    world.share_disk((hosts[0], "/disk".as_ref()), (hosts[1], "/dev/other".as_ref()));
    let pool = pool(4096, 2);
    let mut reactors = hosts.map(|host| Reactor::simulated(&world, host));
    let mut open = |index: usize, path: &str| {
        reactors[index].files().open(path.as_ref(), FileOptions::default()).expect("it is there").0
    };
    let [near, far] = [open(0, "/disk"), open(1, "/dev/other")];
    let mut buffer = pool.take(512).expect("a buffer");
    buffer.set_len(512);
    buffer.fill(7);
    reactors[0].files().write(
        near,
        FileRange { offset: 512, at: 0, length: 512 },
        buffer.share(),
        false,
        WRITE,
    );
    assert_eq!(only(&world, &mut reactors[0]).result.expect("written"), 512);
    world.crash(hosts[0]);
    world.crash(hosts[0]);
    reactors[1].files().read(
        far,
        FileRange { offset: 512, at: 0, length: 512 },
        pool.take(512).expect("a buffer"),
        READ,
    );
    let completion = only(&world, &mut reactors[1]);
    let Payload::Buffer(buffer) = completion.payload else { panic!("a read gives its buffer back") };
    assert!(buffer[..512].iter().all(|byte| *byte == 7), "it was not synced, and is there all the same");
    assert_eq!(world.read_disk(hosts[0], "/disk", 512, 512), [7; 512]);
}

#[test]
fn a_disk_can_be_opened_as_often_as_is_left() {
    let world = World::new(1);
    let host = world.add_host("a");
    world.add_disk(host, "/disk", 4096, DiskFaults::default());
    let mut reactor = Reactor::simulated(&world, host);
    world.set_opens_left(host, "/disk", Some(1));
    let (file, _) = reactor.files().open("/disk".as_ref(), FileOptions::default()).expect("one is left");
    let refused = reactor.files().open("/disk".as_ref(), FileOptions::default()).expect_err("none is left");
    assert_eq!((refused.raw_os_error(), world.open_files(host, "/disk")), (Some(libc::EMFILE), 1));
    reactor.files().close(file, OnClose::Finish);
    world.set_opens_left(host, "/disk", None);
    assert_eq!(world.open_files(host, "/disk"), 0);
    assert!(reactor.files().open("/disk".as_ref(), FileOptions::default()).is_ok());
}

#[test]
fn a_completed_read_sees_every_completed_write() {
    let mut machine = Machine::new(1, DiskFaults::default());
    assert_eq!(machine.read(0, 512), [0; 512]);
    assert_eq!(machine.write(512, 1, 4096, false).result.expect("written"), 4096);
    machine.write(1024, 2, 512, false);
    assert_eq!(machine.sectors(0, 2048), [0, 1, 2, 1]);
    assert_eq!(machine.pool.usage().taken, 0, "everything came back");
}

#[test]
fn synced_and_durable_writes_survive_every_crash_and_others_sector_by_sector() {
    let (mut patterns, mut all, mut none) = (BTreeSet::new(), false, false);
    for seed in 0..60 {
        let mut machine = Machine::new(seed, DiskFaults::default());
        machine.write(0, 1, 8192, false);
        machine.sync();
        machine.write(8192, 2, 8192, true);
        machine.write(16384, 3, 8192, false);
        machine.crash();
        assert_eq!(machine.sectors(0, 8192), [1; 16], "seed {seed}");
        assert_eq!(machine.sectors(8192, 8192), [2; 16], "seed {seed}");
        let unsynced = machine.sectors(16384, 8192);
        assert!(unsynced.iter().all(|byte| [0, 3].contains(byte)), "seed {seed}: {unsynced:?}");
        (all, none) = (all || unsynced == [3; 16], none || unsynced == [0; 16]);
        patterns.insert(unsynced);
    }
    assert!(all && none && patterns.len() > 10, "{} patterns", patterns.len());
}

#[test]
fn a_sector_written_twice_without_sync_may_come_back_in_any_of_its_versions() {
    let mut seen = BTreeSet::new();
    for seed in 0..60 {
        let mut machine = Machine::new(seed, DiskFaults::default());
        machine.write(0, 1, 512, true);
        machine.write(0, 2, 512, false);
        machine.write(0, 3, 512, false);
        machine.crash();
        seen.extend(machine.sectors(0, 512));
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), [1, 2, 3]);
}

#[test]
fn a_sync_covers_what_had_completed_when_it_was_asked_for_and_nothing_later() {
    let faults = DiskFaults { delay_max: Duration::from_millis(1), ..DiskFaults::default() };
    let mut lost = 0;
    for seed in 0..80 {
        let mut machine = Machine::new(seed, faults.clone());
        machine.write(0, 1, 512, false);
        machine.reactor.files().sync(machine.file, SYNC);
        machine.start_write(512, 2, 512, false);
        collect(&machine.world, &mut machine.reactor);
        assert_eq!(machine.world.read_stable(machine.host, PATH, 0, 1), [1]);
        machine.crash();
        let sectors = machine.sectors(0, 1024);
        assert_eq!(sectors[0], 1, "seed {seed}");
        lost += usize::from(sectors[1] == 0);
    }
    assert!(lost > 10, "the second write had no sync: lost {lost} times");
}

#[test]
fn a_write_in_flight_at_a_crash_is_torn_between_sectors_only() {
    let mut torn = 0;
    for seed in 0..60 {
        let mut machine = Machine::new(seed, DiskFaults::default());
        machine.write(0, 1, 8192, true);
        machine.start_write(0, 2, 8192, true);
        assert_eq!(machine.pool.usage().taken, 1);
        machine.crash();
        assert_eq!(machine.pool.usage().taken, 0, "the operation was dropped with its memory");
        let sectors = machine.sectors(0, 8192);
        torn += usize::from(sectors.contains(&1) && sectors.contains(&2));
    }
    assert!(torn > 5, "torn {torn} times");
}

#[test]
fn a_disk_that_does_not_tear_keeps_or_loses_whole_writes() {
    let faults = DiskFaults { torn_writes: false, ..DiskFaults::default() };
    let mut seen = BTreeSet::new();
    for seed in 0..60 {
        let mut machine = Machine::new(seed, faults.clone());
        machine.write(0, 1, 4096, false);
        machine.start_write(4096, 2, 4096, false);
        machine.crash();
        let sectors = machine.sectors(0, 8192);
        assert!(sectors[..8].iter().all(|byte| *byte == sectors[0]), "seed {seed}: {sectors:?}");
        assert!(sectors[8..].iter().all(|byte| *byte == sectors[8]), "seed {seed}: {sectors:?}");
        seen.insert((sectors[0], sectors[8]));
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), [(0, 0), (0, 2), (1, 0), (1, 2)]);
}

#[test]
fn writes_in_flight_together_are_applied_in_any_order() {
    let faults = DiskFaults { delay_max: Duration::from_millis(1), ..DiskFaults::default() };
    let mut last = BTreeSet::new();
    for seed in 0..40 {
        let mut machine = Machine::new(seed, faults.clone());
        machine.start_write(0, 1, 512, false);
        machine.start_write(0, 2, 512, false);
        assert_eq!(collect(&machine.world, &mut machine.reactor).len(), 2);
        last.extend(machine.sectors(0, 512));
    }
    assert_eq!(last.into_iter().collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn a_read_beside_a_write_may_see_a_part_of_it() {
    let faults = DiskFaults { delay_max: Duration::from_millis(1), ..DiskFaults::default() };
    let mut partial = 0;
    for seed in 0..80 {
        let mut machine = Machine::new(seed, faults.clone());
        machine.start_write(0, 1, 8192, false);
        machine.start_read(0, 8192);
        for completion in collect(&machine.world, &mut machine.reactor) {
            let Payload::Buffer(buffer) = &completion.payload else { continue };
            partial += usize::from(buffer.contains(&0) && buffer.contains(&1));
        }
    }
    assert!(partial > 5, "partial {partial} times");
}

#[test]
fn injected_errors_reach_their_operation_and_give_its_memory_back() {
    let mut machine = Machine::new(2, DiskFaults::default());
    machine.write(0, 1, 4096, true);
    let failing = DiskFaults { error_probability: 1.0, ..DiskFaults::default() };
    machine.world.set_disk_faults(machine.host, PATH, failing);
    let written = machine.write(0, 2, 4096, true);
    assert_eq!(errno_of(&written), Some(libc::EIO));
    assert!(matches!(written.payload, Payload::SharedBuffer(_)));
    machine.start_read(0, 4096);
    assert_eq!(errno_of(&only(&machine.world, &mut machine.reactor)), Some(libc::EIO));
    machine.reactor.files().sync(machine.file, SYNC);
    assert_eq!(errno_of(&only(&machine.world, &mut machine.reactor)), Some(libc::EIO));
    let full = DiskFaults { full_probability: 1.0, ..DiskFaults::default() };
    machine.world.set_disk_faults(machine.host, PATH, full);
    assert_eq!(errno_of(&machine.write(8192, 3, 4096, true)), Some(libc::ENOSPC));
    let after = machine.sectors(0, 12288);
    assert!(after[..8].iter().all(|byte| [1, 2].contains(byte)), "a failed write happened in part");
    assert!(after[16..].iter().all(|byte| [0, 3].contains(byte)), "so did the one without space");
    drop(written);
    assert_eq!(machine.pool.usage().taken, 0);
}

#[test]
fn deallocating_and_zeroing_read_as_zeroes_and_are_volatile_until_a_sync() {
    let mut survived = 0;
    for (seed, what) in (0..40).zip([Allocate::PunchHole, Allocate::ZeroRange].into_iter().cycle()) {
        let mut machine = Machine::new(seed, DiskFaults::default());
        machine.write(0, 1, 4096, true);
        machine.reactor.files().allocate(machine.file, what, 512, 1024, ZERO);
        let completion = only(&machine.world, &mut machine.reactor);
        assert_eq!((completion.token, completion.result.expect("zeroed")), (ZERO, 0));
        assert_eq!(machine.sectors(0, 2048), [1, 0, 0, 1]);
        machine.crash();
        survived += machine.sectors(512, 1024).iter().filter(|byte| **byte == 0).count();
    }
    assert!((10..70).contains(&survived), "{survived} of 80 zeroed sectors survived");
}

#[test]
fn what_the_kernel_refuses_is_refused() {
    let mut machine = Machine::new(3, DiskFaults::default());
    assert_eq!(errno_of(&machine.write(1, 1, 512, false)), Some(libc::EINVAL), "offset");
    assert_eq!(errno_of(&machine.write(0, 1, 511, false)), Some(libc::EINVAL), "length");
    let source = machine.filled(1, 4096);
    machine.reactor.files().write(
        machine.file,
        FileRange { offset: 0, at: 64, length: 512 },
        source,
        false,
        WRITE,
    );
    assert_eq!(errno_of(&only(&machine.world, &mut machine.reactor)), Some(libc::EINVAL), "memory");
    assert_eq!(errno_of(&machine.write(DISK_BYTES, 1, 512, false)), Some(libc::ENOSPC));
    assert_eq!(errno_of(&machine.write(DISK_BYTES - 512, 1, 1024, false)), Some(libc::ENOSPC));
    assert_eq!(machine.read(DISK_BYTES - 512, 1024), [1; 512], "a read ends where the disk does");
    assert!(machine.read(DISK_BYTES, 512).is_empty());
    machine.reactor.files().allocate(machine.file, Allocate::PunchHole, 0, 0, ZERO);
    assert_eq!(errno_of(&only(&machine.world, &mut machine.reactor)), Some(libc::EINVAL));
    let missing = machine.reactor.files().open(Path::new("/dev/other"), FileOptions::default());
    assert_eq!(missing.expect_err("no such disk").raw_os_error(), Some(libc::ENOENT));
}

#[test]
fn a_file_open_for_reading_refuses_writes_and_a_closed_one_everything_new() {
    let mut machine = Machine::new(4, DiskFaults::default());
    let options = FileOptions { direct: false, read_only: true };
    let (readable, info) = machine.reactor.files().open(Path::new(PATH), options).expect("the disk");
    assert_eq!((info.offset_align, info.memory_align), (1, 1));
    machine.file = readable;
    assert_eq!(errno_of(&machine.write(0, 1, 512, false)), Some(libc::EBADF));
    machine.start_read(3, 5);
    machine.reactor.files().close(readable, OnClose::Cancel);
    machine.reactor.files().sync(readable, SYNC);
    let completions = collect(&machine.world, &mut machine.reactor);
    let results: Vec<_> = completions.iter().map(|done| (done.token, errno_of(done))).collect();
    assert_eq!(results, [(SYNC, Some(libc::ECANCELED)), (READ, None)]);
}

#[test]
fn the_end_of_a_process_loses_nothing_that_the_disk_was_given() {
    let mut machine = Machine::new(5, DiskFaults::default());
    machine.write(0, 1, 4096, false);
    machine.start_write(4096, 2, 4096, false);
    machine.reactor = Reactor::simulated(&machine.world, machine.host);
    let (file, _) = machine.reactor.files().open(Path::new(PATH), FileOptions::default()).expect("the disk");
    machine.file = file;
    machine.reactor.turn(Wait::No).expect("a turn");
    while machine.world.advance() {}
    assert_eq!(machine.pool.usage().taken, 0, "the write ended and let go of its memory");
    assert_eq!(machine.sectors(0, 8192), [[1; 8], [2; 8]].concat());
}

#[test]
fn a_disk_can_be_filled_and_looked_at_from_outside() {
    let mut machine = Machine::new(6, DiskFaults::default());
    machine.world.fill_disk(machine.host, PATH, 100, &[9; 1000]);
    let mut expected = vec![0; 1536];
    expected[100..1100].fill(9);
    assert_eq!(machine.read(0, 1536), expected);
    machine.write(512, 4, 512, false);
    assert_eq!(machine.world.read_disk(machine.host, PATH, 511, 3), [9, 4, 4]);
    assert_eq!(machine.world.read_stable(machine.host, PATH, 511, 3), [9, 9, 9]);
}

#[test]
fn a_write_back_that_fails_is_told_once_by_each_file_and_not_by_one_that_is_opened_later() {
    let mut machine = Machine::new(1, DiskFaults::default());
    let options = FileOptions { direct: true, read_only: false };
    let other = machine.reactor.files().open(Path::new(PATH), options).expect("the disk").0;
    machine.write(0, 1, 512, false).result.expect("in the cache");
    machine.world.fail_write_back(machine.host, PATH);
    assert_eq!(machine.sectors(0, 512), [0], "it is lost");
    let mut sync = |file| {
        machine.reactor.files().sync(file, SYNC);
        only(&machine.world, &mut machine.reactor).result.map_err(|error| error.raw_os_error())
    };
    assert_eq!(sync(machine.file), Err(Some(libc::EIO)));
    assert_eq!(sync(machine.file), Ok(0), "it was told");
    assert_eq!(sync(other), Err(Some(libc::EIO)));
    assert_eq!(sync(other), Ok(0));
    let late = machine.reactor.files().open(Path::new(PATH), options).expect("the disk").0;
    machine.reactor.files().sync(late, SYNC);
    only(&machine.world, &mut machine.reactor).result.expect("it has heard of nothing");
    machine.world.fail_write_back(machine.host, PATH);
    let durable = machine.write(0, 2, 512, true).result.expect_err("a durable write tells, too");
    assert_eq!(durable.raw_os_error(), Some(libc::EIO));
}
