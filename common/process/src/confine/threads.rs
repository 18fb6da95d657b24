//! The threads of a process that has started none of its own: the system's first one, and the program's.

use std::fs;
use std::time::{Duration, Instant};

use super::Layer;
use crate::stack;

/// How long threads that are about to end may take.
const PATIENCE: Duration = Duration::from_secs(1);

/// How often they are counted.
const RETRY: Duration = Duration::from_millis(2);

/// Waits until there are no others than these. Returns how many there still are after a moment.
pub(super) fn wait_for_others() -> usize {
    let own = 1 + usize::from(stack::has_first_thread());
    let deadline = Instant::now() + PATIENCE;
    loop {
        let all = fs::read_dir("/proc/self/task").map_or(own, Iterator::count);
        if all <= own || Instant::now() >= deadline {
            return all.saturating_sub(own);
        }
        std::thread::sleep(RETRY);
    }
}

/// Does this on each of them.
pub(super) fn on_each<T: Send + 'static>(work: impl Fn() -> T + Clone + Send + 'static) -> Vec<T> {
    let first = stack::on_first_thread(work.clone());
    first.into_iter().chain([work()]).collect()
}

/// What each thread had to do for itself holds, unless there are others.
pub(super) fn all_or_partly(layer: &'static str, others: usize) -> Layer {
    match others {
        0 => Layer::holds(layer),
        _ => Layer::partly(layer, format!("{others} threads that did not end before are not confined")),
    }
}
