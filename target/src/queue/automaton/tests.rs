//! The table of states and events.

use super::*;

const EVENTS: [Event; 23] = [
    Event::Arrived,
    Event::LimitPassed,
    Event::TurnCame,
    Event::PairHasBuffers,
    Event::Unheld,
    Event::BuffersFree,
    Event::RoomFree,
    Event::DataArrived,
    Event::PairHasData,
    Event::CompareSucceeded,
    Event::WriteDone,
    Event::PartnerFailed,
    Event::ClaimGranted,
    Event::BlocksReleased,
    Event::DiskDone,
    Event::HostNotified,
    Event::WorkerDone,
    Event::AbortAnswered,
    Event::Aborted,
    Event::Refused,
    Event::TimedOut,
    Event::Forgotten,
    Event::Abandoned,
];

/// What each event does to a request in a state, except to its connection's end.
fn row(state: State) -> String {
    let steps = EVENTS.iter().map(|event| (event, next(state, *event)));
    let steps = steps.filter(|(_, step)| !matches!(step, Step::Ignore | Step::Never));
    let steps: Vec<String> = steps.map(|(event, step)| format!("{event:?} -> {step:?}")).collect();
    format!("{state:?}: {}", steps.join(", "))
}

#[test]
fn the_automaton_of_a_request_is_this_one() {
    let table: Vec<String> = State::ALL.into_iter().map(row).collect();
    assert_eq!(
        table,
        [
            "Free: Arrived -> Begin",
            "AwaitLimit: LimitPassed -> TakeTurn, PartnerFailed -> Answer, Aborted -> Answer, \
             Refused -> Answer, Abandoned -> Release",
            "AwaitTurn: TurnCame -> Admit, Aborted -> Answer, Refused -> Answer, Abandoned -> Release",
            "AwaitFused: PairHasBuffers -> Fetch, PartnerFailed -> Answer, Aborted -> Answer, \
             Refused -> Answer, TimedOut -> Answer, Abandoned -> Release",
            "HeldBack: Unheld -> QueueForBuffers, PartnerFailed -> Answer, Aborted -> Answer, \
             Refused -> Answer, TimedOut -> Answer, Abandoned -> Release",
            "NeedBuffer: BuffersFree -> TakeBuffers, PartnerFailed -> Answer, Aborted -> Answer, \
             Refused -> Answer, Abandoned -> Release",
            "FetchRoom: RoomFree -> Fetch, Aborted -> Answer",
            "DataIn: DataArrived -> Execute",
            "AwaitPartner: PairHasData -> Claim, CompareSucceeded -> StartClaimed, WriteDone -> Answer, \
             PartnerFailed -> Answer, Aborted -> Answer",
            "AwaitClaim: PartnerFailed -> Answer, ClaimGranted -> StartClaimed, Aborted -> Answer",
            "BlocksClaimed: BlocksReleased -> StartDisk, Aborted -> Answer, Refused -> Answer, \
             Abandoned -> Release",
            "AtDisk: DiskDone -> GoOnAtDisk",
            "AtWorker: WorkerDone -> Answer, Aborted -> Answer, Abandoned -> Release",
            "Computing: WorkerDone -> QueueForBuffers, Aborted -> Answer, Abandoned -> Release",
            "Parked: HostNotified -> Answer, Aborted -> Answer, Forgotten -> Release",
            "Resetting: HostNotified -> Answer, Aborted -> Answer, Forgotten -> Release",
            "Aborting: AbortAnswered -> Answer",
            "DataOut: RoomFree -> Send",
        ]
    );
}

#[test]
fn every_event_in_every_state_has_one_of_three_outcomes_a_step_nothing_or_that_it_cannot_be() {
    let mut never = 0;
    for (state, event) in State::ALL.into_iter().flat_map(|state| EVENTS.map(|event| (state, event))) {
        never += usize::from(next(state, event) == Step::Never);
    }
    // Of what other parts of the target say late, nothing is an error: it is for a request that has gone on.
    let late = [
        Event::LimitPassed,
        Event::TurnCame,
        Event::Unheld,
        Event::BuffersFree,
        Event::BlocksReleased,
        Event::TimedOut,
        Event::WorkerDone,
        Event::AbortAnswered,
        Event::HostNotified,
        Event::Forgotten,
        Event::Aborted,
        Event::Refused,
        Event::Abandoned,
        Event::PartnerFailed,
    ];
    for (state, event) in State::ALL.into_iter().flat_map(|state| late.map(|event| (state, event))) {
        assert_ne!(next(state, event), Step::Never, "{event:?} in {state:?}");
    }
    // What only the request's own operations bring about belongs to one state, except that two wait for room.
    let own = EVENTS.len() - late.len();
    assert_eq!(never, own * State::COUNT - own - 1);
}

#[test]
fn the_end_of_its_connection_ends_a_request_in_every_state() {
    for state in State::ALL.into_iter().filter(|state| *state != State::Free) {
        assert_eq!(next(state, Event::Disconnected), Step::Release, "{state:?}");
    }
    assert_eq!(next(State::Free, Event::Disconnected), Step::Never);
}

#[test]
fn a_command_that_nobody_works_on_can_be_aborted_and_no_other() {
    let can = |state: &State| next(*state, Event::Aborted) == Step::Answer;
    let states: Vec<State> = State::ALL.into_iter().filter(can).collect();
    let before_its_turn = [State::AwaitLimit, State::AwaitTurn, State::AwaitFused];
    let before_buffers = [State::HeldBack, State::NeedBuffer];
    let with_data = [State::FetchRoom, State::AwaitPartner, State::AwaitClaim, State::BlocksClaimed];
    let elsewhere = [State::AtWorker, State::Computing, State::Parked, State::Resetting];
    assert_eq!(states, [&before_its_turn[..], &before_buffers, &with_data, &elsewhere].concat());
}

#[test]
fn the_steps_of_a_life_follow_each_other() {
    use Step as S;
    let life = [
        S::Begin,
        S::TakeTurn,
        S::Admit,
        S::QueueForBuffers,
        S::TakeBuffers,
        S::Fetch,
        S::Execute,
        S::StartDisk,
        S::StartClaimed,
        S::GoOnAtDisk,
        S::Answer,
        S::Send,
    ];
    for (index, step) in life.iter().enumerate() {
        let (before, from) = life.split_at(index);
        assert!(before.iter().all(|earlier| !step.leads_to(*earlier)), "{step:?}");
        assert!(from.iter().all(|later| step.leads_to(*later)), "{step:?}");
    }
    assert!(!S::Begin.leads_to(S::Claim) && !S::Release.leads_to(S::Send));
    // No event leads back to the beginning of a life.
    for (state, event) in State::ALL.into_iter().flat_map(|state| EVENTS.map(|event| (state, event))) {
        assert!(next(state, event) != Step::Begin || state == State::Free, "{event:?} in {state:?}");
    }
}
