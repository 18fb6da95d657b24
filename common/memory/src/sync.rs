//! What code that cores share without a lock is built on. A test that runs it under every interleaving has another
//! module of this name (`tests/tests/interleavings.rs`).

pub(crate) use std::sync::atomic::{AtomicU32, Ordering};

/// Turns that a page is waited for before the processor is given to others: who has it may have been interrupted.
const SPINS: u32 = 1000;

/// Waits a little for another thread.
pub(crate) fn wait(spins: &mut u32) {
    *spins += 1;
    if spins.is_multiple_of(SPINS) {
        std::thread::yield_now();
    } else {
        std::hint::spin_loop();
    }
}
