//! The mounted file system, until its end.
//!
//! It ends when the kernel has taken the file away from the loop device: nobody has it open any more. Until then,
//! signals ask for an unmount:
//!
//! - SIGINT: it is tried until it succeeds. Whoever uses the file system is named. A second one detaches it.
//! - SIGTERM: while the file system is in use it is tried for [`BUSY`], then what was written is flushed, and the mount
//!   is detached. While the target is away it is tried for [`AWAY`]. An unmount that writes back goes on as long as it
//!   takes, also one that somebody else has begun.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::unistd::{pipe2, read, write};
use ringfab_initiator::blocking::{Connection, Controller};

use super::child::{self, Ended, Running};
use super::device;
use crate::fuse::holders;
use crate::interrupt::Interrupt;
use crate::ready;

/// How long a file system may be in use after SIGTERM.
pub(super) const BUSY: Duration = Duration::from_secs(10);
/// How long an unmount waits after SIGTERM for a target that is away.
pub(super) const AWAY: Duration = Duration::from_secs(15);
/// How long what was written may take to be flushed, before a mount is detached that is in use.
const SYNC: Duration = Duration::from_secs(10);
/// How long a detaching may take.
const DETACH: Duration = Duration::from_secs(5);
/// From one attempt to the next.
const RETRY: Duration = Duration::from_millis(500);
/// How often to look while something is expected.
const LOOK: Duration = Duration::from_millis(20);
/// How long something is expected after an unmount.
const SOON: Duration = Duration::from_secs(3);
/// The same where nobody knows when it happens.
const LOOK_SELDOM: Duration = Duration::from_secs(1);
/// How often to say what is waited for.
const SAY: Duration = Duration::from_secs(10);
/// How long a disk that nobody has mounted any more may be written to after SIGTERM.
const WRITE_BACK: Duration = Duration::from_secs(600);

/// Signals for the watch, which also wake it.
pub(super) struct Doorbell {
    signals: Mutex<VecDeque<Signal>>,
    inside: OwnedFd,
    outside: OwnedFd,
}

impl Doorbell {
    pub(super) fn new() -> io::Result<Self> {
        let (inside, outside) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        Ok(Self { signals: Mutex::default(), inside, outside })
    }

    pub(super) fn ring(&self, signal: Signal) {
        self.signals.lock().unwrap_or_else(PoisonError::into_inner).push_back(signal);
        // A full pipe wakes as well.
        let _full = write(&self.outside, &[0]);
    }

    fn take(&self) -> VecDeque<Signal> {
        let mut bytes = [0; 64];
        while read(&self.inside, &mut bytes).is_ok_and(|count| count == bytes.len()) {}
        std::mem::take(&mut *self.signals.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What is watched over.
pub(super) struct Watch {
    pub(super) directory: PathBuf,
    /// The file below the loop device.
    pub(super) file: PathBuf,
    pub(super) device: PathBuf,
    pub(super) controller: Controller,
    /// Of the FUSE server.
    pub(super) inner: Interrupt,
    pub(super) doorbell: Arc<Doorbell>,
    /// Whether the watch takes the signals.
    pub(super) watched: Arc<AtomicBool>,
}

/// The end was asked for.
struct Asked {
    by: Signal,
    /// An unmount that has begun.
    attempt: Option<Running>,
    next: Instant,
    /// Since when it is in use.
    busy: Option<Instant>,
    /// Since when the target is away.
    away: Option<Instant>,
    said: Instant,
    hurry: bool,
    begun: Instant,
    /// What was written to the disk when it was last looked at.
    written: Option<u64>,
}

impl Watch {
    /// Watches until the end, and tells the FUSE server then.
    pub(super) fn run(self, started: &Sender<Result<()>>) {
        match File::open("/proc/self/mountinfo").context("open /proc/self/mountinfo") {
            Ok(mounts) => {
                // Who does not wait any more ends it by a signal.
                let _told = started.send(Ok(()));
                self.watch(&mounts);
            }
            Err(error) => drop(started.send(Err(error))),
        }
    }

    fn watch(&self, mounts: &File) {
        let mut asked: Option<Asked> = None;
        let mut unmounted: Option<Instant> = None;
        while device::has_file(&self.device, &self.file) {
            for signal in self.doorbell.take() {
                match &mut asked {
                    Some(asked) => asked.hurry = true,
                    None => asked = Some(Asked::new(signal)),
                }
            }
            let wait = match &mut asked {
                Some(asked) => {
                    if self.is_enough(asked) {
                        self.detach(asked);
                        break;
                    }
                    Some(LOOK)
                }
                // The kernel takes the file away a moment after the unmount, or when the last one that uses it ends:
                // nobody tells when that is.
                None if device::mounts(&self.device).is_empty() => {
                    let since = unmounted.get_or_insert_with(Instant::now).elapsed();
                    Some(if since < SOON { LOOK } else { LOOK_SELDOM })
                }
                None => {
                    unmounted = None;
                    None
                }
            };
            self.wait(mounts, wait);
        }
        self.watched.store(false, Ordering::Release);
        self.inner.raise(Signal::SIGTERM);
    }

    /// Waits for a signal, a mount or an unmount.
    fn wait(&self, mounts: &File, limit: Option<Duration>) {
        let change = PollFd::new(mounts.as_fd(), PollFlags::POLLPRI);
        let signal = PollFd::new(self.doorbell.inside.as_fd(), PollFlags::POLLIN);
        let limit = limit.and_then(|limit| PollTimeout::try_from(limit).ok()).unwrap_or(PollTimeout::NONE);
        let woken = poll(&mut [change, signal], limit);
        tracing::trace!(?woken, "looks");
    }

    /// Goes on with unmounting. Whether there is no time left for that.
    fn is_enough(&self, asked: &mut Asked) -> bool {
        let now = Instant::now();
        self.go_on(asked, now);
        let connected = self.controller.connection() == Connection::Connected;
        if connected {
            asked.away = None;
        } else {
            asked.away.get_or_insert(now);
        }
        if now >= asked.said + SAY {
            asked.said = now;
            self.say_waiting(asked, connected);
        }
        let over = |since: Option<Instant>, limit| since.is_some_and(|since| now >= since + limit);
        let bounded = asked.by == Signal::SIGTERM;
        asked.hurry || bounded && (over(asked.busy, BUSY) || over(asked.away, AWAY))
    }

    fn go_on(&self, asked: &mut Asked, now: Instant) {
        if let Some(attempt) = &mut asked.attempt {
            let ended = match attempt.poll() {
                Ok(None) => return,
                Ok(Some(ended)) => Some(ended),
                Err(error) => {
                    tracing::warn!("{error:#}");
                    None
                }
            };
            asked.attempt = None;
            asked.next = now + RETRY;
            match ended {
                Some(ended) if ended.status.success() => asked.next = now,
                ended => self.say_busy(asked, ended.as_ref()),
            }
        } else if now >= asked.next {
            asked.next = now + RETRY;
            let mounts = device::mounts(&self.device);
            match mounts.last().map(|mount| Running::start("umount", &[&mount.to_string_lossy()])) {
                Some(Ok(running)) => asked.attempt = Some(running),
                Some(Err(error)) => tracing::warn!("{error:#}"),
                // Somebody else unmounts it, and what was written goes to the disk.
                None if self.is_written(asked, now) => asked.busy = None,
                None => self.say_busy(asked, None),
            }
        }
    }

    /// Whether the disk works, or has worked since the last look.
    fn is_written(&self, asked: &mut Asked, now: Instant) -> bool {
        let Some(activity) = device::activity(&self.device) else { return false };
        let before = asked.written.replace(activity.sectors_written);
        let moves = activity.in_flight > 0 || before.is_none_or(|before| before != activity.sectors_written);
        moves && now < asked.begun + WRITE_BACK
    }

    /// Says once who uses it.
    fn say_busy(&self, asked: &mut Asked, ended: Option<&Ended>) {
        if asked.busy.is_some() {
            return;
        }
        asked.busy = Some(Instant::now());
        let (directory, who) =
            (self.directory.display(), holders::describe_disk(&self.directory, &self.device));
        let why = ended.map(|ended| format!(" ({})", ended.stderr)).unwrap_or_default();
        let then = match asked.by {
            Signal::SIGTERM => format!("it is detached in {} s", BUSY.as_secs()),
            _ => "it stays until it is free; another ctrl-C detaches it".to_owned(),
        };
        tracing::warn!("{directory} is in use: {who}{why}; {then}");
    }

    fn say_waiting(&self, asked: &Asked, connected: bool) {
        let directory = self.directory.display();
        let writes = asked.attempt.is_some() || asked.busy.is_none();
        let what = match (writes, connected) {
            (_, false) => "the target is away".to_owned(),
            (true, true) => "what was written goes to the disk".to_owned(),
            (false, true) => format!("in use: {}", holders::describe_disk(&self.directory, &self.device)),
        };
        tracing::warn!("{directory} is being unmounted: {what}");
        if connected && writes {
            ready::extend(2 * SAY);
        }
    }

    /// Takes the mount out of the tree. Programs that use it get errors once the disk is gone.
    fn detach(&self, asked: &mut Asked) {
        let directory = self.directory.display();
        let connected = self.controller.connection() == Connection::Connected;
        for mount in device::mounts(&self.device).iter().rev() {
            let path = mount.to_string_lossy();
            if connected {
                let flushed = child::run("sync", &["-f", &path], |age| age < SYNC);
                tracing::debug!(?flushed, "flushed");
            }
            let detached = child::run("umount", &["-l", &path], |age| age < DETACH);
            tracing::debug!(?detached, "detached");
        }
        if connected && asked.attempt.is_none() {
            tracing::warn!("{directory}: detached while it was in use");
        } else {
            tracing::error!("{directory}: ended without the target; what was not written yet is lost");
        }
    }
}

impl Asked {
    fn new(by: Signal) -> Self {
        let now = Instant::now();
        Self {
            by,
            attempt: None,
            next: now,
            busy: None,
            away: None,
            said: now,
            hurry: false,
            begun: now,
            written: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_wakes_and_is_taken_once() {
        let doorbell = Doorbell::new().expect("a pipe");
        assert!(doorbell.take().is_empty());
        doorbell.ring(Signal::SIGTERM);
        let ready = PollFd::new(doorbell.inside.as_fd(), PollFlags::POLLIN);
        assert_eq!(poll(&mut [ready], PollTimeout::ZERO), Ok(1));
        assert_eq!(doorbell.take(), [Signal::SIGTERM]);
        let quiet = PollFd::new(doorbell.inside.as_fd(), PollFlags::POLLIN);
        assert_eq!(poll(&mut [quiet], PollTimeout::ZERO), Ok(0));
        assert!(doorbell.take().is_empty());
    }
}
