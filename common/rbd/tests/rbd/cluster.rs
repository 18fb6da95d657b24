//! A Ceph cluster in memory, which all tests of this program share, one after the other.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ringfab_rbd::{Cluster, ClusterConfig};

use crate::core::PATIENCE;

/// The cluster, for the test that has it. The next one finds all of its daemons at work.
pub(crate) struct TestCluster {
    folder: PathBuf,
    _turn: MutexGuard<'static, ()>,
}

/// The folder of the cluster, which is started with the first test; `None` where Ceph is not installed.
static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
static TURN: Mutex<()> = Mutex::new(());

impl TestCluster {
    /// The cluster, or nothing where Ceph is not installed, which is said.
    pub(crate) fn get() -> Option<Self> {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = FOLDER.get_or_init(|| is_installed().then(start)).clone()?;
        Some(Self { folder, _turn: turn })
    }

    /// Its folder, with its configuration.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// How a user reaches it.
    pub(crate) fn config(&self, user: &str) -> ClusterConfig {
        ClusterConfig {
            conf: Some(self.folder.join("ceph.conf")),
            user: Some(user.to_owned()),
            ..ClusterConfig::default()
        }
    }

    /// A configuration like the cluster's own, but for the line that begins so.
    pub(crate) fn changed_conf(&self, begin: &str, line: &str) -> PathBuf {
        let text = fs::read_to_string(self.folder.join("ceph.conf")).expect("the configuration");
        let lines = text.lines().map(|one| if one.starts_with(begin) { line } else { one });
        let changed = self.folder.join("changed.conf");
        fs::write(&changed, lines.map(|line| format!("{line}\n")).collect::<String>())
            .expect("a configuration");
        changed
    }

    /// As the administrator, in a connection of its own.
    pub(crate) fn connect(&self) -> Arc<Cluster> {
        Arc::new(Cluster::new(self.config("admin")))
    }

    /// Runs `rbd` with arguments, and returns what it says.
    pub(crate) fn rbd(&self, arguments: &[&str]) -> String {
        self.run(Command::new("rbd").args(arguments))
    }

    /// Runs `ceph` with arguments.
    pub(crate) fn ceph(&self, arguments: &[&str]) -> String {
        self.run(Command::new("ceph").args(arguments))
    }

    /// Makes an image, with the options of `rbd create`, in place of one that may be there.
    pub(crate) fn create(&self, image: &str, options: &[&str]) {
        self.rbd(&[&["create", image], options].concat());
    }

    /// Stops or starts the monitor: `stop`, `start`.
    pub(crate) fn monitor(&self, what: &str) {
        script(&format!("{what}-mon"), &self.folder, &[]);
    }

    /// Does something to an OSD: `kill`, `start`, `pause`, `resume`.
    pub(crate) fn osd(&self, what: &str, number: u32) {
        script(&format!("{what}-osd"), &self.folder, &[&number.to_string()]);
    }

    /// Has an OSD say that it is full, or not any more, and waits until the pool is.
    pub(crate) fn osd_is_full(&self, full: bool) {
        self.ceph(&["tell", "osd.0", "injectfull", if full { "full" } else { "none" }]);
        let begun = Instant::now();
        let is_full = || self.ceph(&["osd", "pool", "ls", "detail"]).contains(",full,");
        while is_full() != full {
            assert!(begun.elapsed() < PATIENCE, "the pool does not notice");
            thread::sleep(Duration::from_millis(100));
        }
    }

    fn run(&self, command: &mut Command) -> String {
        let output = command.env("CEPH_CONF", self.folder.join("ceph.conf")).output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command:?}: {said}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

/// OSDs that do nothing, until this is dropped.
pub(crate) struct Paused<'a>(&'a TestCluster);

impl<'a> Paused<'a> {
    /// All OSDs of the cluster pause.
    pub(crate) fn new(cluster: &'a TestCluster) -> Self {
        (0..OSDS).for_each(|osd| cluster.osd("pause", osd));
        Self(cluster)
    }
}

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        (0..OSDS).for_each(|osd| self.0.osd("resume", osd));
    }
}

/// OSDs of the cluster.
const OSDS: u32 = 2;

fn script(what: &str, folder: &Path, arguments: &[&str]) {
    let status =
        Command::new(script_path()).arg(what).arg(folder).args(arguments).status().expect("it starts");
    assert!(status.success(), "ceph.sh {what} failed");
}

fn script_path() -> PathBuf {
    let folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let mut scripts = folders.map(|folder| folder.join("tests/scripts/ceph.sh"));
    scripts.find(|script| script.exists()).expect("the script of the project")
}

/// Starts the cluster, and a process that ends it when this one is gone, however that ends.
fn start() -> PathBuf {
    let folder = tempfile::Builder::new().prefix("ringfab-ceph.").tempdir().expect("a folder").keep();
    let mut undertaker = Command::new("sh");
    undertaker.args(["-c", r#"read -r _; "$0" stop "$1"; rm -rf "$1""#]).arg(script_path()).arg(&folder);
    // What ends a group of processes, such as ctrl-C, does not end this one.
    undertaker.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    // The pipe stays open as long as this process is there.
    std::mem::forget(undertaker.spawn().expect("a shell"));
    script("start", &folder, &[&OSDS.to_string()]);
    folder
}

fn is_installed() -> bool {
    let programs = ["ceph-mon", "ceph-osd", "ceph", "rbd"];
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let have = |program: &&&str| std::env::split_paths(&paths).any(|folder| folder.join(program).exists());
    let missing = programs.iter().find(|program| !have(program)).copied();
    let missing = missing.or_else(|| Cluster::load_library().is_err().then_some("librbd"));
    missing.into_iter().for_each(not_run);
    missing.is_none()
}

#[expect(clippy::print_stderr, reason = "whoever runs the tests must see what did not run")]
fn not_run(program: &str) {
    let why = format!("images of Ceph: {program} is not installed (tests/scripts/install.sh ceph)");
    assert!(std::env::var_os("RINGFAB_REQUIRE_TOOLS").is_none(), "NOT RUN: {why}");
    eprintln!("NOT RUN: {why}");
    let Some(path) = std::env::var_os("RINGFAB_NOT_RUN") else { return };
    let mut file = File::options().append(true).create(true).open(path).expect("the file");
    writeln!(file, "{why}").expect("it can be written");
}
