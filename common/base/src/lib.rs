//! What every other crate may use: [`Slots`], a table whose handles expire, and [`SplitMix64`], random numbers from a
//! seed.
//!
//! Not implemented here: anything with I/O, threads or `unsafe`. The numbers are for tests, faults and jitter; they are
//! not fit for keys.
#![forbid(unsafe_code)]

mod random;
mod slots;

pub use random::{SplitMix64, mix};
pub use slots::{SlotId, Slots};
