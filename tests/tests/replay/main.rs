//! Recorded sessions, played again with something wrong: cut at every byte, bytes flipped, lengths at their limits.
//! Whatever comes, the other end closes that connection in time, and everything else goes on.

mod damage;
mod initiator;
mod slow;
mod target;
mod tcp;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Every test counts what its process has open, so that they run one after the other.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    // A test that failed says so itself.
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
