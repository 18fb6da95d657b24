//! The word of one page: who reads and who writes it. No lock: a word is changed by single instructions.
//!
//! What a writer has written is visible to every reader that comes after it, and nothing that a reader reads is written
//! before it has left. `tests/tests/interleavings.rs` runs this file under every interleaving.

use super::sync::{AtomicU32, Ordering, wait};

/// Set while somebody writes a page, or waits for its readers to leave; below it is their number.
const WRITER: u32 = 1 << 31;

/// Adds a reader, unless there is a writer.
#[inline]
pub(crate) fn try_read(word: &AtomicU32) -> bool {
    let free = word.fetch_add(1, Ordering::Acquire) & WRITER == 0;
    if !free {
        word.fetch_sub(1, Ordering::Relaxed);
    }
    free
}

/// Adds a reader, when the writer has left.
pub(crate) fn read(word: &AtomicU32) {
    let mut spins = 0;
    while !try_read(word) {
        while word.load(Ordering::Relaxed) & WRITER != 0 {
            wait(&mut spins);
        }
    }
}

#[inline]
pub(crate) fn end_read(word: &AtomicU32) {
    word.fetch_sub(1, Ordering::Release);
}

/// Makes the page the caller's, if nobody uses it.
#[inline]
pub(crate) fn try_write(word: &AtomicU32) -> bool {
    word.compare_exchange(0, WRITER, Ordering::Acquire, Ordering::Relaxed).is_ok()
}

/// Makes the page the caller's, when everybody has left it.
pub(crate) fn write(word: &AtomicU32) {
    let mut spins = 0;
    while word.fetch_or(WRITER, Ordering::Acquire) & WRITER != 0 {
        wait(&mut spins);
    }
    while word.load(Ordering::Acquire) != WRITER {
        wait(&mut spins);
    }
}

#[inline]
pub(crate) fn end_write(word: &AtomicU32) {
    word.fetch_and(!WRITER, Ordering::Release);
}
