//! What this machine has attached: an entry for each mount, and for each server of files or of a network block device.
//!
//! An entry is a file with the facts that do not change, and a socket that says how the connection is, or has the
//! controller reset. Whoever made the entry has the file locked while it lives. So an entry without a lock is what a
//! killed program has left, and nobody has to trust its process number.
//!
//! The folder is `/run/ringfab-initiator`, or `$XDG_RUNTIME_DIR/ringfab-initiator` of a user. It is not the folder of
//! the target, `/run/ringfab`: that belongs to the target's user and goes when the target stops.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`asked`] | what is asked over the socket |
//! | [`facts`] | what an entry says |
//! | [`folder`] | where entries are |
//! | [`found`] | the entries that are there, and which of them live |
//! | [`path_report`] | how a path is |
//! | [`standing`] | how a mount is by now that an entry says is there |

mod asked;
mod facts;
mod folder;
mod found;
mod path_report;
mod standing;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};
use ringfab_base::VisiblePath as _;
use ringfab_initiator::Namespace;
use ringfab_initiator::blocking::Controller;
use serde::Serialize;

use crate::options::ConnectArgs;

pub(crate) use asked::{Answer, Asked};
#[cfg(test)]
pub(crate) use facts::seconds;
pub(crate) use facts::{Disk, Ended, Facts, Kind, Status, disks};
pub(crate) use folder::{ensure_noted, exists, folder};
pub(crate) use found::{Found, ended, entries, entry};
pub(crate) use path_report::{GroupReport, PathReport};
pub(crate) use standing::Standing;

/// How long somebody who only looks may hold a lock.
const LOOKERS: Duration = Duration::from_millis(500);
const RETRY: Duration = Duration::from_millis(10);
/// The longest that is asked over the socket.
const ASK_BYTES_MAX: u64 = 4096;
/// The longest entry that is read.
const ENTRY_BYTES_MAX: u64 = 1 << 20;
/// How long to wait for what somebody asks, and to write an answer to somebody who does not read it.
const PATIENCE: Duration = Duration::from_secs(1);

/// An entry of ours. Dropping it takes it away, once it was written.
pub(crate) struct Entry {
    path: PathBuf,
    file: Flock<File>,
    socket: Option<Socket>,
    /// What somebody has left there, for whoever cleans up. It is overwritten by ours.
    stays: bool,
}

/// The thread that says how it is.
struct Socket {
    path: PathBuf,
    over: Arc<AtomicBool>,
}

/// What trying to get an entry comes to.
pub(crate) enum Claim {
    /// It is ours. With it, what somebody has left there who was killed.
    Ours(Entry, Option<Facts>),
    /// Somebody who lives has it. What they say of it, if they do already.
    Taken(Option<Facts>),
}

impl Entry {
    /// Gets the entry of this name.
    ///
    /// # Errors
    /// When the folder cannot be used.
    pub(crate) fn claim(name: &str) -> Result<Claim> {
        let path = folder()?.join(format!("{name}.json"));
        let until = Instant::now() + LOOKERS;
        loop {
            let mut file = open(&path).with_context(|| format!("open {}", path.visible()))?;
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(mut file) if is_at(&file, &path) => {
                    let before = read(&mut file).ok().flatten();
                    let stays = before.is_some();
                    return Ok(Claim::Ours(Self { path, file, socket: None, stays }, before));
                }
                // Somebody has removed it meanwhile.
                Ok(_) => {}
                Err((_, Errno::EWOULDBLOCK)) if Instant::now() < until => std::thread::sleep(RETRY),
                Err((locked, Errno::EWOULDBLOCK)) => {
                    file = locked;
                    return Ok(Claim::Taken(read(&mut file).ok().flatten()));
                }
                Err((_, error)) => bail!("lock {}: {error}", path.visible()),
            }
        }
    }

    /// Writes the facts.
    ///
    /// # Errors
    /// When they cannot be written.
    pub(crate) fn write(&mut self, facts: &Facts) -> Result<()> {
        let text = serde_json::to_vec_pretty(facts).context("make JSON")?;
        self.stays = false;
        let write = |file: &mut File| {
            file.rewind()?;
            file.write_all(&text)?;
            file.set_len(text.len() as u64)
        };
        write(&mut self.file).with_context(|| format!("write {}", self.path.visible()))
    }

    /// Says from now on how it is, to all who ask, and does for them what they ask of the controller. `mounted`: the
    /// disk, where only one counts.
    ///
    /// # Errors
    /// When there is no socket, or no thread.
    pub(crate) fn tell(&mut self, controller: Controller, mounted: Option<Namespace>) -> Result<()> {
        let path = self.path.with_extension("sock");
        // The lock says that whoever listened there is gone.
        remove(&path);
        let listener = UnixListener::bind(&path).with_context(|| format!("listen on {}", path.visible()))?;
        let over = Arc::new(AtomicBool::new(false));
        self.socket = Some(Socket { path, over: over.clone() });
        let serve = move || {
            for client in listener.incoming() {
                if over.load(Ordering::Acquire) {
                    return;
                }
                match client.and_then(|client| answer(client, &controller, mounted.as_ref())) {
                    Ok(()) => {}
                    // Too many files are open, or so: not as fast as possible again.
                    Err(error) => {
                        tracing::debug!(%error, "a status was not told");
                        std::thread::sleep(RETRY);
                    }
                }
            }
        };
        std::thread::Builder::new().name("status".to_owned()).spawn(serve).context("start a thread")?;
        Ok(())
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if let Some(socket) = self.socket.take() {
            socket.over.store(true, Ordering::Release);
            // It looks when somebody comes. One that cannot be reached ends with the process.
            let _woken = UnixStream::connect(&socket.path);
            remove(&socket.path);
        }
        if !self.stays {
            // The socket is not ours where we have not come so far as to have one: a killed program has left it.
            remove(&self.path.with_extension("sock"));
            remove(&self.path);
        }
    }
}

/// An entry for a server of this process; none, with a line in the log, where the folder cannot be used.
pub(crate) fn announce(facts: &Facts, controller: &Controller) -> Option<Entry> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("{}-{}-{number}", facts.kind.name(), std::process::id());
    warn_of_mounts(facts);
    let made = || -> Result<Entry> {
        forget_dead();
        let Claim::Ours(mut entry, _) = Entry::claim(&name)? else { bail!("{name} is taken") };
        entry.write(facts)?;
        entry.tell(controller.clone(), None)?;
        Ok(entry)
    };
    match made() {
        Ok(entry) => Some(entry),
        Err(error) => {
            tracing::warn!(
                "`ringfab list` does not show this, and `ringfab reset` does not find it: {error:#}"
            );
            None
        }
    }
}

/// Facts of a server that this process is about to be, at a controller.
pub(crate) fn facts(kind: Kind, connect: &ConnectArgs, controller: &Controller) -> Facts {
    let mut url = connect.url.clone();
    url.namespace = connect.nsid.or(url.namespace);
    Facts::new(kind, &url, &controller.info().subsystem, &controller.namespaces())
}

/// The mounts of a namespace, and how each is once what is about to end has ended. Those that have ended are left out.
/// `matters` chooses the entries that are to be waited for.
///
/// # Errors
/// When the folder is there and cannot be read.
pub(crate) fn mounts_of(
    nqn: &str,
    nsid: u32,
    matters: impl Fn(&Found) -> bool,
) -> Result<Vec<(Found, Standing)>> {
    let mut found = entries()?;
    found.retain(|found| found.facts.kind == Kind::Mount && found.is_living());
    found.retain(|found| found.facts.nqn == nqn && found.facts.has(nsid) && matters(found));
    let settled = found.into_iter().map(|found| {
        let standing = found.settled();
        (found, standing)
    });
    Ok(settled.filter(|(_, standing)| *standing != Standing::Over).collect())
}

/// Warns of disks that this process is about to serve for writing, although they are mounted.
fn warn_of_mounts(facts: &Facts) {
    for disk in facts.namespaces.iter().filter(|_| !facts.read_only) {
        for (mount, standing) in mounts_of(&facts.nqn, disk.nsid, |_| true).into_iter().flatten() {
            tracing::warn!(
                "{}; who writes to it here as well destroys its file system",
                standing.of_namespace(disk.nsid, &mount.facts)
            );
        }
    }
}

/// Removes entries of servers that were killed, unless files that they served are mounted still: whoever comes next
/// removes everything else that these leave.
pub(crate) fn forget_dead() {
    let is_mounted = |found: &Found| found.facts.directory.as_deref().is_some_and(has_dead_server);
    for found in entries().into_iter().flatten() {
        if !found.is_living() && found.facts.kind != Kind::Mount && !is_mounted(&found) {
            found.forget();
        }
    }
}

/// Whether a directory is that of a FUSE server which has died. What the kernel remembers of it answers other
/// questions.
pub(crate) fn has_dead_server(directory: &Path) -> bool {
    fs::read_dir(directory).is_err_and(|error| error.raw_os_error() == Some(Errno::ENOTCONN as i32))
}

fn open(path: &Path) -> io::Result<File> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(flags.bits());
    options.open(path)
}

/// Whether the path leads to this file still.
fn is_at(file: &File, path: &Path) -> bool {
    let same =
        |ours: fs::Metadata, there: fs::Metadata| (ours.dev(), ours.ino()) == (there.dev(), there.ino());
    file.metadata().is_ok_and(|ours| path.symlink_metadata().is_ok_and(|there| same(ours, there)))
}

/// The facts in a file; none while it is empty.
fn read(file: &mut File) -> Result<Option<Facts>> {
    let mut text = Vec::new();
    file.rewind()?;
    file.take(ENTRY_BYTES_MAX).read_to_end(&mut text)?;
    if text.is_empty() {
        return Ok(None);
    }
    Ok(Some(serde_json::from_slice(&text)?))
}

/// Answers somebody who asks for something.
fn answer(mut client: UnixStream, controller: &Controller, mounted: Option<&Namespace>) -> io::Result<()> {
    client.set_read_timeout(Some(PATIENCE))?;
    let mut asked = Vec::new();
    let read = (&client).take(ASK_BYTES_MAX).read_to_end(&mut asked);
    let status = Status::of(controller, mounted);
    let asked = if read.is_ok() { Asked::of(&asked) } else { Asked::Status };
    match asked.begin(controller) {
        None => say(&mut client, &status),
        Some(result) => say(&mut client, &Answer::new(result, status)),
    }
}

fn say(client: &mut UnixStream, what: &impl Serialize) -> io::Result<()> {
    client.set_write_timeout(Some(PATIENCE))?;
    client.write_all(&serde_json::to_vec(what)?)
}

fn remove(path: &Path) {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::debug!(%error, path = %path.visible(), "not removed");
        }
        _ => {}
    }
}
