//! Namespaces whose disks are on other machines, or in other programs: what hosts and administrators see of them.

#[path = "../kill/load.rs"]
#[expect(dead_code, reason = "the tests that kill targets use more of it")]
mod load;
mod nbd;
#[path = "../../../common/nbd/tests/server/mod.rs"]
#[expect(dead_code, reason = "the tests of the driver use more of it")]
mod server;

use std::path::Path;
use std::process::Command;

use ringfab_initiator::blocking::{Controller, EngineOptions};
use ringfab_initiator::{ConnectOptions, HostIdentity, ReconnectPolicy, Url};
use ringfab_tests::{NQN, Service, free_port, program, wait_until};
use serde_json::Value;

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

    /// Its first namespace, as `status --json` shows it.
    fn namespace(&self) -> Value {
        let status = self.service.ask(&["status", "--json"]);
        let status: Value = serde_json::from_str(&status).expect("JSON");
        status["namespaces"][0].clone()
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
