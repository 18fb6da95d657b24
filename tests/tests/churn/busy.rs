//! The target: the program itself, with two cores and a control socket.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use ringfab_target::control::Request;
use ringfab_target::control::client::ask;
use ringfab_tests::{NQN, PATIENCE, Service, free_port};
use serde_json::Value;

use super::{Addresses, second_address};

/// Bytes of the two namespaces that stay: one of memory, one of a file.
const BYTES: u64 = 64 << 20;

/// A target that runs.
pub(crate) struct BusyTarget {
    service: Service,
    ports: [u16; 4],
}

/// What a target has in use, all cores and the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InUse {
    /// Files and sockets, the one for this question included.
    open_files: u64,
    controllers: usize,
    namespaces: usize,
    /// By core: queues, commands, queue pairs, TCP connections, regions, disks, and buffers of three pools.
    cores: Vec<[u64; 9]>,
}

impl BusyTarget {
    /// Few buffers, so that hosts wait for them.
    pub(crate) fn start() -> Self {
        let ports = std::array::from_fn(|_| free_port());
        let service = Service::start("ringfab-target", |folder| {
            let config = folder.join("target.toml");
            fs::write(&config, configuration(folder, ports)).expect("a configuration");
            vec!["serve".to_owned(), "--config".to_owned(), config.display().to_string()]
        });
        let target = Self { service, ports };
        let begun = std::time::Instant::now();
        while !target.socket().exists() {
            assert!(begun.elapsed() < PATIENCE, "there is no control socket: {}", target.log());
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        target
    }

    /// Where most hosts find it, and where those do that shall be at another address.
    pub(crate) fn addresses(&self) -> (Addresses, Addresses) {
        let at = |host: &str, port: u16| (host.parse::<std::net::IpAddr>().expect("an address"), port).into();
        let [rdma, tcp, other_rdma, other_tcp] = self.ports;
        let (first, second) = ("127.0.0.1", second_address());
        (
            Addresses { rdma: at(first, rdma), tcp: at(first, tcp) },
            Addresses { rdma: at(second, other_rdma), tcp: at(second, other_tcp) },
        )
    }

    /// Its control socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.service.path("control")
    }

    /// A path in its folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.service.path(name)
    }

    /// What it says.
    pub(crate) fn log(&self) -> String {
        self.service.log()
    }

    /// What it has in use now.
    pub(crate) fn in_use(&self) -> InUse {
        let status = ask(&self.socket(), &Request::Status).expect("its status");
        let list = |value: &Value| value.as_array().expect("a list").len();
        let cores = status["cores"].as_array().expect("a list").iter().map(core).collect();
        InUse {
            open_files: status["open_files"].as_u64().expect("a number"),
            controllers: list(&status["controllers"]),
            namespaces: list(&status["namespaces"]),
            cores,
        }
    }
}

fn core(usage: &Value) -> [u64; 9] {
    let number = |value: &Value| value.as_u64().expect("a number");
    let plain = ["queues", "commands", "queue_pairs", "tcp_connections", "regions", "disks"];
    let pools = ["io_buffers", "admin_buffers", "compare_buffers"].map(|pool| &usage[pool]["taken"]);
    let all = plain.iter().map(|key| &usage[*key]).chain(pools);
    all.map(number).collect::<Vec<_>>().try_into().expect("nine")
}

fn configuration(folder: &Path, ports: [u16; 4]) -> String {
    let image = folder.join("image");
    File::create(&image).and_then(|file| file.set_len(BYTES)).expect("an image");
    let second = second_address();
    let [rdma, tcp, other_rdma, other_tcp] = ports;
    let listener = |address: &str, port: u16, transport: &str| {
        format!("[[listener]]\naddress = {address:?}\nport = {port}\ntransport = {transport:?}\n")
    };
    [
        format!("[target]\nstate_dir = {:?}\ncores = 2\n", folder.join("state")),
        "[memory]\nsmall_buffers = 128\nlarge_buffers = 64\n".to_owned(),
        format!("[control]\nsocket = {:?}\n", folder.join("control")),
        listener("127.0.0.1", rdma, "rdma"),
        listener("127.0.0.1", tcp, "tcp"),
        listener(second, other_rdma, "rdma"),
        listener(second, other_tcp, "tcp"),
        format!("[[subsystem]]\nnqn = {NQN:?}\nallow_any_host = true\n"),
        format!("[[subsystem.namespace]]\nmemory = \"{BYTES}\"\nblock_bytes = 512\n"),
        format!("[[subsystem.namespace]]\npath = {image:?}\nblock_bytes = 512\n"),
        "direct = false\nallow_page_cache = true\n".to_owned(),
    ]
    .concat()
}
