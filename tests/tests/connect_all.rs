//! `ringfab connect-all`: what discovery shows is attached and served, what comes is added, what goes is removed, and
//! at the end nothing is left.

use std::fs;
use std::io::{BufRead as _, BufReader, Lines};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use ringfab_target::Config;
use ringfab_target::config::SubsystemConfig;
use ringfab_target::control::Manager;
use ringfab_tests::{
    NQN, PATIENCE, TestTarget, have, is_mounted, not_run, own_mounts, program, run_bounded, wait_until,
};
use serde_json::{Value, json};

const OTHER: &str = "nqn.2026-11.org.ringfab:other";
const TCP: &str = "transport = \"tcp\"";
const NAMESPACE: &str = "[[subsystem.namespace]]\nmemory = \"1MiB\"\n";

/// `ringfab connect-all`, and the lines that it prints. It is ended whatever happens.
struct ConnectAll {
    child: Child,
    lines: Receiver<String>,
}

impl ConnectAll {
    fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(program("ringfab"));
        command.arg("connect-all").args(arguments).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it runs");
        let (sender, lines) = channel();
        let said: Lines<BufReader<ChildStdout>> =
            BufReader::new(child.stdout.take().expect("a pipe")).lines();
        std::thread::spawn(move || {
            for line in said {
                if sender.send(line.expect("text")).is_err() {
                    return;
                }
            }
        });
        Self { child, lines }
    }

    fn line(&self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("it says something")
    }

    /// Ends it by a signal: what it says until then, and how it ends.
    fn end(mut self, signal: &str) -> (Vec<String>, ExitStatus) {
        run_bounded(5, "kill", &[signal, &self.child.id().to_string()]);
        let status = self.child.wait().expect("it ends");
        (self.lines.iter().collect(), status)
    }
}

impl Drop for ConnectAll {
    fn drop(&mut self) {
        // In order if it can, so that a test that fails leaves no mount behind.
        let _told = Command::new("kill").arg(self.child.id().to_string()).stderr(Stdio::null()).status();
        let until = Instant::now() + Duration::from_secs(10);
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _gone = self.child.kill();
        let _ended = self.child.wait();
    }
}

/// A configuration with another listener, and another subsystem with a namespace of two MiB.
fn other() -> Config {
    let text = format!(
        "[[listener]]\naddress = \"127.0.0.1\"\nport = 0\n{TCP}\n\
         [[subsystem]]\nnqn = {OTHER:?}\nallow_any_host = true\n\
         [[subsystem.namespace]]\nmemory = \"2MiB\"\n"
    );
    Config::parse(&text, "other").expect("valid")
}

/// Adds that subsystem. What is returned can take it away again.
fn add_other(target: &TestTarget) -> Manager {
    let mut manager = target.manager();
    manager.add_subsystem(other().subsystems[0].clone()).expect("it is added");
    manager
}

fn size_of(uri: &str) -> String {
    run_bounded(20, "nbdinfo", &["--size", uri]).trim().to_owned()
}

#[test]
fn a_subsystem_that_is_added_appears_at_a_host_without_anybody_doing_anything() {
    if !have("nbdinfo") {
        return not_run("nbdinfo (libnbd-bin) is missing");
    }
    let target = TestTarget::with_listener(TCP, NAMESPACE);
    let folder = tempfile::tempdir().expect("a folder");
    let (sockets, ready) = (folder.path().join("all"), folder.path().join("ready"));
    let url = format!("nvme+tcp://{}", target.address());
    let (at, file) = (sockets.display().to_string(), ready.display().to_string());
    let all = ConnectAll::start(&["--nbd", &at, "--follow", "--ready-file", &file, &url]);
    let uri = |nqn: &str, name: &str| format!("nbd+unix:///{name}?socket={at}/{nqn}.sock");
    // As a shell takes it.
    assert_eq!(all.line(), format!("+ {NQN} at '{}': ns1", uri(NQN, "")));
    assert_eq!(size_of(&uri(NQN, "ns1")), "1048576");
    wait_until("the ready file", || ready.exists());
    let mut manager = add_other(&target);
    assert_eq!(all.line(), format!("+ {OTHER} at '{}': ns1", uri(OTHER, "")));
    assert_eq!(size_of(&uri(OTHER, "ns1")), "2097152");
    manager.remove_subsystem(OTHER).expect("it is there");
    assert_eq!(all.line(), format!("- {OTHER}"));
    assert!(!sockets.join(format!("{OTHER}.sock")).exists());
    assert_eq!(size_of(&uri(NQN, "ns1")), "1048576", "the other one is not disturbed");
    let (said, status) = all.end("-TERM");
    assert_eq!((said, status.success()), (vec![format!("- {NQN}")], true));
    assert!(!sockets.exists() && !ready.exists(), "nothing is left");
    wait_until("the host has left", || target.target.controllers().is_empty());
}

#[test]
fn a_subsystem_with_two_addresses_is_attached_once_and_by_both() {
    let listener = format!("[[listener]]\naddress = \"127.0.0.1\"\nport = 0\n{TCP}\n");
    let target = TestTarget::with_listener(TCP, &format!("{NAMESPACE}{listener}"));
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path().join("all").display().to_string();
    let all = ConnectAll::start(&["--nbd", &at, &format!("nvme+tcp://{}", target.address())]);
    assert!(all.line().starts_with(&format!("+ {NQN} at ")));
    wait_until("both paths are there", || target.target.controllers().len() == 2);
    let (said, status) = all.end("-TERM");
    assert_eq!((said, status.success()), (vec![format!("- {NQN}")], true));
    wait_until("the host has left", || target.target.controllers().is_empty());
}

#[test]
fn an_address_that_discovery_shows_later_is_a_path_until_it_shows_it_no_longer() {
    let target = TestTarget::with_listener(TCP, NAMESPACE);
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path().join("all").display().to_string();
    let all = ConnectAll::start(&["--nbd", &at, "--follow", &format!("nvme+tcp://{}", target.address())]);
    assert!(all.line().starts_with(&format!("+ {NQN} at ")));
    let shown = |arguments: &[&str]| -> Value {
        let ringfab = program("ringfab");
        let arguments = [&["--json"], arguments].concat();
        let text = run_bounded(20, ringfab.to_str().expect("UTF-8"), &arguments);
        serde_json::from_str(&text).expect("JSON")
    };
    let pid = all.child.id();
    let paths = || {
        let list = shown(&["path", "list", &pid.to_string()]);
        let of = |path: &Value| (path["connected_to"].as_str().map(str::to_owned), path["state"] == "ready");
        list["paths"].as_array().expect("a list").iter().map(of).collect::<Vec<_>>()
    };
    let ready = |address: &SocketAddr| (Some(address.to_string()), true);
    let first = target.address();
    assert_eq!(paths(), [ready(&first)]);
    let mut manager = target.manager();
    let (port, second) = manager.add_listener(other().listeners[0].clone()).expect("it is added");
    wait_until("a path more", || paths() == [ready(&first), ready(&second)]);
    let attached = shown(&["list"])["attached"].as_array().expect("a list").clone();
    let listed = attached.iter().find(|one| one["pid"] == pid).expect("it is listed");
    assert_eq!((&listed["paths"], &listed["paths_ready"]), (&json!(2), &json!(2)));
    manager.remove_listener(port).expect("it is there");
    wait_until("it is a path no longer", || paths() == [ready(&first)]);
    let (said, status) = all.end("-TERM");
    assert_eq!((said, status.success()), (vec![format!("- {NQN}")], true));
}

#[test]
fn a_subsystem_that_has_no_namespace_yet_is_attached_and_shows_what_comes() {
    if !have("nbdinfo") {
        return not_run("nbdinfo (libnbd-bin) is missing");
    }
    let target = TestTarget::with_listener(TCP, NAMESPACE);
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path().display().to_string();
    let all = ConnectAll::start(&["--nbd", &at, "--follow", &format!("nvme+tcp://{}", target.address())]);
    assert!(all.line().starts_with(&format!("+ {NQN} ")));
    let mut manager = target.manager();
    let empty = SubsystemConfig { namespaces: Vec::new(), ..other().subsystems[0].clone() };
    manager.add_subsystem(empty).expect("it is added");
    assert!(all.line().starts_with(&format!("+ {OTHER} ")));
    let Value::Object(namespace) = json!({ "memory": "2MiB" }) else { unreachable!("an object") };
    manager.add(Some(OTHER), namespace).expect("it is added");
    let uri = format!("nbd+unix:///ns1?socket={at}/{OTHER}.sock");
    wait_until("one more export", || {
        Command::new("nbdinfo")
            .args(["--size", &uri])
            .output()
            .is_ok_and(|output| output.stdout == b"2097152\n")
    });
}

#[test]
fn each_subsystem_is_a_directory_of_files_and_none_is_mounted_afterwards() {
    if let Err(error) = fs::File::options().read(true).write(true).open("/dev/fuse") {
        return not_run(&format!("/dev/fuse cannot be opened: {error}"));
    }
    own_mounts();
    let target = TestTarget::with_listener(TCP, NAMESPACE);
    let folder = tempfile::tempdir().expect("a folder");
    let directory = folder.path().join("all");
    let url = format!("nvme+tcp://{}", target.address());
    let all = ConnectAll::start(&["--fuse", &directory.display().to_string(), "--follow", "--json", &url]);
    let document = |all: &ConnectAll| -> Value {
        let mut text = String::new();
        while text.is_empty() || !text.ends_with("\n}\n") {
            text += &(all.line() + "\n");
        }
        serde_json::from_str(&text).expect("JSON")
    };
    let disk = |nqn: &str| directory.join(nqn).join("ns1");
    let added = document(&all);
    assert_eq!(added["added"]["subsystem"], NQN);
    assert_eq!(added["added"]["disks"][0], disk(NQN).display().to_string());
    fs::write(disk(NQN), [7; 4096]).expect("written");
    assert_eq!(fs::read(disk(NQN)).expect("read")[..4096], [7; 4096]);
    let mut manager = add_other(&target);
    assert_eq!(document(&all)["added"]["subsystem"], OTHER);
    assert_eq!(disk(OTHER).metadata().expect("a file").len(), 2 << 20);
    manager.remove_subsystem(OTHER).expect("it is there");
    assert_eq!(document(&all)["removed"]["subsystem"], OTHER);
    assert!(!directory.join(OTHER).exists());
    let (_, status) = all.end("-INT");
    assert!(status.success() && !is_mounted(&directory.join(NQN)) && !directory.exists());
}

#[test]
fn referrals_lead_to_subsystems_and_never_round_in_circles() {
    let port = ringfab_tests::free_port();
    let referral = |port: u16| {
        format!("[[discovery.referral]]\ntransport = \"tcp\"\naddress = \"127.0.0.1\"\nport = {port}\n")
    };
    let second_port = ringfab_tests::free_port();
    // Each refers to the other, and the first to itself, too.
    let first = TestTarget::with_listener(
        TCP,
        &format!(
            "{NAMESPACE}[[listener]]\naddress = \"127.0.0.1\"\ntransport = \"tcp\"\nport = {port}\n{}{}",
            referral(second_port),
            referral(port)
        ),
    );
    let text = format!(
        "{NAMESPACE}[[subsystem]]\nnqn = {OTHER:?}\nallow_any_host = true\n{NAMESPACE}\
         [[listener]]\naddress = \"127.0.0.1\"\ntransport = \"tcp\"\nport = {second_port}\n{}",
        referral(port)
    );
    let second = TestTarget::with_listener(TCP, &text);
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path().display().to_string();
    let all = ConnectAll::start(&["--nbd", &at, &format!("nvme+tcp://127.0.0.1:{port}")]);
    let mut found = [all.line(), all.line()].map(|line| line.split(' ').nth(1).map(str::to_owned));
    found.sort();
    assert_eq!(found, [OTHER, NQN].map(|nqn| Some(nqn.to_owned())), "each once");
    let attached =
        |target: &TestTarget| target.target.controllers().iter().filter(|one| !one.is_discovery()).count();
    // By both addresses of whichever was ready first: the other target has another disk by that name.
    let counts = || (attached(&first), attached(&second));
    wait_until("one that both serve is attached once", || [(2, 2), (0, 4)].contains(&counts()));
    let leaves = |target: &TestTarget| target.target.controllers().iter().all(|one| !one.is_discovery());
    wait_until("without --follow discovery is left", || leaves(&first) && leaves(&second));
    let (said, status) = all.end("-TERM");
    assert_eq!((said.len(), status.success()), (2, true), "{said:?}");
    assert!(folder.path().read_dir().expect("the folder stays").next().is_none());
}

#[test]
fn what_cannot_be_attached_is_said_and_ends_in_an_error() {
    let run = |arguments: &[&str]| {
        let output =
            Command::new(program("ringfab")).arg("connect-all").args(arguments).output().expect("runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path().display().to_string();
    let nobody = format!("nvme+tcp://127.0.0.1:{}", ringfab_tests::free_port());
    let (code, said) = run(&["--nbd", &at, &nobody]);
    assert!(code == Some(1) && said.contains("refused"), "{said}");
    let (code, said) = run(&["--nbd", &at, &format!("{nobody}/{NQN}")]);
    assert!(code == Some(2) && said.contains("discovery controllers"), "{said}");
    assert_eq!(run(&[&nobody]).0, Some(2), "neither --nbd nor --fuse");
    // It names no place where its subsystems would be.
    let empty = TestTarget::with_listener(&format!("{TCP}\ndiscovery_only = true"), NAMESPACE);
    let (code, said) = run(&["--nbd", &at, &format!("nvme+tcp://{}", empty.address())]);
    assert!(code == Some(1) && said.contains("no subsystem that this host may use"), "{said}");
}
