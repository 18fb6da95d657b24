//! A target process with a listener for each transport, and hosts of it.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use ringfab_auth::{DhchapKey, Hash, Policy, system_random};
use ringfab_initiator::blocking::{Controller, EngineOptions};
use ringfab_initiator::{ConnectOptions, HostIdentity};
use ringfab_tests::member::{Credentials, Member};
use ringfab_tests::{NQN, PATIENCE, Service, free_port, program};

use crate::attack::Act;

/// The host that may connect.
pub(crate) const FRIEND: &str = "nqn.2014-08.org.nvmexpress:uuid:7e57ab1e-0000-4000-8000-000000000001";

/// Another one, which has no key.
pub(crate) const QUIET: &str = "nqn.2014-08.org.nvmexpress:uuid:7e57ab1e-0000-4000-8000-000000000003";

/// Which of the listeners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    Rdma,
    Tcp,
}

/// One at a time: these tests measure times, have thousands of descriptors, and change limits of this process.
static ONE: Mutex<()> = Mutex::new(());

pub(crate) struct Process {
    pub(crate) service: Service,
    rdma: u16,
    tcp: u16,
    /// Who the host that may connect is, where it has to prove that.
    credentials: Option<Credentials>,
    _alone: MutexGuard<'static, ()>,
}

/// The host that may connect, as it has attached.
pub(crate) enum Guest {
    Plain(Controller),
    Member(Member),
}

impl Guest {
    /// Reads something.
    pub(crate) fn read(&mut self) -> Result<(), String> {
        match self {
            Self::Plain(controller) => {
                controller.read_at(1, 0, &mut [0; 4096]).map(drop).map_err(|error| error.to_string())
            }
            Self::Member(member) => member.read().map(drop).map_err(|error| error.to_string()),
        }
    }
}

impl Process {
    pub(crate) fn start() -> Self {
        Self::start_in(&programs())
    }

    /// The same of a program that somebody has built in this folder.
    pub(crate) fn start_in(programs: &Path) -> Self {
        Self::start_alone(programs, ONE.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The same, if the host that may connect has to prove who it is.
    pub(crate) fn start_guarded_in(programs: &Path) -> Self {
        let key = DhchapKey::generate(Hash::Sha256, Some(Hash::Sha256), &mut system_random());
        Self::start_with(programs, ONE.lock().unwrap_or_else(PoisonError::into_inner), Some(&key))
    }

    /// What an attack is made on.
    pub(crate) fn start_for(act: Act) -> Self {
        if act.is_about_authentication() { Self::start_guarded_in(&programs()) } else { Self::start() }
    }

    fn start_alone(programs: &Path, alone: MutexGuard<'static, ()>) -> Self {
        Self::start_with(programs, alone, None)
    }

    fn start_with(programs: &Path, alone: MutexGuard<'static, ()>, key: Option<&DhchapKey>) -> Self {
        let (rdma, tcp) = (free_port(), free_port());
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = Command::new(programs.join("ringfab-target"));
        command.args(arguments(folder.path(), rdma, tcp, key));
        let log = std::fs::File::create(folder.path().join("log")).expect("a log");
        let service = Service::start_command(folder, command, log.into());
        let credentials = key.map(|key| Credentials::new(FRIEND, key, Policy::default()));
        Self { service, rdma, tcp, credentials, _alone: alone }
    }

    /// The same with a limit on its descriptors, which this process has while it starts.
    pub(crate) fn start_with_descriptors(count: u64) -> Self {
        // Built before, since a build takes more descriptors than this.
        let programs = programs();
        let alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("the limit");
        setrlimit(Resource::RLIMIT_NOFILE, count.min(soft), hard).expect("a lower limit");
        let this = Self::start_alone(&programs, alone);
        setrlimit(Resource::RLIMIT_NOFILE, soft, hard).expect("the old limit");
        this
    }

    pub(crate) fn address(&self, over: Over) -> SocketAddr {
        let port = if over == Over::Rdma { self.rdma } else { self.tcp };
        SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port)
    }

    /// Attaches the host that may, however often that takes, and says how long it took.
    pub(crate) fn attach(&self, over: Over) -> (Controller, Duration) {
        self.try_attach(over, PATIENCE).unwrap_or_else(|| panic!("it does not get in: {}", self.tail()))
    }

    /// The same, if it gets in within this time.
    pub(crate) fn try_attach(&self, over: Over, limit: Duration) -> Option<(Controller, Duration)> {
        let begun = Instant::now();
        while begun.elapsed() < limit {
            if let Ok(controller) = Controller::connect(self.options(over), EngineOptions::default()) {
                return Some((controller, begun.elapsed()));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        None
    }

    /// Attaches the host that may connect, which proves who it is if it has to.
    pub(crate) fn try_guest(&self, over: Over, limit: Duration) -> Option<(Guest, Duration)> {
        let Some(credentials) = &self.credentials else {
            return self.try_attach(over, limit).map(|(controller, time)| (Guest::Plain(controller), time));
        };
        let begun = Instant::now();
        while begun.elapsed() < limit {
            let patience = limit.saturating_sub(begun.elapsed()).max(Duration::from_millis(1));
            let attached =
                Member::attach(Ipv4Addr::LOCALHOST.into(), self.address(over), credentials, patience);
            if let Ok(member) = attached {
                return Some((Guest::Member(member), begun.elapsed()));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        None
    }

    /// The same, however often that takes.
    pub(crate) fn guest(&self, over: Over) -> Guest {
        let (guest, _) =
            self.try_guest(over, PATIENCE).unwrap_or_else(|| panic!("it does not get in: {}", self.tail()));
        guest
    }

    pub(crate) fn url(&self, over: Over) -> String {
        let address = self.address(over);
        match over {
            Over::Rdma => format!("nvme+rdma://{address}/{NQN}?provider=iwarp&ns=1"),
            Over::Tcp => format!("nvme+tcp://{address}/{NQN}?ns=1"),
        }
    }

    fn options(&self, over: Over) -> ConnectOptions {
        let host = HostIdentity::load(Some(FRIEND.to_owned()), None, Path::new("/nonexistent"));
        ConnectOptions::new(self.url(over).parse().expect("a URL"), host.expect("an identity"))
    }

    /// Connections that it has, and what else it has open.
    pub(crate) fn open_files(&self) -> usize {
        let path = format!("/proc/{}/fd", self.service.id());
        std::fs::read_dir(path).expect("it runs").count()
    }

    /// How many of its threads have this name.
    pub(crate) fn threads(&self, name: &str) -> usize {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.service.id())).expect("it runs");
        let names = tasks.flatten().map(|task| std::fs::read_to_string(task.path().join("comm")));
        names.flatten().filter(|found| found.trim() == name).count()
    }

    pub(crate) fn status(&self, name: &str) -> u64 {
        let path = format!("/proc/{}/status", self.service.id());
        let status = std::fs::read_to_string(path).expect("it runs");
        let line = status.lines().find(|line| line.starts_with(name)).expect("a line");
        line.split_whitespace().nth(1).expect("a number").parse().expect("a number")
    }

    /// Bounds the addresses that it may have in use from now on, in KiB.
    pub(crate) fn limit_memory(&self, kib: u64) {
        let (pid, bytes) = (self.service.id().to_string(), kib << 10);
        let limited = Command::new("prlimit").args(["--pid", &pid, &format!("--as={bytes}")]).status();
        assert!(limited.expect("prlimit runs").success(), "the limit of a process of ours");
    }

    /// Resident memory once nothing of it comes or goes any more, in KiB.
    pub(crate) fn settled_kib(&self) -> u64 {
        let begun = Instant::now();
        let mut seen = vec![self.status("VmRSS:")];
        loop {
            std::thread::sleep(Duration::from_millis(500));
            seen.push(self.status("VmRSS:"));
            let last = &seen[seen.len().saturating_sub(8)..];
            let (least, most) = (last.iter().min().expect("some"), last.iter().max().expect("some"));
            if last.len() == 8 && most - least < 200 || begun.elapsed() > PATIENCE {
                return *last.last().expect("some");
            }
        }
    }

    /// The end of its log.
    pub(crate) fn tail(&self) -> String {
        let log = self.service.log();
        let lines: Vec<&str> = log.lines().rev().take(10).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }
}

/// The folder of the programs as they are.
fn programs() -> PathBuf {
    program("ringfab-target").parent().expect("a folder").to_owned()
}

fn arguments(folder: &Path, rdma: u16, tcp: u16, key: Option<&DhchapKey>) -> Vec<String> {
    let config = folder.join("target.toml");
    let host = key.map_or_else(String::new, |key| {
        let path = folder.join("key");
        std::fs::write(&path, key.to_text().expose()).expect("a key");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("for few eyes");
        format!("[[host]]\nnqn = {FRIEND:?}\ndhchap_key = \"file:{}\"\n", path.display())
    });
    let listener = |port: u16, transport: &str| {
        format!("[[listener]]\naddress = \"127.0.0.1\"\nport = {port}\ntransport = \"{transport}\"\n")
    };
    let text = format!(
        "[target]\nstate_dir = {folder:?}\ncores = 1\nlog = \"warn\"\n{}{}\
         [[subsystem]]\nnqn = {NQN:?}\nallowed_hosts = [{FRIEND:?}, {QUIET:?}]\n\
         [[subsystem.namespace]]\nmemory = \"64MiB\"\n{host}",
        listener(rdma, "rdma"),
        listener(tcp, "tcp"),
    );
    std::fs::write(&config, text).expect("a configuration");
    vec!["serve".to_owned(), "--config".to_owned(), config.display().to_string()]
}
