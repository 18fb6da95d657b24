//! The lowest priority.

use std::io;

/// Lets the calling thread run only where a processor would be idle. It gives way to any other thread at once, which no
/// nice value does: the scheduler lets a thread that runs have a part of its slice first. So it may not hold what others
/// wait for.
///
/// See sched(7), `SCHED_IDLE`.
///
/// # Errors
/// `EPERM` where a filter of system calls forbids it.
pub fn run_when_idle() -> io::Result<()> {
    let parameter = libc::sched_param { sched_priority: 0 };
    // SAFETY: the kernel reads the parameter during the call. Thread 0 is the calling one.
    let set = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameter) };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_runs_when_idle_and_no_other_one_with_it() {
        // SAFETY: no memory is passed.
        let policy = || unsafe { libc::sched_getscheduler(0) };
        let before = policy();
        let of_thread = std::thread::spawn(move || run_when_idle().map(|()| policy()));
        assert_eq!(of_thread.join().expect("a thread").expect("allowed"), libc::SCHED_IDLE);
        assert_eq!(policy(), before);
    }
}
