//! Mounts that only one test sees.
//!
//! A test that mounts something and another that makes a mount namespace run at the same time, perhaps in two programs.
//! The new namespace has a copy of every mount that it finds, and what is mounted in it stays in use for as long as the
//! namespace is there. So whatever mounts does it out of the others' sight.

use std::cell::Cell;
use std::fs;
use std::path::Path;

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

thread_local! {
    static HAS_ITS_OWN: Cell<bool> = const { Cell::new(false) };
}

/// Gives this thread, and the threads and processes that it starts from now on, a mount namespace of its own, once.
/// Without the right to do so nothing changes.
///
/// # Panics
/// When the namespace is there and cannot be made private.
pub fn own_mounts() {
    if HAS_ITS_OWN.replace(true) {
        return;
    }
    match unshare(CloneFlags::CLONE_NEWNS) {
        Ok(()) => {
            let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
            mount(None::<&str>, "/", None::<&str>, private, None::<&str>).expect("the mounts become private");
        }
        Err(Errno::EPERM) => (),
        Err(error) => panic!("unshare: {error}"),
    }
}

/// What this thread sees mounted, as `/proc/PID/mountinfo` says it: proc(5).
///
/// # Panics
/// Without `/proc`.
pub fn mountinfo() -> String {
    // `/proc/self` tells of the process's first thread.
    fs::read_to_string("/proc/thread-self/mountinfo").expect("the mounts")
}

/// Whether something is mounted on a directory, as this thread sees it.
///
/// # Panics
/// Without `/proc`.
pub fn is_mounted(directory: &Path) -> bool {
    mountinfo().lines().any(|line| line.split(' ').nth(4) == directory.to_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_test_mounts_is_in_no_namespace_that_another_makes() {
        if !nix::unistd::geteuid().is_root() {
            return crate::not_run("mounts of a test's own: only root may mount");
        }
        let folder = tempfile::tempdir().expect("a folder");
        let place = folder.path();
        std::thread::scope(|scope| {
            let mounts = || {
                own_mounts();
                crate::run_bounded(20, "mount", &["-t", "tmpfs", "none", &place.display().to_string()]);
                own_mounts();
                assert!(is_mounted(place), "a thread has one namespace, however often it asks");
            };
            let mounted = scope.spawn(mounts);
            mounted.join().expect("mounted");
            assert!(!is_mounted(place), "this thread has another namespace");
        });
    }
}
