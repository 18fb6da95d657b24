//! A subsystem that a host uses: its volumes, and the paths that lead to them.
//!
//! Volumes and paths do not know each other's state. This module takes what happens on a path, and has the volumes
//! decide what it means for their I/O.

use std::sync::Arc;

use ringfab_reactor::{Time, TimerId};
use ringfab_spec::CompletionEntry;

use crate::core::{Core, Route, timer_token};
use crate::error::IoError;
use crate::messages::{Message, ToFollower, ToLeader};
use crate::namespace::{ControllerInfo, Namespace, NamespaceIdentity};
use crate::options::ConnectOptions;
use crate::path::{ADMIN_WAITING_MAX, Followers, GivenUp, Path, PathEvent, Share, SharedController};
use crate::request::{AdminRequest, ControllerId, HostEvent, IoRequest, Refused};
use crate::transport::Event;
use crate::volume::Volumes;

/// The volumes of a subsystem, and the paths to it.
pub(crate) struct Attachment {
    id: ControllerId,
    volumes: Volumes,
    paths: Vec<Path>,
    /// The timer of the reactor for what is due next.
    armed: Option<(Time, TimerId)>,
}

impl Attachment {
    /// Starts to attach, with as many other engines. They take what is returned.
    pub(crate) fn attach(
        id: ControllerId,
        options: ConnectOptions,
        others: u16,
        core: &mut Core,
    ) -> (Self, Vec<SharedController>) {
        let options = Arc::new(options);
        let given_up = GivenUp::default();
        let share = |engine| Share { engine, engines: 1 + others };
        let shared = (1..=others)
            .map(|engine| {
                SharedController::new(
                    options.clone(),
                    share(engine),
                    id,
                    core.mailbox.clone(),
                    given_up.clone(),
                )
            })
            .collect();
        let volumes = volumes(id, &options, share(0), core);
        let path = Path::attach(id, 0, options, Followers::expect(others, given_up), core);
        (Self::with_path(id, volumes, path, core), shared)
    }

    /// Takes part in what another engine attaches.
    pub(crate) fn join(id: ControllerId, shared: SharedController, core: &mut Core) -> Self {
        let volumes = volumes(id, &shared.options, shared.share, core);
        let path = Path::join(id, 0, shared, core);
        Self::with_path(id, volumes, path, core)
    }

    fn with_path(id: ControllerId, volumes: Volumes, path: Path, core: &mut Core) -> Self {
        let mut this = Self { id, volumes, paths: vec![path], armed: None };
        this.settle(core);
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
        core: &mut Core,
        disk: Option<&NamespaceIdentity>,
        request: IoRequest,
    ) -> Result<(), Refused<IoRequest>> {
        if self.volumes.submit(core, &mut self.paths, disk, request)? {
            self.arm(core);
        }
        Ok(())
    }

    /// Starts an admin command, or lets it wait for room.
    pub(crate) fn submit_admin(
        &mut self,
        core: &mut Core,
        request: AdminRequest,
    ) -> Result<(), Refused<AdminRequest>> {
        self.paths[0].submit_admin(core, request)?;
        self.arm(core);
        Ok(())
    }

    /// Takes a response capsule, or something in its place.
    #[inline]
    pub(crate) fn on_response(
        &mut self,
        core: &mut Core,
        route: Route,
        entry: Option<&CompletionEntry>,
        invalidated: Option<u32>,
    ) {
        let path = &mut self.paths[usize::from(route.path)];
        let answered = path.on_response(core, route.queue, entry, invalidated);
        if let (Some(command), Some(entry)) = (answered, entry) {
            if entry.status().is_success() {
                core.done(self.id, command, Ok(entry));
                let sooner = self.volumes.dispatch(core, &mut self.paths);
                if sooner || self.volumes.is_leaving() {
                    self.settle(core);
                }
                return;
            }
            self.volumes.refused(core, path, command, entry);
        }
        self.settle(core);
    }

    /// Takes an event of a connection.
    pub(crate) fn on_event(&mut self, core: &mut Core, route: Route, event: Event) {
        self.paths[usize::from(route.path)].on_event(core, route.queue, event);
        self.settle(core);
    }

    /// Takes a message of another thread.
    pub(crate) fn on_message(&mut self, core: &mut Core, message: Message) {
        let path = &mut self.paths[0];
        match message {
            Message::Resolved(resolved) => path.on_resolved(core, resolved),
            Message::ToLeader { engine, what, .. } => path.on_follower(core, engine, what),
            Message::ToFollower { what, .. } => path.on_leader(core, what),
        }
        self.settle(core);
    }

    /// Answers who joins a controller that is gone.
    pub(crate) fn turn_away(message: Message) {
        if let Message::ToLeader { what: ToLeader::Joined { follower, mailbox }, .. } = message {
            SharedController::turn_away(follower, &mailbox);
        }
    }

    /// The timer has fired.
    pub(crate) fn on_timer(&mut self, core: &mut Core) {
        self.armed = None;
        for path in &mut self.paths {
            path.on_timer(core);
        }
        self.settle(core);
        self.volumes.release_due(core.now());
        self.settle(core);
    }

    /// Starts an orderly detach.
    pub(crate) fn detach(&mut self, core: &mut Core) {
        for path in &mut self.paths {
            path.detach(core);
        }
        self.settle(core);
    }

    /// Detaches at once.
    pub(crate) fn cancel(&mut self, core: &mut Core) {
        for path in &mut self.paths {
            path.cancel(core);
        }
        self.settle(core);
    }

    /// Takes the timer back, at the end.
    pub(crate) fn disarm(&mut self, core: &mut Core) {
        if let Some((_, timer)) = self.armed.take() {
            core.reactor.cancel_timer(timer);
        }
    }

    /// Has the volumes act on what has happened on the paths, and sends what can be sent.
    fn settle(&mut self, core: &mut Core) {
        let mut settled = false;
        while !settled {
            settled = true;
            for index in 0..self.paths.len() {
                self.paths[index].set_delayed(self.volumes.delayed());
                self.volumes.take_back(core, self.paths[index].unanswered());
                if let Some(event) = self.paths[index].next_event() {
                    self.on_path_event(core, index, event);
                    settled = false;
                }
            }
            if settled {
                self.volumes.dispatch(core, &mut self.paths);
                settled = !self.drain(core);
            }
        }
        self.arm(core);
    }

    /// Has paths that are being left go on once nothing is outstanding. Says whether one did.
    fn drain(&mut self, core: &mut Core) -> bool {
        let volumes = &self.volumes;
        let empty = volumes.is_leaving() && volumes.outstanding() == 0;
        let mut paths = self.paths.iter_mut();
        empty && paths.any(|path| path.check_drained(core, || volumes.written()))
    }

    fn on_path_event(&mut self, core: &mut Core, index: usize, event: PathEvent) {
        let id = self.id;
        let path = &mut self.paths[index];
        match event {
            PathEvent::Identified { found, listed } => {
                match self.volumes.identify(found, &listed, &path.needed_by_followers()) {
                    Ok(()) => path.accept(core, self.volumes.namespaces()),
                    Err(cause) => path.reject(core, cause),
                }
            }
            PathEvent::Opened => path.opened(self.volumes.needed()),
            PathEvent::Adopt(found) => self.volumes.adopt(core, found.to_vec()),
            PathEvent::Ready { reconnected } => {
                self.volumes.path_is_ready();
                core.events.push_with(|| HostEvent::Ready { controller: id, reconnected });
            }
            PathEvent::Lost(error) => {
                self.volumes.path_is_lost();
                core.events.push_with(|| HostEvent::Lost { controller: id, error });
            }
            PathEvent::Reconnecting { attempt, delay } => {
                core.events.push_with(|| HostEvent::Reconnecting { controller: id, attempt, delay });
            }
            PathEvent::FailFast => self.volumes.fail_fast(core),
            PathEvent::Drain => self.volumes.leave(),
            PathEvent::Failed(error) => {
                self.volumes.end_all(core, IoError::NoPath);
                core.events.push_with(|| HostEvent::Failed { controller: id, error });
            }
            PathEvent::Detached(trouble) => {
                self.volumes.end_all(core, IoError::Cancelled);
                core.events.push_with(|| HostEvent::Detached { controller: id, trouble });
            }
            event => self.on_namespace_event(core, index, event),
        }
    }

    /// Namespaces may have changed, or were looked at again.
    fn on_namespace_event(&mut self, core: &mut Core, index: usize, event: PathEvent) {
        let path = &self.paths[index];
        match event {
            PathEvent::NamespacesChanged => self.volumes.namespaces_may_have_changed(),
            PathEvent::Changes(changed) if self.volumes.are_only_new(&changed) => {
                self.volumes.settle();
                path.tell_followers(&ToFollower::LookedAt(None));
            }
            PathEvent::NamespacesFound { found, final_look } => {
                self.volumes.take_namespaces(core, found);
                if final_look {
                    self.volumes.settle();
                    path.tell_followers(&ToFollower::LookedAt(Some(Arc::from(self.volumes.namespaces()))));
                }
            }
            PathEvent::NamespacesKept => {
                self.volumes.settle();
                path.tell_followers(&ToFollower::LookedAt(None));
            }
            _ => {}
        }
    }

    /// Sets the reactor's timer to the next thing to do.
    fn arm(&mut self, core: &mut Core) {
        let paths = self.paths.iter().map(Path::next_deadline);
        let at = paths.chain([self.volumes.due()]).min().unwrap_or(Time::MAX);
        if self.armed.is_some_and(|(armed, _)| armed == at) {
            return;
        }
        self.disarm(core);
        if at != Time::MAX {
            self.armed = Some((at, core.reactor.set_timer(at, timer_token(self.id))));
        }
    }
}

/// Volumes with room for as much as may wait and be outstanding on this engine.
fn volumes(id: ControllerId, options: &Arc<ConnectOptions>, share: Share, core: &mut Core) -> Volumes {
    let queues = usize::from(share.count(options.queues_wanted()).max(1));
    let depth = usize::from(options.depth_wanted()) * queues;
    let capacity = options.waiting_max + depth;
    core.events.reserve(capacity + ADMIN_WAITING_MAX);
    core.commands.provide(depth);
    Volumes::new(id, options.clone(), capacity)
}
