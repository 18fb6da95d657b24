//! The blocking handle against a small controller in another thread.

#[allow(dead_code, reason = "each test program uses its part")]
mod support;

use std::net::TcpListener;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, getsockname, socket};
use ringfab_initiator::blocking::{CancelToken, Controller, Disk, EngineOptions};
use ringfab_initiator::{BlockRange, Cause, ConnectOptions, IoError, SubmitError};
use support::host::options;
use support::{BLOCK, BLOCKS, Peer};

/// A controller that runs until it is dropped.
struct Running {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn start() -> (Self, ConnectOptions) {
        let stop = Arc::new(AtomicBool::new(false));
        let (sender, receiver) = channel();
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut peer = Peer::new();
            sender.send(options(&peer)).expect("somebody listens");
            while !stopped.load(Ordering::Acquire) {
                peer.turn();
                std::thread::yield_now();
            }
        });
        (Self { stop, thread: Some(thread) }, receiver.recv().expect("its address"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the controller did not panic");
        }
    }
}

#[test]
fn bytes_of_any_offset_and_length_are_written_and_read_back() {
    let (_running, options) = Running::start();
    let controller = Controller::connect(options, EngineOptions::default()).expect("attached");
    assert_eq!(controller.namespaces()[0].bytes(), (BLOCK * BLOCKS) as u64);
    let size = BLOCK * BLOCKS;
    let mut model = vec![0_u8; size];
    let ranges = [(0, size), (1, 1), (4095, 2), (100, 300_000), (4096, 8192), (size - 1, 1), (7, 0)];
    for (seed, (offset, length)) in ranges.into_iter().enumerate() {
        let data: Vec<u8> = (0..length).map(|index| (index * 31 + seed * 7 + index / 4096) as u8).collect();
        controller.write_at(1, offset as u64, &data, seed % 2 == 0).expect("written");
        model[offset..offset + length].copy_from_slice(&data);
        let mut back = vec![0; length];
        controller.read_at(1, offset as u64, &mut back).expect("read");
        assert!(back == data, "{length} bytes at {offset}");
    }
    let mut back = vec![0; size];
    controller.read_at(1, 0, &mut back).expect("read");
    assert!(back == model);
    let beyond = controller.read_at(1, size as u64, &mut [0]);
    assert_eq!(beyond, Err(IoError::Refused(SubmitError::Range)));
    controller.detach().expect("detached in an orderly way");
}

/// What threads do to one disk at once.
fn at_once(disk: &Disk, jobs: &[&(dyn Fn(&Disk) + Sync)]) {
    std::thread::scope(|scope| {
        for job in jobs {
            scope.spawn(|| job(disk));
        }
    });
}

#[test]
fn threads_that_write_different_bytes_of_one_block_all_have_them_written() {
    const BYTES: u64 = 300;
    let (_running, options) = Running::start();
    let controller = Controller::connect(options, EngineOptions::default()).expect("attached");
    let disk = controller.disk(1).expect("it is there");
    let every_third = |disk: &Disk, first: u64| {
        for offset in (first..BYTES).step_by(3) {
            disk.write_at(offset, &[offset as u8 | 1], false).expect("written");
        }
    };
    at_once(
        &disk,
        &[&|disk| every_third(disk, 0), &|disk| every_third(disk, 1), &|disk| every_third(disk, 2)],
    );
    let mut read = [0; BYTES as usize];
    disk.read_at(0, &mut read).expect("read");
    let expected: Vec<u8> = (0..BYTES).map(|offset| offset as u8 | 1).collect();
    assert!(read[..] == expected[..], "a byte was lost: {read:?}");
}

#[test]
fn a_write_of_whole_blocks_is_not_undone_by_who_changes_a_part_of_one() {
    const ROUNDS: u8 = 100;
    let (_running, options) = Running::start();
    let controller = Controller::connect(options, EngineOptions::default()).expect("attached");
    let disk = controller.disk(1).expect("it is there");
    let over = AtomicBool::new(false);
    let parts = |disk: &Disk| {
        while !over.load(Ordering::Acquire) {
            disk.write_at(BLOCK as u64 + 5, b"part", false).expect("written");
        }
    };
    let keeps_all_but_the_part = |disk: &Disk, round: u8| {
        disk.write_at(0, &[round; 3 * BLOCK], false).expect("written");
        let mut read = vec![0; 3 * BLOCK];
        disk.read_at(0, &mut read).expect("read");
        read[BLOCK + 5..BLOCK + 9].fill(round);
        read == [round; 3 * BLOCK]
    };
    let whole = |disk: &Disk| {
        let undone = (1..=ROUNDS).find(|round| !keeps_all_but_the_part(disk, *round));
        over.store(true, Ordering::Release);
        assert_eq!(undone, None);
    };
    at_once(&disk, &[&parts, &whole]);
}

#[test]
fn claimed_blocks_are_written_through_the_claim_and_by_nobody_else() {
    let (_running, options) = Running::start();
    let controller = Controller::connect(options, EngineOptions::default()).expect("attached");
    let disk = controller.disk(1).expect("it is there");
    let claim = disk.claim(100, BLOCK as u64).expect("claimed");
    assert_eq!(*claim.range(), 100..100 + BLOCK as u64);
    let (told, news) = channel();
    let others: Vec<_> = [(0, 10), (BLOCK, BLOCK)]
        .map(|(offset, length)| {
            let (disk, told) = (disk.clone(), told.clone());
            std::thread::spawn(move || {
                disk.write_at(offset as u64, &vec![2; length], false).expect("written");
                told.send(()).expect("somebody listens");
            })
        })
        .into();
    disk.write_at(2 * BLOCK as u64, &[3; BLOCK], false).expect("other blocks are free");
    claim.write_at(100, &[1; BLOCK], false).expect("written");
    assert!(news.recv_timeout(Duration::from_millis(100)).is_err(), "the others wait");
    drop(claim);
    for other in others {
        other.join().expect("written");
    }
    let mut read = vec![0; 2 * BLOCK];
    disk.read_at(0, &mut read).expect("read");
    assert!(read[..10] == [2; 10] && read[100] == 1 && read[BLOCK..] == [2; BLOCK]);
}

#[test]
fn a_disk_says_what_it_is() {
    let (_running, options) = Running::start();
    let controller = Controller::connect(options, EngineOptions::default()).expect("attached");
    assert!(controller.disk(2).is_none());
    let disks = controller.disks();
    let sizes = (disks[0].nsid(), disks[0].size(), disks[0].block_bytes());
    assert_eq!(sizes, (1, Ok((BLOCK * BLOCKS) as u64), Ok(BLOCK as u32)));
    assert_eq!(disks[0].namespace(), controller.namespace(1));
}

#[test]
fn the_other_commands_work_from_several_threads() {
    let (_running, options) = Running::start();
    let controller = Controller::connect(options, EngineOptions::default()).expect("attached");
    std::thread::scope(|scope| {
        for lane in 0..4_u64 {
            let controller = controller.clone();
            scope.spawn(move || {
                let at = lane * 16 * BLOCK as u64;
                controller.write_at(1, at, &[lane as u8 + 1; 4 * BLOCK], false).expect("written");
                controller.flush(1).expect("flushed");
                controller.write_zeroes(1, at, BLOCK as u64, true).expect("zeroed");
                controller.discard(1, &[BlockRange { lba: lane * 16 + 1, nlb: 1 }]).expect("discarded");
                let mut expected = vec![0; 2 * BLOCK];
                expected.extend([lane as u8 + 1; 2 * BLOCK]);
                assert_eq!(controller.compare(1, at, &expected), Ok(true));
                expected[0] = 1;
                assert_eq!(controller.compare(1, at, &expected), Ok(false));
            });
        }
    });
    assert_eq!(controller.identify_controller().expect("identified")[4..8], *b"S123");
    assert_eq!(controller.smart().expect("a log page").len(), 512);
    let clone = controller.clone();
    controller.detach().expect("detached in an orderly way");
    assert_eq!(clone.flush(1), Err(IoError::NoPath));
}

#[test]
fn a_connection_that_nobody_answers_is_cancelled_at_once() {
    let (running, mut options) = Running::start();
    drop(running);
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    options.url.port = silent.local_addr().expect("its address").port();
    let cancel = CancelToken::new();
    let engine = EngineOptions::with_cancel(cancel.clone());
    let canceller = std::thread::spawn(move || {
        // Sooner or later: it ends at once in either case.
        std::thread::sleep(Duration::from_millis(100));
        cancel.cancel();
    });
    let start = Instant::now();
    let error = Controller::connect(options, engine).expect_err("nobody answers");
    canceller.join().expect("no panic");
    assert!(matches!(error.cause, Cause::Cancelled), "{error}");
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}

#[test]
fn a_port_where_nobody_listens_is_named() {
    let mut options = options(&Peer::new());
    // Bound for as long as the test takes, so that no other test gets it and listens there.
    let (_bound, port) = bound_port();
    options.url.port = port;
    options.url.host = ringfab_initiator::HostName::Name("localhost".to_owned());
    let error =
        Controller::connect(options, EngineOptions::default()).expect_err("nobody listens").to_string();
    assert!(error.contains("connect: ") && error.contains("refused"), "{error}");
}

/// A port that belongs to a socket which does not listen.
fn bound_port() -> (OwnedFd, u16) {
    let socket =
        socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).expect("a socket");
    bind(socket.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, 0)).expect("a port");
    let address: SockaddrIn = getsockname(socket.as_raw_fd()).expect("its address");
    (socket, address.port())
}
