//! Mounting, waiting for the end, and unmounting within a bound.
//!
//! After SIGINT, while programs use the mount, it names them and serves until the mount is free. A second SIGINT
//! detaches the mount from the tree and ends. SIGTERM does the same as both, the second part after [`BUSY`]. In no case
//! does a mount stay behind without a server.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use fuser::{Config, MountOption, Session, SessionACL};
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use nix::sys::signal::Signal;
use nix::unistd::geteuid;
use ringfab_base::VisiblePath as _;
use ringfab_initiator::blocking::CancelToken;

use super::FuseArgs;
use super::device::Device;
use crate::context::Usage;
use crate::interrupt::EXIT_CANCELLED;
use crate::interrupt::Interrupt;
use crate::mounts::holders;
use crate::programs;

/// How long to try an ordinary unmount while files are open, after SIGTERM or when a service cannot serve.
const BUSY: Duration = Duration::from_secs(3);
/// How long the kernel's last requests may take after that, before their I/O is cancelled.
const LAST_REQUESTS: Duration = Duration::from_secs(5);
/// The same when a second signal says that somebody is in a hurry.
const LAST_REQUESTS_HURRIED: Duration = Duration::from_millis(400);
/// How long they may take once it is cancelled.
const CANCELLED: Duration = Duration::from_secs(2);
const RETRY: Duration = Duration::from_millis(50);
/// Addresses that a thread takes: its buffer of 16 MiB and its stack of 2 MiB, with what lies around them.
const THREAD_BYTES: usize = 20 << 20;

/// What mounts and unmounts for users who may not.
const FUSERMOUNT: &str = "fusermount3";

/// What the source of our mounts begins with, unless the user named another one. The kernel does not show the subtype
/// of each.
pub(super) const SOURCE: &str = "ringfab:";

/// A mounted session whose threads run.
pub(crate) struct Mounted {
    directory: PathBuf,
    told: SyncSender<Told>,
    news: Receiver<Told>,
    /// Until when to try an ordinary unmount; `None` while nobody asked for a bound.
    busy_until: Option<Instant>,
    hurried: bool,
}

/// What the waiting thread is told.
enum Told {
    /// The session has ended.
    Ended(io::Result<()>),
    /// A signal came.
    Signal(Signal),
}

/// The mount options that the user gave.
pub(crate) fn config(args: &FuseArgs) -> Result<Config> {
    let mut config = Config::default();
    config.mount_options = vec![MountOption::NoDev, MountOption::NoSuid];
    config.n_threads = Some(usize::from(args.threads));
    // Each thread has its own queue to the kernel.
    config.clone_fd = true;
    if args.allow_other {
        config.acl = SessionACL::All;
    }
    let peer = args.connect.url.peer().replace([' ', ','], "_");
    let mut name = MountOption::FSName(format!("{SOURCE}{peer}"));
    for option in &args.options {
        match option.as_str() {
            "ro" => config.mount_options.push(MountOption::RO),
            "rw" | "nodev" | "nosuid" => {}
            "allow_other" => config.acl = SessionACL::All,
            "allow_root" => config.acl = SessionACL::RootAndOwner,
            "default_permissions" => config.mount_options.push(MountOption::DefaultPermissions),
            "noatime" => config.mount_options.push(MountOption::NoAtime),
            "noexec" => config.mount_options.push(MountOption::NoExec),
            other => match other.strip_prefix("fsname=") {
                Some(text) => name = MountOption::FSName(text.to_owned()),
                None => return Err(Usage(unknown_option(other)).into()),
            },
        }
    }
    config.mount_options.push(name);
    if args.read_only && !config.mount_options.contains(&MountOption::RO) {
        config.mount_options.push(MountOption::RO);
    }
    Ok(config)
}

/// Whether this user can mount at all, before anything is attached for it.
///
/// # Errors
/// What is missing.
pub(super) fn check_machine() -> Result<()> {
    ensure!(
        Path::new("/dev/fuse").exists(),
        "there is no /dev/fuse (the kernel's module: `modprobe fuse` as root); `ringfab nbd` does without"
    );
    if geteuid().is_root() { Ok(()) } else { programs::ensure_there(FUSERMOUNT) }
}

impl Mounted {
    /// Mounts, and starts the threads. In between, `mounted` is given `/dev/fuse`; its error unmounts.
    pub(crate) fn new(
        files: Device,
        directory: &Path,
        config: &Config,
        mounted: impl FnOnce(OwnedFd) -> Result<()>,
    ) -> Result<Self> {
        let directory = directory.canonicalize().with_context(|| format!("find {}", directory.visible()))?;
        ensure_memory(config)?;
        let session = Session::new(files, &directory, config)
            .with_context(|| format!("mount on {} (it needs /dev/fuse)", directory.visible()))?;
        mounted(session.as_fd().try_clone_to_owned().context("the descriptor of /dev/fuse")?)?;
        let (told, news) = sync_channel(8);
        let ended = told.clone();
        let started = std::thread::Builder::new().name("fuse".to_owned()).spawn(move || {
            // The receiver may have given up waiting; then nobody wants to know.
            let _ = ended.send(Told::Ended(session.run()));
        });
        started.context("start the threads")?;
        Ok(Self { directory, told, news, busy_until: None, hurried: false })
    }

    /// Serves until the session has ended, or should.
    pub(crate) fn serve(&mut self, interrupt: &Interrupt) {
        let told = self.told.clone();
        let (mut signals, directory) = (0, self.directory.clone());
        interrupt.handle_signals(move |signal| {
            signals += 1;
            // The waiting thread knows what to do with the first two.
            if signals > 2 {
                // It is detached already, or there is nothing else to try.
                let _tried = unmount(&directory, MntFlags::MNT_DETACH);
                std::process::exit(i32::from(EXIT_CANCELLED));
            }
            // When the channel is full, the end was told already.
            let _ = told.try_send(Told::Signal(signal));
        });
        let mut asked = false;
        loop {
            let wait = if asked { RETRY } else { Duration::MAX };
            match self.news.recv_timeout(wait) {
                Ok(Told::Ended(result)) => {
                    // Kept for `end`; there is room, since it was just taken out.
                    let _ = self.told.try_send(Told::Ended(result));
                    return;
                }
                Ok(Told::Signal(_)) if asked => {
                    self.hurried = true;
                    return;
                }
                Ok(Told::Signal(Signal::SIGTERM)) => self.busy_until = Some(Instant::now() + BUSY),
                Ok(Told::Signal(_)) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            match unmount(&self.directory, MntFlags::empty()) {
                Err(Errno::EBUSY) if !asked => self.say_busy(),
                Err(Errno::EBUSY) => {}
                Ok(()) | Err(_) => return,
            }
            asked = true;
            if self.busy_until.is_some_and(|until| Instant::now() >= until) {
                return;
            }
        }
    }

    fn say_busy(&self) {
        let (directory, who) = (self.directory.visible(), holders::describe(&self.directory));
        match self.busy_until {
            Some(_) => tracing::warn!("{directory} is in use: {who}; it is detached in {} s", BUSY.as_secs()),
            None => tracing::warn!(
                "{directory} is in use: {who}; serving until it is free; another ctrl-C detaches it"
            ),
        }
    }

    /// Unmounts if it is still mounted, and waits for the last requests, all within a bound.
    pub(crate) fn end(self, cancel: &CancelToken) -> Result<()> {
        let deadline = self.busy_until.unwrap_or_else(|| Instant::now() + BUSY);
        loop {
            if let Some(result) = self.ended(RETRY) {
                return result.context("serve the kernel's requests");
            }
            match unmount(&self.directory, MntFlags::empty()) {
                Ok(()) | Err(Errno::EINVAL) => break,
                Err(Errno::EBUSY) if !self.hurried && Instant::now() < deadline => {}
                Err(error) => {
                    tracing::warn!(%error, directory = %self.directory.visible(), "in use: detached from the tree");
                    unmount(&self.directory, MntFlags::MNT_DETACH)
                        .with_context(|| format!("unmount {}", self.directory.visible()))?;
                    break;
                }
            }
        }
        let last = if self.hurried { LAST_REQUESTS_HURRIED } else { LAST_REQUESTS };
        if let Some(result) = self.ended(last) {
            return result.context("serve the kernel's requests");
        }
        cancel.cancel();
        let cancelled = if self.hurried { LAST_REQUESTS_HURRIED } else { CANCELLED };
        match self.ended(cancelled) {
            Some(_) => bail!("requests were cancelled since they took longer than {last:?} after unmounting"),
            None => bail!("files were still open when it ended; their users get errors now"),
        }
    }

    fn ended(&self, within: Duration) -> Option<io::Result<()>> {
        let deadline = Instant::now() + within;
        loop {
            match self.news.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(Told::Ended(result)) => return Some(result),
                Ok(Told::Signal(_)) => {}
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return None,
            }
        }
    }
}

/// Each thread of a session has a buffer for the largest write, and a stack. A thread that cannot have them ends the
/// process, and leaves a mount behind that answers nobody.
fn ensure_memory(config: &Config) -> Result<()> {
    let threads = config.n_threads.unwrap_or(1);
    let bytes = threads * THREAD_BYTES;
    // It is not touched, so it costs addresses and no memory.
    let mut probe: Vec<u8> = Vec::new();
    probe.try_reserve_exact(bytes).with_context(|| {
        format!(
            "{threads} threads need {} MiB of addresses (ulimit -v, LimitAS=); --threads sets their number",
            bytes >> 20
        )
    })
}

/// Unmounts; without the privilege through fusermount3, which has it.
pub(super) fn unmount(directory: &Path, flags: MntFlags) -> Result<(), Errno> {
    match umount2(directory, flags) {
        Err(Errno::EPERM) => {}
        result => return result,
    }
    let lazy = if flags.contains(MntFlags::MNT_DETACH) { "-uqz" } else { "-uq" };
    let mut command = Command::new(FUSERMOUNT);
    command
        .arg(lazy)
        .arg("--")
        .arg(directory)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err(Errno::EBUSY),
        Err(_) => Err(Errno::EPERM),
    }
}

fn unknown_option(option: &str) -> String {
    format!(
        "there is no mount option `{option}`; there are ro, allow_other, allow_root, default_permissions, noatime, \
         nodev, nosuid, noexec and fsname=NAME"
    )
}
