//! A reactor over the kernel's io_uring.

mod descriptors;
mod direct;
mod drain;
mod files;
mod listeners;
mod open;
mod operations;
mod queues;
mod restrictions;
mod sockets;
mod sync;
mod timers;
mod wait;
mod wake;
mod wake_flags;

pub use self::open::{check_kind, inspect_file};
pub use self::wait::clock;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Duration;

use ringfab_memory::Pool;

use self::descriptors::Descriptors;
use self::operations::{NO_DESCRIPTOR, Operation, OperationKind, Operations, Outcome};
use self::queues::Queues;
use self::timers::{Alarm, Timers};
use self::wake::WakeState;
use crate::monitor::Watch;
use crate::spin::{Spins, Yields};
use crate::{Completion, Monitor, Payload, ReactorConfig, ReactorCounters, Time, TimerId, Token, Waker};

/// Regions that can be registered with the kernel: its own limit is 16384 in all.
const BUFFER_SLOTS: u32 = 256;
/// The kernel registers no region larger than this as one buffer.
const BUFFER_BYTES_MAX: usize = 1 << 30;

/// One core's ring with everything that is in flight on it.
pub(crate) struct Ring {
    // These three are leaked when the kernel does not give everything back at the end.
    queues: ManuallyDrop<Queues>,
    operations: ManuallyDrop<Operations>,
    pools: ManuallyDrop<Vec<Registration>>,
    /// Receives that were started and are not in the ring.
    receives: Vec<u64>,
    /// The same of sends.
    sends: Vec<u64>,
    descriptors: Descriptors,
    timers: Timers,
    ready: VecDeque<Completion>,
    wake: Arc<WakeState>,
    buffers_registered: bool,
    /// No operation is started or continued any more.
    draining: bool,
    spin: Spins,
    yields: Yields,
    now: Time,
    last_event: Time,
    turns: u64,
    sleeps: u64,
    completed: u64,
}

/// A pool that the kernel knows, kept alive as long as it does.
struct Registration {
    pool: Pool,
    slot_first: u16,
    slots: u16,
}

impl Ring {
    pub(crate) fn new(config: &ReactorConfig) -> io::Result<Self> {
        let wake = WakeState::new()?;
        let queues = Queues::new(config.entries)?;
        let descriptors = Descriptors::new(config.descriptors_max, queues.submitter());
        allow_threads(queues.submitter());
        let buffers_registered = queues.submitter().register_buffers_sparse(BUFFER_SLOTS).is_ok();
        let in_flight_usual = config.entries as usize * 4;
        let now = wait::clock();
        let mut ring = Self {
            queues: ManuallyDrop::new(queues),
            operations: ManuallyDrop::new(Operations::new(in_flight_usual)),
            pools: ManuallyDrop::new(Vec::new()),
            receives: Vec::with_capacity(config.descriptors_max as usize),
            sends: Vec::with_capacity(config.descriptors_max as usize),
            descriptors,
            timers: Timers::new(),
            ready: VecDeque::with_capacity(in_flight_usual),
            wake,
            buffers_registered,
            draining: false,
            spin: Spins::new(config.spin),
            yields: Yields::default(),
            now,
            last_event: now,
            turns: 0,
            sleeps: 0,
            completed: 0,
        };
        ring.arm_wake();
        Ok(ring)
    }

    pub(crate) fn register_pool(&mut self, pool: &Pool) -> bool {
        if let Some(known) = self.pools.iter().find(|known| known.pool.extent() == pool.extent()) {
            pool.set_registration(Some(known.slot_first));
            return true;
        }
        match self.register_memory(pool) {
            Ok(()) => true,
            Err(error) => {
                let (_, bytes) = pool.extent();
                // Its owner knows how much all rings need, and says that once.
                tracing::debug!(%error, bytes, "a pool is not registered with the kernel");
                false
            }
        }
    }

    fn register_memory(&mut self, pool: &Pool) -> io::Result<()> {
        let (base, bytes) = pool.extent();
        let slot_first = self.pools.last().map_or(0, |last| last.slot_first + last.slots);
        let slots = bytes.div_ceil(BUFFER_BYTES_MAX);
        if !self.buffers_registered || slot_first as usize + slots > BUFFER_SLOTS as usize {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "no slot for another registered buffer"));
        }
        let chunks: Vec<libc::iovec> = (0..slots)
            .map(|chunk| {
                let offset = chunk * BUFFER_BYTES_MAX;
                let length = BUFFER_BYTES_MAX.min(bytes - offset);
                let address = base.as_ptr().wrapping_add(offset);
                libc::iovec { iov_base: address.cast(), iov_len: length }
            })
            .collect();
        // SAFETY: the chunks lie in the pool's mapping. `self.pools` keeps a clone of the pool, and with it the
        // mapping, until the ring is gone or is leaked together with it.
        unsafe { self.queues.submitter().register_buffers_update(u32::from(slot_first), &chunks, None) }?;
        self.pools.push(Registration { pool: pool.clone(), slot_first, slots: slots as u16 });
        pool.set_registration(Some(slot_first));
        Ok(())
    }

    /// The registered buffer that holds all of a range of a pool's memory, if this ring knows it.
    fn buffer_slot(&self, registration: Option<u16>, pointer: *const u8, length: usize) -> Option<u16> {
        let slot_first = registration?;
        let known = self.pools.iter().find(|known| known.slot_first == slot_first)?;
        let (base, bytes) = known.pool.extent();
        let offset = (pointer as usize).checked_sub(base.as_ptr() as usize)?;
        let end = offset.checked_add(length).filter(|end| *end <= bytes && length > 0)?;
        let (first, last) = (offset / BUFFER_BYTES_MAX, (end - 1) / BUFFER_BYTES_MAX);
        (first == last).then_some(slot_first + first as u16)
    }

    pub(crate) fn now(&self) -> Time {
        self.now
    }

    pub(crate) fn clock(&self) -> Time {
        wait::clock()
    }

    pub(crate) fn wall_clock(&self) -> Duration {
        wait::wall_clock()
    }

    pub(crate) fn next_completion(&mut self) -> Option<Completion> {
        let Some(completion) = self.ready.pop_front() else {
            // The next ones go to the front again, which is in the cache; the whole of it would not fit there.
            self.ready.clear();
            return None;
        };
        self.completed += 1;
        Some(completion)
    }

    pub(crate) fn waker(&self) -> Waker {
        Waker(self.wake.clone())
    }

    pub(crate) fn monitor(&self) -> Monitor {
        Monitor::new(self.wake.clone())
    }

    pub(crate) fn spin(&self) -> Duration {
        self.spin.most()
    }

    pub(crate) fn worked(&mut self, pieces: u32) {
        self.spin.worked(pieces);
    }

    pub(crate) fn counters(&self) -> ReactorCounters {
        ReactorCounters {
            turns: self.turns,
            enters: self.queues.enters,
            sleeps: self.sleeps,
            shared: self.yields.times_shared(),
            submitted: self.queues.submitted,
            completed: self.completed,
            spun: self.wake.spun(),
            slept: self.wake.slept(),
        }
    }

    pub(crate) fn set_timer(&mut self, at: Time, token: Token) -> TimerId {
        self.timers.set(at, Alarm::User(token))
    }

    pub(crate) fn cancel_timer(&mut self, timer: TimerId) {
        self.timers.cancel(timer);
    }

    pub(crate) fn poll_readable(&mut self, descriptor: std::os::fd::RawFd, token: Token) {
        self.start(token, NO_DESCRIPTOR, OperationKind::Poll(descriptor));
    }

    pub(crate) fn stop_polling(&mut self, descriptor: std::os::fd::RawFd) {
        self.start(INTERNAL, NO_DESCRIPTOR, OperationKind::StopPolling(descriptor));
    }

    fn arm_wake(&mut self) {
        let held = OperationKind::Wake(self.wake.eventfd(), Box::new([0; 8]));
        self.start(INTERNAL, NO_DESCRIPTOR, held);
    }

    /// Puts an operation into the table and its entry into the queue.
    fn start(&mut self, token: Token, descriptor: u32, held: OperationKind) {
        self.descriptors.begin(descriptor);
        let name = self.operations.insert(Operation { token, descriptor, held });
        self.push(name);
    }

    /// Queues an entry for what remains of an operation.
    fn push(&mut self, name: u64) {
        let Some(operation) = self.operations.get_mut(name) else { return };
        let target = self.descriptors.target(operation.descriptor);
        let entry = operation.entry(target).user_data(name);
        // SAFETY: the entry points only at memory that the operation owns (on the heap, or a pool's through a buffer or
        // shared buffer). The operation leaves the table only when its last completion was taken from the queue; when
        // that cannot be waited for, `Drop` leaks table and queues. A buffer is the only handle of its memory and moved
        // into the operation; a shared buffer promises nothing about who writes.
        unsafe { self.queues.push(entry) };
    }

    /// Ends an operation that never started.
    fn refuse(&mut self, token: Token, errno: i32, payload: Payload) {
        self.ready.push_back(Completion { token, result: Err(io::Error::from_raw_os_error(errno)), payload });
    }

    /// Takes everything from the completion queue.
    fn reap(&mut self) {
        while self.queues.has_completions() {
            while let Some(entry) = self.queues.next() {
                self.finish(entry.user_data(), Outcome::new(&entry));
            }
        }
    }

    /// Handles one completion: continues the operation, or takes it out of the table and hands it to its owner.
    fn finish(&mut self, name: u64, outcome: Outcome) {
        let Some(operation) = self.operations.get_mut(name) else {
            tracing::error!(name, "the kernel completed an operation that is not in flight");
            return;
        };
        if matches!(operation.held, OperationKind::Accept) {
            return self.accepted(name, outcome);
        }
        let ending = self.draining || self.descriptors.is_closing(operation.descriptor);
        let result = match operation.progress(outcome, ending, &self.descriptors) {
            Progress::Continue => return self.push(name),
            Progress::Done(result) => result,
        };
        let Some(operation) = self.operations.remove(name) else { return };
        self.conclude(operation, result, outcome);
    }

    fn conclude(&mut self, operation: Operation, result: Result<u32, i32>, outcome: Outcome) {
        let (token, descriptor) = (operation.token, operation.descriptor);
        match &operation.held {
            OperationKind::Wake(..) if !self.draining => self.arm_wake(),
            OperationKind::Send { .. } => self.sent(descriptor),
            OperationKind::Receive { .. } => self.descriptors.set_drained(descriptor, !outcome.left_data),
            _ => {}
        }
        let internal = matches!(
            operation.held,
            OperationKind::Wake(..)
                | OperationKind::StopPolling(_)
                | OperationKind::Cancel
                | OperationKind::CancelAll
        );
        self.descriptors.end(self.queues.submitter(), descriptor);
        if !internal {
            let result = result.map_err(io::Error::from_raw_os_error);
            self.ready.push_back(Completion { token, result, payload: operation.into_payload() });
        }
    }

    /// Cancels everything in flight on a descriptor, which is then closed when the last of it has ended.
    fn close(&mut self, index: u32) {
        if self.descriptors.close(self.queues.submitter(), index) {
            // A cancellation only finds what was queued before it.
            self.queue_sends();
            self.queue_receives();
            self.start(INTERNAL, index, OperationKind::Cancel);
        }
    }
}

/// The token of operations whose completion nobody is told of.
const INTERNAL: Token = Token::new(u8::MAX, u8::MAX, u16::MAX, u32::MAX);

/// What a completion means for its operation.
enum Progress {
    /// The kernel did part of it, or asks to try again.
    Continue,
    /// It has ended, with bytes or an error number.
    Done(Result<u32, i32>),
}

impl Operation {
    fn progress(&mut self, outcome: Outcome, ending: bool, descriptors: &Descriptors) -> Progress {
        let result = u32::try_from(outcome.result).map_err(|_| -outcome.result);
        if result == Err(libc::EINTR) {
            // A worker of the kernel that was cancelled in the middle says so too.
            return if ending { Progress::Done(Err(libc::ECANCELED)) } else { Progress::Continue };
        }
        let descriptor = self.descriptor;
        match &mut self.held {
            OperationKind::Receive { operation, .. } => {
                operation.set_received(result.map_or(0, |bytes| bytes as usize));
                Progress::Done(result)
            }
            OperationKind::Send { batch, .. } => sockets::send_progress(batch, result, ending),
            OperationKind::Read(transfer) => {
                files::read_progress(transfer, result, ending, || descriptors.offset_align(descriptor))
            }
            OperationKind::Write { transfer, .. } => files::write_progress(transfer, result, ending),
            OperationKind::Sync | OperationKind::Allocate { .. }
                if result == Err(libc::EAGAIN) && !ending =>
            {
                Progress::Continue
            }
            _ => Progress::Done(result),
        }
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring")
            .field("in_flight", &self.operations.len())
            .field("ready", &self.ready.len())
            .finish_non_exhaustive()
    }
}

/// Threads of the kernel that may work for a ring on what would block, at the most. As many as a hung file system has
/// under way are missing for the others.
const THREADS_MAX: u32 = 256;

/// Lets the kernel use more threads than its own limit, four for each processor, where it agrees.
fn allow_threads(submitter: &io_uring::Submitter<'_>) {
    // The second number, of threads for what may wait without limit, stays as it is.
    if let Err(error) = submitter.register_iowq_max_workers(&mut [THREADS_MAX, 0]) {
        tracing::debug!(%error, "the kernel keeps its limit of threads for blocking file I/O");
    }
}
