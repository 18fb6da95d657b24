//! The Error Information log (NVM Express Base 2.0, section 5.16.1.2): the last errors, newest first.

use std::collections::VecDeque;

use ringfab_reactor::Time;
use ringfab_spec::Status;

use crate::failure::ErrorLocation;

/// Error Log Page Entries, zero's based as Identify Controller has it.
pub(crate) const ENTRIES_MAX_Z: u8 = 63;

/// A command that ended with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorRecord {
    /// Queue of the command; zero is the admin queue.
    pub queue_id: u16,
    /// Command identifier.
    pub command_id: u16,
    /// How it ended.
    pub status: Status,
    /// Where in the command the wrong field is, when there is one.
    pub location: Option<ErrorLocation>,
    /// The first logical block that had the error, zero when none.
    pub lba: u64,
    /// Namespace of the command, zero when none.
    pub nsid: u32,
    /// When it ended.
    pub at: Time,
}

/// One controller's last errors. The count goes on for the controller's life.
#[derive(Debug, Default)]
pub(crate) struct ErrorLog {
    count: u64,
    newest_first: VecDeque<(u64, ErrorRecord)>,
}

impl ErrorLog {
    pub(crate) fn add(&mut self, record: ErrorRecord) {
        self.count += 1;
        self.newest_first.truncate(usize::from(ENTRIES_MAX_Z));
        self.newest_first.push_front((self.count, record));
    }

    /// How many errors there were.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// The entries with their error counts, newest first.
    pub(crate) fn entries(&self) -> impl Iterator<Item = &(u64, ErrorRecord)> {
        self.newest_first.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_entry_makes_room_and_the_count_goes_on() {
        let mut log = ErrorLog::default();
        let entries_max = u64::from(ENTRIES_MAX_Z) + 1;
        for command_id in 0..70 {
            let status = Status::INVALID_FIELD;
            let (location, at) = (None, Time::ZERO);
            log.add(ErrorRecord { queue_id: 1, command_id, status, location, lba: 0, nsid: 1, at });
        }
        assert_eq!(log.count(), 70);
        let counts: Vec<u64> = log.entries().map(|(count, _)| *count).collect();
        assert_eq!(counts, (70 - entries_max + 1..=70).rev().collect::<Vec<_>>());
    }
}
