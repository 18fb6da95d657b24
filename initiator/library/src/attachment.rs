//! A subsystem that a host uses: its volumes, and the paths that lead to them.
//!
//! Volumes and paths do not know each other's state. This module takes what happens on a path, and has the volumes
//! decide what it means for their I/O.

use std::sync::Arc;

use ringfab_reactor::{Time, TimerId};
use ringfab_spec::CompletionEntry;

use crate::error::{ConnectError, IoError, SubmitError};
use crate::fences::Fences;
use crate::messages::{Message, ToFollower, ToLeader};
use crate::namespace::{ControllerInfo, Namespace, NamespaceIdentity};
use crate::options::ConnectOptions;
use crate::path::{ADMIN_WAITING_MAX, FinalError, Followers, Path, PathEvent, QueueShare, SharedController};
use crate::request::{AdminRequest, Asked, ControllerId, HostEvent, IoRequest, PathHandle, PathId, Refused};
use crate::resources::{Resources, Route, timer_token};
use crate::transport::{Arrival, ConnectionEvent};
use crate::volume::{NamedPath, Volumes};

mod instances;

/// The volumes of a subsystem, and the paths to it.
pub(crate) struct Attachment {
    id: ControllerId,
    volumes: Volumes,
    /// By their names.
    paths: Vec<Path>,
    /// Lost instances of their controllers; only the engine that leads has any.
    fences: Fences,
    /// The timer of the reactor for what is due next.
    armed: Option<(Time, TimerId)>,
}

impl Attachment {
    /// Starts to attach, with as many other engines. They take what is returned.
    pub(crate) fn attach(
        id: ControllerId,
        options: ConnectOptions,
        others: u16,
        resources: &mut Resources,
    ) -> (Self, Vec<SharedController>) {
        let options = Arc::new(options);
        let (final_error, handle) = (FinalError::default(), PathHandle { controller: id, path: PathId(0) });
        let share = |engine| QueueShare { engine, engines: 1 + others };
        let shared = (1..=others)
            .map(|engine| {
                SharedController::new(
                    options.clone(),
                    share(engine),
                    handle,
                    resources.mailbox.clone(),
                    final_error.clone(),
                )
            })
            .collect();
        let volumes = volumes(id, &options, share(0), 1, resources);
        let path = Path::attach(handle, options, Followers::expect(others, final_error), resources);
        (Self::with_paths(id, volumes, vec![path], resources), shared)
    }

    /// Takes part in what another engine attaches.
    pub(crate) fn join(id: ControllerId, shared: SharedController, resources: &mut Resources) -> Self {
        let volumes = volumes(id, &shared.options, shared.share, 1, resources);
        let handle = PathHandle { controller: id, path: shared.link.path() };
        let path = Path::join(handle, shared, resources);
        Self::with_paths(id, volumes, vec![path], resources)
    }

    fn with_paths(id: ControllerId, volumes: Volumes, paths: Vec<Path>, resources: &mut Resources) -> Self {
        let mut this = Self { id, volumes, paths, fences: Fences::default(), armed: None };
        this.settle(resources);
        this
    }

    /// What the controller said of itself, once it was ready.
    pub(crate) fn info(&self) -> Option<&ControllerInfo> {
        self.paths.iter().find_map(Path::info)
    }

    /// The namespaces in use.
    pub(crate) fn namespaces(&self) -> &[Namespace] {
        self.volumes.namespaces()
    }

    /// Whether the host may forget it.
    #[inline]
    pub(crate) fn is_gone(&self) -> bool {
        self.paths.iter().all(Path::is_gone)
    }

    /// Commands without an answer, waiting ones included.
    pub(crate) fn outstanding(&self) -> usize {
        self.volumes.outstanding() + self.paths.iter().map(Path::outstanding).sum::<usize>()
    }

    /// Starts an I/O command, or lets it wait. Where a disk is named, its namespace has to be that one.
    #[inline]
    pub(crate) fn submit(
        &mut self,
        resources: &mut Resources,
        disk: Option<&NamespaceIdentity>,
        request: IoRequest,
    ) -> Result<(), Refused<IoRequest>> {
        if self.volumes.submit(resources, &mut self.paths, disk, request)? {
            self.arm(resources);
        }
        Ok(())
    }

    /// Starts an admin command on the first path that takes it, or lets it wait there for room.
    pub(crate) fn submit_admin(
        &mut self,
        resources: &mut Resources,
        request: AdminRequest,
    ) -> Result<(), Refused<AdminRequest>> {
        let mut refused = Refused { reason: SubmitError::Gone, request };
        for path in &mut self.paths {
            match path.submit_admin(resources, refused.request) {
                Ok(()) => {
                    self.arm(resources);
                    return Ok(());
                }
                Err(again) => refused = again,
            }
            if refused.reason == SubmitError::Full {
                break;
            }
        }
        Err(refused)
    }

    /// Has the controller of each path do what a program asks for.
    pub(crate) fn ask(&mut self, resources: &mut Resources, asked: &Asked) -> Result<(), SubmitError> {
        let mut paths = self.paths.iter_mut().filter(|path| !path.is_gone());
        let result = paths.try_for_each(|path| path.ask(resources, asked.clone()));
        self.settle(resources);
        result
    }

    /// Takes a response capsule, or something in its place.
    #[inline]
    pub(crate) fn on_response(
        &mut self,
        resources: &mut Resources,
        route: Route,
        entry: Option<&CompletionEntry>,
        arrival: Arrival,
    ) {
        let path = &mut self.paths[route.path.index()];
        let answered = path.on_response(resources, route.queue, entry, arrival);
        if let (Some(command), Some(entry)) = (answered, entry) {
            if entry.status().is_success() {
                resources.done(self.id, command, Ok(entry));
                let sooner = self.volumes.dispatch(resources, &mut self.paths);
                if sooner || self.volumes.is_leaving() {
                    self.settle(resources);
                }
                return;
            }
            let from = NamedPath { id: route.path, path };
            self.volumes.refused(resources, from, command, entry);
        }
        self.settle(resources);
    }

    /// Takes an event of a connection.
    pub(crate) fn on_event(&mut self, resources: &mut Resources, route: Route, event: ConnectionEvent) {
        self.paths[route.path.index()].on_event(resources, route.queue, event);
        self.settle(resources);
    }

    /// Takes a message of another thread.
    pub(crate) fn on_message(&mut self, resources: &mut Resources, message: Message) {
        let Some(path) = self.paths.get_mut(message.path().path.index()) else { return };
        match message {
            message @ (Message::Resolved(_) | Message::Worked(_)) => path.on_thread(resources, message),
            Message::ToLeader { engine, what, .. } => path.on_follower(resources, engine, what),
            Message::ToFollower { what, .. } => path.on_leader(resources, what),
        }
        self.settle(resources);
    }

    /// Answers who joins a controller that is gone.
    pub(crate) fn turn_away(message: Message) {
        if let Message::ToLeader { what: ToLeader::Joined { follower, mailbox }, .. } = message {
            SharedController::turn_away(follower, &mailbox);
        }
    }

    /// The timer has fired.
    pub(crate) fn on_timer(&mut self, resources: &mut Resources) {
        self.armed = None;
        for path in &mut self.paths {
            path.on_timer(resources);
        }
        self.settle(resources);
        self.volumes.release_due(resources.now());
        self.settle(resources);
    }

    /// Detaches, in order or at once.
    pub(crate) fn detach(&mut self, resources: &mut Resources, orderly: bool) {
        for path in &mut self.paths {
            path.detach(resources, orderly);
        }
        self.settle(resources);
    }

    /// Takes the timer back, at the end.
    pub(crate) fn disarm(&mut self, resources: &mut Resources) {
        if let Some((_, timer)) = self.armed.take() {
            resources.reactor.cancel_timer(timer);
        }
    }

    /// Has the volumes act on what has happened on the paths, and sends what can be sent.
    fn settle(&mut self, resources: &mut Resources) {
        let mut settled = false;
        while !settled {
            settled = true;
            for index in 0..self.paths.len() {
                let (id, path) = (PathId(index as u16), &mut self.paths[index]);
                path.liveness().set_delayed(self.volumes.delayed(id));
                let connection = path.connection();
                self.volumes.take_back(id, connection, path.reports().unanswered());
                let Some(event) = path.reports().next() else { continue };
                settled = false;
                if let Some(event) = self.on_instance_event(resources, id, event) {
                    let from = NamedPath { id, path: &mut self.paths[index] };
                    on_path_event(&mut self.volumes, resources, self.id, from, event);
                }
            }
            settled = settled && !self.fence(resources);
            if settled {
                self.volumes.dispatch(resources, &mut self.paths);
                settled = !self.drain(resources);
            }
        }
        self.arm(resources);
    }

    /// Has paths that are being left go on once nothing is outstanding. Says whether one did.
    fn drain(&mut self, resources: &mut Resources) -> bool {
        let volumes = &self.volumes;
        let empty = volumes.is_leaving() && volumes.outstanding() == 0;
        let mut paths = self.paths.iter_mut();
        empty && paths.any(|path| path.check_drained(resources, || volumes.written()))
    }

    /// Sets the reactor's timer to the next thing to do.
    fn arm(&mut self, resources: &mut Resources) {
        let paths = self.paths.iter().map(Path::next_deadline);
        let at = paths.chain([self.volumes.due(), self.fences.due()]).min().unwrap_or(Time::MAX);
        if self.armed.is_some_and(|(armed, _)| armed == at) {
            return;
        }
        self.disarm(resources);
        if at != Time::MAX {
            self.armed = Some((at, resources.reactor.set_timer(at, timer_token(self.id))));
        }
    }
}

/// Something has happened on a path: the volumes decide what it means.
fn on_path_event(
    volumes: &mut Volumes,
    resources: &mut Resources,
    controller: ControllerId,
    from: NamedPath<'_>,
    event: PathEvent,
) {
    let NamedPath { id, path } = from;
    match event {
        PathEvent::Identified { found, listed } => {
            let needed = path.role().needed_by_followers();
            let result = volumes.identify(found, &listed, &needed);
            path.on_identified(resources, result.map(|()| volumes.namespaces()));
        }
        PathEvent::QueuesConnected => path.role().queues_connected(volumes.needed()),
        PathEvent::Adopt(found) => volumes.adopt(resources, found.to_vec()),
        PathEvent::Ready { reconnected } => {
            volumes.path_is_ready(id);
            resources.events.push_with(|| HostEvent::Ready { controller, path: id, reconnected });
        }
        PathEvent::Lost(error) => {
            volumes.path_is_lost(id);
            resources.events.push_with(|| HostEvent::Lost { controller, path: id, error });
        }
        PathEvent::Reconnecting { attempt, delay } => {
            resources.events.push_with(|| HostEvent::Reconnecting { controller, path: id, attempt, delay });
        }
        PathEvent::DiscoveryLogChanged => {
            resources.events.push_with(|| HostEvent::DiscoveryLogChanged { controller, path: id });
        }
        PathEvent::Reauthenticated(result) => {
            if let Ok(keys) = &result {
                path.role().tell_followers(&ToFollower::Reauthenticate(keys.clone()));
            }
            let result = result.map(drop);
            resources.events.push_with(|| HostEvent::Reauthenticated { controller, path: id, result });
        }
        PathEvent::FailFast => volumes.fail_fast(resources, id),
        PathEvent::Drain => volumes.leave_path(id),
        PathEvent::Failed(error) => {
            let last = volumes.path_has_ended(resources, id, IoError::NoPath);
            note_failure(path, &error, last);
            if last {
                resources.events.push_with(|| HostEvent::Failed { controller, error });
            }
        }
        PathEvent::Detached(trouble) => {
            if volumes.path_has_ended(resources, id, IoError::Cancelled) {
                resources.events.push_with(|| HostEvent::Detached { controller, trouble });
            }
        }
        event => on_namespace_event(volumes, resources, NamedPath { id, path }, event),
    }
}

/// Namespaces may have changed, or were looked at again.
fn on_namespace_event(
    volumes: &mut Volumes,
    resources: &mut Resources,
    from: NamedPath<'_>,
    event: PathEvent,
) {
    let NamedPath { id, path } = from;
    match event {
        PathEvent::NamespacesChanged => volumes.namespaces_may_have_changed(id),
        PathEvent::Changes(changed) if volumes.are_only_new(&changed) => {
            volumes.end_rescan(id);
            path.role().tell_followers(&ToFollower::Rescanned(None));
        }
        PathEvent::NamespacesFound { found, final_look } => {
            volumes.take_namespaces(resources, found);
            if final_look {
                volumes.end_rescan(id);
                path.role().tell_followers(&ToFollower::Rescanned(Some(Arc::from(volumes.namespaces()))));
            }
        }
        PathEvent::NamespacesKept => {
            volumes.end_rescan(id);
            path.role().tell_followers(&ToFollower::Rescanned(None));
        }
        _ => {}
    }
}

/// Logs that a path is given up. Why the only one could not be attached at first is said by whoever wanted that.
fn note_failure(path: &Path, error: &ConnectError, last: bool) {
    match (last, path.info().is_some()) {
        _ if !path.role().leads() => {}
        (true, true) => tracing::warn!("I/O fails from now on: {error}"),
        (true, false) => {}
        (false, _) => tracing::warn!("a path is given up, and others are left: {error}"),
    }
}

/// Volumes with room for as much as may wait and be outstanding on this engine.
fn volumes(
    id: ControllerId,
    options: &Arc<ConnectOptions>,
    share: QueueShare,
    paths: usize,
    resources: &mut Resources,
) -> Volumes {
    let queues = usize::from(share.count(options.queues_wanted()).max(1));
    let depth = usize::from(options.depth_wanted()) * queues;
    let capacity = options.waiting_max + depth;
    resources.events.reserve(capacity + ADMIN_WAITING_MAX);
    resources.commands.provide(depth);
    Volumes::new(id, options.clone(), capacity, paths)
}

#[cfg(test)]
mod tests;
