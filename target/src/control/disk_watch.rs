//! Checks the disks from time to time, and on request: their paths, their sizes, and whether missing disks are there
//! now.

use std::sync::Arc;
use std::time::Duration;

use ringfab_block::{DeviceIdentity, DriverHandle, OpenedFile};
use ringfab_reactor::clock;

use super::status::View;
use crate::core::{AllCores, ServeMessage};
use crate::disks::disk_handle::{DiskFacts, as_known};
use crate::disks::open::OpenRequest;
use crate::disks::{DiskHandle, device};
use crate::model::disk_failures;
use crate::model::{Namespace, Subsystem};

/// How long a look waits for a file that hangs; the next look tries again.
const POLL_LIMIT: Duration = Duration::from_secs(1);

/// Looks at the disks of a target that runs.
#[derive(Debug)]
pub(super) struct DiskWatch<'a>(pub(super) &'a View);

impl DiskWatch<'_> {
    /// Looks at the disks of all namespaces.
    pub(super) fn poll(&self) {
        for (subsystem, namespace) in self.0.target().served().namespaces() {
            disk_failures::note_left_out(namespace, subsystem.nqn(), clock());
            if let Err(error) = self.inspect(subsystem.subsystem(), namespace) {
                tracing::debug!(nsid = namespace.nsid(), error, "cannot check a namespace");
            }
        }
        // A core may have found that a disk is gone.
        self.0.target().groups_follow_disks();
    }

    /// Looks at the size of a namespace's file, or whether it can be opened now.
    pub(super) fn inspect(
        &self,
        subsystem: &Arc<Subsystem>,
        namespace: &Arc<Namespace>,
    ) -> Result<(), String> {
        if let Some(driver) = namespace.backing().driver() {
            return self.inspect_device(subsystem, namespace, driver);
        }
        let open_request = OpenRequest::of(namespace, subsystem.nqn(), self.0.cores().count());
        let Some(open_request) = open_request else { return Ok(()) };
        if !namespace.is_ready() {
            return self.try_again(subsystem, namespace, &open_request);
        }
        let inspect = self.0.cores().disk_handles().with(namespace, DiskHandle::inspect);
        let Some(inspect) = inspect else { return Ok(()) };
        let seen = inspect().map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
        note_name(subsystem, namespace, seen.detached.as_deref());
        namespace.set_used_bytes(seen.used_bytes);
        self.note_size(subsystem, namespace, &seen)
    }

    /// A namespace has another size: its hosts are told.
    pub(super) fn changed(&self, subsystem: &Arc<Subsystem>, namespace: &Namespace) {
        let (nsid, blocks) = (namespace.nsid(), namespace.blocks());
        let unused_bytes = namespace.health().unused_bytes;
        tracing::info!(
            subsystem = subsystem.nqn(),
            nsid,
            blocks,
            unused_bytes,
            "the size of a namespace has changed"
        );
        self.0.target().namespace_changed(subsystem, nsid);
    }

    /// A disk that was missing may be there now. One that an administrator has to look after is not touched.
    fn try_again(
        &self,
        subsystem: &Arc<Subsystem>,
        namespace: &Arc<Namespace>,
        open_request: &OpenRequest,
    ) -> Result<(), String> {
        if let Some(why) = namespace.needs_reopen() {
            return Err(why);
        }
        match open_request.open_within(POLL_LIMIT) {
            Ok(disk_handle) => {
                self.admit(subsystem, namespace, Some(&disk_handle))?;
                let files = disk_handle.files();
                self.0.cores().disk_handles().serve(subsystem, namespace, disk_handle);
                self.open(subsystem, namespace, files)
            }
            Err(error) => {
                let error = error.to_string();
                namespace.set_not_ready(error.as_str());
                Err(error)
            }
        }
    }

    /// Whether a namespace may have the disk that is there now: one that had its identifiers before, or the first.
    fn admit(
        &self,
        subsystem: &Subsystem,
        namespace: &Namespace,
        disk_handle: Option<&DiskHandle>,
    ) -> Result<(), String> {
        let (known_disks, nqn) = (self.0.target().known_disks(), subsystem.nqn());
        let now = as_known(nqn, namespace, disk_handle);
        if let Err(other) = known_disks.check(&now) {
            let why = other.to_be_confirmed();
            tracing::error!(subsystem = nqn, nsid = namespace.nsid(), why, "namespace not ready");
            namespace.hold_back(why.clone());
            return Err(why);
        }
        known_disks.note(vec![now]);
        Ok(())
    }

    /// The same for a device that a driver serves: its size, or whether it can be opened now.
    fn inspect_device(
        &self,
        subsystem: &Arc<Subsystem>,
        namespace: &Arc<Namespace>,
        driver: &DriverHandle,
    ) -> Result<(), String> {
        let was_ready = namespace.is_ready();
        if let Some(why) = namespace.needs_reopen().filter(|_| !was_ready) {
            return Err(why);
        }
        let looked = device::look(driver, POLL_LIMIT).inspect_err(|error| {
            if !was_ready {
                namespace.set_not_ready(error.as_str());
            }
        });
        let seen = looked?;
        if !was_ready {
            self.identify(namespace, seen.identity).inspect_err(|error| {
                namespace.set_not_ready(error.as_str());
            })?;
            self.admit(subsystem, namespace, None)?;
            return self.open(subsystem, namespace, Vec::new());
        }
        if let Some(found) = seen.identity {
            self.note_identity(subsystem, namespace, found)?;
        }
        let Some(bytes) = seen.bytes else { return Ok(()) };
        let seen = DiskFacts { bytes, used_bytes: None, block_device: true, detached: None };
        self.note_size(subsystem, namespace, &seen)
    }

    /// Notes which disk the driver of a namespace has found.
    pub(super) fn identify(
        &self,
        namespace: &Namespace,
        found: Option<DeviceIdentity>,
    ) -> Result<(), String> {
        device::identify(namespace, found, device::all(&self.0.target().served()))
    }

    /// The driver of a device that is served has found this disk. If hosts have another one, they reach neither.
    pub(super) fn note_identity(
        &self,
        subsystem: &Arc<Subsystem>,
        namespace: &Namespace,
        found: DeviceIdentity,
    ) -> Result<(), String> {
        let outcome = match namespace.opened_disk().identity() {
            Some(served) if served == found => return Ok(()),
            Some(served) => {
                let why =
                    format!("{} is another disk by now: {found} instead of {served}", namespace.source());
                disk_failures::fail_closed(namespace, subsystem.nqn(), &why);
                Err(why)
            }
            // It tells only now which disk it is: that may be another one than before the target started.
            None => match self.identify(namespace, Some(found)) {
                Ok(()) => self.admit(subsystem, namespace, None),
                Err(why) => {
                    disk_failures::fail_closed(namespace, subsystem.nqn(), &why);
                    Err(why)
                }
            },
        };
        if outcome.is_err() {
            self.0.target().namespace_changed(subsystem, namespace.nsid());
        }
        outcome
    }

    /// Cores serve a disk that was missing.
    pub(super) fn open(
        &self,
        subsystem: &Arc<Subsystem>,
        namespace: &Arc<Namespace>,
        files: Vec<OpenedFile>,
    ) -> Result<(), String> {
        self.0.cores().broadcast(ServeMessage::Open {
            subsystem: Arc::clone(subsystem),
            namespace: Arc::clone(namespace),
            files: Arc::new(files),
        })?;
        self.changed(subsystem, namespace);
        Ok(())
    }

    fn note_size(
        &self,
        subsystem: &Arc<Subsystem>,
        namespace: &Arc<Namespace>,
        seen: &DiskFacts,
    ) -> Result<(), String> {
        let (bytes, known) = (seen.bytes, namespace.disk_bytes());
        if bytes == known {
            return Ok(());
        }
        if bytes < known && !seen.block_device {
            let why = format!("its file was cut off, from {known} to {bytes} bytes");
            disk_failures::fail_closed(namespace, subsystem.nqn(), &why);
            self.0.target().namespace_changed(subsystem, namespace.nsid());
            return Ok(());
        }
        // No command may pass the check against the namespace's size and then not fit the disk.
        let growing = bytes > known;
        if !growing {
            namespace.set_ready(bytes, namespace.volatile_cache());
        }
        self.0.cores().broadcast(ServeMessage::Resize { index: namespace.index(), bytes })?;
        if growing {
            namespace.set_ready(bytes, namespace.volatile_cache());
        }
        self.changed(subsystem, namespace);
        Ok(())
    }
}

fn note_name(subsystem: &Subsystem, namespace: &Namespace, detached: Option<&str>) {
    if !namespace.set_detached(detached.map(str::to_owned)) {
        return;
    }
    let (subsystem, nsid) = (subsystem.nqn(), namespace.nsid());
    match detached {
        Some(what) => {
            tracing::warn!(subsystem, nsid, what, "the path of a disk is gone or leads to another file");
        }
        None => tracing::info!(subsystem, nsid, "the path of a disk leads to it again"),
    }
}
