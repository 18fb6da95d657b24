//! Blocks that belong to one writer for a while.
//!
//! A write of a part of a block reads the block, changes it and writes it. Any other write of it in between would be
//! lost. So whoever changes a part claims the block first. Each engine holds back what would write it, and says when
//! its own commands for it have ended. Engines look at the claims only when there are some: writes of whole blocks lock
//! nothing and wait for nothing as long as nobody changes a part.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use ringfab_reactor::Waker;

/// The claims of all writers.
pub(crate) struct Claims {
    /// How many there are.
    count: AtomicUsize,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    claims: Vec<Entry>,
    last: u64,
    /// Of each engine that serves.
    wakers: Vec<Option<Waker>>,
}

#[derive(Debug)]
struct Entry {
    id: u64,
    nsid: u32,
    range: Range<u64>,
    /// For each engine, whether it may have commands for the range.
    busy: Vec<bool>,
}

/// A claim; dropping it lets others write.
pub(crate) struct Claim {
    claims: Arc<Claims>,
    id: u64,
}

impl Claims {
    /// No claims, of so many engines.
    pub(crate) fn new(engines: usize) -> Arc<Self> {
        let wakers = (0..engines).map(|_| None).collect();
        let state = Mutex::new(State { claims: Vec::new(), last: 0, wakers });
        Arc::new(Self { count: AtomicUsize::new(0), state, changed: Condvar::new() })
    }

    /// An engine serves from now on.
    pub(crate) fn join(&self, engine: usize, waker: Waker) {
        self.state().wakers[engine] = Some(waker);
    }

    /// An engine has ended: it has no commands any more.
    pub(crate) fn leave(&self, engine: usize) {
        let mut state = self.state();
        state.wakers[engine] = None;
        for entry in &mut state.claims {
            entry.busy[engine] = false;
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Claims bytes of a namespace, which are whole blocks. Waits until no other claim has one of them, and until the
    /// commands for them have ended that were there before. Not for engines' threads.
    pub(crate) fn claim(self: &Arc<Self>, nsid: u32, range: Range<u64>) -> Claim {
        let mut state = self.state();
        while state.claims.iter().any(|entry| entry.is_about(nsid, &range)) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.last += 1;
        let id = state.last;
        let busy = state.wakers.iter().map(Option::is_some).collect();
        state.claims.push(Entry { id, nsid, range, busy });
        self.count.store(state.claims.len(), Ordering::Release);
        state.wake();
        let is_busy = |entry: &Entry| entry.id == id && entry.busy.contains(&true);
        while state.claims.iter().any(is_busy) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        Claim { claims: self.clone(), id }
    }

    /// Whether a command for bytes of a namespace has to wait. For engines' threads.
    pub(crate) fn holds(&self, nsid: u32, range: &Range<u64>) -> bool {
        self.count.load(Ordering::Acquire) > 0
            && self.state().claims.iter().any(|entry| entry.is_about(nsid, range))
    }

    /// Lets an engine say which claims it has no commands for any more: those for which `is_busy` says no.
    pub(crate) fn look(&self, engine: usize, is_busy: impl Fn(u32, &Range<u64>) -> bool) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut state = self.state();
        let mut freed = false;
        for entry in &mut state.claims {
            if entry.busy[engine] && !is_busy(entry.nsid, &entry.range) {
                entry.busy[engine] = false;
                freed = true;
            }
        }
        drop(state);
        if freed {
            self.changed.notify_all();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn wake(&self) {
        for waker in self.wakers.iter().flatten() {
            waker.wake();
        }
    }
}

impl Entry {
    fn is_about(&self, nsid: u32, range: &Range<u64>) -> bool {
        self.nsid == nsid && self.range.start < range.end && range.start < self.range.end
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut state = self.claims.state();
        state.claims.retain(|entry| entry.id != self.id);
        self.claims.count.store(state.claims.len(), Ordering::Release);
        // What was held back goes on.
        state.wake();
        drop(state);
        self.claims.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use ringfab_reactor::{Reactor, ReactorConfig};

    use super::*;

    const SHORT: Duration = Duration::from_millis(50);
    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn a_claim_waits_for_other_claims_and_for_commands_and_holds_others_back() {
        let config = ReactorConfig { entries: 8, spin: Duration::ZERO, descriptors_max: 8 };
        let reactor = Reactor::new(&config).expect("a ring");
        let claims = Claims::new(2);
        // Only the second engine serves.
        claims.join(1, reactor.waker());
        let (told, news) = channel();
        let claim = |range: Range<u64>| {
            let (claims, told) = (claims.clone(), told.clone());
            std::thread::spawn(move || {
                let claim = claims.claim(7, range.clone());
                told.send(range.start).expect("somebody listens");
                claim
            })
        };
        let first = claim(0..512);
        assert!(news.recv_timeout(SHORT).is_err(), "the engine has not looked");
        assert!(claims.holds(7, &(511..512)) && !claims.holds(7, &(512..600)) && !claims.holds(8, &(0..512)));
        claims.look(1, |nsid, range| nsid == 7 && range.start == 0);
        assert!(news.recv_timeout(SHORT).is_err(), "it has commands for the block");
        claims.look(1, |_, _| false);
        assert_eq!(news.recv_timeout(LONG), Ok(0));
        let first = first.join().expect("claimed");
        let second = claim(0..1024);
        assert!(news.recv_timeout(SHORT).is_err(), "another one has a block of it");
        drop(first);
        claims.leave(1);
        assert_eq!(news.recv_timeout(LONG), Ok(0), "without engines nobody has commands");
        drop(second.join().expect("claimed"));
        assert!(!claims.holds(7, &(0..1024)));
    }
}
