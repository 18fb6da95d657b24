//! The engines that follow, as the one that leads sees them.

use std::sync::Arc;

use ringfab_reactor::Time;

use super::follower::{GivenUp, NOBODY_LEADS};
use super::steps::SequenceStep;
use super::{Path, Phase, Role};
use crate::core::Core;
use crate::error::{Cause, ConnectError, Step};
use crate::messages::{Mailbox, Message, OpenQueues, ToFollower, ToLeader};
use crate::namespace::{ControllerInfo, Namespace};
use crate::reconnect::Loss;
use crate::request::ControllerId;

/// The engines that follow.
#[derive(Debug)]
pub(crate) struct Followers {
    /// Engine 1 is the first here.
    list: Vec<Follower>,
    /// Counts the attempts to connect.
    attempt: u32,
    given_up: GivenUp,
    /// A loss of which the other engines have not said yet what they have seen before it.
    unjudged: Option<Unjudged>,
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
    link: Option<(ControllerId, Mailbox)>,
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
    Opening,
    /// Its queues are connected.
    Open,
    /// Its connections end.
    Closing,
    /// It has ended.
    Left,
}

impl Followers {
    /// So many engines that will follow.
    pub(crate) fn expect(count: u16, given_up: GivenUp) -> Self {
        Self { given_up, list: (0..count).map(|_| Follower::default()).collect(), attempt: 0, unjudged: None }
    }

    /// Engines that share the controller.
    pub(super) fn engines(&self) -> u16 {
        1 + self.list.len() as u16
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
    fn needed(&self) -> Vec<u32> {
        self.list.iter().flat_map(|one| one.needed.iter().copied()).collect()
    }

    fn get(&mut self, engine: u16) -> Option<&mut Follower> {
        self.list.get_mut(usize::from(engine).checked_sub(1)?)
    }

    fn tell(&self, what: &ToFollower) {
        for one in self.list.iter().filter(|one| one.state != State::Left) {
            one.tell(what.clone());
        }
    }
}

impl Follower {
    fn tell(&self, what: ToFollower) {
        let Some((controller, mailbox)) = &self.link else { return };
        // One that has ended says so itself.
        let _there = mailbox.send(Message::ToFollower { controller: *controller, what });
    }
}

impl Drop for Followers {
    /// Nobody leads any more.
    fn drop(&mut self) {
        if self.list.iter().any(|one| one.state != State::Left) {
            let cause = Cause::Local(NOBODY_LEADS.to_owned());
            self.tell(&ToFollower::Failed(ConnectError { peer: String::new(), step: Step::Live, cause }));
        }
    }
}

impl Path {
    /// Tells all engines that follow.
    pub(crate) fn tell_followers(&self, what: &ToFollower) {
        if let Role::Leader(followers) = &self.role {
            followers.tell(what);
        }
    }

    /// Has the engines that follow begin with I/O.
    pub(super) fn lead_on(&self, info: &ControllerInfo, namespaces: &[Namespace], reconnected: bool) {
        if self.share.engines == 1 {
            return;
        }
        let (info, namespaces) = (Arc::new(info.clone()), Arc::from(namespaces));
        self.tell_followers(&ToFollower::Live { info, namespaces, pace: self.pace, reconnected });
    }

    /// Namespaces that commands of engines that follow wait for.
    pub(crate) fn needed_by_followers(&self) -> Vec<u32> {
        if let Role::Leader(followers) = &self.role { followers.needed() } else { Vec::new() }
    }

    /// Has the engines that have joined connect their queues. The sequence goes on when all have.
    pub(super) fn open_followers(&mut self, core: &mut Core) {
        let facts = &self.sequence.facts;
        let mut plan = OpenQueues {
            attempt: 0,
            address: self.addresses.current(),
            cntlid: facts.cntlid,
            queues: facts.queues,
            queue_size: facts.queue_size,
            in_capsule_bytes_max: facts.in_capsule_bytes_max,
        };
        let Role::Leader(followers) = &mut self.role else { return };
        plan.attempt = followers.attempt;
        for one in followers.list.iter_mut().filter(|one| one.state == State::Closed) {
            one.state = State::Opening;
            one.tell(ToFollower::Open(Box::new(plan.clone())));
        }
        self.check_opened(core);
    }

    fn check_opened(&mut self, core: &mut Core) {
        let Role::Leader(followers) = &self.role else { return };
        let all = followers.list.iter().all(|one| matches!(one.state, State::Open | State::Left));
        if all && self.sequence.step == Some(SequenceStep::Followers) {
            self.sequence.step = None;
            if let Some(next) = self.first_namespace() {
                self.run(core, next);
            }
        }
    }

    /// Tells them that the controller is given up, also those that are still to join.
    pub(super) fn fail_followers(&self, error: &ConnectError) {
        if let Role::Leader(followers) = &self.role {
            // It fails once.
            let _set = followers.given_up.set(error.clone());
            followers.tell(&ToFollower::Failed(error.clone()));
        }
    }

    /// Ends the connections of the engines that follow.
    pub(super) fn close_followers(&mut self, orderly: bool) {
        let Role::Leader(followers) = &mut self.role else { return };
        let attempt = followers.attempt;
        followers.attempt += 1;
        for one in &mut followers.list {
            one.written = None;
            if matches!(one.state, State::Opening | State::Open) {
                one.state = State::Closing;
                one.tell(ToFollower::Close { attempt, orderly });
            }
        }
    }

    /// Whether connections of engines that follow have not ended yet.
    pub(super) fn followers_close(&self) -> bool {
        let Role::Leader(followers) = &self.role else { return false };
        followers.list.iter().any(|one| one.state == State::Closing)
    }

    /// The path is lost, and engines that follow have not said yet what they have seen.
    pub(super) fn ask_others(&mut self, at: Time) {
        let (answered, before) = (self.has_answered(), self.liveness.loss.clone());
        if let Role::Leader(followers) = &mut self.role
            && !followers.list.is_empty()
        {
            followers.unjudged = Some(Unjudged { at, answered, before });
        }
    }

    /// All have: the loss is a new one if any engine had answers, and the one before goes on if some waited in vain.
    pub(super) fn judge_others(&mut self) {
        let Role::Leader(followers) = &mut self.role else { return };
        let Some(Unjudged { at, answered, before }) = followers.unjudged.take() else { return };
        if followers.list.iter().any(|one| one.answered) {
            self.liveness.loss = Some(Loss::new(self.options.reconnect, at));
        } else if !answered && before.is_some() && followers.list.iter().any(|one| !one.idle) {
            self.liveness.loss = before;
        }
    }

    /// An engine that follows tells something.
    pub(crate) fn on_follower(&mut self, core: &mut Core, engine: u16, what: ToLeader) {
        let Role::Leader(followers) = &mut self.role else { return };
        let (attempt, phase) = (followers.attempt, self.phase);
        let Some(one) = followers.get(engine) else { return };
        match what {
            ToLeader::Joined { follower, mailbox } => {
                (one.state, one.link) = (State::Closed, Some((follower, mailbox)));
                if self.sequence.step == Some(SequenceStep::Followers) {
                    self.open_followers(core);
                }
            }
            ToLeader::Opened { attempt: opened, needed } => {
                if one.state == State::Opening && opened == attempt {
                    (one.state, one.needed) = (State::Open, needed);
                    (one.answered, one.idle) = (false, true);
                    self.check_opened(core);
                }
            }
            ToLeader::Lost { attempt: lost, error } => {
                if lost == attempt {
                    self.lose_with(core, error);
                }
            }
            ToLeader::Closed { answered, idle } => {
                one.state = State::Closed;
                (one.answered, one.idle) = (answered, idle);
            }
            ToLeader::Drained { written } => one.written = Some(written),
            ToLeader::Abort { qid, cid } if matches!(phase, Phase::Live | Phase::Draining) => {
                self.on_abort_wanted(core, qid, cid);
            }
            ToLeader::Abort { .. } => {}
            ToLeader::Detach { orderly: true } => self.detach(core),
            ToLeader::Detach { orderly: false } => self.cancel(core),
            ToLeader::Left => {
                let connected = matches!(one.state, State::Opening | State::Open);
                (one.state, one.link) = (State::Left, None);
                if connected {
                    let cause = Cause::Local("an engine thread has ended".to_owned());
                    let step = self.step();
                    self.lose(core, step, cause);
                }
                self.check_opened(core);
            }
        }
        self.check_closed(core);
    }
}
