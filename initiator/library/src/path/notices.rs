//! What a path logs: what it waits for, since when, and until when. One line for each wait, and a reminder where it is
//! long.

use std::time::Duration;

use ringfab_reactor::Time;
use ringfab_spec::{AdminOpcode, CompletionEntry, IoOpcode};

use super::io_queues::Scan;
use super::liveness::Liveness;
use super::phase::Phase;
use super::sequence::{Sequence, SequenceStep};
use super::timers::Timers;
use crate::command::Command;
use crate::error::{Cause, ConnectError, Step};
use crate::options::ConnectOptions;

/// Whoever waits is told after this time.
pub(crate) const FIRST: Duration = Duration::from_secs(2);
/// And again after each of these.
pub(crate) const AGAIN: Duration = Duration::from_secs(60);

/// A wait that is logged.
pub(super) enum Wait<'a> {
    /// For the controller to come back.
    Back(&'a Liveness),
    /// For the end of attaching.
    Attach {
        step: Step,
        /// What it waits for.
        what: &'static str,
        since: Time,
        limit: Duration,
    },
    /// For the end of an orderly shutdown.
    Shutdown {
        /// What it waits for.
        what: &'static str,
        until: Time,
    },
}

impl<'a> Wait<'a> {
    /// What a path waits for in a phase, at a step, if that should not take long.
    pub(super) fn of(
        phase: Phase,
        step: Step,
        options: &ConnectOptions,
        sequence: &Sequence,
        timers: &Timers,
        liveness: &'a Liveness,
    ) -> Option<Self> {
        let running = sequence.step().map(SequenceStep::command);
        let limit = match phase {
            Phase::Resolving => options.timeouts.resolve,
            Phase::Connecting => options.timeouts.connect,
            _ => sequence.step_limit(),
        };
        match phase {
            phase if phase.is_down() && liveness.loss().is_some() => Some(Self::Back(liveness)),
            phase if phase.is_attaching() => Some(Self::Attach {
                step,
                what: running.unwrap_or("the connection"),
                since: timers.attempt_since(),
                limit: limit.min(sequence.attach_limit()),
            }),
            Phase::Draining | Phase::Shutdown => Some(Self::Shutdown {
                what: running.unwrap_or("outstanding commands"),
                until: timers.shutdown,
            }),
            _ => None,
        }
    }
}

/// When a path logs what.
#[derive(Debug)]
pub(super) struct Notices {
    /// The controller's name for people.
    peer: String,
    /// When to log what is waited for.
    due: Time,
    /// When commands without an answer may be logged again.
    slow_again: Time,
}

impl Notices {
    pub(super) fn new(peer: String) -> Self {
        Self { peer, due: Time::MAX, slow_again: Time::ZERO }
    }

    /// The controller's name for people.
    pub(super) fn peer(&self) -> &str {
        &self.peer
    }

    /// Something begins that should not take long.
    pub(super) fn begin_wait(&mut self, now: Time) {
        self.due = now + FIRST;
    }

    /// Nothing is waited for any more.
    pub(super) fn end_wait(&mut self) {
        self.due = Time::MAX;
    }

    /// When to log what is waited for.
    pub(super) fn due(&self) -> Time {
        self.due
    }

    /// Logs what is waited for, if it is time.
    pub(super) fn log_wait(&mut self, now: Time, wait: Option<Wait<'_>>) {
        let Some(wait) = wait else { return self.end_wait() };
        self.due = now + AGAIN;
        let peer = &self.peer;
        match wait {
            Wait::Back(liveness) => {
                let Some(loss) = liveness.loss() else { return };
                let since = seconds(now.since(loss.since()));
                let last = liveness.last_error().map_or_else(String::new, |error| format!(" ({error})"));
                let outlook = liveness.outlook(now);
                tracing::warn!("{peer}: still no connection after {since}{last}; {outlook}");
            }
            Wait::Attach { step, what, since, limit } => {
                let (since, limit) = (seconds(now.since(since)), seconds(limit));
                tracing::warn!(
                    "{peer}: {step}: still waiting for {what}, {since} after the start; its limit is {limit}"
                );
            }
            Wait::Shutdown { what, until } => {
                let left = seconds(until.since(now));
                tracing::warn!("{peer}: still leaving: waiting for {what}; given up in {left}");
            }
        }
    }

    /// A controller in use was lost; `again`: the loss before, or the time until a path has first worked, goes on.
    pub(super) fn lost(&mut self, now: Time, error: &ConnectError, again: bool, liveness: &Liveness) {
        self.due = now + AGAIN;
        if matches!(error.cause, Cause::Reset) {
            tracing::warn!(
                "{}: the controller is reset, as asked for; I/O waits unless another path takes it",
                self.peer
            );
            return;
        }
        let again = if again { ", and nothing was answered since it was made" } else { "" };
        tracing::warn!("connection lost{again}: {error}; {}", liveness.outlook(now));
    }

    /// A controller is ready, perhaps again after a loss.
    pub(super) fn ready(&mut self, now: Time, again: bool, liveness: &Liveness) {
        self.end_wait();
        if let Some(loss) = liveness.loss().filter(|_| again) {
            let after = seconds(now.since(loss.since()));
            tracing::warn!("{}: connected again after {after}", self.peer);
        }
    }

    /// Logs what a scan has found; `limit` is the one of an I/O command.
    pub(super) fn scanned(&mut self, now: Time, scan: &Scan, limit: Duration) {
        // Most scans find nothing, and then no text is made.
        if scan.overdue.is_empty() && scan.slow == 0 {
            return;
        }
        let (peer, limit) = (&self.peer, seconds(limit));
        if !scan.overdue.is_empty() {
            let count = scan.overdue.len();
            tracing::warn!(
                "{peer}: no answer to {count} I/O commands for {limit}: aborting them; if that does not help within \
                 {limit}, the connection is given up"
            );
        }
        if scan.slow > 0 && now >= self.slow_again {
            self.slow_again = now + AGAIN;
            let (count, longest) = (scan.slow, seconds(scan.longest));
            tracing::warn!(
                "{peer}: no answer to {count} I/O commands, to the oldest for {longest}; aborted after {limit}"
            );
        }
    }

    /// A command was answered with a status that is no success.
    #[cold]
    pub(super) fn failed(&self, qid: u16, command: &Command, entry: &CompletionEntry) {
        if !tracing::enabled!(tracing::Level::DEBUG) {
            return;
        }
        let sent = &command.entry;
        let name = match qid {
            _ if sent.is_fabrics() => sent.fabrics_type().to_string(),
            0 => AdminOpcode(sent.opcode).to_string(),
            _ => IoOpcode(sent.opcode).to_string(),
        };
        let (peer, cid, nsid, status) = (&self.peer, entry.cid.get(), sent.nsid.get(), entry.status());
        tracing::debug!(peer, queue = qid, command = name, cid, nsid, %status, "command failed");
    }
}

/// A time as people read it.
pub(crate) fn seconds(time: Duration) -> String {
    let ms = time.as_millis();
    if ms < 1000 {
        format!("{ms} ms")
    } else if ms < 10_000 && ms % 1000 >= 100 {
        format!("{}.{} s", ms / 1000, ms % 1000 / 100)
    } else {
        format!("{} s", time.as_secs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_as_exactly_as_matters() {
        for (ms, text) in [(42, "42 ms"), (2000, "2 s"), (2099, "2 s"), (2350, "2.3 s"), (60_499, "60 s")] {
            assert_eq!(seconds(Duration::from_millis(ms)), text);
        }
    }
}
