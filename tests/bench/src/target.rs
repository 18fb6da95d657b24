//! `ringfab-target` as a process, with what is to be served.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ringfab_auth::{CipherSuite, ConfiguredPsk, DhchapKey, Hash, system_random};
use ringfab_target::control::Request;
use ringfab_target::control::client::ask;
use serde_json::Value;
use tempfile::TempDir;

use crate::case::{Congestion, Namespace, Transport};
use crate::place::TARGET_CORE;
use crate::service::Service;

/// Name of the one subsystem.
const NQN: &str = "nqn.2026-11.org.example:bench";
/// The host that has a key for TLS: the first one of those that are held.
pub(crate) const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-4000-8000-000000000000";
/// The host that has to authenticate.
const AUTHENTICATED: &str = "nqn.2026-11.org.example:authenticated";
/// Names of files with their keys, in the target's folder.
const TLS_KEY: &str = "tls-key";
const DHCHAP_KEY: &str = "dhchap-key";
/// Identifiers of the file where two targets serve it.
const SHARED_DISK: &str = "uuid = \"00000000-0000-4000-8000-00000000f11e\"\n\
    nguid = \"000000000000400080000000000f11e0\"";
/// Size of the memory namespace and of the file; large enough to lie outside the caches.
pub(crate) const NAMESPACE_BYTES: u64 = 512 << 20;
/// A target that has its listeners has its control socket within this time.
const CONTROL_PATIENCE: Duration = Duration::from_secs(5);

/// Where the programs are, and how long to run them.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    /// Folder of the programs.
    pub(crate) programs: PathBuf,
    pub(crate) warmup: Duration,
    pub(crate) time: Duration,
    /// Of the connections that Ringfab makes.
    pub(crate) congestion: Congestion,
    /// Both ends share all processors with what stands beneath, which needs them itself: they run anywhere, and sleep
    /// instead of spinning, as the client does that they are held against.
    pub(crate) shares: bool,
}

impl Setup {
    /// A program of ours.
    pub(crate) fn program(&self, name: &str) -> Command {
        Command::new(self.programs.join(name))
    }
}

/// What a target serves, and with how many threads.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    /// Reactor threads over all processors, which may be fewer; otherwise one on the target's core.
    pub(crate) threads: Option<usize>,
    /// Of its controllers, if they are limited, as `FIRST-LAST`.
    controller_ids: Option<&'static str>,
    /// Tables of namespaces, as TOML.
    namespaces: String,
}

impl Layout {
    /// One namespace of each kind, each with the identifier of its [`Namespace`].
    pub(crate) fn usual(file: &Path) -> Self {
        let mut namespaces = String::new();
        push(&mut namespaces, Namespace::Null.nsid(), "null = \"1TiB\"");
        push(&mut namespaces, Namespace::Memory.nsid(), &format!("memory = {NAMESPACE_BYTES}"));
        push(&mut namespaces, Namespace::File.nsid(), &on_file(file));
        Self { threads: None, controller_ids: None, namespaces }
    }

    /// The file alone, as one of two targets serves it; each of them has a half of the controllers' identifiers.
    pub(crate) fn half(file: &Path, second: bool) -> Self {
        let mut namespaces = String::new();
        push(&mut namespaces, Namespace::File.nsid(), &format!("{}\n{SHARED_DISK}", on_file(file)));
        let controller_ids = if second { "1001-2000" } else { "1-1000" };
        Self { threads: None, controller_ids: Some(controller_ids), namespaces }
    }

    /// One namespace, and the tables that it needs.
    pub(crate) fn of_one(source: &str, tables: &str) -> Self {
        let mut namespaces = String::new();
        push(&mut namespaces, Namespace::Null.nsid(), source);
        namespaces.push_str(tables);
        Self { threads: None, controller_ids: None, namespaces }
    }

    /// So many namespaces: the last one is null, those before it are on sparse files in a folder, which are made here.
    pub(crate) fn many(count: u32, folder: &Path) -> Result<Self> {
        const FILE_BYTES: u64 = 1 << 20;
        let mut namespaces = String::new();
        for nsid in 1..count {
            let path = folder.join(nsid.to_string());
            fs::File::create(&path).and_then(|file| file.set_len(FILE_BYTES)).context("make a file")?;
            push(&mut namespaces, nsid, &on_file(&path));
        }
        push(&mut namespaces, count, "null = \"1TiB\"");
        Ok(Self { threads: None, controller_ids: None, namespaces })
    }
}

fn push(tables: &mut String, nsid: u32, source: &str) {
    let _infallible = write!(tables, "[[subsystem.namespace]]\nnsid = {nsid}\n{source}\nblock_bytes = 512\n");
}

fn on_file(path: &Path) -> String {
    // Some figures are those of a second target beside the first.
    format!("path = {path:?}\ndirect = true\nshared = true")
}

/// A target with one subsystem and a listener of each transport.
pub(crate) struct Target {
    service: Service,
    /// `HOST:PORT` of RDMA, of TCP, and of TCP with TLS.
    addresses: [String; 3],
    folder: TempDir,
}

impl Target {
    /// Starts one with the usual namespaces at its defaults on the target's core.
    pub(crate) fn start(setup: &Setup, file: &Path) -> Result<Self> {
        Self::serve(setup, &Layout::usual(file))
    }

    /// Starts one.
    pub(crate) fn serve(setup: &Setup, layout: &Layout) -> Result<Self> {
        let folder = tempfile::tempdir().context("a folder for the target")?;
        let path = |name: &str| folder.path().join(name);
        let random = &mut system_random();
        let psk = ConfiguredPsk::generate(CipherSuite::Aes128GcmSha256, random);
        write_secret(&path(TLS_KEY), psk.to_text().expose())?;
        let key = DhchapKey::generate(Hash::Sha256, None, random);
        write_secret(&path(DHCHAP_KEY), key.to_text().expose())?;
        fs::write(path("target.toml"), configuration(setup, layout, folder.path()))?;
        let (mut command, core) = match layout.threads {
            None => (setup.program("ringfab-target"), (!setup.shares).then_some(TARGET_CORE)),
            Some(_) => (Command::new(std::env::current_exe().context("this program")?), None),
        };
        command.args(["serve", "--config"]).arg(path("target.toml"));
        command.arg("--ready-file").arg(path("ready"));
        if let Some(threads) = layout.threads {
            command.args(["--threads", &threads.to_string()]);
        }
        let addresses = || {
            let text = fs::read_to_string(path("ready")).ok()?;
            let mut lines = text.lines().map(str::to_owned);
            Some([lines.next()?, lines.next()?, lines.next()?])
        };
        let service = Service::start(command, core, &path("log"), || addresses().is_some())?;
        let addresses = addresses().context("three addresses in the ready file")?;
        Ok(Self { service, addresses, folder })
    }

    /// Its process.
    pub(crate) fn service(&self) -> &Service {
        &self.service
    }

    /// Address of a namespace, or of all when there is none.
    pub(crate) fn url(
        &self,
        setup: &Setup,
        transport: Transport,
        digests: bool,
        nsid: impl Into<Option<u32>>,
    ) -> String {
        let state = if digests { "on" } else { "off" };
        let congestion = setup.congestion.name().map(|name| format!("&congestion={name}"));
        let nsid = nsid.into().map(|nsid| format!("&ns={nsid}"));
        let rest = [congestion, nsid].map(Option::unwrap_or_default).concat();
        match transport {
            Transport::Rdma => {
                let address = &self.addresses[0];
                format!("nvme+rdma://{address}/{NQN}?provider=iwarp&crc={state}{rest}")
            }
            Transport::Tcp => {
                let address = &self.addresses[1];
                format!("nvme+tcp://{address}/{NQN}?hdgst={state}&ddgst={state}{rest}")
            }
            Transport::Tls => {
                let (address, key) = (&self.addresses[2], self.folder.path().join(TLS_KEY));
                let key = key.display();
                format!("nvme+tcp://{address}/{NQN}?hdgst={state}&ddgst={state}{rest}&tls_key=file:{key}")
            }
            Transport::Authenticated => {
                let (address, key) = (&self.addresses[1], self.folder.path().join(DHCHAP_KEY));
                let keys = format!("&hostnqn={AUTHENTICATED}&dhchap_key=file:{}", key.display());
                format!("nvme+tcp://{address}/{NQN}?hdgst={state}&ddgst={state}{rest}{keys}")
            }
        }
    }

    /// Bytes that all its cores have copied so far.
    pub(crate) fn copied_bytes(&self) -> Result<u64> {
        let status = self.status()?;
        let cores = status["cores"].as_array().context("a status with cores")?;
        let copied = |core: &Value| copied_by_core(core).context("a core that counts what it copies");
        cores.iter().map(copied).sum()
    }

    fn status(&self) -> Result<Value> {
        let (socket, begun) = (self.folder.path().join("control"), Instant::now());
        loop {
            match ask(&socket, &Request::Status) {
                Ok(status) => return Ok(status),
                Err(error) if begun.elapsed() > CONTROL_PATIENCE => return Err(error.into()),
                Err(_) => sleep(Duration::from_millis(2)),
            }
        }
    }
}

/// A new file that nobody else reads.
fn write_secret(path: &Path, text: &str) -> Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes()).context("write a key")
}

fn copied_by_core(core: &Value) -> Option<u64> {
    ["received", "sent", "disks"].iter().map(|part| core["copied_bytes"][part].as_u64()).sum()
}

fn configuration(setup: &Setup, layout: &Layout, folder: &Path) -> String {
    let congestion = setup.congestion.name().map(|name| format!("congestion = {name:?}\n"));
    let congestion = congestion.unwrap_or_default();
    // With more threads than that, whoever starts them says where they run.
    let cores = match layout.threads {
        Some(_) => String::new(),
        None if setup.shares => "cores = 1\nspin_us = 0\n".to_owned(),
        None => format!("cores = [{TARGET_CORE}]\n"),
    };
    let (state, control) = (folder.join("state"), folder.join("control"));
    let controller_ids = layout.controller_ids.map(|ids| format!("controller_ids = {ids:?}\n"));
    let controller_ids = controller_ids.unwrap_or_default();
    let key = |name| format!("file:{}", folder.join(name).display());
    let (psk, dhchap) = (key(TLS_KEY), key(DHCHAP_KEY));
    format!(
        "[target]\nstate_dir = {state:?}\n{cores}[control]\nsocket = {control:?}\n\
         [[listener]]\naddress = \"127.0.0.1\"\nport = 0\nprovider = \"iwarp\"\ncrc = false\n{congestion}\
         [[listener]]\naddress = \"127.0.0.1\"\nport = 0\ntransport = \"tcp\"\n{congestion}\
         [[listener]]\naddress = \"127.0.0.1\"\nport = 0\ntransport = \"tcp\"\ntls = \"required\"\n{congestion}\
         [[host]]\nnqn = {HOST:?}\ntls_key = {psk:?}\n\
         [[host]]\nnqn = {AUTHENTICATED:?}\ndhchap_key = {dhchap:?}\n\
         dhchap_hashes = [\"sha256\"]\ndhchap_groups = [\"ffdhe3072\"]\n\
         [[subsystem]]\nnqn = {NQN:?}\nallow_any_host = true\n{controller_ids}{}",
        layout.namespaces,
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn of_many_namespaces_the_last_is_null_and_the_others_are_files_that_exist() {
        let folder = tempfile::tempdir().expect("a folder");
        let layout = Layout::many(3, folder.path()).expect("files");
        let tables: Vec<&str> = layout.namespaces.split("[[subsystem.namespace]]\n").skip(1).collect();
        assert_eq!(tables.len(), 3);
        assert!(tables[0].starts_with("nsid = 1\npath = ") && tables[1].starts_with("nsid = 2\npath = "));
        assert_eq!(tables[2], "nsid = 3\nnull = \"1TiB\"\nblock_bytes = 512\n");
        assert!(folder.path().join("2").is_file() && !folder.path().join("3").exists());
    }

    #[test]
    fn what_a_core_has_copied_is_the_sum_of_its_parts_and_none_may_be_missing() {
        let core = |parts: Value| json!({ "copied_bytes": parts });
        let whole = core(json!({ "received": 1, "sent": 20, "disks": 300 }));
        assert_eq!(copied_by_core(&whole), Some(321));
        assert_eq!(copied_by_core(&core(json!({ "received": 1, "sent": 20 }))), None);
    }
}
