//! A program of the project that serves until it is told to end.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::program::program;

/// No wait of a test is longer.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until something is so.
///
/// # Panics
/// When it is not within [`PATIENCE`].
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// How long a log must stay as it is to be taken for complete, and how often that is tried.
const MOMENT: Duration = Duration::from_millis(20);
const LOOKS_MAX: u32 = 10;

/// A running service with a folder of its own. Dropping it ends it, by force if need be.
#[derive(Debug)]
pub struct Service {
    child: Child,
    folder: TempDir,
}

impl Service {
    /// Starts a program and waits until it says, by its ready file, that it serves. The arguments are made from the
    /// service's folder.
    ///
    /// # Panics
    /// When it does not get ready in time; its standard error is in the message.
    pub fn start(name: &str, arguments: impl FnOnce(&Path) -> Vec<String>) -> Self {
        Self::start_with(name, arguments, &[])
    }

    /// The same with additions to its environment.
    ///
    /// # Panics
    /// As [`Service::start`].
    pub fn start_with(
        name: &str,
        arguments: impl FnOnce(&Path) -> Vec<String>,
        environment: &[(&str, &Path)],
    ) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = Command::new(program(name));
        command.args(arguments(folder.path())).envs(environment.iter().copied());
        let log = fs::File::create(folder.path().join("log")).expect("a log");
        Self::start_command(folder, command, log.into())
    }

    /// Starts a command, whose last argument says what the program shall do in this folder, with a standard error of
    /// the caller's. Waits as [`Service::start`] does.
    ///
    /// # Panics
    /// As [`Service::start`].
    pub fn start_command(folder: TempDir, mut command: Command, log: Stdio) -> Self {
        let ready = folder.path().join("ready");
        let name = format!("{command:?}");
        command.arg("--ready-file").arg(&ready).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child = command.spawn().expect("the program starts");
        let mut this = Self { child, folder };
        let deadline = Instant::now() + PATIENCE;
        while !ready.exists() {
            let ended = this.child.try_wait().expect("its state");
            assert!(ended.is_none(), "{name} has ended: {}", this.log());
            assert!(Instant::now() < deadline, "{name} did not get ready: {}", this.log());
            std::thread::sleep(Duration::from_millis(10));
        }
        this
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// A path in the service's folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs a command of `ringfab-target` on the control socket in the service's folder.
    ///
    /// # Panics
    /// When it does not run at all.
    pub fn control(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("it runs")
    }

    /// Such a command, to be run by the caller.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(program("ringfab-target"));
        command.args(arguments).arg("--socket").arg(self.path("control.sock"));
        command
    }

    /// What such a command prints.
    ///
    /// # Panics
    /// When it fails.
    pub fn ask(&self, arguments: &[&str]) -> String {
        let output = self.control(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    }

    /// What its ready file says.
    ///
    /// # Panics
    /// When it is gone.
    pub fn ready(&self) -> String {
        fs::read_to_string(self.path("ready")).expect("the ready file").trim().to_owned()
    }

    /// Its standard error, once it has written nothing for a moment: a thread of its own writes what is logged, a
    /// little after whatever it is about.
    pub fn log(&self) -> String {
        let read = || fs::read_to_string(self.path("log")).unwrap_or_default();
        let mut log = read();
        for _ in 0..LOOKS_MAX {
            // Between two looks, which have to be the same.
            std::thread::sleep(MOMENT);
            let before = std::mem::replace(&mut log, read());
            if before == log {
                break;
            }
        }
        log
    }

    /// Sends a signal by its name, for instance `TERM`.
    ///
    /// # Panics
    /// When there is no command kill.
    pub fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").arg(format!("-{name}")).arg(pid).status().expect("kill runs");
        assert!(sent.success(), "the service is there to be told");
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// When it does not end within `limit`.
    pub fn wait(&mut self, limit: Duration) -> ExitStatus {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait().expect("its state") {
                return status;
            }
            assert!(Instant::now() < deadline, "it did not end within {limit:?}: {}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Kills it without a warning, and waits for that.
    ///
    /// # Panics
    /// When the kernel does not.
    pub fn kill(&mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("ended");
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.signal("TERM");
            let deadline = Instant::now() + PATIENCE;
            while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        // It is an error that it has ended already, and that is what was wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a command and fails when it fails, or when it takes longer than `seconds`.
///
/// # Panics
/// As said; with all its output.
pub fn run_bounded(seconds: u32, program: &str, arguments: &[&str]) -> String {
    let output = Command::new("timeout")
        .args(["--kill-after=5", &seconds.to_string(), program])
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("timeout runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {}\n{text}\n{errors}", output.status);
    text
}

/// Whether a command can be started.
pub fn have(program: &str) -> bool {
    let found = Command::new("sh").args(["-c", "command -v \"$0\" >/dev/null", program]).status();
    found.is_ok_and(|status| status.success())
}

/// Starts `ringfab-target` on `port` with one namespace on `image`.
///
/// # Panics
/// When it does not get ready.
pub fn file_target(port: u16, image: &Path) -> Service {
    file_target_with(port, image, Caching::Page)
}

/// Whether a file goes through the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caching {
    /// It does.
    Page,
    /// It does not (`O_DIRECT`).
    Direct,
}

/// As [`file_target`], with or without the page cache. A drain takes five seconds at most.
///
/// # Panics
/// When it does not get ready.
pub fn file_target_with(port: u16, image: &Path, caching: Caching) -> Service {
    let (direct, cached) = (caching == Caching::Direct, caching == Caching::Page);
    Service::start("ringfab-target", |folder| {
        let config = folder.join("target.toml");
        let text = format!(
            "[target]\nstate_dir = {:?}\ncores = 1\ndrain_timeout_s = 5\n[[listener]]\naddress = \"127.0.0.1\"\n\
             port = {port}\n[[subsystem]]\nnqn = {:?}\nallow_any_host = true\n\
             [[subsystem.namespace]]\npath = {image:?}\nblock_bytes = 512\ndirect = {direct}\n\
             allow_page_cache = {cached}\n",
            image.with_extension("state"),
            crate::NQN
        );
        fs::write(&config, text).expect("a configuration");
        vec!["serve".to_owned(), "--config".to_owned(), config.display().to_string()]
    })
}
