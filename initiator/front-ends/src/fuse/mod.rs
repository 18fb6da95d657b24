//! `ringfab fuse`: namespaces as files, through FUSE.
//!
//! Requests come over io_uring if the kernel offers that, and are served on the engine's thread. Otherwise several
//! threads take them from `/dev/fuse`, and each waits for its own I/O on the blocking handle. Files are opened for
//! direct I/O, so nothing is cached twice.
//!
//! | module | what it does |
//! | --- | --- |
//! | [`files`] | what there is, and what may be done with it |
//! | [`disks`] | which disk a file is |
//! | [`truncated`] | files that their writers believe to be shorter |
//! | [`usage`] | how much is in use |
//! | [`handshake`] | what the kernel and we agree on |
//! | [`device`] | requests by `/dev/fuse` |
//! | [`ring`] | requests over io_uring |
//! | [`mount_point`] | what is already at the mount point |
//! | [`mount`] | the mount and its end |
//!
//! What it does not do: truncate (a namespace has a fixed size and keeps it, as a block device does), and times and
//! modes of files. Shared mappings need Linux 6.6.

mod device;
mod disks;
mod files;
mod handshake;
mod mount;
pub(crate) mod mount_point;
mod ring;
mod truncated;
mod usage;

use std::num::NonZeroU16;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use clap::{Args, ValueEnum};
use ringfab_base::shell_word;
use ringfab_initiator::blocking::{CancelToken, Controller};
use serde_json::json;

use crate::advice::Advised;
use crate::context::Context;
use crate::engine::attach_service;
use crate::failures;
use crate::interrupt::Interrupt;
use crate::made_directories::{MadeDirectories, OpenTo};
use crate::namespaces::NO_NAMESPACE;
use crate::options::ConnectArgs;
use crate::output;
use crate::quantity::cores;
use crate::ready::{self, Ready};
use crate::registry;
use device::Device;
use disks::file_name;
use files::Files;
use handshake::Handshake;

/// The options of `ringfab fuse`.
#[derive(Args)]
pub struct FuseArgs {
    #[command(flatten)]
    connect: ConnectArgs,
    /// Where to mount: a directory. The files there are ns1, ns2 and so on; what the directory has itself is hidden
    /// meanwhile
    directory: PathBuf,
    /// Refuse writes
    #[arg(long, short)]
    read_only: bool,
    /// Allow other users (the files belong to the user who mounts)
    #[arg(long)]
    allow_other: bool,
    /// Mount options: ro, allow_other, allow_root, default_permissions, noatime, nodev, nosuid, noexec, fsname=NAME
    #[arg(short = 'o', value_name = "OPTION", value_delimiter = ',')]
    options: Vec<String>,
    /// Whether requests come over io_uring. The kernel offers this if the parameter enable_uring of its module fuse is
    /// set
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = Uring::Auto)]
    io_uring: Uring,
    /// Threads that wait for I/O. With io_uring, only requests that take several commands use them
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
    /// Engine threads. Each has its own I/O queues of the controller. With --core, the threads are pinned to that core
    /// and the cores that follow
    #[arg(long, value_name = "N", default_value = "1", value_parser = cores)]
    cores: NonZeroU16,
    /// Create this file, with the directory in it, when the files are there, and remove it at the end
    #[arg(long, value_name = "FILE")]
    ready_file: Option<PathBuf>,
    /// Whether to serve also a subsystem that has no namespace so far
    #[arg(skip)]
    may_be_none: bool,
}

/// When to use FUSE over io_uring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Uring {
    /// When the kernel offers it
    Auto,
    /// Always; it is an error if the kernel does not offer it
    Always,
    /// Not at all
    Never,
}

impl FuseArgs {
    /// The defaults, at a directory; also for a subsystem that has no namespace so far. With `threads`, many mounts of
    /// one process take fewer.
    pub(crate) fn at(connect: ConnectArgs, directory: PathBuf, read_only: bool, threads: u16) -> Self {
        Self {
            connect,
            directory,
            read_only,
            allow_other: false,
            options: Vec::new(),
            io_uring: Uring::Auto,
            threads,
            cores: NonZeroU16::MIN,
            ready_file: None,
            may_be_none: true,
        }
    }

    /// As `--cores`.
    pub(crate) fn set_cores(&mut self, cores: NonZeroU16) {
        self.cores = cores;
    }

    /// Has `ringfab list` show it as long as what is returned lives.
    pub(crate) fn register(&self, controller: &Controller) -> Option<registry::Entry> {
        let mut facts = registry::facts(registry::Kind::Fuse, &self.connect, controller);
        facts.directory = std::path::absolute(&self.directory).ok();
        facts.read_only = self.read_only || self.options.iter().any(|option| option == "ro");
        registry::announce(&facts, controller)
    }
}

/// Serves until a signal comes or it is unmounted.
pub fn run(args: &FuseArgs, context: &Context) -> Result<()> {
    serve_until(args, &context.interrupt, |controller, paths| {
        // Who is told that it is ready finds it in the list.
        let entry = args.register(controller);
        let ready = Ready::announce(args.ready_file.as_deref(), &ready::directory(&args.directory))?;
        announce(paths, context.json);
        Ok((ready, entry))
    })
}

/// Serves until the interrupt ends it or it is unmounted. When the files are there, `ready` is told the controller and
/// their paths; what it returns is dropped when they go.
pub(crate) fn serve_until<R>(
    args: &FuseArgs,
    interrupt: &Interrupt,
    ready: impl FnOnce(&Controller, &[String]) -> Result<R>,
) -> Result<()> {
    let _told = failures::ToldAtEnd;
    let mut config = mount::config(args)?;
    let read_only = config.mount_options.contains(&fuser::MountOption::RO);
    let directory = &args.directory;
    mount::check_machine()?;
    // They go last.
    let _made = MadeDirectories::new(directory, OpenTo::Umask)?;
    mount_point::prepare(directory)?;
    let cancel = CancelToken::new();
    let size = channel_size(args.io_uring)?;
    let controller = attach(args, interrupt, size, &cancel)?;
    ensure!(args.may_be_none || !controller.namespaces().is_empty(), "{NO_NAMESPACE}");
    config.mount_options.push(fuser::MountOption::Subtype("ringfab".to_owned()));
    let files = Arc::new(Files::new(controller.clone(), read_only, config.acl));
    let channel = size.map(|size| prepare_channel(args, &controller, &files, size)).transpose()?.flatten();
    let handshake = Arc::new(Handshake::new(channel.is_some()));
    let device = Device { files, handshake: handshake.clone() };
    let mut mounted = mount::Mounted::new(device, directory, &config, |device| {
        match &channel {
            Some(channel) if handshake.channel_agreed() => {
                channel.serve(&device).context("the io_uring channel")?;
            }
            Some(channel) => channel.dismiss(),
            None => {}
        }
        let how = if handshake.channel_agreed() { "io_uring" } else { "/dev/fuse" };
        tracing::info!(how, "mounted");
        let missing = args.io_uring == Uring::Always && !handshake.channel_agreed();
        ensure!(
            !missing,
            "the kernel offers no FUSE over io_uring (Linux 6.14, and 1 in /sys/module/fuse/parameters/enable_uring)"
        );
        Ok(())
    })?;
    let served = ready(&controller, &paths(&controller, args)).map(|ready| {
        mounted.serve(interrupt);
        drop(ready);
    });
    let unmounted = mounted.end(&cancel);
    let detached = controller.detach().map_err(Advised).context("detach");
    served?;
    unmounted?;
    detached
}

/// How large the channel is, if there is to be one.
fn channel_size(when: Uring) -> Result<Option<ring::ChannelSize>> {
    // A kernel that has it switched off offers it to nobody, and then its memory can be saved.
    let offered = std::fs::read_to_string("/sys/module/fuse/parameters/enable_uring")
        .is_ok_and(|value| matches!(value.trim(), "Y" | "1"));
    match when {
        Uring::Never => Ok(None),
        Uring::Auto if !offered => Ok(None),
        Uring::Auto | Uring::Always => {
            ring::ChannelSize::here().map(Some).context("the number of processors")
        }
    }
}

/// Makes the channel before anything is mounted, since the kernel waits for it once it has been agreed on.
fn prepare_channel(
    args: &FuseArgs,
    controller: &Controller,
    files: &Arc<Files>,
    size: ring::ChannelSize,
) -> Result<Option<ring::Handle>> {
    match ring::prepare(controller, files, size, usize::from(args.threads)) {
        Ok(handle) => Ok(Some(handle)),
        Err(error) if args.io_uring == Uring::Auto => {
            tracing::warn!(%error, "no io_uring channel; requests go by /dev/fuse");
            Ok(None)
        }
        Err(error) => Err(error).context("the io_uring channel"),
    }
}

fn attach(
    args: &FuseArgs,
    interrupt: &Interrupt,
    channel: Option<ring::ChannelSize>,
    cancel: &CancelToken,
) -> Result<Controller> {
    let mut engine = args.connect.engine_options(cancel.clone());
    engine.threads = args.cores.get();
    engine.client_buffers = channel.map(|size| size.buffers(engine.threads)).unwrap_or_default();
    attach_service(args.connect.connect_options()?, engine, interrupt)
}

/// The file of a namespace in a directory of files.
pub(crate) fn disk_file(directory: &Path, nsid: u32) -> PathBuf {
    directory.join(file_name(nsid))
}

fn paths(controller: &Controller, args: &FuseArgs) -> Vec<String> {
    let path = |nsid| disk_file(&args.directory, nsid).to_string_lossy().into_owned();
    controller.namespaces().iter().map(|namespace| path(namespace.nsid)).collect()
}

fn announce(paths: &[String], as_json: bool) {
    output::announce(
        as_json,
        || json!({ "files": paths }),
        || format!("serving {}", paths.iter().map(shell_word).collect::<Vec<_>>().join(", ")),
    );
}
