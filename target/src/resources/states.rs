//! The states of a request, how many requests of the core are in each, and for how long some of them were.

use std::time::Duration;

use ringfab_base::SplitMix64;
use ringfab_reactor::Time;
use serde::Serialize;

use crate::model::latency::{Phase, Timed};

/// Where a request waits. What needs no wait is passed through: a command that finds everything at once is never in a
/// state other than [`State::Free`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// The slot serves no command, until one arrives.
    Free,
    /// A limit of its namespace or its host has been reached. It holds no buffer of the pool, and waits until the limit
    /// lets it pass.
    AwaitLimit,
    /// Other hosts are served, too, and it is not the turn of its host. It holds no buffer of the pool.
    AwaitTurn,
    /// Half of a fused operation. It holds no buffer, except what came in its capsule, and waits for the other half;
    /// with the pair's buffers, with a failure of the other half or with its time limit that ends.
    AwaitFused,
    /// Its disk is hung, or still works on what the host has left behind, or its blocks are claimed. It holds no buffer
    /// of the pool, and waits until nothing holds it back or its time is over.
    HeldBack,
    /// It waits, in order among all queues of its host, for all the buffers that it will ever need.
    NeedBuffer,
    /// It holds its buffers and waits, in order, for room in the send queue to fetch the host's data.
    FetchRoom,
    /// The transport moves the host's data into its buffers; the last piece ends that.
    DataIn,
    /// Half of a fused pair. It holds its data and waits for the other half: for its data, or for its turn at the disk.
    AwaitPartner,
    /// The Compare of a fused pair whose data is here. It waits until the pair's blocks are its own on all cores.
    AwaitClaim,
    /// Its blocks were claimed while it got its data, which it holds until a fused pair of another queue releases them.
    BlocksClaimed,
    /// A disk works on it and may have its buffers; the last operation's end is the end of that.
    AtDisk,
    /// A worker does what may take long. Its answer ends that, or an abort, after which nobody waits for the answer.
    AtWorker,
    /// An Authentication Receive whose message is being computed. It holds no buffer, since others may wait for one,
    /// and anybody who reaches a listener can be in this state. It gets one when the message is there.
    Computing,
    /// An Asynchronous Event Request. It holds nothing and waits for an event.
    Parked,
    /// A Cross-Controller Reset. It holds nothing and waits for the end of the other controller, for a while.
    Resetting,
    /// An Abort. It holds nothing and waits for the answer of the core that has the command to be aborted.
    Aborting,
    /// Its outcome is known. It holds the data for the host and waits, in order, for room in the send queue.
    DataOut,
}

impl State {
    /// How many states there are.
    pub const COUNT: usize = 18;

    /// Every state, in the order of a request's life.
    pub const ALL: [State; State::COUNT] = [
        Self::Free,
        Self::AwaitLimit,
        Self::AwaitTurn,
        Self::AwaitFused,
        Self::HeldBack,
        Self::NeedBuffer,
        Self::FetchRoom,
        Self::DataIn,
        Self::AwaitPartner,
        Self::AwaitClaim,
        Self::BlocksClaimed,
        Self::AtDisk,
        Self::AtWorker,
        Self::Computing,
        Self::Parked,
        Self::Resetting,
        Self::Aborting,
        Self::DataOut,
    ];

    /// Its name where it is shown: that of `status --json`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::AwaitLimit => "await_limit",
            Self::AwaitTurn => "await_turn",
            Self::AwaitFused => "await_fused",
            Self::HeldBack => "held_back",
            Self::NeedBuffer => "need_buffer",
            Self::FetchRoom => "fetch_room",
            Self::DataIn => "data_in",
            Self::AwaitPartner => "await_partner",
            Self::AwaitClaim => "await_claim",
            Self::BlocksClaimed => "blocks_claimed",
            Self::AtDisk => "at_disk",
            Self::AtWorker => "at_worker",
            Self::Computing => "computing",
            Self::Parked => "parked",
            Self::Resetting => "resetting",
            Self::Aborting => "aborting",
            Self::DataOut => "data_out",
        }
    }

    /// Which phase of a command's life it belongs to; none while there is no command, or nothing to wait for.
    pub const fn phase(self) -> Option<Phase> {
        match self {
            Self::Free | Self::Parked => None,
            Self::AwaitFused | Self::FetchRoom | Self::DataIn => Some(Phase::Receive),
            Self::HeldBack | Self::AtDisk => Some(Phase::Disk),
            Self::AwaitLimit | Self::AwaitTurn | Self::NeedBuffer => Some(Phase::Wait),
            Self::AwaitPartner | Self::AwaitClaim | Self::BlocksClaimed => Some(Phase::Wait),
            Self::AtWorker | Self::Computing | Self::Resetting | Self::Aborting => Some(Phase::Wait),
            Self::DataOut => Some(Phase::Send),
        }
    }

    /// Whom a request in this state waits for.
    pub const fn waits_for(self) -> WaitsFor {
        match self {
            Self::Free | Self::Parked => WaitsFor::Nobody,
            Self::AwaitFused | Self::FetchRoom | Self::DataIn | Self::DataOut => WaitsFor::Host,
            Self::AwaitLimit | Self::AwaitTurn | Self::NeedBuffer => WaitsFor::Queue,
            Self::AwaitPartner | Self::AwaitClaim | Self::BlocksClaimed => WaitsFor::Queue,
            Self::AtWorker | Self::Computing | Self::Resetting | Self::Aborting => WaitsFor::Queue,
            Self::HeldBack | Self::AtDisk => WaitsFor::Disk,
        }
    }
}

/// Who keeps a request waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitsFor {
    /// Nobody: there is no command, or it waits for an event that may never come.
    Nobody,
    /// The host, or the network: data, or room for what is on its way there.
    Host,
    /// The target: buffers, blocks that others use, other cores, workers.
    Queue,
    /// A disk.
    Disk,
}

/// One command of so many that follow each other has its states timed.
pub(crate) const SAMPLE_INTERVAL: u32 = 64;

/// How long sampled requests were in a state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct StateTime {
    /// How often one of them has left it.
    count: u64,
    /// For how long they were in it, all together.
    total: Duration,
    /// The longest.
    max: Duration,
}

impl StateTime {
    fn add(&mut self, time: Duration) {
        self.count += 1;
        self.total += time;
        self.max = self.max.max(time);
    }
}

/// Where the time of sampled commands went, all together, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LatencySplit {
    /// How many were sampled.
    pub commands: u64,
    /// They waited for hosts and the network.
    pub host_us: u64,
    /// They waited in the target.
    pub queue_us: u64,
    /// They waited for disks.
    pub disk_us: u64,
}

/// What is timed of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    begun: Time,
    /// When it entered its state.
    entered: Time,
    /// Nanoseconds in each phase.
    phases: [u64; Phase::COUNT],
}

impl Sample {
    /// Its answer, which was given to the transport when it left its last state, has been sent.
    pub(crate) fn sent(mut self, now: Time) -> Timed {
        self.phases[Phase::Send as usize] += nanos(now.since(self.entered));
        Timed { total: now.since(self.begun), phases: self.phases.map(Duration::from_nanos) }
    }
}

/// The requests of a core that are in one state, and those of the sampled ones that were.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct StateUsage {
    /// The state.
    pub state: State,
    /// How many are in it now.
    pub commands: u32,
    /// How often a sampled one has left it.
    pub sampled: u64,
    /// For how long these were in it, all together, in microseconds.
    pub total_us: u64,
    /// The longest of them, in microseconds.
    pub max_us: u64,
}

/// The requests of a core, counted as they move.
#[derive(Debug)]
pub(crate) struct RequestStates {
    counts: [u32; State::COUNT],
    times: [StateTime; State::COUNT],
    /// Commands until the next one that is sampled.
    until_sample: u32,
    /// Of those among which the last one was sampled, how many came or come after it.
    rest: u32,
    /// Which one of so many is sampled. Were it always the same one, a host that writes and reads in turns would have
    /// only its reads timed, or only its writes.
    random: SplitMix64,
    /// How many were sampled.
    sampled: u64,
    /// When this turn of the core's loop began.
    now: Time,
    /// Commands of I/O queues that have arrived in this turn.
    arrived: u32,
}

impl Default for RequestStates {
    fn default() -> Self {
        Self {
            counts: [0; State::COUNT],
            times: [StateTime::default(); State::COUNT],
            until_sample: 1,
            rest: SAMPLE_INTERVAL - 1,
            random: SplitMix64::new(0),
            sampled: 0,
            now: Time::ZERO,
            arrived: 0,
        }
    }
}

impl RequestStates {
    /// A turn of the core's loop begins. All that happens in it happens now: no clock is read for a command.
    #[inline]
    pub(crate) fn begin_turn(&mut self, now: Time) {
        self.now = now;
    }

    /// When this turn began.
    pub(crate) fn now(&self) -> Time {
        self.now
    }

    /// A command has arrived, on an I/O queue or on an admin queue.
    #[inline]
    pub(crate) fn arrived(&mut self, is_io: bool) {
        self.arrived += u32::from(is_io);
    }

    /// How many commands of I/O queues have arrived in this turn.
    pub(crate) fn take_arrived(&mut self) -> u32 {
        std::mem::take(&mut self.arrived)
    }

    /// A command begins its life. If its states are to be timed, it gets a sample; a free slot has none.
    #[inline]
    pub(crate) fn sample_next(&mut self, place: &mut Option<Sample>) {
        self.until_sample -= 1;
        if self.until_sample == 0 {
            *place = Some(self.sample());
        }
    }

    #[cold]
    fn sample(&mut self) -> Sample {
        let index = self.random.below(u64::from(SAMPLE_INTERVAL)) as u32;
        self.until_sample = self.rest + index + 1;
        self.rest = SAMPLE_INTERVAL - 1 - index;
        self.sampled += 1;
        Sample { begun: self.now, entered: self.now, phases: [0; Phase::COUNT] }
    }

    /// A request goes from one state to another.
    #[inline]
    pub(crate) fn moved(&mut self, from: State, to: State) {
        self.counts[from as usize] = self.counts[from as usize].wrapping_sub(1);
        self.counts[to as usize] = self.counts[to as usize].wrapping_add(1);
    }

    /// A sampled request leaves a state.
    #[cold]
    pub(crate) fn timed(&mut self, state: State, sample: &mut Sample) {
        let time = self.now.since(sample.entered);
        sample.entered = self.now;
        if state != State::Free {
            self.times[state as usize].add(time);
        }
        if let Some(phase) = state.phase() {
            sample.phases[phase as usize] += nanos(time);
        }
    }

    /// How many requests are in a state. Free slots are not counted.
    pub(crate) fn count(&self, state: State) -> u32 {
        if state == State::Free { 0 } else { self.counts[state as usize] }
    }

    /// How many commands have no answer yet.
    pub(crate) fn outstanding(&self) -> u32 {
        State::ALL.iter().map(|state| self.count(*state)).sum()
    }

    /// The states that a request is in, or that a sampled one was in.
    pub(crate) fn usage(&self) -> Vec<StateUsage> {
        let of = |state: State| {
            let StateTime { count: sampled, total, max } = self.times[state as usize];
            let (total_us, max_us) = (micros(total), micros(max));
            StateUsage { state, commands: self.count(state), sampled, total_us, max_us }
        };
        State::ALL.into_iter().map(of).filter(|usage| usage.commands != 0 || usage.sampled != 0).collect()
    }

    /// Where the time of sampled requests went.
    pub(crate) fn split(&self) -> LatencySplit {
        let total = |whom| {
            let states = State::ALL.into_iter().filter(|state| state.waits_for() == whom);
            micros(states.map(|state| self.times[state as usize].total).sum())
        };
        LatencySplit {
            commands: self.sampled,
            host_us: total(WaitsFor::Host),
            queue_us: total(WaitsFor::Queue),
            disk_us: total(WaitsFor::Disk),
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::ZERO + Duration::from_millis(millis)
    }

    fn entered(millis: u64) -> Sample {
        Sample { begun: at(millis), entered: at(millis), phases: [0; Phase::COUNT] }
    }

    #[test]
    fn the_phases_of_a_command_add_up_until_its_answer_is_sent() {
        let mut states = RequestStates::default();
        let mut sample = entered(0);
        let steps = [State::HeldBack, State::NeedBuffer, State::DataIn, State::AtDisk, State::BlocksClaimed];
        for (state, now) in steps.into_iter().zip([1, 3, 6, 10, 15]) {
            states.begin_turn(at(now));
            states.timed(state, &mut sample);
        }
        let timed = sample.sent(at(21));
        let phases = [7, 3, 5, 6].map(Duration::from_millis);
        assert_eq!(timed, Timed { total: Duration::from_millis(21), phases });
    }

    #[test]
    fn every_state_has_its_place_in_the_list() {
        for (index, state) in State::ALL.iter().enumerate() {
            assert_eq!(*state as usize, index, "{state:?}");
            assert_eq!(serde_json::to_value(state).expect("a word"), state.name());
        }
    }

    #[test]
    fn requests_are_counted_where_they_are() {
        let mut states = RequestStates::default();
        states.moved(State::Free, State::NeedBuffer);
        states.moved(State::Free, State::AtDisk);
        states.moved(State::NeedBuffer, State::AtDisk);
        assert_eq!((states.count(State::NeedBuffer), states.count(State::AtDisk)), (0, 2));
        assert_eq!(states.outstanding(), 2);
        states.moved(State::AtDisk, State::Free);
        assert_eq!((states.count(State::Free), states.outstanding()), (0, 1));
    }

    /// Which ones of so many commands are sampled.
    fn sampled(commands: u32) -> Vec<u32> {
        let mut states = RequestStates::default();
        let mut is_sampled = || {
            let mut place = None;
            states.sample_next(&mut place);
            place.is_some()
        };
        (0..commands).filter(|_| is_sampled()).collect()
    }

    #[test]
    fn the_first_command_is_sampled_and_then_one_of_each_so_many() {
        let sampled = sampled(100 * SAMPLE_INTERVAL);
        let among: Vec<u32> = sampled.iter().map(|command| command / SAMPLE_INTERVAL).collect();
        assert_eq!((sampled[0], among), (0, (0..100).collect()));
    }

    #[test]
    fn a_host_that_sends_different_commands_in_turns_has_each_of_them_sampled() {
        for different in [2, 3, 4, 8, 16, 64] {
            let sampled = sampled(100 * different * SAMPLE_INTERVAL);
            for which in 0..different {
                let count = sampled.iter().filter(|command| *command % different == which).count();
                assert!((50..200).contains(&count), "{count} of {which} of {different}");
            }
        }
    }

    #[test]
    fn the_time_in_states_is_that_of_hosts_of_the_target_and_of_disks() {
        let mut states = RequestStates::default();
        states.begin_turn(at(10));
        for (state, since) in [
            (State::DataIn, 7),
            (State::DataIn, 9),
            (State::NeedBuffer, 5),
            (State::AtDisk, 3),
            (State::Parked, 0),
            (State::Free, 0),
        ] {
            states.timed(state, &mut entered(since));
        }
        states.moved(State::Free, State::DataIn);
        let data_in =
            StateUsage { state: State::DataIn, commands: 1, sampled: 2, total_us: 4000, max_us: 3000 };
        assert_eq!(states.usage().into_iter().find(|usage| usage.state == State::DataIn), Some(data_in));
        let split = LatencySplit { commands: 0, host_us: 4000, queue_us: 5000, disk_us: 7000 };
        assert_eq!(states.split(), split);
    }
}
