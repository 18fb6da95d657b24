//! Another disk comes where one was: hosts that have the one never reach the other.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

use ringfab_initiator::blocking::{Controller, EngineOptions};
use ringfab_initiator::{ConnectOptions, HostIdentity, Namespace, Url};
use ringfab_tests::{NQN, Service, free_port, program, wait_until};
use serde_json::Value;
use tempfile::TempDir;

use super::{MIB, cached, serve};

/// A folder with the disks `a` and `b`, full of their letters, and what a target needs to be started there often.
struct Place {
    folder: TempDir,
    port: u16,
}

impl Place {
    fn new() -> Self {
        let this = Self { folder: tempfile::tempdir().expect("a folder"), port: free_port() };
        for name in ["a", "b"] {
            fs::write(this.path(name), name.repeat(MIB)).expect("a disk");
        }
        this
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// What is at the start of a file.
    fn begins(&self, name: &str) -> [u8; 2] {
        fs::read(self.path(name)).expect("the file")[..2].try_into().expect("two bytes")
    }

    /// Writes a configuration with namespace 1 in memory, and these tables after it.
    fn configure(&self, namespaces: &str) {
        let memory = "[[subsystem.namespace]]\nmemory = \"1MiB\"\n";
        let text = super::config(self.folder.path(), self.port, &format!("{memory}{namespaces}"));
        serve(self.folder.path(), &text);
    }

    /// The same with a namespace 2.
    fn configure_second(&self, name: &str, more: &str) {
        self.configure(&format!("{}nsid = 2\n{more}", cached(&self.path(name))));
    }

    fn start(&self) -> Service {
        let config = self.path("target.toml").display().to_string();
        Service::start("ringfab-target", |_| ["serve", "--config", &config].map(str::to_owned).to_vec())
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(program("ringfab-target"));
        command.args(arguments).arg("--socket").arg(self.path("control")).output().expect("it runs")
    }

    fn ask(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    }

    fn refused(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(!output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stdout));
        String::from_utf8(output.stderr).expect("text")
    }

    /// Namespace 2, as the target shows it.
    fn second(&self) -> Value {
        let list: Value = serde_json::from_str(&self.ask(&["namespace", "list", "--json"])).expect("JSON");
        let all = list.as_array().expect("a list");
        all.iter().find(|one| one["nsid"] == 2 && one["state"] != "closing").cloned().unwrap_or_default()
    }

    fn identifiers(&self) -> (Value, Value) {
        let second = self.second();
        (second["nguid"].clone(), second["uuid"].clone())
    }

    fn attach(&self) -> Controller {
        let url: Url = format!("nvme+tcp://127.0.0.1:{}/{NQN}", self.port).parse().expect("a URL");
        let identity = HostIdentity::for_url(&url).expect("an identity");
        let mut options = ConnectOptions::new(url, identity);
        options.reconnect.delay = Duration::from_millis(50);
        options.reconnect.delay_max = Duration::from_millis(200);
        Controller::connect(options, EngineOptions::default()).expect("attached")
    }
}

/// Waits until a host sees another disk as namespace 2 than this one, and returns that.
fn another(host: &Controller, than: &Namespace) -> Namespace {
    let mut found = None;
    wait_until("another disk is there", || {
        found = host.namespace(2).filter(|now| !now.identity.agrees_with(&than.identity));
        found.is_some()
    });
    found.expect("it was found")
}

/// A host has disk `a` as namespace 2. Then `act` puts `b` there.
fn replaced(first: &str, act: impl FnOnce(&Place)) {
    let place = Place::new();
    symlink(place.path("a"), place.path("link")).expect("a link");
    place.configure_second(first, "");
    let service = place.start();
    let host = place.attach();
    let before = host.namespace(2).expect("it is there");
    let had = place.identifiers();
    let only = host.disk_of(&before);
    only.write_at(0, &[b'1'; 512], true).expect("its own");
    act(&place);
    let now = another(&host, &before);
    let has = place.identifiers();
    assert!(has.0 != had.0 && has.1 != had.1, "{has:?}");
    assert!(only.write_at(0, &[b'2'; 512], true).is_err());
    assert!(only.read_at(0, &mut [0; 512]).is_err());
    let mut read = [0; 512];
    host.disk_of(&now).read_at(0, &mut read).expect("the other one");
    assert_eq!(read, [b'b'; 512]);
    let log = service.log();
    assert!(log.contains("a namespace is another disk than before"), "{log}");
}

#[test]
fn a_disk_that_is_exchanged_in_two_reloads_is_another_one() {
    replaced("a", |place| {
        place.configure("");
        place.ask(&["reload"]);
        place.configure_second("b", "");
        place.ask(&["reload", "--dry-run"]);
        place.ask(&["reload"]);
        assert_eq!(place.begins("a"), *b"11");
    });
}

#[test]
fn a_disk_that_is_exchanged_by_command_and_reload_is_another_one() {
    replaced("a", |place| {
        place.ask(&["namespace", "remove", "2"]);
        place.configure_second("b", "");
        place.ask(&["reload"]);
    });
}

#[test]
fn a_disk_whose_link_leads_elsewhere_when_it_comes_back_is_another_one() {
    let retarget = |place: &Place| {
        fs::remove_file(place.path("link"))
            .and_then(|()| symlink(place.path("b"), place.path("link")))
            .expect("led");
    };
    replaced("link", |place| {
        place.configure("");
        place.ask(&["reload"]);
        retarget(place);
        place.configure_second("link", "");
        place.ask(&["reload"]);
    });
    // The configuration has the same path for it.
    replaced("link", |place| {
        place.ask(&["namespace", "remove", "2"]);
        retarget(place);
        let link = place.path("link").display().to_string();
        place.ask(&["namespace", "add", &link, "--page-cache", "--nsid", "2"]);
    });
    // In one step it is refused.
    let place = Place::new();
    symlink(place.path("a"), place.path("link")).expect("a link");
    place.configure_second("link", "");
    let _service = place.start();
    retarget(&place);
    place.configure_second("link", "read_only = true\n");
    let error = place.refused(&["reload"]);
    assert!(error.contains("would be another disk (another one of this name instead of"), "{error}");
}

#[test]
fn a_file_that_was_removed_and_made_anew_is_another_disk() {
    replaced("a", |place| {
        place.configure("");
        place.ask(&["reload"]);
        wait_until("it is closed", || !place.ask(&["namespace", "list"]).contains("closing"));
        fs::remove_file(place.path("a")).expect("removed");
        // It may well have the inode of the other.
        fs::write(place.path("a"), "b".repeat(MIB)).expect("a file");
        place.configure_second("a", "");
        place.ask(&["reload"]);
    });
}

#[test]
fn a_subsystem_that_comes_back_with_another_disk_has_another_one() {
    const OTHER: &str = "[[subsystem]]\nnqn = \"nqn.2026-11.org.ringfab:other\"\nallow_any_host = true\n\
                         [[subsystem.namespace]]\nnull = \"1MiB\"\n";
    let place = Place::new();
    let with = |name: &str| place.configure_second(name, OTHER);
    with("a");
    let _service = place.start();
    let had = place.identifiers();
    let host = place.attach();
    let only = host.disk(2).expect("it is there");
    let both = fs::read_to_string(place.path("target.toml")).expect("a configuration");
    let (head, _) = both.split_once("[[subsystem]]").expect("a subsystem");
    fs::write(place.path("target.toml"), format!("{head}{OTHER}")).expect("a configuration");
    place.ask(&["reload"]);
    with("b");
    place.ask(&["reload"]);
    let has = place.identifiers();
    assert!(has.0 != had.0 && has.1 != had.1, "{has:?}");
    assert!(only.write_at(0, &[b'2'; 512], true).is_err());
    assert_eq!(place.begins("b"), *b"bb");
}

#[test]
fn the_same_disk_comes_back_with_the_identifiers_that_it_had() {
    let place = Place::new();
    place.configure_second("a", "");
    let mut service = place.start();
    let host = place.attach();
    let only = host.disk(2).expect("it is there");
    let mut known = vec![("a", place.identifiers())];
    for name in ["b", "a", "b", "a"] {
        place.configure("");
        place.ask(&["reload"]);
        place.configure_second(name, "");
        place.ask(&["reload"]);
        match known.iter().find(|(other, _)| *other == name) {
            Some((_, had)) => assert_eq!(place.identifiers(), *had, "{name}"),
            None => known.push((name, place.identifiers())),
        }
    }
    wait_until("it is the host's again", || only.write_at(0, &[b'1'; 512], true).is_ok());
    // By command, too, and under another name.
    place.ask(&["namespace", "remove", "2"]);
    fs::rename(place.path("a"), place.path("moved")).expect("renamed");
    let moved = place.path("moved").display().to_string();
    place.ask(&["namespace", "add", &moved, "--page-cache", "--nsid", "2"]);
    assert_eq!(place.identifiers(), known[0].1);
    // And over restarts.
    for name in ["b", "moved", "b"] {
        service.kill();
        place.configure_second(name, "");
        service = place.start();
        let expected = if name == "b" { &known[1].1 } else { &known[0].1 };
        assert_eq!(place.identifiers(), *expected, "{name}");
    }
}

#[test]
fn a_host_that_stays_through_a_restart_does_not_reach_the_disk_that_is_there_then() {
    let place = Place::new();
    place.configure_second("a", "");
    let service = place.start();
    let host = place.attach();
    let before = host.namespace(2).expect("it is there");
    let only = host.disk_of(&before);
    only.write_at(0, &[b'1'; 512], true).expect("its own");
    drop(service);
    place.configure_second("b", "");
    let service = place.start();
    // It does not take the target's disks for those that it had.
    assert!(only.write_at(0, &[b'2'; 512], true).is_err());
    assert!(host.write_at(2, 0, &[b'2'; 512], true).is_err());
    assert_eq!((place.begins("a"), place.begins("b")), (*b"11", *b"bb"));
    let now = place.attach().namespace(2).expect("it is there").identity;
    assert!(!now.agrees_with(&before.identity), "{now:?}");
    drop(service);
    place.configure_second("a", "");
    let _service = place.start();
    let now = place.attach().namespace(2).expect("it is there").identity;
    assert!(now.agrees_with(&before.identity), "{now:?}");
}

#[test]
fn identifiers_that_are_configured_are_another_disks_only_when_an_administrator_says_so() {
    const OWN: &str =
        "uuid = \"6c2a4c0e-31f5-4c5e-8f5e-6f7f1d8f0a01\"\nnguid = \"6c2a4c0e31f54c5e8f5e6f7f1d8f0a02\"\n";
    let place = Place::new();
    place.configure_second("a", OWN);
    let service = place.start();
    let host = place.attach();
    place.configure("");
    place.ask(&["reload"]);
    place.configure_second("b", OWN);
    for arguments in [&["reload", "--dry-run"][..], &["reload"]] {
        let error = place.refused(arguments);
        let (a, b) = (place.path("a").display().to_string(), place.path("b").display().to_string());
        assert!(
            error.contains("the nguid or uuid of namespace 2 was that of") && error.contains(&a),
            "{error}"
        );
        assert!(error.contains(&b) && error.contains("give it an nguid and a uuid of its own"), "{error}");
    }
    drop(service);
    let mut service = place.start();
    let second = place.second();
    assert_eq!(second["state"], "needs reopen");
    assert!(second["reason"].as_str().expect("why").contains("namespace reopen 2"), "{second}");
    wait_until("the host is back", || host.read_at(1, 0, &mut [0; 512]).is_ok());
    assert!(host.write_at(2, 0, &[b'2'; 512], true).is_err());
    assert_eq!(place.begins("b"), *b"bb");
    // The disk is not opened by itself.
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(place.second()["state"], "needs reopen");
    place.ask(&["namespace", "reopen", "2"]);
    assert_eq!(place.second()["state"], "ready");
    wait_until("the host has it", || host.write_at(2, 0, &[b'2'; 512], true).is_ok());
    assert_eq!(place.begins("b"), *b"22");
    // It has been said.
    service.kill();
    service = place.start();
    assert_eq!(place.second()["state"], "ready");
    drop(service);
    place.configure_second("a", OWN);
    let _service = place.start();
    assert_eq!(place.second()["state"], "needs reopen");
}

#[test]
fn what_is_no_disk_does_not_get_the_identifiers_of_one_either() {
    const UUID: &str = "uuid = \"6c2a4c0e-31f5-4c5e-8f5e-6f7f1d8f0a01\"\n";
    let place = Place::new();
    let memory = |more: &str| place.configure(&format!("[[subsystem.namespace]]\nmemory = \"1MiB\"\n{more}"));
    place.configure_second("a", "");
    let service = place.start();
    let had = place.identifiers();
    place.configure("");
    place.ask(&["reload"]);
    memory("");
    place.ask(&["reload"]);
    let has = place.identifiers();
    assert!(has.0 != had.0 && has.1 != had.1, "{has:?}");
    drop(service);
    let service = place.start();
    assert_eq!(place.identifiers(), has);
    drop(service);
    place.configure_second("a", UUID);
    drop(place.start());
    memory(UUID);
    let _service = place.start();
    assert_eq!(place.second()["state"], "needs reopen");
    assert_eq!(place.second()["bytes"], 0);
    place.ask(&["namespace", "reopen", "2"]);
    let second = place.second();
    assert!(second["state"] == "ready" && second["bytes"] == 1 << 20, "{second}");
    let host = place.attach();
    host.write_at(2, 0, &[7; 512], true).expect("it can be written");
}

#[test]
fn a_disk_that_was_missing_at_the_start_is_not_another_one_of_its_name() {
    let place = Place::new();
    place.configure_second("a", "");
    drop(place.start());
    fs::rename(place.path("a"), place.path("aside")).expect("renamed");
    let _service = place.start();
    assert_eq!(place.second()["state"], "not ready");
    let had = place.identifiers();
    fs::rename(place.path("b"), place.path("a")).expect("renamed");
    wait_until("it is looked at", || place.second()["state"] == "needs reopen");
    assert!(place.refused(&["namespace", "resize", "2"]).contains("was that of"));
    // As a namespace that is added it has identifiers of its own.
    place.ask(&["namespace", "remove", "2"]);
    let path = place.path("a").display().to_string();
    place.ask(&["namespace", "add", &path, "--page-cache", "--nsid", "2"]);
    assert_eq!(place.second()["state"], "ready");
    assert_ne!(place.identifiers(), had);
}

#[test]
fn a_disk_that_was_cut_off_is_not_reopened_as_another_one_by_mistake() {
    let place = Place::new();
    place.configure_second("a", "");
    let _service = place.start();
    fs::File::options()
        .write(true)
        .open(place.path("a"))
        .and_then(|file| file.set_len(4096))
        .expect("cut off");
    wait_until("it is noticed", || place.second()["state"] == "needs reopen");
    fs::rename(place.path("b"), place.path("a")).expect("renamed");
    let error = place.refused(&["namespace", "reopen", "2"]);
    assert!(error.contains("was that of"), "{error}");
    assert_eq!(place.second()["state"], "needs reopen");
    // Who has read this and asks again means it: the file was restored.
    place.ask(&["namespace", "reopen", "2"]);
    assert_eq!(place.second()["state"], "ready");
}

#[test]
fn blocks_of_another_size_are_another_disk() {
    let place = Place::new();
    place.configure_second("a", "");
    let service = place.start();
    let had = place.identifiers();
    place.configure_second("a", "block_bytes = 4096\n");
    for arguments in [&["reload", "--dry-run"][..], &["reload"]] {
        let error = place.refused(arguments);
        assert!(error.contains("would have blocks of 4096 bytes instead of 512, and hosts would"), "{error}");
    }
    assert_eq!(place.second()["block_bytes"], 512);
    place.configure("");
    place.ask(&["reload"]);
    place.configure_second("a", "block_bytes = 4096\n");
    place.ask(&["reload"]);
    let large = place.identifiers();
    assert!(large.0 != had.0 && large.1 != had.1, "{large:?}");
    drop(service);
    for (more, expected) in [("", &had), ("block_bytes = 4096\n", &large)] {
        place.configure_second("a", more);
        let _service = place.start();
        assert_eq!(place.identifiers(), *expected, "{more}");
    }
}
