//! The namespaces of a core: which there are, and its own disk of each.
//!
//! The control side has namespaces added, removed and resized by messages. A command finds its namespace in the core's
//! own table when it comes, and its disk by a position that stays the same as long as it runs.

use std::sync::{Arc, mpsc};

use ringfab_block::{Backing, Disk, DiskTokens, OpenedFile, Shared};
use ringfab_reactor::Reactor;

use super::{Core, owner};
use crate::disks::keepers::Opened;
use crate::model::Namespace;
use crate::resources::disks::{Disks, Namespaces, put};
use crate::target::Target;

/// What a core does about a namespace, for the control side.
#[derive(Debug)]
pub(crate) enum NamespaceMessage {
    /// Serve it from now on, with a descriptor for each core when it is a file.
    Open { subsystem: usize, namespace: Arc<Namespace>, files: Arc<Vec<OpenedFile>>, reply: Reply },
    /// Go on with the same disk opened anew. What has begun ends on the old one.
    Reopen { subsystem: usize, namespace: Arc<Namespace>, files: Arc<Vec<OpenedFile>>, reply: Reply },
    /// Take no more commands for it. Its disk is closed when the last of those that run has ended.
    Remove { subsystem: usize, nsid: u32, reply: Reply },
    /// Its backing has another size in bytes.
    Resize { index: usize, bytes: u64, reply: Reply },
}

/// Where a core says that it is done, or why it cannot.
pub(crate) type Reply = mpsc::Sender<Result<(), String>>;

/// Opens every namespace's backing on this core; files were opened before, unless the core is alone and does it
/// itself. One that is missing is reported as not ready; the rest is served.
pub(super) fn open_all(
    target: &Target,
    reactor: &mut Reactor,
    shared: &Shared,
    opened: Option<&Opened>,
) -> (Namespaces, Disks) {
    let (mut namespaces, mut disks) = (Namespaces::default(), Disks::new());
    for subsystem in target.subsystems() {
        for namespace in subsystem.namespaces() {
            namespaces.insert(subsystem.index(), &namespace);
            let file = opened.and_then(|opened| opened.get(&namespace.index()));
            if opened.is_some() && file.is_none() && matches!(namespace.backing(), Backing::File { .. }) {
                continue;
            }
            match open(&namespace, file, reactor, shared) {
                Ok(disk) => put(&mut disks, subsystem.index(), &namespace, disk),
                Err(error) => {
                    let (subsystem, nsid) = (subsystem.nqn(), namespace.nsid());
                    tracing::error!(subsystem, nsid, error, "namespace not ready");
                    namespace.set_not_ready(error);
                }
            }
        }
    }
    (namespaces, disks)
}

/// Opens a namespace's backing, or takes the file that was opened for it, and reports its size.
fn open(
    namespace: &Namespace,
    file: Option<&OpenedFile>,
    reactor: &mut Reactor,
    shared: &Shared,
) -> Result<Disk, String> {
    let number = u16::try_from(namespace.index()).map_err(|_| "this target has too many disks".to_owned())?;
    let tokens = DiskTokens::new(owner::DISK, number);
    let disk = match file {
        Some(file) => Disk::adopt(file, reactor, shared, tokens).map_err(|error| error.to_string()),
        None => Disk::open(namespace.backing(), reactor, shared, tokens).map_err(|error| error.to_string()),
    }?;
    let properties = disk.properties();
    if properties.offset_align > namespace.block_bytes() {
        disk.close(reactor);
        let needs = properties.offset_align;
        return Err(format!("the disk cannot do blocks as small as configured: it needs {needs} bytes"));
    }
    namespace.set_ready(properties.bytes, properties.volatile_cache);
    Ok(disk)
}

impl Core {
    pub(super) fn on_namespace(&mut self, message: NamespaceMessage) {
        let (reply, outcome) = match message {
            NamespaceMessage::Open { subsystem, namespace, files, reply } => {
                (reply, self.open_namespace(subsystem, &namespace, &files))
            }
            NamespaceMessage::Reopen { subsystem, namespace, files, reply } => {
                (reply, self.reopen_namespace(subsystem, &namespace, &files))
            }
            NamespaceMessage::Remove { subsystem, nsid, reply } => {
                self.remove_namespace(subsystem, nsid);
                (reply, Ok(()))
            }
            NamespaceMessage::Resize { index, bytes, reply } => {
                if let Some(open) = self.resources.disks.get_mut(index).and_then(Option::as_mut) {
                    open.disk.resize(bytes);
                }
                (reply, Ok(()))
            }
        };
        if reply.send(outcome).is_err() {
            tracing::debug!("an answer about a namespace came too late");
        }
    }

    fn open_namespace(
        &mut self,
        subsystem: usize,
        namespace: &Arc<Namespace>,
        files: &[OpenedFile],
    ) -> Result<(), String> {
        let resources = &mut self.resources;
        // When it was missing at the start, it may have been missing for other cores only.
        if resources.disks.get(namespace.index()).is_some_and(Option::is_some) {
            return Ok(());
        }
        let disk = open(namespace, files.get(resources.core), &mut resources.reactor, &resources.shared)?;
        put(&mut resources.disks, subsystem, namespace, disk);
        resources.namespaces.insert(subsystem, namespace);
        Ok(())
    }

    fn reopen_namespace(
        &mut self,
        subsystem: usize,
        namespace: &Arc<Namespace>,
        files: &[OpenedFile],
    ) -> Result<(), String> {
        let resources = &mut self.resources;
        let Some(Some(open)) = resources.disks.get_mut(namespace.index()) else {
            return self.open_namespace(subsystem, namespace, files);
        };
        match files.get(resources.core) {
            Some(file) => open.disk.replace(file, &mut resources.reactor).map_err(|error| error.to_string()),
            None => open.disk.reopen(&mut resources.reactor).map_err(|error| error.to_string()),
        }
    }

    /// Opens the disk of a namespace anew, on a target of one core that opens its files itself; for simulations. What
    /// was lost is given up.
    ///
    /// # Errors
    /// When it cannot be opened, or there is no such namespace.
    pub fn reopen(&mut self, namespace: &Arc<Namespace>) -> Result<(), String> {
        let found =
            self.resources.disks.iter().flatten().find(|open| Arc::ptr_eq(&open.namespace, namespace));
        let subsystem = found.ok_or("there is no such namespace")?.subsystem;
        self.reopen_namespace(subsystem, namespace, &[])?;
        namespace.reopened();
        Ok(())
    }

    fn remove_namespace(&mut self, subsystem: usize, nsid: u32) {
        let Some(namespace) = self.resources.namespaces.remove(subsystem, nsid) else { return };
        if let Some(open) = self.resources.disks.get_mut(namespace.index()).and_then(Option::as_mut) {
            open.closing = true;
            self.resources.namespaces.closing.push(namespace.index());
        }
        self.close_disks();
    }

    /// Closes the disks of removed namespaces that no command needs any more. Those that run keep theirs until the
    /// housekeeping looks again.
    pub(super) fn close_disks(&mut self) {
        let closing = std::mem::take(&mut self.resources.namespaces.closing);
        for index in closing {
            let used = self.queues.iter().flatten().any(|queue| queue.uses_disk(index));
            match self.resources.disks[index].take() {
                Some(open) if open.closing && !used => {
                    self.forget_disk(open.progress);
                    open.disk.close(&mut self.resources.reactor);
                }
                open => {
                    self.resources.disks[index] = open;
                    self.resources.namespaces.closing.push(index);
                }
            }
        }
    }
}
