//! Whether what was written is safe.
//!
//! A server may keep what it has acknowledged in memory until it is asked to flush. When it goes before that, it is
//! gone, and nobody tells. So the cores keep an account together: each acknowledged write has a number, and each flush
//! that succeeds covers the numbers that were given before it was sent. If a connection ends whose last write no flush
//! has covered, what was written may be lost.
//!
//! Cores lose their connections one after the other. Until the last one has noticed, one has a connection to a server
//! that is gone, and another one to its successor, whose flush says nothing about what the first one wrote. So a flush
//! covers only connections of its own *epoch*. An epoch begins whenever a connection ends. A connection is of the epoch
//! that the last request was sent in that it has answered: it has shown then that its server lived at that time.
//!
//! What the process before this one has written may not have been flushed either, and hosts rely on this one for it. So
//! the first connections begin with a write in their account, until a flush has covered it. It is the same when somebody
//! has looked after a loss: what was not lost with one server may be lost with the next.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// The account of all cores.
#[derive(Debug, Default)]
pub(crate) struct Durability {
    epoch: AtomicU64,
    /// The last number of an acknowledged write.
    written: AtomicU64,
    flushed: Mutex<Flushed>,
    lost: AtomicBool,
    /// Whether something was perhaps written before that no flush has covered yet.
    inherits: AtomicBool,
}

/// The last flush that has succeeded.
#[derive(Clone, Copy, Debug, Default)]
struct Flushed {
    epoch: u64,
    /// It covers the writes up to this number.
    written: u64,
}

/// What a core knows of its own connection.
#[derive(Debug, Default)]
pub(crate) struct Connection {
    epoch: u64,
    /// The number of the last write that it has acknowledged; zero if there is none.
    written: u64,
}

/// What a flush covers, as it was when it was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sent {
    epoch: u64,
    written: u64,
}

impl Durability {
    /// An account that begins with what somebody may have written before.
    pub(crate) fn inheriting() -> Self {
        Self { inherits: AtomicBool::new(true), ..Self::default() }
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
        self.inherits.store(true, Ordering::SeqCst);
        self.lost.store(false, Ordering::SeqCst);
    }

    fn flushed(&self) -> Flushed {
        *self.flushed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connection {
    /// A connection that is there from now on.
    pub(crate) fn begin(durability: &Durability) -> Self {
        Self { epoch: durability.sent().epoch, written: 0 }
    }

    /// Takes over what was written before, as a write of its own, if no flush has covered it. Says whether it has.
    pub(crate) fn inherit(&mut self, durability: &Durability) -> bool {
        let inherits = durability.inherits.load(Ordering::SeqCst);
        if inherits {
            self.wrote(durability);
        }
        inherits
    }

    /// A request has been answered that was sent then.
    pub(crate) fn answered(&mut self, sent: Sent) {
        self.epoch = self.epoch.max(sent.epoch);
    }

    /// A write was acknowledged that may be in the server's memory only.
    pub(crate) fn wrote(&mut self, durability: &Durability) {
        self.written = durability.written.fetch_add(1, Ordering::SeqCst) + 1;
    }

    /// A flush has succeeded that was sent then.
    pub(crate) fn flushed(&self, durability: &Durability, sent: Sent) {
        let mut flushed = durability.flushed.lock().unwrap_or_else(PoisonError::into_inner);
        if self.epoch > flushed.epoch {
            *flushed = Flushed { epoch: self.epoch, written: sent.written };
        } else if self.epoch == flushed.epoch {
            flushed.written = flushed.written.max(sent.written);
        }
        durability.inherits.store(false, Ordering::SeqCst);
    }

    /// The connection has ended. Returns whether something is lost that was not known to be lost.
    pub(crate) fn end(self, durability: &Durability) -> bool {
        durability.epoch.fetch_add(1, Ordering::SeqCst);
        let flushed = durability.flushed();
        let covered = self.written == 0 || flushed.epoch == self.epoch && flushed.written >= self.written;
        if !covered {
            durability.inherits.store(false, Ordering::SeqCst);
        }
        !covered && !durability.lost.swap(true, Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_flushed_is_safe_and_what_was_not_is_lost() {
        let durability = Durability::default();
        let mut one = Connection::begin(&durability);
        one.wrote(&durability);
        let sent = durability.sent();
        one.flushed(&durability, sent);
        assert!(!one.end(&durability) && !durability.is_lost());
        let mut one = Connection::begin(&durability);
        one.wrote(&durability);
        let sent = durability.sent();
        one.wrote(&durability);
        one.flushed(&durability, sent);
        assert!(
            one.end(&durability) && durability.is_lost(),
            "the second write came after the flush was sent"
        );
        durability.forgive();
        assert!(!durability.is_lost());
        let mut one = Connection::begin(&durability);
        assert!(one.inherit(&durability), "the next server may lose what this one has not");
    }

    #[test]
    fn what_was_written_before_is_lost_with_the_first_server_unless_it_has_flushed() {
        for flushes in [false, true] {
            let durability = Durability::inheriting();
            let mut one = Connection::begin(&durability);
            assert!(one.inherit(&durability));
            if flushes {
                one.flushed(&durability, durability.sent());
            }
            assert_eq!(one.end(&durability), !flushes);
            assert!(!Connection::begin(&durability).inherit(&durability), "that is settled");
        }
    }

    #[test]
    fn a_flush_of_one_core_covers_the_writes_of_another_one() {
        let durability = Durability::default();
        let [mut one, two] = [(); 2].map(|()| Connection::begin(&durability));
        one.wrote(&durability);
        two.flushed(&durability, durability.sent());
        assert!(!one.end(&durability));
    }

    #[test]
    fn a_flush_at_the_next_server_does_not_cover_what_the_last_one_had() {
        let durability = Durability::default();
        let [mut one, two] = [(); 2].map(|()| Connection::begin(&durability));
        assert!(!two.end(&durability), "it had written nothing");
        // The last answers of the old server come late.
        one.wrote(&durability);
        let two = Connection::begin(&durability);
        two.flushed(&durability, durability.sent());
        assert!(one.end(&durability) && durability.is_lost());
    }

    #[test]
    fn a_connection_whose_server_goes_on_joins_the_next_epoch() {
        let durability = Durability::default();
        let [mut one, two] = [(); 2].map(|()| Connection::begin(&durability));
        one.wrote(&durability);
        assert!(!two.end(&durability));
        one.answered(durability.sent());
        let two = Connection::begin(&durability);
        two.flushed(&durability, durability.sent());
        assert!(!one.end(&durability), "the same server has flushed");
    }
}
