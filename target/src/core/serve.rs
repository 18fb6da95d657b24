//! What a core serves: its tables of namespaces and disks, and its listeners. The control side changes them.
//!
//! A change has two steps. In the first, each core prepares what is new: it opens disks and binds listeners. If this
//! fails on one core, all cores undo it. In the second, the core serves what is new, and no longer serves what was
//! removed. This step cannot fail. What stays the same is not touched.
//!
//! A command finds its namespace in the core's own table when it arrives, and its disk by a position that does not
//! change while the command runs.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use ringfab_block::{Backing, Disk, DiskTokens, OpenedFile, Shared};
use ringfab_reactor::Reactor;

use super::{Core, owner};
use crate::controller::Controller;
use crate::disks::disk_handles::Opened;
use crate::model::{Difference, Listener, Namespace, Served, ShownNamespace, Subsystem};
use crate::resources::disks::{Disks, Namespaces, put};
use crate::worker::{Task, Workers};

/// What a core does about what it serves, for the control side.
#[derive(Clone, Debug)]
pub(crate) enum ServeMessage {
    /// Get ready to serve a namespace, with a descriptor for each core when it is a file.
    Open { subsystem: Arc<Subsystem>, namespace: Arc<Namespace>, files: Arc<Vec<OpenedFile>> },
    /// Bind a listener. Only the first core does.
    Listen(Arc<Listener>),
    /// Close a listener before its successor on the same address is bound.
    Unlisten(Arc<Listener>),
    /// Take back what was got ready.
    Discard(Arc<Difference>),
    /// Serve this from now on. No command is taken any more for a namespace that is gone; its disk is closed when the
    /// last of those that run has ended.
    Serve { served: Arc<Served>, difference: Arc<Difference> },
    /// Go on with the same disk opened anew. What has begun ends on the old one.
    Reopen { subsystem: Arc<Subsystem>, namespace: Arc<Namespace>, files: Arc<Vec<OpenedFile>> },
    /// The backing of a namespace has another size in bytes.
    Resize { index: usize, bytes: u64 },
}

/// How long the release of a namespace's memory takes at most before it is shown as hanging.
const RELEASE_LIMIT: Duration = Duration::from_secs(60);

/// Where a core says that it is done, or why it cannot.
pub(crate) type Reply = mpsc::Sender<Result<(), String>>;

/// The way to all cores, for whoever changes what they serve.
pub(crate) trait AllCores {
    /// How many there are.
    fn count(&self) -> usize;

    /// Has every core do the same, and waits until all have.
    ///
    /// # Errors
    /// What the first core says that cannot; the others may have done it.
    fn broadcast(&self, message: ServeMessage) -> Result<(), String>;

    /// Ends a controller with all its queues.
    fn end_controller(&self, controller: &Arc<Controller>, reason: &str);
}

/// Opens every namespace's backing on this core; files were opened before, unless the core is alone and does it itself.
/// One that is missing is reported as not ready; the rest is served.
pub(super) fn open_all(
    served: &Served,
    reactor: &mut Reactor,
    shared: &Shared,
    opened: Option<&Opened>,
) -> (Namespaces, Disks) {
    let (mut namespaces, mut disks) = (Namespaces::default(), Disks::new());
    for (subsystem, namespace) in served.namespaces() {
        if subsystem.shows_to_all(namespace.nsid()) {
            namespaces.insert(subsystem.subsystem(), namespace);
        }
        if opened.is_some_and(|opened| opened.is_missing(namespace)) {
            continue;
        }
        let file = opened.and_then(|opened| opened.file(namespace));
        match open(namespace, file, reactor, shared) {
            Ok(disk) => put(&mut disks, subsystem.subsystem(), namespace, disk),
            Err(error) => {
                let (subsystem, nsid) = (subsystem.nqn(), namespace.nsid());
                if namespace.set_not_ready(error.as_str()) {
                    tracing::error!(subsystem, nsid, error, "namespace not ready");
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
    pub(super) fn on_serve(&mut self, message: ServeMessage) -> Result<(), String> {
        match message {
            ServeMessage::Open { subsystem, namespace, files } => {
                self.open_namespace(&subsystem, &namespace, &files)
            }
            ServeMessage::Listen(listener) if self.resources.core == 0 => {
                let bound = self.listeners.bind(&mut self.resources, &listener);
                // An address that is in use is the asker's to try again.
                bound.map(drop).map_err(|error| error.to_string())
            }
            ServeMessage::Listen(_) => Ok(()),
            ServeMessage::Unlisten(listener) => {
                self.listeners.close(&mut self.resources, &[listener]);
                Ok(())
            }
            ServeMessage::Discard(difference) => {
                difference.opened.iter().for_each(|(_, namespace)| self.close_disk(namespace));
                self.listeners.close(&mut self.resources, &difference.bound);
                Ok(())
            }
            ServeMessage::Serve { served, difference } => {
                self.serve(served, &difference);
                Ok(())
            }
            ServeMessage::Reopen { subsystem, namespace, files } => {
                self.reopen_namespace(&subsystem, &namespace, &files)
            }
            ServeMessage::Resize { index, bytes } => {
                if let Some(open) = self.resources.disks.get_mut(index).and_then(Option::as_mut) {
                    open.disk.resize(bytes);
                }
                Ok(())
            }
        }
    }

    fn serve(&mut self, served: Arc<Served>, difference: &Difference) {
        for (subsystem, namespace) in &difference.closed {
            self.resources.namespaces.remove(subsystem, namespace);
            self.close_disk(namespace);
        }
        for (subsystem, namespace) in &difference.opened {
            if served.of(subsystem).is_some_and(|one| one.shows_to_all(namespace.nsid())) {
                self.resources.namespaces.insert(subsystem, namespace);
            }
        }
        for ShownNamespace { after, nsid, .. } in &difference.shown {
            match after.namespace(*nsid) {
                Some(namespace) if after.shows_to_all(*nsid) => {
                    self.resources.namespaces.insert(after.subsystem(), namespace);
                }
                Some(namespace) => self.resources.namespaces.remove(after.subsystem(), namespace),
                None => {}
            }
        }
        self.resources.served = served;
        if difference.is_restricted() || !difference.closed.is_empty() {
            for queue in self.queues.iter_mut().flatten() {
                queue.refresh_namespaces(&mut self.resources);
            }
        }
        self.resources.refresh_limits();
        self.listeners.close(&mut self.resources, &difference.unbound);
    }

    fn open_namespace(
        &mut self,
        subsystem: &Arc<Subsystem>,
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
        Ok(())
    }

    fn reopen_namespace(
        &mut self,
        subsystem: &Arc<Subsystem>,
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
        let subsystem = Arc::clone(&found.ok_or("there is no such namespace")?.subsystem);
        self.reopen_namespace(&subsystem, namespace, &[])?;
        namespace.reopened();
        Ok(())
    }

    /// The disk of a namespace is closed when no command needs it any more.
    fn close_disk(&mut self, namespace: &Arc<Namespace>) {
        let open = self.resources.disks.get_mut(namespace.index()).and_then(Option::as_mut);
        if let Some(open) = open.filter(|open| Arc::ptr_eq(&open.namespace, namespace)) {
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
                    self.forget_disk(&open.namespace, open.progress);
                    open.disk.close(&mut self.resources.reactor);
                    release(&self.resources.workers, open.namespace);
                }
                open => {
                    self.resources.disks[index] = open;
                    self.resources.namespaces.closing.push(index);
                }
            }
        }
    }
}

/// Lets go of a namespace. With the last share of one in memory, gigabytes may go back to the system, which takes
/// longer than a core has.
fn release(workers: &Workers, namespace: Arc<Namespace>) {
    if !matches!(namespace.backing(), Backing::Memory(_)) {
        return;
    }
    let task = Task::new("releasing the memory of", namespace.source(), RELEASE_LIMIT);
    let released = workers.submit(task, move || drop(namespace), |_| ());
    if let Err(error) = released {
        tracing::debug!(%error, "a core releases memory by itself");
    }
}
