//! `ringfab mount`, `umount` and `list` without an address: file systems of namespaces, in one command each.
//!
//! A mount is three things on top of each other: the namespace as a file (FUSE), a loop device on the file, and the
//! file system on that. A process in the background, the keeper, has the first one and watches over the others. They
//! are made by a process of their own, since a program that waits for its own FUSE server cannot be killed.
//!
//! Whoever unmounts the file system, `ringfab umount`, `umount` or the system, ends the rest: the kernel takes the file
//! away from a loop device that nobody has open, the keeper sees that, unmounts its own file system and detaches.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`file`] | `volumes.toml` |
//! | [`fstab`] | lines of fstab |
//! | `others` | what other users have mounted |
//! | `holding` | which options of a volume hold |
//! | [`arguments`] | other ways to say what `ringfab mount` shall do: a name, fstab, mount(8) |
//! | [`child`] | programs that are run: mount, umount, fsck, mkfs |
//! | [`leftovers`] | what a killed keeper has left |
//! | [`step`] | the part of mounting that a process of its own does |
//! | [`plan`] | what is to be mounted, and where |
//! | [`doorbell`] | signals for the watch, which also wake it |
//! | [`stopping`] | whether the machine is about to end |
//! | [`watch`] | the mounted file system, until its end |
//! | [`keeper`] | the process that has a mount |
//! | [`remount`] | other options for what is mounted |
//! | [`front`] | the process that the user waits for |
//! | [`umount`] | the end of a mount |
//! | [`table`] | what is attached |
//!
//! Not implemented here: file systems of other systems than this kernel's, partitions, and disks through the kernel's
//! NBD client, which would need its module and a program of another project.

pub mod arguments;
mod child;
mod doorbell;
pub mod file;
mod front;
pub mod fstab;
mod holding;
mod keeper;
mod leftovers;
pub(crate) mod others;
mod plan;
mod remount;
mod step;
mod stopping;
mod table;
mod umount;
mod watch;

use std::num::NonZeroU16;
use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Subcommand};
use ringfab_base::{VisiblePath as _, visible};

use crate::context::Context;
use crate::mounts::holders::Mount;
use crate::options::Tuning;
use crate::quantity::{Span, cores};
use crate::registry::{self, Facts, Kind};
use file::Volumes;

pub use step::{GrowArgs, StepArgs};
pub use umount::{UmountArgs, WritesLost};

/// The options of `ringfab mount`.
#[derive(Args, Clone, Debug)]
pub struct MountArgs {
    /// The address of a subsystem, nvme+rdma://HOST[:PORT]/NQN[?OPTIONS] or nvme+tcp://HOST[:PORT]/NQN[?OPTIONS], with
    /// the options of other commands; or the name of a volume in /etc/ringfab/volumes.toml, or in the file that
    /// $RINGFAB_VOLUMES names
    pub source: String,
    /// Where to mount. A directory that is not there is made, and goes when the mount has ended or failed. A volume has
    /// a directory of its own
    pub directory: Option<PathBuf>,
    /// Mount options, as mount(8) takes them. Options of this command may be among them: hostnqn=NQN,
    /// tls_key=file:PATH, fstype=ext4. A key itself is refused here, unlike with other commands: others would see it as
    /// long as it is mounted
    #[arg(short, long, value_name = "OPTION", value_delimiter = ',')]
    pub options: Vec<String>,
    /// The kind of the file system; by default the one that is found on the disk
    #[arg(short = 't', long, alias = "types", value_name = "TYPE")]
    pub fstype: Option<String>,
    /// Mount it read only, and refuse writes below it
    #[arg(short, long)]
    pub read_only: bool,
    /// The namespace, where there are several
    #[arg(
        long,
        aliases = ["ns", "namespace-id"],
        value_name = "NSID",
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub nsid: Option<u32>,
    /// Check the file system first, and repair what is safe to repair (fsck -a)
    #[arg(long)]
    pub fsck: bool,
    /// Make a file system of this kind first (mkfs.TYPE). Refused if blkid finds something on the disk
    #[arg(long, value_name = "TYPE", conflicts_with = "read_only")]
    pub mkfs: Option<String>,
    /// With --mkfs: overwrite a disk on which blkid finds something
    #[arg(long, requires = "mkfs")]
    pub force: bool,
    /// How long to try to attach, if the target is not there yet
    #[arg(long, value_name = "TIME", default_value = "0s")]
    pub retry: Span,
    /// Stay in the foreground until it is unmounted, for a service manager
    #[arg(long)]
    pub foreground: bool,
    /// Engine threads, each with its own I/O queues of the controller
    #[arg(long, value_name = "N", default_value = "1", value_parser = cores)]
    pub cores: NonZeroU16,
    #[command(flatten)]
    /// How to attach it.
    pub tuning: Tuning,
    /// The process in the background
    #[arg(long, hide = true)]
    pub keeper: bool,
    /// As mount(8) wants its helpers: what is there already is no failure
    #[arg(long, hide = true)]
    pub helper: bool,
    /// Do nothing but look at the options
    #[arg(long, hide = true)]
    pub fake: bool,
    /// The name in volumes.toml
    #[arg(long, hide = true, value_name = "NAME")]
    pub volume: Option<String>,
}

/// The commands of `ringfab volume`.
#[derive(Subcommand, Debug)]
pub enum VolumeCommand {
    /// Check volumes.toml: every key, and whether each volume could be mounted as it says
    #[command(
        after_help = "Examples:\n  ringfab volume check\n  ringfab volume check /etc/ringfab/volumes.toml"
    )]
    Check {
        /// The file; /etc/ringfab/volumes.toml, unless $RINGFAB_VOLUMES names another
        file: Option<PathBuf>,
    },
    /// List the volumes of volumes.toml, and which of them are mounted
    #[command(after_help = "Examples:\n  ringfab volume list\n  ringfab volume list --json")]
    List {
        /// The file; /etc/ringfab/volumes.toml, unless $RINGFAB_VOLUMES names another
        file: Option<PathBuf>,
    },
}

/// Runs `ringfab mount`.
///
/// # Errors
/// Why it is not mounted. Nothing of it is left then.
pub fn mount(args: &MountArgs, context: &Context) -> Result<()> {
    if args.keeper || args.foreground { keeper::keep(args, context) } else { front::mount(args, context) }
}

/// Whether this could be mounted, as far as the options and this machine's files say.
///
/// # Errors
/// What is wrong.
pub fn check(args: &MountArgs) -> Result<()> {
    let plan = plan::Plan::new(args)?;
    let shown = plan.directory.visible();
    // One that is not there is made for the mount.
    let is_fine = plan.directory.is_dir() || plan::is_missing(&plan.directory);
    anyhow::ensure!(is_fine, "{shown} is not a directory");
    // A loop device may be the volume itself.
    let is_other = |mount: &Mount| mount.kind != "autofs" && !mount.source.starts_with("/dev/loop");
    match Mount::at(&plan.directory).filter(is_other) {
        Some(mount) => {
            anyhow::bail!("{shown} has a file system already: {} of {}", mount.kind, visible(&mount.source))
        }
        None => Ok(()),
    }
}

/// Runs `ringfab umount`.
///
/// # Errors
/// Why it is mounted still.
pub fn umount(args: &UmountArgs, context: &Context) -> Result<()> {
    umount::run(args, context)
}

/// Runs the part of mounting that has a process of its own.
///
/// # Errors
/// Which step failed.
pub fn step(args: &StepArgs) -> Result<()> {
    step::run(args)
}

/// Has a disk take the size of its file: the part that has a process of its own.
///
/// # Errors
/// Why it has not.
pub fn grow(args: &GrowArgs) -> Result<()> {
    step::grow_here(args)
}

/// Shows the volumes of a file, and how those are that this machine has mounted.
///
/// # Errors
/// When that cannot be known.
pub fn list_volumes(volumes: &Volumes, context: &Context) -> Result<()> {
    table::volumes(volumes, context)
}

/// The names by which `ringfab umount` finds what this machine has mounted: directories, and volumes.
///
/// # Errors
/// When that cannot be known.
pub fn mounted() -> Result<Vec<String>> {
    let entries = registry::entries()?.into_iter();
    let mounts = entries.filter(|found| found.facts.kind == Kind::Mount).map(|found| found.facts);
    let names = mounts.flat_map(|facts| {
        let directory = facts.directory.map(|path| path.to_string_lossy().into_owned());
        directory.into_iter().chain(facts.volume)
    });
    Ok(names.collect())
}

/// The names by which `ringfab reset` finds what this machine has attached.
///
/// # Errors
/// When that cannot be known.
pub fn attached() -> Result<Vec<String>> {
    let text = |path: PathBuf| path.to_string_lossy().into_owned();
    let names = registry::entries()?.into_iter().flat_map(|found| {
        let Facts { directory, device, volume, uri, .. } = found.facts;
        directory.map(text).into_iter().chain(device.map(text)).chain(volume).chain(uri)
    });
    Ok(names.collect())
}

/// Shows what this machine has attached.
///
/// # Errors
/// When that cannot be known.
pub fn list(context: &Context) -> Result<()> {
    table::run(context)
}
