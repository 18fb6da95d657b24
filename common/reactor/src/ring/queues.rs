//! The two queues that this process shares with the kernel.

use std::collections::VecDeque;
use std::io;
use std::ptr::NonNull;
use std::time::Duration;

use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{Builder, CompletionQueue, IoUring, SubmissionQueue, Submitter, cqueue, squeue};

use super::restrictions;

/// Flag of `io_uring_enter`: run deferred work and collect completions.
const ENTER_GETEVENTS: u32 = 1;
/// Flag of `io_uring_enter`: the argument is the extended one, with a timeout.
const ENTER_EXT_ARG: u32 = 1 << 3;

/// The submission and completion queues, with entries that found no room waiting in order.
pub(super) struct Queues {
    // Declared before `owner`, so that they are dropped before what they borrow.
    submitter: Submitter<'static>,
    submission: SubmissionQueue<'static>,
    completion: CompletionQueue<'static>,
    backlog: VecDeque<squeue::Entry>,
    ring_registered: bool,
    pub(super) enters: u64,
    pub(super) submitted: u64,
    _owner: Owner,
}

/// The ring on the heap, which the parts of [`Queues`] borrow.
struct Owner(NonNull<IoUring>);

impl Drop for Owner {
    fn drop(&mut self) {
        // SAFETY: the pointer came from `Box::into_raw` in `Queues::new` and is freed only here; every borrow of it
        // is a field of `Queues` that is declared, and so dropped, before this one.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl Queues {
    /// Builds a ring for the calling thread, which alone may use it.
    pub(super) fn new(entries: u32) -> io::Result<Self> {
        let ring = build(entries)?;
        let pointer = NonNull::from(Box::leak(Box::new(ring)));
        // SAFETY: the ring was just leaked, nobody else has the pointer, and `Owner` frees it only after the three
        // parts.
        let (mut submitter, submission, completion) = unsafe { &mut *pointer.as_ptr() }.split();
        let ring_registered = match submitter.register_ring_fd() {
            Ok(()) => true,
            Err(error) => {
                tracing::debug!(%error, "the ring's descriptor is not registered; entering costs a little more");
                false
            }
        };
        Ok(Self {
            submitter,
            submission,
            completion,
            backlog: VecDeque::new(),
            ring_registered,
            enters: 0,
            submitted: 0,
            _owner: Owner(pointer),
        })
    }

    /// For registering files and buffers.
    pub(super) fn submitter(&self) -> &Submitter<'static> {
        &self.submitter
    }

    /// Queues an entry; it reaches the kernel with the next [`Queues::enter`]. A full queue is submitted at once,
    /// and what the kernel does not take then waits in order.
    ///
    /// # Safety
    /// Whatever memory `entry` points at stays valid, and is touched by nobody else where the kernel writes, until the
    /// entry's completion was taken from this queue or the ring is gone.
    #[inline]
    pub(super) unsafe fn push(&mut self, entry: squeue::Entry) {
        self.submitted += 1;
        // SAFETY: the caller's promise is the one that the queue asks for.
        if self.backlog.is_empty() && unsafe { self.submission.push(&entry) }.is_ok() {
            return;
        }
        self.push_slowly(entry);
    }

    #[cold]
    fn push_slowly(&mut self, entry: squeue::Entry) {
        self.backlog.push_back(entry);
        // A failure shows again at the next turn, which reports it; the entry is safe in the backlog.
        let _ = self.enter(0, None);
    }

    fn fill_from_backlog(&mut self) {
        while let Some(entry) = self.backlog.front() {
            // SAFETY: the entry came through `push`, whose caller promised for it what the queue asks for.
            if unsafe { self.submission.push(entry) }.is_err() {
                return;
            }
            self.backlog.pop_front();
        }
    }

    /// Whether entries wait to be submitted.
    #[inline]
    pub(super) fn has_submissions(&self) -> bool {
        !self.submission.is_empty() || !self.backlog.is_empty()
    }

    /// Whether the kernel asks to be entered: it has deferred work to run, or completions that did not fit.
    #[inline]
    pub(super) fn wants_enter(&self) -> bool {
        self.submission.taskrun() || self.submission.cq_overflow()
    }

    /// Whether the kernel holds completions that found no room.
    pub(super) fn has_overflown(&self) -> bool {
        self.submission.cq_overflow()
    }

    /// Whether a completion can be taken, from shared memory alone.
    #[inline]
    pub(super) fn has_completions(&mut self) -> bool {
        if self.completion.is_empty() {
            self.completion.sync();
        }
        !self.completion.is_empty()
    }

    /// The next completion.
    #[inline]
    pub(super) fn next(&mut self) -> Option<cqueue::Entry> {
        self.completion.next()
    }

    /// Submits everything, runs deferred work, and waits for `completions` of them, at most for `timeout`. A signal,
    /// the timeout and a kernel that is short of memory for requests are ordinary ends.
    pub(super) fn enter(&mut self, completions: u32, timeout: Option<Duration>) -> io::Result<()> {
        // Tells the kernel which completions were taken, so that it has room for new ones.
        self.completion.sync();
        loop {
            self.submission.sync();
            if !self.backlog.is_empty() {
                self.fill_from_backlog();
                self.submission.sync();
            }
            let result = self.enter_once(completions, timeout);
            self.submission.sync();
            match result {
                // More than one round is needed only when a backlog is larger than the queue.
                Ok(taken) if taken > 0 && !self.backlog.is_empty() => {}
                Ok(_) => return Ok(()),
                Err(error) => return if is_ordinary(&error) { Ok(()) } else { Err(error) },
            }
        }
    }

    fn enter_once(&mut self, completions: u32, timeout: Option<Duration>) -> io::Result<usize> {
        self.enters += 1;
        let count = self.submission.len() as u32;
        let Some(timeout) = timeout else {
            // SAFETY: no argument is passed; the entries were promised valid by those who pushed them.
            return unsafe {
                self.submitter.enter::<libc::sigset_t>(count, completions, ENTER_GETEVENTS, None)
            };
        };
        let timespec = Timespec::from(timeout);
        let arguments = SubmitArgs::new().timespec(&timespec);
        let flags = ENTER_GETEVENTS | ENTER_EXT_ARG;
        // SAFETY: `SubmitArgs` is the structure that EXT_ARG announces, and the timespec it points at lives in this
        // frame for the whole call.
        unsafe { self.submitter.enter(count, completions, flags, Some(&arguments)) }
    }
}

impl Drop for Queues {
    fn drop(&mut self) {
        // The registration belongs to the thread and holds the ring: without this it would live on.
        if self.ring_registered
            && let Err(error) = self.submitter.unregister_ring_fd()
        {
            tracing::error!(%error, "the ring's descriptor stays registered");
        }
    }
}

fn build(entries: u32) -> io::Result<IoUring> {
    let entries = entries.clamp(8, 16384).next_power_of_two();
    let ring = made(entries, |builder| builder.setup_r_disabled())?;
    match restrictions::restrict(&ring.submitter()) {
        Ok(()) => Ok(ring),
        Err(error) => {
            tracing::warn!(%error, "the ring can be asked for every operation: the kernel does not restrict it");
            drop(ring);
            made(entries, |builder| builder)
        }
    }
}

fn made(entries: u32, more: impl FnOnce(&mut Builder) -> &mut Builder) -> io::Result<IoUring> {
    let mut builder = IoUring::builder();
    more(&mut builder)
        .dontfork()
        .setup_cqsize(entries * 4)
        .setup_submit_all()
        .setup_single_issuer()
        // The flag makes deferred work visible in shared memory, so that spinning needs no system call.
        // COOP_TASKRUN would add nothing: deferred work never interrupts.
        .setup_defer_taskrun()
        .setup_taskrun_flag()
        .build(entries)
        .map_err(|error| {
            let why = match error.kind() {
                io::ErrorKind::OutOfMemory => {
                    "the process may lock too little memory (ulimit -l, LimitMEMLOCK=) or have too little (ulimit -v)"
                }
                _ => "it takes Linux 6.1 or later",
            };
            io::Error::new(error.kind(), format!("cannot set up an io_uring of {entries} entries; {why}: {error}"))
        })
}

fn is_ordinary(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::ETIME | libc::EAGAIN | libc::EBUSY))
}

#[cfg(test)]
mod tests {
    use io_uring::{opcode, types};

    use super::*;

    #[test]
    fn a_ring_opens_no_files_and_lets_nobody_register_what_it_does_not_use() {
        let mut ring = build(8).expect("a ring");
        let open = |ring: &mut IoUring| {
            let open = opcode::OpenAt::new(types::Fd(libc::AT_FDCWD), c"/dev/null".as_ptr()).build();
            // SAFETY: the path is static.
            unsafe { ring.submission().push(&open) }.expect("room");
            ring.submit_and_wait(1).expect("submitted");
            ring.completion().next().expect("a completion").result()
        };
        assert_eq!(open(&mut ring), -libc::EACCES);
        let error = ring.submitter().register_personality().expect_err("it is not allowed");
        assert_eq!(error.raw_os_error(), Some(libc::EACCES));
        // Of a ring without restrictions it is the descriptor of an open file.
        let mut other = made(8, |builder| builder).expect("a ring");
        assert!(open(&mut other) >= 0);
    }
}
