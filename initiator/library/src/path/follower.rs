//! An engine that follows: it has I/O queues of a controller that another engine leads.

use std::mem;
use std::sync::{Arc, OnceLock};

use super::{Ending, Path, PathEvent, Phase, Role, Share};
use crate::core::Core;
use crate::error::{Cause, ConnectError, Step};
use crate::messages::{Mailbox, Message, OpenQueues, ToFollower, ToLeader};
use crate::options::ConnectOptions;
use crate::request::ControllerId;

/// Why a controller was given up, for engines that come late.
pub(crate) type GivenUp = Arc<OnceLock<ConnectError>>;

/// What an engine is told that joins when the one that leads is gone.
pub(crate) const NOBODY_LEADS: &str = "the engine that leads has ended";

/// Another engine's part in a controller: I/O queues of its own. [`Host::attach_shared`](crate::Host::attach_shared) makes it,
/// and [`Host::join`](crate::Host::join) takes it, on the thread of that other engine. Dropping it leaves that engine out.
#[derive(Debug)]
pub struct SharedController {
    pub(crate) options: Arc<ConnectOptions>,
    pub(crate) share: Share,
    pub(crate) link: LeaderLink,
}

impl SharedController {
    /// Tells an engine that the controller which it wants to join is gone.
    pub(crate) fn turn_away(follower: ControllerId, mailbox: &Mailbox) {
        let cause = Cause::Local(NOBODY_LEADS.to_owned());
        let error = ConnectError { peer: String::new(), step: Step::Connect, cause };
        let what = ToFollower::Failed(error);
        // One that has ended does not care.
        let _there = mailbox.send(Message::ToFollower { controller: follower, what });
    }

    /// How the controller is attached.
    pub fn options(&self) -> &ConnectOptions {
        &self.options
    }

    /// Part number `engine` of `engines` in a controller that `leader` attaches.
    pub(crate) fn new(
        options: Arc<ConnectOptions>,
        share: Share,
        leader: ControllerId,
        mailbox: Mailbox,
        given_up: GivenUp,
    ) -> Self {
        let link = LeaderLink::new(leader, mailbox, share.engine, given_up);
        Self { options, share, link }
    }
}

/// The way to the engine that leads. Dropping it tells that this engine has ended.
#[derive(Debug)]
pub(crate) struct LeaderLink {
    leader: ControllerId,
    mailbox: Mailbox,
    /// Number of this engine.
    engine: u16,
    given_up: GivenUp,
    /// The attempt to connect that the queues belong to.
    attempt: u32,
    /// What the leader is told of the queues once they have ended: whether they had answers, and whether they were idle.
    answered: bool,
    idle: bool,
    /// Whether the leader has told the end.
    ended: bool,
}

impl LeaderLink {
    /// Of engine number `engine`.
    fn new(leader: ControllerId, mailbox: Mailbox, engine: u16, given_up: GivenUp) -> Self {
        Self { leader, mailbox, engine, given_up, attempt: 0, answered: false, idle: true, ended: false }
    }

    pub(super) fn tell(&self, what: ToLeader) {
        let message = Message::ToLeader { controller: self.leader, engine: self.engine, what };
        // One that has ended says so itself.
        let _there = self.mailbox.send(message);
    }

    /// Why the controller was given up, as far as the leader has said so.
    fn reason(&self, otherwise: ConnectError) -> ConnectError {
        self.given_up.get().cloned().unwrap_or(otherwise)
    }

    pub(super) fn attempt(&self) -> u32 {
        self.attempt
    }
}

impl Drop for LeaderLink {
    fn drop(&mut self) {
        if !self.ended {
            self.tell(ToLeader::Left);
        }
    }
}

impl Path {
    /// This engine's part of a path that another one leads.
    pub(crate) fn join(id: ControllerId, index: u16, shared: SharedController, core: &mut Core) -> Self {
        let SharedController { options, share, link: leader } = shared;
        let joined = ToLeader::Joined { follower: id, mailbox: core.mailbox.clone() };
        let message = Message::ToLeader { controller: leader.leader, engine: leader.engine, what: joined };
        let ended = !leader.mailbox.send(message);
        let mut this = Self::new(id, index, options, Role::Follower(leader), share, core);
        if ended {
            let error = this.error(Step::Connect, Cause::Local(NOBODY_LEADS.to_owned()));
            this.end(core, PathEvent::Failed(error));
        }
        this
    }

    /// The leader tells something.
    pub(crate) fn on_leader(&mut self, core: &mut Core, what: ToFollower) {
        match what {
            ToFollower::Open(plan) => self.open(core, &plan),
            ToFollower::Live { info, namespaces, pace, reconnected } => {
                // It may have lost a connection meanwhile, which the leader has not heard of.
                if self.phase == Phase::Setup {
                    (self.info, self.pace, self.phase) =
                        (Some(Arc::unwrap_or_clone(info)), pace, Phase::Live);
                    self.liveness.begin(core.now());
                    self.events.extend([PathEvent::Adopt(namespaces), PathEvent::Ready { reconnected }]);
                }
            }
            ToFollower::Lost(error) => {
                self.events.push_back(PathEvent::Lost(error));
                self.close_queues(core);
            }
            ToFollower::Close { attempt, orderly } => {
                if matches!(&self.role, Role::Follower(leader) if leader.attempt == attempt) {
                    if !orderly && self.phase == Phase::Shutdown {
                        self.phase = Phase::Draining;
                    }
                    self.close_queues(core);
                }
            }
            ToFollower::Reconnecting { attempt, delay } => {
                self.events.push_back(PathEvent::Reconnecting { attempt, delay });
            }
            ToFollower::FailFast => self.events.push_back(PathEvent::FailFast),
            ToFollower::Changed => self.events.push_back(PathEvent::NamespacesChanged),
            ToFollower::LookedAt(Some(found)) => {
                self.events.push_back(PathEvent::NamespacesFound { found: found.to_vec(), final_look: true });
            }
            ToFollower::LookedAt(None) => self.events.push_back(PathEvent::NamespacesKept),
            ToFollower::Drain if self.phase == Phase::Live => self.drain(core),
            ToFollower::Drain => {}
            ToFollower::Failed(error) => self.end(core, PathEvent::Failed(error)),
            ToFollower::Detached(trouble) => self.end(core, PathEvent::Detached(trouble)),
        }
        self.check_closed(core);
    }

    /// Connects the I/O queues of this engine.
    fn open(&mut self, core: &mut Core, plan: &OpenQueues) {
        let Role::Follower(leader) = &mut self.role else { return };
        leader.attempt = plan.attempt;
        let facts = &mut self.sequence.facts;
        (facts.cntlid, facts.queues, facts.queue_size) = (plan.cntlid, plan.queues, plan.queue_size);
        facts.in_capsule_bytes_max = plan.in_capsule_bytes_max;
        (self.addresses.found, self.addresses.next) = (vec![plan.address], 0);
        self.phase = Phase::Setup;
        self.run(core, super::SequenceStep::QueueEstablish(1));
    }

    /// Tells the leader that they are connected, and which namespaces have commands waiting here.
    pub(crate) fn opened(&mut self, needed: Vec<u32>) {
        if let Role::Follower(leader) = &self.role {
            leader.tell(ToLeader::Opened { attempt: leader.attempt, needed });
        }
    }

    fn close_queues(&mut self, core: &mut Core) {
        if !matches!(self.phase, Phase::Closing | Phase::Delay | Phase::Gone) {
            self.close(core, Ending::Follow);
        }
    }

    /// Remembers what the leader is to be told of the queues that are about to end.
    pub(super) fn note_for_leader(&mut self) {
        let (answered, idle) = (self.has_answered(), self.is_idle());
        if let Role::Follower(leader) = &mut self.role {
            (leader.answered, leader.idle) = (answered, idle);
        }
    }

    /// Nothing of this engine is in flight any more.
    pub(super) fn closed(&mut self) {
        self.phase = Phase::Delay;
        if let Role::Follower(leader) = &self.role {
            leader.tell(ToLeader::Closed { answered: leader.answered, idle: leader.idle });
        }
    }

    /// The leader has told the end of the controller.
    fn end(&mut self, core: &mut Core, event: PathEvent) {
        let Role::Follower(leader) = &mut self.role else { return };
        if mem::replace(&mut leader.ended, true) {
            return;
        }
        let event = match event {
            PathEvent::Failed(error) => PathEvent::Failed(leader.reason(error)),
            event => event,
        };
        match self.phase {
            Phase::Delay => self.gone(core, event),
            // The leader has ended without a word.
            _ => {
                let ending = match event {
                    PathEvent::Failed(error) => Ending::Fail(error),
                    PathEvent::Detached(trouble) => Ending::Detach(trouble),
                    _ => return,
                };
                if self.phase == Phase::Closing {
                    self.ending = Some(ending);
                } else {
                    self.close(core, ending);
                }
            }
        }
    }
}
