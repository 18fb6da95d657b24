//! Exchanges the disk under a namespace that is served: it was opened anew, or its file is longer.

use std::path::Path;
use std::sync::Arc;

use ringfab_base::VisiblePath as _;
use ringfab_block::{DriverHandle, OpenedFile};

use super::apply::{Applier, REQUEST_LIMIT};
use super::disk_watch::DiskWatch;
use crate::core::{AllCores, ServeMessage};
use crate::disks::disk_handle::as_known;
use crate::disks::grow::grow;
use crate::disks::{DiskHandle, device};
use crate::known_disks::{KnownDisk, KnownDisks};
use crate::model::{Namespace, Subsystem};
use crate::worker;

/// Who exchanges disks.
#[derive(Debug)]
pub(super) struct Exchange<'a>(pub(super) &'a Applier);

impl Exchange<'_> {
    /// Has the cores go on with a disk that was opened anew.
    pub(super) fn disk(
        &self,
        subsystem: &Arc<Subsystem>,
        namespace: &Arc<Namespace>,
        disk_handle: DiskHandle,
    ) -> Result<(), String> {
        let served = self.0.disk_handles().with(namespace, DiskHandle::identity);
        if namespace.is_ready() && served.is_some_and(|served| served != disk_handle.identity()) {
            let path = disk_handle.path().visible();
            return Err(format!(
                "{path} is another disk by now than the one that is served: put that back, or remove the \
                 namespace and add it"
            ));
        }
        let now = as_known(subsystem.nqn(), namespace, Some(&disk_handle));
        confirm(self.0.target().known_disks(), namespace, &now)?;
        // What fails only now would be told once, too.
        let synced = disk_handle.sync(REQUEST_LIMIT).map_err(|error| error.to_string())?;
        synced.map_err(|error| format!("{} still fails: {error}", disk_handle.path().visible()))?;
        disk_handle.drop_cache();
        let files = Arc::new(disk_handle.files());
        let (bytes, was_ready) = (disk_handle.bytes(), namespace.is_ready());
        if let Err(error) = self.reopen_on_cores(subsystem, namespace, files) {
            self.0.disk_handles().close_later(subsystem, namespace, disk_handle);
            return Err(error);
        }
        self.0.target().known_disks().note(vec![now]);
        self.0.disk_handles().serve(subsystem, namespace, disk_handle);
        let changed = namespace.set_ready(bytes, namespace.volatile_cache() || !was_ready);
        if changed {
            DiskWatch(&self.0.view).changed(subsystem, namespace);
        }
        Ok(())
    }

    /// Has the cores go on with the device that its driver finds now.
    pub(super) fn device(
        &self,
        subsystem: &Arc<Subsystem>,
        namespace: &Arc<Namespace>,
        driver: &DriverHandle,
    ) -> Result<(), String> {
        let disk_watch = DiskWatch(&self.0.view);
        let seen = device::look(driver, REQUEST_LIMIT)?;
        if namespace.is_ready() {
            // What hosts use is not exchanged under them.
            seen.identity.map_or(Ok(()), |found| disk_watch.note_identity(subsystem, namespace, found))?;
        } else {
            disk_watch.identify(namespace, seen.identity)?;
        }
        let now = as_known(subsystem.nqn(), namespace, None);
        confirm(self.0.target().known_disks(), namespace, &now)?;
        self.reopen_on_cores(subsystem, namespace, Arc::default())?;
        self.0.target().known_disks().note(vec![now]);
        let bytes = seen.bytes.unwrap_or_else(|| namespace.disk_bytes());
        if bytes != namespace.disk_bytes() {
            self.0.cores().broadcast(ServeMessage::Resize { index: namespace.index(), bytes })?;
        }
        if namespace.set_ready(bytes, namespace.volatile_cache()) {
            disk_watch.changed(subsystem, namespace);
        }
        Ok(())
    }

    fn reopen_on_cores(
        &self,
        subsystem: &Arc<Subsystem>,
        namespace: &Arc<Namespace>,
        files: Arc<Vec<OpenedFile>>,
    ) -> Result<(), String> {
        self.0.cores().broadcast(ServeMessage::Reopen {
            subsystem: Arc::clone(subsystem),
            namespace: Arc::clone(namespace),
            files,
        })
    }

    /// Makes a regular file longer: the very one that is served, whatever its name is by now.
    pub(super) fn grow(&self, namespace: &Namespace, path: &Path, bytes: u64) -> Result<(), String> {
        let served = self.0.disk_handles().with(namespace, DiskHandle::identity);
        let served = served.ok_or("the namespace is not ready")?;
        let at = path.to_owned();
        let grown = worker::within("resizing", path, REQUEST_LIMIT, move || grow(&at, served, bytes));
        grown.map_err(|error| error.to_string())?
    }
}

/// Whether a namespace may have a disk that hosts would take for another one: only if whoever asks has read so.
fn confirm(known_disks: &KnownDisks, namespace: &Namespace, now: &KnownDisk) -> Result<(), String> {
    let Err(other) = known_disks.check(now) else { return Ok(()) };
    let why = other.to_be_confirmed();
    if namespace.needs_reopen().as_ref() == Some(&why) {
        return Ok(());
    }
    namespace.hold_back(why.clone());
    Err(why)
}
