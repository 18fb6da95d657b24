//! The leader of a shared controller, as a follower sees it: an engine that has I/O queues only.

use std::mem;
use std::sync::{Arc, OnceLock};

use super::connector::QueueShare;
use crate::error::{Cause, ConnectError, Step};
use crate::messages::{Mailbox, Message, PathPart, ToFollower, ToLeader};
use crate::options::ConnectOptions;
use crate::request::{PathHandle, PathId};

/// Why a controller was given up, for engines that join late.
pub(crate) type FinalError = Arc<OnceLock<ConnectError>>;

/// The end of a controller whose leader is gone.
pub(super) fn leader_has_ended(peer: String, step: Step) -> ConnectError {
    ConnectError { peer, step, cause: Cause::Local("the engine that leads has ended".to_owned()) }
}

/// Another engine's part in a controller: I/O queues of its own on each path.
/// [`Host::attach_shared`](crate::Host::attach_shared) makes it, and [`Host::join`](crate::Host::join) takes it, on the
/// thread of that other engine. Dropping it leaves that engine out.
#[derive(Debug)]
pub struct SharedController {
    pub(crate) options: Arc<ConnectOptions>,
    pub(crate) share: QueueShare,
    /// In the order of their slots.
    pub(crate) paths: Vec<SharedPath>,
}

/// Another engine's part in a path.
#[derive(Debug)]
pub(crate) struct SharedPath {
    pub(crate) options: Arc<ConnectOptions>,
    pub(crate) share: QueueShare,
    pub(crate) link: LeaderLink,
}

impl SharedController {
    /// Tells an engine that the controller which it wants to join is gone.
    pub(crate) fn turn_away(follower: PathHandle, mailbox: &Mailbox) {
        let what = ToFollower::Failed(leader_has_ended(String::new(), Step::Connect));
        // One that has ended does not care.
        let _there = mailbox.send(Message::ToFollower { path: follower, what });
    }

    /// How the controller is attached.
    pub fn options(&self) -> &ConnectOptions {
        &self.options
    }
}

impl From<PathPart> for SharedPath {
    fn from(part: PathPart) -> Self {
        let PathPart { options, engine, engines, leader, mailbox } = part;
        Self::new(options, QueueShare { engine, engines }, leader, mailbox, FinalError::default())
    }
}

impl SharedPath {
    /// Tells the leader that an engine takes no part in a path.
    pub(crate) fn decline(part: &PathPart) {
        let what = ToLeader::Left;
        // One that has ended does not care.
        let _there = part.mailbox.send(Message::ToLeader { path: part.leader, engine: part.engine, what });
    }

    /// A share of the queues of a path that `leader` has.
    pub(crate) fn new(
        options: Arc<ConnectOptions>,
        share: QueueShare,
        leader: PathHandle,
        mailbox: Mailbox,
        final_error: FinalError,
    ) -> Self {
        let link = LeaderLink {
            leader,
            mailbox,
            engine: share.engine,
            final_error,
            attempt: 0,
            answered: false,
            idle: true,
            orderly: true,
            ended: false,
        };
        Self { options, share, link }
    }
}

/// The way to the leader. Dropping it tells that this engine has ended.
#[derive(Debug)]
pub(crate) struct LeaderLink {
    leader: PathHandle,
    mailbox: Mailbox,
    /// Number of this engine.
    engine: u16,
    final_error: FinalError,
    /// The attempt to connect that the queues belong to.
    attempt: u32,
    /// What the leader is told of the queues once they have ended: whether they had answers, and whether they were
    /// idle.
    answered: bool,
    idle: bool,
    /// Whether the leader closes its queues in order.
    orderly: bool,
    /// Whether the leader has told the end.
    ended: bool,
}

impl LeaderLink {
    /// Which path it is, on every engine.
    pub(crate) fn path(&self) -> PathId {
        self.leader.path
    }

    /// Tells the leader something. One that has ended says so itself.
    pub(super) fn tell(&self, what: ToLeader) {
        let _there = self.is_told(what);
    }

    /// The same; whether the leader is still there to hear it.
    pub(super) fn is_told(&self, what: ToLeader) -> bool {
        self.mailbox.send(Message::ToLeader { path: self.leader, engine: self.engine, what })
    }

    /// The attempt to connect that the queues belong to.
    pub(super) fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The leader has this engine connect its queues.
    pub(super) fn begin_attempt(&mut self, attempt: u32) {
        (self.attempt, self.orderly) = (attempt, true);
    }

    /// They are connected. Commands for these namespaces wait here.
    pub(super) fn tell_connected(&self, needed: Vec<u32>) {
        self.tell(ToLeader::Connected { attempt: self.attempt, needed });
    }

    /// One of them is of no further use.
    pub(super) fn tell_lost(&self, error: ConnectError) {
        self.tell(ToLeader::Lost { attempt: self.attempt, error });
    }

    /// The leader closes the queues of an attempt; whether they are those of now.
    pub(super) fn on_close(&mut self, attempt: u32, orderly: bool) -> bool {
        let current = self.attempt == attempt;
        if current {
            self.orderly = orderly;
        }
        current
    }

    /// Whether the leader closes its queues in order.
    pub(super) fn closes_in_order(&self) -> bool {
        self.orderly
    }

    /// Remembers what the leader is to be told of the queues, which are about to end.
    pub(super) fn note(&mut self, answered: bool, idle: bool) {
        (self.answered, self.idle) = (answered, idle);
    }

    /// Nothing of this engine is in flight any more.
    pub(super) fn tell_closed(&self) {
        self.tell(ToLeader::Closed { answered: self.answered, idle: self.idle });
    }

    /// The leader tells the end; whether for the first time.
    pub(super) fn end(&mut self) -> bool {
        !mem::replace(&mut self.ended, true)
    }

    /// Why the controller was given up, as far as the leader has said so.
    pub(super) fn reason(&self, otherwise: ConnectError) -> ConnectError {
        self.final_error.get().cloned().unwrap_or(otherwise)
    }
}

impl Drop for LeaderLink {
    fn drop(&mut self) {
        if !self.ended {
            self.tell(ToLeader::Left);
        }
    }
}
