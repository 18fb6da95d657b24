//! What code that threads share without a lock is built on. A test that runs it under every interleaving has another
//! module of this name (`tests/tests/interleavings.rs`).

pub(super) use std::sync::atomic::{AtomicBool, Ordering, fence};
