//! What the target's path to a file or a block device gives, with nothing above it: registered buffers, requests
//! outstanding at random places. It prints one JSON object; latencies are in microseconds.
//!
//!     disk_rate PATH read|write BLOCK_BYTES DEPTH SIZE_BYTES WARMUP_MS TIME_MS CORE
//!
//! `write` overwrites the first SIZE_BYTES of PATH. Run it with `--release`.
#![allow(clippy::print_stdout, reason = "it prints its figures")]

use std::path::PathBuf;
use std::time::Duration;

use ringfab_base::SplitMix64;
use ringfab_block::{Backing, Disk, DiskTokens, Finished, Operation, Shared, Started, Tag};
use ringfab_memory::{Buffer, ClassLayout, Pool};
use ringfab_reactor::{Reactor, ReactorConfig, Time, Wait, pin_current_thread};

const OWNER: u8 = 7;
/// As a core of the target.
const SPIN: Duration = Duration::from_micros(50);

/// What is asked for.
struct Plan {
    path: PathBuf,
    is_read: bool,
    block_bytes: u32,
    depth: u32,
    size_bytes: u64,
    warmup: Duration,
    time: Duration,
    core: usize,
}

impl Plan {
    fn from_arguments() -> Self {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        let [path, rw, numbers @ ..] = arguments.as_slice() else { panic!("eight arguments") };
        let numbers: Vec<u64> = numbers.iter().map(|text| text.parse().expect("a number")).collect();
        let [block_bytes, depth, size_bytes, warmup_ms, time_ms, core] = numbers[..] else {
            panic!("eight arguments")
        };
        Self {
            path: PathBuf::from(path),
            is_read: rw == "read",
            block_bytes: block_bytes as u32,
            depth: depth as u32,
            size_bytes,
            warmup: Duration::from_millis(warmup_ms),
            time: Duration::from_millis(time_ms),
            core: core as usize,
        }
    }
}

struct Load {
    plan: Plan,
    reactor: Reactor,
    disk: Disk,
    /// State of the sequence of places.
    random: SplitMix64,
    started: Vec<Time>,
    latencies_ns: Vec<u64>,
}

fn main() {
    let plan = Plan::from_arguments();
    pin_current_thread(plan.core).expect("a core");
    let (mut load, buffers) = Load::new(plan);
    for (index, buffer) in buffers.into_iter().enumerate() {
        load.start(index as u32, buffer);
    }
    load.run(load.plan.warmup);
    load.latencies_ns.clear();
    let elapsed = load.run(load.plan.time);
    load.print(elapsed);
}

impl Load {
    fn new(plan: Plan) -> (Self, Vec<Buffer>) {
        let (bytes, count) = (plan.block_bytes as usize, plan.depth as usize);
        // The large ones are for what a disk of zeroes shows, which is no part of this.
        let large = ClassLayout { buffer_bytes: 128 << 10, count: count + 1 };
        let pool = Pool::new(&[ClassLayout { buffer_bytes: 4096, count }, large]).expect("a pool");
        let config = ReactorConfig { entries: 512, spin: SPIN, descriptors_max: 64 };
        let mut reactor = Reactor::new(&config).expect("a ring");
        assert!(reactor.register_pool(&pool), "the ring takes the buffers");
        let shared = Shared::new(&pool).expect("zeroes");
        let backing = Backing::File { path: plan.path.clone(), direct: true, read_only: plan.is_read };
        let disk = Disk::open(&backing, &mut reactor, &shared, DiskTokens::new(OWNER, 0)).expect("the file");
        let buffers = (0..count).map(|_| pool.take(bytes).expect("a buffer")).collect();
        let started = vec![Time::ZERO; count];
        (
            Self {
                plan,
                reactor,
                disk,
                random: SplitMix64::new(1),
                started,
                latencies_ns: Vec::with_capacity(1 << 22),
            },
            buffers,
        )
    }

    fn start(&mut self, index: u32, buffer: Buffer) {
        let length = self.plan.block_bytes;
        let offset = self.place() * u64::from(length);
        let operation = if self.plan.is_read {
            Operation::Read { offset, buffer, may_borrow: false }
        } else {
            Operation::Write { offset, source: buffer.share(), at: 0, length, durable: false }
        };
        self.started[index as usize] = self.reactor.now();
        let started = self.disk.start(&mut self.reactor, operation, Tag { kind: 0, generation: 0, index });
        assert!(matches!(started, Started::Pending), "a file works by completions");
    }

    /// The next of a sequence that visits all places alike.
    fn place(&mut self) -> u64 {
        self.random.below(self.plan.size_bytes / u64::from(self.plan.block_bytes))
    }

    fn run(&mut self, time: Duration) -> Duration {
        let begun = self.reactor.clock();
        while self.reactor.clock() < begun + time {
            self.reactor.turn(Wait::Event).expect("a turn");
            while let Some(completion) = self.reactor.next_completion() {
                if let Some(finished) = self.disk.on_completion(&mut self.reactor, completion) {
                    self.finish(finished);
                }
            }
        }
        self.reactor.clock().since(begun)
    }

    fn finish(&mut self, finished: Finished) {
        finished.result.expect("the disk works");
        let index = finished.tag.index;
        let took = self.reactor.now().since(self.started[index as usize]);
        self.latencies_ns.push(took.as_nanos() as u64);
        let source = finished.source.and_then(|source| source.into_unique().ok());
        let buffer = finished.buffer.or(source).expect("the buffer comes back");
        self.start(index, buffer);
    }

    fn print(&mut self, elapsed: Duration) {
        let count = self.latencies_ns.len();
        assert!(count > 0, "nothing came back in time");
        self.latencies_ns.sort_unstable();
        let at = |permille: usize| self.latencies_ns[(count - 1) * permille / 1000] as f64 / 1000.0;
        let iops = count as f64 / elapsed.as_secs_f64();
        let (p50, p99, p999) = (at(500), at(990), at(999));
        println!(r#"{{"iops": {iops:.1}, "p50": {p50:.2}, "p99": {p99:.2}, "p99.9": {p999:.2}}}"#);
    }
}
