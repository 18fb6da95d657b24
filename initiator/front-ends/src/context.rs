//! What every command is given.

use crate::interrupt::Interrupt;

/// How a command was started.
pub struct Context {
    /// Whether to print JSON.
    pub json: bool,
    /// The signals of the process.
    pub interrupt: Interrupt,
}

/// A command line that can be parsed and makes no sense all the same.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);
