//! Binding a thread to a core.

use std::io;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

/// Lets the calling thread run on `core` only, counted from zero as the kernel does.
///
/// # Errors
/// `EINVAL` for a core that does not exist, is offline, or is not allowed to this process.
pub fn pin_current_thread(core: usize) -> io::Result<()> {
    let mut cores = CpuSet::new();
    cores.set(core)?;
    Ok(sched_setaffinity(Pid::from_raw(0), &cores)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_pinned_to_a_core_that_exists_and_to_no_other() {
        std::thread::spawn(|| {
            let allowed = nix::sched::sched_getaffinity(Pid::from_raw(0)).expect("this thread's cores");
            let core = (0..CpuSet::count())
                .rfind(|core| allowed.is_set(*core).expect("a number in range"))
                .expect("it runs somewhere");
            pin_current_thread(core).expect("an allowed core");
            let now = nix::sched::sched_getaffinity(Pid::from_raw(0)).expect("this thread's cores");
            let cores = (0..CpuSet::count()).filter(|core| now.is_set(*core).expect("a number in range"));
            assert_eq!(cores.collect::<Vec<_>>(), [core]);
            assert!(pin_current_thread(CpuSet::count() - 1).is_err());
            assert!(pin_current_thread(usize::MAX).is_err());
        })
        .join()
        .expect("the pinned thread");
    }
}
