//! What earlier runs left behind, and mounts that somebody uses.

use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use ringfab_tests::{Service, TestTarget, is_mounted, not_run, own_mounts, program};

const MEMORY: &str = "[[subsystem.namespace]]\nmemory = \"16MiB\"\nblock_bytes = 512\n";
const PATIENCE: Duration = Duration::from_secs(15);

fn can_mount() -> bool {
    let can = File::open("/dev/fuse").is_ok() && nix::unistd::geteuid().is_root();
    if !can {
        not_run("ringfab fuse: there is no /dev/fuse, or no right to mount");
    }
    own_mounts();
    can
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn fuse(target: &TestTarget, directory: &Path) -> Service {
    let url = target.url("").to_string();
    Service::start("ringfab", |_| {
        words(&["fuse", &url, &directory.display().to_string(), "--io-uring", "never"])
    })
}

/// A run that is expected to end at once.
fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", "20"]).arg(program("ringfab")).args(arguments).stdin(Stdio::null());
    command.output().expect("it runs")
}

/// Waits until a service has said something.
fn says(service: &Service, text: &str) {
    let deadline = Instant::now() + PATIENCE;
    while !service.log().contains(text) {
        assert!(Instant::now() < deadline, "it does not say `{text}`: {}", service.log());
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_mount_whose_server_died_is_taken_away_and_a_living_one_is_left_alone() {
    if !can_mount() {
        return;
    }
    let target = TestTarget::start(MEMORY);
    let folder = tempfile::tempdir().expect("a folder");
    let mut killed = fuse(&target, folder.path());
    killed.kill();
    assert!(is_mounted(folder.path()) && folder.path().metadata().is_err(), "it is stale");
    let mut service = fuse(&target, folder.path());
    assert!(service.log().contains("removed a mount whose server had died"), "{}", service.log());
    assert!(folder.path().join("ns1").exists());
    let refused = run(&["fuse", &target.url("").to_string(), &folder.path().display().to_string()]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(1) && said.contains("is served already"), "{said}");
    assert!(folder.path().join("ns1").exists(), "and it still is");
    service.signal("INT");
    assert_eq!(service.wait(PATIENCE).code(), Some(0), "{}", service.log());
    assert!(!is_mounted(folder.path()));
}

#[test]
fn ctrl_c_of_a_mount_in_use_says_who_uses_it_and_serves_on_until_it_is_free() {
    if !can_mount() {
        return;
    }
    let target = TestTarget::start(MEMORY);
    let folder = tempfile::tempdir().expect("a folder");
    let mut service = fuse(&target, folder.path());
    let disk = File::open(folder.path().join("ns1")).expect("opened");
    service.signal("INT");
    says(&service, "another ctrl-C detaches it");
    let holder = format!("process {} (", std::process::id());
    assert!(service.log().contains(&holder), "{}", service.log());
    // It must be seen to stay.
    std::thread::sleep(Duration::from_millis(300));
    disk.read_at(&mut [0; 512], 0).expect("it is served");
    assert!(is_mounted(folder.path()));
    drop(disk);
    assert_eq!(service.wait(PATIENCE).code(), Some(0), "{}", service.log());
    assert!(!is_mounted(folder.path()));
}

#[test]
fn a_second_ctrl_c_leaves_no_mount_behind_whoever_uses_it() {
    if !can_mount() {
        return;
    }
    let target = TestTarget::start(MEMORY);
    let folder = tempfile::tempdir().expect("a folder");
    let mut service = fuse(&target, folder.path());
    let disk = File::open(folder.path().join("ns1")).expect("opened");
    service.signal("INT");
    says(&service, "another ctrl-C detaches it");
    service.signal("INT");
    let start = Instant::now();
    assert_eq!(service.wait(PATIENCE).code(), Some(1), "{}", service.log());
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    assert!(!is_mounted(folder.path()));
    assert!(disk.read_at(&mut [0; 512], 0).is_err());
}

#[test]
fn a_loop_device_on_a_namespace_is_named_with_what_to_do() {
    let losetup = |arguments: &[&str]| {
        let done = Command::new("losetup").args(arguments).stderr(Stdio::null()).output();
        done.ok().filter(|done| done.status.success())
    };
    if !can_mount() {
        return;
    }
    let target = TestTarget::start(MEMORY);
    let folder = tempfile::tempdir().expect("a folder");
    let mut service = fuse(&target, folder.path());
    let file = folder.path().join("ns1").display().to_string();
    let Some(made) = losetup(&["--find", "--show", &file]) else {
        return not_run("a loop device: there is none here");
    };
    let device = String::from_utf8_lossy(&made.stdout).trim().to_owned();
    service.signal("INT");
    let hint = format!("`losetup -d {device}`");
    let deadline = Instant::now() + PATIENCE;
    while !service.log().contains(&hint) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    losetup(&["-d", &device]).expect("detached");
    assert!(service.log().contains(&hint), "{}", service.log());
    assert_eq!(service.wait(PATIENCE).code(), Some(0), "{}", service.log());
}

#[test]
fn an_old_socket_is_replaced_and_a_living_one_is_refused_with_who_listens() {
    let target = TestTarget::start(MEMORY);
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("socket").display().to_string();
    let url = target.url("").to_string();
    let start = || Service::start("ringfab", |_| words(&["nbd", &url, "--socket", &socket]));
    let mut killed = start();
    killed.kill();
    assert!(Path::new(&socket).exists(), "it is old");
    let service = start();
    assert!(service.log().contains("removed an old socket"), "{}", service.log());
    let refused = run(&["nbd", &url, "--socket", &socket]);
    let said = String::from_utf8_lossy(&refused.stderr);
    let who = format!("process {} (ringfab) listens on", service.id());
    assert!(refused.status.code() == Some(1) && said.contains(&who), "{said}");
}

#[test]
fn a_port_in_use_is_told_once() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("its address").port();
    let folder = tempfile::tempdir().expect("a folder");
    for transport in ["rdma", "tcp"] {
        let text = format!(
            "[target]\nstate_dir = {:?}\ncores = 1\n[[listener]]\naddress = \"127.0.0.1\"\nport = {port}\n\
             transport = {transport:?}\n[[subsystem]]\nnqn = \"nqn.2026-11.org.ringfab:test\"\n\
             allow_any_host = true\n{MEMORY}",
            folder.path()
        );
        let config = folder.path().join("target.toml");
        fs::write(&config, text).expect("a configuration");
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", "25"]).arg(program("ringfab-target")).args(["serve", "--config"]);
        let ended = command.arg(&config).env("RUST_LOG", "info").output().expect("it runs");
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(!ended.status.success() && said.contains("is in use; tried again"), "{said}");
        assert!(said.lines().count() <= 4, "{said}");
    }
}
