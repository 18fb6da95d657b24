//! What every other crate may use: [`Slots`], a table whose handles expire, and [`SplitMix64`], random numbers from a
//! seed.
//!
//! Not implemented here: anything with I/O, threads or `unsafe`. The random numbers are for tests, faults and jitter,
//! not for keys.
#![forbid(unsafe_code)]

mod random;
mod slots;

pub use random::{SplitMix64, mix};
pub use slots::{SlotId, Slots};
