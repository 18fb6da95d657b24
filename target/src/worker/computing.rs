//! Computations for hosts that authenticate: when processors have nothing else to do, and in turns by address.
//!
//! Anyone who reaches a listener can ask for a computation, under any name. Each may take tens of milliseconds. So an
//! address that asks for many must not delay others, and all of them must not delay the cores:
//!
//! | what | rule |
//! | --- | --- |
//! | threads | one for each four processors, of low priority, with one each of the lowest that computes: [`Background`] |
//! | where all processors are busy | what takes ten times as long as it should is computed with low priority |
//! | whose turn it is | of the address that will have used the least time lately, with what it asks for (with IPv6: of the /64 network). So what takes little goes before what takes much |
//! | of one address | what it asked for last: what has waited long belongs to hosts that may have given up |
//! | how many wait | [`WAITING_MAX`]; the oldest of the address that has most gives way |

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::SigSet;
use ringfab_fabric::network_of;

use super::background::{Background, Panicked};
use super::task::WorkError;

/// Computations that wait for a thread.
const WAITING_MAX: usize = 1024;

/// Addresses that are known to have used time, although nothing of theirs waits.
const KNOWN_MAX: usize = 1024;

/// After this time, what an address has used counts half.
const HALF_LIFE: Duration = Duration::from_secs(30);

/// How little the threads take of a processor that others want: a ninth of what a core may have.
const NICE: i32 = 10;

/// Who wants a result. Nothing is computed for somebody who is not there any more.
pub type Interest = Arc<()>;

/// The computations of a process.
#[derive(Default)]
pub(super) struct Computing {
    state: Mutex<State>,
    /// Something waits.
    waiting: Condvar,
}

#[derive(Default)]
struct State {
    lines: BTreeMap<IpAddr, Line>,
    /// In all lines.
    waiting: usize,
    threads: usize,
    idle: usize,
    /// How many have been taken.
    taken: u64,
}

/// What one address wants, and has used.
struct Line {
    /// Oldest first.
    jobs: VecDeque<Job>,
    /// The time that it has used, as of `at`.
    used: Duration,
    at: Instant,
    /// When it had its last turn.
    last: u64,
}

struct Job {
    wanted: Weak<()>,
    /// About how long it takes.
    cost: Duration,
    run: Box<dyn FnOnce(Turn<'_>) + Send>,
}

/// What becomes of a computation.
#[derive(Clone, Copy)]
enum Turn<'a> {
    Compute(&'a Background),
    GiveWay,
}

impl Computing {
    /// Has a thread do `work`, and `answer` called with the result, or why there is none: once, unless nobody is
    /// interested any more.
    pub(super) fn submit<T: Send + 'static>(
        self: &Arc<Self>,
        from: IpAddr,
        cost: Duration,
        interest: &Interest,
        work: impl Fn() -> T + Send + Sync + 'static,
        answer: impl FnOnce(Result<T, WorkError>) + Send + 'static,
    ) -> Result<(), WorkError> {
        let run = move |turn: Turn<'_>| {
            answer(match turn {
                Turn::Compute(background) => {
                    background.compute(cost, work).map_err(|Panicked| WorkError::ComputationPanicked)
                }
                Turn::GiveWay => Err(WorkError::GaveWay { waiting: WAITING_MAX }),
            });
        };
        let job = Job { wanted: Arc::downgrade(interest), cost, run: Box::new(run) };
        self.find_thread()?;
        let given_way = self.state().enqueue(network_of(from), job, Instant::now());
        self.waiting.notify_one();
        if let Some(job) = given_way {
            (job.run)(Turn::GiveWay);
        }
        Ok(())
    }

    /// Sees to it that there is a thread for one more, unless there are as many as may be.
    fn find_thread(self: &Arc<Self>) -> Result<(), WorkError> {
        let mut state = self.state();
        if state.idle > state.waiting || state.threads >= threads_max() {
            return Ok(());
        }
        let this = Arc::clone(self);
        let run = move || this.work();
        let spawned = thread::Builder::new().name("authentication".to_owned()).spawn(run);
        spawned.map_err(|error| WorkError::NoThread { kind: error.kind(), reason: error.to_string() })?;
        state.threads += 1;
        Ok(())
    }

    /// A thread that has one after the other computed.
    fn work(&self) -> ! {
        // Signals are for the thread that takes them.
        if let Err(error) = SigSet::all().thread_block() {
            tracing::debug!(%error, "a worker may be interrupted by signals");
        }
        // Of Linux, a priority is that of a thread.
        if let Err(error) = rustix::process::setpriority_process(None, NICE) {
            tracing::debug!(%error, "authentication has the priority of cores");
        }
        let background = Background::start("auth-compute");
        loop {
            let (network, job) = self.next();
            let begun = Instant::now();
            (job.run)(Turn::Compute(&background));
            self.state().used(network, begun.elapsed());
        }
    }

    fn next(&self) -> (IpAddr, Job) {
        let mut state = self.state();
        loop {
            if let Some(next) = state.take_next(Instant::now()) {
                return next;
            }
            state.idle += 1;
            state = self.waiting.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The rest of the processors is for cores.
fn threads_max() -> usize {
    thread::available_parallelism().map_or(1, |processors| processors.get().div_ceil(4))
}

impl State {
    /// Puts a job in the line of its address. Returns the one that gives way to it.
    fn enqueue(&mut self, network: IpAddr, job: Job, now: Instant) -> Option<Job> {
        self.forget_idle(now);
        let line = self.lines.entry(network).or_insert_with(|| Line::new(now));
        line.jobs.push_back(job);
        self.waiting += 1;
        if self.waiting <= WAITING_MAX {
            return None;
        }
        self.lines.values_mut().for_each(|line| line.jobs.retain(|job| job.wanted.strong_count() > 0));
        self.waiting = self.lines.values().map(|line| line.jobs.len()).sum();
        let longest = self.lines.values_mut().max_by_key(|line| line.jobs.len());
        let given_way = longest.filter(|_| self.waiting > WAITING_MAX).and_then(|line| line.jobs.pop_front());
        self.waiting -= usize::from(given_way.is_some());
        given_way
    }

    /// The job whose turn it is.
    fn take_next(&mut self, now: Instant) -> Option<(IpAddr, Job)> {
        loop {
            let lines = self.lines.iter_mut();
            let waiting = lines.filter_map(|(network, line)| {
                let after = line.used_lately(now) + line.jobs.back()?.cost;
                Some(((after, line.last), network, line))
            });
            let (_, network, line) = waiting.min_by_key(|(order, ..)| *order)?;
            let job = line.jobs.pop_back()?;
            self.waiting -= 1;
            if job.wanted.strong_count() > 0 {
                self.taken += 1;
                line.last = self.taken;
                return Some((*network, job));
            }
        }
    }

    /// An address has used so much time.
    fn used(&mut self, network: IpAddr, time: Duration) {
        if let Some(line) = self.lines.get_mut(&network) {
            let now = Instant::now();
            (line.used, line.at) = (line.used_lately(now) + time, now);
        }
    }

    /// Forgets the address that has used least, when too many are known.
    fn forget_idle(&mut self, now: Instant) {
        if self.lines.len() < KNOWN_MAX + self.waiting {
            return;
        }
        let idle = self.lines.iter().filter(|(_, line)| line.jobs.is_empty());
        if let Some(network) = idle.min_by_key(|(_, line)| line.used_lately(now)).map(|(network, _)| *network)
        {
            self.lines.remove(&network);
        }
    }
}

impl Line {
    fn new(now: Instant) -> Self {
        Self { jobs: VecDeque::new(), used: Duration::ZERO, at: now, last: 0 }
    }

    /// The time that it has used, of which what is long ago counts less.
    fn used_lately(&self, now: Instant) -> Duration {
        let age = now.saturating_duration_since(self.at).as_secs_f64() / HALF_LIFE.as_secs_f64();
        self.used.mul_f64((-age).exp2())
    }
}

#[cfg(test)]
mod tests {
    use std::panic::resume_unwind;
    use std::sync::mpsc;

    use super::*;

    fn address(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Became {
        Computed,
        Refused,
    }

    impl From<Turn<'_>> for Became {
        fn from(turn: Turn<'_>) -> Self {
            match turn {
                Turn::Compute(_) => Self::Computed,
                Turn::GiveWay => Self::Refused,
            }
        }
    }

    struct Test {
        state: State,
        now: Instant,
        interest: Interest,
        sender: mpsc::Sender<(u32, Became)>,
        seen: mpsc::Receiver<(u32, Became)>,
        background: Background,
    }

    impl Test {
        fn new() -> Self {
            let (sender, seen) = mpsc::channel();
            Self {
                state: State::default(),
                now: Instant::now(),
                interest: Interest::default(),
                sender,
                seen,
                background: Background::start("background"),
            }
        }

        fn ask(&mut self, from: u8, number: u32, cost: Duration, interest: &Interest) {
            let sender = self.sender.clone();
            let run = Box::new(move |turn: Turn<'_>| {
                sender.send((number, Became::from(turn))).expect("the test listens");
            });
            let job = Job { wanted: Arc::downgrade(interest), cost, run };
            if let Some(job) = self.state.enqueue(address(from), job, self.now) {
                (job.run)(Turn::GiveWay);
            }
        }

        fn ask_for(&mut self, from: u8, numbers: std::ops::Range<u32>) {
            let interest = Arc::clone(&self.interest);
            numbers.for_each(|number| self.ask(from, number, SHORT, &interest));
        }

        /// Computes the next one, which takes so long.
        fn compute(&mut self, time: Duration) -> Option<u32> {
            let (network, job) = self.state.take_next(self.now)?;
            (job.run)(Turn::Compute(&self.background));
            let line = self.state.lines.get_mut(&network).expect("a line");
            (line.used, line.at) = (line.used_lately(self.now) + time, self.now);
            let (number, turn) = self.seen.recv().expect("it ran");
            assert_eq!(turn, Became::Computed);
            Some(number)
        }
    }

    const LONG: Duration = Duration::from_millis(25);
    const SHORT: Duration = Duration::from_millis(1);

    #[test]
    fn an_address_with_many_delays_no_other_one_and_time_counts_and_not_number() {
        let mut test = Test::new();
        test.ask_for(1, 100..200);
        assert_eq!(test.compute(LONG), Some(199), "the last first");
        test.ask_for(2, 0..30);
        let served: Vec<u32> = (0..25).map(|_| test.compute(SHORT).expect("one")).collect();
        assert!(served.iter().all(|number| *number < 30), "until it has used as much: {served:?}");
        let served: Vec<u32> = (0..3).map(|_| test.compute(LONG).expect("one")).collect();
        assert!(served.iter().any(|number| *number >= 100), "then they have turns: {served:?}");
        // What is long ago counts no more.
        test.now += 40 * HALF_LIFE;
        test.ask_for(3, 300..301);
        assert!(test.state.lines[&address(1)].used_lately(test.now) < SHORT);
        assert_eq!(test.state.waiting, 100 + 30 + 1 - 1 - 25 - 3);
    }

    #[test]
    fn what_takes_little_goes_before_what_takes_much() {
        let mut test = Test::new();
        let interest = Arc::clone(&test.interest);
        (1..=250).for_each(|from| test.ask(from, 1000 + u32::from(from), LONG, &interest));
        test.ask(255, 1, SHORT, &interest);
        assert_eq!(test.compute(SHORT), Some(1));
        test.ask(255, 2, SHORT, &interest);
        assert_eq!(test.compute(SHORT), Some(2));
        // But not for ever.
        for number in 3..50 {
            test.ask(255, number, SHORT, &interest);
        }
        let served: Vec<u32> = (0..40).map(|_| test.compute(SHORT).expect("one")).collect();
        assert!(served.iter().any(|number| *number > 1000), "{served:?}");
    }

    #[test]
    fn those_who_have_used_the_same_have_turns() {
        let mut test = Test::new();
        for from in 1..=3 {
            test.ask_for(from, u32::from(from) * 100..u32::from(from) * 100 + 2);
        }
        let served: Vec<u32> = std::iter::from_fn(|| test.compute(LONG)).map(|number| number / 100).collect();
        assert_eq!(served, [1, 2, 3, 1, 2, 3]);
    }

    #[test]
    fn when_too_many_wait_the_oldest_of_the_address_with_most_gives_way() {
        let mut test = Test::new();
        test.ask_for(1, 0..1000);
        test.ask_for(2, 2000..2024);
        assert!(test.seen.try_recv().is_err());
        test.ask_for(3, 3000..3002);
        test.ask_for(1, 1000..1001);
        let refused: Vec<(u32, Became)> = test.seen.try_iter().collect();
        assert_eq!(refused, [(0, Became::Refused), (1, Became::Refused), (2, Became::Refused)]);
        assert_eq!(test.state.waiting, WAITING_MAX);
    }

    #[test]
    fn nothing_is_computed_for_who_is_gone_and_nobody_gives_way_to_it() {
        let mut test = Test::new();
        let gone = Interest::default();
        (0..WAITING_MAX as u32).for_each(|number| test.ask(1, number, SHORT, &gone));
        drop(gone);
        test.ask_for(2, 5000..5001);
        assert_eq!((test.state.waiting, test.compute(SHORT), test.compute(SHORT)), (1, Some(5000), None));
        assert!(test.seen.try_recv().is_err());
    }

    #[test]
    fn few_addresses_are_remembered_and_of_those_the_ones_that_have_used_most() {
        let mut test = Test::new();
        let interest = Arc::clone(&test.interest);
        for number in 0..KNOWN_MAX as u32 + 10 {
            let [_, _, high, low] = number.to_be_bytes();
            let run = Box::new(|_: Turn<'_>| ());
            let job = Job { wanted: Arc::downgrade(&interest), cost: SHORT, run };
            test.state.enqueue([10, 1, high, low].into(), job, test.now);
            let (network, _) = test.state.take_next(test.now).expect("one");
            test.state.lines.get_mut(&network).expect("a line").used = SHORT * number;
        }
        assert!(test.state.lines.len() <= KNOWN_MAX + 1);
        assert!(!test.state.lines.contains_key(&IpAddr::from([10, 1, 0, 0])));
        assert!(test.state.lines.contains_key(&IpAddr::from([10, 1, 4, 0])));
    }

    #[test]
    fn a_thread_computes_answers_and_survives_a_panic() {
        let computing = Arc::new(Computing::default());
        let (sender, answers) = mpsc::channel();
        let interest = Interest::default();
        for number in 0..3 {
            let sender = sender.clone();
            // It says nothing: a backtrace can take a busy machine long.
            let work = move || if number == 1 { resume_unwind(Box::new("on purpose")) } else { number };
            let answer = move |outcome| sender.send(outcome).expect("the test listens");
            computing.submit(address(number), SHORT, &interest, work, answer).expect("taken");
        }
        let mut all: Vec<Result<u8, WorkError>> = answers.iter().take(3).collect();
        all.sort_by_key(|one| one.clone().unwrap_or(9));
        assert_eq!(all, [Ok(0), Ok(2), Err(WorkError::ComputationPanicked)]);
    }
}
