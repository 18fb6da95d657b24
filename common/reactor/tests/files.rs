//! Files over the real kernel, through the page cache and around it.

mod support;

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ringfab_memory::{Buffer, Pool};
use ringfab_reactor::{Allocate, FileId, FileInfo, FileOptions, FileRange, OnClose, Payload, Reactor};
use support::*;

const FILE_BYTES: usize = 1 << 20;

/// A reactor with a file of a megabyte, open in one of the ways.
struct Bench {
    reactor: Reactor,
    pool: Pool,
    file: FileId,
    info: FileInfo,
    path: PathBuf,
    _folder: tempfile::TempDir,
}

/// Every way of opening, with registered memory and without.
fn benches() -> Vec<Bench> {
    let ways = [(false, false), (false, true), (true, false), (true, true)];
    ways.into_iter().map(|(direct, registered)| bench(direct, registered)).collect()
}

fn bench(direct: bool, registered: bool) -> Bench {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("image");
    std::fs::write(&path, vec![0xee; FILE_BYTES]).expect("a file");
    let mut reactor = reactor();
    let pool = pool(128 << 10, 8);
    if registered {
        let taken = reactor.register_pool(&pool);
        assert_eq!(pool.take(1).expect("a buffer").registration().is_some(), taken);
    }
    let options = FileOptions { direct, read_only: false };
    let (file, info) = reactor.files().open(&path, options).expect("open");
    Bench { reactor, pool, file, info, path, _folder: folder }
}

impl Bench {
    fn write(&mut self, offset: u64, bytes: &[u8], durable: bool) -> u32 {
        let mut buffer = self.pool.take(bytes.len() + 4096).expect("a buffer");
        buffer[4096..].copy_from_slice(bytes);
        let shared_buffer = buffer.share();
        self.reactor.files().write(
            self.file,
            FileRange { offset, at: 4096, length: bytes.len() },
            shared_buffer,
            durable,
            token(1),
        );
        let completion = expect(&mut self.reactor, token(1));
        assert!(matches!(completion.payload, Payload::SharedBuffer(_)));
        completion.result.expect("written")
    }

    fn read(&mut self, offset: u64, length: usize) -> (u32, Buffer) {
        let mut buffer = self.pool.take(length).expect("a buffer");
        buffer.fill(0xdd);
        self.reactor.files().read(self.file, FileRange { offset, at: 0, length }, buffer, token(2));
        let completion = expect(&mut self.reactor, token(2));
        let Payload::Buffer(buffer) = completion.payload else { panic!("not a buffer") };
        (completion.result.expect("read"), buffer)
    }
}

#[test]
fn what_was_written_is_read_back_by_us_and_by_others() {
    for mut bench in benches() {
        assert_eq!(bench.info.bytes, FILE_BYTES as u64);
        assert!(!bench.info.block_device);
        let bytes: Vec<u8> = (0..65536_usize).map(|index| (index * 7 + index / 256) as u8).collect();
        for (round, durable) in [false, true].into_iter().enumerate() {
            let offset = 8192 + round as u64 * 131_072;
            assert_eq!(bench.write(offset, &bytes, durable), 65536);
            let (count, buffer) = bench.read(offset, 65536);
            assert_eq!(count, 65536);
            assert!(buffer[..] == bytes[..]);
            let whole = std::fs::read(&bench.path).expect("the file");
            assert!(whole[offset as usize..][..65536] == bytes[..] && whole[0] == 0xee);
        }
        bench.reactor.files().sync(bench.file, token(3));
        expect(&mut bench.reactor, token(3)).result.expect("synchronised");
        assert_eq!(bench.pool.usage().taken, 0);
    }
}

#[test]
fn direct_files_say_what_alignment_they_need_and_refuse_less() {
    let mut bench = bench(true, true);
    let align = bench.info.offset_align;
    assert!(align.is_power_of_two() && (512..=65536).contains(&align), "{:?}", bench.info);
    assert!(bench.info.memory_align.is_power_of_two());
    let buffer = bench.pool.take(8192).expect("a buffer");
    bench.reactor.files().read(
        bench.file,
        FileRange { offset: 1, at: 0, length: align as usize },
        buffer,
        token(1),
    );
    let completion = expect(&mut bench.reactor, token(1));
    assert_eq!(completion.result.expect_err("unaligned").raw_os_error(), Some(libc::EINVAL));
    let (_, info) = bench.reactor.files().open(&bench.path, FileOptions::default()).expect("open");
    assert_eq!((info.offset_align, info.memory_align), (1, 1));
}

#[test]
fn a_read_at_the_end_says_how_many_bytes_there_were() {
    for mut bench in benches() {
        let end = FILE_BYTES as u64 + 100;
        File::options().write(true).open(&bench.path).expect("open").set_len(end).expect("longer");
        let (count, buffer) = bench.read(FILE_BYTES as u64 - 4096, 16384);
        assert_eq!(count, 4096 + 100);
        assert!(buffer[..4096].iter().all(|byte| *byte == 0xee));
        assert!(buffer[4096..4196].iter().all(|byte| *byte == 0));
        let (count, _) = bench.read(FILE_BYTES as u64 + 65536, 4096);
        assert_eq!(count, 0);
    }
}

#[test]
fn a_punched_hole_reads_as_zero_and_frees_space_and_a_zeroed_range_keeps_it() {
    for mut bench in benches() {
        let before = std::fs::metadata(&bench.path).expect("metadata").blocks();
        bench.reactor.files().allocate(bench.file, Allocate::PunchHole, 65536, 262_144, token(1));
        expect(&mut bench.reactor, token(1)).result.expect("punched");
        let punched = std::fs::metadata(&bench.path).expect("metadata");
        assert_eq!(punched.len(), FILE_BYTES as u64);
        assert!(punched.blocks() < before, "{} of {before} blocks are left", punched.blocks());
        bench.reactor.files().allocate(bench.file, Allocate::ZeroRange, 65536, 131_072, token(2));
        expect(&mut bench.reactor, token(2)).result.expect("zeroed");
        let zeroed = std::fs::metadata(&bench.path).expect("metadata").blocks();
        assert!(zeroed > punched.blocks(), "the zeroed range has its space");
        let whole = std::fs::read(&bench.path).expect("the file");
        for (index, byte) in whole.iter().enumerate() {
            let expected = if (65536..65536 + 262_144).contains(&index) { 0 } else { 0xee };
            assert_eq!(*byte, expected, "byte {index}");
        }
    }
}

#[test]
fn many_operations_at_once_complete_each_with_its_own_buffer() {
    for mut bench in benches() {
        for block in 0..256_u64 {
            assert_eq!(bench.write(block * 4096, &[block as u8; 4096], false), 4096);
        }
        for round in 0..64_u64 {
            for index in 0..8_u64 {
                let buffer = bench.pool.take(4096).expect("a buffer");
                let block = (round * 8 + index * 37) % 256;
                bench.reactor.files().read(
                    bench.file,
                    FileRange { offset: block * 4096, at: 0, length: 4096 },
                    buffer,
                    token(block as u32),
                );
            }
            for _ in 0..8 {
                let completion = next(&mut bench.reactor);
                assert_eq!(completion.result.expect("read"), 4096);
                let Payload::Buffer(buffer) = completion.payload else { panic!("not a buffer") };
                assert!(buffer[..4096].iter().all(|byte| *byte == completion.token.index as u8));
            }
        }
    }
}

#[test]
fn closing_a_file_with_operations_in_flight_gives_the_buffers_back() {
    for mut bench in benches() {
        for index in 0..8 {
            let buffer = bench.pool.take(131_072).expect("a buffer");
            bench.reactor.files().read(
                bench.file,
                FileRange { offset: index * 131_072, at: 0, length: 131_072 },
                buffer,
                token(1),
            );
        }
        bench.reactor.files().close(bench.file, OnClose::Cancel);
        for _ in 0..8 {
            let completion = expect(&mut bench.reactor, token(1));
            if let Err(error) = completion.result {
                assert_eq!(error.raw_os_error(), Some(libc::ECANCELED));
            }
        }
        assert_eq!(bench.pool.usage().taken, 0);
        bench.reactor.files().sync(bench.file, token(2));
        let completion = expect(&mut bench.reactor, token(2));
        assert_eq!(completion.result.expect_err("dead").raw_os_error(), Some(libc::ECANCELED));
    }
}

#[test]
fn a_small_pool_is_registered_once_and_one_that_is_too_large_works_unregistered() {
    let mut reactor = reactor();
    let small = pool(4096, 4);
    assert!(
        reactor.register_pool(&small) && reactor.register_pool(&small),
        "16 KiB are within any lock limit"
    );
    assert_eq!(small.take(1).expect("a buffer").registration(), Some(0));
    // Address space only: nothing of it becomes resident. It needs more than the slots there are.
    let large = pool(1 << 30, 257);
    assert!(!reactor.register_pool(&large));
    assert_eq!(large.take(1).expect("a buffer").registration(), None);
    let other = pool(4096, 1);
    assert!(reactor.register_pool(&other));
    assert_eq!(other.take(1).expect("a buffer").registration(), Some(1));
}

#[test]
fn buffers_registered_with_another_ring_are_used_as_ordinary_memory() {
    let mut bench = bench(false, true);
    let mut other = support::reactor();
    let foreign = pool(4096, 1);
    assert!(other.register_pool(&foreign));
    let buffer = foreign.take(4096).expect("a buffer");
    bench.reactor.files().read(bench.file, FileRange { offset: 0, at: 0, length: 4096 }, buffer, token(1));
    let completion = expect(&mut bench.reactor, token(1));
    assert_eq!(completion.result.expect("read"), 4096);
    let Payload::Buffer(buffer) = completion.payload else { panic!("not a buffer") };
    assert!(buffer.iter().all(|byte| *byte == 0xee));
}

#[test]
fn dropping_the_reactor_with_operations_in_flight_gives_the_buffers_back_soon() {
    let start = std::time::Instant::now();
    let pool = {
        let mut bench = bench(true, true);
        let (reader, _writer) = nix::unistd::pipe().expect("a pipe");
        // A read that does not end by itself.
        let info = FileInfo {
            bytes: 0,
            block_device: false,
            offset_align: 1,
            memory_align: 1,
            remote: false,
            preferred: Default::default(),
        };
        let pipe = bench.reactor.files().adopt(Arc::new(reader.into()), &info).expect("a slot");
        for _ in 0..4 {
            let buffer = bench.pool.take(4096).expect("a buffer");
            bench.reactor.files().read(pipe, FileRange { offset: 0, at: 0, length: 4096 }, buffer, token(1));
            let buffer = bench.pool.take(4096).expect("a buffer");
            bench.reactor.files().read(
                bench.file,
                FileRange { offset: 0, at: 0, length: 4096 },
                buffer,
                token(1),
            );
        }
        bench.reactor.turn(ringfab_reactor::Wait::No).expect("a turn");
        bench.pool.clone()
    };
    assert_eq!(pool.usage().taken, 0);
    assert!(pool.take(1).expect("a buffer").registration().is_none(), "the ring is gone");
    assert!(start.elapsed().as_secs() < 4, "nothing had to be given up");
}

#[test]
fn opening_what_is_not_there_or_not_a_disk_or_writing_to_read_only_is_an_error() {
    let mut reactor = reactor();
    let options = FileOptions::default();
    let missing = reactor.files().open(Path::new("/no/such/file"), options).expect_err("missing");
    assert_eq!(missing.kind(), std::io::ErrorKind::NotFound);
    let device = reactor.files().open(Path::new("/dev/null"), options).expect_err("not a disk");
    assert!(device.to_string().contains("a character device"), "{device}");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("image");
    std::fs::write(&path, vec![1; 4096]).expect("a file");
    let read_only = FileOptions { direct: false, read_only: true };
    let (file, _) = reactor.files().open(&path, read_only).expect("open");
    let pool = pool(4096, 1);
    let shared_buffer = pool.take(4096).expect("a buffer").share();
    reactor.files().write(file, FileRange { offset: 0, at: 0, length: 4096 }, shared_buffer, false, token(1));
    let completion = expect(&mut reactor, token(1));
    assert_eq!(completion.result.expect_err("read only").raw_os_error(), Some(libc::EBADF));
}

#[test]
fn a_file_that_was_opened_elsewhere_works_as_any_and_is_closed_by_who_opened_it() {
    let mut reactor = reactor();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("image");
    std::fs::write(&path, vec![1; 4096]).expect("a file");
    let file = std::fs::File::options().read(true).write(true).open(&path).expect("opened");
    let options = FileOptions { direct: false, read_only: false };
    let info = ringfab_reactor::inspect_file(&file, options).expect("a regular file");
    assert_eq!((info.bytes, info.block_device), (4096, false));
    let file = Arc::new(file);
    let id = reactor.files().adopt(Arc::clone(&file), &info).expect("room");
    assert_eq!(std::sync::Arc::strong_count(&file), 2);
    let pool = pool(4096, 1);
    let shared_buffer = pool.take(4096).expect("a buffer").share();
    reactor.files().write(id, FileRange { offset: 0, at: 0, length: 4096 }, shared_buffer, false, token(1));
    // What is in flight on a file that is given up ends as if it were not.
    reactor.files().close(id, OnClose::Finish);
    assert_eq!(expect(&mut reactor, token(1)).result.expect("written"), 4096);
    assert_eq!(std::sync::Arc::strong_count(&file), 1, "the reactor has let go of it");
    reactor.files().sync(id, token(2));
    let refused = expect(&mut reactor, token(2)).result.expect_err("given up");
    assert_eq!(refused.raw_os_error(), Some(libc::ECANCELED));
}

#[test]
fn a_file_says_how_long_it_is_by_now() {
    let mut reactor = reactor();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("image");
    std::fs::write(&path, vec![1; 4096]).expect("a file");
    let (file, _) = reactor.files().open(&path, FileOptions::default()).expect("open");
    for bytes in [4096, 100, 0, 1 << 33] {
        std::fs::File::options()
            .write(true)
            .open(&path)
            .and_then(|file| file.set_len(bytes))
            .expect("resized");
        reactor.files().bytes(file, token(1));
        let completion = expect(&mut reactor, token(1));
        completion.result.expect("an answer");
        assert!(matches!(completion.payload, ringfab_reactor::Payload::FileBytes(now) if now == bytes));
    }
    reactor.files().close(file, OnClose::Cancel);
    reactor.files().bytes(file, token(2));
    assert!(expect(&mut reactor, token(2)).result.is_err());
}
