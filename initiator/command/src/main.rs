//! The command `ringfab`: finds, shows, measures and uses remote namespaces.
//!
//! Not implemented here: the front ends, which are in [`ringfab_front_ends`], and everything that a library of NVMe
//! over Fabrics does, which is in [`ringfab_initiator`]. No command manages a target, or sends any command of the
//! user's own.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    ringfab_process::stack::run(cli::main)
}
