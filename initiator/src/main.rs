//! The command ringfab: finds, looks at, measures and uses remote namespaces.

mod bench;
mod cli;
mod fuse;
mod nbd;

use std::process::ExitCode;

fn main() -> ExitCode {
    ringfab_process::stack::run(cli::main)
}
