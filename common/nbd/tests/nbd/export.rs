//! Exports of nbdkit and qemu-nbd over the real ring, and servers that go away.

use std::time::Duration;

use ringfab_block::{BlockError, Detail, Driver as _, Operation};
use ringfab_nbd::{NbdDriver, NbdOptions};

use crate::bench::{Bench, content};
use crate::server::{Place, Server, require};

const BYTES: u64 = 16 << 20;

fn driver(server: &Server, options: NbdOptions) -> NbdDriver {
    NbdDriver::new(server.address().parse().expect("an address"), options)
}

/// What every disk does, with requests of all sizes and places.
fn behaves_like_a_disk(server: &Server, block: u32) {
    let driver = driver(server, NbdOptions::default());
    let seen = driver.look().expect("a look");
    assert_eq!(seen.bytes, Some(BYTES));
    let mut bench = Bench::open(&driver);
    assert!(bench.disk.properties().offset_align <= block);
    for (offset, length) in [(0, 512), (512, 4096), (4096, 65_536), (1 << 20, 1 << 20), (BYTES - 512, 512)] {
        let (offset, length) = (offset / u64::from(block) * u64::from(block), length.max(block as usize));
        bench.write(offset, &content(offset, length), false).expect("written");
        assert!(bench.read(offset, length).expect("read") == content(offset, length), "{length} at {offset}");
    }
    bench.write(8192, &content(8192, 4096), true).expect("written durably");
    bench.run(Operation::Flush).expect("flushed");
    for (deallocate, durable) in [(false, false), (true, true)] {
        bench.write(0, &content(0, 65_536), false).expect("written");
        bench
            .run(Operation::WriteZeroes { offset: 4096, length: 8192, deallocate, durable })
            .expect("zeroed");
        let bytes = bench.read(0, 65_536).expect("read");
        assert!(bytes[4096..12_288].iter().all(|byte| *byte == 0));
        assert!(bytes[..4096] == content(0, 4096) && bytes[12_288..] == content(12_288, 65_536 - 12_288));
    }
    bench.run(Operation::Discard { offset: 0, length: BYTES }).expect("discarded");
    bench.at_once(64, 4096);
    bench.close();
}

#[test]
fn memory_of_nbdkit_behaves_like_a_disk() {
    let Some(()) = require("nbdkit") else { return };
    behaves_like_a_disk(&Server::nbdkit(Place::Unix, &["memory", "size=16M"]), 512);
    behaves_like_a_disk(&Server::nbdkit(Place::Tcp, &["memory", "size=16M"]), 512);
}

#[test]
fn a_server_that_has_little_is_enough() {
    let Some(()) = require("nbdkit") else { return };
    for filters in [
        &["--no-sr", "memory", "size=16M"][..],
        &["--mask-handshake=1", "--no-sr", "memory", "size=16M"],
        &[
            "--filter=blocksize-policy",
            "memory",
            "16M",
            "blocksize-minimum=4k",
            "blocksize-maximum=64k",
            "blocksize-preferred=4k",
            "blocksize-error-policy=error",
        ],
    ] {
        let block = if filters.iter().any(|word| word.contains("blocksize")) { 4096 } else { 512 };
        behaves_like_a_disk(&Server::nbdkit(Place::Unix, filters), block);
    }
    behaves_like_a_disk(&Server::of_shell_commands(BYTES), 512);
}

#[test]
fn an_image_of_qemu_behaves_like_a_disk() {
    let Some(()) = require("qemu-nbd") else { return };
    behaves_like_a_disk(&Server::qemu(BYTES), 512);
}

#[test]
fn two_cores_share_the_only_connection_of_an_export() {
    let Some(()) = require("qemu-nbd") else { return };
    let mut server = Server::qemu(BYTES);
    let driver = driver(&server, NbdOptions { cores: 2, ..NbdOptions::default() });
    driver.look().expect("a look");
    let [mut one, mut two] = [(); 2].map(|()| Bench::open(&driver));
    one.at_once(64, 4096);
    assert!(two.read(63 * 4096, 4096).expect("read") == content(63 * 4096, 4096));
    two.at_once(16, 65_536);
    assert_eq!(two.flush_beside(&mut one), Ok(()), "a flush of one covers the writes of all");
    for round in 1..4_u64 {
        one.start_write(round << 20, &content(round << 20, 65_536));
        two.start_read(0, 65_536);
        server.restart();
        for bench in [&mut one, &mut two] {
            assert!(bench.finish_all().iter().all(|finished| finished.result.is_ok()));
        }
        assert!(two.read(round << 20, 65_536).expect("read") == content(round << 20, 65_536));
        if two.flush_beside(&mut one).is_err() {
            one.reopen();
            two.reopen();
            assert_eq!(two.flush_beside(&mut one), Ok(()));
        }
    }
    one.close();
    two.read(0, 512).expect("the other one goes on");
    two.close();
}

#[test]
fn what_is_wrong_is_a_sentence() {
    let Some(()) = require("nbdkit") else { return };
    let look = |address: &str, options| {
        let driver = NbdDriver::new(address.parse().expect("an address"), options);
        driver.look().expect_err(address).to_string()
    };
    let options = NbdOptions::default();
    assert!(look("nbd+unix:///?socket=/nonexistent", options).contains("/nonexistent: No such file"));
    assert!(look("nbd://127.0.0.1:1/", options).contains("127.0.0.1:1: Connection refused"));
    let server = Server::qemu_named(BYTES, "disk");
    let other = server.address().replace("disk", "other");
    assert!(look(&other, options).contains("has no export named \"other\""), "{}", look(&other, options));
    let server = Server::of_shell_commands(BYTES);
    let through = NbdOptions { write_through: true, ..options };
    assert!(look(server.address(), through).contains("has no Force Unit Access"));
}

#[test]
fn errors_of_the_server_reach_the_caller() {
    let Some(()) = require("nbdkit") else { return };
    let server = Server::nbdkit(
        Place::Unix,
        &[
            "--filter=error",
            "memory",
            "16M",
            "error-pread-rate=100%",
            "error-pwrite=ENOSPC",
            "error-pwrite-rate=100%",
        ],
    );
    let driver = driver(&server, NbdOptions::default());
    driver.look().expect("a look");
    let mut bench = Bench::open(&driver);
    assert_eq!(bench.read(0, 4096), Err(BlockError::Read));
    assert_eq!(bench.write(0, &[1; 4096], false), Err(BlockError::NoSpace));
    bench.run(Operation::Flush).expect("nothing was lost");
    bench.close();
}

#[test]
fn what_a_server_that_ends_has_not_answered_is_asked_for_again() {
    let Some(()) = require("nbdkit") else { return };
    let mut server =
        Server::nbdkit_with_file(BYTES, &["--filter=delay", "delay-write=100ms", "delay-read=100ms"]);
    let driver = driver(&server, NbdOptions::default());
    driver.look().expect("a look");
    let mut bench = Bench::open(&driver);
    bench.write(0, &content(0, 4096), true).expect("written");
    for round in 1..=5_u64 {
        let offset = round * 65_536;
        bench.start_write(offset, &content(offset, 65_536));
        bench.start_read(0, 4096);
        bench.turn_until_sent();
        server.kill();
        server.start();
        let ended = bench.finish_all();
        assert!(ended.iter().all(|finished| finished.result.is_ok()), "{ended:?}");
        assert!(bench.read(offset, 65_536).expect("read") == content(offset, 65_536));
        bench.flush_and_reopen_if_lost();
    }
    bench.close();
}

#[test]
fn no_flush_succeeds_after_a_server_went_with_writes_that_were_not_flushed() {
    let Some(()) = require("nbdkit") else { return };
    let mut server = Server::nbdkit_with_file(BYTES, &[]);
    let driver = driver(&server, NbdOptions::default());
    driver.look().expect("a look");
    let mut bench = Bench::open(&driver);
    bench.write(0, &content(0, 4096), false).expect("written");
    bench.run(Operation::Flush).expect("flushed");
    server.restart();
    bench.read(0, 4096).expect("read by the next one");
    bench.run(Operation::Flush).expect("nothing was lost");
    bench.write(4096, &content(4096, 4096), true).expect("written durably");
    server.restart();
    bench.read(0, 4096).expect("read");
    bench.run(Operation::Flush).expect("it was durable");
    bench.write(8192, &content(8192, 4096), false).expect("written");
    server.restart();
    bench.read(0, 4096).expect("read");
    for _ in 0..2 {
        assert_eq!(bench.run(Operation::Flush), Err(BlockError::Write));
    }
    assert!(driver.details().iter().any(|Detail { name, .. }| *name == "durability"));
    bench.reopen();
    bench.run(Operation::Flush).expect("somebody has looked after it");
    bench.close();
}

#[test]
fn what_is_written_through_cannot_be_lost() {
    let Some(()) = require("nbdkit") else { return };
    let mut server = Server::nbdkit_with_file(BYTES, &[]);
    let driver = driver(&server, NbdOptions { write_through: true, ..NbdOptions::default() });
    driver.look().expect("a look");
    let mut bench = Bench::open(&driver);
    assert!(!bench.disk.properties().volatile_cache);
    bench.write(0, &content(0, 4096), false).expect("written");
    server.restart();
    bench.read(0, 4096).expect("read");
    bench.run(Operation::Flush).expect("nothing was lost");
    bench.close();
}

#[test]
fn what_waits_for_a_server_ends_after_a_while_and_the_server_may_come_back() {
    let Some(()) = require("nbdkit") else { return };
    let mut server = Server::nbdkit_with_file(BYTES, &[]);
    let patience = Duration::from_millis(300);
    let driver = driver(&server, NbdOptions { patience, ..NbdOptions::default() });
    driver.look().expect("a look");
    let mut bench = Bench::open(&driver);
    bench.write(0, &content(0, 4096), true).expect("written");
    server.kill();
    assert_eq!(bench.read(0, 4096), Err(BlockError::Removed));
    assert_eq!(bench.write(0, &[0; 4096], false), Err(BlockError::Removed));
    let fault = driver.fault().expect("a fault");
    assert!(["No such file", "refused", "closed", "reset"].iter().any(|why| fault.contains(why)), "{fault}");
    assert!(driver.look().is_err());
    server.start();
    bench.read_when_back(0, &content(0, 4096));
    assert_eq!(driver.fault(), None);
    driver.look().expect("it is back");
    bench.close();
}

#[test]
fn an_export_that_grows_is_seen_and_one_that_shrinks_is_not_used() {
    let Some(()) = require("nbdkit") else { return };
    let mut server = Server::nbdkit_with_file(BYTES, &[]);
    let driver = driver(&server, NbdOptions::default());
    driver.look().expect("a look");
    let mut bench = Bench::open(&driver);
    bench.read(0, 4096).expect("read");
    server.kill();
    server.resize(2 * BYTES);
    server.start();
    bench.read(0, 4096).expect("read by the next one");
    assert_eq!(driver.look().expect("a look").bytes, Some(2 * BYTES));
    bench.read(2 * BYTES - 4096, 4096).expect("read beyond the old end");
    server.kill();
    server.resize(BYTES);
    server.start();
    assert_eq!(bench.read(0, 4096), Err(BlockError::Shrunk));
    bench.reopen();
    assert_eq!(bench.disk.properties().bytes, BYTES);
    bench.read_when_back(BYTES - 4096, &[0; 4096]);
    bench.close();
}
