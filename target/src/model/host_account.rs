//! What each host has done with a subsystem since the start, however often it connected.
//!
//! A host that may give itself any name must not make the target remember as many. So the number of names is bounded:
//! what hosts beyond it do is counted together.

use std::collections::BTreeMap;
use std::time::Duration;

use ringfab_reactor::Time;

use super::io_record::IoSum;

/// Names of hosts that a subsystem remembers.
pub const HOSTS_MAX: usize = 256;

/// How long the name of a host that does not come again is kept from a new one.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(3600);

/// What a host has done that is not connected any more, or with its queues that have ended.
#[derive(Debug, Default)]
struct Account {
    ended: IoSum,
    queues: usize,
    came: Time,
}

/// The accounts of a subsystem's hosts.
#[derive(Debug, Default)]
pub(super) struct HostAccounts {
    named: BTreeMap<String, Account>,
    others: Account,
}

/// What a host has done, and how many queues it has now.
#[derive(Clone, Debug, Default)]
pub struct HostUsage {
    /// Its NQN; none for all hosts together that have no account of their own.
    pub nqn: Option<String>,
    /// Queues that it has now, admin queues included.
    pub queues: usize,
    /// What it has done since the start.
    pub io: IoSum,
}

impl HostAccounts {
    /// A queue of a host has connected. Returns the name under which it is counted, if it has an account.
    pub(super) fn joined(&mut self, nqn: &str, now: Time) -> Option<String> {
        let known = self.named.contains_key(nqn);
        if !known && self.named.len() >= HOSTS_MAX {
            self.forget_one(now);
        }
        let named = known || self.named.len() < HOSTS_MAX;
        let account = if named { self.named.entry(nqn.to_owned()).or_default() } else { &mut self.others };
        account.queues += 1;
        account.came = now;
        named.then(|| nqn.to_owned())
    }

    /// A queue that is counted under a name has ended, having done this.
    pub(super) fn left(&mut self, name: Option<&str>, done: &IoSum) {
        let account = name.and_then(|nqn| self.named.get_mut(nqn)).unwrap_or(&mut self.others);
        account.queues = account.queues.saturating_sub(1);
        account.ended += done;
    }

    /// All of them, with what the queues do that are connected now.
    pub(super) fn usage<'a>(&self, live: impl Iterator<Item = (Option<&'a str>, IoSum)>) -> Vec<HostUsage> {
        let usage = |nqn: Option<&String>, account: &Account| HostUsage {
            nqn: nqn.cloned(),
            queues: account.queues,
            io: account.ended.clone(),
        };
        let mut all: BTreeMap<&str, HostUsage> =
            self.named.iter().map(|(nqn, account)| (nqn.as_str(), usage(Some(nqn), account))).collect();
        let mut others = usage(None, &self.others);
        for (name, io) in live {
            name.and_then(|nqn| all.get_mut(nqn)).unwrap_or(&mut others).io += &io;
        }
        let mut all: Vec<HostUsage> = all.into_values().collect();
        if others.queues != 0 || others.io != IoSum::default() {
            all.push(others);
        }
        all
    }

    /// Gives up the name of the host that has been away for longest.
    fn forget_one(&mut self, now: Time) {
        let away = self.named.iter().filter(|(_, account)| account.queues == 0);
        let longest = away.min_by_key(|(_, account)| account.came);
        let Some((nqn, account)) = longest.filter(|(_, one)| now >= one.came + FORGOTTEN_AFTER) else {
            return;
        };
        self.others.ended += &account.ended;
        let nqn = nqn.clone();
        self.named.remove(&nqn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::IoRecord;

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    fn a_read() -> IoSum {
        let (record, mut sum) = (IoRecord::default(), IoSum::default());
        record.note_read(512);
        sum.add(&record);
        sum
    }

    #[test]
    fn what_a_host_has_done_stays_when_it_leaves_and_comes_again() {
        let mut hosts = HostAccounts::default();
        hosts.joined("a", at(1));
        hosts.left(Some("a"), &a_read());
        hosts.joined("a", at(2));
        let usage = hosts.usage([(Some("a"), a_read())].into_iter());
        assert_eq!(usage.len(), 1);
        assert_eq!((usage[0].queues, usage[0].io.counters.commands_read), (1, 2));
    }

    #[test]
    fn names_are_bounded_and_given_up_only_after_a_while() {
        let mut hosts = HostAccounts::default();
        for number in 0..HOSTS_MAX {
            hosts.joined(&format!("host {number}"), at(number as u64));
            hosts.left(Some(&format!("host {number}")), &a_read());
        }
        assert_eq!(hosts.joined("one more", at(1000)), None);
        let usage = hosts.usage([(None, a_read())].into_iter());
        let others = usage.last().expect("the others");
        assert_eq!((usage.len(), others.nqn.as_deref(), others.queues), (HOSTS_MAX + 1, None, 1));
        assert_eq!(others.io.counters.commands_read, 1);
        hosts.left(None, &a_read());
        assert_eq!(hosts.joined("one more", at(3700)).as_deref(), Some("one more"));
        let usage = hosts.usage([].into_iter());
        assert!(!usage.iter().any(|one| one.nqn.as_deref() == Some("host 0")), "away for longest");
        assert!(usage.iter().any(|one| one.nqn.as_deref() == Some("one more") && one.queues == 1));
        let sum: u64 = usage.iter().map(|one| one.io.counters.commands_read).sum();
        assert_eq!(sum, HOSTS_MAX as u64 + 1, "nothing of it is lost");
    }
}
