//! `ringfab-target doctor` on a machine that lacks something: limits, rights, a kernel, a port, a device.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Command;

use ringfab_tests::{NQN, Service, free_port, have, not_run, program, wait_until};
use serde_json::Value;
use tempfile::TempDir;

/// A folder with a configuration of this namespace, and these listeners.
fn folder(namespace: &str, listeners: &str) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let [state, socket] = ["state", "control.sock"].map(|name| folder.path().join(name));
    fs::create_dir(&state).expect("a folder");
    let text = format!(
        "[target]\nstate_dir = {state:?}\ncores = 1\n[control]\nsocket = {socket:?}\n{listeners}\
         [[subsystem]]\nnqn = {NQN:?}\nallow_any_host = true\n[[subsystem.namespace]]\n{namespace}\n"
    );
    fs::write(folder.path().join("target.toml"), text).expect("a configuration");
    folder
}

fn listener(port: u16) -> String {
    format!("[[listener]]\naddress = \"127.0.0.1\"\nport = {port}\ntransport = \"tcp\"\n")
}

/// What a look found wrong, by its step, and what to do about it; and all that it said.
struct Examined(Vec<(String, String, String)>, String);

impl Examined {
    /// Examines a folder's configuration, started by other commands.
    fn by(wraps: &[&str], folder: &Path) -> Self {
        let target = program("ringfab-target").display().to_string();
        let file = folder.join("target.toml").display().to_string();
        let words = [wraps, &[&target, "doctor", &file, "--json"]].concat();
        let output = Command::new(words[0]).args(&words[1..]).output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let looks: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{said}"));
        let text = |look: &Value, key: &str| look[key].as_str().map(str::to_owned);
        let fails = |look: &Value| look["error"].is_string() && look["look"] == false;
        let looks = looks["steps"].as_array().expect("a list");
        assert_eq!(output.status.success(), !looks.iter().any(fails), "{looks:?}");
        let wrong = looks.iter().filter_map(|look| {
            let advice = text(look, "advice").unwrap_or_default();
            Some((text(look, "step")?, text(look, "error")?, advice))
        });
        Self(wrong.collect(), String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// This step found this, and says what to do.
    fn has(&self, step: &str, says: &str, advice: &str) {
        let found = self
            .0
            .iter()
            .any(|(its, wrong, what)| its == step && wrong.contains(says) && what.contains(advice));
        assert!(found, "{step}: {says}: {advice}: {:#?}", self.0);
    }

    /// Nothing is wrong but that no target runs.
    fn is_well(&self) {
        let steps: Vec<&str> = self.0.iter().map(|(step, ..)| step.as_str()).collect();
        assert_eq!(steps, ["target"], "{:#?}", self.0);
    }
}

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Another user, in groups of its own.
const OTHER_USER: [&str; 4] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];

/// Without the right to lock as much memory as it likes, whoever it is.
const NO_LOCKING: [&str; 3] = ["setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock"];

#[test]
fn limits_that_are_too_low_are_named_with_what_is_needed() {
    let folder = folder("memory = \"1MiB\"", &listener(free_port()));
    Examined::by(&["env"], folder.path()).is_well();
    let limits = ["sh", "-c", "ulimit -l 64 && ulimit -n 100 && ulimit -v 65536 && exec \"$@\"", "sh"];
    let limited = if is_root() { [&NO_LOCKING[..], &limits].concat() } else { limits.to_vec() };
    if is_root() && !have("setpriv") {
        return not_run("the doctor with little locked memory: setpriv is not installed");
    }
    let examined = Examined::by(&limited, folder.path());
    examined.has("addresses", "64 MiB allowed to this user", "LimitAS=");
    examined.has("open files", "100 allowed to this user", "LimitNOFILE=");
    // Without locked memory all works.
    assert!(
        examined.1.contains("64 KiB allowed to this user: file I/O is somewhat slower"),
        "{}",
        examined.1
    );
    // What other programs of this user lock counts as well: there may be too little left for a ring.
    let others = examined.0.iter().filter(|(step, ..)| step != "io_uring");
    assert_eq!(others.count(), 3, "{:#?}", examined.0);
}

/// Those of a service are not those of the shell in which somebody asks.
#[test]
fn the_limits_of_a_target_that_runs_are_those_that_count() {
    let folder = folder("memory = \"1MiB\"", &listener(free_port()));
    let config = folder.path().join("target.toml");
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 100 && exec \"$@\"", "sh"]);
    command.arg(program("ringfab-target")).args(["serve", "--config"]).arg(&config);
    let log = fs::File::create(folder.path().join("log")).expect("a log");
    let target = Service::start_command(folder, command, log.into());
    wait_until("the control socket is there", || target.path("control.sock").exists());
    let examined = Examined::by(&["env"], &target.path(""));
    let who = format!("100 allowed to the target that runs (process {})", target.id());
    examined.has("open files", &who, "LimitNOFILE=");
    assert_eq!(examined.0.len(), 1, "{:#?}", examined.0);
}

#[test]
fn what_another_user_may_not_read_and_write_is_named() {
    if !is_root() || !have("setpriv") {
        return not_run("the doctor as another user: not root, or setpriv is not installed");
    }
    let disk = tempfile::NamedTempFile::new().expect("a file");
    disk.as_file().set_len(4096).expect("a size");
    let folder = folder(&format!("path = {:?}", disk.path()), &listener(free_port()));
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("changed");
    Examined::by(&["env"], folder.path()).is_well();
    let examined = Examined::by(&OTHER_USER, folder.path());
    examined.has("state", "cannot be written by this user", "let the user of the service write");
    let remedy = format!("chown nobody {}", disk.path().display());
    examined.has("machine", "cannot be read and written by this user", &remedy);
    // The socket of a target that this user may not ask.
    let config = folder.path().join("target.toml").display().to_string();
    let mut command = Command::new(program("ringfab-target"));
    command.args(["serve", "--config", &config]);
    let log = fs::File::create(folder.path().join("log")).expect("a log");
    let target = Service::start_command(folder, command, log.into());
    wait_until("the control socket is there", || target.path("control.sock").exists());
    let examined = Examined::by(&OTHER_USER, &target.path(""));
    examined.has("target", "Permission denied", "[control] mode and group");
    // The configuration itself.
    fs::set_permissions(target.path("target.toml"), fs::Permissions::from_mode(0o600)).expect("changed");
    let owner = fs::metadata(target.path("target.toml")).expect("it is there").uid();
    assert_eq!(owner, 0);
    let examined = Examined::by(&OTHER_USER, &target.path(""));
    examined.has("configuration", "Permission denied", "correct the configuration");
}

#[test]
fn a_configuration_that_is_missing_or_that_everybody_may_write_is_named() {
    let folder = folder("memory = \"1MiB\"", &listener(free_port()));
    let file = folder.path().join("target.toml");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).expect("changed");
    Examined::by(&["env"], folder.path()).has("permissions", "everybody may write", "chmod o-w");
    fs::remove_file(&file).expect("removed");
    let examined = Examined::by(&["env"], folder.path());
    examined.has("configuration", "No such file", "correct");
    examined.has("permissions", "No such file", "create the file");
}

#[test]
fn a_port_and_a_disk_that_others_have_and_a_device_that_is_missing_are_named() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("its address").port();
    let verbs = "[[listener]]\naddress = \"192.0.2.77\"\nprovider = \"verbs\"\n";
    let folder = folder("path = \"/nonexistent/disk\"", &(listener(port) + verbs));
    let examined = Examined::by(&["env"], folder.path());
    let who = format!("the port is in use by process {} (", std::process::id());
    examined.has("machine", &who, "end that, or choose another port");
    examined.has("machine", "/nonexistent/disk does not exist", "correct the path");
    // Whatever this machine has, that is not its address.
    examined.has("machine", "RDMA device", "install the device's libraries");
}

#[test]
fn an_old_kernel_is_named() {
    let folder = folder("memory = \"1MiB\"", &listener(free_port()));
    fs::write(folder.path().join("release"), "5.15.0-91-generic\n").expect("a file");
    let release = folder.path().join("release").display().to_string();
    let steps = format!("mount --bind {release} /proc/sys/kernel/osrelease && exec \"$@\"");
    let mut wraps = vec!["unshare", "--mount"];
    if !is_root() {
        wraps.push("--map-root-user");
    }
    wraps.extend(["sh", "-c", &steps, "sh"]);
    if !Command::new(wraps[0]).args(&wraps[1..]).arg("true").status().is_ok_and(|it| it.success()) {
        return not_run("the doctor with an old kernel: this user may have no namespace of mounts");
    }
    let examined = Examined::by(&wraps, folder.path());
    examined.has("kernel", "Linux 5.15.0-91-generic is older than 6.1", "install a newer kernel");
}

/// Has the kernel refuse io_uring_setup to this process, as containers do, and runs a command.
const WITHOUT_IO_URING: &str = "
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
# Load the number of the system call; if it is 425, errno 1; otherwise go on.
code = [(0x20, 0, 0, 0), (0x15, 0, 1, 425), (0x06, 0, 0, 0x50001), (0x06, 0, 0, 0x7fff0000)]
text = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *one) for one in code))
program = ctypes.create_string_buffer(struct.pack('HxxxxxxP', len(code), ctypes.addressof(text)))
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0
os.execv(sys.argv[1], sys.argv[1:])
";

#[test]
fn a_system_without_io_uring_is_named() {
    if !have("python3") {
        return not_run("the doctor without io_uring: python3 is not installed");
    }
    let folder = folder("memory = \"1MiB\"", &listener(free_port()));
    let examined = Examined::by(&["python3", "-c", WITHOUT_IO_URING], folder.path());
    examined.has("io_uring", "Operation not permitted", "io_uring_setup");
}
