//! The followers of a shared controller, as its leader sees them.

use std::sync::Arc;

use ringfab_reactor::Time;

use super::leader::{FinalError, leader_has_ended};
use crate::error::{ConnectError, Step};
use crate::messages::{Mailbox, Message, OpenQueues, PathPart, ToFollower, ToLeader};
use crate::options::{ConnectOptions, ReconnectPolicy};
use crate::reconnect::Loss;
use crate::request::PathHandle;

/// The engines that follow; none for a controller that is not shared.
#[derive(Debug)]
pub(crate) struct Followers {
    /// Engine 1 is the first here.
    list: Vec<Follower>,
    /// Counts the attempts to connect.
    attempt: u32,
    final_error: FinalError,
    /// A loss of which the followers have not said yet what they have seen before it.
    unjudged: Option<Unjudged>,
    /// How the path has ended: what those are told that join late.
    end: Option<ToFollower>,
}

/// A loss.
#[derive(Debug)]
struct Unjudged {
    at: Time,
    /// Whether this engine had answers since the loss before.
    answered: bool,
    before: Option<Loss>,
}

/// One of them.
#[derive(Debug, Default)]
struct Follower {
    state: State,
    link: Option<(PathHandle, Mailbox)>,
    /// Namespaces that have commands waiting there.
    needed: Vec<u32>,
    /// Namespaces that were written to there, once it is drained.
    written: Option<Vec<u32>>,
    /// Whether it had answers to I/O before it closed, and whether it was idle.
    answered: bool,
    idle: bool,
}

/// What a follower is at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// It has not joined yet.
    #[default]
    Absent,
    /// It has no connections.
    Closed,
    /// It connects its queues.
    Connecting,
    /// Its queues are connected.
    Connected,
    /// Its connections end.
    Closing,
    /// It has ended.
    Left,
}

impl State {
    fn has_connections(self) -> bool {
        matches!(self, Self::Connecting | Self::Connected)
    }
}

/// What the leader does for a follower.
#[derive(Debug)]
pub(super) enum Request {
    /// The connections of this attempt are of no further use.
    Lose(ConnectError),
    /// The same: the follower had some, and has ended.
    LoseFollower,
    /// Ask the controller for the access states.
    ReadAccess,
    /// Abort a command that is overdue.
    Abort { qid: u16, cid: u16 },
    /// Detach the controller, in order or at once.
    Detach { orderly: bool },
}

impl Followers {
    /// So many engines that will follow.
    pub(crate) fn expect(count: u16, final_error: FinalError) -> Self {
        let list = (0..count).map(|_| Follower::default()).collect();
        Self { final_error, list, attempt: 0, unjudged: None, end: None }
    }

    /// Engines that share the controller.
    pub(super) fn engines(&self) -> u16 {
        1 + self.list.len() as u16
    }

    /// The attempt to connect, counted.
    pub(super) fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Has those that take part in this path take part in another one, too: which follows `leader`, and has these
    /// options. Returns them as the followers of that path.
    pub(crate) fn invite(
        &self,
        leader: PathHandle,
        options: &Arc<ConnectOptions>,
        mailbox: &Mailbox,
    ) -> Self {
        let mut invited = Self::expect(self.list.len() as u16, FinalError::default());
        for ((one, other), engine) in invited.list.iter_mut().zip(&self.list).zip(1..) {
            let part = PathPart {
                options: options.clone(),
                engine,
                engines: self.engines(),
                leader,
                mailbox: mailbox.clone(),
            };
            let is_told = other.link.as_ref().is_some_and(|(path, follower)| {
                let path = PathHandle { path: leader.path, ..*path };
                follower.send(Message::JoinPath { path, part: Box::new(part) })
            });
            if !is_told {
                one.state = State::Left;
            }
        }
        invited
    }

    /// Tells all of them.
    pub(crate) fn tell(&self, what: &ToFollower) {
        for one in self.list.iter().filter(|one| one.state != State::Left) {
            one.tell(what.clone());
        }
    }

    /// Tells them how the path has ended, also those that are still to join.
    pub(super) fn end(&mut self, how: ToFollower) {
        if let ToFollower::Failed(error) = &how {
            // It fails once.
            let _set = self.final_error.set(error.clone());
        }
        self.tell(&how);
        self.end = Some(how);
    }

    /// Whether some are still to join.
    pub(crate) fn are_awaited(&self) -> bool {
        self.list.iter().any(|one| one.state == State::Absent)
    }

    /// A follower tells something. Returns what the leader has to do for it.
    pub(super) fn receive(&mut self, engine: u16, what: ToLeader) -> Option<Request> {
        let attempt = self.attempt;
        let one = self.list.get_mut(usize::from(engine).checked_sub(1)?)?;
        match what {
            ToLeader::Joined { follower, mailbox } => {
                (one.state, one.link) = (State::Closed, Some((follower, mailbox)));
                if let Some(how) = &self.end {
                    one.tell(how.clone());
                }
            }
            ToLeader::Connected { attempt: connected, needed } => {
                if one.state == State::Connecting && connected == attempt {
                    (one.state, one.needed) = (State::Connected, needed);
                    (one.answered, one.idle) = (false, true);
                }
            }
            ToLeader::Lost { attempt: lost, error } if lost == attempt => return Some(Request::Lose(error)),
            ToLeader::Lost { .. } => {}
            ToLeader::Closed { answered, idle } => {
                one.state = State::Closed;
                (one.answered, one.idle) = (answered, idle);
            }
            ToLeader::Drained { written } => one.written = Some(written),
            ToLeader::AccessIsNews => return Some(Request::ReadAccess),
            ToLeader::Abort { qid, cid } => return Some(Request::Abort { qid, cid }),
            ToLeader::Detach { orderly } => return Some(Request::Detach { orderly }),
            ToLeader::LeftBefore => {
                if one.state == State::Absent {
                    one.state = State::Left;
                }
            }
            ToLeader::Left => {
                let connected = one.state.has_connections();
                (one.state, one.link) = (State::Left, None);
                return connected.then_some(Request::LoseFollower);
            }
        }
        None
    }

    /// Has those that have joined connect their queues. Says whether all queues are connected.
    pub(super) fn connect(&mut self, mut plan: OpenQueues) -> bool {
        plan.attempt = self.attempt;
        for one in self.list.iter_mut().filter(|one| one.state == State::Closed) {
            one.state = State::Connecting;
            one.tell(ToFollower::Connect(Box::new(plan.clone())));
        }
        self.list.iter().all(|one| matches!(one.state, State::Connected | State::Left))
    }

    /// Ends their connections.
    pub(super) fn close(&mut self, orderly: bool) {
        let attempt = self.attempt;
        self.attempt += 1;
        for one in &mut self.list {
            one.written = None;
            if one.state.has_connections() {
                one.state = State::Closing;
                one.tell(ToFollower::Close { attempt, orderly });
            }
        }
    }

    /// Whether some of their connections have not ended yet.
    pub(super) fn are_closing(&self) -> bool {
        self.list.iter().any(|one| one.state == State::Closing)
    }

    /// Whether none has I/O, or takes new I/O.
    pub(super) fn are_drained(&self) -> bool {
        self.list.iter().all(|one| one.written.is_some() || one.state == State::Left)
    }

    /// What was written to there.
    pub(super) fn take_written(&mut self) -> Vec<u32> {
        self.list.iter_mut().filter_map(|one| one.written.take()).flatten().collect()
    }

    /// Namespaces that have commands waiting there.
    pub(crate) fn needed(&self) -> Vec<u32> {
        self.list.iter().flat_map(|one| one.needed.iter().copied()).collect()
    }

    /// The path is lost, and they have not said yet what they have seen. `answered`: this engine had answers since the
    /// loss `before`.
    pub(super) fn note_loss(&mut self, at: Time, answered: bool, before: Option<Loss>) {
        if !self.list.is_empty() {
            self.unjudged = Some(Unjudged { at, answered, before });
        }
    }

    /// All have: the loss is a new one if any engine had answers, and the one before goes on if some waited in vain.
    /// Returns the loss to go by instead, if there is one.
    pub(super) fn judge_loss(&mut self, policy: ReconnectPolicy) -> Option<Loss> {
        let Unjudged { at, answered, before } = self.unjudged.take()?;
        if self.list.iter().any(|one| one.answered) {
            Some(Loss::new(policy, at))
        } else if !answered && self.list.iter().any(|one| !one.idle) {
            before
        } else {
            None
        }
    }
}

impl Follower {
    fn tell(&self, what: ToFollower) {
        let Some((path, mailbox)) = &self.link else { return };
        // One that has ended says so itself.
        let _there = mailbox.send(Message::ToFollower { path: *path, what });
    }
}

impl Drop for Followers {
    /// Nobody leads any more.
    fn drop(&mut self) {
        if self.list.iter().any(|one| one.state != State::Left) {
            self.tell(&ToFollower::Failed(leader_has_ended(String::new(), Step::Live)));
        }
    }
}
