//! What the status of an answer means for its command: one table, read from the top.
//!
//! Do Not Retry decides first: a controller that sets it expects the same command to fail again. Without it, the table
//! says whether the command is tried again after a delay, waits for the path to come back, or fails because the command
//! itself is what is wrong.
//!
//! Two bounds apply. Tries are counted ([`ReconnectPolicy::retries`]). The time that a command waits for its path is
//! bounded by the limits of a lost connection, and for a transition also by what the controller says that one takes
//! (ANATT).

use std::time::Duration;

use ringfab_spec::Status;

use crate::options::ReconnectPolicy;

/// What to do with a command that was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It succeeded.
    Complete,
    /// Its status is the answer.
    Fail,
    /// Another try may succeed; tries are counted.
    Retry,
    /// This way to the namespace is closed for now; time is counted.
    WaitForPath,
}

/// Which statuses a row is about.
#[derive(Clone, Copy, Debug)]
enum Rows {
    /// This one.
    One(Status),
    /// A whole Status Code Type.
    Type(u8),
    /// All that no row before was about.
    Rest,
}

/// Path Related Status.
const SCT_PATH: u8 = 3;

/// The first row that is about a status decides. Statuses with Do Not Retry never get here.
const TABLE: [(Rows, Verdict); 20] = {
    use Rows::{One, Rest, Type};
    use Verdict::{Complete, Fail, Retry, WaitForPath};
    [
        (One(Status::SUCCESS), Complete),
        // The host aborted it: the wait is over.
        (One(Status::ABORTED_BY_HOST), Fail),
        // The path between controller and media, or the access state of the namespace (ANA).
        (Type(SCT_PATH), WaitForPath),
        // Answers about the data or the namespace: the command did what it was asked to.
        (One(Status::COMPARE_FAILURE), Fail),
        (One(Status::RESERVATION_CONFLICT), Fail),
        (One(Status::ACCESS_DENIED), Fail),
        (One(Status::NAMESPACE_WRITE_PROTECTED), Fail),
        (One(Status::CAPACITY_EXCEEDED), Fail),
        (One(Status::DEALLOCATED_BLOCK), Fail),
        // The command itself is wrong, and will be no other.
        (One(Status::INVALID_OPCODE), Fail),
        (One(Status::INVALID_FIELD), Fail),
        (One(Status::INVALID_NAMESPACE), Fail),
        (One(Status::LBA_OUT_OF_RANGE), Fail),
        (One(Status::COMMAND_SIZE_LIMIT_EXCEEDED), Fail),
        (One(Status::WRITE_TO_READ_ONLY_RANGE), Fail),
        (One(Status::INVALID_LOG_PAGE), Fail),
        (One(Status::OPERATION_DENIED), Fail),
        (One(Status::AUTHENTICATION_REQUIRED), Fail),
        (One(Status::COMMAND_PROHIBITED), Fail),
        // Internal Error, Namespace Not Ready, Command Interrupted, errors of the media, and what is not known yet.
        (Rest, Retry),
    ]
};

/// What to do with a command that was answered with `status`, as far as its bounds allow.
pub(crate) fn judge(status: Status) -> Verdict {
    if status.dnr() && !status.is_success() {
        return Verdict::Fail;
    }
    let about = |rows: Rows| match rows {
        Rows::One(one) => one.code() == status.code(),
        Rows::Type(sct) => sct == status.sct(),
        Rows::Rest => true,
    };
    TABLE.iter().find(|(rows, _)| about(*rows)).map_or(Verdict::Retry, |(_, verdict)| *verdict)
}

/// What a controller says about trying again.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RetryDelays {
    /// The Command Retry Delay Times; zero when it has none, or does not know that we honour them.
    pub(crate) crdt: [Duration; 3],
    /// The longest transition of an access state (ANATT), if it says one.
    pub(crate) anatt: Option<Duration>,
}

/// Without a delay of the controller: before the second try, doubling.
const DELAY: Duration = Duration::from_millis(100);
/// No delay is longer, whatever a controller says.
const DELAY_MAX: Duration = Duration::from_secs(60);
/// Between two looks at whether a path is open again, at most.
const PATH_DELAY_MAX: Duration = Duration::from_secs(1);
/// How long a transition may take where the controller does not say it.
const TRANSITION: Duration = Duration::from_secs(30);

/// How often one command was answered so that it was tried again, and how long it waited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tries {
    /// Those that count.
    retries: u8,
    /// Those that waited for a path, saturating.
    path: u16,
    /// How long those waited, saturating.
    path_ms: u32,
}

impl Tries {
    /// How often it was sent, the first time included.
    pub(crate) fn sent(self) -> u32 {
        1 + u32::from(self.retries) + u32::from(self.path)
    }

    /// How long to wait before the next try; `None` when this was the last.
    pub(crate) fn next(
        &mut self,
        verdict: Verdict,
        status: Status,
        delays: &RetryDelays,
        policy: &ReconnectPolicy,
    ) -> Option<Duration> {
        match verdict {
            Verdict::Complete | Verdict::Fail => None,
            Verdict::Retry if self.retries >= policy.retries => None,
            Verdict::Retry => {
                let delay = doubled(u32::from(self.retries), DELAY_MAX);
                self.retries += 1;
                Some(requested_delay(status, delays).unwrap_or(delay).min(DELAY_MAX))
            }
            Verdict::WaitForPath => {
                let delay = doubled(u32::from(self.path), PATH_DELAY_MAX);
                let delay = requested_delay(status, delays).unwrap_or(delay).min(DELAY_MAX);
                let waited = Duration::from_millis(self.path_ms.into());
                if path_limit(status, delays, policy).is_some_and(|limit| waited + delay > limit) {
                    return None;
                }
                self.path = self.path.saturating_add(1);
                self.path_ms = self.path_ms.saturating_add(delay.as_millis() as u32);
                Some(delay)
            }
        }
    }
}

/// How long a command waits for its path with such a status; `None` for as long as it takes.
pub(crate) fn path_limit(status: Status, delays: &RetryDelays, policy: &ReconnectPolicy) -> Option<Duration> {
    let transition = (status.code() == Status::ANA_TRANSITION).then(|| delays.anatt.unwrap_or(TRANSITION));
    [policy.fast_io_fail_timeout, policy.controller_loss_timeout, transition].into_iter().flatten().min()
}

/// The delay that the controller asks for with its answer.
fn requested_delay(status: Status, delays: &RetryDelays) -> Option<Duration> {
    let delay = delays.crdt[usize::from(status.crd()).checked_sub(1)?];
    (!delay.is_zero()).then_some(delay)
}

fn doubled(times: u32, most: Duration) -> Duration {
    DELAY.saturating_mul(1 << times.min(16)).min(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(retries: u8) -> ReconnectPolicy {
        let controller_loss_timeout = Some(Duration::from_secs(600));
        ReconnectPolicy { retries, controller_loss_timeout, ..ReconnectPolicy::default() }
    }

    #[test]
    fn each_row_decides_for_its_statuses_unless_do_not_retry_is_set() {
        for (rows, verdict) in TABLE {
            let status = match rows {
                Rows::One(status) => status,
                Rows::Type(sct) => Status::new(sct, 0x02),
                Rows::Rest => Status::INTERNAL_ERROR,
            };
            assert_eq!(judge(status), verdict, "{status}");
            let final_one = if status.is_success() { Verdict::Complete } else { Verdict::Fail };
            assert_eq!(judge(status.with_dnr()), final_one, "{status} with Do Not Retry");
            assert_eq!(judge(status.with_more()), verdict, "More says nothing about another try");
        }
    }

    #[test]
    fn the_statuses_that_hosts_know_are_in_the_rows_where_they_belong() {
        use Verdict::{Fail, Retry, WaitForPath};
        for (status, verdict) in [
            (Status::INTERNAL_ERROR, Retry),
            (Status::NAMESPACE_NOT_READY, Retry),
            (Status::COMMAND_INTERRUPTED, Retry),
            (Status::TRANSIENT_TRANSPORT_ERROR, Retry),
            (Status::ABORTED_SQ_DELETION, Retry),
            (Status::ABORT_REQUESTED, Retry),
            (Status::UNRECOVERED_READ_ERROR, Retry),
            (Status::WRITE_FAULT, Retry),
            (Status::FORMAT_IN_PROGRESS, Retry),
            (Status::new(7, 0x33), Retry),
            (Status::ANA_TRANSITION, WaitForPath),
            (Status::ANA_INACCESSIBLE, WaitForPath),
            (Status::ANA_PERSISTENT_LOSS, WaitForPath),
            (Status::INTERNAL_PATH_ERROR, WaitForPath),
            (Status::CONTROLLER_PATHING_ERROR, WaitForPath),
            (Status::HOST_PATHING_ERROR, WaitForPath),
            (Status::ABORTED_BY_HOST, Fail),
            (Status::COMPARE_FAILURE, Fail),
            (Status::INVALID_FIELD, Fail),
        ] {
            assert_eq!(judge(status), verdict, "{status}");
        }
    }

    #[test]
    fn tries_end_at_their_number_with_a_delay_that_doubles() {
        let mut tries = Tries::default();
        let mut next =
            || tries.next(Verdict::Retry, Status::INTERNAL_ERROR, &RetryDelays::default(), &policy(3));
        let delays: Vec<_> = std::iter::from_fn(&mut next).collect();
        assert_eq!(delays, [100, 200, 400].map(Duration::from_millis));
        assert_eq!(tries.sent(), 4);
        let none = Tries::default().next(
            Verdict::Retry,
            Status::INTERNAL_ERROR,
            &RetryDelays::default(),
            &policy(0),
        );
        assert_eq!(none, None, "none is none");
    }

    #[test]
    fn the_controllers_delay_is_taken_up_to_a_bound() {
        let seconds = Duration::from_secs;
        let delays = RetryDelays { crdt: [seconds(2), Duration::ZERO, seconds(6000)], anatt: None };
        let with = |crd: u16| Status::from_bits(Status::INTERNAL_ERROR.bits() | crd << 11);
        let delay = |crd| Tries::default().next(Verdict::Retry, with(crd), &delays, &policy(5));
        assert_eq!(delay(0), Some(DELAY), "it asks for none");
        assert_eq!(delay(1), Some(seconds(2)));
        assert_eq!(delay(2), Some(DELAY), "the one that it names is none");
        assert_eq!(delay(3), Some(DELAY_MAX));
    }

    #[test]
    fn a_path_is_waited_for_as_long_as_the_shortest_limit_says() {
        let waited = |status, delays: &RetryDelays, policy: &ReconnectPolicy| {
            let mut tries = Tries::default();
            let mut all = Duration::ZERO;
            while let Some(delay) = tries.next(Verdict::WaitForPath, status, delays, policy) {
                all += delay;
                assert!(all <= Duration::from_secs(700), "an end");
            }
            all
        };
        let near = |seconds: u64, all: Duration| {
            let limit = Duration::from_secs(seconds);
            all <= limit && all + PATH_DELAY_MAX > limit
        };
        let told = RetryDelays { anatt: Some(Duration::from_secs(10)), ..RetryDelays::default() };
        let default = policy(0);
        assert!(near(10, waited(Status::ANA_TRANSITION, &told, &default)));
        assert!(near(30, waited(Status::ANA_TRANSITION, &RetryDelays::default(), &default)));
        assert!(near(600, waited(Status::ANA_INACCESSIBLE, &told, &default)));
        let fast = ReconnectPolicy { fast_io_fail_timeout: Some(Duration::from_secs(3)), ..default };
        assert!(near(3, waited(Status::ANA_INACCESSIBLE, &told, &fast)));
        assert!(near(3, waited(Status::ANA_TRANSITION, &told, &fast)));
    }
}
