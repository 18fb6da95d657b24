//! The command `ringfab-target`. Everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    ringfab_process::stack::run(|| {
        ringfab_target::service::cli::run(std::env::args_os(), ringfab_target::core::start)
    })
}
