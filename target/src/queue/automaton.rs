//! The automaton of a request: the events of each [`State`], and the step that follows.
//!
//! An event concerns a request that waits. [`next`] gives the step for its state and the event, and
//! [`Commands::advance`](super::Commands::advance) runs from that step until the request waits again or is answered.

use crate::resources::states::State;

/// What happens to a request that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A command has arrived in a free slot, and is what it says or a failure.
    Arrived,
    /// The limits of its namespace and its host let it pass.
    LimitPassed,
    /// It is the turn of its host.
    TurnCame,
    /// Both halves of its fused operation have their buffers.
    PairHasBuffers,
    /// Nothing holds it back any more.
    Unheld,
    /// Buffers have come back, and it is its turn.
    BuffersFree,
    /// There is room in the send queue, and it is its turn.
    RoomFree,
    /// The last piece of the host's data is here.
    DataArrived,
    /// To the Compare of a fused pair: the data of both halves is here.
    PairHasData,
    /// To the Write of a fused pair: the Compare has succeeded.
    CompareSucceeded,
    /// To a half of a fused pair that waits for the other: the Write has been done, or has failed.
    WriteDone,
    /// To a half of a fused pair: the other one was answered with a failure.
    PartnerFailed,
    /// The blocks of its fused pair are its own.
    ClaimGranted,
    /// A claim in whose scope it was is over, perhaps all of them.
    BlocksReleased,
    /// The last of its operations on disks has ended.
    DiskDone,
    /// Something has happened of which the host has asked to be notified.
    HostNotified,
    /// A worker has done what it asked for, or could not.
    WorkerDone,
    /// The command that it is to abort is aborted, or is not.
    AbortAnswered,
    /// The host asks for its end.
    Aborted,
    /// It may not run any more, for instance because its host does not see its namespace now.
    Refused,
    /// It has waited for long enough.
    TimedOut,
    /// The host does not know of it any more, and is not answered.
    Forgotten,
    /// Its controller is reset or gone: nobody waits for its answer.
    Abandoned,
    /// Its connection is gone, and nothing of it is in flight.
    Disconnected,
}

/// Where a request continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Wait while a limit is reached.
    Begin,
    /// Wait for the turn of its host, if there are others.
    TakeTurn,
    /// Answer it at once if it has failed already, or if the disk can without I/O; hold it back if it has to wait.
    Admit,
    /// Take all its buffers, behind those that wait already.
    QueueForBuffers,
    /// The same, since it is the first that waits.
    TakeBuffers,
    /// Have the host's data fetched, if there is any.
    Fetch,
    /// Do what it asks for: the data is here.
    Execute,
    /// Claim the blocks of its fused pair.
    Claim,
    /// Start the work of the disk, unless a fused pair has claimed the blocks.
    StartDisk,
    /// The same, since the blocks are its own.
    StartClaimed,
    /// Start the next operation, or see what came of all of them.
    GoOnAtDisk,
    /// Settle the outcome, and answer behind those that wait already.
    Answer,
    /// Send the answer, since it is the first that waits.
    Send,
    /// Free its slot without an answer.
    Release,
    /// Nothing: what happens has come too late, or changes nothing yet.
    Ignore,
    /// This cannot be.
    Never,
}

impl Step {
    /// Where it is among the steps of a life, which follow each other; none if it is not one of them.
    const fn place(self) -> Option<u8> {
        Some(match self {
            Self::Begin => 0,
            Self::TakeTurn => 1,
            Self::Admit => 2,
            Self::QueueForBuffers => 3,
            Self::TakeBuffers => 4,
            Self::Fetch => 5,
            Self::Execute => 6,
            Self::StartDisk => 7,
            Self::StartClaimed => 8,
            Self::GoOnAtDisk => 9,
            Self::Answer => 10,
            Self::Send => 11,
            Self::Claim | Self::Release | Self::Ignore | Self::Never => return None,
        })
    }

    /// Whether a life that goes on from here comes to another step, or begins with it.
    #[inline(always)]
    pub(super) const fn leads_to(self, step: Step) -> bool {
        match (self.place(), step.place()) {
            (Some(from), Some(to)) => from <= to,
            _ => false,
        }
    }
}

/// With which step a request in a state continues after an event.
#[inline(always)]
pub(super) const fn next(state: State, event: Event) -> Step {
    use Event as E;
    use State as S;
    match (state, event) {
        // Nothing of a request is in flight any more, or it holds nothing that something in flight could reach.
        (S::Free, E::Disconnected) => Step::Never,
        (_, E::Disconnected) => Step::Release,

        (S::Free, E::Arrived) => Step::Begin,

        (S::AwaitLimit, E::LimitPassed) => Step::TakeTurn,
        (S::AwaitLimit, E::PartnerFailed | E::Aborted | E::Refused) => Step::Answer,

        (S::AwaitTurn, E::TurnCame) => Step::Admit,
        (S::AwaitTurn, E::Aborted | E::Refused) => Step::Answer,
        (S::AwaitLimit | S::AwaitTurn, E::Abandoned) => Step::Release,

        (S::AwaitFused, E::PairHasBuffers) => Step::Fetch,
        (S::AwaitFused, E::PartnerFailed | E::TimedOut | E::Aborted | E::Refused) => Step::Answer,
        (S::AwaitFused, E::Abandoned) => Step::Release,

        (S::HeldBack, E::Unheld) => Step::QueueForBuffers,
        (S::HeldBack, E::PartnerFailed | E::TimedOut | E::Aborted | E::Refused) => Step::Answer,
        (S::HeldBack, E::Abandoned) => Step::Release,

        (S::NeedBuffer, E::BuffersFree) => Step::TakeBuffers,
        (S::NeedBuffer, E::PartnerFailed | E::Aborted | E::Refused) => Step::Answer,
        (S::NeedBuffer, E::Abandoned) => Step::Release,

        // A failure of the partner is seen when it is this one's turn.
        (S::FetchRoom, E::RoomFree) => Step::Fetch,
        (S::FetchRoom, E::Aborted) => Step::Answer,

        (S::DataIn, E::DataArrived) => Step::Execute,

        (S::AwaitPartner, E::PairHasData) => Step::Claim,
        (S::AwaitPartner, E::CompareSucceeded) => Step::StartClaimed,
        (S::AwaitPartner, E::WriteDone | E::PartnerFailed | E::Aborted) => Step::Answer,

        (S::AwaitClaim, E::ClaimGranted) => Step::StartClaimed,
        (S::AwaitClaim, E::PartnerFailed | E::Aborted) => Step::Answer,

        (S::BlocksClaimed, E::BlocksReleased) => Step::StartDisk,
        (S::BlocksClaimed, E::Aborted | E::Refused) => Step::Answer,
        (S::BlocksClaimed, E::Abandoned) => Step::Release,

        (S::AtDisk, E::DiskDone) => Step::GoOnAtDisk,

        (S::AtWorker, E::WorkerDone | E::Aborted) => Step::Answer,
        (S::AtWorker, E::Abandoned) => Step::Release,

        (S::Computing, E::WorkerDone) => Step::QueueForBuffers,
        (S::Computing, E::Aborted) => Step::Answer,
        (S::Computing, E::Abandoned) => Step::Release,

        (S::Parked | S::Resetting, E::HostNotified | E::Aborted) => Step::Answer,
        (S::Parked | S::Resetting, E::Forgotten) => Step::Release,

        (S::Aborting, E::AbortAnswered) => Step::Answer,

        (S::DataOut, E::RoomFree) => Step::Send,

        // These come from elsewhere, and may find that the request has gone on.
        (_, E::LimitPassed | E::TurnCame | E::Unheld | E::BuffersFree) => Step::Ignore,
        (_, E::BlocksReleased | E::TimedOut) => Step::Ignore,
        (_, E::WorkerDone | E::AbortAnswered | E::HostNotified | E::Forgotten) => Step::Ignore,
        // What a disk or the network works on is left to complete.
        (_, E::Aborted | E::Abandoned | E::PartnerFailed | E::Refused) => Step::Ignore,

        (_, E::Arrived | E::PairHasBuffers | E::RoomFree | E::DataArrived) => Step::Never,
        (_, E::PairHasData | E::CompareSucceeded | E::WriteDone | E::ClaimGranted | E::DiskDone) => {
            Step::Never
        }
    }
}

#[cfg(test)]
mod tests;
