//! What tests of both ends share: a target in this process or in one of its own, hosts and peers that break rules,
//! disks that hang, and the simulated world.
//!
//! Not implemented here: measurements of speed, which are in `tests/bench`, and tests with the Linux kernel as the
//! other end, which are in `tests/kernel`.

pub mod between;
pub mod busy;
pub mod cutter;
pub mod devices;
pub mod fake_disk;
pub mod fake_target;
pub mod logfmt;
pub mod member;
mod mounts;
pub mod openssl;
pub mod player;
mod port;
mod program;
pub mod raw_host;
pub mod raw_tcp;
pub mod recording;
mod service;
pub mod spdk_target;
pub mod stuck_fs;
pub mod tamper;
pub mod tls_stream;
pub mod world;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ringfab_block::{Driver, DriverHandle};
use ringfab_initiator::blocking::{Controller, EngineOptions};
use ringfab_initiator::{ConnectOptions, HostIdentity, Url};
use ringfab_target::config::{Source, Transport};
use ringfab_target::control::Manager;
use ringfab_target::core::CoreUsage;
use ringfab_target::{Config, Identity, Target};
use tempfile::TempDir;

pub use mounts::{is_mounted, mountinfo, own_mounts};
pub use port::free_port;
pub use program::{not_run, program};
pub use service::{Caching, PATIENCE, Service, file_target, file_target_with, have, run_bounded, wait_until};

/// The subsystem of [`TestTarget`].
pub const NQN: &str = "nqn.2026-11.org.ringfab:test";

/// A target in threads of this process, with its state in a folder of its own. Dropping it drains it.
#[derive(Debug)]
pub struct TestTarget {
    running: Option<ringfab_target::core::Running>,
    /// What is served.
    pub target: Arc<Target>,
    address: SocketAddr,
    config: Config,
    identity: Identity,
    _state: TempDir,
}

impl TestTarget {
    /// Serves the namespaces that `namespaces` lists as TOML tables `[[subsystem.namespace]]`, to any host, on a free
    /// port of the loopback interface.
    ///
    /// # Panics
    /// When it cannot: a test has nothing to do then.
    pub fn start(namespaces: &str) -> Self {
        Self::with_target("cores = 1\nspin_us = 20", namespaces)
    }

    /// The same with lines of the `[target]` table.
    ///
    /// # Panics
    /// When it cannot.
    pub fn with_target(process: &str, namespaces: &str) -> Self {
        Self::with(process, "", namespaces)
    }

    /// The same with lines of the `[[listener]]` table.
    ///
    /// # Panics
    /// When it cannot.
    pub fn with_listener(listener: &str, namespaces: &str) -> Self {
        Self::with("cores = 1\nspin_us = 20", listener, namespaces)
    }

    /// The same with lines of both.
    ///
    /// # Panics
    /// When it cannot.
    pub fn with(process: &str, listener: &str, namespaces: &str) -> Self {
        Self::adapted(process, listener, namespaces, |_| {})
    }

    /// Serves a device of the test's own as namespace 1, with blocks of 4 KiB, on two cores over NVMe/TCP.
    ///
    /// # Panics
    /// When it cannot.
    pub fn with_device(driver: impl Driver + 'static) -> Self {
        Self::with_device_on_cores(2, driver)
    }

    /// Serves namespaces on so many cores, also where there are fewer processors.
    ///
    /// # Panics
    /// When it cannot.
    pub fn on_cores(cores: usize, listener: &str, namespaces: &str) -> Self {
        Self::adapted("cores = 1\nspin_us = 20", listener, namespaces, |config| on_cores(config, cores))
    }

    /// Serves a device of the test's own as namespace 1, with blocks of 4 KiB, on so many cores over NVMe/TCP.
    ///
    /// # Panics
    /// When it cannot.
    pub fn with_device_on_cores(cores: usize, driver: impl Driver + 'static) -> Self {
        Self::with_device_over("tcp", cores, 4096, driver)
    }

    /// Serves a device of the test's own as namespace 1, with blocks of a size, on so many cores over a transport.
    ///
    /// # Panics
    /// When it cannot.
    pub fn with_device_over(
        transport: &str,
        cores: usize,
        block_bytes: u32,
        driver: impl Driver + 'static,
    ) -> Self {
        let listener = format!("transport = {transport:?}");
        let namespace = format!("[[subsystem.namespace]]\nnull = \"4KiB\"\nblock_bytes = {block_bytes}\n");
        Self::adapted("cores = 1\nspin_us = 20", &listener, &namespace, |config| {
            on_cores(config, cores);
            config.subsystems[0].namespaces[0].source = Source::Device(DriverHandle::new(driver));
        })
    }

    /// Serves a device of the test's own as namespace 1, on one core over RDMA. Its access group follows it: when the
    /// device is gone, `on_lost_disk` says what becomes of the group.
    ///
    /// # Panics
    /// When it cannot.
    pub fn with_followed_device(on_lost_disk: &str, driver: impl Driver + 'static) -> Self {
        let tables = format!(
            "[[subsystem.ana]]\ngroup = 1\non_lost_disk = {on_lost_disk:?}\n\
             [[subsystem.namespace]]\nnull = \"4KiB\"\nblock_bytes = 4096\n"
        );
        Self::adapted("cores = 1\nspin_us = 20", "", &tables, |config| {
            config.subsystems[0].namespaces[0].source = Source::Device(DriverHandle::new(driver));
        })
    }

    fn adapted(process: &str, listener: &str, namespaces: &str, adapt: impl FnOnce(&mut Config)) -> Self {
        let state = tempfile::tempdir().expect("a folder for the state");
        let text = format!(
            "[target]\nstate_dir = {:?}\n{process}\n[[listener]]\naddress = \"127.0.0.1\"\nport = 0\n{listener}\n\
             [[subsystem]]\nnqn = {NQN:?}\nallow_any_host = true\n{namespaces}",
            state.path()
        );
        let mut config = Config::parse(&text, "test").expect("a valid configuration");
        adapt(&mut config);
        let identity = Identity::load_or_create(state.path()).expect("an identity");
        let target = Target::new(&config, &identity).expect("a target");
        let running = ringfab_target::core::start(&target, &config).expect("running cores");
        let address = running.addresses()[0];
        Self { running: Some(running), target, address, config, identity, _state: state }
    }

    /// What manages its namespaces while it runs.
    ///
    /// # Panics
    /// Never: it runs until it is dropped.
    pub fn manager(&self) -> Manager {
        let cores = self.running.as_ref().expect("it runs").cores().clone();
        Manager::new(Arc::clone(&self.target), cores, self.identity.clone(), &self.config, None)
    }

    /// What each of its cores has in use.
    ///
    /// # Panics
    /// When a core does not say so in time.
    pub fn usage(&self) -> Vec<CoreUsage> {
        let running = self.running.as_ref().expect("it runs until it is dropped");
        running.cores().usage().expect("every core answers")
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where its other listeners are, in the order of their tables `[[listener]]` among the namespaces.
    pub fn other_addresses(&self) -> &[SocketAddr] {
        self.running.as_ref().map_or(&[], |running| &running.addresses()[1..])
    }

    /// The URL of its subsystem.
    ///
    /// # Panics
    /// Never: the URL is well formed.
    pub fn url(&self, parameters: &str) -> Url {
        self.url_at(self.address, parameters)
    }

    fn url_at(&self, address: SocketAddr, parameters: &str) -> Url {
        let text = match self.config.listeners[0].transport {
            Transport::Rdma => format!("nvme+rdma://{address}/{NQN}?provider=iwarp{parameters}"),
            Transport::Tcp => format!("nvme+tcp://{address}/{NQN}?{}", parameters.trim_start_matches('&')),
        };
        text.parse().expect("a URL")
    }

    /// Attaches to it.
    ///
    /// # Panics
    /// When it cannot.
    pub fn attach(&self) -> Controller {
        self.attach_at(self.address)
    }

    /// Attaches to it at one of its addresses.
    ///
    /// # Panics
    /// When it cannot.
    pub fn attach_at(&self, address: SocketAddr) -> Controller {
        Self::attach_by(self.url_at(address, ""))
    }

    /// Attaches to it with options of an address, each behind an ampersand.
    ///
    /// # Panics
    /// When it cannot.
    pub fn attach_with(&self, parameters: &str) -> Controller {
        Self::attach_by(self.url(parameters))
    }

    fn attach_by(url: Url) -> Controller {
        let host = HostIdentity::for_url(&url).expect("an identity");
        let options = ConnectOptions::new(url, host);
        Controller::connect(options, EngineOptions::default()).expect("an attached controller")
    }
}

/// A file may not name a processor twice, since that helps nobody but tests.
fn on_cores(config: &mut Config, cores: usize) {
    let processors = config.target.cores.clone();
    config.target.cores = processors.iter().copied().cycle().take(cores).collect();
}

impl TestTarget {
    /// Drains it.
    ///
    /// # Errors
    /// When it does not end in order.
    pub fn end(mut self) -> io::Result<()> {
        self.drain()
    }

    fn drain(&mut self) -> io::Result<()> {
        let Some(running) = self.running.take() else { return Ok(()) };
        running.drain(Duration::from_secs(5));
        running.join()
    }
}

impl Drop for TestTarget {
    fn drop(&mut self) {
        if let Err(error) = self.drain() {
            assert!(std::thread::panicking(), "the target did not end in order: {error}");
        }
    }
}
