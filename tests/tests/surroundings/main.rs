//! The programs among what a system can do to them: a log that nobody takes, signals, limits.

mod limits;
mod links;
mod log;
mod logfmt;
mod refused;
mod signals;

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use ringfab_tests::{NQN, PATIENCE, Service, free_port, program};
use tempfile::TempDir;

/// The namespace is the same one after a restart with another state.
const UUID: &str = "6c2a4c0e-31f5-4c5e-8f5e-6f7f1d8f0a01";
const NGUID: &str = "6c2a4c0e31f54c5e8f5e6f7f1d8f0a02";

/// A target on this port whose program is started by `wraps`, with a namespace in memory and this standard error.
fn target_by(port: u16, wraps: &[&str], log: impl FnOnce(&Path) -> Stdio) -> Service {
    let folder = tempfile::tempdir().expect("a folder");
    let command = serve_command(
        &folder,
        port,
        wraps,
        &format!("[[subsystem]]\nnqn = {NQN:?}\nallow_any_host = true\nserial = \"SURROUNDED\"\n"),
    );
    let log = log(folder.path());
    Service::start_command(folder, command, log)
}

/// An ordinary one, with these subsystems.
fn target(port: u16, subsystems: &str) -> Service {
    let folder = tempfile::tempdir().expect("a folder");
    let command = serve_command(&folder, port, &[], subsystems);
    let log = log_file(folder.path());
    Service::start_command(folder, command, log)
}

fn serve_command(folder: &TempDir, port: u16, wraps: &[&str], subsystems: &str) -> Command {
    let config = folder.path().join("target.toml");
    let text = format!(
        "[target]\nstate_dir = {:?}\ncores = 2\ndrain_timeout_s = 5\n[control]\nenabled = false\n[[listener]]\n\
         address = \"127.0.0.1\"\nport = {port}\ntransport = \"tcp\"\n{subsystems}\
         [[subsystem.namespace]]\nmemory = \"4MiB\"\nblock_bytes = 512\nuuid = {UUID:?}\nnguid = {NGUID:?}\n",
        folder.path().join("state"),
    );
    fs::write(&config, text).expect("a configuration");
    wrapped(wraps, "ringfab-target", &["serve", "--config", &config.display().to_string()])
}

/// A command of a program, started by another one.
fn wrapped(wraps: &[&str], name: &str, arguments: &[&str]) -> Command {
    let program = program(name);
    let mut command = match wraps {
        [] => Command::new(&program),
        [first, rest @ ..] => {
            let mut command = Command::new(first);
            command.args(rest).arg(&program);
            command
        }
    };
    command.args(arguments);
    command
}

/// Limits that a shell sets before it becomes the program.
fn limited(limits: &str) -> [String; 3] {
    ["bash".to_owned(), "-c".to_owned(), format!("{limits}; exec \"$0\" \"$@\"")]
}

fn log_file(folder: &Path) -> Stdio {
    fs::File::create(folder.join("log")).expect("a log").into()
}

fn url(port: u16) -> String {
    format!("nvme+tcp://127.0.0.1:{port}/{NQN}?ns=1")
}

/// A network block device of a target.
fn nbd(port: u16, wraps: &[&str], log: impl FnOnce(&Path) -> Stdio) -> Service {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("socket").display().to_string();
    let arguments = ["nbd", &url(port), "--socket", &socket, "--reconnect-delay", "50ms"];
    let command = wrapped(wraps, "ringfab", &arguments);
    let log = log(folder.path());
    Service::start_command(folder, command, log)
}

/// Whether the network block device answers: it says hello to whoever comes.
fn nbd_answers(service: &Service) -> bool {
    use std::io::Read as _;
    let mut stream = std::os::unix::net::UnixStream::connect(service.path("socket")).expect("connected");
    stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
    let mut hello = [0; 8];
    stream.read_exact(&mut hello).is_ok() && hello == *b"NBDMAGIC"
}

/// Runs the command ringfab and returns what it says.
fn ringfab(arguments: &[&str], filter: Option<&str>) -> Output {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", "30"]).arg(program("ringfab")).args(arguments).stdin(Stdio::null());
    if let Some(filter) = filter {
        command.env("RUST_LOG", filter);
    }
    command.output().expect("timeout runs")
}

/// Whether the target serves: a host attaches and reads.
fn serves(port: u16) -> bool {
    let read = ringfab(&["read", &url(port), "--length", "4096", "--ctrl-loss-timeout", "5s"], None);
    read.status.success() && read.stdout.len() == 4096
}

/// Waits until a log has what is looked for.
fn await_line(service: &Service, what: &str) -> String {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let log = service.log();
        if let Some(line) = log.lines().find(|line| line.contains(what)) {
            return line.to_owned();
        }
        assert!(Instant::now() < deadline, "no line has {what:?}: {log}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Ends a service as a service manager does, and expects that it ends in order.
fn ends_in_order(mut service: Service) {
    service.signal("TERM");
    let status = service.wait(PATIENCE);
    assert!(status.success(), "{status}: {}", service.log());
}
