//! What our programs do about each signal whose default would end them.
//!
//! All signals of [`TABLE`] have handlers, and the masks that a parent may have left are cleared. A program that one of
//! ours starts has the defaults again, as the system does with handlers.

use std::fs;
use std::io;
use std::thread;

use nix::libc;
use nix::sys::signal::SigSet;
use signal_hook::iterator::Signals;

use crate::log;

/// What is done about a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The program is told to end.
    End,
    /// The program is told that its terminal has gone, or that its configuration has changed.
    HangUp,
    /// A line in the log says that something has come to a limit; what met it has a status of its own.
    Warn,
    /// Nothing, but a line for those who look for it.
    Ignore,
}

/// A signal, and what is done about it.
#[derive(Clone, Copy, Debug)]
pub struct Decision {
    /// Its number.
    pub signal: i32,
    /// Its name.
    pub name: &'static str,
    /// What is done.
    pub action: Action,
    /// Why, and what [`Action::Warn`] says.
    pub why: &'static str,
}

const fn decision(signal: i32, name: &'static str, action: Action, why: &'static str) -> Decision {
    Decision { signal, name, action, why }
}

/// Each signal that ends a process by default and can be caught. Not in it are SIGILL, SIGFPE, SIGSEGV, SIGBUS,
/// SIGTRAP, SIGSYS and SIGABRT, which say that the program is broken; SIGQUIT, by which people ask for the core file of
/// a program that hangs; SIGPIPE, which is ignored before `main`, so that a write says EPIPE; and the real-time
/// signals, which are ignored as SIGUSR1 is.
pub const TABLE: [Decision; 15] = [
    decision(libc::SIGTERM, "SIGTERM", Action::End, "asks for the end"),
    decision(libc::SIGINT, "SIGINT", Action::End, "is ctrl-C"),
    decision(libc::SIGHUP, "SIGHUP", Action::HangUp, "a terminal has gone, or a reload is asked for"),
    decision(
        libc::SIGXFSZ,
        "SIGXFSZ",
        Action::Warn,
        "a file has come to the limit on the size of files (ulimit -f, LimitFSIZE=)",
    ),
    decision(
        libc::SIGXCPU,
        "SIGXCPU",
        Action::Warn,
        "the limit on processor time is reached (ulimit -t, LimitCPU=); the kernel ends the process at the hard limit",
    ),
    decision(libc::SIGPWR, "SIGPWR", Action::Warn, "the power is about to fail, says the system"),
    decision(
        libc::SIGUSR1,
        "SIGUSR1",
        Action::Ignore,
        "means nothing to us, and must not end a service by a slip",
    ),
    decision(libc::SIGUSR2, "SIGUSR2", Action::Ignore, "as SIGUSR1"),
    decision(
        libc::SIGALRM,
        "SIGALRM",
        Action::Ignore,
        "no timer of ours sends it; one that was set before exec may",
    ),
    decision(libc::SIGVTALRM, "SIGVTALRM", Action::Ignore, "as SIGALRM"),
    decision(libc::SIGPROF, "SIGPROF", Action::Ignore, "as SIGALRM: what a profiler leaves behind"),
    decision(
        libc::SIGIO,
        "SIGIO",
        Action::Ignore,
        "no descriptor of ours asks for it (SIGPOLL); an inherited one may",
    ),
    decision(libc::SIGSTKFLT, "SIGSTKFLT", Action::Ignore, "no kernel sends it"),
    decision(libc::SIGURG, "SIGURG", Action::Ignore, "is ignored by default; named so that it stays so"),
    decision(
        libc::SIGCHLD,
        "SIGCHLD",
        Action::Ignore,
        "is ignored by default; a parent that ignores it makes waiting for a child fail",
    ),
];

/// What the program is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalEvent {
    /// It shall end; the signal's name says why.
    End(&'static str),
    /// SIGHUP, unless whoever started the program has had it ignored (`nohup`).
    HangUp,
}

/// Takes the signals over, and tells `on_signal` in a thread of its own about those that the program has to act on.
///
/// # Errors
/// When the system has no handler or no thread.
pub fn listen(mut on_signal: impl FnMut(SignalEvent) + Send + 'static) -> io::Result<()> {
    let nohup = is_ignored(libc::SIGHUP);
    let real_time = libc::SIGRTMIN()..=libc::SIGRTMAX();
    let mut signals = Signals::new(TABLE.iter().map(|decision| decision.signal).chain(real_time))?;
    // After the handlers are there: what waited behind the mask comes now.
    SigSet::empty().thread_set_mask()?;
    let listening = move || {
        for signal in signals.forever() {
            let decision = TABLE.iter().find(|decision| decision.signal == signal);
            match decision.map(|decision| (decision.action, decision)) {
                Some((Action::End, decision)) => on_signal(SignalEvent::End(decision.name)),
                Some((Action::HangUp, _)) if !nohup => on_signal(SignalEvent::HangUp),
                Some((Action::Warn, decision)) => tracing::warn!(signal = decision.name, "{}", decision.why),
                Some((Action::HangUp | Action::Ignore, decision)) => {
                    tracing::debug!(signal = decision.name, "ignored");
                }
                None => tracing::debug!(signal, "ignored"),
            }
        }
    };
    let started = thread::Builder::new().name("signals".to_owned()).spawn(listening);
    started.map(|_| ()).map_err(|error| {
        io::Error::new(
            error.kind(),
            format!("the system has no thread for them (ulimit -u, TasksMax=): {error}"),
        )
    })
}

/// Lets all signals through to the thread that calls it, whatever mask the process was started with.
///
/// # Errors
/// None that the system has for this.
pub fn clear_mask() -> io::Result<()> {
    SigSet::empty().thread_set_mask().map_err(io::Error::from)
}

/// Ends the process as SIGPIPE ends one by default: quietly, and whoever started it sees the signal. It is for a
/// program whose reader has gone (`ringfab list | head -1`). What was logged is written first, within a bound.
pub fn end_without_reader() -> ! {
    log::flush();
    // It does not return, unless the system refuses to end the process.
    let _refused = signal_hook::low_level::emulate_default_handler(libc::SIGPIPE);
    std::process::exit(128 + libc::SIGPIPE)
}

/// Whether a signal is ignored, as it was when the program began.
fn is_ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_signal_of_the_system_is_decided() {
        let of_a_broken_program = [
            libc::SIGILL,
            libc::SIGFPE,
            libc::SIGSEGV,
            libc::SIGBUS,
            libc::SIGTRAP,
            libc::SIGSYS,
            libc::SIGABRT,
        ];
        let stop_and_go = [libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU, libc::SIGCONT];
        let others = [libc::SIGKILL, libc::SIGQUIT, libc::SIGPIPE, libc::SIGWINCH];
        let decided = TABLE.iter().map(|decision| decision.signal);
        let all: BTreeSet<i32> =
            of_a_broken_program.into_iter().chain(stop_and_go).chain(others).chain(decided).collect();
        assert_eq!(all.into_iter().collect::<Vec<_>>(), (1..32).collect::<Vec<_>>());
    }

    #[test]
    fn no_signal_is_decided_twice() {
        let numbers: BTreeSet<i32> = TABLE.iter().map(|decision| decision.signal).collect();
        assert_eq!(numbers.len(), TABLE.len());
    }

    #[test]
    fn a_signal_that_the_system_ignores_is_known() {
        // The standard library has it ignored before `main`.
        assert!(is_ignored(libc::SIGPIPE));
        assert!(!is_ignored(libc::SIGTERM));
    }
}
