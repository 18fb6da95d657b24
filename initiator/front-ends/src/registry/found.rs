//! The entries that are there, and which of them live.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use ringfab_base::VisiblePath as _;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::facts::Ended;
use super::folder::{folder, path};
use super::{Answer, Asked, ENTRY_BYTES_MAX, Facts, Status, is_at, read, remove};

/// How long somebody who lives may take to say how it is.
const PATIENCE: Duration = Duration::from_secs(2);
const RETRY: Duration = Duration::from_millis(20);
/// How often to look whether an entry is gone whose program goes on.
const LOOK: Duration = Duration::from_millis(50);
/// An entry that is being written is looked at so often.
const ATTEMPTS: usize = 5;

/// An entry.
pub(crate) struct Found {
    pub(crate) facts: Facts,
    path: PathBuf,
    /// Its lock, if nobody else has it: then it is dead.
    dead: Option<Flock<File>>,
}

/// All entries of this user, the oldest first.
///
/// # Errors
/// When the folder is there and cannot be read.
pub(crate) fn entries() -> Result<Vec<Found>> {
    let Some(folder) = path().filter(|folder| folder.exists()) else { return Ok(Vec::new()) };
    let listed = fs::read_dir(&folder).with_context(|| format!("list {}", folder.visible()))?;
    let paths = listed.flatten().map(|entry| entry.path());
    let paths = paths.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
    let mut found: Vec<Found> = paths.filter_map(|path| look(&path)).collect();
    found.sort_by_key(|found| (found.facts.started_s, found.facts.pid));
    Ok(found)
}

fn look(path: &Path) -> Option<Found> {
    for _ in 0..ATTEMPTS {
        let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
        let mut file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path).ok()?;
        file.metadata().ok().filter(fs::Metadata::is_file)?;
        let read = read(&mut file);
        // Taken for a moment where it lives; whoever wants it waits that long.
        let (dead, file) = match Flock::lock(file, FlockArg::LockSharedNonblock) {
            Ok(lock) => (Some(lock), None),
            Err((file, Errno::EWOULDBLOCK)) => (None, Some(file)),
            Err(_) => return None,
        };
        match (read, dead) {
            (Ok(Some(facts)), dead) => return Some(Found { facts, path: path.to_owned(), dead }),
            // Nothing is in it, so there is nothing to clean up.
            (_, Some(lock)) if is_at(&lock, path) => {
                remove(&path.with_extension("sock"));
                remove(path);
                return None;
            }
            _ => drop(file),
        }
        std::thread::sleep(RETRY);
    }
    None
}

/// The entry of this name, if there is one that can be read.
///
/// # Errors
/// When there can be no folder.
pub(crate) fn entry(name: &str) -> Result<Option<Found>> {
    Ok(look(&folder()?.join(format!("{name}.json"))))
}

/// How the mount of an entry has ended. None when the entry does not say.
pub(crate) fn ended(mut entry: File) -> Option<Ended> {
    read(&mut entry).ok().flatten().map(|facts| facts.ended())
}

/// A program, whose end can be waited for.
pub(super) struct Program(Option<OwnedFd>);

impl Program {
    fn of(pid: u32) -> Self {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        // One that has ended already is no program, and somebody else may have its number: the lock decides.
        Self(pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()))
    }

    /// Waits until it has ended, for as long as this at most.
    pub(super) fn wait(&self, limit: Duration) {
        let timeout = PollTimeout::try_from(limit).unwrap_or(PollTimeout::ZERO);
        let ended = self.0.as_ref().map(|program| {
            let mut end = [PollFd::new(program.as_fd(), PollFlags::POLLIN)];
            poll(&mut end, timeout).is_ok_and(|count| count > 0)
        });
        match ended {
            Some(false) => {}
            // Its lock goes a moment before or after it.
            Some(true) | None => std::thread::sleep(RETRY.min(limit)),
        }
    }
}

impl Found {
    /// Whether its program lives.
    pub(crate) fn is_living(&self) -> bool {
        self.dead.is_none()
    }

    /// Its name.
    pub(crate) fn name(&self) -> String {
        self.path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// How it is, asked of its program.
    pub(crate) fn status(&self) -> Option<Status> {
        serde_json::from_slice(&self.ask(&Asked::Status).ok()?).ok()
    }

    /// Has its program do something. Returns when that has begun, or was refused.
    ///
    /// # Errors
    /// It does not answer, or cannot do it.
    pub(crate) fn have(&self, asked: &Asked) -> Result<Answer> {
        let answer = self.ask(asked).with_context(|| {
            format!(
                "process {} does not answer at its socket in the folder of what is attached",
                self.facts.pid
            )
        })?;
        let answer: Answer = serde_json::from_slice(&answer).context("take its answer")?;
        ensure!(
            answer.begun || answer.refused.is_some(),
            "process {} is of an older version, which cannot do this",
            self.facts.pid
        );
        Ok(answer)
    }

    fn ask(&self, what: &Asked) -> io::Result<Vec<u8>> {
        let mut client = UnixStream::connect(self.path.with_extension("sock"))?;
        client.set_read_timeout(Some(PATIENCE))?;
        client.set_write_timeout(Some(PATIENCE))?;
        client.write_all(what.text().as_bytes())?;
        client.shutdown(Shutdown::Write)?;
        let mut text = Vec::new();
        client.take(ENTRY_BYTES_MAX).read_to_end(&mut text)?;
        Ok(text)
    }

    /// The entry, to be read also when it is gone.
    pub(crate) fn open(&self) -> Option<File> {
        File::open(&self.path).ok()
    }

    /// Removes a dead entry.
    pub(crate) fn forget(self) {
        if self.dead.as_ref().is_some_and(|lock| is_at(lock, &self.path)) {
            remove(&self.path.with_extension("sock"));
            remove(&self.path);
        }
    }

    /// Its program.
    pub(super) fn program(&self) -> Program {
        Program::of(self.facts.pid)
    }

    /// Whether its program has ended by now. Another one may have an entry of this name.
    pub(crate) fn has_ended(&self) -> bool {
        let Ok(mut file) = File::open(&self.path) else { return true };
        let facts = read(&mut file).ok().flatten();
        let is_same = |facts: &Facts| (facts.pid, facts.started_s) == (self.facts.pid, self.facts.started_s);
        if facts.is_some_and(|facts| !is_same(&facts)) {
            return true;
        }
        Flock::lock(file, FlockArg::LockSharedNonblock).is_ok()
    }

    /// Waits until its program has ended, and says whether it has.
    pub(crate) fn wait_for_end(&self, limit: Duration) -> bool {
        let (program, until) = (self.program(), Instant::now() + limit);
        while !self.has_ended() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            program.wait(left.min(LOOK));
        }
        true
    }
}
