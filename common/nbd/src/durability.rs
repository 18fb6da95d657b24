//! Whether what was written is safe.
//!
//! A server may keep what it has acknowledged in memory until it is asked to flush. When it goes before that, it is
//! gone, and nobody tells. So the cores keep an account together: each acknowledged write has a number, and each flush
//! that succeeds covers the numbers that were given before it was sent. If a connection ends whose last write no flush
//! has covered, what was written may be lost.
//!
//! Cores notice one after the other that a server has gone. Until the last one has, one has a connection to a server
//! that is gone, and another one to its successor, whose flush says nothing about what the first one wrote. A new
//! server is found by a new connection, so connections are counted: an *epoch* begins when one is made. A flush covers
//! the writes of those connections that have answered something that was asked in the epoch of its own connection or
//! later: they are to the same server. About the others it is *in doubt* until they have answered, too, or have ended.
//!
//! What the process before this one has written may not have been flushed either, and hosts rely on this one for it. So
//! the first connections begin with a write in their account, until a flush has covered it. It is the same when
//! somebody has looked after a loss: what was not lost with one server may be lost with the next.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The account of all cores.
#[derive(Debug, Default)]
pub(crate) struct Durability {
    /// How many connections were made.
    epoch: AtomicU64,
    /// The last number of an acknowledged write.
    written: AtomicU64,
    /// Those of the connections that are up.
    accounts: Mutex<Vec<Weak<Account>>>,
    lost: AtomicBool,
    /// Whether anything can be in a server's memory only that this process has not written.
    may_inherit: bool,
    /// Whether something was perhaps written before that no flush has covered yet.
    inherits: AtomicBool,
    /// Flushes that wait until they are not in doubt.
    waiting: AtomicUsize,
}

/// The account of a connection. Its core changes it, and others look at it.
#[derive(Debug, Default)]
struct Account {
    /// The epoch that the last request was sent in that was answered: the server lived then.
    answered: AtomicU64,
    /// The number of the last write that was acknowledged; zero if there is none.
    written: AtomicU64,
    /// A flush has covered the writes up to this number.
    flushed: AtomicU64,
}

/// What a core knows of its own connection.
#[derive(Debug)]
pub(crate) struct Connection {
    /// The epoch that began with it; none before it was made.
    opened: u64,
    account: Arc<Account>,
}

/// What a flush covers, as it was when it was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sent {
    epoch: u64,
    written: u64,
}

/// A flush that has succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flushed {
    /// The epoch of its connection.
    opened: u64,
    /// It covers the writes up to this number.
    written: u64,
}

impl Durability {
    /// An account that begins with what somebody may have written before.
    pub(crate) fn inheriting() -> Self {
        Self { may_inherit: true, inherits: AtomicBool::new(true), ..Self::default() }
    }

    /// A request is sent now.
    pub(crate) fn sent(&self) -> Sent {
        Sent { epoch: self.epoch.load(Ordering::SeqCst), written: self.written.load(Ordering::SeqCst) }
    }

    /// Whether what was written may be lost.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::SeqCst)
    }

    /// Somebody has looked after what was lost. What was not, a server may still have in its memory.
    pub(crate) fn forgive(&self) {
        self.inherits.store(self.may_inherit, Ordering::SeqCst);
        self.lost.store(false, Ordering::SeqCst);
    }

    /// Enters what a flush has covered. Returns whether that is all that was written before it; otherwise it is in
    /// doubt, and this is to be called again when another connection has answered something, or has ended.
    pub(crate) fn cover(&self, flushed: Flushed) -> bool {
        let mut all = true;
        for account in self.accounts().iter().filter_map(Weak::upgrade) {
            if account.answered.load(Ordering::SeqCst) >= flushed.opened {
                account.flushed.fetch_max(flushed.written, Ordering::SeqCst);
            } else {
                all &= account.is_covered();
            }
        }
        all
    }

    /// A flush begins to wait until it is not in doubt.
    pub(crate) fn begin_to_wait(&self) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
    }

    /// It waits no longer.
    pub(crate) fn end_to_wait(&self) {
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether a flush waits.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) != 0
    }

    fn accounts(&self) -> MutexGuard<'_, Vec<Weak<Account>>> {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Account {
    fn is_covered(&self) -> bool {
        self.written.load(Ordering::SeqCst) <= self.flushed.load(Ordering::SeqCst)
    }
}

impl Connection {
    /// A connection that is to be made from now on.
    pub(crate) fn begin(durability: &Durability) -> Self {
        let account = Account { answered: AtomicU64::new(durability.sent().epoch), ..Account::default() };
        Self { opened: 0, account: Arc::new(account) }
    }

    /// It is made: an epoch begins.
    pub(crate) fn open(&mut self, durability: &Durability) {
        self.opened = durability.epoch.fetch_add(1, Ordering::SeqCst) + 1;
        let mut accounts = durability.accounts();
        accounts.retain(|account| account.strong_count() > 0);
        accounts.push(Arc::downgrade(&self.account));
    }

    /// Takes over what was written before, as a write of its own, if no flush has covered it. Says whether it has.
    pub(crate) fn inherit(&mut self, durability: &Durability) -> bool {
        let inherits = durability.inherits.load(Ordering::SeqCst);
        if inherits {
            self.wrote(durability);
        }
        inherits
    }

    /// A request has been answered that was sent then. Returns whether the server is known to have lived later than
    /// was known before.
    pub(crate) fn answered(&mut self, sent: Sent) -> bool {
        self.account.answered.fetch_max(sent.epoch, Ordering::SeqCst) < sent.epoch
    }

    /// A write was acknowledged that may be in the server's memory only.
    pub(crate) fn wrote(&mut self, durability: &Durability) {
        let number = durability.written.fetch_add(1, Ordering::SeqCst) + 1;
        self.account.written.store(number, Ordering::SeqCst);
    }

    /// A flush has succeeded that was sent then. What it covers is to be [entered](Durability::cover).
    pub(crate) fn flushed(&self, durability: &Durability, sent: Sent) -> Flushed {
        durability.inherits.store(false, Ordering::SeqCst);
        Flushed { opened: self.opened, written: sent.written }
    }

    /// Whether it has to answer something before a flush of a later connection can cover what it has written.
    pub(crate) fn is_in_doubt(&self, durability: &Durability) -> bool {
        self.account.answered.load(Ordering::SeqCst) < durability.sent().epoch && !self.account.is_covered()
    }

    /// The connection has ended. Returns whether something is lost that was not known to be lost.
    pub(crate) fn end(self, durability: &Durability) -> bool {
        // With the account locked, so that no flush takes it for one that is not there before the loss is known.
        let mut accounts = durability.accounts();
        let lost = !self.account.is_covered();
        let news = lost && !durability.lost.swap(true, Ordering::SeqCst);
        if lost {
            durability.inherits.store(false, Ordering::SeqCst);
        }
        accounts.retain(|account| !std::ptr::eq(account.as_ptr(), Arc::as_ptr(&self.account)));
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(durability: &Durability) -> Connection {
        let mut connection = Connection::begin(durability);
        connection.open(durability);
        connection
    }

    /// A flush is sent and succeeds: whether it covers everything.
    fn flush(connection: &mut Connection, durability: &Durability) -> bool {
        let sent = durability.sent();
        connection.answered(sent);
        durability.cover(connection.flushed(durability, sent))
    }

    #[test]
    fn what_was_flushed_is_safe_and_what_was_not_is_lost() {
        let durability = Durability::inheriting();
        let mut one = open(&durability);
        one.wrote(&durability);
        assert!(flush(&mut one, &durability));
        assert!(!one.end(&durability) && !durability.is_lost());
        let mut one = open(&durability);
        one.wrote(&durability);
        let sent = durability.sent();
        one.wrote(&durability);
        one.answered(sent);
        assert!(durability.cover(one.flushed(&durability, sent)));
        assert!(
            one.end(&durability) && durability.is_lost(),
            "the second write came after the flush was sent"
        );
        durability.forgive();
        assert!(!durability.is_lost());
        let mut one = open(&durability);
        assert!(one.inherit(&durability), "the next server may lose what this one has not");
    }

    #[test]
    fn what_was_written_before_is_lost_with_the_first_server_unless_it_has_flushed() {
        for flushes in [false, true] {
            let durability = Durability::inheriting();
            let mut one = open(&durability);
            assert!(one.inherit(&durability));
            if flushes {
                assert!(flush(&mut one, &durability));
            }
            assert_eq!(one.end(&durability), !flushes);
            assert!(!open(&durability).inherit(&durability), "that is settled");
        }
    }

    #[test]
    fn what_is_only_read_or_written_through_inherits_nothing_however_often_it_is_opened() {
        let durability = Durability::default();
        for _ in 0..2 {
            let mut one = open(&durability);
            assert!(!one.inherit(&durability));
            assert!(!one.end(&durability));
            durability.forgive();
        }
    }

    #[test]
    fn a_flush_of_one_core_covers_the_writes_of_another_one_of_the_same_server() {
        let durability = Durability::default();
        let [mut one, mut two] = [(); 2].map(|()| open(&durability));
        let sent = durability.sent();
        one.wrote(&durability);
        assert!(one.answered(sent));
        assert!(flush(&mut two, &durability));
        assert!(!one.end(&durability));
    }

    #[test]
    fn a_flush_is_in_doubt_until_connections_that_are_older_have_answered_or_have_ended() {
        for answers in [false, true] {
            let durability = Durability::default();
            let mut one = open(&durability);
            one.answered(durability.sent());
            one.wrote(&durability);
            // The next server is there, and the first connection has not noticed.
            let mut two = open(&durability);
            let sent = durability.sent();
            two.answered(sent);
            let flushed = two.flushed(&durability, sent);
            assert!(!durability.cover(flushed));
            assert!(one.is_in_doubt(&durability) && !two.is_in_doubt(&durability));
            if answers {
                // It was the same server.
                assert!(one.answered(durability.sent()));
                assert!(durability.cover(flushed) && !one.is_in_doubt(&durability));
                assert!(!one.end(&durability) && !durability.is_lost());
            } else {
                // The last answers of the old server come late.
                assert!(!one.answered(Sent { epoch: 1, written: 0 }));
                assert!(!durability.cover(flushed));
                assert!(one.end(&durability) && durability.is_lost());
                assert!(durability.cover(flushed), "whoever asks sees first that something is lost");
            }
        }
    }

    #[test]
    fn a_connection_that_has_written_nothing_or_was_closed_leaves_no_doubt() {
        let durability = Durability::default();
        let [mut one, two] = [(); 2].map(|()| open(&durability));
        one.wrote(&durability);
        drop(one);
        let mut three = open(&durability);
        assert!(flush(&mut three, &durability));
        assert!(!two.end(&durability));
    }
}
