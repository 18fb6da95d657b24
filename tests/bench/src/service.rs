//! Processes that serve while others measure them.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, SysconfVar, sysconf};

use crate::place::on_core;

/// No start and no end may take longer.
const PATIENCE: Duration = Duration::from_secs(20);

/// A process that runs until this is dropped.
pub(crate) struct Service {
    child: Child,
    name: String,
}

impl Service {
    /// Starts a process, on one core or where the scheduler likes, with its errors in a file, and waits until `ready`.
    pub(crate) fn start(
        mut command: Command,
        core: Option<usize>,
        log: &Path,
        mut ready: impl FnMut() -> bool,
    ) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let errors = fs::File::create(log).context("a log")?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors);
        let mut spawn = || command.spawn().with_context(|| format!("start {name}"));
        let child = match core {
            Some(core) => on_core(core, spawn)?,
            None => spawn()?,
        };
        let mut this = Self { child, name };
        let deadline = Instant::now() + PATIENCE;
        while !ready() {
            if this.child.try_wait()?.is_some() || Instant::now() > deadline {
                let said = fs::read_to_string(log).unwrap_or_default();
                bail!("{} did not get ready: {}", this.name, said.trim());
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(this)
    }

    /// Its process identifier.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal)
            .with_context(|| format!("{signal} to {}", self.name))
    }

    /// Processor time so far.
    pub(crate) fn cpu(&self) -> Result<CpuTime> {
        CpuTime::of(self.child.id())
    }

    /// Time that its threads have run so far, finer than [`Service::cpu`] and of both modes together.
    pub(crate) fn run_time(&self) -> Result<Duration> {
        let mut nanos = 0;
        for task in fs::read_dir(format!("/proc/{}/task", self.child.id())).context("the process runs")? {
            let text = fs::read_to_string(task?.path().join("schedstat")).context("a thread's times")?;
            nanos += first_number(&text).context("a thread's times")?;
        }
        Ok(Duration::from_nanos(nanos))
    }

    /// Resident memory in KiB.
    pub(crate) fn resident_kib(&self) -> Result<u64> {
        let path = format!("/proc/{}/status", self.child.id());
        let status = fs::read_to_string(path).context("the process runs")?;
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")).and_then(first_number).context("VmRSS")
    }
}

impl Drop for Service {
    /// Politely, if need be after it goes on, then by force.
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _gone = self.signal(Signal::SIGTERM).and_then(|()| self.signal(Signal::SIGCONT));
        }
        let deadline = Instant::now() + PATIENCE;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
        }
        let _gone = self.child.kill();
        let _status = self.child.wait();
    }
}

/// Processor time of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct CpuTime {
    pub(crate) user_s: f64,
    pub(crate) system_s: f64,
}

impl CpuTime {
    /// Of a process that runs.
    pub(crate) fn of(pid: u32) -> Result<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).context("the process runs")?;
        let per_second = sysconf(SysconfVar::CLK_TCK)?.context("the length of a clock tick")?;
        let (user, system) = ticks(&stat).context("two numbers of ticks")?;
        Ok(Self { user_s: user as f64 / per_second as f64, system_s: system as f64 / per_second as f64 })
    }

    /// Since an earlier look.
    pub(crate) fn since(self, earlier: Self) -> Self {
        Self { user_s: self.user_s - earlier.user_s, system_s: self.system_s - earlier.system_s }
    }
}

/// User and system time, fields 14 and 15 of proc(5)'s stat. The name before them may contain anything.
fn ticks(stat: &str) -> Option<(u64, u64)> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

fn first_number(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_found_behind_any_name() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 100 0 0 0 123 45 0 0 20 0 1 0 99 1000 10";
        assert_eq!(ticks(stat), Some((123, 45)));
        assert_eq!(ticks("7 (a) S 1"), None);
    }

    #[test]
    fn a_process_has_memory_and_time() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = Command::new("sleep");
        command.arg("60");
        let service = Service::start(command, None, &folder.path().join("log"), || true).expect("it runs");
        let kib = service.resident_kib().expect("a size");
        assert!((1..1 << 20).contains(&kib), "{kib}");
        assert!(service.run_time().expect("a time") < PATIENCE);
    }

    #[test]
    fn a_process_that_ends_before_it_is_ready_is_an_error_with_what_it_said() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = Command::new("sh");
        command.args(["-c", "echo no such thing >&2"]);
        let started = Service::start(command, None, &folder.path().join("log"), || false);
        let error = started.err().expect("it ends").to_string();
        assert!(error.contains("no such thing"), "{error}");
    }
}
