//! Disks that fail, hang, change their names or have two, and what an administrator sees of it.

mod filesystem;
mod hanging;
mod loss;
mod names;
mod replaced;

use std::path::{Path, PathBuf};
use std::process::Command;

use ringfab_initiator::blocking::{Controller, EngineOptions};
use ringfab_initiator::{ConnectOptions, HostIdentity, Url};
use ringfab_tests::{NQN, Service, free_port, program, wait_until};
use serde_json::Value;

const MIB: usize = 1 << 20;

/// A target in a process of its own, with its control socket.
struct Target {
    service: Service,
    port: u16,
}

impl Target {
    /// Serves what tables `[[subsystem.namespace]]` say, on two cores.
    fn start(namespaces: &str) -> Self {
        let port = free_port();
        let service =
            Service::start("ringfab-target", |folder| serve(folder, &config(folder, port, namespaces)));
        let this = Self { service, port };
        wait_until("the socket is there", || this.socket().exists());
        this
    }

    fn socket(&self) -> PathBuf {
        self.service.path("control")
    }

    /// Runs the program against it: whether it went well, and what it said.
    fn run(&self, arguments: &[&str]) -> (bool, String) {
        let mut command = Command::new(program("ringfab-target"));
        let output = command.args(arguments).arg("--socket").arg(self.socket()).output().expect("it runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.success(), text(&output.stdout) + &text(&output.stderr))
    }

    /// Its first namespace, as `status --json` shows it.
    fn namespace(&self) -> Value {
        self.status()["namespaces"][0].clone()
    }

    fn status(&self) -> Value {
        let (done, said) = self.run(&["status", "--json"]);
        assert!(done, "{said}");
        serde_json::from_str(&said).expect("JSON")
    }

    fn state(&self) -> String {
        self.namespace()["state"].as_str().expect("a state").to_owned()
    }

    fn reason(&self) -> String {
        self.namespace()["reason"].as_str().unwrap_or_default().to_owned()
    }

    fn attach(&self) -> Controller {
        let url: Url = format!("nvme+tcp://127.0.0.1:{}/{NQN}", self.port).parse().expect("a URL");
        let host = HostIdentity::for_url(&url).expect("an identity");
        Controller::connect(ConnectOptions::new(url, host), EngineOptions::default()).expect("attached")
    }
}

fn config(folder: &Path, port: u16, namespaces: &str) -> String {
    format!(
        "[target]\nstate_dir = {:?}\ncores = 2\ndrain_timeout_s = 3\n[control]\nsocket = {:?}\n\
         [[listener]]\naddress = \"127.0.0.1\"\nport = {port}\ntransport = \"tcp\"\n\
         [[subsystem]]\nnqn = {NQN:?}\nallow_any_host = true\n{namespaces}",
        folder.join("state"),
        folder.join("control"),
    )
}

/// The arguments of a target with a configuration.
fn serve(folder: &Path, config: &str) -> Vec<String> {
    let path = folder.join("target.toml");
    std::fs::write(&path, config).expect("a configuration");
    vec!["serve".to_owned(), "--config".to_owned(), path.display().to_string()]
}

/// A namespace through the page cache.
fn cached(path: &Path) -> String {
    format!("[[subsystem.namespace]]\npath = {path:?}\ndirect = false\nallow_page_cache = true\n")
}

fn make_file(folder: &Path, name: &str, bytes: usize) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, vec![0x11; bytes]).expect("a file");
    path
}
