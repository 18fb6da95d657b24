//! Slow work: everything that touches a file system, or that may compute for long, runs on a thread of a small pool.
//!
//! A core starts a task and continues; the result comes back as a message. A thread of the control side waits for the
//! result. Each [`Task`] has a time limit. After the limit, its owner gets the error that it hangs. The task keeps its
//! thread, `status` shows it, and its result is dropped. Meanwhile no other task starts for the same file. A task that
//! gets no thread within its limit never begins. The end of the process waits only for tasks that [must
//! finish](Task::must_finish).
//!
//! | what is bounded | how |
//! | --- | --- |
//! | threads | 32, those that hang among them; four stay when there is nothing to do |
//! | tasks that wait for a thread | 256; one more is refused |
//! | the time of a task | its limit, from the moment of asking |
//!
//! What hosts compute to authenticate has threads and turns of its own: `computing`.

mod background;
mod computing;
mod pool;
mod task;

use std::collections::VecDeque;
use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use computing::Computing;
use pool::Pool;

pub use computing::Interest;
pub use task::{Hanging, Task, WorkError};

/// The pool of this process. Threads that hang belong to the process anyway.
static PROCESS: LazyLock<Arc<Pool>> = LazyLock::new(Arc::default);

/// What this process computes for hosts that authenticate: what takes little, and what takes much. A computation that
/// has begun is not interrupted. So what takes a millisecond does not wait behind what takes tens of them, of which
/// whoever reaches a listener can ask for many.
static COMPUTING: LazyLock<[Arc<Computing>; 2]> = LazyLock::new(Default::default);

/// The most that takes little: ffdhe4096 and all that is faster.
const LITTLE: Duration = Duration::from_millis(5);

/// Who does slow work for a core.
#[derive(Clone)]
pub struct Workers(Kind);

#[derive(Clone)]
enum Kind {
    Threads(Arc<Pool>),
    Stepped(Steps),
}

impl Workers {
    /// The threads of this process.
    pub fn of_process() -> Self {
        Self(Kind::Threads(Arc::clone(&PROCESS)))
    }

    /// Work that is done when the caller says so, for simulations.
    pub fn stepped() -> (Self, Steps) {
        let steps = Steps::default();
        (Self(Kind::Stepped(steps.clone())), steps)
    }

    /// Has `work` done and returns at once. `answer` is called once, on a thread of the pool, with the result or with
    /// the reason why there is none. It must not block.
    ///
    /// # Errors
    /// When the task is not taken; `answer` is not called then.
    pub fn submit<T: Send + 'static>(
        &self,
        task: Task,
        work: impl FnOnce() -> T + Send + 'static,
        answer: impl FnOnce(Result<T, WorkError>) + Send + 'static,
    ) -> Result<(), WorkError> {
        match &self.0 {
            Kind::Threads(pool) => pool.submit(task, work, answer),
            Kind::Stepped(steps) => {
                steps.waiting().push_back(Box::new(move || answer(Ok(work()))));
                Ok(())
            }
        }
    }

    /// Has `work`, which takes about as long as `cost`, computed for a host at the address `from`, in turns with other
    /// addresses, and returns at once. `answer` is called once, on another thread, unless nobody is interested any
    /// more. It must not block. Where processors are busy, `work` may be done twice, with the same result.
    ///
    /// # Errors
    /// When there is no thread; `answer` is not called then.
    pub fn compute<T: Send + 'static>(
        &self,
        from: IpAddr,
        cost: Duration,
        interest: &Interest,
        work: impl Fn() -> T + Send + Sync + 'static,
        answer: impl FnOnce(Result<T, WorkError>) + Send + 'static,
    ) -> Result<(), WorkError> {
        match &self.0 {
            Kind::Threads(_) => {
                COMPUTING[usize::from(cost > LITTLE)].submit(from, cost, interest, work, answer)
            }
            Kind::Stepped(steps) => {
                steps.waiting().push_back(Box::new(move || answer(Ok(work()))));
                Ok(())
            }
        }
    }
}

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Workers")
    }
}

/// The work of a simulation, which is done step by step.
#[derive(Clone, Default)]
pub struct Steps(Arc<Mutex<VecDeque<Step>>>);

type Step = Box<dyn FnOnce() + Send>;

impl Steps {
    /// Does what was asked for first, and answers. Returns whether there was something.
    pub fn run_one(&self) -> bool {
        let step = self.waiting().pop_front();
        step.map(|step| step()).is_some()
    }

    /// How much waits to be done.
    pub fn count(&self) -> usize {
        self.waiting().len()
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<Step>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Steps({})", self.count())
    }
}

/// Has a thread do `work`, which is `what` to `path`, and waits no longer than `limit`. Not for cores.
///
/// # Errors
/// When it takes longer, or there is no thread for it. The work may happen all the same.
pub fn within<T: Send + 'static>(
    what: &'static str,
    path: &Path,
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, WorkError> {
    wait(Task::new(what, path, limit), work)
}

/// Has a thread do a task, and waits no longer than its limit. Not for cores.
///
/// # Errors
/// When it takes longer, or there is no thread for it. The work may happen all the same.
pub fn wait<T: Send + 'static>(
    task: Task,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, WorkError> {
    PROCESS.wait(task, work)
}

/// The tasks that have not ended for a while, oldest first.
pub fn hanging() -> Vec<Hanging> {
    PROCESS.hanging()
}

/// Lets threads go that have nothing to do, so that what is restricted from now on holds for all threads. Later work
/// starts others.
pub fn retire() {
    PROCESS.retire();
}

/// Waits until what must finish has, and no longer than `limit`; for the end of the process. Returns what has not.
pub fn finish(limit: Duration) -> Vec<Hanging> {
    PROCESS.finish(limit)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn work_of_a_simulation_is_done_when_it_is_told_to_and_in_order() {
        let (workers, steps) = Workers::stepped();
        let seen = Arc::new(AtomicU32::new(0));
        for number in 1..=2 {
            let seen = Arc::clone(&seen);
            let answer = move |outcome: Result<u32, WorkError>| {
                seen.store(seen.load(Ordering::Relaxed) * 10 + outcome.expect("done"), Ordering::Relaxed);
            };
            workers.submit(Task::new("adding", "it", Duration::ZERO), move || number, answer).expect("taken");
        }
        assert_eq!((seen.load(Ordering::Relaxed), steps.count()), (0, 2));
        assert!(steps.run_one() && steps.run_one() && !steps.run_one());
        assert_eq!(seen.load(Ordering::Relaxed), 12);
    }

    #[test]
    fn what_takes_little_does_not_wait_for_what_takes_much_and_has_begun() {
        let (workers, interest) = (Workers::of_process(), Interest::default());
        let (sender, answers) = std::sync::mpsc::channel();
        let gate = Arc::new((Mutex::new(false), std::sync::Condvar::new()));
        let from = |last| Ipv4Addr::new(192, 0, 2, last).into();
        let compute = |last, cost, held: bool| {
            let (gate, sender) = (Arc::clone(&gate), sender.clone());
            let work = move || {
                let (open, opened) = &*gate;
                if held {
                    drop(opened.wait_while(open.lock().expect("no panic"), |open| !*open));
                }
                last
            };
            let answer = move |outcome: Result<u8, WorkError>| {
                sender.send(outcome.expect("computed")).expect("the test listens");
            };
            workers.compute(from(last), cost, &interest, work, answer).expect("taken");
        };
        // As many as there may be threads, from as many addresses, and more that wait.
        for last in 0..100 {
            compute(last, LITTLE * 3, true);
        }
        compute(200, LITTLE, false);
        assert_eq!(answers.recv().expect("the one that takes little"), 200);
        assert!(answers.try_recv().is_err(), "the others are still at it");
        *gate.0.lock().expect("no panic") = true;
        gate.1.notify_all();
        assert_eq!(answers.iter().take(100).count(), 100);
    }
}
