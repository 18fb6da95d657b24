//! A stack of its own for the program.

use std::process::ExitCode;
use std::thread;

use crate::{log, signals};

/// What the system gives the first thread is limited (`ulimit -s`), and less than is needed ends a process without a
/// word.
const STACK_BYTES: usize = 8 << 20;

/// Runs a program on a stack that is large enough, whatever the limit is.
pub fn run(program: impl FnOnce() -> ExitCode + Send + 'static) -> ExitCode {
    // All threads begin with the mask of this one, which a parent may have left. A failure is none: there is nothing to
    // refuse.
    let _cleared = signals::clear_mask();
    match thread::Builder::new().name("main".to_owned()).stack_size(STACK_BYTES).spawn(program) {
        // As the standard library ends a process whose first thread panics.
        Ok(running) => running.join().unwrap_or(ExitCode::from(101)),
        Err(error) => {
            log::say(&format!(
                "the system has no thread for the program (ulimit -u, ulimit -v, TasksMax=): {error}"
            ));
            log::flush();
            ExitCode::FAILURE
        }
    }
}
