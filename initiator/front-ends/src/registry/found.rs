//! The entries that are there, and which of them live.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};
use ringfab_base::VisiblePath as _;

use super::folder::path;
use super::{ASK_RESET, ASK_STATUS, ENTRY_BYTES_MAX, Facts, ResetAnswer, Status, is_at, read, remove};

/// How long somebody who lives may take to say how it is.
const PATIENCE: Duration = Duration::from_secs(2);
const RETRY: Duration = Duration::from_millis(20);
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

/// How many commands had failed when the program of an entry ended. None when the entry does not say.
pub(crate) fn failed_commands(mut entry: File) -> Option<u64> {
    read(&mut entry).ok().flatten().map(|facts| facts.failed_commands)
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
        serde_json::from_slice(&self.ask(ASK_STATUS).ok()?).ok()
    }

    /// Has its program reset the controller. Returns when that has begun.
    ///
    /// # Errors
    /// Why it has not.
    pub(crate) fn reset(&self) -> Result<ResetAnswer> {
        let answer = self.ask(ASK_RESET).with_context(|| {
            format!(
                "process {} does not answer at its socket in the folder of what is attached",
                self.facts.pid
            )
        })?;
        serde_json::from_slice(&answer).context("take its answer")
    }

    fn ask(&self, what: &[u8]) -> io::Result<Vec<u8>> {
        let mut client = UnixStream::connect(self.path.with_extension("sock"))?;
        client.set_read_timeout(Some(PATIENCE))?;
        client.set_write_timeout(Some(PATIENCE))?;
        client.write_all(what)?;
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

    /// Waits until its program has ended, and says whether it has.
    pub(crate) fn wait_for_end(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        while Instant::now() < until {
            let Ok(file) = File::open(&self.path) else { return true };
            if Flock::lock(file, FlockArg::LockSharedNonblock).is_ok() {
                return true;
            }
            std::thread::sleep(RETRY);
        }
        false
    }
}
