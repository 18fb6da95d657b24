//! The command ringfab: finds, looks at, measures and uses remote namespaces.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    ringfab_process::stack::run(cli::main)
}
