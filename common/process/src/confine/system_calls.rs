//! System calls that the program needs, and no others: seccomp.
//!
//! What is not needed fails as if the kernel did not have it (`ENOSYS`): the C library knows how to do without what is
//! new. What no mistake explains, to start another program or to look into another process, ends the process, and the
//! kernel's log says so.
//!
//! The filter is run for few calls. The kernel knows of most that they pass whatever their arguments are, and only
//! looks at a bit (since Linux 5.11). So `io_uring_enter`, `read` and `write` have no condition.
//!
//! Operations of io_uring are no system calls. The ring itself is restricted to those that it uses, and [`seal`] takes
//! away the call that could make another ring.

use std::collections::BTreeMap;
use std::process;

use nix::libc;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, apply_filter_all_threads,
};

use super::Layer;

/// What [`seal`] takes away.
const ONLY_AT_THE_START: [(&str, i64); 2] =
    [("io_uring_setup", libc::SYS_io_uring_setup), ("seccomp", libc::SYS_seccomp)];

macro_rules! calls {
    ($($name:ident)*) => { &[$((stringify!($name), libc::$name)),*] };
}

/// Calls that pass whatever their arguments are.
const ALWAYS: &[(&str, i64)] = calls! {
    SYS_read SYS_write SYS_readv SYS_writev SYS_pread64 SYS_pwrite64 SYS_preadv SYS_pwritev SYS_preadv2 SYS_pwritev2
    SYS_openat SYS_openat2 SYS_close SYS_close_range SYS_fstat SYS_newfstatat SYS_statx SYS_statfs SYS_fstatfs
    SYS_lseek SYS_getdents64 SYS_readlinkat SYS_faccessat SYS_faccessat2 SYS_fcntl SYS_flock SYS_ftruncate
    SYS_fallocate SYS_fsync SYS_fdatasync SYS_fadvise64 SYS_mkdirat SYS_unlinkat SYS_linkat SYS_renameat SYS_renameat2
    SYS_fchmod SYS_fchmodat SYS_fchown SYS_fchownat SYS_umask SYS_utimensat SYS_dup SYS_dup3 SYS_pipe2 SYS_getcwd
    SYS_eventfd2 SYS_epoll_create1 SYS_epoll_ctl SYS_epoll_pwait SYS_epoll_pwait2 SYS_ppoll SYS_pselect6
    SYS_timerfd_create SYS_timerfd_settime SYS_timerfd_gettime SYS_ioctl
    SYS_munmap SYS_mremap SYS_madvise SYS_brk SYS_mlock SYS_mlock2 SYS_munlock SYS_mincore SYS_msync SYS_membarrier
    SYS_memfd_create
    SYS_futex SYS_set_robust_list SYS_get_robust_list SYS_rseq SYS_set_tid_address SYS_exit SYS_exit_group
    SYS_sched_yield SYS_sched_setaffinity SYS_sched_getaffinity SYS_sched_getparam SYS_sched_getscheduler
    SYS_sched_get_priority_max SYS_sched_get_priority_min SYS_sched_setscheduler SYS_getpriority SYS_setpriority
    SYS_getcpu
    SYS_gettid SYS_getpid SYS_getppid SYS_rt_sigaction SYS_rt_sigprocmask SYS_rt_sigreturn SYS_rt_sigtimedwait
    SYS_rt_sigpending SYS_rt_sigsuspend SYS_sigaltstack SYS_restart_syscall SYS_nanosleep SYS_clock_nanosleep
    SYS_clock_gettime SYS_clock_getres SYS_gettimeofday SYS_getrandom SYS_getrlimit SYS_setrlimit SYS_prlimit64
    SYS_getrusage SYS_sysinfo SYS_uname SYS_times SYS_getuid SYS_geteuid SYS_getgid SYS_getegid SYS_getgroups
    SYS_getresuid SYS_getresgid SYS_capget SYS_prctl
    SYS_socketpair SYS_bind SYS_listen SYS_accept SYS_accept4 SYS_connect SYS_getsockname SYS_getpeername
    SYS_getsockopt SYS_setsockopt SYS_sendto SYS_recvfrom SYS_sendmsg SYS_recvmsg SYS_sendmmsg SYS_recvmmsg
    SYS_shutdown SYS_io_uring_enter SYS_io_uring_register SYS_io_uring_setup SYS_seccomp
};

/// The same, with older names that not every machine has.
#[cfg(target_arch = "x86_64")]
const ALWAYS_HERE: &[(&str, i64)] = calls! {
    SYS_open SYS_stat SYS_lstat SYS_access SYS_poll SYS_select SYS_epoll_create SYS_epoll_wait SYS_pipe SYS_eventfd
    SYS_readlink SYS_unlink SYS_link SYS_rename SYS_mkdir SYS_chmod SYS_chown SYS_dup2 SYS_getdents SYS_time
    SYS_arch_prctl SYS_getpgrp
};

#[cfg(not(target_arch = "x86_64"))]
const ALWAYS_HERE: &[(&str, i64)] = &[];

/// Calls that no mistake of this program explains: another program, another process, other privileges, another kernel.
const FATAL: &[(&str, i64)] = calls! {
    SYS_execve SYS_execveat SYS_ptrace SYS_process_vm_readv SYS_process_vm_writev SYS_process_madvise SYS_pidfd_getfd
    SYS_kcmp SYS_mount SYS_umount2 SYS_pivot_root SYS_chroot SYS_move_mount SYS_open_tree SYS_fsopen SYS_fsmount
    SYS_mount_setattr SYS_unshare SYS_setns SYS_setuid SYS_setgid SYS_setreuid SYS_setregid SYS_setresuid
    SYS_setresgid SYS_setgroups SYS_setfsuid SYS_setfsgid SYS_init_module SYS_finit_module SYS_delete_module
    SYS_kexec_load SYS_bpf SYS_perf_event_open SYS_userfaultfd SYS_open_by_handle_at SYS_add_key SYS_reboot
    SYS_swapon SYS_swapoff SYS_sethostname SYS_setdomainname SYS_settimeofday SYS_clock_settime SYS_acct SYS_mknodat
};

#[cfg(target_arch = "x86_64")]
const FATAL_HERE: &[(&str, i64)] = calls! { SYS_fork SYS_vfork SYS_ioperm SYS_iopl SYS_modify_ldt };

#[cfg(not(target_arch = "x86_64"))]
const FATAL_HERE: &[(&str, i64)] = &[];

/// What keys may be asked for: their keyring, description, place and content.
const KEY_OPERATIONS: [u32; 4] =
    [libc::KEYCTL_GET_KEYRING_ID, libc::KEYCTL_DESCRIBE, libc::KEYCTL_SEARCH, libc::KEYCTL_READ];

/// The sockets that there may be. Netlink is how the RDMA libraries and mDNS find devices and addresses.
const SOCKET_FAMILIES: [i32; 4] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];

/// The names of the calls that may pass, for tests and people.
pub fn allowed_names() -> impl Iterator<Item = &'static str> {
    let always = ALWAYS.iter().chain(ALWAYS_HERE).map(|(name, _)| name.trim_start_matches("SYS_"));
    always.chain(["clone", "keyctl", "mmap", "mprotect", "socket", "tgkill"])
}

/// Filters the calls of all threads.
pub(super) fn restrict() -> Layer {
    let applied = [fatal(), needed()].into_iter().try_for_each(|program| apply(&program?));
    match applied {
        Ok(()) => Layer::holds("system_calls"),
        Err(error) => Layer::missing("system_calls", error),
    }
}

/// Whether this kernel can filter.
pub(super) fn available() -> Layer {
    const LAYER: &str = "system_calls";
    match (std::fs::exists("/proc/sys/kernel/seccomp"), needed()) {
        (_, Err(error)) => Layer::missing(LAYER, error),
        (Ok(false), _) => Layer::missing(LAYER, "this kernel has no seccomp"),
        _ => Layer::holds(LAYER),
    }
}

/// Takes away what only the start needs, from all threads.
pub(super) fn seal() -> Result<(), String> {
    let rules = ONLY_AT_THE_START.iter().map(|(_, number)| (*number, Vec::new())).collect();
    filter(rules, SeccompAction::Allow, SeccompAction::Errno(libc::EPERM as u32))
        .and_then(|program| apply(&program))
}

fn apply(program: &BpfProgram) -> Result<(), String> {
    apply_filter_all_threads(program).map_err(|error| error.to_string())
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

fn filter(rules: Rules, otherwise: SeccompAction, matching: SeccompAction) -> Result<BpfProgram, String> {
    let program = std::env::consts::ARCH
        .try_into()
        .and_then(|arch| SeccompFilter::new(rules, otherwise, matching, arch))
        .and_then(BpfProgram::try_from);
    program.map_err(|error: BackendError| error.to_string())
}

/// Ends the process for what no mistake explains.
fn fatal() -> Result<BpfProgram, String> {
    let mut rules: Rules = FATAL.iter().chain(FATAL_HERE).map(|(_, number)| (*number, Vec::new())).collect();
    // What `fork` and the start of programs are made of. Threads pass.
    let process = masked(0, libc::CLONE_THREAD as u64, 0).and_then(|one| SeccompRule::new(vec![one]));
    rules.insert(libc::SYS_clone, vec![process.map_err(|error| error.to_string())?]);
    filter(rules, SeccompAction::Allow, SeccompAction::KillProcess)
}

/// Lets through what is needed.
fn needed() -> Result<BpfProgram, String> {
    let rules = needed_rules().map_err(|error| error.to_string())?;
    filter(rules, SeccompAction::Errno(libc::ENOSYS as u32), SeccompAction::Allow)
}

fn needed_rules() -> Result<Rules, BackendError> {
    let mut rules: Rules =
        ALWAYS.iter().chain(ALWAYS_HERE).map(|(_, number)| (*number, Vec::new())).collect();
    let mut add = |number: i64, conditions: Vec<Result<SeccompCondition, BackendError>>| {
        let one = |condition: Result<SeccompCondition, BackendError>| SeccompRule::new(vec![condition?]);
        let alternatives: Result<Vec<SeccompRule>, BackendError> = conditions.into_iter().map(one).collect();
        rules.insert(number, alternatives?);
        Ok::<(), BackendError>(())
    };
    let (write, execute) = (libc::PROT_WRITE as u64, libc::PROT_EXEC as u64);
    // Memory that can be executed is never written: the libraries of RDMA devices are mapped while it runs.
    add(libc::SYS_mmap, vec![masked(2, execute, 0), masked(2, write | execute, execute)])?;
    add(libc::SYS_mprotect, vec![masked(2, execute, 0)])?;
    // `clone3` fails as if it were not there, because its flags cannot be seen; the C library then takes this one.
    let thread = libc::CLONE_THREAD as u64;
    add(libc::SYS_clone, vec![masked(0, thread, thread)])?;
    add(libc::SYS_tgkill, vec![equal(0, u64::from(process::id()))])?;
    let families = SOCKET_FAMILIES.iter().map(|family| equal(0, *family as u64)).collect();
    add(libc::SYS_socket, families)?;
    let operations = KEY_OPERATIONS.iter().map(|one| equal(0, u64::from(*one))).collect();
    add(libc::SYS_keyctl, operations)?;
    Ok(rules)
}

fn equal(argument: u8, value: u64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)
}

fn masked(argument: u8, mask: u64, value: u64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(mask), value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_needed_and_fatal_at_once_and_nothing_is_named_twice() {
        let numbers = |lists: [&[(&str, i64)]; 2]| {
            let mut numbers: Vec<i64> = lists.iter().flat_map(|list| list.iter().map(|one| one.1)).collect();
            let count = numbers.len();
            numbers.sort_unstable();
            numbers.dedup();
            assert_eq!(numbers.len(), count);
            numbers
        };
        let (needed, fatal) = (numbers([ALWAYS, ALWAYS_HERE]), numbers([FATAL, FATAL_HERE]));
        assert!(!needed.iter().any(|number| fatal.contains(number)));
        let later = ONLY_AT_THE_START.iter().all(|(_, number)| needed.contains(number));
        assert!(later, "what is taken away later is there before");
    }

    #[test]
    fn the_filters_are_short_enough_for_the_kernel() {
        let longest = 4096;
        assert!(needed().expect("a filter").len() < longest);
        assert!(fatal().expect("a filter").len() < longest);
    }
}
