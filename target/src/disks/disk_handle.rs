//! The open descriptors of a namespace's disk. The control side owns them, and the cores share them, so no core closes
//! one: closing a file may hang, and may report lost data.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ringfab_base::VisiblePath as _;
use ringfab_block::OpenedFile;

use crate::disk_identity::{DiskIdentity, Fingerprint, InUse};
use crate::known_disks::{Content, KnownDisk};
use crate::model::Namespace;
use crate::worker::{self, WorkError};

/// How long one look may take.
const INSPECT_LIMIT: Duration = Duration::from_secs(1);

/// What keeps others away from a disk, as long as it is served.
#[derive(Debug)]
pub(crate) struct DiskLock {
    pub(crate) identity: DiskIdentity,
    pub(crate) file: File,
    /// A block device that nobody else may have is open once more, exclusively.
    pub(crate) exclusive: Mutex<Option<File>>,
    pub(crate) in_use: InUse,
}

/// A disk that was opened for all cores.
#[derive(Debug)]
pub(crate) struct DiskHandle {
    path: PathBuf,
    /// None once it is being closed.
    disk_lock: Option<Arc<DiskLock>>,
    files: Vec<OpenedFile>,
    fingerprint: Fingerprint,
}

/// What was seen of a disk that is served.
#[derive(Debug)]
pub(crate) struct DiskFacts {
    /// Its size in bytes.
    pub(crate) bytes: u64,
    /// What a file takes of its file system.
    pub(crate) used_bytes: Option<u64>,
    pub(crate) block_device: bool,
    /// What has become of its name, when it does not lead to it any more.
    pub(crate) detached: Option<String>,
}

impl DiskHandle {
    pub(crate) fn new(
        path: PathBuf,
        disk_lock: Arc<DiskLock>,
        files: Vec<OpenedFile>,
        fingerprint: Fingerprint,
    ) -> Self {
        Self { path, disk_lock: Some(disk_lock), files, fingerprint }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn identity(&self) -> DiskIdentity {
        self.disk_lock().identity
    }

    pub(crate) fn disk_lock(&self) -> Arc<DiskLock> {
        Arc::clone(self.disk_lock.as_ref().expect("it is open until it is closed"))
    }

    /// What each core gets.
    pub(crate) fn files(&self) -> Vec<OpenedFile> {
        self.files.clone()
    }

    /// One of these.
    pub(crate) fn first_file(&self) -> Option<&OpenedFile> {
        self.files.first()
    }

    /// Its size in bytes when it was opened.
    pub(crate) fn bytes(&self) -> u64 {
        self.files.first().map_or(0, |first| first.info.bytes)
    }

    /// Whether a core still has it.
    pub(crate) fn in_use(&self) -> bool {
        self.files.iter().any(|one| Arc::strong_count(&one.file) > 1)
    }

    /// How long it is by now, and whether its name still leads to it.
    pub(crate) fn inspect(&self) -> impl FnOnce() -> Result<io::Result<DiskFacts>, WorkError> + use<> {
        let (path, at, disk_lock) = (self.path.clone(), self.path.clone(), self.disk_lock());
        move || worker::within("looking at", &at, INSPECT_LIMIT, move || inspect(&path, &disk_lock))
    }

    /// Writes back what the page cache holds of it. An error is one that no descriptor has told of since it was opened.
    pub(crate) fn sync(&self, limit: Duration) -> Result<io::Result<()>, WorkError> {
        let files = self.files();
        let sync = move || files.first().map_or(Ok(()), |first| first.file.sync_data());
        worker::within("flushing", &self.path, limit, sync)
    }

    /// Forgets what the page cache holds of it and the disk may not have.
    pub(crate) fn drop_cache(&self) {
        use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
        let file = Arc::clone(&self.files[0].file);
        let forget = move || posix_fadvise(&*file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
        match worker::within("dropping the page cache of", &self.path, INSPECT_LIMIT, forget) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "the page cache stays"),
            Err(error) => tracing::warn!(%error, "the page cache stays"),
        }
    }

    /// Closes it, when no core has it any more. What the system tells then, it tells once.
    pub(crate) fn close(mut self) -> Result<(), String> {
        self.close_all()
    }

    fn close_all(&mut self) -> Result<(), String> {
        let (files, disk_lock) = (std::mem::take(&mut self.files), self.disk_lock.take());
        if disk_lock.is_none() {
            return Ok(());
        }
        match worker::within("closing", &self.path, INSPECT_LIMIT, move || close(files, disk_lock)) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(format!("closing {} failed: {error}", self.path.visible())),
            Err(error) => {
                tracing::warn!(%error, "closing a file takes long");
                Ok(())
            }
        }
    }
}

/// What hosts find as a namespace with this disk, if it has one that is opened.
pub(crate) fn as_known(nqn: &str, namespace: &Namespace, disk_handle: Option<&DiskHandle>) -> KnownDisk {
    let content = disk_handle.map(|disk_handle| Content::Disk(disk_handle.fingerprint.clone()));
    let made = || Content::made(namespace.backing(), namespace.opened_disk().identity());
    with_content(nqn, namespace, content.unwrap_or_else(made))
}

/// What hosts find as a namespace with this behind it.
pub(crate) fn with_content(nqn: &str, namespace: &Namespace, content: Content) -> KnownDisk {
    let disk = KnownDisk::new(nqn, namespace.nsid(), namespace.block_bytes(), content);
    disk.with(Some(*namespace.nguid()), Some(namespace.uuid()))
}

impl Drop for DiskHandle {
    fn drop(&mut self) {
        if let Err(error) = self.close_all() {
            tracing::error!(error, "a disk was not closed in order");
        }
    }
}

/// Closes what nobody else has.
fn close(files: Vec<OpenedFile>, disk_lock: Option<Arc<DiskLock>>) -> io::Result<()> {
    let mut outcome = Ok(());
    let files = files.into_iter().filter_map(|one| Arc::into_inner(one.file));
    let disk_lock = disk_lock.and_then(Arc::into_inner);
    let held = disk_lock.map(|disk_lock| {
        let exclusive = disk_lock.exclusive.into_inner().unwrap_or_else(PoisonError::into_inner);
        exclusive.into_iter().chain([disk_lock.file])
    });
    for file in files.chain(held.into_iter().flatten()) {
        let closed = nix::unistd::close(OwnedFd::from(file)).map_err(io::Error::from);
        outcome = outcome.and(closed);
    }
    outcome
}

fn inspect(path: &Path, disk_lock: &DiskLock) -> io::Result<DiskFacts> {
    let metadata = disk_lock.file.metadata()?;
    let block_device = metadata.file_type().is_block_device();
    let used_bytes = (!block_device).then(|| metadata.blocks().saturating_mul(512));
    let bytes = (&disk_lock.file).seek(SeekFrom::End(0))?;
    let detached = match DiskIdentity::of_path(path) {
        Ok(found) if found == disk_lock.identity => None,
        Ok(_) => Some(format!("it is served, but {} is another file by now", path.visible())),
        Err(error) => Some(format!("it is served, but its name leads nowhere: {}: {error}", path.visible())),
    };
    Ok(DiskFacts { bytes, used_bytes, block_device, detached })
}
