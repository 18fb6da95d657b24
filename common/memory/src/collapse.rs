//! Joins small pages to huge ones, at times when this disturbs nothing.
//!
//! The kernel takes a new huge page and copies the small pages into it. Meanwhile every access to these pages waits,
//! and so does every access to a page of that memory that is not resident yet: some tenths of a millisecond, and
//! several milliseconds in virtual machines, whose host has to find the memory. So a thread of its own does this, while
//! the process has little else to do, or seldom.

use std::collections::VecDeque;
use std::fs;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock, Weak};
use std::thread;
use std::time::{Duration, Instant};

use crate::mapping::{HUGE_BYTES, Mapping};

/// How often is looked whether the process has anything else to do, and how long huge pages are made until the next
/// look.
const LOOK: Duration = Duration::from_millis(50);

/// A process that uses one part in so many of a processor has little to do.
const LITTLE: u32 = 10;

/// While it has more to do, one part in so many of the time goes into huge pages.
const SELDOM: u32 = 50;

/// So short a time is enough to begin one, which is then made.
const A_PAGE: Duration = Duration::from_millis(1);

/// Where a huge page could be in a mapping, if that is still there when its turn comes.
type Job = (Weak<Mapping>, usize);

/// Has the pages at an offset replaced by a huge one, some time.
#[cold]
pub(crate) fn collapse_in_background(mapping: &Arc<Mapping>, offset: usize) {
    static WORKER: OnceLock<Option<Sender<Job>>> = OnceLock::new();
    if let Some(worker) = WORKER.get_or_init(start_worker) {
        // Without a worker everything stays as it is.
        let _ = worker.send((Arc::downgrade(mapping), offset));
    }
}

/// None where huge pages are not wanted, or there is no thread to be had.
fn start_worker() -> Option<Sender<Job>> {
    if !huge_pages_wanted() {
        return None;
    }
    let (sender, jobs) = channel();
    let worker = thread::Builder::new().name("ringfab-memory".to_owned());
    worker.spawn(move || work(&jobs)).ok().map(|_| sender)
}

/// Whether the administrator lets processes have huge pages.
pub(crate) fn huge_pages_wanted() -> bool {
    let setting = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    setting.is_ok_and(|setting| !setting.contains("[never]"))
}

fn work(jobs: &Receiver<Job>) {
    run_where_the_process_may();
    while let Ok(job) = jobs.recv() {
        let mut waiting = VecDeque::from([job]);
        let mut pace = Pace::new(Instant::now(), cpu_time_of_others());
        while !waiting.is_empty() {
            thread::sleep(LOOK);
            waiting.extend(jobs.try_iter());
            let now = Instant::now();
            let end = now + pace.time(now, cpu_time_of_others());
            while Instant::now() < end
                && let Some((mapping, offset)) = waiting.pop_front()
            {
                let start = Instant::now();
                if let Some(mapping) = mapping.upgrade() {
                    // Where the kernel has no huge page left, or does not know this, everything stays as it is.
                    let _ = mapping.collapse(offset, HUGE_BYTES);
                }
                pace.took(start.elapsed());
            }
        }
    }
}

/// How fast huge pages are made.
#[derive(Debug)]
struct Pace {
    looked: Instant,
    /// Processor time that the process had used then.
    used: Duration,
    /// What the last page took, and when one may be made in spite of other work.
    took: Duration,
    next: Instant,
}

impl Pace {
    fn new(now: Instant, used: Duration) -> Self {
        Self { looked: now, used, took: Duration::ZERO, next: now }
    }

    /// How long huge pages may be begun now, when the process has used so much processor time for other things.
    fn time(&mut self, now: Instant, used: Duration) -> Duration {
        let passed = now.saturating_duration_since(self.looked);
        let idle = used.saturating_sub(self.used) * LITTLE <= passed;
        (self.looked, self.used) = (now, used);
        if idle {
            return LOOK;
        }
        if now < self.next {
            return Duration::ZERO;
        }
        self.next = now + self.took.max(LOOK / SELDOM) * SELDOM;
        A_PAGE
    }

    fn took(&mut self, took: Duration) {
        self.took = took;
    }
}

/// Processor time of all threads but this one.
fn cpu_time_of_others() -> Duration {
    let time = |clock| {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the time is ours, and the clocks exist.
        unsafe { libc::clock_gettime(clock, &raw mut time) };
        Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
    };
    time(libc::CLOCK_PROCESS_CPUTIME_ID).saturating_sub(time(libc::CLOCK_THREAD_CPUTIME_ID))
}

/// Undoes what the thread has inherited from the one that started it, which may be bound to a processor.
fn run_where_the_process_may() {
    // SAFETY: the all-zero bit pattern is a valid, empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the first thread has the number of the process, and the set is as large as is said.
    unsafe {
        if libc::sched_getaffinity(libc::getpid(), size_of_val(&set), &raw mut set) == 0 {
            libc::sched_setaffinity(0, size_of_val(&set), &raw const set);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_process_has_time_and_a_busy_one_seldom() {
        let start = Instant::now();
        let mut used = Duration::from_secs(1);
        let mut pace = Pace::new(start, used);
        let mut look = |pace: &mut Pace, at_ms: u64, used_ms| {
            used += Duration::from_millis(used_ms);
            pace.time(start + Duration::from_millis(at_ms), used)
        };
        assert_eq!(look(&mut pace, 50, 5), LOOK, "a tenth is little");
        assert_eq!(look(&mut pace, 100, 6), A_PAGE, "the first one need not wait");
        pace.took(Duration::from_millis(4));
        assert_eq!(look(&mut pace, 140, 40), Duration::ZERO);
        assert_eq!(look(&mut pace, 150, 10), A_PAGE);
        assert_eq!(look(&mut pace, 349, 199), Duration::ZERO, "the last one took 4 ms");
        assert_eq!(look(&mut pace, 350, 1), A_PAGE);
        assert_eq!(look(&mut pace, 400, 0), LOOK, "it has become idle");
    }
}
