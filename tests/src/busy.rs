//! A target that works for somebody while others do it harm, and leaves nothing behind of them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ringfab_initiator::blocking::Controller;

use crate::TestTarget;

/// Tests that count what their process has open run one after the other.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    // A test that failed says so itself.
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Few buffers: a target that lost one for each hundred sessions would soon stand still.
/// The damaged commands may write anywhere in namespace 1; the healthy host has namespace 2.
const FEW: &str = "[[subsystem.namespace]]\nmemory = \"64MiB\"\nblock_bytes = 512\n\
    [[subsystem.namespace]]\nmemory = \"64MiB\"\nblock_bytes = 512\n\
    [memory]\nsmall_buffers = 64\nlarge_buffers = 32\n";

/// A target, and a host that uses it all the time.
#[derive(Debug)]
pub struct Busy {
    /// With two namespaces in memory. What others write goes to the first.
    pub target: TestTarget,
    stop: Arc<AtomicBool>,
    worker: Option<std::thread::JoinHandle<()>>,
    controllers: usize,
    files: usize,
    _alone: MutexGuard<'static, ()>,
}

impl Busy {
    /// Starts both. Until it has finished, no other test of the process has one.
    ///
    /// # Panics
    /// When it cannot.
    pub fn start() -> Self {
        let alone = alone();
        let target = TestTarget::start(FEW);
        let controller = target.attach();
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let worker = std::thread::spawn(move || work(&controller, &told));
        let (controllers, files) = (target.target.controllers().len(), open_files());
        Self { target, stop, worker: Some(worker), controllers, files, _alone: alone }
    }

    /// Ends the host's work and looks for what is left.
    ///
    /// # Panics
    /// When its work failed, or something was left behind.
    pub fn finish(mut self) {
        let begun = Instant::now();
        let settled =
            || self.target.target.controllers().len() == self.controllers && open_files() == self.files;
        while !settled() {
            assert!(
                begun.elapsed() < Duration::from_secs(60),
                "left behind: {} controllers, {} files; at first {} and {}",
                self.target.target.controllers().len(),
                open_files(),
                self.controllers,
                self.files
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        self.stop.store(true, Ordering::Relaxed);
        self.worker.take().expect("it was started").join().expect("the healthy host worked");
        let newcomer = self.target.attach();
        for _ in 0..32 {
            // Twice a megabyte in the target; what is there does not matter, damaged commands may have written it.
            newcomer.compare(1, 0, &vec![0; 1 << 20]).expect("as many buffers as ever");
        }
        newcomer.detach().expect("detached");
    }
}

fn work(controller: &Controller, stop: &AtomicBool) {
    let mut rounds = 0_u64;
    // Some rounds at least, however short the storm was.
    while !stop.load(Ordering::Relaxed) || rounds < 10 {
        let written: Vec<u8> = (0..8192_u64).map(|byte| (byte * 7 + rounds) as u8).collect();
        controller.write_at(2, 32 << 20, &written, false).expect("the healthy host writes");
        let mut read = vec![0; written.len()];
        controller.read_at(2, 32 << 20, &mut read).expect("the healthy host reads");
        assert!(read == written, "the healthy host's data changed");
        rounds += 1;
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Descriptors of this process, which has the target in it.
fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("proc").count()
}
