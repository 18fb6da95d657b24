//! A program and its surroundings: where its log goes, which signals it hears, what the system lets it use, and its
//! stack.
//!
//! Nothing here may end a program or hold it up: a log that nobody can take is dropped and counted, and a signal that
//! means nothing to the program does nothing.
//!
//! What it does not do: rotate files, talk to the journal's socket, or read a configuration.

pub mod limits;
pub mod log;
pub mod signals;
pub mod stack;
