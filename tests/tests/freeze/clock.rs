//! A load on two volumes whose blocks carry a common clock, so that whoever copies both can tell whether the copies are
//! of one instant.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use ringfab_initiator::blocking::Controller;
use ringfab_tests::wait_until;

/// Threads of the load. Each has a block of each volume.
pub(crate) const WRITERS: u64 = 4;
pub(crate) const BLOCK_BYTES: usize = 4096;

/// Bytes of a volume that has all of it.
pub(crate) const VOLUME_BYTES: u64 = 1 << 20;

/// Threads that write a time into one volume, wait until it is written, and write the same time into the other one.
pub(crate) struct ClockLoad {
    stop: Arc<AtomicBool>,
    clock: Arc<AtomicU64>,
    writers: Vec<JoinHandle<Times>>,
}

/// The times that each thread has written, in order.
type Times = Vec<u64>;

/// What a load has written, and in which order.
pub(crate) struct Written(Vec<Times>);

impl ClockLoad {
    /// Starts it on namespaces 1 and 2 of a controller.
    pub(crate) fn start(controller: &Controller) -> Self {
        let (stop, clock) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let writers = (0..WRITERS).map(|number| {
            let (controller, stop, clock) = (controller.clone(), Arc::clone(&stop), Arc::clone(&clock));
            std::thread::spawn(move || write(&controller, number, &stop, &clock))
        });
        Self { writers: writers.collect(), stop, clock }
    }

    /// Waits until each thread has written something.
    pub(crate) fn wait_until_it_runs(&self) {
        let enough = self.clock.load(Ordering::Relaxed) + 20 * WRITERS;
        wait_until("the load runs", || self.clock.load(Ordering::Relaxed) >= enough);
    }

    /// What time it is.
    pub(crate) fn now(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
    }

    /// Ends it.
    pub(crate) fn finish(self) -> Written {
        self.stop.store(true, Ordering::Relaxed);
        Written(self.writers.into_iter().map(|writer| writer.join().expect("a writer")).collect())
    }
}

/// Which volume a thread writes first.
fn order(number: u64) -> [u32; 2] {
    if number.is_multiple_of(2) { [1, 2] } else { [2, 1] }
}

fn write(controller: &Controller, number: u64, stop: &AtomicBool, clock: &AtomicU64) -> Times {
    let mut times = vec![0];
    let mut block = vec![0; BLOCK_BYTES];
    while !stop.load(Ordering::Relaxed) {
        let time = clock.fetch_add(1, Ordering::Relaxed) + 1;
        block[..8].copy_from_slice(&time.to_le_bytes());
        for nsid in order(number) {
            controller.write_at(nsid, number * BLOCK_BYTES as u64, &block, false).expect("written");
        }
        times.push(time);
    }
    times
}

impl Written {
    /// Whether copies of both volumes are of one instant: what a thread has written to its second volume is what it has
    /// written to the first one, or what it had written before that.
    pub(crate) fn check(&self, copies: [&[u8]; 2]) -> Result<(), String> {
        for (number, times) in self.0.iter().enumerate() {
            let at = number * BLOCK_BYTES;
            let [first, second] = order(number as u64).map(|nsid| {
                let bytes = copies[nsid as usize - 1][at..at + 8].try_into().expect("eight bytes");
                u64::from_le_bytes(bytes)
            });
            let position = |time: u64| times.iter().position(|one| *one == time);
            let ahead = position(first).zip(position(second)).map(|(one, two)| one.checked_sub(two));
            if !matches!(ahead, Some(Some(0 | 1))) {
                return Err(format!(
                    "thread {number}: {first} in its first volume, {second} in its second one"
                ));
            }
        }
        Ok(())
    }
}
