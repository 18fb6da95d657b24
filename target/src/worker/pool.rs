//! The threads, the tasks that wait for one, and the deadlines of all.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::SigSet;
use ringfab_base::VisiblePath as _;

use super::task::{Hanging, Task, WorkError};

/// Threads, those among them that hang.
const THREADS_MAX: usize = 32;

/// Threads that stay when there is nothing to do.
const IDLE_MAX: usize = 4;

/// Tasks that wait for a thread.
const WAITING_MAX: usize = 256;

/// Tasks that take longer than this are shown.
const SHOWN_AFTER: Duration = Duration::from_secs(1);

/// A pool of threads.
#[derive(Default)]
pub(super) struct Pool {
    state: Mutex<State>,
    /// A task waits for a thread.
    waiting: Condvar,
    /// There is a deadline that may be nearer than the others.
    deadline: Condvar,
    /// A task has ended.
    ended: Condvar,
}

#[derive(Default)]
struct State {
    /// Tasks that wait for a thread, oldest first.
    waiting: VecDeque<(u64, Job)>,
    /// All tasks that have not ended, oldest first.
    tasks: BTreeMap<u64, Running>,
    next: u64,
    threads: usize,
    idle: usize,
    /// Threads of an earlier generation end as soon as they have nothing to do.
    generation: u64,
    /// Whether a thread looks at the deadlines.
    timekeeper: bool,
}

struct Running {
    task: Task,
    since: Instant,
    /// Answers the asker in its place when its time is over; none when that has happened: nobody waits for it any more.
    expire: Option<Box<dyn FnOnce(WorkError) + Send>>,
}

/// Does the work, and answers the asker if that still waits.
type Job = Box<dyn FnOnce(&Pool) + Send>;

impl Pool {
    /// Has a thread do `work`, and waits for the result until the task's limit.
    pub(super) fn wait<T: Send + 'static>(
        self: &Arc<Self>,
        task: Task,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, WorkError> {
        let (sender, result) = mpsc::sync_channel(1);
        let (what, path, limit) = (task.what, task.on.clone(), task.limit);
        let answer = move |outcome| drop(sender.send(outcome));
        let number = self.enqueue(task, work, answer)?;
        let outcome = match result.recv_timeout(limit) {
            Err(RecvTimeoutError::Timeout) => {
                self.expire(number);
                // The answer is that it took too long, or came just now.
                result.recv().ok()
            }
            outcome => outcome.ok(),
        };
        outcome.unwrap_or(Err(WorkError::Panicked { what, path }))
    }

    /// Has a thread do `work`, and `answer` called with the result or why there is none: on a thread of the pool, once.
    pub(super) fn submit<T: Send + 'static>(
        self: &Arc<Self>,
        task: Task,
        work: impl FnOnce() -> T + Send + 'static,
        answer: impl FnOnce(Result<T, WorkError>) + Send + 'static,
    ) -> Result<(), WorkError> {
        self.keep_time()?;
        self.enqueue(task, work, answer)?;
        self.deadline.notify_one();
        Ok(())
    }

    /// Tasks that have not ended for a while, oldest first.
    pub(super) fn hanging(&self) -> Vec<Hanging> {
        let state = self.state();
        let slow = state.tasks.values().filter(|one| one.since.elapsed() >= SHOWN_AFTER);
        slow.map(Running::shown).collect()
    }

    /// Lets all threads end: those that have nothing to do now, and others when they have done what they are at.
    pub(super) fn retire(&self) {
        let mut state = self.state();
        state.generation += 1;
        // They are not there for work that comes before they have ended.
        state.idle = 0;
        drop(state);
        self.waiting.notify_all();
    }

    /// Waits until the tasks that must finish have ended, and no longer than `limit`. Returns those that have not.
    pub(super) fn finish(&self, limit: Duration) -> Vec<Hanging> {
        let unfinished = |state: &mut State| state.tasks.values().any(|one| one.task.must_finish);
        let waited = self.ended.wait_timeout_while(self.state(), limit, unfinished);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.tasks.values().filter(|one| one.task.must_finish).map(Running::shown).collect()
    }

    fn enqueue<T: Send + 'static>(
        self: &Arc<Self>,
        task: Task,
        work: impl FnOnce() -> T + Send + 'static,
        answer: impl FnOnce(Result<T, WorkError>) + Send + 'static,
    ) -> Result<u64, WorkError> {
        // Whoever takes it answers: the work's end, or its deadline.
        let answer = Arc::new(Mutex::new(Some(answer)));
        let late = Arc::clone(&answer);
        let expire = move |error| {
            if let Some(answer) = take(&late) {
                answer(Err(error));
            }
        };
        let panicked = WorkError::Panicked { what: task.what, path: task.on.clone() };
        let mut state = self.state();
        let number = state.next;
        let job = move |pool: &Self| {
            let done = catch_unwind(AssertUnwindSafe(work)).map_err(|_| panicked);
            match take(&answer) {
                Some(answer) => {
                    pool.forget(number);
                    answer(done);
                }
                // Nobody takes it: what it holds is let go of before anybody tries again.
                None => {
                    drop(done);
                    pool.forget(number);
                }
            }
        };
        state.admit(&task)?;
        self.find_thread(&mut state)?;
        state.next += 1;
        let running = Running { task, since: Instant::now(), expire: Some(Box::new(expire)) };
        state.tasks.insert(number, running);
        state.waiting.push_back((number, Box::new(job)));
        drop(state);
        self.waiting.notify_one();
        Ok(number)
    }

    /// The time of a task is over: its asker is told, and nobody waits for it any more.
    fn expire(&self, number: u64) {
        let mut state = self.state();
        let Some(running) = state.tasks.get_mut(&number) else { return };
        let Some(expire) = running.expire.take() else { return };
        let Task { what, on: path, limit, .. } = running.task.clone();
        let never_begun = state.waiting.iter().position(|(waiting, _)| *waiting == number);
        if let Some(index) = never_begun {
            // What was not begun is not begun any more.
            let _job = state.waiting.remove(index);
            state.tasks.remove(&number);
        }
        drop(state);
        tracing::warn!(what, path = %path.visible(), ?limit, "a file or server does not answer; its task is given up");
        expire(WorkError::Hangs { what, path, limit });
    }

    /// A task has ended.
    fn forget(&self, number: u64) {
        self.state().tasks.remove(&number);
        self.ended.notify_all();
    }

    /// Sees to it that there is a thread for one more task, unless as many as may be are busy.
    fn find_thread(self: &Arc<Self>, state: &mut State) -> Result<(), WorkError> {
        if state.idle > state.waiting.len() || state.threads >= THREADS_MAX {
            return Ok(());
        }
        let generation = state.generation;
        self.start("files", move |pool| pool.work(generation)).map(|()| state.threads += 1)
    }

    /// Sees to it that a thread looks at the deadlines.
    fn keep_time(self: &Arc<Self>) -> Result<(), WorkError> {
        let mut state = self.state();
        if !state.timekeeper {
            self.start("deadlines", Self::watch)?;
            state.timekeeper = true;
        }
        Ok(())
    }

    fn start(
        self: &Arc<Self>,
        name: &str,
        run: impl FnOnce(&Self) + Send + 'static,
    ) -> Result<(), WorkError> {
        let this = Arc::clone(self);
        let run = move || {
            // Signals are for the thread that takes them.
            if let Err(error) = SigSet::all().thread_block() {
                tracing::debug!(%error, "a worker may be interrupted by signals");
            }
            run(&this);
        };
        let spawned = thread::Builder::new().name(name.to_owned()).spawn(run);
        let refused =
            |error: io::Error| WorkError::NoThread { kind: error.kind(), reason: error.to_string() };
        spawned.map(drop).map_err(refused)
    }

    /// A thread that does one task after the other.
    fn work(&self, generation: u64) {
        while let Some(job) = self.next_job(generation) {
            job(self);
        }
    }

    /// Work for a thread of a generation; none when it shall end.
    fn next_job(&self, generation: u64) -> Option<Job> {
        let mut state = self.state();
        loop {
            if state.generation != generation {
                state.threads -= 1;
                return None;
            }
            if let Some((_, job)) = state.waiting.pop_front() {
                return Some(job);
            }
            if state.idle >= IDLE_MAX {
                state.threads -= 1;
                return None;
            }
            state.idle += 1;
            state = self.waiting.wait(state).unwrap_or_else(PoisonError::into_inner);
            if state.generation == generation {
                state.idle -= 1;
            }
        }
    }

    /// The thread that tells askers when their time is over.
    fn watch(&self) {
        let mut state = self.state();
        loop {
            let now = Instant::now();
            let deadlines = state.tasks.iter().filter(|(_, one)| one.expire.is_some());
            let next = deadlines.map(|(number, one)| (one.since + one.task.limit, *number)).min();
            state = match next {
                None => self.deadline.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some((at, number)) if at <= now => {
                    drop(state);
                    self.expire(number);
                    self.state()
                }
                Some((at, _)) => {
                    let waited = self.deadline.wait_timeout(state, at - now);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn take<A>(answer: &Mutex<Option<A>>) -> Option<A> {
    answer.lock().unwrap_or_else(PoisonError::into_inner).take()
}

impl State {
    /// Whether one more task can be taken.
    fn admit(&self, task: &Task) -> Result<(), WorkError> {
        let hangs = |one: &&Running| one.expire.is_none() && one.task.on == task.on;
        if let Some(one) = self.tasks.values().find(hangs) {
            let Hanging { what, path, seconds } = one.shown();
            return Err(WorkError::StillHangs { what, path, seconds });
        }
        if self.waiting.len() >= WAITING_MAX {
            let oldest = self.tasks.values().next().map(|one| one.task.on.as_path());
            let path = oldest.unwrap_or(Path::new("")).to_owned();
            return Err(WorkError::Full { waiting: WAITING_MAX, path });
        }
        Ok(())
    }
}

impl Running {
    fn shown(&self) -> Hanging {
        let seconds = self.since.elapsed().as_secs();
        Hanging { what: self.task.what, path: self.task.on.clone(), seconds }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::resume_unwind;

    use super::*;

    const SHORT: Duration = Duration::from_millis(50);
    const LONG: Duration = Duration::from_secs(30);

    fn pool() -> Arc<Pool> {
        Arc::default()
    }

    fn task(on: &str, limit: Duration) -> Task {
        Task::new("opening", on, limit)
    }

    /// Waits until something is so.
    fn until(what: &str, mut is_so: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < LONG, "{what}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn what_returns_in_time_has_a_result() {
        assert_eq!(pool().wait(task("/in-time", LONG), || 1 + 1), Ok(2));
    }

    #[test]
    fn what_hangs_is_left_alone_and_named_and_its_path_is_not_tried_again_before_it_returns() {
        let pool = pool();
        let (go_on, waits) = mpsc::channel::<()>();
        let error = pool.wait(task("/hangs", SHORT), move || waits.recv().is_ok()).expect_err("hangs");
        assert!(error.to_string().starts_with("opening /hangs has not returned within 0.05 s"), "{error}");
        let error = pool.wait(task("/hangs", LONG), || ()).expect_err("it still hangs");
        assert!(matches!(error, WorkError::StillHangs { .. }), "{error}");
        assert_eq!(pool.wait(task("/other", LONG), || 3), Ok(3), "others go on");
        until("it is never shown", || pool.hanging().iter().any(|one| one.what == "opening"));
        go_on.send(()).expect("it waits for that");
        until("it is never tried again", || pool.wait(task("/hangs", LONG), || ()).is_ok());
        assert_eq!(pool.hanging(), []);
    }

    #[test]
    fn who_goes_on_is_answered_once_by_the_result_or_by_the_deadline() {
        let pool = pool();
        let (sender, answers) = mpsc::channel();
        let answer = |name: &'static str| {
            let sender = sender.clone();
            move |outcome: Result<u32, WorkError>| sender.send((name, outcome)).expect("the test listens")
        };
        let (go_on, waits) = mpsc::channel::<()>();
        let hang = move || waits.recv().map_or(1, |()| 2);
        pool.submit(task("/hangs", SHORT), hang, answer("hangs")).expect("taken");
        pool.submit(task("/works", LONG), || 7, answer("works")).expect("taken");
        let mut all = [answers.recv().expect("one"), answers.recv().expect("two")];
        all.sort_by_key(|(name, _)| *name);
        assert!(matches!(all[0], ("hangs", Err(WorkError::Hangs { .. }))), "{:?}", all[0]);
        assert_eq!(all[1], ("works", Ok(7)));
        go_on.send(()).expect("it waits for that");
        until("it never ends", || pool.state().tasks.is_empty());
        assert!(answers.try_recv().is_err(), "answered twice");
    }

    #[test]
    fn threads_that_retire_end_when_they_have_done_what_they_are_at_and_others_take_over() {
        let pool = pool();
        let (go_on, waits) = mpsc::channel::<()>();
        pool.submit(task("/hangs", LONG), move || waits.recv().is_ok(), |_| ()).expect("taken");
        assert_eq!(pool.wait(task("/other", LONG), || 1), Ok(1));
        until("it is at work", || pool.state().waiting.is_empty());
        pool.retire();
        assert_eq!(pool.wait(task("/other", LONG), || 2), Ok(2));
        until("only the one at work is left beside the new one", || pool.state().threads == 2);
        go_on.send(()).expect("it waits for that");
        until("it ends, too", || pool.state().threads == 1 && pool.state().idle == 1);
    }

    #[test]
    fn a_panic_is_an_answer_and_costs_no_thread() {
        let pool = pool();
        // Each that took its thread with it would leave none. They say nothing: a backtrace can take a busy machine
        // longer than the task has.
        for _ in 0..2 * THREADS_MAX {
            let error = pool.wait(task("/panics", LONG), || resume_unwind(Box::new("on purpose")));
            assert!(matches!(error, Err::<(), _>(WorkError::Panicked { .. })), "{error:?}");
        }
        until("idle threads end", || pool.state().threads <= IDLE_MAX);
    }

    #[test]
    fn tasks_beyond_the_threads_wait_in_order_and_beyond_the_bound_are_refused() {
        let pool = pool();
        let gate = Arc::new((Mutex::new(false), Condvar::new()));
        let (sender, answers) = mpsc::channel();
        let ask = |number: usize| {
            let (gate, sender) = (Arc::clone(&gate), sender.clone());
            let work = move || {
                let (open, opened) = &*gate;
                drop(opened.wait_while(open.lock().expect("no panic"), |open| !*open));
                number
            };
            pool.submit(task(&format!("/{number}"), LONG), work, move |outcome| drop(sender.send(outcome)))
        };
        (0..THREADS_MAX).for_each(|number| ask(number).expect("a thread"));
        until("all threads are busy", || pool.state().waiting.is_empty());
        (0..WAITING_MAX).for_each(|number| ask(THREADS_MAX + number).expect("room"));
        let error = ask(9999).expect_err("full");
        assert!(matches!(error, WorkError::Full { waiting: WAITING_MAX, .. }), "{error}");
        // What never gets a thread is not begun after its time.
        let late = pool.state().waiting.len();
        drop(pool.state().waiting.pop_back());
        let error = pool.wait(task("/late", SHORT), || unreachable!("it is not begun"));
        assert!(matches!(error, Err::<(), _>(WorkError::Hangs { .. })), "{error:?}");
        assert_eq!(pool.state().waiting.len(), late - 1);
        *gate.0.lock().expect("no panic") = true;
        gate.1.notify_all();
        let count = THREADS_MAX + WAITING_MAX - 1;
        let all: Vec<usize> = answers.iter().take(count).map(|one| one.expect("done")).collect();
        assert_eq!(all.len(), count);
        until("idle threads end", || pool.state().threads <= IDLE_MAX);
    }

    #[test]
    fn the_end_waits_for_what_must_finish_and_for_nothing_else() {
        let pool = pool();
        let (go_on, waits) = mpsc::channel::<()>();
        let (end, waits_too) = mpsc::channel::<()>();
        pool.submit(task("/hangs", LONG), move || waits_too.recv().is_ok(), |_| ()).expect("taken");
        assert_eq!(pool.finish(LONG), [], "what may hang is abandoned");
        let written = task("/written", SHORT).must_finish();
        let error = pool.wait(written, move || waits.recv().is_ok()).expect_err("slow");
        assert!(matches!(error, WorkError::Hangs { .. }), "{error}");
        assert_eq!(pool.finish(SHORT).len(), 1, "also when its asker has given up");
        let finish = thread::spawn({
            let pool = Arc::clone(&pool);
            move || pool.finish(LONG)
        });
        go_on.send(()).expect("it waits for that");
        assert_eq!(finish.join().expect("no panic"), []);
        end.send(()).expect("it waits for that");
    }
}
