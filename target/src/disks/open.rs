//! Opening a disk: it is examined first, then locked, then opened once for each core.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use ringfab_base::VisiblePath as _;
use ringfab_block::{Backing, OpenedFile};
use ringfab_reactor::{FileOptions, inspect_file};

use super::denied;
use super::disk_handle::{DiskHandle, DiskLock};
use super::holder::Holder;
use crate::confinement;
use crate::disk_identity::{DiskIdentity, Fingerprint, InUse, OtherUse, Sharing};
use crate::model::Namespace;
use crate::worker::{self, WorkError};

/// How long one that is in use is tried again: what a killed process held, the kernel lets go of some time after it is
/// gone, because its ring still holds it. A process that lives will hardly let go.
const PATIENCE: Duration = Duration::from_secs(5);
const PATIENCE_WITH_THE_LIVING: Duration = Duration::from_secs(1);

/// How long one is tried again that is closed when the last commands of a namespace have ended, which was removed.
const CLOSING_PATIENCE: Duration = Duration::from_secs(3);
const RETRY: Duration = Duration::from_millis(50);

/// What is to be opened.
#[derive(Clone, Debug)]
pub(crate) struct OpenRequest {
    pub(crate) path: PathBuf,
    pub(crate) direct: bool,
    pub(crate) read_only: bool,
    pub(crate) sharing: Sharing,
    pub(crate) block_bytes: u32,
    /// How many cores need it.
    pub(crate) cores: usize,
    /// The namespace, as it is called in messages.
    pub(crate) name: String,
    /// Locks that may be of the same disk: that of the namespace, when it is opened again, or those of namespaces that
    /// go when it comes.
    pub(crate) disk_locks: Vec<Arc<DiskLock>>,
}

/// Why a disk is not open.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    /// Somebody has it, who lives or may be about to let go.
    #[error("{path} is in use by {}; write shared = true for it if that is meant", holder.text, path = path.visible())]
    Busy { path: PathBuf, holder: Holder },
    /// This process serves it.
    #[error("{path} is {name} already; write shared = true for both if that is meant", path = path.visible())]
    Served { path: PathBuf, name: String },
    /// This process serves it no longer, but commands for it run.
    #[error(
        "{path} is still being closed: {name} was removed, and its last commands have not ended; try again in a moment",
        path = path.visible()
    )]
    Closing { path: PathBuf, name: String },
    /// The system refuses, or it cannot be a disk.
    #[error("cannot open {path}: {source}", path = path.visible())]
    Open { path: PathBuf, source: io::Error },
    /// It is no disk of this shape.
    #[error("{path} {reason}", path = path.visible())]
    Unsuitable { path: PathBuf, reason: String },
    /// The driver of a device refuses, or hangs.
    #[error("{0}")]
    Device(String),
    /// Hosts would take it for another disk.
    #[error("{0}")]
    OtherDisk(String),
    /// It hangs.
    #[error(transparent)]
    Hangs(#[from] WorkError),
}

impl OpenRequest {
    /// What a namespace of a file needs; none for memory and null.
    pub(crate) fn of(namespace: &Namespace, subsystem: &str, cores: usize) -> Option<Self> {
        let Backing::File { path, direct, read_only } = namespace.backing() else { return None };
        Some(Self {
            path: path.clone(),
            direct: *direct,
            read_only: *read_only,
            sharing: Sharing::new(*read_only, namespace.shared()),
            block_bytes: namespace.block_bytes(),
            cores,
            name: format!("namespace {} of {subsystem}", namespace.nsid()),
            disk_locks: Vec::new(),
        })
    }

    /// Opens it, and waits no longer than `limit` for a path that hangs.
    pub(crate) fn open_within(&self, limit: Duration) -> Result<DiskHandle, Refusal> {
        let this = self.clone();
        worker::within("opening", &self.path, limit, move || this.open())?
    }

    /// The same, patiently where it is in use or still being closed.
    pub(crate) fn open_patiently(&self, limit: Duration) -> Result<DiskHandle, Refusal> {
        let begun = Instant::now();
        loop {
            match self.open_within(limit) {
                Err(Refusal::Busy { holder, .. }) if holder.may_let_go(begun.elapsed()) => {
                    std::thread::sleep(RETRY);
                }
                Err(Refusal::Closing { .. }) if begun.elapsed() < CLOSING_PATIENCE => {
                    std::thread::sleep(RETRY);
                }
                outcome => return outcome,
            }
        }
    }

    /// Opens it. This may take as long as it likes.
    fn open(&self) -> Result<DiskHandle, Refusal> {
        let metadata = fs::metadata(&self.path).map_err(|source| self.failed(source))?;
        let seen = DiskIdentity::of(&metadata).map_err(|source| self.failed(source))?;
        let disk_lock = match self.disk_locks.iter().find(|disk_lock| disk_lock.identity == seen) {
            Some(disk_lock) => Arc::clone(disk_lock),
            None => Arc::new(self.take_lock(seen)?),
        };
        let options = FileOptions { direct: self.direct, read_only: self.read_only };
        let mut files = Vec::new();
        for _ in 0..self.cores {
            let file = self.open_file(seen, self.direct, false)?;
            let info = inspect_file(&file, options).map_err(|source| self.failed(source))?;
            self.check_size(info.bytes, info.offset_align)?;
            files.push(OpenedFile { file: Arc::new(file), info, read_only: self.read_only });
        }
        let fingerprint = Fingerprint::of(&self.path, &metadata);
        Ok(DiskHandle::new(self.path.clone(), disk_lock, files, fingerprint))
    }

    /// Opens it for this process to hold, and keeps others away from it.
    fn take_lock(&self, seen: DiskIdentity) -> Result<DiskLock, Refusal> {
        let in_use = InUse::take(seen, self.sharing, &self.name);
        let in_use = in_use.map_err(|other| self.served(other))?;
        let exclusive = self.open_exclusively(seen)?;
        let file = self.open_file(seen, false, false)?;
        if matches!(seen, DiskIdentity::File { .. }) {
            self.lock(&file, seen)?;
        }
        Ok(DiskLock { identity: seen, file, exclusive: Mutex::new(exclusive), in_use })
    }

    /// A block device that nobody else may have.
    fn open_exclusively(&self, seen: DiskIdentity) -> Result<Option<File>, Refusal> {
        let exclusive = self.sharing == Sharing::Exclusive && matches!(seen, DiskIdentity::Device(_));
        exclusive.then(|| self.open_file(seen, false, true)).transpose()
    }

    /// Keeps others away from a disk that is held already, in the way that this namespace needs. Returns how it was
    /// held before: as what, and by which namespace.
    pub(crate) fn take_over(&self, disk_lock: &DiskLock) -> Result<(Sharing, String), Refusal> {
        let refused = |other| self.served(other);
        let before = disk_lock.in_use.change(self.sharing, &self.name).map_err(refused)?;
        let kept = match disk_lock.identity {
            DiskIdentity::File { .. } => self.lock(&disk_lock.file, disk_lock.identity),
            DiskIdentity::Device(_) => {
                let mut exclusive = disk_lock.exclusive.lock().unwrap_or_else(PoisonError::into_inner);
                match exclusive.is_some() && self.sharing == Sharing::Exclusive {
                    true => Ok(()),
                    false => self.open_exclusively(disk_lock.identity).map(|file| *exclusive = file),
                }
            }
        };
        match kept {
            Ok(()) => Ok(before),
            Err(refusal) => {
                // Nobody else has come in between: the change was made under the same lock as all others.
                let _back = disk_lock.in_use.change(before.0, &before.1);
                Err(refusal)
            }
        }
    }

    /// A lock of the kind that `flock` takes: it is the one whose holder the system names.
    fn lock(&self, file: &File, seen: DiskIdentity) -> Result<(), Refusal> {
        let locked = match self.sharing {
            Sharing::Exclusive => file.try_lock(),
            Sharing::ReadOnly | Sharing::Shared => file.try_lock_shared(),
        };
        match locked {
            Ok(()) => Ok(()),
            Err(TryLockError::WouldBlock) => Err(self.busy(seen)),
            Err(TryLockError::Error(error)) if is_unsupported(&error) => {
                let path = self.path.visible();
                tracing::warn!(%path, %error, "a file cannot be locked: nothing keeps others away");
                Ok(())
            }
            Err(TryLockError::Error(error)) => Err(self.failed(error)),
        }
    }

    /// Opens the path without waiting for anybody, and sees to it that it is what was looked at.
    fn open_file(&self, seen: DiskIdentity, direct: bool, exclusive: bool) -> Result<File, Refusal> {
        let mut flags = OFlag::O_NONBLOCK | OFlag::O_CLOEXEC | OFlag::O_NOCTTY;
        flags.set(OFlag::O_DIRECT, direct);
        flags.set(OFlag::O_EXCL, exclusive);
        let mut options = OpenOptions::new();
        let options = options.read(true).write(!self.read_only).custom_flags(flags.bits());
        let file = options.open(&self.path).map_err(|source| match source.raw_os_error() {
            Some(errno) if errno == nix::errno::Errno::EBUSY as i32 => self.busy(seen),
            Some(errno) if errno == nix::errno::Errno::EWOULDBLOCK as i32 => self.busy(seen),
            _ => self.failed(source),
        })?;
        let metadata = file.metadata().map_err(|source| self.failed(source))?;
        if DiskIdentity::of(&metadata).map_err(|source| self.failed(source))? != seen {
            let reason = "was replaced while it was opened".to_owned();
            return Err(Refusal::Unsuitable { path: self.path.clone(), reason });
        }
        // Of regular files and devices nobody needs it any more, and a ring would take it for "do not wait".
        let waits = if direct { OFlag::O_DIRECT } else { OFlag::empty() };
        fcntl(&file, FcntlArg::F_SETFL(waits)).map_err(|errno| self.failed(errno.into()))?;
        Ok(file)
    }

    fn check_size(&self, bytes: u64, offset_align: u32) -> Result<(), Refusal> {
        let block_bytes = self.block_bytes;
        let reason = match bytes {
            0 => "is empty: give it a size first, for instance with truncate".to_owned(),
            _ if bytes < u64::from(block_bytes) => {
                format!("has {bytes} bytes, which is less than one block of {block_bytes}")
            }
            _ if offset_align > block_bytes => {
                format!("cannot do blocks as small as configured: it needs {offset_align} bytes")
            }
            _ => return Ok(()),
        };
        Err(Refusal::Unsuitable { path: self.path.clone(), reason })
    }

    fn served(&self, OtherUse { name, ends }: OtherUse) -> Refusal {
        let path = self.path.clone();
        if ends { Refusal::Closing { path, name } } else { Refusal::Served { path, name } }
    }

    fn busy(&self, seen: DiskIdentity) -> Refusal {
        Refusal::Busy { path: self.path.clone(), holder: Holder::of(seen) }
    }

    fn failed(&self, source: io::Error) -> Refusal {
        let confined = confinement::refused_disk(&self.path);
        let confined = confined.filter(|_| source.kind() == io::ErrorKind::PermissionDenied);
        let source = match confined.or_else(|| denied::remedy(&self.path, &source)) {
            Some(why) => io::Error::new(source.kind(), format!("{source}: {why}")),
            None => source,
        };
        Refusal::Open { path: self.path.clone(), source }
    }
}

impl Holder {
    /// Whether it is worth waiting for, after so long.
    pub(crate) fn may_let_go(&self, waited: Duration) -> bool {
        waited < if self.lives { PATIENCE_WITH_THE_LIVING } else { PATIENCE }
    }
}

fn is_unsupported(error: &io::Error) -> bool {
    use nix::errno::Errno;
    [Errno::EOPNOTSUPP, Errno::ENOSYS, Errno::ENOLCK]
        .iter()
        .any(|one| error.raw_os_error() == Some(*one as i32))
}
