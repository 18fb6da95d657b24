//! The phases of a path, and what leads from one to the next: a table.

use crate::error::Step;
use crate::url::Transport;

/// What a path is doing. Followers skip the first two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// A thread asks for the address.
    Resolving,
    /// The admin queue connects.
    Connecting,
    /// The attach sequence runs. A follower connects its I/O queues, then waits for the leader.
    Setup,
    /// I/O runs.
    Live,
    /// It takes no new commands; those outstanding end.
    Draining,
    /// Caches are flushed, and the controller shuts down. A follower waits for that.
    Shutdown,
    /// Connections end, on every engine. Afterwards nothing of ours is in flight.
    Closing(After),
    /// It waits for the next attempt to connect. A follower waits for the leader.
    Delay,
    /// The volumes were told. The path can be removed.
    Gone,
}

/// What comes after [`Phase::Closing`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    /// Another attempt, as the policy says.
    Reconnect,
    /// The admin queue connects again, over TLS.
    Secure,
    /// What the leader says.
    Follow,
    /// The volumes are told that the path has failed.
    Fail,
    /// The volumes are told that it is detached.
    Detach,
}

/// What can change the phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trigger {
    /// It is time for an attempt to connect.
    Attempt,
    /// There is an address to try.
    Address,
    /// The admin queue is connected. To a follower: the leader's is.
    Connected,
    /// The ends have made a key for TLS on a connection in clear text.
    Secured,
    /// The volumes have found that this is the right subsystem.
    Ready,
    /// The program detaches the controller in order.
    Detach,
    /// Nothing is outstanding on any engine.
    Drained,
    /// A connection was lost, or an attempt failed.
    Lost {
        /// Whether a failed attempt is followed by another one.
        again: bool,
    },
    /// The leader closes its connections, or a follower has told it to.
    Follow,
    /// The path is given up.
    GiveUp,
    /// It is left at once: the controller has shut down, or nobody waits for that.
    Leave,
    /// The last connection has ended, on every engine.
    Closed,
}

impl Phase {
    /// The phase that follows. `None`: the trigger changes nothing.
    pub(super) fn next(self, trigger: Trigger) -> Option<Self> {
        use Phase::{Closing, Connecting, Delay, Draining, Gone, Live, Resolving, Setup, Shutdown};
        Some(match (self, trigger) {
            (Gone, _) => return None,

            (Delay, Trigger::Attempt) => Resolving,
            (Resolving | Connecting, Trigger::Address) => Connecting,
            (Connecting | Delay, Trigger::Connected) => Setup,
            (Setup, Trigger::Secured) => Closing(After::Secure),
            (Setup, Trigger::Ready) => Live,

            (Live, Trigger::Detach) => Draining,
            (Draining, Trigger::Drained) => Shutdown,
            (Draining | Shutdown, Trigger::Detach) => return None,
            (_, Trigger::Detach | Trigger::Leave) => Closing(After::Detach),

            (Closing(_) | Delay, Trigger::Lost { .. } | Trigger::Follow) => return None,
            (Live, Trigger::Lost { .. }) => Closing(After::Reconnect),
            (Draining | Shutdown, Trigger::Lost { .. }) => Closing(After::Detach),
            (_, Trigger::Lost { again: true }) => Closing(After::Reconnect),
            (_, Trigger::Lost { again: false } | Trigger::GiveUp) => Closing(After::Fail),
            (_, Trigger::Follow) => Closing(After::Follow),

            (Closing(After::Secure), Trigger::Closed) => Connecting,
            (Closing(After::Reconnect | After::Follow), Trigger::Closed) => Delay,
            (Closing(After::Fail | After::Detach), Trigger::Closed) => Gone,

            (_, Trigger::Attempt | Trigger::Address | Trigger::Connected | Trigger::Secured) => return None,
            (_, Trigger::Ready | Trigger::Drained | Trigger::Closed) => return None,
        })
    }

    /// Whether I/O can be sent.
    #[inline]
    pub(super) fn takes_io(self) -> bool {
        matches!(self, Self::Live | Self::Draining)
    }

    /// Whether it has connections that are of use.
    #[inline]
    pub(super) fn is_connected(self) -> bool {
        !matches!(self, Self::Closing(_) | Self::Delay | Self::Gone)
    }

    /// Whether it is being left, or was given up.
    pub(super) fn is_final(self) -> bool {
        matches!(
            self,
            Self::Draining | Self::Shutdown | Self::Closing(After::Fail | After::Detach) | Self::Gone
        )
    }

    /// Whether it is being attached, for the first time or again.
    pub(super) fn is_attaching(self) -> bool {
        matches!(self, Self::Resolving | Self::Connecting | Self::Setup)
    }

    /// Whether it is not connected, or not yet: the limits of a loss run. They do not while queue pairs end, since then
    /// there is nothing to give up yet.
    pub(super) fn is_down(self) -> bool {
        self.is_attaching() || self == Self::Delay
    }

    /// The step that an error of now belongs to. `running` is that of the command that runs.
    pub(super) fn step(self, transport: Transport, running: Option<Step>) -> Step {
        match self {
            Self::Resolving => Step::Resolve,
            Self::Connecting => match transport {
                Transport::Rdma => Step::Mpa,
                Transport::Tcp => Step::Initialize,
            },
            Self::Setup => running.unwrap_or(Step::Identify),
            Self::Draining | Self::Shutdown => Step::Shutdown,
            Self::Live | Self::Closing(_) | Self::Delay | Self::Gone => Step::Live,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{After, Phase, Trigger};

    const TRIGGERS: [Trigger; 13] = [
        Trigger::Attempt,
        Trigger::Address,
        Trigger::Connected,
        Trigger::Secured,
        Trigger::Ready,
        Trigger::Detach,
        Trigger::Drained,
        Trigger::Lost { again: true },
        Trigger::Lost { again: false },
        Trigger::Follow,
        Trigger::GiveUp,
        Trigger::Leave,
        Trigger::Closed,
    ];

    const AGAIN: Phase = Phase::Closing(After::Reconnect);
    const SECURE: Phase = Phase::Closing(After::Secure);
    const FOLLOW: Phase = Phase::Closing(After::Follow);
    const FAIL: Phase = Phase::Closing(After::Fail);
    const DETACH: Phase = Phase::Closing(After::Detach);

    /// A row for each phase, a column for each of the triggers, in their order.
    #[rustfmt::skip]
    const TABLE: [(Phase, [Option<Phase>; 13]); 13] = {
        const ___: Option<Phase> = None;
        const RES: Option<Phase> = Some(Phase::Resolving);
        const CON: Option<Phase> = Some(Phase::Connecting);
        const SET: Option<Phase> = Some(Phase::Setup);
        const LIV: Option<Phase> = Some(Phase::Live);
        const DRA: Option<Phase> = Some(Phase::Draining);
        const SHU: Option<Phase> = Some(Phase::Shutdown);
        const DEL: Option<Phase> = Some(Phase::Delay);
        const GON: Option<Phase> = Some(Phase::Gone);
        const AGA: Option<Phase> = Some(AGAIN);
        const SEC: Option<Phase> = Some(SECURE);
        const FOL: Option<Phase> = Some(FOLLOW);
        const FAI: Option<Phase> = Some(FAIL);
        const DET: Option<Phase> = Some(DETACH);
        [
            //                   Att  Addr Conn Secu Ready Det Drai Lost Good Foll Give Leav Clos
            (Phase::Resolving,  [___, CON, ___, ___, ___, DET, ___, AGA, FAI, FOL, FAI, DET, ___]),
            (Phase::Connecting, [___, CON, SET, ___, ___, DET, ___, AGA, FAI, FOL, FAI, DET, ___]),
            (Phase::Setup,      [___, ___, ___, SEC, LIV, DET, ___, AGA, FAI, FOL, FAI, DET, ___]),
            (SECURE,            [___, ___, ___, ___, ___, DET, ___, ___, ___, ___, FAI, DET, CON]),
            (Phase::Live,       [___, ___, ___, ___, ___, DRA, ___, AGA, AGA, FOL, FAI, DET, ___]),
            (Phase::Draining,   [___, ___, ___, ___, ___, ___, SHU, DET, DET, FOL, FAI, DET, ___]),
            (Phase::Shutdown,   [___, ___, ___, ___, ___, ___, ___, DET, DET, FOL, FAI, DET, ___]),
            (AGAIN,             [___, ___, ___, ___, ___, DET, ___, ___, ___, ___, FAI, DET, DEL]),
            (FOLLOW,            [___, ___, ___, ___, ___, DET, ___, ___, ___, ___, FAI, DET, DEL]),
            (FAIL,              [___, ___, ___, ___, ___, DET, ___, ___, ___, ___, FAI, DET, GON]),
            (DETACH,            [___, ___, ___, ___, ___, DET, ___, ___, ___, ___, FAI, DET, GON]),
            (Phase::Delay,      [RES, ___, SET, ___, ___, DET, ___, ___, ___, ___, FAI, DET, ___]),
            (Phase::Gone,       [___, ___, ___, ___, ___, ___, ___, ___, ___, ___, ___, ___, ___]),
        ]
    };

    #[test]
    fn each_phase_answers_each_trigger_as_the_table_says() {
        for (phase, row) in TABLE {
            for (trigger, expected) in TRIGGERS.into_iter().zip(row) {
                assert_eq!(phase.next(trigger), expected, "{phase:?}, {trigger:?}");
            }
        }
    }

    #[test]
    fn every_phase_can_be_left_for_good() {
        for (phase, _) in TABLE.into_iter().filter(|(phase, _)| *phase != Phase::Gone) {
            let closing = phase.next(Trigger::Leave);
            assert_eq!(closing.and_then(|phase| phase.next(Trigger::Closed)), Some(Phase::Gone), "{phase:?}");
        }
    }
}
