//! `ringfab-target host add --with-keys` and `host rekey` at a target that runs, and the one file at the host.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use nix::unistd::geteuid;
use ringfab_tests::{NQN, Service, free_port, not_run, program};
use tempfile::TempDir;

const FIRST: &str = "nqn.2026-11.org.ringfab:first";
const HOST: &str = "nqn.2026-11.org.ringfab:second";

/// A target with a listener without TLS, and one host that may use it without a key.
struct Target {
    folder: TempDir,
    port: u16,
    service: Service,
}

fn said(output: &Output) -> String {
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    assert!(!told.contains("DHHC-1:") && !told.contains("NVMeTLSkey-1:"), "{told}");
    String::from_utf8(output.stdout.clone()).expect("text")
}

fn refused(output: &Output) -> String {
    assert!(!output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!told.contains("DHHC-1:0") && !told.contains("NVMeTLSkey-1:0"), "{told}");
    told
}

impl Target {
    fn start(transport: &str) -> Self {
        let (folder, port) = (tempfile::tempdir().expect("a folder"), free_port());
        let text = format!(
            "# What an administrator has written.\n[target]\nstate_dir = {:?}\ncores = [0]\n[control]\nsocket = {:?}\n\
             [[listener]] # the only one\naddress = \"127.0.0.1\"\nport = {port}\ntransport = {transport:?}\n\
             [[subsystem]]\nnqn = {NQN:?}\nallowed_hosts = [{FIRST:?}]\n[[subsystem.namespace]]\nmemory = \"8MiB\"\n",
            folder.path().join("state"),
            folder.path().join("control"),
        );
        fs::write(folder.path().join("target.toml"), text).expect("a configuration");
        let config = folder.path().join("target.toml").display().to_string();
        let service =
            Service::start("ringfab-target", |_| ["serve", "--config", &config].map(str::to_owned).to_vec());
        Self { folder, port, service }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(program("ringfab-target"));
        command.args(arguments).arg("--socket").arg(self.path("control")).output().expect("it runs")
    }

    /// `ringfab list` with options of the command line.
    fn list(&self, arguments: &[&str]) -> Output {
        let url = format!("nvme+tcp://127.0.0.1:{}/{NQN}", self.port);
        Command::new(program("ringfab")).args(["list", &url]).args(arguments).output().expect("it runs")
    }

    fn list_with(&self, file: &Path) -> Output {
        self.list(&["--keys", file.to_str().expect("text")])
    }

    fn config(&self) -> String {
        fs::read_to_string(self.path("target.toml")).expect("the configuration")
    }

    /// The file with the keys of a host, as the target has it.
    fn keys(&self, name: &str) -> PathBuf {
        self.path("keys").join(name)
    }

    /// How many files with keys there are.
    fn count(&self) -> usize {
        fs::read_dir(self.path("keys")).map_or(0, Iterator::count)
    }

    /// Nobody sees a key where people look.
    fn assert_hidden(&self, printed: &str) {
        let places = [
            printed.to_owned(),
            self.config(),
            self.service.log(),
            said(&self.command(&["config"])),
            said(&self.command(&["status", "--json"])),
        ];
        for file in fs::read_dir(self.path("keys")).expect("a folder").flatten() {
            let text = fs::read_to_string(file.path()).expect("keys");
            let keys: Vec<&str> = text.lines().filter_map(|line| line.split('"').nth(1)).collect();
            for key in keys.into_iter().filter(|text| !text.starts_with("nqn.")) {
                for place in &places {
                    assert!(!place.contains(&key[16..40]), "{place}");
                }
            }
        }
    }
}

fn owner_and_mode(path: &Path) -> (u32, u32) {
    let found = fs::metadata(path).expect("it is there");
    (found.uid(), found.mode() & 0o777)
}

#[test]
fn one_command_at_the_target_and_one_option_at_the_host_are_enough() {
    let target = Target::start("tcp");
    for host in [HOST, FIRST] {
        let printed =
            said(&target.command(&["host", "add", host, "--subsystem", NQN, "--with-keys", "--tls"]));
        let file = target.keys(&format!("{host}.keys"));
        assert!(printed.contains(&format!("{} has the keys", file.display())), "{printed}");
        for step in ["1. Copy the file", "install -D -m 600 /dev/stdin /etc/ringfab/", "2. Use it there"] {
            assert!(printed.contains(step), "{step}: {printed}");
        }
        assert_eq!(owner_and_mode(&file), (geteuid().as_raw(), 0o600));
        assert_eq!(owner_and_mode(&target.path("keys")), (geteuid().as_raw(), 0o700));
        target.assert_hidden(&printed);
        // The host has a copy, and no other option.
        let copy = target.path("copy");
        fs::copy(&file, &copy).expect("a copy");
        assert!(said(&target.list_with(&copy)).contains("8 MiB"));
        let by_address = format!("nvme+tcp://127.0.0.1:{}/{NQN}?keys={}", target.port, copy.display());
        let listed = Command::new(program("ringfab")).args(["list", &by_address]).output().expect("it runs");
        assert!(said(&listed).contains("8 MiB"));
        let of_environment = Command::new(program("ringfab"))
            .args(["doctor", &format!("nvme+tcp://127.0.0.1:{}/{NQN}", target.port)])
            .env("RINGFAB_KEYS", &copy)
            .output();
        assert!(said(&of_environment.expect("it runs")).contains("over TLS"));
        // It is the name of the host, too.
        let told = refused(&target.list(&[
            "--keys",
            copy.to_str().expect("text"),
            "--hostnqn",
            "nqn.2026-11.org.x:y",
        ]));
        assert!(told.contains(&format!("are those of \"{host}\"")), "{told}");
        assert!(!target.list(&["--hostnqn", host]).status.success(), "without its keys");
    }
    let log = target.service.log();
    assert!(log.contains("authenticated") && log.contains("TLS_AES_128_GCM_SHA256"), "{log}");
    // The file of the configuration has all of it, as a person wrote the rest.
    let config = target.config();
    for line in ["# What an administrator has written.", "[[listener]] # the only one", "tls = \"allowed\""] {
        assert!(config.contains(line), "{line}: {config}");
    }
    assert!(said(&target.command(&["config", "--save"])).contains("has all of it already"));
    assert!(said(&target.command(&["reload"])).contains("nothing is different"));
    let check = Command::new(program("ringfab-target")).arg("check").arg(target.path("target.toml")).output();
    said(&check.expect("it runs"));
}

#[test]
fn what_is_refused_leaves_no_keys_behind() {
    let target = Target::start("rdma");
    let add = |more: &[&str]| target.command(&[&["host", "add", HOST, "--with-keys"][..], more].concat());
    let told = refused(&add(&["--subsystem", "nqn.2026-11.org.x:y"]));
    assert!(told.contains(&format!("there is no subsystem nqn.2026-11.org.x:y; there are {NQN}")), "{told}");
    let told = refused(&add(&["--tls"]));
    assert!(told.contains("TLS is for NVMe/TCP") && told.contains("--transport tcp"), "{told}");
    let told = refused(&target.command(&["host", "add", "nobody", "--with-keys"]));
    assert!(told.contains("the host is \"nobody\""), "{told}");
    // Somebody is writing the file.
    let before = target.config();
    fs::write(target.path("target.toml"), format!("{before}nonsense = 1\n")).expect("written");
    let told = refused(&add(&[]));
    assert!(told.contains("was changed and not reloaded"), "{told}");
    fs::write(target.path("target.toml"), &before).expect("written");
    assert_eq!(target.count(), 0);
    assert_eq!(target.config(), before);
    // Without the file, and with a folder of its own.
    let folder = target.path("elsewhere");
    let unsaved = said(&add(&["--no-save", "--directory", folder.to_str().expect("text"), "--json"]));
    let value: serde_json::Value = serde_json::from_str(&unsaved).expect("JSON");
    assert_eq!((&value["saved"], target.config()), (&false.into(), before));
    assert_eq!(value["keys"].as_str().map(PathBuf::from), Some(folder.join(format!("{HOST}.keys"))));
    let told = refused(&add(&[]));
    assert!(told.contains("has keys already: `host rekey`"), "{told}");
    assert_eq!(target.count(), 0, "the keys that were refused are gone");
    // A host without keys.
    let told = refused(&target.command(&["host", "add", FIRST]));
    assert!(told.contains("may use"), "{told}");
    said(&target.command(&["host", "add", "nqn.2026-11.org.ringfab:third"]));
    assert!(target.config().contains("nqn.2026-11.org.ringfab:third"), "{}", target.config());
    let told = refused(&target.command(&["host", "rekey", FIRST]));
    assert!(told.contains("has no key yet: `host add --with-keys`"), "{told}");
}

#[test]
fn a_host_gets_other_keys_and_its_old_ones_end_when_they_are_revoked() {
    let target = Target::start("tcp");
    said(&target.command(&["host", "add", HOST, "--with-keys", "--tls"]));
    let (old, new) = (target.keys(&format!("{HOST}.keys")), target.keys(&format!("{HOST}.2.keys")));
    let printed = said(&target.command(&["host", "rekey", HOST, "--until", "2099-12-31T00:00:00Z"]));
    for part in [
        format!("/etc/ringfab/{HOST}.keys <{}", new.display()),
        format!("ringfab-target host revoke {HOST} --socket"),
        format!("rm {}", old.display()),
        "--keep-controller-key".to_owned(),
    ] {
        assert!(printed.contains(&part), "{part}: {printed}");
    }
    target.assert_hidden(&printed);
    assert!(target.config().contains("old_keys_until = 2099-12-31T00:00:00Z"), "{}", target.config());
    for file in [&old, &new] {
        assert!(said(&target.list_with(file)).contains("8 MiB"));
    }
    assert!(target.service.log().contains("the host still has its old key"));
    let told = refused(&target.command(&["host", "rekey", HOST]));
    assert!(told.contains("has old keys still: `host revoke`"), "{told}");
    said(&target.command(&["host", "revoke", HOST]));
    said(&target.command(&["config", "--save"]));
    fs::remove_file(&old).expect("the old keys");
    said(&target.command(&["reload"]));
    assert!(said(&target.list_with(&new)).contains("8 MiB"));
    // One key after the other, as Linux takes them.
    let printed = said(&target.command(&["host", "rekey", HOST, "--keep-controller-key"]));
    assert!(printed.contains("/sys/class/nvme/nvme0/dhchap_secret"), "{printed}");
    let third = old;
    let key = |file: &Path, name: &str| -> String {
        let text = fs::read_to_string(file).expect("keys");
        let line = text.lines().find(|line| line.starts_with(name)).expect("a key");
        line.to_owned()
    };
    assert_eq!(key(&new, "dhchap_controller_key"), key(&third, "dhchap_controller_key"));
    assert_ne!(key(&new, "dhchap_key"), key(&third, "dhchap_key"));
    for file in [&third, &new] {
        assert!(said(&target.list_with(file)).contains("8 MiB"));
    }
    // The keys of another host are no keys of this one.
    let config = target.config().replace(HOST, "nqn.2026-11.org.ringfab:other");
    let other = target.path("other.toml");
    let config = config.replace("nqn.2026-11.org.ringfab:other.", &format!("{HOST}."));
    fs::write(&other, config).expect("written");
    let check = Command::new(program("ringfab-target")).arg("check").arg(&other).output().expect("it runs");
    let told = refused(&check);
    assert!(told.contains(&format!("the keys are those of host {HOST}, and not of")), "{told}");
}

#[test]
fn a_file_that_others_may_read_or_that_is_none_is_refused_with_what_to_do() {
    let target = Target::start("tcp");
    said(&target.command(&["host", "add", HOST, "--with-keys"]));
    let file = target.path("host.keys");
    fs::copy(target.keys(&format!("{HOST}.keys")), &file).expect("a copy");
    let shown = file.display();
    for mode in [0o640, 0o644, 0o602] {
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).expect("a mode");
        let told = refused(&target.list_with(&file));
        let remedy = if mode & 0o007 == 0 { format!("chmod 600 {shown}") } else { "chmod o= it".to_owned() };
        assert!(told.contains(&format!("(mode {mode:04o})")) && told.contains(&remedy), "{told}");
    }
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("a mode");
    if geteuid().is_root() {
        chown(&file, Some(12345), None).expect("another owner");
        let told = refused(&target.list_with(&file));
        assert!(told.contains("is of user 12345") && told.contains(&format!("chown 0 {shown}")), "{told}");
        chown(&file, Some(0), None).expect("its owner");
    }
    let good = fs::read_to_string(&file).expect("keys");
    for (text, words) in [
        (good.replace("dhchap_key = ", "dhchap_kye = "), "line 3: it has another name"),
        (good.replace("host = ", "#"), "the file has no host"),
        (format!("{good}{good}"), "line 6: it names the host a second time"),
        (good.replace("DHHC-1:00:", "DHHC-1:99:"), "line 3: \"99\" is not a hash"),
        ("\u{0}\u{1b}[2J".to_owned(), "line 1: it is neither a comment nor NAME"),
        ("x".repeat(5000), "is longer than 4096 bytes"),
        (String::new(), "the file has no host"),
    ] {
        fs::write(&file, text).expect("written");
        let told = refused(&target.list_with(&file));
        assert!(told.contains(words) && told.contains("host.keys"), "{words}: {told}");
    }
    fs::write(&file, &good).expect("written");
    assert!(said(&target.list_with(&file)).contains("8 MiB"));
    // A key itself is not repeated.
    let told =
        refused(&target.list(&["--keys", "DHHC-1:00:ycnJycnJycnJycnJycnJycnJycnJycnJycnJycnJyclx132H:"]));
    assert!(told.contains("--keys: is a key; put it into a file") && !told.contains("ycnJ"), "{told}");
}

#[test]
fn nvme_cli_takes_the_keys_as_the_printed_lines_read_them() {
    let found = ["/usr/sbin/nvme", "/usr/bin/nvme"].into_iter().find(|path| Path::new(path).exists());
    let Some(nvme) = found else {
        return not_run("the keys of host add against nvme-cli: it is not installed");
    };
    let target = Target::start("tcp");
    let printed = said(&target.command(&["host", "add", HOST, "--with-keys", "--tls"]));
    let line = printed.lines().find(|line| line.contains("key() {")).expect("what reads a key");
    let file = target.keys(&format!("{HOST}.keys")).display().to_string();
    let read = line.replace(&format!("/etc/ringfab/{HOST}.keys"), &file);
    let nvme_says = |check: &str, name: &str| {
        let script = format!("{read}\n{nvme} {check} --key=\"$(key {name})\"");
        said(&Command::new("sh").args(["-c", &script]).output().expect("a shell"))
    };
    for name in ["dhchap_key", "dhchap_controller_key"] {
        assert!(nvme_says("check-dhchap-key", name).contains("length 32"));
    }
    assert!(nvme_says("check-tls-key", "tls_key").contains("length 32"));
    // What connects has the names and the address of this target.
    for part in [
        format!("nvme connect --transport=tcp --traddr=127.0.0.1 --trsvcid={}", target.port),
        format!("--hostnqn={HOST} --nqn={NQN}"),
        "--keydata=\"$(key tls_key)\" --identity=1 --insert".to_owned(),
    ] {
        assert!(printed.contains(&part), "{part}: {printed}");
    }
}
