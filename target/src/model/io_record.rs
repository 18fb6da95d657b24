//! What one core has done for a queue or with a namespace, counted by that core and read by the control side.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use super::latency::{Latency, LatencyRecord, Timed, add};

/// Commands that completed. One core counts in it without a lock.
#[derive(Debug, Default)]
pub struct IoRecord {
    commands_read: AtomicU64,
    commands_write: AtomicU64,
    commands_other: AtomicU64,
    commands_failed: AtomicU64,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    /// From the first sampled command on, because most of what is served may be idle.
    latency: OnceLock<Box<LatencyRecord>>,
}

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoCounters {
    /// Read commands that completed, Compare and Verify included.
    pub commands_read: u64,
    /// Write commands that completed.
    pub commands_write: u64,
    /// All other commands.
    pub commands_other: u64,
    /// Commands that ended with an error. They are among the others.
    pub commands_failed: u64,
    /// Bytes that went to the host.
    pub bytes_read: u64,
    /// Bytes that came from the host.
    pub bytes_written: u64,
}

impl IoRecord {
    /// A read (or Compare, or Verify) of `bytes` completed.
    #[inline(always)]
    pub fn note_read(&self, bytes: u64) {
        add(&self.commands_read, 1);
        add(&self.bytes_read, bytes);
    }

    /// A write of `bytes` completed.
    #[inline(always)]
    pub fn note_write(&self, bytes: u64) {
        add(&self.commands_write, 1);
        add(&self.bytes_written, bytes);
    }

    /// Any other command completed.
    pub fn note_other(&self) {
        add(&self.commands_other, 1);
    }

    /// A command that was counted ended with an error.
    pub(crate) fn note_failed(&self) {
        add(&self.commands_failed, 1);
    }

    /// A sampled command has ended.
    pub(crate) fn note_timed(&self, timed: &Timed) {
        self.latency.get_or_init(Box::default).add(timed);
    }

    /// What was done.
    pub fn counters(&self) -> IoCounters {
        IoCounters {
            commands_read: self.commands_read.load(Ordering::Relaxed),
            commands_write: self.commands_write.load(Ordering::Relaxed),
            commands_other: self.commands_other.load(Ordering::Relaxed),
            commands_failed: self.commands_failed.load(Ordering::Relaxed),
            bytes_read: self.bytes_read.load(Ordering::Relaxed),
            bytes_written: self.bytes_written.load(Ordering::Relaxed),
        }
    }

    /// How long sampled commands took; none before the first.
    pub fn latency(&self) -> Option<Latency> {
        self.latency.get().map(|latency| latency.read())
    }
}

impl std::ops::AddAssign for IoCounters {
    fn add_assign(&mut self, other: Self) {
        self.commands_read += other.commands_read;
        self.commands_write += other.commands_write;
        self.commands_other += other.commands_other;
        self.commands_failed += other.commands_failed;
        self.bytes_read += other.bytes_read;
        self.bytes_written += other.bytes_written;
    }
}

/// What several cores or queues have done, with how long sampled commands took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IoSum {
    /// What was done.
    pub counters: IoCounters,
    /// How long sampled commands took; none before the first.
    pub latency: Option<Box<Latency>>,
}

impl IoSum {
    /// Adds what one core has done.
    pub fn add(&mut self, record: &IoRecord) {
        self.counters += record.counters();
        if let Some(latency) = record.latency() {
            **self.latency.get_or_insert_default() += &latency;
        }
    }
}

impl std::ops::AddAssign<&Self> for IoSum {
    fn add_assign(&mut self, other: &Self) {
        self.counters += other.counters;
        if let Some(latency) = &other.latency {
            **self.latency.get_or_insert_default() += latency;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn records_add_up_and_have_no_histogram_before_the_first_sample() {
        let (one, other) = (IoRecord::default(), IoRecord::default());
        one.note_read(4096);
        other.note_write(512);
        other.note_failed();
        let mut sum = IoSum::default();
        sum.add(&one);
        assert_eq!(sum.latency, None);
        other.note_timed(&Timed { total: Duration::from_micros(3), phases: [Duration::ZERO; 4] });
        sum.add(&other);
        let IoCounters { commands_read, commands_write, commands_failed, .. } = sum.counters;
        assert_eq!((commands_read, commands_write, commands_failed), (1, 1, 1));
        let twice = sum.clone();
        sum += &twice;
        assert_eq!(sum.latency.expect("a sample").total.count(), 2);
        assert_eq!((sum.counters.bytes_read, sum.counters.bytes_written), (8192, 1024));
    }
}
