//! What an engine is for a controller that it may share with others.

use std::sync::Arc;

use ringfab_reactor::Time;

use super::sequence::Sequence;
use super::{Followers, LeaderLink};
use crate::messages::{OpenQueues, ToFollower};
use crate::namespace::{ControllerInfo, Namespace};
use crate::options::ReconnectPolicy;
use crate::reconnect::Loss;

/// What this engine is for the controller.
#[derive(Debug)]
pub(crate) enum Role {
    /// It has the admin queue, and these follow.
    Leader(Followers),
    /// It has I/O queues only.
    Follower(LeaderLink),
}

impl Role {
    /// Whether it leads.
    pub(crate) fn leads(&self) -> bool {
        matches!(self, Self::Leader(_))
    }

    /// Number of the connection, which all engines know it by.
    pub(super) fn connection(&self) -> u32 {
        match self {
            Self::Leader(followers) => followers.attempt(),
            Self::Follower(leader) => leader.attempt(),
        }
    }

    /// Tells all engines that follow, if there are any.
    pub(crate) fn tell_followers(&self, what: &ToFollower) {
        if let Self::Leader(followers) = self {
            followers.tell(what);
        }
    }

    /// Those that follow, if it leads.
    pub(crate) fn followers(&self) -> Option<&Followers> {
        if let Self::Leader(followers) = self { Some(followers) } else { None }
    }

    /// Has the followers begin with I/O.
    pub(super) fn tell_live(
        &self,
        info: &ControllerInfo,
        namespaces: &[Namespace],
        sequence: &Sequence,
        reconnected: bool,
    ) {
        if let Self::Leader(followers) = self
            && followers.engines() > 1
        {
            let (info, namespaces) = (Arc::new(info.clone()), Arc::from(namespaces));
            let retry_delays = sequence.facts().retry_delays;
            followers.tell(&ToFollower::Live { info, namespaces, retry_delays, reconnected });
            followers.tell(&ToFollower::Access(sequence.access()));
        }
    }

    /// Tells the followers how the path has ended.
    pub(super) fn end_followers(&mut self, how: ToFollower) {
        if let Self::Leader(followers) = self {
            followers.end(how);
        }
    }

    /// Namespaces that commands of followers wait for.
    pub(crate) fn needed_by_followers(&self) -> Vec<u32> {
        if let Self::Leader(followers) = self { followers.needed() } else { Vec::new() }
    }

    /// Tells the leader that the queues of this engine are connected, and which namespaces have commands waiting here.
    pub(crate) fn queues_connected(&self, needed: Vec<u32>) {
        if let Self::Follower(leader) = self {
            leader.tell_connected(needed);
        }
    }

    /// Has the followers connect their queues. Says whether all are connected.
    pub(super) fn connect_followers(&mut self, plan: OpenQueues) -> bool {
        if let Self::Leader(followers) = self { followers.connect(plan) } else { false }
    }

    /// This engine's connections are about to end: those of the followers end, too. The leader will be told whether
    /// there were answers, and whether nothing was outstanding. Returns whether they end in order.
    pub(super) fn close(&mut self, orderly: bool, answered: bool, idle: bool) -> bool {
        match self {
            Self::Leader(followers) => {
                followers.close(orderly);
                orderly
            }
            Self::Follower(leader) => {
                leader.note(answered, idle);
                orderly && leader.closes_in_order()
            }
        }
    }

    /// Whether connections of followers have not ended yet.
    pub(super) fn followers_are_closing(&self) -> bool {
        if let Self::Leader(followers) = self { followers.are_closing() } else { false }
    }

    /// The path is lost: see [`Followers::note_loss`].
    pub(super) fn note_loss(&mut self, at: Time, answered: bool, before: Option<Loss>) {
        if let Self::Leader(followers) = self {
            followers.note_loss(at, answered, before);
        }
    }

    /// The loss to go by instead, as the followers see it: see [`Followers::judge_loss`].
    pub(super) fn judge_loss(&mut self, policy: ReconnectPolicy) -> Option<Loss> {
        if let Self::Leader(followers) = self { followers.judge_loss(policy) } else { None }
    }
}
