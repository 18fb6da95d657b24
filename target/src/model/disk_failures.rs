//! Failures of disks: what they mean for the namespace, and how they are reported.
//!
//! The system reports a failed write-back only once for each open file. So the namespace remembers the report until an
//! administrator reopens its disk.

use std::io;
use std::time::Duration;

use ringfab_base::shell_word;
use ringfab_block::{Backing, BlockError};
use ringfab_reactor::Time;

use crate::model::Namespace;

/// How long one failure speaks for others of its kind.
const QUIET: Duration = Duration::from_secs(30);

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

    fn name(self) -> &'static str {
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
}

impl FailureLog {
    /// Whether a failure is to be told of now, and with how many others that were not.
    fn tell(&mut self, now: Time, failure: DiskFailure) -> Option<u64> {
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
    fn tell_left_out(&mut self, now: Time) -> Option<u64> {
        let waits = self.left_out == 0 || self.lines.last().is_some_and(|last| now.since(*last) < QUIET);
        (!waits && self.has_room(now)).then(|| self.add_line(now))
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
    fn is_of_disk(self) -> bool {
        match self.error {
            BlockError::OutOfRange | BlockError::Busy | BlockError::Cancelled => false,
            _ if self.what == DiskAction::Flush => true,
            BlockError::NotSupported => false,
            BlockError::Misaligned | BlockError::ReadOnly => self.errno.is_some(),
            _ => true,
        }
    }

    /// Whether data is damaged or gone, and not merely refused.
    fn is_of_medium(self) -> bool {
        match self.error {
            BlockError::Read | BlockError::Write | BlockError::Shrunk | BlockError::Removed => true,
            _ => self.what == DiskAction::Flush,
        }
    }

    /// Whether data of other commands may be lost with it, which the system says this once only. A full disk refuses
    /// a direct write before anything is lost; of one through the page cache nobody knows whether it was its own or
    /// an older one.
    fn loses_data(self, direct: bool) -> bool {
        let refused = self.errno.is_none() && !matches!(self.error, BlockError::Read | BlockError::Write);
        match (self.what, self.error) {
            (_, BlockError::Busy | BlockError::Cancelled) => false,
            // Whatever a flush fails with may be what a write-back failed with.
            (DiskAction::Flush, _) => !refused,
            (DiskAction::DurableWrite, BlockError::NoSpace) => !direct,
            (DiskAction::DurableWrite, BlockError::Write | BlockError::Removed) => true,
            _ => false,
        }
    }

    /// The system's text, or else ours.
    fn text(self) -> String {
        self.errno
            .map_or_else(|| self.error.to_string(), |errno| io::Error::from_raw_os_error(errno).to_string())
    }
}

/// A disk of a namespace has failed: counts it, keeps what must not be forgotten, and tells the administrator.
pub(crate) fn note(namespace: &Namespace, subsystem: &str, now: Time, failure: DiskFailure) {
    if !failure.is_of_disk() {
        return;
    }
    if failure.is_of_medium() {
        namespace.count_media_error();
    }
    let (nsid, error, what) = (namespace.nsid(), failure.text(), failure.what.name());
    if let Some(left_out) = namespace.with_failures(|log| log.tell(now, failure)) {
        let operation = what;
        tracing::error!(subsystem, nsid, operation, error, left_out, "a disk has failed");
    }
    if failure.error == BlockError::Shrunk {
        fail_closed(
            namespace,
            subsystem,
            &format!("its file has become shorter while it was served ({what})"),
        );
    } else if failure.loses_data(is_direct(namespace.backing())) {
        mark_lost(namespace, subsystem, &format!("a {what} failed: {error}"));
    }
}

/// From time to time: how many failures no line has told of, when they are over.
pub(crate) fn note_left_out(namespace: &Namespace, subsystem: &str, now: Time) {
    if let Some(left_out) = namespace.with_failures(|log| log.tell_left_out(now)) {
        tracing::error!(subsystem, nsid = namespace.nsid(), left_out, "a disk has failed more often");
    }
}

/// What was written to a namespace may be lost.
pub(crate) fn mark_lost(namespace: &Namespace, subsystem: &str, why: &str) {
    let nsid = namespace.nsid();
    let reason = || {
        format!(
            "{why}; what was written may be lost, so that no Flush succeeds until \
             `ringfab-target namespace reopen {nsid} --subsystem {}`",
            shell_word(subsystem)
        )
    };
    if namespace.mark_lost(reason) {
        tracing::error!(subsystem, nsid, reason = reason(), "a namespace has lost data");
    }
}

/// A namespace's disk is not what it was: nothing of it is read or written any more.
pub(crate) fn fail_closed(namespace: &Namespace, subsystem: &str, why: &str) {
    let nsid = namespace.nsid();
    let reason = || {
        format!(
            "{why}; nothing of it is read or written until its content is restored and \
             `ringfab-target namespace reopen {nsid} --subsystem {}`",
            shell_word(subsystem)
        )
    };
    if namespace.fail_closed(reason) {
        tracing::error!(subsystem, nsid, reason = reason(), "a namespace is no longer served");
    }
}

fn is_direct(backing: &Backing) -> bool {
    match backing {
        Backing::File { direct, .. } => *direct,
        Backing::Memory(_) | Backing::Null { .. } | Backing::Device(_) => true,
        Backing::Faulty { inner, .. } | Backing::Paced { inner, .. } => is_direct(inner),
    }
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
        let refused = DiskFailure { errno: None, ..failure(DiskAction::Write, BlockError::ReadOnly) };
        assert!(!refused.is_of_disk());
    }
}
