//! In its steady state neither end allocates anything for a read or a write: the whole process is counted, the
//! target's core and the initiator's engine.
#![allow(unsafe_code, reason = "counting allocations needs an allocator of its own")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use ringfab_fabric::rdma::RnicConfig;
use ringfab_initiator::{
    ConnectOptions, ControllerId, Host, HostConfig, HostEvent, HostIdentity, IoOperation, IoRequest,
};
use ringfab_memory::{Buffer, ClassLayout, SharedBuffer};
use ringfab_reactor::{Reactor, ReactorConfig, Wait};
use ringfab_tests::TestTarget;

struct Counting;

fn count(bytes: usize) {
    ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    LARGER.fetch_add(u64::from(bytes > size_of::<u64>()), Ordering::Relaxed);
    BYTES_ALLOCATED.fetch_add(bytes as u64, Ordering::Relaxed);
}

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
/// Those of more than a word.
static LARGER: AtomicU64 = AtomicU64::new(0);
static BYTES_ALLOCATED: AtomicU64 = AtomicU64::new(0);
/// What counts for the whole process is alone in it.
static ALONE: Mutex<()> = Mutex::new(());

// SAFETY: every call is the system allocator's with the same arguments; counting touches a static only.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promise is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count(bytes);
        // SAFETY: as above; `pointer` came from `System` with this layout.
        unsafe { System.realloc(pointer, layout, bytes) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above; `pointer` came from `System` with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Commands outstanding.
const DEPTH: usize = 32;

/// Bytes of each.
const BYTES: usize = 4096;

/// Commands until every table and list has the size that it keeps.
const WARM_UP: usize = 20_000;

/// Commands that are counted.
const COUNTED: usize = 25_000;

/// An engine, and the buffers that are not with it.
struct Load {
    host: Host,
    controller: ControllerId,
    buffers: VecDeque<Buffer>,
    sources: VecDeque<SharedBuffer>,
    next: u64,
}

impl Load {
    fn new(target: &TestTarget) -> Self {
        let reactor = ReactorConfig { entries: 256, spin: Duration::from_micros(50), descriptors_max: 256 };
        let pool = vec![
            ClassLayout { buffer_bytes: BYTES, count: 4 * DEPTH },
            ClassLayout { buffer_bytes: 1 << 16, count: 16 },
        ];
        let config = HostConfig::new(pool, RnicConfig::new(0, [3; 32]), 3);
        let mut host = Host::new(Reactor::new(&reactor).expect("a ring"), config).expect("a host");
        let url = target.url("");
        let identity = HostIdentity::for_url(&url).expect("an identity");
        let controller = host.attach(ConnectOptions::new(url, identity));
        let ready = next_event(&mut host);
        assert!(matches!(ready, HostEvent::Ready { .. }), "{ready:?}");
        let take = || host.pool().take(BYTES).expect("a buffer");
        let buffers = (0..DEPTH).map(|_| take()).collect();
        let sources = (0..DEPTH).map(|_| take().share()).collect();
        Self { host, controller, buffers, sources, next: 0 }
    }

    /// Runs so many commands of each kind in turn, [`DEPTH`] at a time.
    fn run(&mut self, count: usize) {
        let (mut submitted, mut done) = (0, 0);
        while done < count {
            while submitted < count && submitted - done < DEPTH {
                self.submit();
                submitted += 1;
            }
            match next_event(&mut self.host) {
                HostEvent::IoDone(finished) => {
                    finished.result.expect("it worked");
                    self.buffers.extend(finished.buffer);
                    self.sources.extend(finished.source);
                    done += 1;
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn submit(&mut self) {
        self.next += 1;
        let lba = self.next % 1000 * 8;
        let operation = if self.next.is_multiple_of(2) {
            let buffer = self.buffers.pop_front().expect("as many as may be outstanding");
            IoOperation::Read { lba, nlb: 8, buffer }
        } else {
            let source = self.sources.pop_front().expect("as many as may be outstanding");
            IoOperation::Write { lba, nlb: 8, source, offset: 0, fua: false }
        };
        let request = IoRequest { nsid: 1, tag: self.next, operation };
        self.host.submit(self.controller, request).expect("taken");
    }
}

fn next_event(host: &mut Host) -> HostEvent {
    let begun = Instant::now();
    loop {
        if let Some(event) = host.next_event() {
            return event;
        }
        assert!(begun.elapsed() < Duration::from_secs(10), "nothing happens");
        host.turn(Wait::Event).expect("a turn");
    }
}

#[test]
fn twenty_five_thousand_reads_and_writes_allocate_nothing_on_either_end() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let fetched = "in_capsule_bytes = 0\n";
    let tcp = "transport = \"tcp\"\n";
    let fetched_by_tcp = "transport = \"tcp\"\nin_capsule_bytes = 0\n";
    let listeners = ["", fetched, tcp, fetched_by_tcp];
    for (disk, listener) in listeners.iter().flat_map(|one| [("null", one), ("memory", one)]) {
        let namespace = format!("[[subsystem.namespace]]\n{disk} = \"64MiB\"\nblock_bytes = 512\n");
        let target = TestTarget::with_listener(listener, &namespace);
        let mut load = Load::new(&target);
        load.run(WARM_UP);
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        load.run(COUNTED);
        let allocated = ALLOCATIONS.load(Ordering::Relaxed) - before;
        assert_eq!(allocated, 0, "with {disk}, {listener:?}");
    }
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    drop(std::hint::black_box(Box::new(1)));
    assert!(ALLOCATIONS.load(Ordering::Relaxed) > before, "the count counts");
}

/// Bytes of a large call of the blocking handle, which takes many commands.
const LARGE_BYTES: usize = 16 << 20;
/// The most bytes of one of its commands.
const CHUNK_BYTES: usize = 256 << 10;

#[test]
fn a_large_call_of_the_blocking_handle_allocates_nothing_for_its_data_nor_for_each_command() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for listener in ["", "transport = \"tcp\"\n"] {
        let target = TestTarget::with_listener(
            listener,
            "[[subsystem.namespace]]\nmemory = \"32MiB\"\nblock_bytes = 512\n",
        );
        let controller = target.attach();
        let written: Vec<u8> = (0..LARGE_BYTES).map(|index| (index / 512 * 7 + index) as u8).collect();
        let mut read = vec![0; LARGE_BYTES];
        let mut both = |bytes: usize| {
            let before = (LARGER.load(Ordering::Relaxed), BYTES_ALLOCATED.load(Ordering::Relaxed));
            controller.write_at(1, 512, &written[..bytes], false).expect("written");
            controller.read_at(1, 512, &mut read[..bytes]).expect("read");
            assert!(read[..bytes] == written[..bytes]);
            let after = (LARGER.load(Ordering::Relaxed), BYTES_ALLOCATED.load(Ordering::Relaxed));
            (after.0 - before.0, after.1 - before.1)
        };
        for _ in 0..4 {
            both(LARGE_BYTES);
        }
        let (small, large) = (both(512), both(LARGE_BYTES));
        let commands = 2 * (LARGE_BYTES / CHUNK_BYTES) as u64;
        // The standard library's channel to the engine allocates a block for each 31 messages. What wakes the engine
        // from a sleep is a word.
        let blocks = commands.div_ceil(31) + 2;
        assert!(
            large.0 <= small.0 + blocks,
            "{listener:?}: {large:?} of {commands} commands, {small:?} of 2"
        );
        assert!(large.1 < CHUNK_BYTES as u64, "{listener:?}: {large:?}, less than one command's data");
    }
}
