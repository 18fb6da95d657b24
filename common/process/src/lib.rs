//! What a program needs of its system: the terminal, tables for it, the log, signals, resource limits, the stack, and
//! no more than that (`confine`). And what its system has of it: man pages (`manual`, `format`), `completions`, and
//! files for programs that read them (`made_file`), or for one user alone (`secret_file`).
//!
//! Nothing here may end a program or make it wait. A log line that cannot be written is dropped and counted, and a
//! signal without a meaning for the program is ignored.
//!
//! Not implemented here: rotation of log files, and configuration.

pub mod completions;
pub mod confine;
pub mod format;
pub mod limits;
pub mod log;
pub mod made_file;
pub mod manual;
pub mod options;
mod roff;
pub mod secret_file;
pub mod signals;
pub mod stack;
pub mod table;
pub mod terminal;
