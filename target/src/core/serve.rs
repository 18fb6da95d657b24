//! What a core serves: its tables of namespaces and disks, and its listeners. The control side changes them.
//!
//! A change has two steps. In the first, each core prepares what is new: it opens disks and binds listeners. If this
//! fails on one core, all cores undo it. In the second, the core serves what is new, and no longer serves what was
//! removed. This step cannot fail. What stays the same is not touched.

use std::ptr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use ringfab_block::Backing;

use super::Core;
use super::message::{AwaitedEnd, ServeMessage, TakenAway};
use super::queues::Queues;
use crate::controller::Controller;
use crate::model::{Difference, Namespace, Served};
use crate::resources::Resources;
use crate::worker::{Task, Workers};

/// How long the release of a namespace's memory takes at most before it is shown as hanging.
const RELEASE_LIMIT: Duration = Duration::from_secs(60);

impl Core {
    pub(super) fn on_serve(&mut self, message: ServeMessage) -> Result<(), String> {
        let Self { resources, listeners, .. } = self;
        let Resources { disks, reactor, shared, core, .. } = &mut *resources;
        match message {
            ServeMessage::Open { subsystem, namespace, files } => {
                disks.open(&subsystem, &namespace, files.get(*core), reactor, shared)
            }
            ServeMessage::Listen(listener) if *core == 0 => {
                let bound = listeners.bind(resources, &listener);
                // An address that is in use is the asker's to try again.
                bound.map(drop).map_err(|error| error.to_string())
            }
            ServeMessage::Listen(_) => Ok(()),
            ServeMessage::Unlisten(listener) => {
                listeners.close(resources, &[listener]);
                Ok(())
            }
            ServeMessage::Discard(difference) => {
                difference.opened.iter().for_each(|(_, namespace)| disks.begin_to_close(namespace));
                listeners.close(resources, &difference.bound);
                self.close_unused_disks();
                Ok(())
            }
            ServeMessage::Serve { served, difference } => {
                self.serve(served, &difference);
                Ok(())
            }
            ServeMessage::Reopen { subsystem, namespace, files } => {
                disks.reopen(&subsystem, &namespace, files.get(*core), reactor, shared)
            }
            ServeMessage::Resize { index, bytes } => {
                if let Some(open) = disks.get_mut(index) {
                    open.disk.resize(bytes);
                }
                Ok(())
            }
        }
    }

    fn serve(&mut self, served: Arc<Served>, difference: &Difference) {
        self.resources.namespaces.change(&served, difference);
        let disks = &mut self.resources.disks;
        difference.closed.iter().for_each(|(_, namespace)| disks.begin_to_close(namespace));
        self.close_unused_disks();
        let Self { resources, queues, listeners, .. } = self;
        resources.served = served;
        resources.target.epoch.begin();
        if difference.is_restricted() || !difference.closed.is_empty() || difference.access_groups {
            queues.iter_mut().for_each(|queue| queue.refresh_namespaces(resources));
        }
        resources.refresh_limits();
        listeners.close(resources, &difference.unbound);
    }

    /// Closes the disks of removed namespaces that no command needs any more. Those that run keep theirs until the
    /// housekeeping looks again.
    pub(super) fn close_unused_disks(&mut self) {
        let Self { resources, queues, .. } = self;
        let Resources { disks, disk_operations, .. } = &mut *resources;
        let is_used = |index| {
            disk_operations.flushes.use_disk(index) || queues.iter().any(|queue| queue.uses_disk(index))
        };
        for open in disks.take_unused(is_used) {
            open.disk.close(&mut resources.reactor);
            release(&resources.workers, open.namespace);
        }
    }

    /// Answers those who wait for the end of what nothing here needs any more.
    pub(super) fn answer_awaited(&mut self) {
        let Self { awaited, resources, queues, .. } = self;
        let now = resources.reactor.now();
        awaited.retain(|(AwaitedEnd { taken_away, reply, .. }, until)| {
            let is_needed = needs(resources, queues, taken_away);
            if !is_needed && reply.send(()).is_err() {
                tracing::debug!("nobody waits any more for the end of what a change has taken away");
            }
            is_needed && now < *until
        });
    }
}

/// Whether something of a core still needs what a change has taken away: a command its disk, or a queue its controller.
fn needs(resources: &Resources, queues: &Queues, taken_away: &TakenAway) -> bool {
    let TakenAway { namespaces, controllers, access } = taken_away;
    let is_open = |gone: &Weak<Namespace>| {
        resources.disks.iter().any(|open| ptr::eq(Arc::as_ptr(&open.namespace), gone.as_ptr()))
    };
    let works = |(controller, disks): &(Arc<Controller>, Vec<usize>)| {
        let mut own = queues.iter().filter(|queue| queue.belongs_to(controller));
        own.any(|queue| disks.iter().any(|disk| queue.uses_disk(*disk)))
    };
    namespaces.iter().any(is_open)
        || access.iter().any(works)
        || controllers.iter().any(|controller| queues.iter().any(|queue| queue.belongs_to(controller)))
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
