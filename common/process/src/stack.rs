//! A stack of its own for the program.

use std::process::ExitCode;
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;

use ringfab_memory::{has_headroom, share_heap_where_addresses_are_limited};

use crate::{log, signals};

/// What the system gives the first thread is limited (`ulimit -s`), and less than is needed ends a process without a
/// word.
const STACK_BYTES: usize = 8 << 20;

/// Less than this beside the stack, and reading the configuration would end the process, without a word as well.
const HEAP_BYTES: usize = 8 << 20;

/// What the first thread is asked to do while it waits for the program.
type Task = Box<dyn FnOnce() + Send>;

static FIRST_THREAD: Mutex<Option<mpsc::Sender<Task>>> = Mutex::new(None);

/// Runs a program on a stack that is large enough, whatever the limit is.
pub fn run(program: impl FnOnce() -> ExitCode + Send + 'static) -> ExitCode {
    // All threads begin with the mask of this one, which a parent may have left. A failure is none: there is nothing to
    // refuse.
    let _cleared = signals::clear_mask();
    share_heap_where_addresses_are_limited();
    if !has_headroom(STACK_BYTES + HEAP_BYTES) {
        return refuse("the system has no memory for the program (ulimit -v, LimitAS=)");
    }
    let (sender, tasks) = mpsc::channel();
    set_first_thread(Some(sender));
    let program = || {
        let _released = Released;
        program()
    };
    match thread::Builder::new().name("main".to_owned()).stack_size(STACK_BYTES).spawn(program) {
        Ok(running) => {
            tasks.into_iter().for_each(|task: Task| task());
            // As the standard library ends a process whose first thread panics.
            running.join().unwrap_or(ExitCode::from(101))
        }
        Err(error) => {
            refuse(&format!("the system has no thread for the program (ulimit -u, TasksMax=): {error}"))
        }
    }
}

fn refuse(why: &str) -> ExitCode {
    log::say(why);
    log::flush();
    ExitCode::FAILURE
}

/// Lets the first thread go when the program ends, in whatever way.
struct Released;

impl Drop for Released {
    fn drop(&mut self) {
        set_first_thread(None);
    }
}

fn set_first_thread(sender: Option<mpsc::Sender<Task>>) {
    *FIRST_THREAD.lock().unwrap_or_else(PoisonError::into_inner) = sender;
}

/// Whether the system's first thread only waits for the program, which runs on another one.
pub fn has_first_thread() -> bool {
    FIRST_THREAD.lock().unwrap_or_else(PoisonError::into_inner).is_some()
}

/// Does something on the system's first thread, for what the kernel keeps for each thread. None if the program was not
/// started by [`run`], or if that thread is gone.
pub fn on_first_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let sender = FIRST_THREAD.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
    let (answer, answers) = mpsc::sync_channel(1);
    let task = move || {
        // Whoever asked waits for it.
        let _taken = answer.send(work());
    };
    sender.send(Box::new(task)).ok()?;
    answers.recv().ok()
}
