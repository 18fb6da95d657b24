//! I/O commands of this process that have failed: how many, and a few log lines.
//!
//! A program that has written may not learn of it: the kernel writes back what is in memory when it likes. So it is in
//! the log, but a disk that is gone fails more commands in a second than a log should have lines.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ringfab_initiator::IoError;

/// The most lines in a minute; further failures are counted.
const LINES_A_MINUTE: usize = 5;
const MINUTE: Duration = Duration::from_secs(60);

static FAILURES: Mutex<Failures> = Mutex::new(Failures::new());

struct Failures {
    count: u64,
    /// When the lines of the last minute were logged.
    lines: Vec<Instant>,
    /// Those without a line since the last one.
    left_out: u64,
}

impl Failures {
    const fn new() -> Self {
        Self { count: 0, lines: Vec::new(), left_out: 0 }
    }

    /// Counts one. If there is to be a line, how many before it had none.
    fn note(&mut self, now: Instant) -> Option<u64> {
        self.count += 1;
        self.lines.retain(|line| now.duration_since(*line) < MINUTE);
        if self.lines.len() == LINES_A_MINUTE {
            self.left_out += 1;
            return None;
        }
        self.lines.push(now);
        Some(std::mem::take(&mut self.left_out))
    }
}

fn failures() -> MutexGuard<'static, Failures> {
    FAILURES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A command has failed. What is given up at the end has no line: whoever ends it says so once.
pub(crate) fn note(error: IoError) {
    if matches!(error, IoError::Cancelled) {
        failures().count += 1;
        return;
    }
    note_reason(&error);
}

/// What somebody wanted has failed before it was a command.
pub(crate) fn note_reason(error: &dyn fmt::Display) {
    let line = failures().note(Instant::now());
    if let Some(left_out) = line {
        tracing::error!(%error, left_out, "an I/O command has failed");
    }
}

/// How many have.
pub(crate) fn count() -> u64 {
    failures().count
}

/// Counts anew.
pub(crate) fn forget() {
    failures().count = 0;
}

/// Logs at its end what had no line.
#[derive(Debug)]
pub(crate) struct ToldAtEnd;

impl Drop for ToldAtEnd {
    fn drop(&mut self) {
        let left_out = std::mem::take(&mut failures().left_out);
        if left_out > 0 {
            tracing::error!(left_out, "more I/O commands have failed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minute_has_few_lines_and_every_failure_counts() {
        let (mut failures, start) = (Failures::new(), Instant::now());
        let at = |millis| start + Duration::from_millis(millis);
        let told = |failures: &mut Failures, from: u64| -> Vec<u64> {
            (from..from + 1000).filter_map(|millis| failures.note(at(millis))).collect()
        };
        assert_eq!(told(&mut failures, 0), [0; LINES_A_MINUTE]);
        assert_eq!(told(&mut failures, 30_000), [0; 0]);
        // The first five have gone after a minute.
        let most = 1000 - LINES_A_MINUTE as u64;
        assert_eq!(told(&mut failures, 61_000), [most + 1000, 0, 0, 0, 0]);
        assert_eq!((failures.count, failures.left_out), (3000, most));
    }
}
