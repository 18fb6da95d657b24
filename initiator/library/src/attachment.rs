//! A subsystem that a host uses: its volumes, and the paths that lead to them.
//!
//! Volumes and paths do not know each other's state. This module takes what happens on a path, and has the volumes
//! decide what it means for their I/O.

use std::sync::Arc;

use ringfab_reactor::{Time, TimerId};
use ringfab_spec::CompletionEntry;

use crate::error::{ConnectError, IoError, SubmitError};
use crate::fences::Fences;
use crate::messages::{Message, PathPart, ToFollower, ToLeader};
use crate::namespace::{ControllerInfo, Namespace, NamespaceIdentity};
use crate::options::ConnectOptions;
use crate::path::{
    ADMIN_WAITING_MAX, FinalError, Followers, Path, PathEvent, QueueShare, SharedController, SharedPath,
};
use crate::path_status::PathStatus;
use crate::request::{AdminRequest, Asked, ControllerId, HostEvent, IoRequest, PathHandle, PathId, Refused};
use crate::resources::{Resources, Route, timer_token};
use crate::transport::{Arrival, ConnectionEvent};
use crate::url::{HostName, Url};
use crate::volume::{Identified, NamedPath, State, Volumes};

/// The most paths of an attachment.
pub(crate) const PATHS_MAX: usize = 32;

mod instances;

/// The volumes of a subsystem, and the paths to it.
pub(crate) struct Attachment {
    id: ControllerId,
    options: Arc<ConnectOptions>,
    volumes: Volumes,
    /// By their slots. One that has ended stays until its slot is used again, so that late messages for it are
    /// recognised.
    paths: Vec<Path>,
    /// Lost instances of their controllers; only the engine that leads has any.
    fences: Fences,
    /// Addresses that become paths once one is ready.
    found: Vec<HostName>,
    /// Whether all of it is being left.
    leaving: bool,
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
        let further =
            options.further_urls.iter().take(PATHS_MAX - 1).map(|url| Arc::new(options.at(url.clone())));
        let all: Vec<_> = std::iter::once(options.clone()).chain(further).collect();
        let share = |engine| QueueShare { engine, engines: 1 + others };
        let handle = |slot| PathHandle { controller: id, path: PathId::first(slot) };
        let ends: Vec<_> = all.iter().map(|_| FinalError::default()).collect();
        let shared = (1..=others).map(|engine| {
            let part = |((options, end), slot): ((&Arc<ConnectOptions>, &FinalError), u16)| {
                let mailbox = resources.mailbox.clone();
                SharedPath::new(options.clone(), share(engine), handle(slot), mailbox, end.clone())
            };
            let paths = all.iter().zip(&ends).zip(0..).map(part).collect();
            SharedController { options: options.clone(), share: share(engine), paths }
        });
        let shared = shared.collect();
        let mut this = Self::new(id, options, share(0), resources);
        let persists = all.len() > 1;
        for ((options, end), slot) in all.into_iter().zip(ends).zip(0..) {
            let followers = Followers::expect(others, end);
            this.volumes.expect_path(PathId::first(slot));
            this.paths.push(Path::attach(handle(slot), options, followers, persists, resources));
        }
        this.settle(resources);
        (this, shared)
    }

    /// Takes part in what another engine attaches.
    pub(crate) fn join(id: ControllerId, shared: SharedController, resources: &mut Resources) -> Self {
        let mut this = Self::new(id, shared.options, shared.share, resources);
        for part in shared.paths {
            let path = part.link.path();
            this.volumes.expect_path(path);
            this.paths.push(Path::join(PathHandle { controller: id, path }, part, resources));
        }
        this.settle(resources);
        this
    }

    /// One without paths, on the engine that has this share of the queues.
    fn new(
        id: ControllerId,
        options: Arc<ConnectOptions>,
        share: QueueShare,
        resources: &mut Resources,
    ) -> Self {
        let volumes = volumes(id, &options, share, resources);
        Self {
            id,
            options,
            volumes,
            paths: Vec::new(),
            fences: Fences::default(),
            found: Vec::new(),
            leaving: false,
            armed: None,
        }
    }

    /// Adds a path to the same subsystem.
    pub(crate) fn add_path(&mut self, resources: &mut Resources, url: Url) -> Result<PathId, SubmitError> {
        let there = self.paths.iter().filter(|path| !path.life.is_gone());
        if self.leaving {
            return Err(SubmitError::Gone);
        }
        let first = self.paths.iter().find(|path| !path.life.is_gone()).ok_or(SubmitError::Gone)?;
        let Some(followers) = first.role.followers() else {
            return Err(SubmitError::NoCommand("an admin queue on this engine"));
        };
        if self.volumes.state() == State::New {
            return Err(SubmitError::NotReady);
        }
        if url.subsystem_nqn() != self.options.url.subsystem_nqn() {
            return Err(SubmitError::Path("the address is of another subsystem"));
        }
        if there.into_iter().any(|path| path.leads_to(&url)) {
            return Err(SubmitError::Path("there is a path to that address already"));
        }
        // What is told of lost instances is told by the names of their paths, and so is its end to who joins late.
        let is_free = |path: &Path| {
            let is_awaited = path.role.followers().is_some_and(Followers::are_awaited);
            path.life.is_gone() && !is_awaited && !self.fences.has(path.life.handle().path)
        };
        let free = self.paths.iter().position(is_free);
        let path = match free {
            Some(slot) => self.paths[slot].life.handle().path.successor(),
            None if self.paths.len() < PATHS_MAX => PathId::first(self.paths.len() as u16),
            None => return Err(SubmitError::Path("there are as many paths as there may be")),
        };
        let (handle, options) = (PathHandle { controller: self.id, path }, Arc::new(self.options.at(url)));
        let followers = followers.invite(handle, &options, &resources.mailbox);
        let path = Path::attach(handle, options, followers, true, resources);
        Ok(self.insert(resources, path))
    }

    /// Puts a path into its slot.
    fn insert(&mut self, resources: &mut Resources, path: Path) -> PathId {
        let id = path.life.handle().path;
        self.volumes.expect_path(id);
        match self.paths.get_mut(id.index()) {
            Some(ended) => *ended = path,
            None => self.paths.push(path),
        }
        resources.events.push_with(|| HostEvent::PathAdded { controller: self.id, path: id });
        self.settle(resources);
        id
    }

    /// Removes a path, unless it is the last one, or the last one that takes I/O.
    pub(crate) fn remove_path(&mut self, resources: &mut Resources, id: PathId) -> Result<(), SubmitError> {
        let is_other = |path: &&Path| !path.life.is_leaving() && path.life.handle().path != id;
        let others = || self.paths.iter().filter(is_other);
        let (is_last, others_are_away) = (others().count() == 0, others().all(|path| path.io().is_none()));
        let path = self.paths.get_mut(id.index());
        let path = path
            .filter(|path| path.life.handle().path == id && !path.life.is_gone())
            .ok_or(SubmitError::NoPath)?;
        if !path.role.leads() {
            return Err(SubmitError::NoCommand("an admin queue on this engine"));
        }
        if is_last {
            return Err(SubmitError::Path("it is the last path; detaching ends it, too"));
        }
        if others_are_away && path.io().is_some() {
            return Err(SubmitError::Path("no other path is ready, so that I/O would have to wait"));
        }
        path.detach(resources, true);
        self.settle(resources);
        Ok(())
    }

    /// How the paths are, as this engine sees them.
    pub(crate) fn path_status(&self, now: Time) -> Vec<PathStatus> {
        let there = self.paths.iter().filter(|path| !path.life.is_gone());
        let status = there.map(|path| {
            let mut status = path.status(now);
            self.volumes.complete(now, &mut status);
            status
        });
        status.collect()
    }

    /// What the controller said of itself, once it was ready.
    pub(crate) fn info(&self) -> Option<&ControllerInfo> {
        self.paths.iter().find_map(|path| path.life.info())
    }

    /// The namespaces in use.
    pub(crate) fn namespaces(&self) -> &[Namespace] {
        self.volumes.namespaces()
    }

    /// Whether the host may forget it.
    #[inline]
    pub(crate) fn is_gone(&self) -> bool {
        self.paths.iter().all(|path| path.life.is_gone())
    }

    /// Commands without an answer, waiting ones included.
    pub(crate) fn outstanding(&self) -> usize {
        self.volumes.waiting().len()
            + self.paths.iter().map(|path| path.association.outstanding()).sum::<usize>()
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

    /// Has the controller of each path that can do what a program asks for.
    pub(crate) fn ask(&mut self, resources: &mut Resources, asked: &Asked) -> Result<(), SubmitError> {
        let (mut taken, mut refused) = (false, Err(SubmitError::Gone));
        for path in self.paths.iter_mut().filter(|path| !path.life.is_gone()) {
            match path.ask(resources, asked.clone()) {
                Ok(()) => taken = true,
                Err(reason) => refused = Err(reason),
            }
        }
        self.settle(resources);
        if taken { Ok(()) } else { refused }
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
                if sooner || self.volumes.is_attentive() {
                    self.volumes.note_answer(resources, route.path);
                    self.settle(resources);
                }
                return;
            }
            let from = NamedPath { id: route.path, path };
            self.volumes.refused(resources, from, command, entry.status());
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
        let id = message.path().path;
        if let Message::JoinPath { path, part } = message {
            return self.join_path(resources, path, *part);
        }
        let path = self.paths.get_mut(id.index()).filter(|path| path.life.handle().path == id);
        let Some(path) = path else { return Self::turn_away(message) };
        match message {
            message @ (Message::Resolved(_) | Message::Worked(_)) => path.on_thread(resources, message),
            Message::ToLeader { engine, what: what @ ToLeader::Left, .. } => {
                path.on_follower(resources, engine, what);
                // It does not take part in a path that it has not heard of either.
                for path in &mut self.paths {
                    path.on_follower(resources, engine, ToLeader::LeftBefore);
                }
            }
            Message::ToLeader { what: ToLeader::Detach { orderly }, .. } => {
                return self.detach(resources, orderly);
            }
            Message::ToLeader { engine, what, .. } => path.on_follower(resources, engine, what),
            Message::ToFollower { what, .. } => path.on_leader(resources, what),
            Message::JoinPath { .. } => {}
        }
        self.settle(resources);
    }

    /// Takes part in a path that was added.
    fn join_path(&mut self, resources: &mut Resources, handle: PathHandle, part: PathPart) {
        let slot = handle.path.index();
        let is_free = self.paths.get(slot).map_or(slot == self.paths.len(), |path| path.life.is_gone());
        if self.leaving || !is_free {
            return SharedPath::decline(&part);
        }
        let path = Path::join(handle, part.into(), resources);
        self.insert(resources, path);
    }

    /// Answers who joins what is gone, or is to take part in it.
    pub(crate) fn turn_away(message: Message) {
        match message {
            Message::ToLeader { what: ToLeader::Joined { follower, mailbox }, .. } => {
                SharedController::turn_away(follower, &mailbox);
            }
            Message::JoinPath { part, .. } => SharedPath::decline(&part),
            _ => {}
        }
    }

    /// The timer has fired.
    pub(crate) fn on_timer(&mut self, resources: &mut Resources) {
        self.armed = None;
        for path in &mut self.paths {
            path.on_timer(resources);
        }
        self.settle(resources);
        self.volumes.on_timer(resources);
        self.settle(resources);
    }

    /// Detaches, in order or at once.
    pub(crate) fn detach(&mut self, resources: &mut Resources, orderly: bool) {
        self.leaving = true;
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
                let path = &mut self.paths[index];
                let (id, connection) = (path.life.handle().path, path.instances.connection());
                path.liveness.set_undone(self.volumes.waiting().undone_by(id));
                self.volumes.take_back(id, connection, path.reports.unanswered());
                let Some(event) = path.reports.next() else { continue };
                settled = false;
                if matches!(event, PathEvent::Ready { .. }) {
                    self.found.extend(path.association.keep_address());
                }
                if let Some(event) = self.on_instance_event(resources, id, event) {
                    let from = NamedPath { id, path: &mut self.paths[index] };
                    let about = About { controller: self.id, leaving: self.leaving };
                    on_path_event(&mut self.volumes, resources, about, from, event);
                }
            }
            settled = settled && !self.fence(resources);
            if settled {
                self.volumes.dispatch(resources, &mut self.paths);
                settled = !self.drain(resources) && !self.give_up(resources);
            }
        }
        self.arm(resources);
        if !self.found.is_empty() && self.volumes.state() != State::New {
            self.add_found(resources);
        }
    }

    /// Has paths that are being left go on once nothing is outstanding. Says whether one did.
    fn drain(&mut self, resources: &mut Resources) -> bool {
        let volumes = &self.volumes;
        let mut paths = self.paths.iter_mut();
        if volumes.state() != State::Leaving {
            // What was written goes on by the others, and is flushed there.
            return volumes.is_attentive() && paths.any(|path| path.check_drained(resources, Vec::new));
        }
        volumes.waiting().len() == 0 && paths.any(|path| path.check_drained(resources, || volumes.written()))
    }

    /// If none of several paths was ready so far, and each has failed once, nothing is waited for. Says whether it is
    /// so.
    fn give_up(&mut self, resources: &mut Resources) -> bool {
        let is_lost = |path: &Path| path.life.is_gone() || path.has_failed_at_first();
        if self.volumes.state() != State::New || !self.paths.iter().all(is_lost) {
            return false;
        }
        let mut left = self.paths.iter_mut().filter(|path| !path.life.is_leaving()).peekable();
        let any = left.peek().is_some();
        left.for_each(|path| path.give_up(resources));
        any
    }

    /// Further addresses of a name become paths.
    fn add_found(&mut self, resources: &mut Resources) {
        for host in std::mem::take(&mut self.found) {
            let url = Url { host, ..self.options.url.clone() };
            if let Err(error) = self.add_path(resources, url.clone()) {
                tracing::debug!(peer = url.peer(), %error, "this address becomes no path");
            }
        }
    }

    /// Sets the reactor's timer to the next thing to do.
    fn arm(&mut self, resources: &mut Resources) {
        let paths = self.paths.iter().map(Path::next_deadline);
        let due = [self.volumes.due(resources.now()), self.fences.due()];
        let at = paths.chain(due).min().unwrap_or(Time::MAX);
        if self.armed.is_some_and(|(armed, _)| armed == at) {
            return;
        }
        self.disarm(resources);
        if at != Time::MAX {
            self.armed = Some((at, resources.reactor.set_timer(at, timer_token(self.id))));
        }
    }
}

/// Which controller an event is about, and whether all of it is being left.
#[derive(Clone, Copy)]
struct About {
    controller: ControllerId,
    leaving: bool,
}

/// Something has happened on a path: the volumes decide what it means.
fn on_path_event(
    volumes: &mut Volumes,
    resources: &mut Resources,
    about: About,
    from: NamedPath<'_>,
    event: PathEvent,
) {
    let NamedPath { id, path } = from;
    let controller = about.controller;
    match event {
        PathEvent::QueuesConnected => path.role.queues_connected(volumes.waiting().namespaces()),
        PathEvent::Ready { reconnected } => {
            volumes.path_is_ready(resources.now(), id);
            resources.events.push_with(|| HostEvent::Ready { controller, path: id, reconnected });
        }
        PathEvent::Lost(error) => {
            volumes.path_is_lost(resources.now(), id, &error);
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
                path.role.tell_followers(&ToFollower::Reauthenticate(keys.clone()));
            }
            let result = result.map(drop);
            resources.events.push_with(|| HostEvent::Reauthenticated { controller, path: id, result });
        }
        PathEvent::FailFast => volumes.fail_fast(resources, id),
        PathEvent::Drain => volumes.leave_path(resources.now(), id),
        PathEvent::Failed(error) => {
            let last = volumes.path_has_ended(resources, id, IoError::NoPath);
            note_failure(path, &error, last);
            resources.events.push_with(|| match last {
                true => HostEvent::Failed { controller, error },
                false => HostEvent::PathRemoved { controller, path: id, error: Some(error) },
            });
        }
        PathEvent::Detached(trouble) => {
            let why = if about.leaving { IoError::Cancelled } else { IoError::NoPath };
            match volumes.path_has_ended(resources, id, why) {
                true => resources.events.push_with(|| HostEvent::Detached { controller, trouble }),
                false if about.leaving => {}
                false => resources.events.push_with(|| HostEvent::PathRemoved {
                    controller,
                    path: id,
                    error: None,
                }),
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
        PathEvent::Identified { found, listed, subsystem } => {
            let needed = path.role.needed_by_followers();
            let identified = Identified { found, listed };
            let result = volumes.identify(resources.now(), id, &subsystem, identified, &needed);
            path.on_identified(resources, result.map(|()| volumes.namespaces()));
        }
        PathEvent::Adopt(found) => volumes.adopt(resources, found.to_vec()),
        PathEvent::Access(states) => {
            path.role.tell_followers(&ToFollower::Access(states.clone()));
            volumes.set_access(resources, id, Arc::unwrap_or_clone(states));
        }
        PathEvent::NamespacesChanged => volumes.set_rescanning(id, true),
        PathEvent::Changes(changed) if volumes.are_only_new(&changed) => {
            volumes.set_rescanning(id, false);
            path.role.tell_followers(&ToFollower::Rescanned(None));
        }
        PathEvent::NamespacesFound { found, final_look } => {
            volumes.take_namespaces(resources, found);
            if final_look {
                volumes.set_rescanning(id, false);
                path.role.tell_followers(&ToFollower::Rescanned(Some(Arc::from(volumes.namespaces()))));
            }
        }
        PathEvent::NamespacesKept => {
            volumes.set_rescanning(id, false);
            path.role.tell_followers(&ToFollower::Rescanned(None));
        }
        _ => {}
    }
}

/// Logs that a path is given up. Why the only one could not be attached at first is said by whoever wanted that.
fn note_failure(path: &Path, error: &ConnectError, last: bool) {
    match (last, path.life.was_ready()) {
        _ if !path.role.leads() => {}
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
    resources: &mut Resources,
) -> Volumes {
    let queues = usize::from(share.count(options.queues_wanted()).max(1));
    let depth = usize::from(options.depth_wanted()) * queues;
    let capacity = options.waiting_max + depth;
    resources.events.reserve(capacity + ADMIN_WAITING_MAX);
    resources.commands.provide(depth);
    Volumes::new(id, options.clone(), capacity)
}

#[cfg(test)]
mod tests;
