//! What the service keeps when it confines itself: everything that its configuration names, and what a reload or a
//! command may add.
//!
//! | what | where from |
//! | --- | --- |
//! | disks | the folder of each configured file, so that another may come or take its place; `/dev` for devices, because a device that comes back has another file. With `confinement.paths`: the configured disks alone, and these paths |
//! | what it makes | the folders of the state, the control socket, the metrics' file and the ready file |
//! | what it reads | the folders of the configuration and of keys, credentials, libraries and their settings, `/proc`, `/sys` |
//! | ports | those of listeners and metrics, the usual ones of NVMe, and `confinement.ports`; to connect to, those of NBD servers, and `confinement.connect_ports` |
//!
//! Of a file in the root or in a folder of the system (`/etc`, `/home`), only the file itself is allowed.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::fcntl::{OFlag, open};
use nix::sys::stat::{Mode, fstat};
use ringfab_base::VisiblePath as _;
use ringfab_process::confine::{self, Access, Capabilities, Connect, Layer, Plan, Ports, Rule};
use ringfab_process::log::NEVER_FOLDED;
use ringfab_rbd::Cluster;

use super::ServeOptions;
use crate::config::{Config, KeySource, ListenerConfig, ListenerTls, Source, USUAL_PORTS};
use crate::confinement::Confinement;
use crate::worker::{self, Task};

/// How long a look at a path may take, and all looks together.
const LOOK_LIMIT: Duration = Duration::from_secs(1);
const LOOKS_LIMIT: Duration = Duration::from_secs(5);

/// How long making the folder of the state may take.
const MAKE_LIMIT: Duration = Duration::from_secs(5);

/// What libraries, and the names of groups, are read from. What is not there is no loss.
const READ: [&str; 21] = [
    "/proc",
    "/sys",
    "/usr",
    "/lib",
    "/lib64",
    "/bin",
    "/nix/store",
    "/etc/ld.so.cache",
    "/etc/libibverbs.d",
    "/etc/rdma",
    "/etc/libnl",
    "/etc/libnl-3",
    "/etc/nsswitch.conf",
    "/etc/group",
    "/etc/passwd",
    "/etc/localtime",
    "/etc/hosts",
    "/etc/machine-id",
    "/etc/host.conf",
    "/etc/resolv.conf",
    "/var/lib/sss/mc",
];

/// Devices that are no disks.
const DEVICES: [&str; 3] = ["/dev/infiniband", "/dev/null", "/dev/urandom"];

/// Folders with much that is no disk and no setting of the target.
const SYSTEM: [&str; 16] = [
    "/", "/bin", "/boot", "/etc", "/home", "/lib", "/lib64", "/opt", "/proc", "/root", "/run", "/sbin",
    "/sys", "/usr", "/var", "/var/lib",
];

/// Where Ceph's own programs have configurations and keys.
const CEPH: &str = "/etc/ceph";

/// Where devices are.
const DEV: &str = "/dev";

/// The folder with a service's credentials, as systemd names it.
const CREDENTIALS_DIRECTORY: &str = "CREDENTIALS_DIRECTORY";

/// The name of the service manager's socket. One that begins so is abstract.
const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";

/// Confines this process, which has started no threads yet but the workers that have read the configuration.
pub(super) fn confine(options: &ServeOptions, config: &Config) {
    make_state_folder(&config.target.state_dir);
    let wanted = &config.confinement;
    // The libraries come from where a confined process may not look. Who needs them is told what is missing.
    if has_images(config)
        && let Err(error) = Cluster::load_library()
    {
        tracing::debug!(%error, "images cannot be served");
    }
    let mut places = Places::new();
    if wanted.files {
        places.add_all(options, config);
    }
    let (ports, connect) = (ports(config), servers(config));
    let Places { rules, disks, read, .. } = places;
    worker::retire();
    let layers = confine::confine(&Plan {
        capabilities: wanted.capabilities.then(|| capabilities(config)),
        files: wanted.files.then_some(rules),
        ports: wanted
            .network
            .then(|| Ports { listen: ports.iter().copied().collect(), connect: connect.clone() }),
        signals: wanted.processes,
        abstract_sockets: wanted.processes && !is_told_over_an_abstract_socket(),
        system_calls: wanted.system_calls,
    });
    let later_ports = wanted.ports.clone();
    let ports = ports.into_iter().collect();
    Confinement { layers, disks, read, ports, later_ports, connect }.holds();
}

/// What could not be added to a target with this configuration without a restart, for people.
pub(super) fn restricted(config: &Config) -> Option<String> {
    let wanted = &config.confinement;
    let ports: Vec<String> = ports(config).iter().map(u16::to_string).collect();
    let ports = format!("listeners at other ports than {} (confinement.ports)", ports.join(", "));
    let disks = match &wanted.paths {
        None => "disks in other folders than those of the configured disks (confinement.paths)".to_owned(),
        Some(paths) => {
            let paths: Vec<String> = paths.iter().map(|path| path.visible().to_string()).collect();
            format!("disks elsewhere than in {} (confinement.paths)", paths.join(", "))
        }
    };
    let parts: Vec<String> =
        [wanted.network.then_some(ports), wanted.files.then_some(disks)].into_iter().flatten().collect();
    (!parts.is_empty()).then(|| format!("these need a restart: {}", parts.join("; ")))
}

/// The cores run: nobody needs another ring.
pub(super) fn seal(config: &Config) {
    if config.confinement.system_calls
        && let Err(error) = confine::seal()
    {
        tracing::warn!(error, "the process may still make rings of io_uring");
    }
}

/// Says in the log what holds, and why the rest does not.
pub(super) fn announce(layers: &[Layer]) {
    let (hold, others): (Vec<&Layer>, Vec<&Layer>) =
        layers.iter().partition(|layer| layer.state == confine::State::Holds);
    let hold: Vec<&str> = hold.into_iter().map(|layer| layer.layer).collect();
    tracing::info!(name: NEVER_FOLDED, layers = hold.join(","), "confined");
    for Layer { layer, state, reason } in others {
        let reason = reason.as_deref().unwrap_or_default();
        tracing::warn!(name: NEVER_FOLDED, layer, %state, reason, "not wholly confined");
    }
}

fn is_told_over_an_abstract_socket() -> bool {
    std::env::var(NOTIFY_SOCKET).is_ok_and(|socket| socket.starts_with('@'))
}

/// The first start makes it, and a rule needs a folder that is there. Whoever cannot make it is told by who needs it.
fn make_state_folder(folder: &Path) {
    let at = folder.to_owned();
    let _told_later = worker::within("making", folder, MAKE_LIMIT, move || fs::create_dir_all(at));
}

/// What a service has of the superuser's capabilities, if it runs as one.
fn capabilities(config: &Config) -> Capabilities {
    // Disks of other users, memory for the rings, the socket's group, ports below 1024.
    let keep = Capabilities::DAC_OVERRIDE
        | Capabilities::IPC_LOCK
        | Capabilities::CHOWN
        | Capabilities::NET_BIND_SERVICE;
    // Congestion control that the system does not let everybody have; the kernel's part of TLS, which it loads.
    let asks = |one: &ListenerConfig| one.congestion.is_some() || one.tls != ListenerTls::Off;
    if config.listeners.iter().any(asks) { keep | Capabilities::NET_ADMIN } else { keep }
}

fn ports(config: &Config) -> BTreeSet<u16> {
    let listeners = config.listeners.iter().map(|listener| listener.port);
    let metrics = config.metrics.iter().filter_map(|metrics| metrics.address).map(|address| address.port());
    listeners.chain(metrics).chain(USUAL_PORTS).chain(config.confinement.ports.iter().copied()).collect()
}

/// Whether images of Ceph are served, or may be later: its servers have ports that nobody knows beforehand.
fn has_images(config: &Config) -> bool {
    let mut namespaces = config.subsystems.iter().flat_map(|one| &one.namespaces);
    !config.ceph.is_empty() || namespaces.any(|namespace| matches!(namespace.source, Source::Rbd(_)))
}

/// The servers that have disks.
fn servers(config: &Config) -> Connect {
    if has_images(config) {
        return Connect::Anywhere;
    }
    let namespaces = config.subsystems.iter().flat_map(|one| &one.namespaces);
    let configured = namespaces.filter_map(|namespace| match &namespace.source {
        Source::Nbd(nbd) => nbd.address.port(),
        _ => None,
    });
    let ports: BTreeSet<u16> = configured.chain(config.confinement.connect_ports.iter().copied()).collect();
    Connect::To(ports.into_iter().collect())
}

/// The rules for files, and where they lead.
struct Places {
    rules: Vec<Rule>,
    disks: Vec<PathBuf>,
    read: Vec<PathBuf>,
    deadline: Instant,
}

impl Places {
    fn new() -> Self {
        let deadline = Instant::now() + LOOKS_LIMIT;
        Self { rules: Vec::new(), disks: Vec::new(), read: Vec::new(), deadline }
    }

    fn add_all(&mut self, options: &ServeOptions, config: &Config) {
        for path in READ {
            self.add(Path::new(path), Access::Read);
        }
        for path in DEVICES {
            self.add(Path::new(path), Access::Use);
        }
        if let Ok(program) = std::env::current_exe() {
            self.add(&program, Access::Read);
        }
        self.add(&config.target.state_dir, Access::Manage);
        let socket = config.control.clone().unwrap_or_default().socket;
        let made = [Some(socket.as_path()), metrics_file(config), options.ready_file.as_deref()];
        for folder in made.into_iter().flatten().filter_map(folder_of) {
            self.add(&folder, Access::Manage);
        }
        self.add_file_to_read(&options.config);
        if let Some(folder) = std::env::var_os(CREDENTIALS_DIRECTORY) {
            self.add(Path::new(&folder), Access::Read);
        }
        for file in key_files(config) {
            self.add_file_to_read(file);
        }
        if has_images(config) {
            self.add(Path::new(CEPH), Access::Read);
        }
        for file in config.ceph.iter().flat_map(|cluster| [&cluster.conf, &cluster.keyring]).flatten() {
            self.add_file_to_read(file);
        }
        let disks = config.subsystems.iter().flat_map(|one| &one.namespaces);
        for namespace in disks {
            match &namespace.source {
                Source::File { path, .. } => self.add_disk(path, config.confinement.paths.is_none()),
                Source::Nbd(nbd) => drop(nbd.address.socket().map(|path| self.add_used(path))),
                _ => {}
            }
        }
        for path in config.confinement.paths.iter().flatten() {
            self.add_used(path);
        }
    }

    /// A file that is read again, which may have been replaced then.
    fn add_file_to_read(&mut self, path: &Path) {
        for place in [Some(path.to_owned()), folder_with_little(path)].into_iter().flatten() {
            self.add(&place, Access::Read);
        }
    }

    /// A disk, and what may come instead of it or beside it.
    fn add_disk(&mut self, path: &Path, folder_too: bool) {
        // A link may be in one folder, and what it leads to in another.
        let real = self.look(path, Path::canonicalize).and_then(Result::ok);
        let real = real.unwrap_or_else(|| path.to_owned());
        let answers = self.add_used(&real);
        if !folder_too {
            return;
        }
        if real.starts_with(DEV) {
            self.add_used(Path::new(DEV));
        } else if answers && let Some(folder) = folder_with_little(&real) {
            self.add_used(&folder);
        } else if !answers {
            self.add_above(&real);
        }
    }

    /// The nearest folder above what does not answer. It has the place of the mount, which may answer later.
    fn add_above(&mut self, path: &Path) {
        let mut folder = folder_with_little(path);
        while let Some(place) = folder {
            if self.add_used(&place) {
                return;
            }
            folder = folder_with_little(&place);
        }
    }

    fn add_used(&mut self, path: &Path) -> bool {
        self.disks.iter().any(|known| path.starts_with(known)) || self.add(path, Access::Use)
    }

    /// Adds a rule for a path, if it is there. Returns whether it answers.
    fn add(&mut self, path: &Path, access: Access) -> bool {
        let found = self.look(path, |path| {
            let real = path.canonicalize()?;
            // Without O_PATH this would wait for whoever is to write to a FIFO.
            let place = open(&real, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())?;
            // Making the rule asks for the same, and waits.
            fstat(&place)?;
            Ok::<(PathBuf, OwnedFd), io::Error>((real, place))
        });
        if let Some(Ok((real, place))) = found {
            match access {
                Access::Use => self.disks.push(real),
                Access::Read | Access::Manage => self.read.push(real),
            }
            self.rules.push(Rule { place, access });
            return true;
        }
        found.is_some()
    }

    /// Looks at a path; none if it hangs.
    fn look<T: Send + 'static>(
        &self,
        path: &Path,
        look: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
    ) -> Option<io::Result<T>> {
        let left = self.deadline.saturating_duration_since(Instant::now()).min(LOOK_LIMIT);
        let at = path.to_owned();
        worker::wait(Task::new("looking at", path, left), move || look(&at)).ok()
    }
}

fn metrics_file(config: &Config) -> Option<&Path> {
    config.metrics.as_ref()?.file.as_deref()
}

/// The files with keys.
fn key_files(config: &Config) -> impl Iterator<Item = &Path> {
    let sources = config.hosts.iter().flat_map(|host| host.key_sources());
    sources.filter_map(|source| match source {
        KeySource::File(path) => Some(path.as_path()),
        KeySource::Credential(_) | KeySource::Keyring(_) => None,
    })
}

/// The folder in which a file is.
fn folder_of(path: &Path) -> Option<PathBuf> {
    std::path::absolute(path).ok()?.parent().map(Path::to_owned)
}

/// The same, unless it is a folder of the system.
fn folder_with_little(path: &Path) -> Option<PathBuf> {
    folder_of(path).filter(|folder| !SYSTEM.iter().any(|one| folder == Path::new(one)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        let text = format!(
            "[[listener]]\naddress = \"127.0.0.1\"\nport = 4444\n[[subsystem]]\nnqn = \"nqn.2026-11.org.ringfab:a\"\n\
             allow_any_host = true\n{text}"
        );
        Config::parse(&text, "test").unwrap()
    }

    fn disks(folder: &Path, name: &str, confinement: &str) -> Vec<PathBuf> {
        let path = folder.join(name);
        let text = format!("[[subsystem.namespace]]\npath = {path:?}\n{confinement}");
        let options = ServeOptions { config: folder.join("target.toml"), ready_file: None, log_format: None };
        let mut places = Places::new();
        places.add_all(&options, &config(&text));
        let devices = |one: &PathBuf| DEVICES.iter().any(|device| one == Path::new(device));
        places.disks.into_iter().filter(|one| !devices(one)).collect()
    }

    #[test]
    fn disks_are_the_folders_of_those_that_are_configured_or_what_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        let (real, there) = (folder.join("real"), folder.join("there"));
        fs::create_dir(&there).unwrap();
        fs::write(there.join("disk"), "").unwrap();
        std::os::unix::fs::symlink(there.join("disk"), folder.join("link")).unwrap();
        assert_eq!(disks(&folder, "missing", ""), std::slice::from_ref(&folder), "it may come");
        assert_eq!(disks(&folder, "link", ""), [there.join("disk"), there.clone()], "not that of the link");
        fs::write(&real, "").unwrap();
        let alone = disks(&folder, "real", "[confinement]\npaths = []\n");
        assert_eq!(alone, std::slice::from_ref(&real));
        let paths = format!("[confinement]\npaths = [{there:?}]\n");
        assert_eq!(disks(&folder, "real", &paths), [real, there]);
    }

    #[test]
    fn a_folder_of_the_system_is_no_rule() {
        let of = |path: &str| folder_with_little(Path::new(path));
        assert_eq!(of("/disk"), None);
        assert_eq!(of("/etc/target.toml"), None);
        assert_eq!(of("/srv/disks/a"), Some("/srv/disks".into()));
        assert_eq!(folder_of(Path::new("/run/control.sock")), Some("/run".into()));
    }

    #[test]
    fn ports_are_those_of_the_configuration_and_the_usual_ones() {
        let text = "[metrics]\naddress = \"127.0.0.1:9420\"\n[confinement]\nports = [1, 4444]\n";
        let of = |text: &str| {
            let disk = "[[subsystem.namespace]]\nnull = \"1MiB\"\n";
            ports(&config(&format!("{disk}{text}"))).into_iter().collect::<Vec<_>>()
        };
        assert_eq!(of(""), [4420, 4444, 8009]);
        assert_eq!(of(text), [1, 4420, 4444, 8009, 9420]);
    }
}
