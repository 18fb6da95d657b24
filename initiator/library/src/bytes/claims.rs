//! Blocks that belong to one writer for a while.
//!
//! A write of a part of a block reads the block, changes it and writes it. Any other write of it in between would be
//! lost. So whoever changes a part claims the block first. Claims have their turn in the order in which they come: who
//! wants many blocks does not wait for ever for those who want few.
//!
//! Writes of whole blocks claim nothing. Whoever submits them on an engine's thread is a [`BlockWriter`]. It looks at
//! the claims only when there are some: one load of an atomic says so. It holds back what would write claimed blocks,
//! and reports when its own commands for them have ended. A claim begins when all have reported. So nobody waits on an
//! engine's thread, and no write of a whole block takes a lock as long as nobody changes a part of one.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use ringfab_reactor::Waker;

use crate::cancel::{CANCEL_POLL, CancelToken};

/// The claims on the disks of one attached controller.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    /// How many there are, waiting ones included.
    count: AtomicUsize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// In the order in which they came.
    entries: Vec<Entry>,
    /// The number of the last one.
    last: u64,
    /// By the number of a [`BlockWriter`].
    writers: Vec<Option<Waker>>,
    /// Whether a writer was told to wait, and wants to know when it need not any more.
    somebody_waits: bool,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    nsid: u32,
    blocks: Range<u64>,
    /// The writers that may still have commands for the blocks.
    unreported: Vec<usize>,
}

/// A place among the claims; dropping it lets others write.
#[derive(Debug)]
pub(crate) struct Place {
    claims: Arc<Claims>,
    number: u64,
}

impl Claims {
    /// Claims blocks of a namespace. Waits until no claim that came before has one of them, and until the commands for
    /// them have ended that were there before: as long as the I/O of those. Not for engines' threads.
    ///
    /// `None` when it is cancelled meanwhile.
    pub(crate) fn claim(
        self: &Arc<Self>,
        nsid: u32,
        blocks: Range<u64>,
        cancel: &CancelToken,
    ) -> Option<Place> {
        let mut state = self.state();
        let number = state.add(nsid, blocks);
        self.count.store(state.entries.len(), Ordering::Release);
        state.wake();
        // From here on its end takes it away.
        let place = Place { claims: Arc::clone(self), number };
        while state.has_to_wait(number) {
            if cancel.is_cancelled() {
                drop(state);
                return None;
            }
            let waited = self.changed.wait_timeout(state, CANCEL_POLL);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(state);
        Some(place)
    }

    /// Somebody who submits writes of whole blocks on the thread of the engine that `waker` wakes.
    pub(crate) fn join(self: &Arc<Self>, waker: Waker) -> BlockWriter {
        let mut state = self.state();
        let free = state.writers.iter().position(Option::is_none);
        let number = free.unwrap_or(state.writers.len());
        if free.is_none() {
            state.writers.push(None);
        }
        state.writers[number] = Some(waker);
        drop(state);
        BlockWriter { claims: Arc::clone(self), number }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// A claim behind all others; returns its number.
    fn add(&mut self, nsid: u32, blocks: Range<u64>) -> u64 {
        self.last += 1;
        let writers = self.writers.iter().enumerate().filter(|(_, waker)| waker.is_some());
        let unreported = writers.map(|(number, _)| number).collect();
        self.entries.push(Entry { number: self.last, nsid, blocks, unreported });
        self.last
    }

    /// Whether a claim has not begun: an earlier one has blocks of it, or a writer has not reported.
    fn has_to_wait(&self, number: u64) -> bool {
        let Some(place) = self.entries.iter().position(|entry| entry.number == number) else { return false };
        let (earlier, rest) = self.entries.split_at(place);
        let entry = &rest[0];
        !entry.unreported.is_empty()
            || earlier.iter().any(|other| other.has_any_of(entry.nsid, &entry.blocks))
    }

    fn wake(&self) {
        for waker in self.writers.iter().flatten() {
            waker.wake();
        }
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("entries", &self.entries).finish_non_exhaustive()
    }
}

impl Entry {
    fn has_any_of(&self, nsid: u32, blocks: &Range<u64>) -> bool {
        self.nsid == nsid && self.blocks.start < blocks.end && blocks.start < self.blocks.end
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.claims.state();
        state.entries.retain(|entry| entry.number != self.number);
        self.claims.count.store(state.entries.len(), Ordering::Release);
        if std::mem::take(&mut state.somebody_waits) {
            state.wake();
        }
        drop(state);
        self.claims.changed.notify_all();
    }
}

/// Who submits writes of whole blocks on an engine's thread, beside the blocking handle: see
/// [`blocking::Controller::block_writer`](crate::blocking::Controller::block_writer). Dropping it says that none of its
/// commands is outstanding any more.
///
/// Before each command that writes blocks (Write, Write Zeroes, Dataset Management), it asks
/// [`BlockWriter::must_wait`]. In each turn it [reports](BlockWriter::report) which blocks it is writing. Both are one
/// load of an atomic as long as nobody changes a part of a block.
#[derive(Debug)]
pub struct BlockWriter {
    claims: Arc<Claims>,
    number: usize,
}

impl BlockWriter {
    /// Whether blocks of a namespace, by number, must not be written now, because somebody changes a part of one. The
    /// engine is woken when that has ended. A caller that asks again and again may be overtaken by later claims; one
    /// that hands the write to a thread with [`Disk::claim`](crate::blocking::Disk::claim) is not.
    #[inline]
    pub fn must_wait(&self, nsid: u32, blocks: &Range<u64>) -> bool {
        self.claims.count.load(Ordering::Acquire) > 0 && self.is_claimed(nsid, blocks)
    }

    /// Says which claimed blocks are written by no command of this writer any more: those for which `is_writing` says
    /// no, given a namespace and numbers of blocks. Called in each turn.
    #[inline]
    pub fn report(&self, is_writing: impl Fn(u32, &Range<u64>) -> bool) {
        if self.claims.count.load(Ordering::Acquire) > 0 {
            self.report_to_claims(is_writing);
        }
    }

    fn is_claimed(&self, nsid: u32, blocks: &Range<u64>) -> bool {
        let mut state = self.claims.state();
        let claimed = state.entries.iter().any(|entry| entry.has_any_of(nsid, blocks));
        state.somebody_waits |= claimed;
        claimed
    }

    fn report_to_claims(&self, is_writing: impl Fn(u32, &Range<u64>) -> bool) {
        let mut state = self.claims.state();
        let mut changed = false;
        for entry in &mut state.entries {
            let place = entry.unreported.iter().position(|number| *number == self.number);
            if let Some(place) = place.filter(|_| !is_writing(entry.nsid, &entry.blocks)) {
                entry.unreported.swap_remove(place);
                changed = true;
            }
        }
        drop(state);
        if changed {
            self.claims.changed.notify_all();
        }
    }
}

impl Drop for BlockWriter {
    fn drop(&mut self) {
        let mut state = self.claims.state();
        state.writers[self.number] = None;
        for entry in &mut state.entries {
            entry.unreported.retain(|number| *number != self.number);
        }
        drop(state);
        self.claims.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::sync::mpsc::{Receiver, channel};
    use std::thread::JoinHandle;
    use std::time::Duration;

    use ringfab_reactor::{Reactor, ReactorConfig, Token, Wait};

    use super::*;

    /// Long enough to see that nothing happens.
    const SHORT: Duration = Duration::from_millis(50);
    const LONG: Duration = Duration::from_secs(20);

    fn ring() -> Reactor {
        let config = ReactorConfig { entries: 8, spin: Duration::ZERO, descriptors_max: 8 };
        Reactor::new(&config).expect("a ring")
    }

    /// Claims on a thread of its own.
    fn claim_elsewhere(
        claims: &Arc<Claims>,
        blocks: Range<u64>,
    ) -> (Receiver<u64>, JoinHandle<Option<Place>>) {
        let (claims, (told, news)) = (claims.clone(), channel());
        let thread = std::thread::spawn(move || {
            let place = claims.claim(7, blocks.clone(), &CancelToken::new());
            told.send(blocks.start).expect("somebody listens");
            place
        });
        (news, thread)
    }

    fn wait_for_entries(claims: &Claims, count: usize) {
        while claims.state().entries.len() < count {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_claim_waits_for_other_claims_and_for_commands_and_holds_others_back() {
        let (claims, reactor) = (Arc::new(Claims::default()), ring());
        let writer = claims.join(reactor.waker());
        let (news, first) = claim_elsewhere(&claims, 0..8);
        assert!(news.recv_timeout(SHORT).is_err(), "the writer has not reported");
        assert!(
            writer.must_wait(7, &(7..8)) && !writer.must_wait(7, &(8..9)) && !writer.must_wait(8, &(0..8))
        );
        writer.report(|nsid, blocks| nsid == 7 && blocks.start == 0);
        assert!(news.recv_timeout(SHORT).is_err(), "it has commands for the blocks");
        writer.report(|_, _| false);
        assert_eq!(news.recv_timeout(LONG), Ok(0));
        let first = first.join().expect("claimed");
        let (news, second) = claim_elsewhere(&claims, 0..16);
        assert!(news.recv_timeout(SHORT).is_err(), "another one has a block of it");
        drop(first);
        drop(writer);
        assert_eq!(news.recv_timeout(LONG), Ok(0), "without writers nobody has commands");
        drop(second.join().expect("claimed"));
        assert!(!claims.join(reactor.waker()).must_wait(7, &(0..16)));
    }

    #[test]
    fn writers_of_a_common_block_exclude_each_other() {
        let claims = Arc::new(Claims::default());
        // Each writer does what is wrong without a claim: it reads, waits and writes.
        let blocks: Vec<AtomicU64> = (0..4).map(|_| AtomicU64::new(0)).collect();
        std::thread::scope(|scope| {
            for writer in 0..8_u64 {
                let (claims, blocks) = (&claims, &blocks);
                scope.spawn(move || {
                    for round in 0..500_u64 {
                        let first = (writer + round) % 3;
                        let _place =
                            claims.claim(1, first..first + 2, &CancelToken::new()).expect("its turn");
                        for block in [first, first + 1] {
                            let value = blocks[block as usize].load(Ordering::Relaxed);
                            std::thread::yield_now();
                            blocks[block as usize].store(value + 1, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        let sum: u64 = blocks.iter().map(|block| block.load(Ordering::Relaxed)).sum();
        assert_eq!(sum, 8 * 500 * 2);
        assert!(claims.state().entries.is_empty());
    }

    #[test]
    fn other_blocks_and_other_namespaces_do_not_wait() {
        let (claims, cancel) = (Arc::new(Claims::default()), CancelToken::new());
        let _places =
            [(1, 0..1), (1, 1..2), (2, 0..1)].map(|(nsid, blocks)| claims.claim(nsid, blocks, &cancel));
    }

    #[test]
    fn who_wants_many_blocks_has_them_before_those_who_come_later() {
        let claims = Arc::new(Claims::default());
        let first = claims.claim(7, 0..1, &CancelToken::new());
        let (many_news, many) = claim_elsewhere(&claims, 0..1 << 30);
        wait_for_entries(&claims, 2);
        let (later_news, later) = claim_elsewhere(&claims, 8..9);
        wait_for_entries(&claims, 3);
        assert!(later_news.recv_timeout(SHORT).is_err(), "somebody waits for its block");
        drop(first);
        assert_eq!(many_news.recv_timeout(LONG), Ok(0));
        drop(many.join().expect("it has its turn"));
        assert_eq!(later_news.recv_timeout(LONG), Ok(8));
        drop(later.join().expect("it has its turn"));
    }

    #[test]
    fn who_is_cancelled_does_not_wait_and_holds_nobody_back() {
        let (claims, cancel) = (Arc::new(Claims::default()), CancelToken::new());
        let held = claims.claim(1, 0..1, &cancel);
        cancel.cancel();
        assert!(claims.claim(1, 0..2, &cancel).is_none());
        assert_eq!(claims.state().entries.len(), 1);
        drop(held);
    }

    #[test]
    fn the_end_of_a_claim_wakes_an_engine_that_was_told_to_wait() {
        let (claims, mut reactor, cancel) = (Arc::new(Claims::default()), ring(), CancelToken::new());
        let writer = claims.join(reactor.waker());
        let place = std::thread::scope(|scope| {
            let place = scope.spawn(|| claims.claim(1, 0..1, &cancel));
            while !writer.must_wait(1, &(0..1)) {
                reactor.turn(Wait::Event).expect("it is woken by the claim");
            }
            writer.report(|_, _| false);
            place.join().expect("claimed")
        });
        drop(place);
        reactor.set_timer(reactor.clock() + LONG, Token::new(16, 0, 0, 0));
        reactor.turn(Wait::Event).expect("a ring that works");
        assert!(reactor.next_completion().is_none(), "it is woken by the end, not by the clock");
        assert!(!claims.state().somebody_waits && !writer.must_wait(1, &(0..1)));
    }
}
