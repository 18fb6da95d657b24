//! What hands a namespace to other programs, beside what others hand out, all asked by the same job of fio.
//!
//! The scheduler places them: three processes of ours share two cores where the others have two.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use crate::case::{Namespace, Rw, Server, Shim, Transport};
use crate::fio::Job;
use crate::sample::Sample;
use crate::service::Service;
use crate::target::{Setup, Target};

const IO_BYTES: u32 = 4096;
const DEPTH: u16 = 32;
/// What is served, or the part of it that is used.
const SIZE_BYTES: u64 = 256 << 20;
/// A file system in memory that every Linux has.
const MEMORY_FOLDER: &str = "/dev/shm";

/// The servers that were needed so far. They stay until the end and sleep while others are measured.
#[derive(Default)]
pub(crate) struct Shims(BTreeMap<Server, Running>);

impl Shims {
    /// Runs one case, starting its server if it does not run yet.
    pub(crate) fn measure(&mut self, setup: &Setup, target: &Target, case: &Shim) -> Result<Sample> {
        let running = match self.0.entry(case.server) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let running = Running::start(setup, target, case.server)?;
                // A first pass gives all of them the same data in memory that is there.
                running.job(Rw::Write, 1 << 20).run_whole()?;
                entry.insert(running)
            }
        };
        running.job(case.rw, IO_BYTES).run(setup.warmup, setup.time)
    }
}

/// A server and how fio reaches it.
struct Running {
    engine: Vec<String>,
    mount: Option<PathBuf>,
    _service: Service,
    _folder: TempDir,
}

impl Running {
    fn start(setup: &Setup, target: &Target, server: Server) -> Result<Self> {
        let folder = tempfile::tempdir_in(MEMORY_FOLDER).context("a folder in memory")?;
        match server {
            Server::Fuse => Self::start_fuse(setup, target, Some("never"), folder),
            Server::FuseUring => {
                let _switch = UringSwitch::on()?;
                Self::start_fuse(setup, target, Some("always"), folder)
            }
            Server::Bindfs => Self::start_fuse(setup, target, None, folder),
            Server::Nbd | Server::Nbdkit | Server::QemuNbd => Self::start_nbd(setup, target, server, folder),
        }
    }

    fn start_nbd(setup: &Setup, target: &Target, server: Server, folder: TempDir) -> Result<Self> {
        let socket = folder.path().join("socket");
        let command = match server {
            Server::Nbd => {
                let mut command = setup.program("ringfab");
                command.args(["nbd", &url(setup, target), "--socket"]).arg(&socket);
                command
            }
            Server::Nbdkit => {
                let mut command = Command::new("nbdkit");
                command.args(["--foreground", "--unix"]).arg(&socket);
                command.args(["memory", &format!("size={SIZE_BYTES}")]);
                command
            }
            _ => {
                let mut command = Command::new("qemu-nbd");
                command.args(["--format=raw", "--persistent", "--socket"]).arg(&socket);
                command.arg(file_in(folder.path())?);
                command
            }
        };
        let service = Service::start(command, None, &folder.path().join("log"), || socket.exists())?;
        let uri = format!("--uri=nbd+unix:///?socket={}", socket.display());
        Ok(Self {
            engine: vec!["--ioengine=nbd".to_owned(), uri],
            mount: None,
            _service: service,
            _folder: folder,
        })
    }

    /// Ours, with or without io_uring, or else the other one.
    fn start_fuse(setup: &Setup, target: &Target, ours: Option<&str>, folder: TempDir) -> Result<Self> {
        let (source, mount) = (folder.path().join("source"), folder.path().join("mount"));
        fs::create_dir(&source)?;
        fs::create_dir(&mount)?;
        let command = if let Some(io_uring) = ours {
            let mut command = setup.program("ringfab");
            command.args(["fuse", &url(setup, target), "--io-uring", io_uring]).arg(&mount);
            command
        } else {
            file_in(&source)?;
            let mut command = Command::new("bindfs");
            command.args(["-f", "--multithreaded", "--forward-odirect=512"]).args([&source, &mount]);
            command
        };
        let log = folder.path().join("log");
        let service = Service::start(command, None, &log, || first_file(&mount).is_some())?;
        let file = first_file(&mount).context("a file in the mounted folder")?;
        let engine = ["--ioengine=io_uring".to_owned(), "--direct=1".to_owned()];
        let engine = engine.into_iter().chain([format!("--filename={}", file.display())]).collect();
        Ok(Self { engine, mount: Some(mount), _service: service, _folder: folder })
    }

    fn job(&self, rw: Rw, io_bytes: u32) -> Job<'_> {
        Job { engine: &self.engine, environment: None, rw, io_bytes, depth: DEPTH, size_bytes: SIZE_BYTES }
    }
}

impl Drop for Running {
    /// What is mounted goes before what serves it.
    fn drop(&mut self) {
        if let Some(mount) = &self.mount {
            let mut command = Command::new("fusermount3");
            let _gone = command.arg("-u").arg(mount).stdout(Stdio::null()).stderr(Stdio::null()).status();
        }
    }
}

/// The kernel's switch for FUSE over io_uring, on while something is mounted. What is mounted does not need it any
/// more.
struct UringSwitch {
    was_off: bool,
}

impl UringSwitch {
    const PATH: &str = "/sys/module/fuse/parameters/enable_uring";

    fn on() -> Result<Self> {
        let value = fs::read_to_string(Self::PATH).context("the kernel has no FUSE over io_uring")?;
        let was_off = value.trim() == "N";
        if was_off {
            fs::write(Self::PATH, "Y").context("FUSE over io_uring is switched off, and so it stays")?;
        }
        Ok(Self { was_off })
    }
}

impl Drop for UringSwitch {
    fn drop(&mut self) {
        if self.was_off {
            let _same_as_before = fs::write(Self::PATH, "N");
        }
    }
}

/// Of the memory namespace over the software RNIC.
fn url(setup: &Setup, target: &Target) -> String {
    target.url(setup, Transport::Rdma, false, Namespace::Memory.nsid())
}

/// A file of the size that is served, all of it written.
fn file_in(folder: &Path) -> Result<PathBuf> {
    let path = folder.join("disk");
    let mut file = fs::File::create(&path).context("a file in memory")?;
    let piece = vec![0x5a; 1 << 20];
    for _ in 0..SIZE_BYTES >> 20 {
        file.write_all(&piece).context("a file in memory")?;
    }
    ensure!(file.metadata()?.len() == SIZE_BYTES, "the file has another size");
    Ok(path)
}

fn first_file(folder: &Path) -> Option<PathBuf> {
    let mut entries = fs::read_dir(folder).ok()?.filter_map(|entry| entry.ok());
    entries.find(|entry| entry.file_type().is_ok_and(|kind| kind.is_file())).map(|entry| entry.path())
}
