//! Access groups of a target that runs: changed by command and by reload, and a listener that is taken out of use.

use std::fs;
use std::path::Path;
use std::process::Output;
use std::time::Duration;

use ringfab_initiator::blocking::{Controller, EngineOptions};
use ringfab_initiator::{ConnectOptions, HostIdentity, Url};
use ringfab_spec::log::{AnaState, LogId};
use ringfab_tests::{Service, wait_until};
use serde_json::Value;

const A: &str = "nqn.2026-11.org.ringfab:a";

struct Target {
    service: Service,
    ports: [u16; 2],
}

fn text(folder: &Path, ports: [u16; 2], state: &str) -> String {
    let [state_dir, socket] = ["state", "control.sock"].map(|name| folder.join(name));
    let listeners: String = ports
        .iter()
        .map(|port| format!("[[listener]]\naddress = \"127.0.0.1\"\nport = {port}\ntransport = \"tcp\"\n"))
        .collect();
    format!(
        "[target]\nstate_dir = {state_dir:?}\ncores = [0]\n[control]\nsocket = {socket:?}\n{listeners}\
         [[subsystem]]\nnqn = {A:?}\nallow_any_host = true\n{state}[[subsystem.namespace]]\nmemory = \"4MiB\"\n"
    )
}

impl Target {
    fn start() -> Self {
        let ports = [ringfab_tests::free_port(), ringfab_tests::free_port()];
        let service = Service::start("ringfab-target", |folder| {
            fs::write(folder.join("target.toml"), text(folder, ports, "")).expect("a configuration");
            let config = folder.join("target.toml").display().to_string();
            ["serve", "--config", &config].map(str::to_owned).to_vec()
        });
        Self { service, ports }
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.service.control(arguments)
    }

    fn ask(&self, arguments: &[&str]) -> String {
        self.service.ask(arguments)
    }

    fn way(&self, index: usize) -> String {
        format!("127.0.0.1:{}", self.ports[index])
    }

    fn attach(&self, index: usize) -> Controller {
        let url: Url = format!("nvme+tcp://{}/{A}", self.way(index)).parse().expect("a URL");
        let host = HostIdentity::for_url(&url).expect("an identity");
        let mut options = ConnectOptions::new(url, host);
        options.reconnect.controller_loss_timeout = Some(Duration::ZERO);
        Controller::connect(options, EngineOptions::default()).expect("a controller")
    }
}

/// The change count of the page, that of the group, and its state.
fn log(host: &Controller) -> (u8, u8, AnaState) {
    let page = host.log_page(LogId::ANA.0, u32::MAX, 0, 52).expect("the page");
    assert_eq!((page[8], page[16], page[20], page[48]), (1, 1, 1, 1), "one group with namespace 1");
    (page[0], page[24], AnaState(page[32]))
}

#[test]
fn a_group_changes_its_state_by_command_and_by_reload_and_for_one_way_only() {
    let target = Target::start();
    let hosts = [target.attach(0), target.attach(1)];
    assert_eq!(hosts.each_ref().map(log), [(0, 0, AnaState::OPTIMIZED); 2]);
    let changed = target.ask(&["ana", "set", "1", "non-optimized", "--listener", &target.way(1)]);
    assert!(changed.starts_with(&format!("~ access group 1 of {A}: ")), "{changed}");
    assert_eq!(log(&hosts[0]), (0, 0, AnaState::OPTIMIZED));
    assert_eq!(log(&hosts[1]), (1, 1, AnaState::NON_OPTIMIZED));
    hosts[1].write_at(1, 0, &[7; 4096], true).expect("a write");
    let shown = target.ask(&["ana", "show"]);
    assert!(shown.contains("non-optimized") && shown.contains(&target.way(1)), "{shown}");
    let status = target.ask(&["status"]);
    let line = format!("  access group 1 of {A} is non-optimized by {}", target.way(1));
    assert!(status.contains(&line), "{status}");
    // What is saved means the same when it is read again.
    target.ask(&["config", "--save"]);
    assert_eq!(target.ask(&["reload"]), "nothing is different\n");
    // The file has the last word.
    let folder = target.service.path("");
    let state = "[[subsystem.ana]]\ngroup = 1\nstate = \"inaccessible\"\n";
    fs::write(target.service.path("target.toml"), text(&folder, target.ports, state)).expect("a file");
    target.ask(&["reload"]);
    assert_eq!(log(&hosts[0]), (1, 1, AnaState::INACCESSIBLE));
    assert_eq!(log(&hosts[1]), (2, 2, AnaState::INACCESSIBLE));
    target.ask(&["ana", "set", "1", "optimized"]);
    hosts[0].write_at(1, 0, &[8; 4096], true).expect("a write");
}

#[test]
fn what_is_no_group_or_no_way_is_refused_with_those_that_there_are() {
    let target = Target::start();
    let refused = |arguments: &[&str]| {
        let output = target.run(arguments);
        assert!(!output.status.success(), "{arguments:?}");
        String::from_utf8(output.stderr).expect("text")
    };
    let group = refused(&["ana", "set", "9", "inaccessible"]);
    assert!(group.contains(&format!("there is no access group 9 in {A}; there are: 1")), "{group}");
    let way = refused(&["ana", "set", "1", "inaccessible", "--listener", "192.0.2.9:4420"]);
    assert!(way.contains("there is no listener at 192.0.2.9:4420") && way.contains(&target.way(0)), "{way}");
}

#[test]
fn a_listener_is_drained_and_a_host_with_one_way_keeps_it_until_the_end() {
    let target = Target::start();
    let alone = target.attach(1);
    alone.write_at(1, 0, &[7; 4096], true).expect("a write");
    let drained = target.ask(&["listener", "drain", &target.way(1)]);
    assert!(drained.contains("drained and removed"), "{drained}");
    let listeners = || {
        let status: Value = serde_json::from_str(&target.ask(&["status", "--json"])).expect("JSON");
        let listeners = status["listeners"].as_array().expect("a list");
        listeners
            .iter()
            .map(|one| one["address"].as_str().expect("an address").to_owned())
            .collect::<Vec<_>>()
    };
    wait_until("its listener is gone", || listeners() == [target.way(0)]);
    let status = target.ask(&["status"]);
    let note = format!("not in the file: - listener tcp {}", target.way(1));
    assert!(status.contains(&note), "{status}");
    wait_until("its host is gone", || alone.write_at(1, 0, &[7; 4096], true).is_err());
    let only = target.run(&["listener", "drain", &target.way(0)]);
    assert!(!only.status.success(), "the only listener stays");
    target.attach(0).write_at(1, 0, &[9; 4096], true).expect("a write");
}
