//! Namespaces whose disks are on other machines, or in other programs: what hosts and administrators see of them.

#[path = "../../../common/rbd/tests/rbd/cluster.rs"]
#[expect(dead_code, reason = "the tests of the driver use more of it")]
mod ceph;
#[path = "../freeze/clock.rs"]
#[expect(dead_code, reason = "the tests of freezes use more of it")]
mod clock;
#[path = "../kill/load.rs"]
#[expect(dead_code, reason = "the tests that kill targets use more of it")]
mod load;
mod nbd;
mod rbd;
#[path = "../../../common/nbd/tests/nbd/server.rs"]
#[expect(dead_code, reason = "the tests of the driver use more of it")]
mod server;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use ringfab_initiator::blocking::{Controller, EngineOptions};
use ringfab_initiator::{ConnectOptions, HostIdentity, ReconnectPolicy, Url};
use ringfab_tests::{NQN, Service, free_port, program, wait_until};
use serde_json::Value;

/// For what `ceph` waits for.
mod core {
    /// Whoever waits longer than this waits for ever.
    pub(crate) const PATIENCE: super::Duration = super::Duration::from_secs(120);
}

/// A target in a process of its own, with its control socket, on two cores.
struct Target {
    service: Service,
    port: u16,
}

impl Target {
    /// Serves what tables `[[subsystem.namespace]]` say, to hosts of all transports.
    fn start(namespaces: &str) -> Self {
        Self::start_at(free_port(), None, namespaces)
    }

    /// The same on a port of the caller's, with a state that outlives it, unless it has one of its own.
    fn start_at(port: u16, state: Option<&Path>, namespaces: &str) -> Self {
        let service = Service::start("ringfab-target", |folder| {
            let path = write_config(folder, port, state, namespaces);
            ["serve", "--config", &path].map(str::to_owned).to_vec()
        });
        let this = Self { service, port };
        wait_until("the socket is there", || this.service.path("control.sock").exists());
        this
    }

    /// Its namespaces, as `status --json` shows them.
    fn namespaces(&self) -> Value {
        let status = self.service.ask(&["status", "--json"]);
        let mut status: Value = serde_json::from_str(&status).expect("JSON");
        status["namespaces"].take()
    }

    /// The first of them.
    fn namespace(&self) -> Value {
        self.namespaces()[0].take()
    }

    fn state(&self) -> String {
        self.namespace()["state"].as_str().expect("a state").to_owned()
    }

    fn attach(&self) -> Controller {
        self.attach_with(ReconnectPolicy::DEFAULT)
    }

    fn attach_with(&self, reconnect: ReconnectPolicy) -> Controller {
        let url: Url = format!("nvme+tcp://127.0.0.1:{}/{NQN}", self.port).parse().expect("a URL");
        let host = HostIdentity::for_url(&url).expect("an identity");
        let mut options = ConnectOptions::new(url, host);
        options.reconnect = reconnect;
        Controller::connect(options, EngineOptions::default()).expect("attached")
    }
}

/// What every disk does, as two hosts see it.
fn exercise(target: &Target) {
    const MIB: u64 = 1 << 20;
    let hosts = [target.attach(), target.attach()];
    for (number, host) in hosts.iter().enumerate() {
        let offset = number as u64 * MIB;
        let written: Vec<u8> = (0..MIB).map(|at| (at >> 9) as u8 ^ number as u8).collect();
        host.write_at(1, offset, &written, number == 1).expect("written");
        host.flush(1).expect("flushed");
        let mut read = vec![0; written.len()];
        hosts[1 - number].read_at(1, offset, &mut read).expect("read by the other host");
        assert!(read == written, "host {number}");
    }
    hosts[0].write_zeroes(1, 4096, 8192, true).expect("zeroed");
    let mut read = vec![1; 8192];
    hosts[1].read_at(1, 4096, &mut read).expect("read");
    assert!(read.iter().all(|byte| *byte == 0));
    for host in hosts {
        host.detach().expect("detached");
    }
}

fn write_config(folder: &Path, port: u16, state: Option<&Path>, namespaces: &str) -> String {
    let listener = |transport: &str, port: u16| {
        format!("[[listener]]\naddress = \"127.0.0.1\"\nport = {port}\ntransport = {transport:?}\n")
    };
    let text = format!(
        "[target]\nstate_dir = {:?}\ncores = 2\ndrain_timeout_s = 5\n[control]\nsocket = {:?}\n{}\
         [[subsystem]]\nnqn = {NQN:?}\nallow_any_host = true\n{namespaces}",
        state.map_or_else(|| folder.join("state"), Path::to_owned),
        folder.join("control.sock"),
        listener("tcp", port),
    );
    let path = folder.join("target.toml");
    std::fs::write(&path, text).expect("a configuration");
    path.display().to_string()
}

/// What `ringfab-target check --backings` says of a configuration.
fn check(namespaces: &str) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let path = write_config(folder.path(), free_port(), None, namespaces);
    let mut command = Command::new(program("ringfab-target"));
    let output =
        command.args(["check", "--quiet", "--backings", "--config", &path]).output().expect("it runs");
    String::from_utf8_lossy(&output.stderr).into_owned()
}
