//! What every other crate may use: [`Slots`], a table whose handles expire; [`SplitMix64`], random numbers from a seed;
//! [`parse_size`], sizes with units; [`shell_quoted`], words for a shell; [`meant`], what a misspelt word is meant for;
//! [`visible`], names that others chose, with escapes for what nobody sees.
//!
//! Not implemented here: anything with I/O, threads or `unsafe`. The random numbers are for tests, faults and jitter,
//! not for keys.
#![forbid(unsafe_code)]

mod count;
mod random;
mod shell;
mod size;
mod slots;
mod spelling;
mod visible;

pub use count::counted;
pub use random::{SplitMix64, mix};
pub use shell::{shell_quoted, shell_word, shell_words, without_folder};
pub use size::{SizeError, format_size, parse_size, shown_size};
pub use slots::{SlotId, Slots};
pub use spelling::meant;
pub use visible::{Visible, VisiblePath, is_visible, visible, visible_lines};
