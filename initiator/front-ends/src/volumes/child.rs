//! Programs that are run: mount, umount, fsck, mkfs, and our own for the steps of a mount.
//!
//! Nobody waits for them without a bound: a program that unmounts a disk whose target is away cannot be killed.

use std::io::{ErrorKind, Read};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::{Pid, getpgrp};

use crate::programs;

/// What is kept of what a program says.
const SAID_BYTES_MAX: u64 = 64 << 10;
/// How long a program that has ended may have left its output to others.
const OUTPUT: Duration = Duration::from_millis(500);
/// How long what was killed may take to go.
const GONE: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(10);

/// A program that runs. Its children belong to it: they end together.
pub(super) struct Running {
    name: String,
    child: Child,
    stdout: Receiver<String>,
    stderr: Receiver<String>,
    begun: Instant,
    /// Its standard input, which ends when this process does.
    _lifeline: Option<ChildStdin>,
}

/// How a program belongs to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bond {
    /// It has a group of its own, so a signal to us is none to it.
    Apart,
    /// It is in the group of who starts it.
    Together,
    /// It has a group of its own, and learns from its standard input when we are gone.
    Lifeline,
}

/// A program that has ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) status: ExitStatus,
    pub(super) stdout: String,
    /// In one line.
    pub(super) stderr: String,
}

impl Running {
    /// Starts a program.
    ///
    /// # Errors
    /// When it cannot be.
    pub(super) fn start(program: &str, arguments: &[&str]) -> Result<Self> {
        let mut command = Command::new(program);
        command.args(arguments);
        Self::start_command(command, Bond::Apart)
    }

    /// Starts a command.
    ///
    /// # Errors
    /// When it cannot be.
    pub(super) fn start_command(mut command: Command, bond: Bond) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        command.env("PATH", programs::search_path()).env("LC_ALL", "C").current_dir("/");
        if bond != Bond::Together {
            command.process_group(0);
        }
        command.stdin(if bond == Bond::Lifeline { Stdio::piped() } else { Stdio::null() });
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = match command.spawn() {
            Err(error) if error.kind() == ErrorKind::NotFound && !name.contains('/') => {
                return Err(anyhow!(programs::missing(&name)));
            }
            spawned => spawned.with_context(|| format!("run {name}"))?,
        };
        let stdout = collect(child.stdout.take());
        let stderr = collect(child.stderr.take());
        let lifeline = child.stdin.take();
        Ok(Self { name, child, stdout, stderr, begun: Instant::now(), _lifeline: lifeline })
    }

    /// What has come of it, if it has ended.
    ///
    /// # Errors
    /// When the system does not say.
    pub(super) fn poll(&mut self) -> Result<Option<Ended>> {
        let Some(status) = self.child.try_wait().with_context(|| format!("wait for {}", self.name))? else {
            return Ok(None);
        };
        let said = |from: &Receiver<String>| from.recv_timeout(OUTPUT).unwrap_or_default();
        let stderr = said(&self.stderr).split_whitespace().collect::<Vec<_>>().join(" ");
        Ok(Some(Ended { status, stdout: said(&self.stdout), stderr }))
    }

    /// Since when it runs.
    pub(super) fn age(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Kills it and what it has started, and waits until they are gone, within a bound.
    pub(super) fn kill(&mut self) {
        let group = Pid::from_raw(self.child.id().cast_signed());
        // They may have ended by now.
        let _ended = killpg(group, Signal::SIGKILL);
        let until = Instant::now() + GONE;
        while Instant::now() < until {
            // What it has started is waited for by the system.
            let ended = self.child.try_wait().is_ok_and(|ended| ended.is_some());
            if ended && killpg(group, None).is_err() {
                return;
            }
            std::thread::sleep(POLL);
        }
    }
}

/// Runs a program for as long as `go_on` says so; it is asked with the time since the start. None when it runs still.
///
/// # Errors
/// When it cannot be run.
pub(super) fn run(
    program: &str,
    arguments: &[&str],
    mut go_on: impl FnMut(Duration) -> bool,
) -> Result<Option<Ended>> {
    let mut running = Running::start(program, arguments)?;
    loop {
        if let Some(ended) = running.poll()? {
            return Ok(Some(ended));
        }
        if !go_on(running.age()) {
            return Ok(None);
        }
        std::thread::sleep(POLL);
    }
}

/// Runs umount(8) as [`run`] does, without its helper: that is this program, and would wait for its caller.
///
/// # Errors
/// When it cannot be run.
pub(super) fn unmount(arguments: &[&str], go_on: impl FnMut(Duration) -> bool) -> Result<Option<Ended>> {
    run("umount", &[&["-i"], arguments].concat(), go_on)
}

/// Runs a program to its end. It ends with the group of this process.
///
/// # Errors
/// When it cannot be run.
pub(super) fn run_to_end(program: &str, arguments: &[&str]) -> Result<Ended> {
    let mut command = Command::new(program);
    command.args(arguments);
    let mut running = Running::start_command(command, Bond::Together)?;
    loop {
        if let Some(ended) = running.poll()? {
            return Ok(ended);
        }
        std::thread::sleep(POLL);
    }
}

/// Has the whole group of this process end when whoever has started it with [`Bond::Lifeline`] is gone.
///
/// # Errors
/// When the system has no thread.
pub(super) fn end_with_parent() -> Result<()> {
    let watch = || {
        let mut byte = [0];
        // Nothing is ever said; the end is all there is.
        let _end = std::io::stdin().read(&mut byte);
        let _ended = killpg(getpgrp(), Signal::SIGKILL);
    };
    std::thread::Builder::new().name("parent".to_owned()).spawn(watch).map(drop).context("start a thread")
}

/// Takes all that is said, so that nobody waits for a reader, and keeps the beginning.
fn collect(from: Option<impl Read + Send + 'static>) -> Receiver<String> {
    let (sender, receiver) = channel();
    let Some(mut from) = from else { return receiver };
    let read = move || {
        let mut said = Vec::new();
        let _begun = from.by_ref().take(SAID_BYTES_MAX).read_to_end(&mut said);
        // Who does not wait any more leaves.
        let _left = sender.send(String::from_utf8_lossy(&said).into_owned());
        let _rest = std::io::copy(&mut from, &mut std::io::sink());
    };
    let started = std::thread::Builder::new().name("output".to_owned()).spawn(read);
    if let Err(error) = started {
        tracing::warn!(%error, "no thread for what a program says");
    }
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_says_what_it_says_and_is_not_waited_for_longer_than_wanted() {
        let ended = run_to_end("sh", &["-c", "echo a; echo b  c >&2; exit 3"]).expect("it runs");
        assert_eq!(
            (ended.status.code(), ended.stdout.as_str(), ended.stderr.as_str()),
            (Some(3), "a\n", "b c")
        );
        assert!(run("sleep", &["5"], |age| age < Duration::from_millis(50)).expect("it runs").is_none());
        let error = run_to_end("no-such-program", &[]).expect_err("it is not there");
        assert!(
            error.to_string().starts_with("there is no program no-such-program on this machine;"),
            "{error}"
        );
        let mut running = Running::start("sh", &["-c", "sleep 60 & sleep 60"]).expect("it runs");
        running.kill();
        assert!(running.poll().expect("its state").is_some(), "it has ended");
        assert!(running.age() < GONE, "and so has what it has started");
    }
}
