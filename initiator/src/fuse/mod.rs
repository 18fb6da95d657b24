//! `ringfab fuse`: namespaces as files, through FUSE.
//!
//! The kernel's requests are taken by several threads, each of which waits for its own I/O on the blocking handle; the
//! engine behind it has a thread of its own. Files are opened for direct I/O, so that nothing is cached twice.
//!
//! What it does not do: truncate (a namespace has a fixed size, and the file is refused another one), share memory
//! mappings for writing, or keep times and modes.

mod filesystem;
mod mount;
mod range_lock;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use ringfab_initiator::blocking::{CancelToken, Controller};
use serde_json::json;

use crate::cli::options::ConnectArgs;
use crate::cli::ready::Ready;
use crate::cli::{Context, output};
use filesystem::{Files, file_name};

#[derive(Args)]
pub(crate) struct FuseArgs {
    #[command(flatten)]
    connect: ConnectArgs,
    /// Where to mount; an empty directory. The files in it are ns1, ns2 and so on
    directory: PathBuf,
    /// Refuse writes
    #[arg(long)]
    read_only: bool,
    /// Let other users in (the files belong to the user who mounts)
    #[arg(long)]
    allow_other: bool,
    /// Mount options: ro, allow_other, allow_root, default_permissions, noatime, nodev, nosuid, noexec, fsname=NAME
    #[arg(short = 'o', value_name = "OPTION", value_delimiter = ',')]
    options: Vec<String>,
    /// Threads, each with one request of the kernel
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
    /// Create this file when the files are there; it holds the directory and goes away at the end
    #[arg(long, value_name = "FILE")]
    ready_file: Option<PathBuf>,
}

/// Serves until a signal comes or it is unmounted.
pub(crate) fn run(args: &FuseArgs, context: &Context) -> Result<()> {
    let mut config = mount::config(args)?;
    let read_only = config.mount_options.contains(&fuser::MountOption::RO);
    let directory = &args.directory;
    let found = directory.metadata().with_context(|| format!("mount on {}", directory.display()))?;
    ensure!(found.is_dir(), "{} is no directory", directory.display());
    let cancel = CancelToken::new();
    let controller = attach(args, context, &cancel)?;
    ensure!(
        !controller.namespaces().is_empty(),
        "the subsystem has no namespace; see the target's configuration"
    );
    config.mount_options.push(fuser::MountOption::Subtype("ringfab".to_owned()));
    let files = Files::new(controller.clone(), read_only);
    let mounted = mount::Mounted::new(files, directory, &config)?;
    let served = Ready::announce(args.ready_file.as_deref(), &directory.display().to_string())
        .and_then(|ready| announce(&controller, args, context).map(|()| ready))
        .map(|ready| {
            mounted.wait(&context.interrupt);
            drop(ready);
        });
    let unmounted = mounted.end(&cancel);
    let detached = controller.detach().context("detach");
    served?;
    unmounted?;
    detached
}

/// Attaches the controller. A signal ends the wait for that, but not the I/O later: unmounting flushes.
fn attach(args: &FuseArgs, context: &Context, cancel: &CancelToken) -> Result<Controller> {
    let connecting = Arc::new(AtomicBool::new(true));
    let (token, armed) = (cancel.clone(), connecting.clone());
    context.interrupt.call(move || {
        if armed.load(Ordering::Acquire) {
            token.cancel();
        }
    });
    let options = args.connect.connect_options()?;
    let controller = Controller::connect(options, args.connect.engine_options(cancel.clone()));
    connecting.store(false, Ordering::Release);
    context.interrupt.check()?;
    Ok(controller?)
}

fn announce(controller: &Controller, args: &FuseArgs, context: &Context) -> Result<()> {
    let namespaces = controller.namespaces();
    let paths: Vec<String> = namespaces
        .iter()
        .map(|namespace| args.directory.join(file_name(namespace.nsid)).display().to_string())
        .collect();
    output::either(context.json, || json!({ "files": paths }), || format!("serving {}", paths.join(", ")))
}
