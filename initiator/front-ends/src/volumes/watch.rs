//! The mounted file system, until its end.
//!
//! It ends when the kernel has taken the file away from the loop device: nobody has it open any more. Until then,
//! signals ask for an unmount:
//!
//! - SIGINT: it is tried until it succeeds. Whoever uses the file system is named. A second one detaches it.
//! - SIGTERM: while the file system is in use it is tried for [`BUSY`], then what was written is flushed, and the mount
//!   is detached. While the target is away it is tried for [`AWAY`]. An unmount that writes back goes on as long as it
//!   takes, also one that somebody else has begun.
//!
//! When the machine ends, nobody asks: the service manager runs umount(8), which waits for a target that is away and
//! cannot be killed, and programs that write wait as well. So a target that is away for [`AWAY_STOPPING`] is given up
//! then. Their I/O fails, and they end.
//!
//! When the controller is given up, a service does the same as after SIGINT: nobody shall find an empty directory, and
//! write there, as long as programs use the file system. Then it ends with an error, and the service manager mounts
//! anew. Without a service manager, it stays until somebody unmounts it.
//!
//! When the namespace has grown, the loop device takes its size.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use ringfab_base::VisiblePath as _;
use ringfab_initiator::Namespace;
use ringfab_initiator::blocking::{Connection, Controller};

use super::child::{self, Ended, Running};
use super::doorbell::Doorbell;
use super::step;
use super::stopping::Stopping;
use crate::interrupt::Interrupt;
use crate::mounts::{device, holders};
use crate::quantity::Bytes;
use crate::ready;

/// How long a file system may be in use after SIGTERM.
pub(super) const BUSY: Duration = Duration::from_secs(10);
/// How long an unmount waits after SIGTERM for a target that is away.
pub(super) const AWAY: Duration = Duration::from_secs(15);
/// How long a target may be away when the machine ends.
const AWAY_STOPPING: Duration = Duration::from_secs(5);
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
/// From one attempt to unmount what was given up to the next, and how often to say so.
const RETRY_GIVEN_UP: Duration = Duration::from_secs(5);
const SAY_GIVEN_UP: Duration = Duration::from_secs(600);
/// How long the loop device may take to have a new size, and from one attempt to the next. The kernel believes an old
/// size of the file for a second.
const GROW: Duration = Duration::from_secs(5);
const RETRY_GROW: Duration = Duration::from_secs(1);
/// Attempts after which it is said that it has not.
const GROW_ATTEMPTS: u32 = 5;
/// How long a disk that nobody has mounted any more may be written to after SIGTERM.
const WRITE_BACK: Duration = Duration::from_secs(600);

/// What is watched over.
pub(super) struct Watch {
    pub(super) directory: PathBuf,
    pub(super) namespace: Namespace,
    /// The file below the loop device.
    pub(super) file: PathBuf,
    pub(super) device: PathBuf,
    pub(super) controller: Controller,
    /// Of the FUSE server.
    pub(super) inner: Interrupt,
    pub(super) doorbell: Arc<Doorbell>,
    /// Whether the watch takes the signals.
    pub(super) watched: Arc<AtomicBool>,
    /// Whether to end when the controller is given up; it is noted there.
    pub(super) given_up: Option<Arc<AtomicBool>>,
    /// Where it is noted that it has ended without its target.
    pub(super) abandoned: Arc<AtomicBool>,
}

/// A size that the disk does not have.
#[derive(Default)]
struct Resize {
    bytes: u64,
    attempts: u32,
    last: Option<Instant>,
}

/// The end was asked for.
struct Asked {
    by: Signal,
    /// Whether nobody has asked, and the controller was given up.
    given_up: bool,
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
        let mut resize = Resize::default();
        let mut stopping = Stopping::new();
        while device::has_file(&self.device, &self.file) {
            for signal in self.doorbell.take() {
                match &mut asked {
                    Some(asked) => asked.hurry = true,
                    None => asked = Some(Asked::new(signal)),
                }
            }
            if asked.is_none() && self.gives_up() {
                asked = Some(Asked { given_up: true, ..Asked::new(Signal::SIGINT) });
            }
            if self.is_away_for(AWAY_STOPPING) && stopping.is_so() {
                tracing::error!("{}: the machine ends, and the target is away", self.directory.visible());
                self.detach(false);
                break;
            }
            self.take_size(&mut resize);
            let wait = match &mut asked {
                Some(asked) => {
                    if self.is_enough(asked) {
                        self.detach(asked.attempt.is_none());
                        break;
                    }
                    Some(if asked.given_up && asked.attempt.is_none() { LOOK_SELDOM } else { LOOK })
                }
                // The kernel takes the file away a moment after the unmount, or when the last one that uses it ends:
                // nobody tells when that is.
                None if device::mounts(&self.device).is_empty() => {
                    let since = unmounted.get_or_insert_with(Instant::now).elapsed();
                    Some(if since < SOON { LOOK } else { LOOK_SELDOM })
                }
                // Nobody tells either when the namespace grows, or when the controller is given up.
                None => {
                    unmounted = None;
                    Some(LOOK_SELDOM)
                }
            };
            self.wait(mounts, wait);
        }
        self.watched.store(false, Ordering::Release);
        self.inner.raise(Signal::SIGTERM);
        if self.abandoned.load(Ordering::Acquire) {
            // What waits for the target waits in vain: the second one says that it fails at once.
            self.inner.raise(Signal::SIGTERM);
        }
    }

    /// Whether there is no connection, and was none for so long.
    fn is_away_for(&self, limit: Duration) -> bool {
        match self.controller.connection() {
            Connection::Lost { since } => since.elapsed().is_ok_and(|away| away >= limit),
            // With one that was given up, I/O fails already.
            Connection::Connected | Connection::GivenUp => false,
        }
    }

    /// Whether the controller was given up, and that is a reason to end.
    fn gives_up(&self) -> bool {
        let Some(note) = &self.given_up else { return false };
        if self.controller.connection() != Connection::GivenUp {
            return false;
        }
        note.store(true, Ordering::Release);
        tracing::error!(
            "{}: the controller was given up: I/O fails, and what was not written yet is lost; it is unmounted when \
             nobody uses it",
            self.directory.visible()
        );
        true
    }

    /// Has the loop device take the namespace's size when that has grown. A smaller size stays unnoticed by the file
    /// system: what it writes behind the end fails.
    fn take_size(&self, resize: &mut Resize) {
        let namespace = self.controller.namespace(self.namespace.nsid);
        let same = |now: &Namespace| now.identity.agrees_with(&self.namespace.identity);
        let Some(bytes) = namespace.filter(same).map(|now| now.bytes()) else { return };
        let Some(had) = device::bytes(&self.device) else { return };
        if bytes == had {
            return;
        }
        if resize.bytes != bytes {
            *resize = Resize { bytes, ..Resize::default() };
        }
        let (directory, device) = (self.directory.visible(), self.device.visible());
        let (old, new) = (Bytes(had), Bytes(bytes));
        if bytes < had {
            if resize.attempts == 0 {
                tracing::error!(
                    "{directory}: the namespace has {new} now, and the file system's disk has {old}"
                );
            }
            resize.attempts = 1;
            return;
        }
        let is_due = resize.last.is_none_or(|last| last.elapsed() >= RETRY_GROW);
        if !is_due || resize.attempts > GROW_ATTEMPTS {
            return;
        }
        (resize.last, resize.attempts) = (Some(Instant::now()), resize.attempts + 1);
        let grown = step::grow(&self.file, &self.device, GROW);
        if device::bytes(&self.device) == Some(bytes) {
            tracing::warn!("{directory}: the namespace has grown from {old} to {new}, and so has {device}");
        } else if resize.attempts > GROW_ATTEMPTS {
            tracing::error!(
                ?grown,
                "{directory}: the namespace has grown to {new}, and {device} stays at {old}"
            );
        }
    }

    /// Waits for a signal, a mount or an unmount.
    fn wait(&self, mounts: &File, limit: Option<Duration>) {
        let change = PollFd::new(mounts.as_fd(), PollFlags::POLLPRI);
        let signal = PollFd::new(self.doorbell.as_fd(), PollFlags::POLLIN);
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
        if now >= asked.said + if asked.given_up { SAY_GIVEN_UP } else { SAY } {
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
            asked.next = now + asked.retry();
            match ended {
                Some(ended) if ended.status.success() => asked.next = now,
                ended => self.say_busy(asked, ended.as_ref()),
            }
        } else if now >= asked.next {
            asked.next = now + asked.retry();
            let mounts = device::mounts(&self.device);
            match mounts.last().map(|mount| Running::start("umount", &["-i", &mount.to_string_lossy()])) {
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
            (self.directory.visible(), holders::describe_disk(&self.directory, &self.device));
        let why = ended.map(|ended| format!(" ({})", ended.stderr)).unwrap_or_default();
        let then = match asked.by {
            Signal::SIGTERM => format!("it is detached in {} s", BUSY.as_secs()),
            _ if asked.given_up => "it is unmounted when it is free; SIGTERM detaches it".to_owned(),
            _ => "it stays until it is free; another ctrl-C detaches it".to_owned(),
        };
        tracing::warn!("{directory} is in use: {who}{why}; {then}");
    }

    fn say_waiting(&self, asked: &Asked, connected: bool) {
        let directory = self.directory.visible();
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

    /// Takes the mount out of the tree. Programs that use it get errors once the disk is gone. `idle`: whether nobody
    /// waits for an unmount that has begun.
    fn detach(&self, idle: bool) {
        let directory = self.directory.visible();
        let connected = self.controller.connection() == Connection::Connected;
        for mount in device::mounts(&self.device).iter().rev() {
            let path = mount.to_string_lossy();
            if connected {
                let flushed = child::run("sync", &["-f", &path], |age| age < SYNC);
                tracing::debug!(?flushed, "flushed");
            }
            let detached = child::unmount(&["-l", &path], |age| age < DETACH);
            tracing::debug!(?detached, "detached");
        }
        if connected && idle {
            tracing::warn!("{directory}: detached while it was in use");
        } else {
            self.abandoned.store(!connected, Ordering::Release);
            tracing::error!("{directory}: ended without the target; what was not written yet is lost");
        }
    }
}

impl Asked {
    fn new(by: Signal) -> Self {
        let now = Instant::now();
        Self {
            by,
            given_up: false,
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

    fn retry(&self) -> Duration {
        if self.given_up { RETRY_GIVEN_UP } else { RETRY }
    }
}
