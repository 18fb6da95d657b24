//! Memory of a caller, which other threads copy from or into while the caller waits.
//!
//! A scoped thread may borrow. A thread that already runs may not, because it could use the memory after the scope has
//! ended. Here each access takes a lock, and the end of the scope takes the same lock and revokes what was lent. A
//! scope costs one small allocation, and lending in it costs none.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a caller lends while it is in [`CallerMemory::scope`]. Whatever is lent outlives the scope:
///
/// ```compile_fail
/// ringfab_memory::CallerMemory::scope(|memory| {
///     let short_lived = vec![0; 4];
///     drop(memory.lend_source(&short_lived));
/// });
/// ```
pub struct CallerMemory<'memory> {
    parts: Arc<Parts>,
    /// Invariant: a scope must not pass for one that takes what lives less long.
    lifetime: PhantomData<Cell<&'memory mut ()>>,
}

type Parts = [Mutex<Entry>; CallerMemory::PARTS_MAX];

/// A place for a part. Handles of its former ones have other generations.
#[derive(Default)]
struct Entry {
    generation: u64,
    start: Option<Start>,
}

/// The first byte of a part. While an entry has it, the bytes are borrowed: exclusively if it is a target.
struct Start(NonNull<u8>);

// SAFETY: slices of bytes, shared and exclusive ones, may be used on any thread. This one is used with its entry
// locked.
unsafe impl Send for Start {}

impl<'memory> CallerMemory<'memory> {
    /// Parts that may be lent at once.
    pub const PARTS_MAX: usize = 16;

    /// Runs `run`. What it lends is taken back before this returns, also when it panics; a copy that another thread
    /// makes just then is waited for.
    pub fn scope<R>(run: impl FnOnce(&CallerMemory<'memory>) -> R) -> R {
        // Its drop takes everything back. Nobody else owns it, so that nobody can forget it.
        run(&CallerMemory { parts: Arc::default(), lifetime: PhantomData })
    }

    /// Lends bytes to copy from.
    ///
    /// # Panics
    /// When [`CallerMemory::PARTS_MAX`] parts are lent already.
    pub fn lend_source(&self, bytes: &'memory [u8]) -> CallerSource {
        CallerSource(self.lend(NonNull::from(bytes).cast(), bytes.len()))
    }

    /// Lends bytes to copy into.
    ///
    /// # Panics
    /// When [`CallerMemory::PARTS_MAX`] parts are lent already.
    pub fn lend_target(&self, bytes: &'memory mut [u8]) -> CallerTarget {
        let length = bytes.len();
        CallerTarget(self.lend(NonNull::from(bytes).cast(), length))
    }

    fn lend(&self, start: NonNull<u8>, length: usize) -> Part {
        for (index, entry) in self.parts.iter().enumerate() {
            let mut entry = lock(entry);
            if entry.start.is_none() {
                entry.generation += 1;
                entry.start = Some(Start(start));
                let generation = entry.generation;
                return Part { parts: Arc::clone(&self.parts), index, generation, length };
            }
        }
        panic!("as many parts are lent as may be");
    }
}

impl Drop for CallerMemory<'_> {
    fn drop(&mut self) {
        for entry in self.parts.iter() {
            lock(entry).start = None;
        }
    }
}

impl fmt::Debug for CallerMemory<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallerMemory").finish_non_exhaustive()
    }
}

/// No panic leaves an entry half changed.
fn lock(entry: &Mutex<Entry>) -> MutexGuard<'_, Entry> {
    entry.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The handle of a part. Dropping it gives the part back.
struct Part {
    parts: Arc<Parts>,
    index: usize,
    generation: u64,
    length: usize,
}

impl Part {
    /// Has `look` see the bytes, unless they were taken back. They stay until it returns.
    fn with_start(&self, look: impl FnOnce(NonNull<u8>)) -> bool {
        let entry = lock(&self.parts[self.index]);
        match &entry.start {
            Some(start) if entry.generation == self.generation => {
                look(start.0);
                true
            }
            _ => false,
        }
    }

    fn give_back(&self) {
        let mut entry = lock(&self.parts[self.index]);
        if entry.generation == self.generation {
            entry.start = None;
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// Bytes of a caller to copy from. Dropping it gives them back.
pub struct CallerSource(Part);

impl CallerSource {
    /// Length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a length in bytes, not a collection")]
    pub fn len(&self) -> usize {
        self.0.length
    }

    /// Copies all of them into `target`, which is as long. `false` when the caller has taken them back.
    ///
    /// # Panics
    /// When `target` is shorter or longer.
    #[must_use]
    pub fn copy_into(&self, target: &mut [u8]) -> bool {
        assert_eq!(target.len(), self.0.length, "as long as the source");
        // SAFETY: the entry has the start, so the bytes are borrowed and of this length; `target` is exclusive and
        // cannot overlap them.
        self.0.with_start(|start| unsafe {
            std::ptr::copy_nonoverlapping(start.as_ptr(), target.as_mut_ptr(), target.len());
        })
    }

    /// Gives the bytes back before it is dropped.
    pub fn give_back(&self) {
        self.0.give_back();
    }
}

impl fmt::Debug for CallerSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallerSource").field("length", &self.0.length).finish_non_exhaustive()
    }
}

/// Bytes of a caller to copy into. Dropping it gives them back.
pub struct CallerTarget(Part);

impl CallerTarget {
    /// Length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a length in bytes, not a collection")]
    pub fn len(&self) -> usize {
        self.0.length
    }

    /// Copies `source`, which is as long, over all of them. `false` when the caller has taken them back.
    ///
    /// # Panics
    /// When `source` is shorter or longer.
    #[must_use]
    pub fn copy_from(&self, source: &[u8]) -> bool {
        assert_eq!(source.len(), self.0.length, "as long as the target");
        // SAFETY: the entry has the start, so the bytes are borrowed exclusively, for this part alone, and are of this
        // length; `source` cannot overlap them. The lock keeps other calls away.
        self.0.with_start(|start| unsafe {
            std::ptr::copy_nonoverlapping(source.as_ptr(), start.as_ptr(), source.len());
        })
    }

    /// Gives the bytes back before it is dropped.
    pub fn give_back(&self) {
        self.0.give_back();
    }
}

impl fmt::Debug for CallerTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallerTarget").field("length", &self.0.length).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use super::CallerMemory;

    #[test]
    fn a_thread_that_was_there_before_copies_while_the_caller_waits() {
        let (jobs, received) = channel::<(super::CallerSource, super::CallerTarget)>();
        let (done, ended) = channel();
        let worker = thread::spawn(move || {
            for (source, target) in received {
                let mut bytes = vec![0; source.len()];
                let copied = source.copy_into(&mut bytes) && target.copy_from(&bytes);
                // Given back before the caller knows.
                drop((source, target));
                done.send(copied).expect("the caller waits");
            }
        });
        let source: Vec<u8> = (0..=255).collect();
        let mut target = vec![0; 256];
        CallerMemory::scope(|memory| {
            // More parts than may be lent at once, one after the other.
            for (source, target) in source.chunks(8).zip(target.chunks_mut(8)) {
                jobs.send((memory.lend_source(source), memory.lend_target(target))).expect("it listens");
                assert!(ended.recv().expect("an answer"));
            }
        });
        drop(jobs);
        worker.join().expect("ended");
        assert_eq!(source, target);
    }

    #[test]
    fn what_was_lent_is_out_of_reach_when_the_scope_has_ended() {
        let source = [1; 4];
        let mut target = [2; 4];
        let (from, into) =
            CallerMemory::scope(|memory| (memory.lend_source(&source), memory.lend_target(&mut target)));
        let mut copy = [3; 4];
        assert!(!from.copy_into(&mut copy) && !into.copy_from(&[4; 4]));
        assert_eq!((copy, target), ([3; 4], [2; 4]));
    }

    #[test]
    fn a_panic_takes_everything_back_too() {
        let source = [1; 4];
        let (sender, receiver) = channel();
        let ended = std::panic::catch_unwind(|| {
            CallerMemory::scope(|memory| {
                sender.send(memory.lend_source(&source)).expect("it listens");
                panic!("of the test");
            })
        });
        assert!(ended.is_err());
        assert!(!receiver.recv().expect("what was lent").copy_into(&mut [0; 4]));
    }

    #[test]
    fn a_handle_that_gave_its_part_back_neither_sees_nor_ends_the_next_one() {
        let (first, second) = ([1; 4], [2; 4]);
        CallerMemory::scope(|memory| {
            let old = memory.lend_source(&first);
            old.give_back();
            let new = memory.lend_source(&second);
            let mut copy = [0; 4];
            assert!(!old.copy_into(&mut copy));
            old.give_back();
            drop(old);
            assert!(new.copy_into(&mut copy));
            assert_eq!(copy, second);
        });
    }

    #[test]
    #[should_panic(expected = "as many parts are lent as may be")]
    fn more_parts_than_may_be_are_a_callers_error() {
        let bytes = [0; 4];
        CallerMemory::scope(|memory| {
            let _parts: Vec<_> = (0..=CallerMemory::PARTS_MAX).map(|_| memory.lend_source(&bytes)).collect();
        });
    }
}
