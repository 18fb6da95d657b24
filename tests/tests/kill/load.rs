//! A load that knows what it wrote: threads that each write, flush and read sectors of their own.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ringfab_initiator::blocking::{Controller, EngineOptions};
use ringfab_initiator::{ConnectOptions, HostIdentity, ReconnectPolicy, Url};
use ringfab_tests::world::checker::{Checker, Outcome};
use ringfab_tests::world::content::{Random, SECTOR_BYTES, fill};
use ringfab_tests::{NQN, wait_until};

/// Threads of a load.
const WRITERS: u64 = 4;
/// Sectors of each.
const SECTORS: u64 = 512;
/// The most sectors of one command.
const SECTORS_MAX: u64 = 128;

/// Commands among which a moment of a load is chosen.
const MOMENTS: u64 = 200;

/// Bytes of an image that holds all of it.
pub(crate) const IMAGE_BYTES: u64 = WRITERS * SECTORS * SECTOR_BYTES as u64;

/// A policy that comes back quickly and waits as long as it takes.
pub(crate) const PATIENT: ReconnectPolicy = {
    let mut policy = ReconnectPolicy::DEFAULT;
    policy.delay = Duration::from_millis(20);
    policy.factor_percent = 150;
    policy.delay_max = Duration::from_millis(200);
    policy.controller_loss_timeout = None;
    policy
};

/// Attaches to the target on a port.
pub(crate) fn attach(port: u16, reconnect: ReconnectPolicy) -> Controller {
    let url: Url = format!("nvme+rdma://127.0.0.1:{port}/{NQN}?provider=iwarp").parse().expect("a URL");
    let host = HostIdentity::for_url(&url).expect("an identity");
    let mut options = ConnectOptions::new(url, host);
    options.reconnect = reconnect;
    Controller::connect(options, EngineOptions::default()).expect("attached")
}

/// A fresh seed, shown in the test's output.
#[expect(clippy::print_stdout, reason = "the seed of a random test belongs in its output")]
pub(crate) fn seed(what: &str) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970");
    let seed =
        std::env::var("SEED").map_or(now.as_nanos() as u64 >> 10, |text| text.parse().expect("a number"));
    println!("{what}: SEED={seed}");
    seed
}

/// Threads that write until they are told to stop.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    commands: Arc<AtomicU64>,
    writers: Vec<JoinHandle<Checker>>,
}

impl Load {
    /// Starts it.
    pub(crate) fn start(controller: &Controller, seed: u64) -> Self {
        let (stop, commands) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let writers = (0..WRITERS).map(|number| {
            let first = number * SECTORS;
            let writer = Writer {
                controller: controller.clone(),
                checker: Checker::new(first..first + SECTORS),
                random: Random::new(seed, number),
                next: (number + 1) << 40,
            };
            let (stop, commands) = (Arc::clone(&stop), Arc::clone(&commands));
            std::thread::spawn(move || writer.run(&stop, &commands))
        });
        Self { writers: writers.collect(), stop, commands }
    }

    /// Waits until it runs, that is until commands end which began after this call, and then until any moment of it.
    pub(crate) fn wait_for_a_moment(&self, random: &mut Random, round: u32) {
        // Those that were running already may end without the target: one for each writer.
        let more = 2 * WRITERS + random.below(MOMENTS);
        let enough = self.commands.load(Ordering::Relaxed) + more;
        let is_there = || self.commands.load(Ordering::Relaxed) >= enough;
        wait_until(&format!("round {round}: the load runs"), is_there);
    }

    /// Has its threads come to an end.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        wait_until("the load ends", || self.writers.iter().all(JoinHandle::is_finished));
    }

    /// Stops it, and looks that every sector of the image is what was acknowledged.
    pub(crate) fn finish(self, image: &std::path::Path) {
        self.stop.store(true, Ordering::Relaxed);
        let checkers: Vec<Checker> =
            self.writers.into_iter().map(|writer| writer.join().expect("a writer")).collect();
        let bytes = std::fs::read(image).expect("the image");
        for checker in checkers {
            let Range { start, end } = checker.range();
            let part = &bytes[start as usize * SECTOR_BYTES..end as usize * SECTOR_BYTES];
            assert_eq!(checker.check_disk(part, part), Ok(()), "the image");
        }
    }
}

struct Writer {
    controller: Controller,
    checker: Checker,
    random: Random,
    next: u64,
}

impl Writer {
    fn run(mut self, stop: &AtomicBool, commands: &AtomicU64) -> Checker {
        while !stop.load(Ordering::Relaxed) {
            match self.random.below(10) {
                0..6 => self.write(),
                6 => self.flush(),
                _ => {
                    let range = self.any_range();
                    self.read(range);
                }
            }
            commands.fetch_add(1, Ordering::Relaxed);
        }
        let mut rest = self.checker.range();
        while !rest.is_empty() {
            let end = rest.end.min(rest.start + SECTORS_MAX);
            self.read(rest.start..end);
            rest.start = end;
        }
        self.checker
    }

    fn write(&mut self) {
        let (range, fua) = (self.any_range(), self.random.one_in(2));
        self.next += 1;
        let mut bytes = vec![0; (range.end - range.start) as usize * SECTOR_BYTES];
        for (sector, bytes) in range.clone().zip(bytes.chunks_exact_mut(SECTOR_BYTES)) {
            fill(bytes, self.next, sector);
        }
        self.checker.begin_write(self.next, range.clone(), self.next, fua);
        let written = self.controller.write_at(1, range.start * SECTOR_BYTES as u64, &bytes, fua);
        written.expect("the policy waits as long as it takes");
        self.checker.end(self.next, Outcome::Done);
    }

    fn flush(&mut self) {
        self.next += 1;
        self.checker.begin_flush(self.next);
        self.controller.flush(1).expect("the policy waits as long as it takes");
        self.checker.end(self.next, Outcome::Done);
    }

    fn read(&mut self, range: Range<u64>) {
        self.next += 1;
        let mut bytes = vec![0xee; (range.end - range.start) as usize * SECTOR_BYTES];
        self.checker.begin_look(self.next, range.clone(), Vec::new());
        let read = self.controller.read_at(1, range.start * SECTOR_BYTES as u64, &mut bytes);
        read.expect("the policy waits as long as it takes");
        assert_eq!(self.checker.end_read(self.next, Some(&bytes)), Ok(()));
    }

    fn any_range(&mut self) -> Range<u64> {
        let length = self.random.pick(&[1, 1, 2, 8, 16, 64, SECTORS_MAX]);
        let first = self.checker.range().start + self.random.below(SECTORS - length + 1);
        first..first + length
    }
}
