//! The Cross-Controller Resets that a host has asked one controller for (NVM Express Base 2.3, sections 5.4.3 and
//! 8.3.3).
//!
//! | a reset | its command | its entry in the log |
//! | --- | --- | --- |
//! | is over at once, or while its command waits | is answered: Immediate Reset Successful | none |
//! | takes longer than [`ANSWER_AFTER`] | is answered without that | in progress, then success |
//! | is not waited for, since its command was aborted | Command Abort Requested | in progress, then success |
//!
//! What has begun cannot be taken back. A disk that hangs keeps an entry in progress for as long as it does.

use std::ops::Range;
use std::time::Duration;

use ringfab_reactor::Time;
use ringfab_spec::Status;
use ringfab_spec::log::{ControllerInstance, LostPathsHeader};

use crate::failure::Failure;

/// Resets of one controller that are in progress at once (CCRL).
pub(crate) const IN_PROGRESS_MAX: u8 = 4;

/// For how long a command waits for the end of its reset.
pub(crate) const ANSWER_AFTER: Duration = Duration::from_secs(2);

/// A command that waits for its reset.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    command_id: u16,
    until: Time,
}

/// One reset.
#[derive(Clone, Copy, Debug)]
struct Reset {
    impacted: ControllerInstance,
    /// Without one it has an entry in the log.
    waiting: Option<Waiting>,
    is_over: bool,
}

/// An entry of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResetEntry {
    pub(crate) impacted: ControllerInstance,
    pub(crate) is_over: bool,
}

/// A command that has waited for long enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResetAnswer {
    pub(crate) command_id: u16,
    /// Whether its reset is over.
    pub(crate) is_over: bool,
}

/// What has changed since the last look.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ResetNews {
    pub(crate) answers: Vec<ResetAnswer>,
    /// What has an entry in the log and is over now.
    pub(crate) completed: Vec<ControllerInstance>,
}

/// The resets of one controller, in the order in which they came.
#[derive(Debug, Default)]
pub(crate) struct Resets(Vec<Reset>);

impl Resets {
    /// Whether one more may begin.
    ///
    /// # Errors
    /// Why not, as the host is told.
    pub(crate) fn check(&self, impacted: ControllerInstance) -> Result<(), Failure> {
        let in_progress = self.0.iter().filter(|reset| !reset.is_over);
        if in_progress.clone().any(|reset| reset.impacted == impacted) {
            return Err(Failure::transient(Status::CROSS_CONTROLLER_RESET_IN_PROGRESS));
        }
        if in_progress.count() >= usize::from(IN_PROGRESS_MAX) {
            return Err(Failure::transient(Status::CROSS_CONTROLLER_RESET_LIMIT_EXCEEDED));
        }
        if self.0.len() >= LostPathsHeader::ENTRIES_MAX {
            return Err(Failure::transient(Status::CROSS_CONTROLLER_RESET_LOG_FULL));
        }
        Ok(())
    }

    /// One begins, for which a command waits.
    pub(crate) fn begin(&mut self, impacted: ControllerInstance, command_id: u16, now: Time) {
        let waiting = Some(Waiting { command_id, until: now + ANSWER_AFTER });
        self.0.push(Reset { impacted, waiting, is_over: false });
    }

    /// Nobody waits for a command any more: its reset goes on, and has an entry in the log.
    pub(crate) fn forget_command(&mut self, command_id: u16) {
        for reset in &mut self.0 {
            reset.waiting = reset.waiting.filter(|waiting| waiting.command_id != command_id);
        }
    }

    /// What is in progress.
    pub(crate) fn in_progress(&self) -> Vec<ControllerInstance> {
        self.0.iter().filter(|reset| !reset.is_over).map(|reset| reset.impacted).collect()
    }

    /// Whether anything is.
    pub(crate) fn are_any_in_progress(&self) -> bool {
        self.0.iter().any(|reset| !reset.is_over)
    }

    /// Looks which are over. One that is while its command waits has no entry.
    pub(crate) fn look(&mut self, now: Time, is_over: impl Fn(ControllerInstance) -> bool) -> ResetNews {
        let mut news = ResetNews::default();
        self.0.retain_mut(|reset| {
            if reset.is_over {
                return true;
            }
            reset.is_over = is_over(reset.impacted);
            let answered = reset.waiting.filter(|waiting| reset.is_over || now >= waiting.until);
            match answered {
                Some(Waiting { command_id, .. }) => {
                    reset.waiting = None;
                    news.answers.push(ResetAnswer { command_id, is_over: reset.is_over });
                    !reset.is_over
                }
                None => {
                    if reset.is_over {
                        news.completed.push(reset.impacted);
                    }
                    true
                }
            }
        });
        news
    }

    /// The entries of the log.
    pub(crate) fn entries(&self) -> impl Iterator<Item = ResetEntry> {
        let logged = self.0.iter().filter(|reset| reset.waiting.is_none());
        logged.map(|reset| ResetEntry { impacted: reset.impacted, is_over: reset.is_over })
    }

    /// The host has read some of the entries, and those of them that are over leave the log.
    pub(crate) fn remove_completed(&mut self, read: Range<usize>) {
        let mut entries = 0..;
        self.0.retain(|reset| {
            let is_read =
                reset.waiting.is_none() && entries.next().is_some_and(|index| read.contains(&index));
            !(is_read && reset.is_over)
        });
    }

    /// The controller becomes ready again: what is over leaves the log, and no command of before waits.
    pub(crate) fn renew(&mut self) {
        self.0.retain_mut(|reset| {
            reset.waiting = None;
            !reset.is_over
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(cntlid: u16) -> ControllerInstance {
        ControllerInstance { cntlid, ciu: 3, cirn: 77 }
    }

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    fn entries(resets: &Resets) -> Vec<(u16, bool)> {
        resets.entries().map(|entry| (entry.impacted.cntlid, entry.is_over)).collect()
    }

    /// Resets whose commands have been answered, with the identifiers from 1 on.
    fn logged(count: u16) -> Resets {
        let mut resets = Resets::default();
        for cntlid in 1..=count {
            resets.begin(instance(cntlid), cntlid, at(0));
        }
        resets.look(at(2), |_| false);
        resets
    }

    #[test]
    fn a_reset_that_is_over_while_its_command_waits_leaves_no_trace() {
        let mut resets = Resets::default();
        resets.begin(instance(1), 9, at(0));
        assert_eq!(resets.look(at(1), |_| false), ResetNews::default());
        assert_eq!(entries(&resets), []);
        let answers = vec![ResetAnswer { command_id: 9, is_over: true }];
        assert_eq!(resets.look(at(1), |_| true), ResetNews { answers, completed: Vec::new() });
        assert_eq!((entries(&resets), resets.are_any_in_progress()), (Vec::new(), false));
    }

    #[test]
    fn a_command_waits_for_so_long_and_its_reset_is_in_the_log_then() {
        let mut resets = Resets::default();
        resets.begin(instance(1), 9, at(0));
        let answers = vec![ResetAnswer { command_id: 9, is_over: false }];
        assert_eq!(resets.look(at(2), |_| false), ResetNews { answers, completed: Vec::new() });
        assert_eq!(entries(&resets), [(1, false)]);
        let completed = vec![instance(1)];
        assert_eq!(resets.look(at(9), |_| true), ResetNews { answers: Vec::new(), completed });
        assert_eq!(resets.look(at(9), |_| true), ResetNews::default(), "it is news once");
        assert_eq!(entries(&resets), [(1, true)]);
    }

    #[test]
    fn an_aborted_command_is_not_answered_again_and_its_reset_goes_on() {
        let mut resets = Resets::default();
        resets.begin(instance(1), 9, at(0));
        resets.forget_command(9);
        assert_eq!(entries(&resets), [(1, false)]);
        assert_eq!(resets.look(at(1), |_| true).completed, [instance(1)]);
    }

    #[test]
    fn so_many_are_in_progress_and_so_many_are_in_the_log() {
        let mut resets = logged(u16::from(IN_PROGRESS_MAX) - 1);
        let status =
            |resets: &Resets, cntlid| resets.check(instance(cntlid)).map_err(|one| one.status.code());
        assert_eq!(status(&resets, 9), Ok(()));
        assert_eq!(status(&resets, 2), Err(Status::CROSS_CONTROLLER_RESET_IN_PROGRESS));
        resets.begin(instance(9), 9, at(0));
        assert_eq!(status(&resets, 10), Err(Status::CROSS_CONTROLLER_RESET_LIMIT_EXCEEDED));
        resets.forget_command(9);
        resets.look(at(3), |_| true);
        assert_eq!(status(&resets, 2), Ok(()), "what is over may come again");
        let most = u16::try_from(LostPathsHeader::ENTRIES_MAX).unwrap();
        for cntlid in 1..most - 3 {
            resets.begin(instance(cntlid), 1, at(0));
            resets.forget_command(1);
            resets.look(at(3), |_| true);
        }
        assert_eq!(
            (entries(&resets).len(), status(&resets, 3)),
            (usize::from(most), Err(Status::CROSS_CONTROLLER_RESET_LOG_FULL))
        );
    }

    #[test]
    fn entries_that_are_over_leave_when_they_were_read_or_the_controller_is_ready_again() {
        let mut resets = logged(3);
        resets.look(at(3), |instance| instance.cntlid != 2);
        resets.remove_completed(0..1);
        assert_eq!(entries(&resets), [(2, false), (3, true)]);
        resets.begin(instance(4), 4, at(3));
        resets.renew();
        assert_eq!(entries(&resets), [(2, false), (4, false)]);
        resets.look(at(4), |_| true);
        resets.remove_completed(0..2);
        assert_eq!(entries(&resets), []);
    }
}
