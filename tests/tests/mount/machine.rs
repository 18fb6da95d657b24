//! A machine for mounts: a folder with directories to mount on, entries of its own, and an end that leaves nothing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use ringfab_tests::{have, mountinfo, not_run, own_mounts, program, wait_until};
use serde_json::Value;
use tempfile::TempDir;

/// Longer than any command of these tests may take.
const SECONDS_MAX: &str = "90";

/// Where mounts are made, and what has them.
pub(crate) struct Machine {
    folder: TempDir,
}

/// How a command has ended.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Machine {
    /// None, which is said, where this user cannot mount.
    pub(crate) fn new(what: &str) -> Option<Self> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/can-loop.sh");
        let can_loop = Command::new(script).status().is_ok_and(|status| status.success());
        let reason = match () {
            () if !Path::new("/dev/fuse").exists() => "there is no /dev/fuse",
            () if !can_loop => "this user has no loop devices",
            () if !have("mkfs.ext4") && !Path::new("/usr/sbin/mkfs.ext4").exists() => "there is no mkfs.ext4",
            () => {
                own_mounts();
                let folder = tempfile::tempdir().expect("a folder");
                for name in ["a", "b", "run"] {
                    fs::create_dir(folder.path().join(name)).expect("a directory");
                }
                let private = std::os::unix::fs::PermissionsExt::from_mode(0o700);
                fs::set_permissions(folder.path().join("run"), private).expect("a private folder");
                return Some(Self { folder });
            }
        };
        not_run(&format!("{what}: {reason}"));
        None
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// A command of `ringfab` that uses this machine's entries and volumes.
    pub(crate) fn command(&self, program_name: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", SECONDS_MAX]).arg(program_name).args(arguments);
        self.in_environment(&mut command);
        command.stdin(Stdio::null());
        command
    }

    pub(crate) fn in_environment(&self, command: &mut Command) {
        command.env("RINGFAB_RUNTIME_DIRECTORY", self.path("run"));
        command.env("RINGFAB_VOLUMES", self.path("volumes.toml"));
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Said {
        Said::of(&self.command(&program("ringfab"), arguments).output().expect("it runs"))
    }

    /// Runs it, and it succeeds.
    pub(crate) fn ok(&self, arguments: &[&str]) -> String {
        let said = self.run(arguments);
        assert_eq!(said.code, Some(0), "{arguments:?}: {said:?}");
        said.stdout
    }

    /// Runs it, and it fails with these words, and leaves nothing.
    pub(crate) fn fails(&self, arguments: &[&str], words: &str) {
        let said = self.run(arguments);
        assert!(said.code != Some(0) && said.stderr.contains(words), "{arguments:?}: {words}: {said:?}");
    }

    /// What is attached.
    pub(crate) fn list(&self) -> Vec<Value> {
        let text = self.ok(&["list", "--json"]);
        let value: Value = serde_json::from_str(&text).expect("JSON");
        value["attached"].as_array().expect("a list").clone()
    }

    /// The only thing that is attached.
    pub(crate) fn only(&self) -> Value {
        let mut list = self.list();
        assert_eq!(list.len(), 1, "{list:?}");
        list.remove(0)
    }

    pub(crate) fn kill_keeper(&self) {
        let keeper = self.only()["pid"].as_i64().expect("a process");
        kill(Pid::from_raw(keeper as i32), Signal::SIGKILL).expect("killed");
        wait_until("it is killed", || !Path::new(&format!("/proc/{keeper}/fd")).exists() || is_dead(keeper));
        // The last of its threads lets go of its entry, if it has one yet.
        wait_until("it is known to be dead", || self.list().iter().all(|entry| entry["state"] == "dead"));
    }

    /// The processes that use this machine's entries, also those that have no entry yet.
    pub(crate) fn processes(&self) -> Vec<i64> {
        let processes = fs::read_dir("/proc").expect("processes").flatten();
        let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter(|pid| self.is_ours(*pid) && !is_dead(*pid)).collect()
    }

    fn is_ours(&self, pid: i64) -> bool {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        String::from_utf8_lossy(&environment).contains(&self.text("run"))
    }

    /// The mounts below this machine's folder: place, kind, source.
    pub(crate) fn mounts(&self) -> Vec<(PathBuf, String, String)> {
        let text = mountinfo();
        let mount = |line: &str| {
            let fields: Vec<&str> = line.split(' ').collect();
            let after = fields.iter().position(|field| *field == "-")?;
            Some((PathBuf::from(fields[4]), fields[after + 1].to_owned(), fields[after + 2].to_owned()))
        };
        text.lines().filter_map(mount).filter(|mount| mount.0.starts_with(self.folder.path())).collect()
    }

    /// Loop devices with a file of this machine.
    pub(crate) fn loops(&self) -> Vec<String> {
        let entries = fs::read_dir("/sys/block").expect("block devices").flatten();
        let names = entries.map(|entry| entry.file_name().into_string().expect("text"));
        let file = |name: &String| fs::read_to_string(format!("/sys/block/{name}/loop/backing_file"));
        names
            .filter(|name| file(name).is_ok_and(|file| Path::new(&file).starts_with(self.folder.path())))
            .collect()
    }

    /// Nothing is mounted, attached or noted.
    pub(crate) fn is_clean(&self) -> bool {
        let run = fs::read_dir(self.path("run")).expect("a folder").flatten();
        let notes = run.filter(|entry| entry.path().extension().is_none_or(|extension| extension != "log"));
        self.mounts().is_empty() && self.loops().is_empty() && notes.count() == 0
    }

    #[track_caller]
    pub(crate) fn assert_clean(&self) {
        let run: Vec<_> = fs::read_dir(self.path("run")).expect("a folder").flatten().collect();
        assert!(self.is_clean(), "{:?} {:?} {run:?}", self.mounts(), self.loops());
    }
}

fn is_dead(pid: i64) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.is_empty() || stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with(['Z', 'X']))
}

impl Said {
    pub(crate) fn of(output: &Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Drop for Machine {
    /// Ends what a failed test has left: keepers first, so that nothing waits for a target that is away.
    fn drop(&mut self) {
        for entry in fs::read_dir(self.path("run")).into_iter().flatten().flatten() {
            let text = fs::read_to_string(entry.path()).unwrap_or_default();
            let pid = serde_json::from_str::<Value>(&text).ok().and_then(|entry| entry["pid"].as_i64());
            if let Some(pid) = pid.filter(|pid| self.is_ours(*pid)) {
                // It may have ended by now.
                let _ended = kill(Pid::from_raw(pid as i32), Signal::SIGKILL);
            }
        }
        for _ in 0..20 {
            let mounts = self.mounts();
            for (at, ..) in mounts.iter().rev() {
                let _tried = Command::new("umount").arg("-l").arg(at).stderr(Stdio::null()).status();
            }
            for device in self.loops() {
                let _tried = Command::new("losetup").args(["-d", &format!("/dev/{device}")]).status();
            }
            if mounts.is_empty() && self.loops().is_empty() {
                return;
            }
            // Who still uses one may be about to end.
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}
