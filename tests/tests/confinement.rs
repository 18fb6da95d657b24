//! What is out of reach of whoever takes the target over: an intruder in the service's own process tries it.

use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Output};

use nix::libc::SIGSYS;
use nix::unistd::geteuid;
use ringfab_tests::{Service, free_port, not_run, program};
use serde_json::Value;
use tempfile::TempDir;

/// What the system says to those who may not.
const REFUSED: &str = "Permission denied (os error 13)";
const NOT_PERMITTED: &str = "Operation not permitted (os error 1)";
const NO_SUCH_CALL: &str = "Function not implemented (os error 38)";

/// Everything off.
const OFF: &str =
    "capabilities = false\nfiles = false\nnetwork = false\nprocesses = false\nsystem_calls = false\n";

/// What an intruder in the service is up against, and what is around it.
struct Scene {
    service: TempDir,
    outside: TempDir,
    _listener: TcpListener,
    port: u16,
    _abstract: UnixListener,
    name: String,
}

impl Scene {
    fn new(confinement: &str) -> Self {
        let (service, outside) =
            (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let name = format!("ringfab-test-{}-{port}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("a name");
        let bound = UnixListener::bind_addr(&address).expect("bound");
        std::fs::write(outside.path().join("secret"), "secret").expect("a file");
        let text = config(service.path(), free_port(), confinement);
        std::fs::write(service.path().join("target.toml"), text).expect("a configuration");
        Self { service, outside, _listener: listener, port, _abstract: bound, name }
    }

    fn run(&self, attempts: &[&str]) -> Output {
        let [config, ready] = ["target.toml", "ready"].map(|name| self.service.path().join(name));
        let mut command = Command::new(program("ringfab-confined"));
        command.arg(config).arg(ready).arg(self.outside.path()).args(attempts);
        command.env("RINGFAB_TEST_PORT", self.port.to_string()).env("RINGFAB_TEST_ABSTRACT", &self.name);
        command.output().expect("it runs")
    }

    /// What comes of each attempt, on both threads.
    fn try_all(&self, attempts: &[&str]) -> Vec<String> {
        let output = self.run(attempts);
        let said = String::from_utf8(output.stdout).expect("text");
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{:?}: {said}{log}", output.status);
        assert_eq!(said.lines().count(), 2 * attempts.len(), "{said}{log}");
        let all: Vec<&str> = said.lines().map(|line| line.split_once(": ").expect("an outcome").1).collect();
        let both = all.chunks(2).map(|both| {
            assert_eq!(both[0], both[1], "no thread is less confined: {said}");
            both[0].to_owned()
        });
        both.collect()
    }
}

fn config(folder: &std::path::Path, port: u16, confinement: &str) -> String {
    let [state, socket, disk] = ["state", "control.sock", "disks/disk"].map(|name| folder.join(name));
    std::fs::create_dir_all(folder.join("disks")).expect("a folder");
    std::fs::write(&disk, vec![0; 1 << 20]).expect("a disk");
    format!(
        "[target]\nstate_dir = {state:?}\ncores = 1\n[control]\nsocket = {socket:?}\n\
         [memory]\nlarge_buffers = 32\nsmall_buffers = 32\n[confinement]\n{confinement}\n\
         [[listener]]\naddress = \"127.0.0.1\"\nport = {port}\ntransport = \"tcp\"\n\
         [[subsystem]]\nnqn = \"nqn.2026-11.org.ringfab:a\"\nallow_any_host = true\n\
         [[subsystem.namespace]]\npath = {disk:?}\ndirect = false\nallow_page_cache = true\n"
    )
}

/// Whether this kernel has all that is tried, which others say that they do not have.
fn has_all() -> bool {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("target.toml");
    std::fs::write(&file, config(folder.path(), free_port(), "")).expect("a configuration");
    let output = Command::new(program("ringfab-target")).arg("check").arg(file).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let missing: Vec<&str> = said.lines().filter(|line| line.starts_with("warning: confinement.")).collect();
    if !missing.is_empty() {
        not_run(&format!("the confinement of the target: {}", missing.join(", ")));
    }
    missing.is_empty()
}

#[test]
fn an_intruder_reaches_nothing_that_the_target_does_not_need() {
    if !has_all() {
        return;
    }
    let attempts = ["read", "write", "list", "connect", "listen", "signal", "abstract", "packets", "ring"];
    let found = Scene::new("").try_all(&attempts);
    let ring = found.last().expect("the last").clone();
    let expected = [
        REFUSED,
        REFUSED,
        REFUSED,
        REFUSED,
        REFUSED,
        NO_SUCH_CALL,
        NOT_PERMITTED,
        NO_SUCH_CALL,
        ring.as_str(),
    ];
    assert_eq!(found, expected);
    assert!(ring.contains("Operation not permitted"), "{ring}");
    // The layers do not need each other.
    let alone = Scene::new("system_calls = false\n").try_all(&["signal", "mount", "trace"]);
    assert_eq!(alone, [NOT_PERMITTED; 3]);
    // Without them, all of that is possible, as far as the user may.
    let mut open = Scene::new(OFF).try_all(&attempts);
    if !geteuid().is_root() {
        open.remove(7);
    }
    assert!(open.iter().all(|outcome| outcome == "done"), "{open:?}");
}

#[test]
fn what_no_mistake_explains_ends_the_process() {
    if !has_all() {
        return;
    }
    for attempt in ["execute", "trace", "mount", "become"] {
        let output = Scene::new("").run(&[attempt]);
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.signal(), Some(SIGSYS), "{attempt}: {:?} {said}", output.status);
        assert_eq!(said, "", "{attempt}");
    }
    assert_eq!(Scene::new(OFF).try_all(&["execute"]), ["done"]);
}

#[test]
fn every_thread_of_the_target_is_confined_and_a_change_beyond_it_says_why_it_fails() {
    if !has_all() {
        return;
    }
    let port = free_port();
    let service = Service::start("ringfab-target", |folder| {
        let file = folder.join("target.toml");
        std::fs::write(&file, config(folder, port, "")).expect("a configuration");
        vec!["serve".to_owned(), "--config".to_owned(), file.display().to_string()]
    });
    let ask = |arguments: &[&str]| {
        let mut command = Command::new(program("ringfab-target"));
        command.args(arguments).arg("--socket").arg(service.path("control.sock")).output().expect("it runs")
    };
    let status: Value = serde_json::from_slice(&ask(&["status", "--json"]).stdout).expect("JSON");
    let layers = status["confinement"].as_array().expect("layers");
    assert_eq!(layers.len(), 6);
    assert!(layers.iter().all(|layer| layer["state"] == "holds"), "{layers:?}");
    for task in std::fs::read_dir(format!("/proc/{}/task", service.id())).expect("its threads") {
        let task = task.expect("a thread").path().join("status");
        let text = std::fs::read_to_string(&task).unwrap_or_default();
        let lines = ["NoNewPrivs:\t1\n", "Seccomp:\t2\n", "Seccomp_filters:\t3\n"];
        assert!(text.is_empty() || lines.iter().all(|line| text.contains(line)), "{text}");
    }
    let outside = tempfile::tempdir().expect("a folder");
    let disk = outside.path().join("disk");
    std::fs::write(&disk, vec![0; 1 << 20]).expect("a disk");
    let disk = disk.to_str().expect("UTF-8");
    let refused = |arguments: &[&str], part: &str| {
        let output = ask(arguments);
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && why.contains("the target has confined itself"), "{why}");
        assert!(why.contains(part), "{why}");
    };
    refused(&["namespace", "add", disk, "--page-cache"], "confinement.paths");
    let other = free_port().to_string();
    refused(
        &["listener", "add", "127.0.0.1", "--port", &other, "--transport", "tcp"],
        &format!("`ports = [{other}]` below [confinement]"),
    );
    // One beside the disks that are configured is in reach.
    let beside = service.path("disks/second");
    std::fs::write(&beside, vec![0; 1 << 20]).expect("a disk");
    let added = ask(&["namespace", "add", beside.to_str().expect("UTF-8"), "--page-cache"]);
    assert!(added.status.success(), "{}", String::from_utf8_lossy(&added.stderr));
}
