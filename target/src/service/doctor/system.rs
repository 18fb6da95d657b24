//! What the system gives to a process.

use std::fmt;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::Duration;

use nix::unistd::{AccessFlags, eaccess};
use ringfab_base::{VisiblePath as _, shown_size};
use ringfab_reactor::{Reactor, ReactorConfig};

use super::Trouble;
use crate::config::Config;
use crate::service::addresses;

/// The oldest kernel that is tested.
const KERNEL_MIN: (u32, u32) = (6, 1);

/// Descriptors that a target has beside those of disks and hosts: rings, timers, the control socket.
const DESCRIPTORS_OWN: u64 = 64;

/// Connections that there should be room for.
const CONNECTIONS_WANTED: u64 = 256;

/// Whoever may write the file decides what is served.
pub(super) fn permissions(file: &Path) -> Result<String, Trouble> {
    let metadata = fs::metadata(file).map_err(|error| {
        Trouble::new(format!("{}: {error}", file.visible()), "create the file, or name another one")
    })?;
    let mode = metadata.permissions().mode() & 0o7777;
    if mode & 0o002 != 0 {
        let advice = format!("chmod o-w {}", file.visible());
        return Err(Trouble::new(format!("everybody may write {} ({mode:04o})", file.visible()), advice));
    }
    Ok(format!("{mode:04o}, user {}, group {}", metadata.uid(), metadata.gid()))
}

/// Its version.
pub(super) fn kernel() -> Result<String, Trouble> {
    let text = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let release = text.trim();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version < KERNEL_MIN {
        let (major, minor) = KERNEL_MIN;
        let what = format!("Linux {release} is older than {major}.{minor}");
        return Err(Trouble::new(what, "install a newer kernel"));
    }
    Ok(format!("Linux {release}"))
}

/// Whether this process can have a ring.
pub(super) fn io_uring() -> Result<String, Trouble> {
    let config = ReactorConfig { entries: 8, spin: Duration::ZERO, descriptors_max: 8 };
    let made = Reactor::new(&config);
    made.map(|_| "a ring can be made".to_owned()).map_err(|error| {
        let disabled = fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
        let advice = if matches!(disabled.trim(), "1" | "2") {
            "sysctl kernel.io_uring_disabled=0"
        } else {
            "allow io_uring_setup, io_uring_enter and io_uring_register (seccomp, containers)"
        };
        Trouble::new(format!("no ring of io_uring: {error}"), advice)
    })
}

/// Those that there are. None is needed.
pub(super) fn rdma_devices() -> Result<String, Trouble> {
    #[cfg(feature = "verbs")]
    {
        let Ok(devices) = ringfab_fabric::rdma::devices::list() else {
            return Ok("none can be used: listeners for NVMe/RDMA have the software RNIC".to_owned());
        };
        let described = devices.iter().map(|device| match &device.trouble {
            Some(trouble) => format!("{} (cannot be used: {trouble})", device.name),
            None => device.name.clone(),
        });
        let described: Vec<String> = described.collect();
        if !described.is_empty() {
            return Ok(described.join(", "));
        }
    }
    Ok("none: listeners for NVMe/RDMA have the software RNIC".to_owned())
}

/// The folder of the identity, or the one where it would be made.
pub(super) fn state_folder(folder: &Path) -> Result<String, Trouble> {
    let advice = format!("let the user of the service write {}", folder.visible());
    let trouble = |what: String| Trouble::new(what, advice.as_str());
    let existing = folder.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("/"));
    if !existing.is_dir() {
        return Err(trouble(format!("{} is not a folder", existing.visible())));
    }
    eaccess(existing, AccessFlags::W_OK | AccessFlags::X_OK).map_err(|error| {
        trouble(format!("{} cannot be written by this user: {error}", existing.visible()))
    })?;
    Ok(format!("{} can be written", existing.visible()))
}

/// What the pools of all cores need. Rings lock it. Without that all works, and file I/O is slower: nothing is wrong.
pub(super) fn locked_memory(config: &Config, process: Process) -> String {
    let needed = config.memory.bytes() * config.target.cores.len() as u64;
    let allowed = if process.may_lock_any() { u64::MAX } else { process.limits("Max locked memory").0 };
    let shown = if allowed == u64::MAX { "any number".to_owned() } else { shown_size(allowed) };
    let text = format!("{} are needed, {shown} allowed to {process}", shown_size(needed));
    if allowed < needed {
        return text
            + ": file I/O is somewhat slower than with as much (ulimit -l, or LimitMEMLOCK= of the unit)";
    }
    text
}

/// What the buffers, memory namespaces and threads take of what the process may map.
pub(super) fn addresses(config: &Config, process: Process) -> Result<String, Trouble> {
    let needed = addresses::needed(config);
    let (allowed, _) = process.limits("Max address space");
    let shown = if allowed == u64::MAX { "any number".to_owned() } else { shown_size(allowed) };
    let text = format!("{} of memory are mapped, {shown} allowed to {process}", shown_size(needed));
    if allowed < needed {
        return Err(Trouble::new(text, "allow more: ulimit -v, or LimitAS= of the unit"));
    }
    Ok(text)
}

/// A descriptor for each disk on each core, and one for each connection.
pub(super) fn open_files(config: &Config, process: Process) -> Result<String, Trouble> {
    let namespaces: usize = config.subsystems.iter().map(|one| one.namespaces.len()).sum();
    let disks = (namespaces * (config.target.cores.len() + 2)) as u64;
    let wanted = disks + DESCRIPTORS_OWN + CONNECTIONS_WANTED;
    // A target raises its limit to the hard one.
    let (_, allowed) = process.limits("Max open files");
    let shown = if allowed == u64::MAX { "any number".to_owned() } else { allowed.to_string() };
    let text = format!(
        "{wanted} are wanted for disks and {CONNECTIONS_WANTED} connections, {shown} allowed to {process}"
    );
    if allowed < wanted {
        return Err(Trouble::new(text, "allow more: ulimit -Hn, or LimitNOFILE= of the unit"));
    }
    Ok(text)
}

/// Whose limits are looked at: those of a service are not those of the shell in which somebody asks.
#[derive(Clone, Copy, Debug)]
pub(super) enum Process {
    /// A target that runs.
    Target(u32),
    /// This one, as the one that it would become.
    Own,
}

impl Process {
    /// Soft and hard limit, by their name in /proc. Without a limit, or without a word of the system, any number.
    fn limits(self, name: &str) -> (u64, u64) {
        let text = self.file("limits");
        let values = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        let mut values = values.split_whitespace().map(|value| value.parse().unwrap_or(u64::MAX));
        (values.next().unwrap_or(u64::MAX), values.next().unwrap_or(u64::MAX))
    }

    /// Whether no limit on locked memory holds for it.
    fn may_lock_any(self) -> bool {
        const CAP_IPC_LOCK: u64 = 14;
        let text = self.file("status");
        let effective = text.lines().find_map(|line| line.strip_prefix("CapEff:"));
        effective.is_some_and(|text| {
            u64::from_str_radix(text.trim(), 16)
                .is_ok_and(|capabilities| capabilities >> CAP_IPC_LOCK & 1 != 0)
        })
    }

    fn file(self, name: &str) -> String {
        let process = match self {
            Self::Target(process) => process.to_string(),
            Self::Own => "self".to_owned(),
        };
        fs::read_to_string(format!("/proc/{process}/{name}")).unwrap_or_default()
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Target(process) => write!(f, "the target that runs (process {process})"),
            Self::Own => f.write_str("this user"),
        }
    }
}
