//! The atomics of what cores share without a lock. A test that runs such code under every interleaving has another
//! module of this name (`tests/tests/interleavings.rs`).

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
