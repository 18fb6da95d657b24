//! An operation of a disk that failed: what that says of the data, and when it is worth a line of the log.

use std::io;
use std::time::Duration;

use ringfab_block::{BlockError, DriveStatus};
use ringfab_reactor::Time;
use ringfab_spec::Status;

/// How long one failure speaks for others of its kind.
const QUIET: Duration = Duration::from_secs(30);

/// How long a namespace is taken for full after a change has found no space: nobody says when there is some again.
const FULL_FOR: Duration = Duration::from_secs(300);

/// The most lines about failures of a namespace within a minute, whatever fails and on however many cores. The log
/// folds what is more, and then nobody sees which operations failed.
const LINES_A_MINUTE: usize = 5;
const MINUTE: Duration = Duration::from_secs(60);

/// An operation of a disk that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DiskFailure {
    /// What failed.
    pub(crate) what: DiskAction,
    /// How.
    pub(crate) error: BlockError,
    /// The system's word for it; none when it was refused before the system was asked.
    pub(crate) errno: Option<i32>,
}

/// What a disk was asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DiskAction {
    Read,
    Write,
    /// A write, or zeroes, that were to be on stable storage when they are done.
    DurableWrite,
    WriteZeroes,
    Deallocate,
    Flush,
}

impl DiskAction {
    const COUNT: usize = 6;

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::DurableWrite => "write with Force Unit Access",
            Self::WriteZeroes => "write zeroes",
            Self::Deallocate => "deallocate",
            Self::Flush => "flush",
        }
    }
}

/// When failures of a namespace were told of, and how many were not since. All cores share it.
#[derive(Debug, Default)]
pub(crate) struct FailureLog {
    /// The last line about each kind.
    told: [Option<(Time, BlockError)>; DiskAction::COUNT],
    /// The lines of the last minute, the oldest first.
    lines: Vec<Time>,
    /// Failures since the last line.
    left_out: u64,
    /// When a change has found no space last.
    no_space_at: Option<Time>,
}

impl FailureLog {
    /// Whether a failure is to be told of now, and with how many others that were not.
    pub(super) fn tell(&mut self, now: Time, failure: DiskFailure) -> Option<u64> {
        if failure.error == BlockError::NoSpace {
            self.no_space_at = Some(now);
        }
        let told = self.told[failure.what as usize];
        let is_known = told.is_some_and(|(at, error)| error == failure.error && now.since(at) < QUIET);
        if is_known || !self.has_room(now) {
            self.left_out += 1;
            return None;
        }
        self.told[failure.what as usize] = Some((now, failure.error));
        Some(self.add_line(now))
    }

    /// How many were not told of, if no other failure has told of them for a while.
    pub(super) fn tell_left_out(&mut self, now: Time) -> Option<u64> {
        let waits = self.left_out == 0 || self.lines.last().is_some_and(|last| now.since(*last) < QUIET);
        (!waits && self.has_room(now)).then(|| self.add_line(now))
    }

    /// Whether a change has found no space lately.
    pub(crate) fn found_no_space(&self, now: Time) -> bool {
        self.no_space_at.is_some_and(|at| now.since(at) < FULL_FOR)
    }

    fn has_room(&mut self, now: Time) -> bool {
        self.lines.retain(|at| now.since(*at) < MINUTE);
        self.lines.len() < LINES_A_MINUTE
    }

    fn add_line(&mut self, now: Time) -> u64 {
        self.lines.push(now);
        std::mem::take(&mut self.left_out)
    }
}

impl DiskFailure {
    /// Whether the disk failed, and not who asked.
    pub(super) fn is_of_disk(self) -> bool {
        match self.error {
            BlockError::OutOfRange | BlockError::Busy | BlockError::Cancelled => false,
            BlockError::Miscompare => false,
            BlockError::Drive(status) => of_drive(status).code() != Status::COMPARE_FAILURE,
            _ if self.what == DiskAction::Flush => true,
            BlockError::NotSupported => false,
            BlockError::Misaligned | BlockError::ReadOnly => self.errno.is_some(),
            _ => true,
        }
    }

    /// Whether data is damaged or gone, and not merely refused.
    pub(super) fn is_of_medium(self) -> bool {
        match self.error {
            BlockError::Read | BlockError::Write | BlockError::Shrunk | BlockError::Removed => true,
            BlockError::Drive(status) => is_of_medium(of_drive(status)),
            _ => self.what == DiskAction::Flush,
        }
    }

    /// Whether data of other commands may be lost with it, which the system says this once only. A full disk refuses
    /// a direct write before anything is lost; of one through the page cache nobody knows whether it was its own or
    /// an older one.
    pub(super) fn loses_data(self, direct: bool) -> bool {
        let refused = self.errno.is_none() && !matches!(self.error, BlockError::Read | BlockError::Write);
        match (self.what, self.error) {
            (_, BlockError::Busy | BlockError::Cancelled) => false,
            // A drive does not say things once only: what it lets a host try again is not lost.
            (DiskAction::Flush, BlockError::Drive(status)) => {
                of_drive(status).dnr() || is_of_medium(of_drive(status))
            }
            (DiskAction::DurableWrite, BlockError::Drive(status)) => is_of_medium(of_drive(status)),
            // Whatever a flush fails with may be what a write-back failed with.
            (DiskAction::Flush, _) => !refused,
            (DiskAction::DurableWrite, BlockError::NoSpace) => !direct,
            (DiskAction::DurableWrite, BlockError::Write | BlockError::Removed) => true,
            _ => false,
        }
    }

    /// The system's text, or else ours.
    pub(super) fn text(self) -> String {
        match (self.errno, self.error) {
            (Some(errno), _) => io::Error::from_raw_os_error(errno).to_string(),
            (None, BlockError::Drive(status)) => format!("{} ({})", self.error, of_drive(status)),
            (None, error) => error.to_string(),
        }
    }
}

fn of_drive(status: DriveStatus) -> Status {
    Status::from_bits(status.bits())
}

/// Whether a drive says that data is damaged or gone: of Media and Data Integrity Errors (type 2), all but what only
/// refuses a command.
fn is_of_medium(status: Status) -> bool {
    status.sct() == 2 && ![Status::COMPARE_FAILURE, Status::ACCESS_DENIED].contains(&status.code())
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn failure(what: DiskAction, error: BlockError) -> DiskFailure {
        DiskFailure { what, error, errno: Some(libc_eio()) }
    }

    const fn libc_eio() -> i32 {
        5
    }

    #[test]
    fn failures_of_a_kind_are_told_of_once_in_a_while_with_the_number_of_the_others() {
        let mut log = FailureLog::default();
        let read = failure(DiskAction::Read, BlockError::Read);
        assert_eq!(log.tell(at(1), read), Some(0));
        assert_eq!(log.tell(at(2), read), None);
        assert_eq!(log.tell(at(3), read), None);
        assert_eq!(log.tell(at(3), failure(DiskAction::Write, BlockError::Write)), Some(2));
        assert_eq!(log.tell(at(4), DiskFailure { error: BlockError::Removed, ..read }), Some(0));
        assert_eq!(log.tell(at(33), DiskFailure { error: BlockError::Removed, ..read }), None);
        assert_eq!(log.tell(at(34), DiskFailure { error: BlockError::Removed, ..read }), Some(1));
    }

    #[test]
    fn a_disk_that_found_no_space_is_full_for_a_while_after_the_last_time() {
        let mut log = FailureLog::default();
        log.tell(at(1), failure(DiskAction::Write, BlockError::Write));
        assert!(!log.found_no_space(at(2)));
        log.tell(at(10), failure(DiskAction::Write, BlockError::NoSpace));
        log.tell(at(100), failure(DiskAction::Write, BlockError::NoSpace));
        assert!(log.found_no_space(at(399)) && !log.found_no_space(at(400)));
    }

    const fn at(seconds: u64) -> Time {
        Time::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn no_minute_has_more_lines_than_so_many_and_every_failure_is_counted() {
        let mut log = FailureLog::default();
        let kinds = [
            failure(DiskAction::Read, BlockError::Read),
            failure(DiskAction::Read, BlockError::Removed),
            failure(DiskAction::Write, BlockError::Write),
            failure(DiskAction::Flush, BlockError::Write),
        ];
        let (mut lines, mut told, mut failures) = (Vec::new(), 0, 0);
        for second in 0..600 {
            for failure in kinds {
                failures += 1;
                if let Some(left_out) = log.tell(at(second), failure) {
                    lines.push(second);
                    told += 1 + left_out;
                }
            }
        }
        let busiest =
            lines.iter().map(|first| lines.iter().filter(|at| (*first..first + 60).contains(at)).count());
        assert_eq!(busiest.max(), Some(LINES_A_MINUTE));
        assert!(lines.len() > 40, "{lines:?}");
        told += log.tell_left_out(at(700)).expect("they are over");
        assert_eq!((told, log.tell_left_out(at(800))), (failures, None));
    }

    #[test]
    fn what_loses_the_data_of_others_is_told_from_what_does_not() {
        for direct in [false, true] {
            for error in [BlockError::NoSpace, BlockError::NotSupported, BlockError::Misaligned] {
                let flush = failure(DiskAction::Flush, error);
                assert!(flush.is_of_disk() && flush.is_of_medium() && flush.loses_data(direct));
            }
            assert!(!failure(DiskAction::Flush, BlockError::Cancelled).loses_data(direct));
            assert!(failure(DiskAction::DurableWrite, BlockError::Write).loses_data(direct));
            assert!(!failure(DiskAction::Write, BlockError::Write).loses_data(direct));
            assert!(!failure(DiskAction::Read, BlockError::Read).loses_data(direct));
        }
        assert!(failure(DiskAction::DurableWrite, BlockError::NoSpace).loses_data(false));
        assert!(!failure(DiskAction::DurableWrite, BlockError::NoSpace).loses_data(true));
        let drive = |what, status: Status| {
            let error = BlockError::Drive(DriveStatus::from_bits(status.bits()));
            DiskFailure { errno: None, ..failure(what, error) }
        };
        for what in [DiskAction::Flush, DiskAction::DurableWrite] {
            assert!(drive(what, Status::WRITE_FAULT).loses_data(true));
            assert!(!drive(what, Status::NAMESPACE_NOT_READY).loses_data(true));
        }
        assert!(drive(DiskAction::Flush, Status::INTERNAL_ERROR.with_dnr()).loses_data(true));
        assert!(!drive(DiskAction::Write, Status::WRITE_FAULT).loses_data(true));
        assert!(drive(DiskAction::Read, Status::UNRECOVERED_READ_ERROR).is_of_medium());
        let denied = drive(DiskAction::Read, Status::ACCESS_DENIED);
        assert!(denied.is_of_disk() && !denied.is_of_medium());
        assert_eq!(denied.text(), "the drive's status is 0x286 (Access Denied)");
        assert!(!drive(DiskAction::Read, Status::COMPARE_FAILURE).is_of_disk());
        let refused = DiskFailure { errno: None, ..failure(DiskAction::Write, BlockError::ReadOnly) };
        assert!(!refused.is_of_disk());
    }
}
