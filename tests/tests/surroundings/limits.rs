//! What the system lets a process use: a program that has too little says so, and one that has enough serves.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;

use super::*;

/// Users whom nobody else is, one for each test, for limits that are counted for a user.
const UIDS: [&str; 3] = ["64735", "64736", "64737"];

/// Runs a program under limits to its end, which it has to come to by itself.
fn run(limits: &str, name: &str, arguments: &[&str]) -> Output {
    let limits = limited(limits);
    let mut wraps = vec!["timeout", "--kill-after=5", "30"];
    wraps.extend(limits.iter().map(String::as_str));
    let output = wrapped(&wraps, name, arguments).stdin(Stdio::null()).output().expect("it runs");
    assert_eq!(output.status.signal(), None, "{output:?}");
    assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
    output
}

/// Runs a target that cannot start, and returns what it says.
fn cannot_start(limits: &str) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let subsystem = format!("[[subsystem]]\nnqn = {NQN:?}\nallow_any_host = true\n");
    drop(serve_command(&folder, free_port(), &[], &subsystem));
    let config = folder.path().join("target.toml").display().to_string();
    let output = run(limits, "ringfab-target", &["serve", "--config", &config]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn addresses_that_do_not_suffice_are_a_sentence() {
    // In KiB: from where nothing starts to where all but a little is there.
    for limit in (25_000..=100_000).step_by(5000) {
        let said = cannot_start(&format!("ulimit -v {limit}"));
        assert!(said.contains("LimitAS="), "{limit}: {said}");
    }
    // What is enough does not depend on which thread allocates first.
    let port = free_port();
    let limits = limited("ulimit -v 150000");
    let wraps: Vec<&str> = limits.iter().map(String::as_str).collect();
    let target = target_by(port, &wraps, log_file);
    assert!(serves(port));
    ends_in_order(target);
}

#[test]
fn files_that_cannot_be_written_at_all_end_a_start_without_a_signal() {
    // Its own state is the first that it writes. The sentence goes into a pipe, which has no such limit.
    let said = cannot_start("ulimit -f 0");
    assert!(said.contains("File too large"), "{said}");
}

#[test]
fn a_write_beyond_the_limit_on_files_is_a_status() {
    let image = tempfile::NamedTempFile::new().expect("a file");
    image.as_file().set_len(64 << 20).expect("a size");
    let folder = tempfile::tempdir().expect("a folder");
    let subsystem = format!(
        "[[subsystem]]\nnqn = {NQN:?}\nallow_any_host = true\n[[subsystem.namespace]]\npath = {:?}\n\
         block_bytes = 512\n",
        image.path()
    );
    let port = free_port();
    // In KiB: the first 16 MiB may be written.
    let limits = limited("ulimit -f 16384; export RUST_LOG=debug");
    let wraps: Vec<&str> = limits.iter().map(String::as_str).collect();
    let command = serve_command(&folder, port, &wraps, &subsystem);
    let log = log_file(folder.path());
    let target = Service::start_command(folder, command, log);
    let source = tempfile::NamedTempFile::new().expect("a file");
    source.as_file().set_len(4096).expect("a size");
    let source = source.path().display().to_string();
    let write = |offset: &str| {
        let url = url(port);
        let more = ["--destroy-data", "1", "--length", "4096", "--ctrl-loss-timeout", "5s"];
        ringfab(&[&["write", &url, "--offset", offset, "-i", &source], &more[..]].concat(), Some("debug"))
    };
    assert!(write("1MiB").status.success());
    let refused = write("40MiB");
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(write("2MiB").status.success(), "the target goes on: {}", target.log());
    // As docs/troubleshooting.md says, each end shows the command and its status.
    let errors = String::from_utf8_lossy(&refused.stderr).into_owned();
    let ours = errors.lines().find(|line| line.contains("command failed")).expect("a line");
    for line in [ours, &await_line(&target, "command failed")] {
        assert!(line.contains("DEBUG") && line.contains("command=\"Write\""), "{line}");
        assert!(line.contains("nsid=1 status=\"Capacity Exceeded"), "{line}");
    }
    ends_in_order(target);
}

#[test]
fn the_stack_of_the_first_thread_may_be_small() {
    let port = free_port();
    let limits = limited("ulimit -s 64");
    let wraps: Vec<&str> = limits.iter().map(String::as_str).collect();
    let target = target_by(port, &wraps, log_file);
    let read = run("ulimit -s 64", "ringfab", &["read", &url(port), "--length", "4096"]);
    assert_eq!(read.stdout.len(), 4096, "{read:?}");
    ends_in_order(target);
}

#[test]
fn few_files_are_enough_or_the_lack_is_told_once() {
    let port = free_port();
    // The hard limit, so that it cannot be raised.
    let limits = limited("ulimit -n 64");
    let wraps: Vec<&str> = limits.iter().map(String::as_str).collect();
    let target = target_by(port, &wraps, log_file);
    assert!(serves(port));
    ends_in_order(target);
    let folder = tempfile::tempdir().expect("a folder");
    let subsystem = format!("[[subsystem]]\nnqn = {NQN:?}\nallow_any_host = true\n");
    drop(serve_command(&folder, free_port(), &[], &subsystem));
    let config = folder.path().join("target.toml").display().to_string();
    let said = run("ulimit -n 9", "ringfab-target", &["serve", "--config", &config]);
    let said = String::from_utf8_lossy(&said.stderr);
    assert!(said.contains("Too many open files"), "{said}");
    assert!(said.matches("files are not registered").count() <= 1, "{said}");
}

#[test]
fn the_limit_on_open_files_is_raised_as_far_as_it_may() {
    let port = free_port();
    let limits = limited("ulimit -Sn 64");
    let wraps: Vec<&str> = limits.iter().map(String::as_str).collect();
    let target = target_by(port, &wraps, log_file);
    let text = fs::read_to_string(format!("/proc/{}/limits", target.id())).expect("its limits");
    let line = text.lines().find(|line| line.starts_with("Max open files")).expect("a line");
    let numbers: Vec<&str> = line["Max open files".len()..].split_whitespace().collect();
    assert_eq!(numbers[0], numbers[1], "{line}");
}

/// The programs in a place that any user can reach, and a folder that any user may write to.
struct Ordinary {
    uid: &'static str,
    folder: TempDir,
}

impl Ordinary {
    /// None where this test cannot become another user.
    fn new(uid: &'static str) -> Option<Self> {
        let become_other = Command::new("setpriv").args(["--reuid", uid, "--clear-groups", "true"]).output();
        if !become_other.is_ok_and(|output| output.status.success()) {
            ringfab_tests::not_run("becoming another user takes root and setpriv");
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("permissions");
        for name in ["ringfab-target", "ringfab"] {
            fs::copy(program(name), folder.path().join(name)).expect("a copy");
        }
        Some(Self { uid, folder })
    }

    /// A program as this user under limits.
    fn command(&self, limits: &str, name: &str, arguments: &[&str]) -> Command {
        let path = self.folder.path().join(name).display().to_string();
        let mut command = Command::new("setpriv");
        command.args([
            "--reuid",
            self.uid,
            "--regid",
            self.uid,
            "--clear-groups",
            // In the foreground it passes a signal on once. Otherwise its group gets it, too, and a second one means
            // at once.
            "timeout",
            "--foreground",
            "--kill-after=5",
            "30",
        ]);
        command.args(limited(limits)).arg(path).args(arguments).env("HOME", self.folder.path());
        command
    }

    /// A target that ends by itself, and what it says.
    fn says(&self, limits: &str) -> String {
        let subsystem = format!("[[subsystem]]\nnqn = {NQN:?}\nallow_any_host = true\n");
        drop(serve_command(&self.folder, free_port(), &[], &subsystem));
        let config = self.folder.path().join("target.toml").display().to_string();
        let output = self.command(limits, "ringfab-target", &["serve", "--config", &config]).output();
        let output = output.expect("it runs");
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}

#[test]
fn a_user_who_may_have_no_more_threads_is_told_so() {
    let Some(user) = Ordinary::new(UIDS[0]) else { return };
    // `timeout` is the first process of the user; the program and its threads come to it.
    for threads in 2..=5 {
        let said = user.says(&format!("ulimit -u {threads}"));
        assert!(said.contains("no thread for"), "{threads}: {said}");
        let output =
            user.command(&format!("ulimit -u {threads}"), "ringfab", &["list", &url(free_port())]).output();
        assert_eq!(output.expect("it runs").status.code(), Some(1), "{threads}");
    }
}

#[test]
fn a_user_who_may_lock_little_memory_is_told_once_how_much_is_needed() {
    let Some(user) = Ordinary::new(UIDS[1]) else { return };
    let said = user.says("ulimit -l 0");
    assert!(said.contains("LimitMEMLOCK="), "{said}");
    let port = free_port();
    let subsystem = format!("[[subsystem]]\nnqn = {NQN:?}\nallow_any_host = true\n");
    drop(serve_command(&user.folder, port, &[], &subsystem));
    let config = user.folder.path().join("target.toml").display().to_string();
    let command = user.command("ulimit -l 8192", "ringfab-target", &["serve", "--config", &config]);
    let log = log_file(user.folder.path());
    let target = Service::start_command(user.folder, command, log);
    let line = await_line(&target, "buffers are not registered");
    assert!(line.contains("needed=\"49152 KiB\" limit=\"8192 KiB\""), "{line}");
    assert_eq!(target.log().matches("not registered").count(), 1, "{}", target.log());
    assert!(serves(port));
    // `timeout` passes it on.
    ends_in_order(target);
}

#[test]
fn a_target_that_may_have_no_more_threads_turns_control_requests_away_and_serves() {
    let Some(user) = Ordinary::new(UIDS[2]) else { return };
    let (port, socket) = (free_port(), user.folder.path().join("control"));
    let subsystem = format!("[[subsystem]]\nnqn = {NQN:?}\nallow_any_host = true\n");
    drop(serve_command(&user.folder, port, &[], &subsystem));
    let config = user.folder.path().join("target.toml");
    let text = fs::read_to_string(&config).expect("the configuration");
    fs::write(&config, text.replace("enabled = false", &format!("socket = {socket:?}"))).expect("changed");
    let config = config.display().to_string();
    let command = user.command("true", "ringfab-target", &["serve", "--config", &config]);
    let log = log_file(user.folder.path());
    let target = Service::start_command(user.folder, command, log);
    let socket = socket.display().to_string();
    let ask = || run("true", "ringfab-target", &["status", "--socket", &socket]);
    assert!(ask().status.success(), "{}", target.log());
    // `timeout` has started it.
    let children = format!("/proc/{0}/task/{0}/children", target.id());
    let child = fs::read_to_string(children).expect("its children").trim().to_owned();
    // Who is not the same user may not where not even root may do everything.
    let limit = ["--reuid", user.uid, "--regid", user.uid, "--clear-groups", "prlimit", "--pid", &child];
    let limited = Command::new("setpriv").args(limit).arg("--nproc=1").status();
    assert!(limited.expect("prlimit runs").success());
    let asked = ask();
    assert_eq!(asked.status.code(), Some(1), "{asked:?}");
    let line = await_line(&target, "no control connection");
    assert!(line.contains("WARN") && line.contains("Resource temporarily unavailable"), "{line}");
    assert!(serves(port));
    ends_in_order(target);
}
