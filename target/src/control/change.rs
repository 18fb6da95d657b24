//! Applies a change of what is served on all cores, or on none.

use std::sync::Arc;
use std::time::Duration;

use ringfab_block::{Backing, OpenedFile};

use crate::core::{AllCores, ServeMessage, TakenAway};
use crate::disks::{DiskHandle, DiskHandles};
use crate::model::{Difference, Listener, Namespace, Served, ServedError};
use crate::target::Target;

/// How often an address is tried again, some milliseconds later each time: the system may keep it for a while after its
/// listener is closed.
const UNBIND_RETRIES: usize = 400;

/// How long a change waits for the end of what it takes away: a disk that hangs holds up nobody for longer.
const END_LIMIT: Duration = Duration::from_secs(2);

/// Disks that were opened for namespaces which are to be served.
#[derive(Debug, Default)]
pub(super) struct OpenedDisks {
    pub(super) disks: Vec<(Arc<Namespace>, DiskHandle)>,
    /// Whether cores open the files that are not among these.
    by_cores: bool,
}

impl OpenedDisks {
    /// Cores open all of them.
    pub(super) fn by_cores() -> Self {
        Self { disks: Vec::new(), by_cores: true }
    }

    /// The disk that was opened for a namespace.
    pub(super) fn disk(&self, namespace: &Arc<Namespace>) -> Option<&DiskHandle> {
        let found = self.disks.iter().find(|(known, _)| Arc::ptr_eq(known, namespace));
        found.map(|(_, disk_handle)| disk_handle)
    }

    /// What each core gets of a namespace's disk: nothing when it is no file.
    fn files(&self, namespace: &Arc<Namespace>) -> Option<Vec<OpenedFile>> {
        match namespace.backing() {
            Backing::File { .. } if !self.by_cores => self.disk(namespace).map(DiskHandle::files),
            _ => Some(Vec::new()),
        }
    }
}

/// Serves `next` instead of what is served now. Cores get ready what is new before any of them serves it, and serve it
/// before any host is told of it: whatever a host is told of, every queue of it can reach. Controllers whose subsystem,
/// right or listener has gone are ended. What is the same before and after is not touched.
///
/// Then it waits for a while until no core needs any more what the change has taken away.
///
/// # Errors
/// Why a core cannot; nothing has changed then. When a core does not answer any more, the others have changed.
pub(super) fn apply(
    target: &Target,
    cores: &impl AllCores,
    disk_handles: &Arc<DiskHandles>,
    next: Served,
    opened: OpenedDisks,
) -> Result<(), String> {
    let now = target.served();
    if now.generation() + 1 != next.generation() {
        return Err(ServedError::Outdated.to_string());
    }
    let difference = Arc::new(Difference::between(&now, &next));
    let prepared = prepare(cores, disk_handles, &difference, opened);
    let published = prepared.and_then(|()| target.publish(next).map_err(|error| error.to_string()));
    let (served, difference) = match published {
        Ok(published) => published,
        Err(error) => {
            discard(cores, disk_handles, &difference, &error);
            return Err(error);
        }
    };
    let difference = Arc::new(difference);
    let access = target.begin_access(&now, &served, &difference);
    let serve = ServeMessage::Serve { served: Arc::clone(&served), difference: Arc::clone(&difference) };
    let outcome = cores.broadcast(serve);
    for (subsystem, namespace) in &difference.closed {
        disk_handles.stop(subsystem, namespace);
        disk_handles.note_removed(subsystem, namespace);
    }
    let ended = target.controllers_without_right(&served, &difference);
    for (controller, why) in &ended {
        cores.end_controller(controller, why);
    }
    target.move_to_listeners(&served, &difference);
    target.tell_hosts(&difference);
    let taken_away = TakenAway {
        namespaces: difference.closed.iter().map(|(_, namespace)| Arc::downgrade(namespace)).collect(),
        controllers: ended.into_iter().map(|(controller, _)| controller).collect(),
        access,
    };
    if !cores.await_end(taken_away, END_LIMIT) {
        tracing::info!("commands still run on what a change has taken away");
    }
    outcome
}

/// Opens what is new on all cores.
fn prepare(
    cores: &impl AllCores,
    disk_handles: &Arc<DiskHandles>,
    difference: &Difference,
    opened: OpenedDisks,
) -> Result<(), String> {
    let files: Vec<_> = difference.opened.iter().map(|(_, namespace)| opened.files(namespace)).collect();
    // Before any core has a share of a disk, it belongs to who closes it: no core ever does.
    for (namespace, disk_handle) in opened.disks {
        let found = difference.opened.iter().find(|(_, new)| Arc::ptr_eq(new, &namespace));
        if let Some((subsystem, namespace)) = found {
            disk_handles.serve(subsystem, namespace, disk_handle);
        }
    }
    for ((subsystem, namespace), files) in difference.opened.iter().zip(files) {
        // The disk of one that is missing is looked at from time to time.
        let Some(files) = files else { continue };
        let (subsystem, namespace) = (Arc::clone(subsystem), Arc::clone(namespace));
        cores.broadcast(ServeMessage::Open { subsystem, namespace, files: Arc::new(files) })?;
    }
    difference.bound.iter().try_for_each(|listener| {
        let mut replaced = difference.replaced_by(listener).peekable();
        if replaced.peek().is_none() {
            return cores.broadcast(ServeMessage::Listen(Arc::clone(listener)));
        }
        replaced.try_for_each(|old| cores.broadcast(ServeMessage::Unlisten(Arc::clone(old))))?;
        listen_after_another(cores, listener)
    })
}

/// Binds a listener on the address of one that is being closed: the system lets go of it a little later.
fn listen_after_another(cores: &impl AllCores, listener: &Arc<Listener>) -> Result<(), String> {
    for _ in 0..UNBIND_RETRIES {
        if cores.broadcast(ServeMessage::Listen(Arc::clone(listener))).is_ok() {
            return Ok(());
        }
        cores.pause();
    }
    cores.broadcast(ServeMessage::Listen(Arc::clone(listener)))
}

/// Takes back what some cores may have opened.
fn discard(
    cores: &impl AllCores,
    disk_handles: &Arc<DiskHandles>,
    difference: &Arc<Difference>,
    error: &str,
) {
    if let Err(error) = cores.broadcast(ServeMessage::Discard(Arc::clone(difference))) {
        tracing::error!(error, "a change could not be undone on all cores");
    }
    for old in difference.replaced() {
        if let Err(error) = listen_after_another(cores, old) {
            tracing::error!(error, "a listener that a change had closed cannot be bound again");
        }
    }
    for (subsystem, namespace) in &difference.opened {
        namespace.set_not_ready(error);
        disk_handles.stop(subsystem, namespace);
    }
}
