//! A thread that computes when a processor has nothing else to do, and what is done when none has.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use ringfab_reactor::run_when_idle;

/// A computation that takes so many times as long as it should gets no processor to itself, and is begun again by who
/// waits for it.
const PATIENCE: u32 = 10;
const PATIENCE_LEAST: Duration = Duration::from_millis(10);

/// Its work panicked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Panicked;

type Job = Box<dyn FnOnce() + Send>;

/// A thread of the lowest priority, which belongs to another one that waits for its results.
///
/// It is taken off its processor whenever another thread wants that, wherever it is. So it holds no lock that others
/// take: it gets work and gives results through channels, and all else is done by the thread that it belongs to.
pub(super) struct Background {
    /// None without a thread.
    jobs: Option<Sender<Job>>,
    is_busy: Arc<AtomicBool>,
}

impl Background {
    /// Starts the thread. Without one, all is computed by who asks.
    pub(super) fn start(name: &str) -> Self {
        let (jobs, work) = channel::<Job>();
        let run = move || {
            if let Err(error) = run_when_idle() {
                tracing::debug!(%error, "authentication has a part of the processors that others want");
            }
            work.into_iter().for_each(|job| job());
        };
        let started = thread::Builder::new().name(name.to_owned()).spawn(run);
        let jobs = started.inspect_err(|error| tracing::debug!(%error, "no thread")).is_ok().then_some(jobs);
        Self { jobs, is_busy: Arc::default() }
    }

    /// The result of `work`, which takes about so long: of the thread, or of the calling one where that gets no
    /// processor.
    pub(super) fn compute<T: Send + 'static>(
        &self,
        cost: Duration,
        work: impl Fn() -> T + Send + Sync + 'static,
    ) -> Result<T, Panicked> {
        let work = Arc::new(work);
        let by_thread = self.by_thread((PATIENCE * cost).max(PATIENCE_LEAST), &work);
        by_thread.unwrap_or_else(|| caught(&*work))
    }

    /// The result of the thread, if it has one in time.
    fn by_thread<T: Send + 'static>(
        &self,
        patience: Duration,
        work: &Arc<impl Fn() -> T + Send + Sync + 'static>,
    ) -> Option<Result<T, Panicked>> {
        // It may still be at what it was not waited for.
        let jobs = self.jobs.as_ref().filter(|_| !self.is_busy.swap(true, Ordering::AcqRel))?;
        let (sender, result) = channel();
        let (work, is_busy) = (Arc::clone(work), Arc::clone(&self.is_busy));
        let job = move || {
            let computed = caught(&*work);
            drop(work);
            is_busy.store(false, Ordering::Release);
            // Nobody waits any more when it took too long.
            let _sent = sender.send(computed);
        };
        jobs.send(Box::new(job)).ok()?;
        result.recv_timeout(patience).ok()
    }
}

fn caught<T>(work: impl Fn() -> T) -> Result<T, Panicked> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|_| Panicked)
}

#[cfg(test)]
mod tests {
    use std::panic::resume_unwind;
    use std::sync::Mutex;
    use std::sync::atomic::AtomicU32;

    use super::*;

    const SHORT: Duration = Duration::from_millis(1);

    fn name() -> Option<String> {
        thread::current().name().map(str::to_owned)
    }

    #[test]
    fn the_thread_computes_and_survives_a_panic() {
        let background = Background::start("background");
        let patient = Duration::from_secs(10);
        assert_eq!(background.compute(patient, name), Ok(Some("background".to_owned())));
        // Without a word: what a panic prints is much work for a thread that runs only when nobody else does.
        let panics = || resume_unwind(Box::new("on purpose"));
        assert_eq!(background.compute(patient, panics), Err::<(), _>(Panicked));
        assert_eq!(background.compute(patient, name), Ok(Some("background".to_owned())));
    }

    #[test]
    fn who_waits_computes_while_the_thread_gets_nowhere_and_no_longer() {
        let background = Background::start("background");
        let (held, runs) = (Arc::new(Mutex::new(())), Arc::new(AtomicU32::new(0)));
        let guard = held.lock().expect("free");
        let (lock, count) = (Arc::clone(&held), Arc::clone(&runs));
        // The thread is stopped in the middle, as a scheduler would do.
        let work = move || {
            if name().as_deref() == Some("background") {
                drop(lock.lock());
            }
            count.fetch_add(1, Ordering::Relaxed);
            name()
        };
        let here = name();
        assert_eq!(background.compute(SHORT, work), Ok(here.clone()));
        assert_eq!(background.compute(SHORT, name), Ok(here), "it is still at the first");
        drop(guard);
        while background.is_busy.load(Ordering::Acquire) {
            thread::sleep(SHORT);
        }
        assert_eq!(background.compute(Duration::from_secs(10), name), Ok(Some("background".to_owned())));
        assert_eq!(runs.load(Ordering::Relaxed), 2, "both have computed it");
    }

    #[test]
    fn without_a_thread_who_asks_computes() {
        let background = Background { jobs: None, is_busy: Arc::default() };
        assert_eq!(background.compute(SHORT, name), Ok(name()));
    }
}
