//! The atomics of what threads share without a lock. A test that runs such code under every interleaving has another
//! module of this name (`tests/tests/interleavings.rs`).

pub(crate) use std::sync::atomic::{AtomicI64, AtomicPtr, Ordering};
