//! `ringfab reset`: who is meant, and that I/O goes on.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use ringfab_tests::{NQN, Service, file_target, free_port, have, not_run, wait_until};
use serde_json::Value;
use tempfile::TempDir;

use super::{err, out, output, ringfab, target};

/// A folder for entries, and servers that are noted there.
pub(super) struct Machine(pub(super) TempDir);

impl Machine {
    pub(super) fn new() -> Self {
        Self(tempfile::Builder::new().permissions(private()).tempdir().expect("a folder"))
    }

    /// Runs a command of `ringfab` that sees what is noted here.
    pub(super) fn run(&self, arguments: &[&str]) -> Output {
        output(ringfab(arguments).env("RINGFAB_RUNTIME_DIRECTORY", self.0.path()))
    }

    pub(super) fn json(&self, arguments: &[&str]) -> Value {
        let output = self.run(&[arguments, &["--json"]].concat());
        assert!(output.status.success(), "{arguments:?}: {}", err(&output));
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    pub(super) fn nbd(&self, url: &str, more: &[&str]) -> Service {
        let arguments = |folder: &Path| {
            let socket = folder.join("socket").display().to_string();
            let first = ["nbd", url, "--socket", &socket, "--reconnect-delay", "50ms"];
            first.iter().chain(more).map(|text| (*text).to_owned()).collect()
        };
        Service::start_with("ringfab", arguments, &[("RINGFAB_RUNTIME_DIRECTORY", self.0.path())])
    }

    /// How often what is attached was connected again.
    fn reconnects(&self) -> Vec<u64> {
        let list = self.json(&["list"]);
        let list = list["attached"].as_array().expect("a list").iter();
        list.map(|one| one["reconnects"].as_u64().expect("a number")).collect()
    }
}

fn private() -> std::fs::Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(0o700)
}

#[test]
fn what_is_meant_can_be_named_in_all_ways_that_list_shows() {
    let (_target, url) = target();
    let machine = Machine::new();
    let service = machine.nbd(&url, &[]);
    let socket = service.path("socket").display().to_string();
    let (pid, uri) = (service.id().to_string(), format!("nbd+unix:///?socket={socket}"));
    let discovery = url.rsplit_once('/').expect("a subsystem").0;
    let names = [socket.as_str(), &pid, &uri, &url, NQN, discovery];
    for (count, name) in (1..).zip(names) {
        let reset = machine.run(&["reset", name]);
        assert!(out(&reset).contains("is connected again, "), "{name}: {}", err(&reset));
        assert_eq!(machine.reconnects(), [count]);
    }
    assert!(out(&machine.run(&["list"])).contains("connected, 6 reconnects"));
    let _second = machine.nbd(&url, &[]);
    let several = machine.run(&["reset", &url]);
    assert_eq!(several.status.code(), Some(2));
    assert!(err(&several).contains("name one of them, or add --all"), "{}", err(&several));
    let all = machine.json(&["reset", "--all"]);
    assert_eq!(all["reset"].as_array().map(Vec::len), Some(2));
    assert_eq!(all["reset"][0]["error"], Value::Null);
    assert_eq!(machine.reconnects(), [7, 1]);
}

#[test]
fn the_address_of_a_relative_socket_with_special_characters_is_usable_everywhere() {
    let (_target, url) = target();
    let machine = Machine::new();
    let folder = tempfile::tempdir().expect("a folder");
    let (path, name) = (folder.path().canonicalize().expect("a path"), "a b&c%41.sock");
    let ready = path.join("ready").display().to_string();
    let serve = ["nbd", &url, "--nsid", "1", "--socket", name, "--export", "my disk", "--ready-file", &ready];
    let mut server = ringfab(&serve);
    server.current_dir(&path).env("RINGFAB_RUNTIME_DIRECTORY", machine.0.path());
    let server = server.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it runs");
    let server = Ended(server);
    wait_until("it serves", || Path::new(&ready).exists());
    let uri = std::fs::read_to_string(&ready).expect("its address").trim().to_owned();
    let expected = format!("nbd+unix:///my%20disk?socket={}/a%20b%26c%2541.sock", path.display());
    assert_eq!(uri, expected);
    assert_eq!(machine.json(&["list"])["attached"][0]["uri"], expected);
    for (directory, named) in [("/", &*uri), ("/", &path.join(name).display().to_string())] {
        let mut reset = ringfab(&["reset", named]);
        let reset = output(reset.current_dir(directory).env("RINGFAB_RUNTIME_DIRECTORY", machine.0.path()));
        assert!(
            out(&reset).contains(&format!("'{uri}': the controller was reset")),
            "{named}: {}",
            err(&reset)
        );
    }
    let mut reset = ringfab(&["reset", name]);
    let reset = output(reset.current_dir(&path).env("RINGFAB_RUNTIME_DIRECTORY", machine.0.path()));
    assert!(reset.status.success(), "{}", err(&reset));
    if have("nbdinfo") {
        let said = output(Command::new("timeout").args(["20", "nbdinfo", "--json", &uri]).current_dir("/"));
        assert!(out(&said).contains(r#""export-name": "my disk""#), "{} {}", out(&said), err(&said));
    } else {
        not_run("the address of a socket with special characters: there is no nbdinfo");
    }
    drop(server);
}

/// A program that ends with its test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _killed = self.0.kill();
        let _ended = self.0.wait();
    }
}

#[test]
fn what_cannot_be_reset_is_refused_with_the_reason() {
    let (_target, url) = target();
    let machine = Machine::new();
    for (target, words) in [
        (&*url, "a host resets only controllers of its own"),
        ("/nowhere", "is not attached"),
        ("--all", "nothing is attached"),
    ] {
        let refused = machine.run(&["reset", target]);
        assert_eq!(refused.status.code(), Some(1), "{target}");
        assert!(err(&refused).contains(words), "{target}: {}", err(&refused));
    }
    assert_eq!(machine.run(&["reset"]).status.code(), Some(2));
    let mut service = machine.nbd(&url, &[]);
    let socket = service.path("socket").display().to_string();
    service.kill();
    let dead = machine.run(&["reset", &socket]);
    assert!(err(&dead).contains("was killed"), "{}", err(&dead));
}

#[test]
fn a_reset_while_the_target_is_away_says_so_and_goes_on() {
    let machine = Machine::new();
    let folder = tempfile::tempdir().expect("a folder");
    let image = folder.path().join("image");
    std::fs::File::create(&image).expect("a file").set_len(1 << 20).expect("as long as that");
    let port = free_port();
    let mut target = file_target(port, &image);
    let url = format!("nvme+rdma://127.0.0.1:{port}/{NQN}?provider=iwarp");
    let _service = machine.nbd(&url, &[]);
    target.kill();
    wait_until("it is seen", || machine.json(&["list"])["attached"][0]["state"] == "reconnecting");
    let away = machine.run(&["reset", "--all", "--timeout", "200ms"]);
    assert_eq!(away.status.code(), Some(1));
    assert!(err(&away).contains("not connected again after 0.2 s; that goes on"), "{}", err(&away));
    let _target = file_target(port, &image);
    wait_until("it is back", || machine.json(&["list"])["attached"][0]["state"] == "connected");
    assert!(machine.run(&["reset", "--all"]).status.success());
}

#[test]
fn nothing_is_lost_when_a_controller_in_use_is_reset() {
    if !have("fio") {
        return not_run("a reset under load: there is no fio");
    }
    let (_target, url) = target();
    let machine = Machine::new();
    let service = machine.nbd(&url, &["--cores", "2"]);
    let uri = format!("--uri=nbd+unix:///ns1?socket={}", service.path("socket").display());
    let mut fio = Command::new("timeout");
    fio.args([
        "60",
        "fio",
        "--name=load",
        "--ioengine=nbd",
        &uri,
        "--rw=randwrite",
        "--bs=4k",
        "--iodepth=16",
    ]);
    fio.args(["--size=1m", "--verify=crc32c", "--verify_backlog=64", "--time_based", "--runtime=3"]);
    let fio =
        fio.current_dir(machine.0.path()).stdout(std::process::Stdio::piped()).spawn().expect("it runs");
    for _ in 0..15 {
        assert!(machine.run(&["reset", "--all"]).status.success());
        // Resets all along the load.
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    let done = fio.wait_with_output().expect("it ends");
    assert!(done.status.success(), "{}", out(&done));
    assert_eq!(machine.reconnects(), [15], "each reset was one reconnect, and there was no other");
}
