//! What stands beneath a namespace on another machine or in another program, through target and initiator, beside its
//! own client on the same.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use crate::case::{Backing, Engine, Fabric, Namespace, Rw, Tool, Transport};
use crate::fabric;
use crate::fio::Job;
use crate::sample::Sample;
use crate::service::Service;
use crate::target::{Layout, NAMESPACE_BYTES, Setup, Target};

/// The pool and image of the cluster.
const POOL: &str = "rbd";
const IMAGE: &str = "bench";
/// Storage daemons: each object is on both.
const OSDS: &str = "2";

/// The servers that were needed so far. They stay until the end and sleep while others are measured.
#[derive(Default)]
pub(crate) struct Backings(BTreeMap<Engine, Running>);

impl Backings {
    /// Runs one case, starting what it needs if that does not run yet.
    pub(crate) fn measure(&mut self, setup: &Setup, case: &Backing) -> Result<Sample> {
        let running = match self.0.entry(case.engine) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let running = Running::start(case.engine)?;
                // What was never written is read without looking anywhere.
                running.job(Rw::Write, 1 << 20, 8).run_whole()?;
                entry.insert(running)
            }
        };
        match case.tool {
            Tool::Fio => running.job(case.rw, case.io_bytes, case.depth).run(setup.warmup, setup.time),
            Tool::Ours => {
                let Backing { rw, io_bytes, depth, .. } = *case;
                let (transport, namespace) = (Transport::Tcp, Namespace::Null);
                let load = Fabric { transport, digests: false, namespace, rw, io_bytes, depth, queues: 1 };
                // A cluster has its daemons on these processors, and librbd has threads as well: all of them have
                // something to do unless there is one command at a time.
                let setup = Setup { shares: case.engine == Engine::Rbd && depth > 1, ..setup.clone() };
                fabric::measure(&setup, running.target(&setup)?, &load)
            }
        }
    }
}

/// A server, how fio reaches it, and targets that serve it as namespace 1.
struct Running {
    engine: Vec<String>,
    /// The configuration of a cluster, which the environment names to fio.
    conf: Option<PathBuf>,
    layout: Layout,
    /// One that has a processor for itself, and one that shares them.
    targets: [Option<Target>; 2],
    _server: Server,
    _folder: TempDir,
}

#[expect(dead_code, reason = "they end what they have when they are dropped")]
enum Server {
    Nbdkit(Service),
    Ceph(Cluster),
}

impl Running {
    fn start(engine: Engine) -> Result<Self> {
        let folder = tempfile::tempdir().context("a folder")?;
        match engine {
            Engine::Nbd => Self::start_nbdkit(folder),
            Engine::Rbd => Self::start_ceph(folder),
        }
    }

    fn start_nbdkit(folder: TempDir) -> Result<Self> {
        let socket = folder.path().join("socket");
        let mut command = Command::new("nbdkit");
        command.args(["--foreground", "--unix"]).arg(&socket);
        command.args(["memory", &format!("size={NAMESPACE_BYTES}")]);
        let server = Service::start(command, None, &folder.path().join("log"), || socket.exists())?;
        let address = format!("nbd+unix:///?socket={}", socket.display());
        let layout = Layout::of_one(&format!("nbd = {address:?}"), "");
        let engine = vec!["--ioengine=nbd".to_owned(), format!("--uri={address}")];
        let (conf, targets) = (None, [None, None]);
        Ok(Self { engine, conf, layout, targets, _server: Server::Nbdkit(server), _folder: folder })
    }

    fn start_ceph(folder: TempDir) -> Result<Self> {
        let cluster = Cluster::start(folder.path())?;
        let (conf, keyring) = (folder.path().join("ceph.conf"), folder.path().join("keyring"));
        let table = format!("[ceph]\nconf = {conf:?}\nkeyring = {keyring:?}\n");
        let layout = Layout::of_one(&format!("rbd = \"{POOL}/{IMAGE}\""), &table);
        let [pool, image] = [format!("--pool={POOL}"), format!("--rbdname={IMAGE}")];
        let engine = ["--ioengine=rbd", "--clientname=admin", &pool, &image].map(str::to_owned).to_vec();
        let (conf, targets) = (Some(conf), [None, None]);
        Ok(Self { engine, conf, layout, targets, _server: Server::Ceph(cluster), _folder: folder })
    }

    fn target(&mut self, setup: &Setup) -> Result<&Target> {
        let Self { layout, targets, .. } = self;
        let place = &mut targets[usize::from(setup.shares)];
        if place.is_none() {
            *place = Some(Target::serve(setup, layout)?);
        }
        place.as_ref().context("it was just started")
    }

    fn job(&self, rw: Rw, io_bytes: u32, depth: u16) -> Job<'_> {
        let conf = self.conf.as_deref().map(|conf| ("CEPH_CONF", conf));
        Job { engine: &self.engine, environment: conf, rw, io_bytes, depth, size_bytes: NAMESPACE_BYTES }
    }
}

/// A cluster in memory with one image, until this is dropped.
struct Cluster(PathBuf);

impl Cluster {
    fn start(folder: &Path) -> Result<Self> {
        let this = Self(folder.to_owned());
        script(folder, "start", &[OSDS])?;
        let (image, size) = (format!("{POOL}/{IMAGE}"), format!("{NAMESPACE_BYTES}B"));
        // fio takes the exclusive lock and keeps it while it is connected; with it, the two would take turns.
        rbd(folder, &["create", "--image-feature", "layering", "--size", &size, &image])?;
        // What fio has written would be in its own memory, and ours is with the cluster.
        rbd(folder, &["config", "image", "set", &image, "rbd_cache", "false"])?;
        Ok(this)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ended = script(&self.0, "stop", &[]);
    }
}

fn rbd(folder: &Path, arguments: &[&str]) -> Result<()> {
    let mut command = Command::new("rbd");
    command.args(arguments).env("CEPH_CONF", folder.join("ceph.conf"));
    ensure!(command.status().context("start rbd")?.success(), "rbd {arguments:?} has failed");
    Ok(())
}

fn script(folder: &Path, what: &str, more: &[&str]) -> Result<()> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/ceph.sh");
    let mut command = Command::new(script);
    command.arg(what).arg(folder).args(more).stdout(Stdio::null());
    ensure!(command.status().context("start ceph.sh")?.success(), "ceph.sh {what} has failed");
    Ok(())
}
