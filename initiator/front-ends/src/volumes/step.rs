//! The part of mounting that a process of its own does: the loop device, what is on it, and the mount.
//!
//! It waits for the FUSE server of the keeper. The keeper can be killed meanwhile, and then this ends with errors.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use ringfab_base::VisiblePath as _;
use ringfab_fuse::{LoopDevice, LoopOptions, loop_device};
use serde::{Deserialize, Serialize};

use super::arguments;
use super::child::{self, Bond, Ended, Running};
use crate::context::Usage;
use crate::mounts::device;
use crate::mounts::holders::Mount;
use crate::programs;

/// What is to be done.
#[derive(Args, Debug)]
pub struct StepArgs {
    /// The namespace as a file
    #[arg(long)]
    file: PathBuf,
    /// Where to mount
    #[arg(long)]
    directory: PathBuf,
    /// Bytes in a block of the disk
    #[arg(long)]
    block_bytes: u32,
    /// What to call the disk
    #[arg(long)]
    name: String,
    #[arg(long)]
    read_only: bool,
    #[arg(long)]
    fstype: Option<String>,
    #[arg(long)]
    mkfs: Option<String>,
    #[arg(long)]
    force: bool,
    #[arg(long)]
    fsck: bool,
    #[arg(long, default_value = "")]
    options: String,
}

/// What has come of it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Outcome {
    Done(Done),
    Failed { error: String },
}

/// It is mounted.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Done {
    pub(super) device: PathBuf,
    pub(super) fstype: String,
}

/// What blkid finds on a disk.
#[derive(Debug, Default, PartialEq, Eq)]
struct Contents {
    kind: Option<String>,
    label: Option<String>,
    uuid: Option<String>,
    partitions: Option<String>,
    several: bool,
}

const POLL: Duration = Duration::from_millis(10);
/// The exit status of blkid for nothing, and for several things.
const NOTHING: i32 = 2;
const SEVERAL: i32 = 8;
/// The bits of fsck's exit status that say that all is well now.
const REPAIRED: i32 = 1 | 2;

/// Where umount(8) looks for the helper of this program.
const UMOUNT_HELPER: &str = "/sbin/umount.ringfab";
/// Where systemd is, mounts that need the network are ended before it.
const SYSTEMD: &str = "/run/systemd/system";

/// A disk that shall be as large as its file.
#[derive(Args, Debug)]
pub struct GrowArgs {
    /// The namespace as a file
    #[arg(long)]
    file: PathBuf,
    /// The loop device on it
    #[arg(long)]
    device: PathBuf,
}

/// Has a process of its own make a disk as large as its file: it waits for the keeper's FUSE server.
pub(super) fn grow(file: &Path, device: &Path, limit: Duration) -> Result<()> {
    let mut command = Command::new(std::env::current_exe().context("find this program")?);
    command.arg("mount-grow").arg("--file").arg(file).arg("--device").arg(device);
    let mut running = Running::start_command(command, Bond::Lifeline)?;
    loop {
        match running.poll()? {
            Some(ended) if ended.status.success() => return Ok(()),
            Some(ended) => bail!("{}", said(&ended)),
            None if running.age() >= limit => {
                running.kill();
                bail!("it takes longer than {} s", limit.as_secs());
            }
            None => std::thread::sleep(POLL),
        }
    }
}

/// Does that.
pub(super) fn grow_here(args: &GrowArgs) -> Result<()> {
    child::end_with_parent()?;
    // The kernel asks for the size where it has not just done so.
    args.file.metadata().with_context(|| format!("look at {}", args.file.visible()))?;
    loop_device::take_size(&args.device).with_context(|| format!("the size of {}", args.device.visible()))
}

/// Does it, and says on the standard output what has come of it.
pub(super) fn run(args: &StepArgs) -> Result<()> {
    child::end_with_parent()?;
    let outcome = match mounted(args) {
        Ok(done) => Outcome::Done(done),
        Err(error) => Outcome::Failed { error: format!("{error:#}") },
    };
    crate::output::json(&serde_json::to_value(outcome)?)
}

fn mounted(args: &StepArgs) -> Result<Done> {
    let file = OpenOptions::new().read(true).write(!args.read_only).open(&args.file);
    let file = file.with_context(|| format!("open {}", args.file.visible()))?;
    let options = LoopOptions { block_bytes: args.block_bytes, read_only: args.read_only };
    let attached = LoopDevice::attach(&file, &args.file, options);
    let attached = attached
        .context("a loop device (it needs /dev/loop-control, and the kernel's module: `modprobe loop`)")?;
    drop(file);
    let device = attached.path();
    if !device::does_direct_io(device) {
        tracing::warn!(
            "{}: the kernel gives it no direct I/O, so what is read is cached twice",
            device.visible()
        );
    }
    let fstype = args.prepare(device)?;
    args.mount(device, &fstype)?;
    // It is mounted, so it stays when this is dropped.
    let fstype = fstype.unwrap_or_else(|| mounted_kind(&args.directory));
    Ok(Done { device: device.to_owned(), fstype })
}

/// Whether umount(8) is one that calls helpers, which is that of util-linux, and finds this one. Others would take the
/// option for one of the file system.
fn has_umount_helper() -> bool {
    let is_of_util_linux = || {
        let version = child::run_to_end("mount", &["--version"]);
        version.is_ok_and(|ended| ended.stdout.contains("util-linux"))
    };
    Path::new(UMOUNT_HELPER).exists() && is_of_util_linux()
}

fn mounted_kind(directory: &Path) -> String {
    Mount::at(directory).map(|mount| mount.kind).unwrap_or_default()
}

impl StepArgs {
    /// Makes and checks the file system as wanted, and says of which kind it is.
    fn prepare(&self, device: &Path) -> Result<Option<String>> {
        let contents = probe(device)?;
        if let Some(kind) = &self.mkfs {
            ensure!(!self.read_only, "{} is read only, and --mkfs would write to it", self.name);
            ensure!(
                self.force || contents.is_nothing(),
                "{} has {contents} already; `ringfab mount --mkfs` with --force overwrites that",
                self.name
            );
            make(kind, device)?;
            return Ok(Some(kind.clone()));
        }
        let kind = self.fstype.clone().or_else(|| contents.kind.clone());
        match (&kind, &contents.partitions) {
            (None, Some(table)) => bail!(
                "{} has a partition table ({table}), and whole namespaces are mounted; `ringfab fuse` and \
                 `losetup -P` show partitions",
                self.name
            ),
            (None, None) if contents.is_nothing() => {
                bail!("{} has no file system that is known here; --mkfs ext4 makes one", self.name)
            }
            _ => {}
        }
        if self.fsck {
            self.check(kind.as_deref(), device)?;
        }
        Ok(kind)
    }

    fn check(&self, kind: Option<&str>, device: &Path) -> Result<()> {
        let path = device.to_string_lossy();
        let how = if self.read_only { "-n" } else { "-a" };
        let of_kind = kind.map_or_else(Vec::new, |kind| vec!["-t", kind]);
        let arguments = [&["-T"], of_kind.as_slice(), &[&*path, how]].concat();
        let ended = child::run_to_end("fsck", &arguments)?;
        let said =
            format!("{} {}", ended.stdout.split_whitespace().collect::<Vec<_>>().join(" "), ended.stderr);
        match ended.status.code() {
            Some(code) if code & !REPAIRED == 0 => {
                tracing::info!("fsck: {}", said.trim());
                Ok(())
            }
            _ => {
                let missing = programs::named_as_missing(&said).map(|text| format!("; {text}"));
                bail!(
                    "fsck of {}: {}: {}{}",
                    self.name,
                    ended.status,
                    said.trim(),
                    missing.unwrap_or_default()
                )
            }
        }
    }

    fn mount(&self, device: &Path, fstype: &Option<String>) -> Result<()> {
        let mut options: Vec<&str> = self.options.split(',').filter(|option| !option.is_empty()).collect();
        if self.read_only {
            options.push("ro");
        }
        if Path::new(SYSTEMD).exists() {
            options.push("_netdev");
        }
        if has_umount_helper() {
            // umount(8) waits for the end of this mount's process then, and says whether all was written.
            options.push(arguments::HAS_HELPER);
        }
        let options = options.join(",");
        let (path, directory) = (device.to_string_lossy(), self.directory.to_string_lossy());
        let mut arguments = Vec::new();
        if let Some(fstype) = fstype {
            arguments.extend(["-t", fstype.as_str()]);
        }
        if !options.is_empty() {
            arguments.extend(["-o", options.as_str()]);
        }
        arguments.extend([&*path, &*directory]);
        let ended = child::run_to_end("mount", &arguments)?;
        if ended.status.success() {
            return Ok(());
        }
        bail!("mount {}: {}{}", self.name, said(&ended).trim_end_matches('.'), self.hint(&ended.stderr))
    }

    /// What may help where mount(8) has failed with these words.
    fn hint(&self, stderr: &str) -> String {
        let options = self.options.split(',').map(|option| option.split('=').next().unwrap_or_default());
        let misspelt = options.filter_map(|option| Some((option, arguments::meant_option(option)?))).next();
        if let Some((option, like)) = misspelt {
            format!("; `{option}` was given to mount(8): did you mean {like}, an option of `ringfab mount`?")
        } else if let Some(kind) = unknown_kind(stderr) {
            programs::without_file_system(kind)
        } else if stderr.contains("needs cleaning") && !self.fsck {
            "; --fsck checks and repairs it".to_owned()
        } else if self.read_only {
            "; a file system whose journal has to be replayed can be mounted read only with -o noload (ext4) or \
             -o norecovery (xfs)"
                .to_owned()
        } else {
            String::new()
        }
    }
}

/// The kind of file system that mount(8) says it does not know.
fn unknown_kind(said: &str) -> Option<&str> {
    said.split_once("unknown filesystem type '")?.1.split('\'').next()
}

/// What a program that failed has said.
fn said(ended: &Ended) -> String {
    if ended.stderr.is_empty() { ended.status.to_string() } else { ended.stderr.clone() }
}

/// The program that makes a file system of this kind.
///
/// # Errors
/// When that is no kind.
pub(super) fn maker(kind: &str) -> Result<String> {
    if kind.is_empty() || !kind.chars().all(|one| one.is_ascii_alphanumeric() || "._-".contains(one)) {
        return Err(Usage(format!("`{kind}` is not a kind of file system")).into());
    }
    Ok(format!("mkfs.{kind}"))
}

fn make(kind: &str, device: &Path) -> Result<()> {
    let program = maker(kind)?;
    let path = device.to_string_lossy();
    // Whether something is there was looked at, and these do not ask.
    let quiet: &[&str] = match kind {
        "ext2" | "ext3" | "ext4" => &["-q", "-F"],
        "xfs" | "btrfs" | "f2fs" => &["-q", "-f"],
        _ => &[],
    };
    let ended = child::run_to_end(&program, &[quiet, &[&*path]].concat())?;
    ensure!(ended.status.success(), "{program}: {}", said(&ended));
    Ok(())
}

fn probe(device: &Path) -> Result<Contents> {
    let ended = child::run_to_end("blkid", &["-p", "-o", "export", &device.to_string_lossy()])?;
    match ended.status.code() {
        Some(0) => Ok(Contents::parse(&ended.stdout)),
        Some(NOTHING) if ended.stderr.is_empty() => Ok(Contents::default()),
        Some(SEVERAL) => Ok(Contents { several: true, ..Contents::default() }),
        _ => bail!("blkid {}: {}", device.visible(), said(&ended)),
    }
}

impl Contents {
    fn parse(text: &str) -> Self {
        let value = |name: &str| {
            let found = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
            found.map(|value| value.replace('\\', ""))
        };
        Self {
            kind: value("TYPE"),
            label: value("LABEL"),
            uuid: value("UUID"),
            partitions: value("PTTYPE"),
            several: false,
        }
    }

    fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

impl std::fmt::Display for Contents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&self.kind, &self.partitions) {
            (Some(kind), _) => f.write_str(kind)?,
            (None, Some(table)) => write!(f, "a partition table ({table})")?,
            (None, None) => f.write_str("several things that do not fit together")?,
        }
        if let Some(label) = &self.label {
            write!(f, " with the label `{label}`")?;
        }
        match &self.uuid {
            Some(uuid) => write!(f, " (UUID {uuid})"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_on_a_disk_is_told_with_its_names() {
        let text =
            "DEVNAME=/dev/loop0\nLABEL=my\\ disk\nUUID=12-34\nBLOCK_SIZE=4096\nTYPE=ext4\nUSAGE=filesystem\n";
        let contents = Contents::parse(text);
        assert_eq!(contents.to_string(), "ext4 with the label `my disk` (UUID 12-34)");
        let table = Contents::parse("DEVNAME=/dev/loop0\nPTUUID=1\nPTTYPE=gpt\n");
        assert_eq!(table.to_string(), "a partition table (gpt)");
        assert!(!table.is_nothing() && Contents::parse("DEVNAME=/dev/loop0\n").is_nothing());
    }

    #[test]
    fn a_file_system_that_the_kernel_does_not_have_is_named() {
        let said = "mount: /mnt/a: unknown filesystem type 'ntfs'.";
        assert_eq!(unknown_kind(said), Some("ntfs"));
        assert_eq!(unknown_kind("mount: /mnt/a: wrong fs type"), None);
    }

    #[test]
    fn a_kind_of_file_system_is_no_path() {
        for kind in ["", "../sh", "ext4 x"] {
            assert!(make(kind, Path::new("/dev/null")).expect_err("refused").is::<Usage>(), "{kind}");
        }
    }
}
