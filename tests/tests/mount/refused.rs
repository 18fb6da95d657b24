//! What is refused, and leaves nothing.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use ringfab_tests::{NQN, Service, TestTarget, free_port, have, not_run, program, run_bounded, wait_until};

use super::machine::Machine;
use super::{mounted, target, url};

#[test]
fn what_cannot_be_mounted_is_said_and_leaves_nothing() {
    let Some(machine) = Machine::new("what cannot be mounted") else { return };
    let target = target();
    let (both, first, directory) = (target.url("").to_string(), url(&target, 1), machine.text("a"));
    let nobody = format!("nvme+tcp://127.0.0.1:{}/{NQN}", free_port());
    let unknown = both.replace(NQN, "nqn.2026-11.org.example:unknown");
    let file = machine.text("file");
    fs::write(&file, "text").expect("a file");
    let no_directory = machine.text("none");
    let (both, first, directory) = (both.as_str(), first.as_str(), directory.as_str());
    for (arguments, words) in [
        (&[nobody.as_str(), directory][..], "connect: "),
        (&[&*unknown, directory], "the target refuses SUBNQN"),
        (&[both, directory], "several namespaces; choose one with --nsid: 1, 2"),
        (&[both, directory, "--nsid", "7"], "7"),
        (&[first, directory], "has no file system that is known here; --mkfs ext4 makes one"),
        (&[first, &*no_directory], "has no file system that is known here"),
        (&[first, &*file], "is not a directory"),
        (&[first], "where to mount is missing"),
        (&["nvme+tcp://127.0.0.1", directory], "names no subsystem"),
        (&["http://127.0.0.1/x", directory], "an address begins with"),
        (&["unknown", directory], "is not an address"),
        (&[first, directory, "--mkfs", "../sh"], "is not a kind of file system"),
        // Before anything is attached: nobody listens there.
        (
            &[&*nobody, directory, "--mkfs", "no-such"],
            "there is no program mkfs.no-such on this machine; install the",
        ),
        (&[first, directory, "--mkfs", "ext4", "-o", "no-such-option"], "mount: "),
        (
            &[first, directory, "-o", "hostqnn=a,noatime"],
            "`hostqnn` was given to mount(8): did you mean hostnqn",
        ),
        (&[first, directory, "--dhchap-key", "DHHC-1:00:abc:"], "a key is on the command line"),
        (&[first, directory, "--tls-key", "file:/no/such/key"], "--tls-key: cannot read"),
    ] {
        machine.fails(&[&["mount"], arguments].concat(), words);
        machine.assert_clean();
    }
    wait_until("all have left in order", || target.target.controllers().is_empty());
    assert!(!Path::new(&no_directory).exists(), "it was made for a mount that has failed");
    machine.fails(&["umount", directory], "is not mounted");
    if !have("mkfs.ocfs2") && !Path::new("/usr/sbin/mkfs.ocfs2").exists() {
        machine.fails(&["mount", first, directory, "--mkfs", "ocfs2"], "`apt install ocfs2-tools` brings it");
    }
}

#[test]
fn a_directory_that_is_not_there_is_made_and_goes_with_the_mount() {
    let Some(machine) = Machine::new("a directory that is made for a mount") else { return };
    let target = target();
    let (url, directory) = (url(&target, 1), machine.text("new/deep/disk"));
    let copy = || fs::copy("/proc/self/comm", machine.path("new/deep/disk/file"));
    machine.fails(&["mount", &url, &directory], "has no file system that is known here");
    assert!(copy().is_err(), "who goes on after a mount that has failed is told");
    machine.ok(&["mount", &url, &directory, "--mkfs", "ext4"]);
    let mode = fs::metadata(machine.path("new/deep")).expect("made").permissions().mode() & 0o777;
    assert_eq!(mode, 0o755, "whatever the umask is");
    copy().expect("it is mounted");
    machine.ok(&["umount", &directory]);
    machine.assert_clean();
    assert!(!machine.path("new").exists() && copy().is_err(), "and who goes on after an unmount");
    // The same for files, whose folder may have others in it by then.
    let mut service = Service::start_with(
        "ringfab",
        |_| ["fuse", &url, &directory].map(str::to_owned).to_vec(),
        &[("RINGFAB_RUNTIME_DIRECTORY", &machine.path("run"))],
    );
    assert!(machine.path("new/deep/disk/ns1").exists());
    fs::write(machine.path("new/mine"), "").expect("a file");
    service.signal("TERM");
    assert!(service.wait(ringfab_tests::PATIENCE).success());
    assert!(!machine.path("new/deep").exists() && machine.path("new/mine").exists());
    fs::remove_dir_all(machine.path("new")).expect("removed");
    // What cannot be made is told with the command for whoever may.
    machine.fails(&["mount", &url, "/sys/none/x"], "cannot be where a file system is mounted");
    fs::write(machine.path("file"), "").expect("a file");
    machine.fails(&["mount", &url, &machine.text("file/x")], "file/x");
}

#[test]
fn what_root_has_mounted_is_told_to_others_as_roots() {
    let Some(machine) = Machine::new("what root has mounted") else { return };
    if !nix::unistd::geteuid().is_root() || !have("setpriv") {
        return not_run("what root has mounted: another user can be tried by root only");
    }
    let target = target();
    mounted(&machine, &target, &[]);
    let (directory, url) = (machine.text("a"), url(&target, 1));
    for folder in [".", "a"] {
        fs::set_permissions(machine.path(folder), Permissions::from_mode(0o755)).expect("its own folder");
    }
    fs::create_dir(machine.path("user")).expect("a folder");
    fs::set_permissions(machine.path("user"), Permissions::from_mode(0o700)).expect("a private folder");
    std::os::unix::fs::chown(machine.path("user"), Some(65534), Some(65534)).expect("it is theirs");
    let by_nobody = |arguments: &[&str]| {
        let other = ["--reuid=65534", "--regid=65534", "--clear-groups"];
        let mut command = Command::new("setpriv");
        command.args(other).arg(program("ringfab")).args(arguments);
        command.env("RINGFAB_RUNTIME_DIRECTORY", machine.path("user")).stdin(Stdio::null());
        let output = command.output().expect("it runs");
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
    };
    for command in ["umount", "reset"] {
        let said = by_nobody(&[command, &directory]);
        let expected = format!(
            "{directory} was mounted by root with `ringfab mount`: `sudo ringfab {command} {directory}`"
        );
        assert!(said.contains(&expected), "{said}");
    }
    for arguments in [&["list"][..], &["umount", &url], &["reset", &url]] {
        let said = by_nobody(arguments);
        assert!(said.contains("`sudo ringfab list`"), "{arguments:?}: {said}");
    }
    assert!(by_nobody(&["mount", &url, &directory]).contains("needs root (sudo)"));
    machine.ok(&["umount", &directory]);
    machine.assert_clean();
}

#[test]
fn a_namespace_that_is_read_only_gets_no_file_system() {
    let Some(machine) = Machine::new("mkfs on a read only namespace") else { return };
    let namespace = "[[subsystem.namespace]]\nmemory = \"32MiB\"\nread_only = true\n";
    let target = TestTarget::with_listener("transport = \"tcp\"", namespace);
    let arguments = ["mount", &url(&target, 1), &machine.text("a"), "--mkfs", "ext4"];
    machine.fails(&arguments, "is read only, and --mkfs would write to it");
    machine.assert_clean();
}

#[test]
fn a_broken_file_system_is_told_how_to_repair() {
    let Some(machine) = Machine::new("a broken file system") else { return };
    let target = target();
    mounted(&machine, &target, &[]);
    let (url, directory) = (url(&target, 1), machine.text("a"));
    machine.ok(&["umount", &directory]);
    // The descriptors of block groups, behind the superblock in a block of its own.
    let (file, mut write) = (machine.text("bytes"), vec!["write", &url, "--offset", "4096"]);
    fs::write(&file, [0xa5; 4096]).expect("a file");
    write.extend(["--destroy-data", "1", "-i", &file]);
    machine.ok(&write);
    machine.fails(&["mount", &url, &directory], "; --fsck checks and repairs it");
    machine.assert_clean();
}

#[test]
fn what_is_mounted_is_not_mounted_again() {
    let Some(machine) = Machine::new("what is mounted already") else { return };
    let target = target();
    mounted(&machine, &target, &[]);
    let (directory, other) = (machine.text("a"), machine.text("b"));
    machine.fails(&["mount", &url(&target, 1), &directory], "has a file system already: ext4 of /dev/loop");
    machine.fails(&["mount", &url(&target, 1), &other], "two mounts would destroy it");
    // By a link it is the same directory.
    std::os::unix::fs::symlink(&directory, machine.path("link")).expect("a link");
    machine.fails(&["mount", &url(&target, 2), &machine.text("link")], "has a file system already");
    assert_eq!(machine.only()["directory"], directory);
    machine.ok(&["umount", &machine.text("link")]);
    machine.assert_clean();
    run_bounded(20, "mount", &["-t", "tmpfs", "none", &directory]);
    machine.fails(&["mount", &url(&target, 1), &directory], "has a file system already: tmpfs");
    machine.fails(&["umount", &directory], "was not mounted by `ringfab mount`: it is tmpfs");
    run_bounded(20, "umount", &[&directory]);
}

#[test]
fn what_is_mounted_is_not_overwritten() {
    let Some(machine) = Machine::new("what is written beside a mount") else { return };
    let target = target();
    mounted(&machine, &target, &[]);
    let (directory, one, two) = (machine.text("a"), url(&target, 1), url(&target, 2));
    let refused = format!("namespace 1 is mounted on {directory}");
    let confirmed = ["--destroy-data", "1"];
    let write = ["write", &one, "--input", "/dev/zero", "--length", "4KiB"];
    let trim = ["trim", &one, "--length", "4KiB"];
    let bench = ["bench", &one, "--rw", "randwrite", "--time", "100ms"];
    for command in [&write[..], &trim, &bench] {
        machine.fails(&[command, &confirmed].concat(), &refused);
        machine.fails(&[command, &confirmed].concat(), &format!("`ringfab umount {directory}` first"));
    }
    // Reading harms nothing, and the other namespace is not mounted.
    machine.ok(&["bench", &one, "--rw", "randread", "--time", "100ms", "--warmup", "0s"]);
    machine.ok(&["write", &two, "--input", "/dev/zero", "--length", "4KiB", "--destroy-data", "2"]);
    let served = |more: &[&str]| {
        let arguments = |folder: &Path| {
            let socket = folder.join("socket").display().to_string();
            let nbd = ["nbd", &one, "--socket", &socket];
            nbd.iter().chain(more).map(|argument| (*argument).to_owned()).collect()
        };
        Service::start_with("ringfab", arguments, &[("RINGFAB_RUNTIME_DIRECTORY", &machine.path("run"))])
    };
    assert!(served(&[]).log().contains(&format!("{refused}; who writes to it here as well")));
    assert!(!served(&["--read-only"]).log().contains("is mounted on"));
    machine.ok(&["umount", &directory]);
    machine.ok(&[&write[..], &confirmed].concat());
    machine.assert_clean();
}

#[test]
fn mkfs_overwrites_nothing_that_is_known() {
    let Some(machine) = Machine::new("mkfs") else { return };
    let target = target();
    mounted(&machine, &target, &[]);
    fs::write(machine.path("a/file"), "kept").expect("written");
    let (url, directory) = (url(&target, 1), machine.text("a"));
    machine.ok(&["umount", &directory]);
    machine.fails(&["mount", &url, &directory, "--mkfs", "ext4"], "has ext4 (UUID ");
    machine.ok(&["mount", &url, &directory]);
    assert_eq!(fs::read_to_string(machine.path("a/file")).expect("a file"), "kept");
    machine.ok(&["umount", &directory]);
    machine.ok(&["mount", &url, &directory, "--mkfs", "ext4", "--force"]);
    assert!(!machine.path("a/file").exists(), "it is a new one");
    machine.ok(&["umount", &directory]);
    machine.assert_clean();
}

/// Makes a copy that everybody can run. Another process does it: a program that this one has open for writing cannot be
/// run as long as a child of another test has that, too.
fn copy_program(copy: &Path) {
    let program = ringfab_tests::program("ringfab").display().to_string();
    run_bounded(20, "cp", &[&program, &copy.display().to_string()]);
}

/// A command of a user who has no folder for what is attached.
fn of_nobody(machine: &Machine, arguments: &[&str]) -> Command {
    let copy = machine.path("ringfab");
    if !copy.exists() {
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(machine.path(""), open).expect("open");
        copy_program(&copy);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&copy).args(arguments);
    command.env_remove("RINGFAB_RUNTIME_DIRECTORY").env_remove("XDG_RUNTIME_DIR").env_remove("RUST_LOG");
    command
}

#[test]
fn who_has_no_folder_is_told_that_nobody_knows_what_is_attached() {
    let Some(machine) = Machine::new("a user without a folder") else { return };
    let target = target();
    std::os::unix::fs::chown(machine.path("b"), Some(65534), Some(65534)).expect("given away");
    let (socket, log) = (machine.text("b/socket"), machine.path("log"));
    let mut nbd = of_nobody(&machine, &["nbd", &url(&target, 1), "--socket", &socket]);
    let nbd = nbd.stdout(Stdio::null()).stderr(fs::File::create(&log).expect("a log"));
    let mut nbd = nbd.spawn().expect("setpriv runs");
    wait_until("it serves", || machine.path("b/socket").exists());
    let why = "there is no folder where this user's programs note what is attached";
    wait_until("it says so", || fs::read_to_string(&log).is_ok_and(|log| log.contains(why)));
    for arguments in [&["list"][..], &["list", "--json"], &["reset", "--all"]] {
        let said = of_nobody(&machine, arguments).output().expect("setpriv runs");
        let said = super::machine::Said::of(&said);
        assert_eq!((said.code, said.stdout.as_str()), (Some(1), ""), "{said:?}");
        assert!(said.stderr.contains(why), "{said:?}");
    }
    nbd.kill().expect("killed");
    nbd.wait().expect("ended");
}

#[test]
fn who_may_not_mount_is_told() {
    let Some(machine) = Machine::new("another user's mount") else { return };
    let target = target();
    std::os::unix::fs::chown(machine.path("run"), Some(65534), Some(65534)).expect("given away");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(machine.path(""), open).expect("open");
    let copy = machine.path("ringfab");
    copy_program(&copy);
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&copy);
    command.args(["mount", &url(&target, 1), &machine.text("a")]);
    machine.in_environment(&mut command);
    let said = super::machine::Said::of(&command.output().expect("setpriv runs"));
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.stderr.contains("mounting a file system needs root"), "{said:?}");
    std::os::unix::fs::chown(machine.path("run"), Some(0), Some(0)).expect("taken back");
}
