//! What a program needs of its system: the log, signals, resource limits, the stack, and no more than that
//! (`confine`). And what its system needs of it: pages and completions (`manual`), and what its exit status means.
//!
//! Nothing here may end a program or make it wait. A log line that cannot be written is dropped and counted, and a
//! signal without a meaning for the program is ignored.
//!
//! Not implemented here: rotation of log files, and configuration.

pub mod confine;
pub mod exit;
pub mod limits;
pub mod log;
pub mod manual;
pub mod signals;
pub mod stack;
