//! What every disk does: reads, writes, flushes, zeroes, discards, compares and writes.

use ringfab_base::SplitMix64;
use ringfab_block::{BlockError, Discarded, Disk, Operation};

use crate::cluster::TestCluster;
use crate::core::{Core, detail, look};
use crate::{driver_of, end};

const BLOCK: usize = 512;

/// What a disk should have, and whether that is known of each block.
struct Model {
    bytes: Vec<u8>,
    known: Vec<bool>,
}

impl Model {
    fn zeroes(bytes: usize) -> Self {
        Self { bytes: vec![0; bytes], known: vec![true; bytes / BLOCK] }
    }

    fn set(&mut self, offset: usize, bytes: &[u8]) {
        self.bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
        self.known[offset / BLOCK..(offset + bytes.len()) / BLOCK].fill(true);
    }

    /// A range was discarded: its blocks are zeroes, or as before.
    fn discard(&mut self, offset: usize, length: usize) {
        self.known[offset / BLOCK..(offset + length) / BLOCK].fill(false);
    }

    fn check(&self, offset: usize, read: &[u8]) {
        for (index, block) in read.chunks(BLOCK).enumerate() {
            let at = offset + index * BLOCK;
            let as_written = *block == self.bytes[at..at + BLOCK];
            let zeroes = !self.known[at / BLOCK] && block.iter().all(|byte| *byte == 0);
            assert!(as_written || zeroes, "the block at {at} has something else");
        }
    }
}

/// A part of a disk that begins and ends at any block.
fn range(random: &mut SplitMix64, disk_bytes: usize) -> (usize, usize) {
    let length = (1 + random.below(128) as usize) * BLOCK;
    let offset = random.below(((disk_bytes - length) / BLOCK + 1) as u64) as usize * BLOCK;
    (offset, length)
}

/// Does one of everything, somewhere.
fn step(core: &mut Core, disk: &mut Disk, model: &mut Model, random: &mut SplitMix64) {
    let (offset, length) = range(random, model.bytes.len());
    let (at, durable) = (offset as u64, random.below(2) == 0);
    match random.below(8) {
        0..=2 => {
            let byte = random.next() as u8;
            let bytes: Vec<u8> = (0..length).map(|at| byte ^ (at / 7) as u8).collect();
            let operation = core.write_operation(at, &bytes, durable);
            core.run(disk, operation).result.expect("written");
            model.set(offset, &bytes);
        }
        3 => {
            let deallocate = random.below(2) == 0;
            let operation = Operation::WriteZeroes { offset: at, length: length as u64, deallocate, durable };
            core.run(disk, operation).result.expect("zeroed");
            model.set(offset, &vec![0; length]);
        }
        4 => {
            let operation = Operation::Discard { offset: at, length: length as u64 };
            core.run(disk, operation).result.expect("discarded");
            model.discard(offset, length);
        }
        5 => core.run(disk, Operation::Flush).result.expect("flushed"),
        _ => model.check(offset, &core.read(disk, at, length).expect("read")),
    }
}

#[test]
fn an_image_has_what_was_written_wherever_its_objects_and_stripes_end() {
    let Some(ceph) = TestCluster::get() else { return };
    let shapes: [(&str, &[&str]); 4] = [
        ("usual", &["--size", "16M"]),
        ("small-objects", &["--size", "1M", "--object-size", "4K"]),
        ("striped", &["--size", "2M", "--object-size", "32K", "--stripe-unit", "8K", "--stripe-count", "3"]),
        ("unlocked", &["--size", "3M", "--object-size", "16K", "--image-feature", "layering"]),
    ];
    let cluster = ceph.connect();
    for (seed, (name, options)) in (1..).zip(shapes) {
        let image = format!("rbd/contract-{name}");
        ceph.create(&image, options);
        let driver = driver_of(&cluster, &image, false);
        let bytes = look(&driver).bytes.expect("a size");
        let mut core = Core::new();
        let mut disk = core.open(&driver);
        assert_eq!(disk.properties().bytes, bytes);
        let (mut model, mut random) = (Model::zeroes(bytes as usize), SplitMix64::new(seed));
        for _ in 0..300 {
            step(&mut core, &mut disk, &mut model, &mut random);
        }
        for offset in (0..bytes as usize).step_by(1 << 20) {
            model.check(offset, &core.read(&mut disk, offset as u64, 1 << 20).expect("read"));
        }
        core.close(disk);
        drop(driver);
    }
    assert!(cluster.close(crate::core::PATIENCE), "images are still open");
}

#[test]
fn a_disk_says_what_it_is_and_refuses_what_it_cannot_do() {
    let Some(ceph) = TestCluster::get() else { return };
    ceph.create("rbd/properties", &["--size", "8M"]);
    let cluster = ceph.connect();
    let driver = driver_of(&cluster, "rbd/properties", false);
    look(&driver);
    let mut core = Core::new();
    let mut disk = core.open(&driver);
    let properties = disk.properties();
    assert_eq!((properties.bytes, properties.offset_align, properties.memory_align), (8 << 20, 512, 1));
    assert!(!properties.volatile_cache && !properties.read_only && properties.thin);
    assert!(properties.write_zeroes_deallocates);
    assert_eq!(properties.discarded, Discarded::ZeroesOrBefore);
    let preferred = properties.preferred;
    assert_eq!((preferred.write, preferred.discard, preferred.optimal_write), (4096, 65_536, 1 << 20));
    assert_eq!(core.write(&mut disk, (8 << 20) - 512, &[1; 1024]), Err(BlockError::OutOfRange));
    assert_eq!(core.read(&mut disk, 100, 512), Err(BlockError::Misaligned));
    for (name, text) in [("object size", "4194304"), ("clone", "no"), ("lock", "nobody")] {
        assert_eq!(detail(&driver, name).as_deref(), Some(text), "{name}");
    }
    assert!(detail(&driver, "features").is_some_and(|text| text.contains("layering, exclusive-lock")));
    // The first write takes the lock.
    core.write(&mut disk, 0, &[1; 512]).expect("written");
    look(&driver);
    assert_eq!(detail(&driver, "lock").as_deref(), Some("this target"));
    assert_eq!(detail(&driver, "last error"), None);
    core.close(disk);
    end(&cluster, driver);
}

fn compare(core: &Core, offset: u64, expected: &[u8], bytes: &[u8]) -> Operation {
    let share = |bytes: &[u8]| {
        let mut buffer = core.buffer(bytes.len());
        buffer.copy_from_slice(bytes);
        buffer.share()
    };
    let length = bytes.len() as u32;
    Operation::CompareAndWrite {
        offset,
        expected: share(expected),
        source: share(bytes),
        length,
        durable: false,
    }
}

#[test]
fn comparing_and_writing_is_one_step_within_an_object_and_refused_across_two() {
    let Some(ceph) = TestCluster::get() else { return };
    ceph.create("rbd/compare", &["--size", "1M", "--object-size", "64K"]);
    let cluster = ceph.connect();
    let driver = driver_of(&cluster, "rbd/compare", false);
    look(&driver);
    let mut core = Core::new();
    let mut disk = core.open(&driver);
    // Before Ceph 18, it is a sector.
    let most = disk.properties().compare_and_write_max as usize;
    assert!([512, 4096].contains(&most), "{most}");
    let (end_of_object, block) = (65_536 - most as u64, |byte: u8| vec![byte; most]);
    // Nothing was written yet, which reads as zeroes.
    let operation = compare(&core, end_of_object, &block(0), &block(1));
    let finished = core.run(&mut disk, operation);
    assert!(finished.result.is_ok() && finished.source.is_some(), "{finished:?}");
    let operation = compare(&core, end_of_object, &block(2), &block(3));
    let finished = core.run(&mut disk, operation);
    assert_eq!(finished.result, Err(BlockError::Miscompare));
    assert_eq!(finished.errno.map(i32::from), Some(libc::EILSEQ));
    assert!(finished.source.is_some());
    assert_eq!(core.read(&mut disk, end_of_object, most), Ok(block(1)), "nothing was written");
    let operation = compare(&core, 0, &vec![0; most + 512], &vec![3; most + 512]);
    assert_eq!(core.run(&mut disk, operation).result, Err(BlockError::NotSupported), "more than a disk says");
    if most > 512 {
        let operation = compare(&core, end_of_object + 512, &block(1), &block(3));
        assert_eq!(core.run(&mut disk, operation).result, Err(BlockError::NotSupported));
    }
    assert_eq!(detail(&driver, "last error"), None, "that the disk has something else is no error of it");
    core.close(disk);
    end(&cluster, driver);
}

#[test]
fn several_cores_write_one_image_and_none_takes_the_lock_from_another() {
    let Some(ceph) = TestCluster::get() else { return };
    ceph.create("rbd/cores", &["--size", "8M"]);
    let cluster = ceph.connect();
    let driver = driver_of(&cluster, "rbd/cores", false);
    look(&driver);
    std::thread::scope(|scope| {
        for number in 0..3_u8 {
            let driver = &driver;
            scope.spawn(move || write_as_core(driver, number));
        }
    });
    look(&driver);
    assert_eq!(detail(&driver, "lock").as_deref(), Some("this target"));
    let watchers = ceph.rbd(&["status", "rbd/cores"]).matches("watcher=").count();
    assert_eq!(watchers, 1, "the image is open once");
    end(&cluster, driver);
}

/// Writes every third block with many operations at once, and reads them.
fn write_as_core(driver: &ringfab_block::DriverHandle, number: u8) {
    let mut core = Core::new();
    let mut disk = core.open(driver);
    let offset = |index: u32| u64::from(index * 3 + u32::from(number)) * 4096;
    for round in 1..8_u8 {
        for index in 0..64 {
            let operation = core.write_operation(offset(index), &[number ^ round << 3; 4096], false);
            core.start(&mut disk, operation, index);
        }
        let finished = core.finish(&mut disk, 64);
        assert!(finished.values().all(|finished| finished.result.is_ok()));
        for index in 0..64 {
            let operation = core.read_operation(offset(index), 4096);
            core.start(&mut disk, operation, index);
        }
        for finished in core.finish(&mut disk, 64).into_values() {
            finished.result.expect("read");
            let buffer = finished.buffer.expect("a buffer");
            assert!(buffer.iter().all(|byte| *byte == number ^ round << 3));
        }
    }
    core.close(disk);
}
