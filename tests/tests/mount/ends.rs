//! The end of a mount: by a command, by the system, by signals.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use ringfab_tests::{
    NQN, PATIENCE, Service, TestTarget, file_target, free_port, program, run_bounded, wait_until,
};
use serde_json::Value;

use super::killed::User;
use super::machine::Machine;
use super::{attribute, mounted, target, url};

#[test]
fn who_uses_it_is_named_and_keeps_it() {
    let Some(machine) = Machine::new("a busy mount") else { return };
    let target = target();
    mounted(&machine, &target, &[]);
    let directory = machine.text("a");
    let user = User::of(&machine);
    machine.fails(&["umount", &directory], &format!("process {} (sleep) uses {directory}", user.id()));
    assert_eq!(machine.only()["state"], "connected", "it serves as before");
    fs::write(machine.path("a/file"), "written").expect("written");
    drop(user);
    let below = machine.text("a/below");
    fs::create_dir(&below).expect("a directory");
    run_bounded(20, "mount", &["-t", "tmpfs", "none", &below]);
    machine.fails(&["umount", &directory], &format!("is mounted at {below}"));
    run_bounded(20, "umount", &[&below]);
    // Out of the tree at once, and ended when nobody uses it any more.
    let user = User::of(&machine);
    let said = machine.run(&["umount", "--lazy", &directory]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.stderr.contains("is in use still"), "{said:?}");
    assert!(machine.ok(&["list"]).contains("unmounted but in use"));
    assert_eq!(machine.loops().len(), 1);
    drop(user);
    wait_until("it ends by itself", || machine.is_clean());
    wait_until("it has left in order", || target.target.controllers().is_empty());
}

#[test]
fn what_is_mounted_twice_covered_or_moved_is_unmounted_in_order() {
    let Some(machine) = Machine::new("a mount at two places") else { return };
    let target = target();
    let (directory, other) = (machine.text("a"), machine.text("b"));
    mounted(&machine, &target, &[]);
    run_bounded(20, "mount", &["--bind", &directory, &other]);
    for (one, two) in [(&directory, &other), (&other, &directory)] {
        machine.fails(&["umount", one], &format!("is mounted at {two}, too; `umount {two}` unmounts that"));
    }
    assert_eq!(machine.only()["mounted_at"].as_array().expect("places").len(), 2, "nothing has changed");
    let said = machine.run(&["umount", "--lazy", &directory]);
    assert!(said.code == Some(0) && said.stderr.contains(&format!("is mounted at {other}, too")), "{said:?}");
    assert!(machine.ok(&["list"]).contains(&other), "where it is now");
    machine.fails(&["umount", &directory], "is not mounted any more, but its disk is in use: ");
    machine.ok(&["umount", &other]);
    machine.assert_clean();

    // What lies on top belongs to somebody else.
    let url = url(&target, 1);
    machine.ok(&["mount", &url, &directory]);
    run_bounded(20, "mount", &["-t", "tmpfs", "none", &directory]);
    fs::write(machine.path("a/file"), "of somebody else").expect("written");
    machine.fails(&["umount", &directory], "is covered by another file system, tmpfs of none");
    assert!(machine.path("a/file").exists(), "it is there still");
    run_bounded(20, "umount", &[&directory]);
    machine.ok(&["umount", &directory]);
    machine.assert_clean();

    // A folder above it gets another name.
    fs::create_dir_all(machine.path("old name/a")).expect("folders");
    machine.ok(&["mount", &url, &machine.text("old name/a")]);
    fs::rename(machine.path("old name"), machine.path("new name")).expect("renamed");
    let moved = machine.text("new name/a");
    assert!(machine.ok(&["list"]).contains(&moved));
    machine.ok(&["umount", &moved]);
    machine.assert_clean();
}

#[test]
fn what_could_not_be_written_back_is_told_at_the_end() {
    let Some(machine) = Machine::new("a disk that is full") else { return };
    let disks = machine.text("b");
    run_bounded(20, "mount", &["-t", "tmpfs", "-o", "size=4M", "none", &disks]);
    fs::File::create(machine.path("b/disk")).expect("a file").set_len(64 << 20).expect("its size");
    // Its state is not on the disk that is full.
    let image = machine.path("disk");
    symlink(machine.path("b/disk"), &image).expect("a link");
    let port = free_port();
    // A process of its own, which sees this test's mounts.
    let target = file_target(port, &image);
    let directory = machine.text("a");
    let url = format!("nvme+rdma://127.0.0.1:{port}/{NQN}?ns=1");
    machine.ok(&["mount", &url, &directory, "--mkfs", "ext4"]);
    // Nobody asks whether it is on the disk.
    fs::write(machine.path("a/file"), vec![0x5a; 20 << 20]).expect("written");
    let said = machine.run(&["umount", &directory, "--json"]);
    assert_eq!(said.code, Some(3), "{said:?}");
    let document: Value = serde_json::from_str(&said.stdout).expect("JSON");
    assert!(document["failed_commands"].as_u64() > Some(0), "{said:?}");
    assert!(said.stderr.contains("failed since it was mounted, and what was written may not be"), "{said:?}");
    drop(target);
    run_bounded(20, "umount", &[&disks]);
    machine.assert_clean();
}

#[test]
fn a_disk_that_the_target_has_removed_is_shown_and_what_is_lost_is_told() {
    let Some(machine) = Machine::new("a disk that is removed") else { return };
    let target = target();
    let directory = machine.text("a");
    mounted(&machine, &target, &[]);
    assert_eq!(machine.only()["failed_commands"], 0);
    // In the memory of this machine, as long as nobody asks whether it is on the disk.
    fs::write(machine.path("a/file"), "precious").expect("written");
    target.manager().remove(None, 1).expect("it is there");
    wait_until("it is shown", || machine.only()["state"] == "disk removed");
    assert!(machine.ok(&["list"]).contains("disk removed"), "people are told, too");
    assert!(machine.ok(&["reset", &directory]).contains("is connected again"), "the target is there");
    let said = machine.run(&["umount", &directory, "--json"]);
    assert_eq!(said.code, Some(3), "{said:?}");
    let document: Value = serde_json::from_str(&said.stdout).expect("JSON");
    assert!(document["failed_commands"].as_u64() > Some(0), "{said:?}");
    assert!(said.stderr.contains("failed since it was mounted, and what was written may not be"), "{said:?}");
    let log = logs(&machine);
    let told = "an I/O command has failed error=\"the controller has no namespace";
    assert!(log.is_empty() || log.contains(told), "{log}");
    machine.assert_clean();
}

/// The logs of mounts in the background, where there is no journal.
fn logs(machine: &Machine) -> String {
    let files = fs::read_dir(machine.path("run")).expect("a folder").flatten().map(|entry| entry.path());
    let logs = files.filter(|path| path.extension().is_some_and(|extension| extension == "log"));
    logs.map(|path| fs::read_to_string(path).expect("a log")).collect()
}

#[test]
fn a_mount_in_another_mount_namespace_is_found() {
    let Some(machine) = Machine::new("a mount namespace") else { return };
    let target = target();
    mounted(&machine, &target, &[]);
    let directory = machine.text("a");
    let mut inside = Command::new("unshare");
    let inside = inside.args(["--mount", "--propagation", "private", "sleep", "600"]).spawn();
    let mut inside = inside.expect("unshare runs");
    let comm = format!("/proc/{}/comm", inside.id());
    wait_until("it is in there", || fs::read_to_string(&comm).is_ok_and(|name| name.trim() == "sleep"));
    machine.fails(&["umount", &directory], &format!("process {} (sleep) has /dev/loop", inside.id()));
    assert!(machine.ok(&["list"]).contains("unmounted but in use"));
    inside.kill().expect("killed");
    inside.wait().expect("ended");
    wait_until("it ends by itself", || machine.is_clean());
    wait_until("it has left in order", || target.target.controllers().is_empty());
}

#[test]
fn an_unmount_by_other_tools_ends_everything() {
    let Some(machine) = Machine::new("an unmount by umount(8)") else { return };
    let target = target();
    mounted(&machine, &target, &[]);
    run_bounded(20, "umount", &[&machine.text("a")]);
    wait_until("it ends by itself", || machine.is_clean());
    wait_until("it has left in order", || target.target.controllers().is_empty());
}

/// A mount whose process stays in the foreground.
fn in_foreground(machine: &Machine, url: &str, more: &[&str]) -> Child {
    let mut command = Command::new(program("ringfab"));
    command.args(["mount", "--foreground", url, &machine.text("a")]).args(more);
    machine.in_environment(&mut command);
    let log = fs::File::create(machine.path("log")).expect("a log");
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().expect("it starts");
    wait_until("it is mounted", || !machine.mounts().is_empty() && machine.only()["state"] == "connected");
    child
}

fn send(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id().cast_signed()), signal).expect("it is there");
}

fn code(child: &mut Child) -> Option<i32> {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        if let Some(status) = child.try_wait().expect("its state") {
            return status.code();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("it does not end")
}

fn log(machine: &Machine) -> String {
    fs::read_to_string(machine.path("log")).expect("a log")
}

#[test]
fn a_signal_unmounts_and_who_uses_it_has_time() {
    let Some(machine) = Machine::new("signals to a mount") else { return };
    let target = target();
    mounted(&machine, &target, &[]);
    machine.ok(&["umount", &machine.text("a")]);
    let url = url(&target, 1);
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut child = in_foreground(&machine, &url, &[]);
        fs::write(machine.path("a/file"), signal.as_str()).expect("written");
        // A terminal that goes away is no reason to end.
        send(&child, Signal::SIGHUP);
        send(&child, signal);
        assert_eq!(code(&mut child), Some(0), "{}", log(&machine));
        machine.assert_clean();
    }
    // In use: SIGINT waits for as long as it takes.
    let mut child = in_foreground(&machine, &url, &[]);
    let user = User::of(&machine);
    send(&child, Signal::SIGINT);
    let named = format!("process {} (sleep)", user.id());
    wait_until("it is said", || log(&machine).contains(&named) && log(&machine).contains("another ctrl-C"));
    assert!(child.try_wait().expect("its state").is_none());
    fs::write(machine.path("a/file"), "late").expect("it serves meanwhile");
    drop(user);
    assert_eq!(code(&mut child), Some(0), "{}", log(&machine));
    machine.assert_clean();
    // A second one detaches it. What was written by then is on the disk.
    let mut child = in_foreground(&machine, &url, &[]);
    assert_eq!(fs::read_to_string(machine.path("a/file")).expect("a file"), "late");
    let user = User::of(&machine);
    fs::write(machine.path("a/file"), "last").expect("written");
    send(&child, Signal::SIGINT);
    wait_until("it is said", || log(&machine).contains(&format!("process {} (sleep)", user.id())));
    send(&child, Signal::SIGINT);
    assert_eq!(code(&mut child), Some(1), "somebody has lost a file: {}", log(&machine));
    assert!(machine.mounts().is_empty());
    drop(user);
    wait_until("nothing is left", || machine.is_clean());
    let mut child = in_foreground(&machine, &url, &[]);
    assert_eq!(fs::read_to_string(machine.path("a/file")).expect("a file"), "last");
    send(&child, Signal::SIGTERM);
    assert_eq!(code(&mut child), Some(0), "{}", log(&machine));
    machine.assert_clean();
}

#[test]
fn a_service_manager_does_not_wait_for_a_target_that_is_away() {
    let Some(machine) = Machine::new("the end without a target") else { return };
    let image = machine.path("disk.img");
    fs::File::create(&image).and_then(|file| file.set_len(64 << 20)).expect("an image");
    let port = free_port();
    let mut target = file_target(port, &image);
    let url = format!("nvme+rdma://127.0.0.1:{port}/{NQN}");
    machine.ok(&["mount", &url, &machine.text("a"), "--mkfs", "ext4"]);
    machine.ok(&["umount", &machine.text("a")]);
    let mut child = in_foreground(&machine, &url, &[]);
    fs::write(machine.path("a/file"), vec![1; 1 << 20]).expect("written to the cache");
    target.kill();
    wait_until("it is noticed", || machine.only()["state"] == "reconnecting");
    let begun = Instant::now();
    send(&child, Signal::SIGTERM);
    let until = Instant::now() + 2 * PATIENCE;
    while child.try_wait().expect("its state").is_none() {
        assert!(Instant::now() < until, "it does not end: {}", log(&machine));
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(begun.elapsed() >= Duration::from_secs(10), "it waits for the target at first");
    assert!(log(&machine).contains("what was not written yet is lost"), "{}", log(&machine));
    wait_until("nothing is left", || machine.is_clean());
}

/// Somebody else has begun the unmount, and it takes longer than a file system may be in use.
#[test]
fn what_was_written_goes_to_the_disk_before_a_service_manager_has_its_end() {
    let Some(machine) = Machine::new("the end while it writes back") else { return };
    let slow = "[[subsystem.namespace]]\nmemory = \"64MiB\"\nblock_bytes = 4096\n\
                limits = { write_bytes_per_s = \"2MiB\" }\n";
    let target = TestTarget::with_listener("transport = \"tcp\"", slow);
    mounted(&machine, &target, &["-o", "io_timeout=60s"]);
    machine.ok(&["umount", &machine.text("a")]);
    let mut child = in_foreground(&machine, &url(&target, 1), &[]);
    let begun = Instant::now();
    fs::write(machine.path("a/file"), vec![7; 44 << 20]).expect("written to the cache");
    let mut unmount = Command::new("umount").arg(machine.path("a")).spawn().expect("umount runs");
    let directory = machine.path("a");
    wait_until("it is out of the tree", || machine.mounts().iter().all(|mount| mount.0 != directory));
    send(&child, Signal::SIGTERM);
    let asked = Instant::now();
    let until = asked + 3 * PATIENCE;
    while child.try_wait().expect("its state").is_none() {
        assert!(Instant::now() < until, "it does not end: {}", log(&machine));
        std::thread::sleep(Duration::from_millis(50));
    }
    // All of it takes 22 s, however much of it the kernel writes before the end begins: on a busy machine it writes
    // early. What is in use has 10 s.
    assert!(begun.elapsed() >= Duration::from_secs(18), "it has ended too early: {}", log(&machine));
    let waited = asked.elapsed() >= Duration::from_secs(10);
    assert_eq!(code(&mut child), Some(0), "{}", log(&machine));
    assert!(unmount.wait().expect("its state").success());
    assert!(!waited || log(&machine).contains("what was written goes to the disk"), "{}", log(&machine));
    machine.assert_clean();
    let mut child = in_foreground(&machine, &url(&target, 1), &[]);
    assert!(fs::read(machine.path("a/file")).expect("a file") == vec![7; 44 << 20], "all of it is there");
    send(&child, Signal::SIGTERM);
    assert_eq!(code(&mut child), Some(0), "{}", log(&machine));
    machine.assert_clean();
}

/// A target that soon is given up, with a file system and a file on its disk.
fn soon_given_up(machine: &Machine) -> (Service, (u16, String), [&'static str; 4]) {
    let image = machine.path("disk.img");
    fs::File::create(&image).and_then(|file| file.set_len(64 << 20)).expect("an image");
    let port = free_port();
    let target = file_target(port, &image);
    let url = format!("nvme+rdma://127.0.0.1:{port}/{NQN}");
    machine.ok(&["mount", &url, &machine.text("a"), "--mkfs", "ext4"]);
    fs::write(machine.path("a/file"), "before").expect("written");
    machine.ok(&["umount", &machine.text("a")]);
    (target, (port, url), ["--ctrl-loss-timeout", "1s", "--reconnect-delay", "50ms"])
}

#[test]
fn what_was_given_up_says_what_to_do_and_can_be_mounted_again() {
    let Some(machine) = Machine::new("a mount that is given up") else { return };
    let (mut target, (port, url), soon) = soon_given_up(&machine);
    let directory = machine.text("a");
    machine.ok(&[&["mount", &url, &directory], &soon[..]].concat());
    target.kill();
    wait_until("it is given up", || machine.only()["state"] == "given up");
    let _target = file_target(port, &machine.path("disk.img"));
    let remedy = format!("`ringfab umount {directory}`, then mount it again");
    let table = machine.ok(&["list"]);
    assert!(table.contains("given up") && table.contains(&format!(": {remedy}")), "{table}");
    machine.fails(&["reset", &directory], &format!("was given up: {remedy}"));
    let said = machine.run(&["umount", &directory]);
    assert!(said.code == Some(3) && said.stdout.contains("is unmounted"), "{said:?}");
    assert!(said.stderr.contains("failed since it was mounted"), "{said:?}");
    machine.assert_clean();
    machine.ok(&["mount", &url, &directory]);
    assert_eq!(fs::read_to_string(machine.path("a/file")).expect("a file"), "before");
    machine.ok(&["umount", &directory]);
    machine.assert_clean();
}

#[test]
fn a_service_whose_target_is_given_up_ends_with_an_error_when_nobody_uses_it() {
    let Some(machine) = Machine::new("a service that is given up") else { return };
    let (mut target, (_, url), soon) = soon_given_up(&machine);
    let mut child = in_foreground(&machine, &url, &soon);
    let user = User::of(&machine);
    target.kill();
    let named = format!("process {} (sleep)", user.id());
    wait_until("it is said", || log(&machine).contains(&named));
    assert!(log(&machine).contains("it is unmounted when it is free"), "{}", log(&machine));
    assert!(child.try_wait().expect("its state").is_none(), "nobody finds an empty directory");
    assert_eq!(machine.only()["mounted_at"][0], machine.text("a"));
    drop(user);
    assert_eq!(code(&mut child), Some(1), "{}", log(&machine));
    assert!(log(&machine).contains("the controller was given up: I/O fails"), "{}", log(&machine));
    machine.assert_clean();
}

#[test]
fn a_disk_grows_with_its_namespace() {
    let Some(machine) = Machine::new("a namespace that grows") else { return };
    let image = machine.path("disk.img");
    let file = fs::File::create(&image).expect("an image");
    file.set_len(64 << 20).expect("its size");
    let port = free_port();
    let _target = file_target(port, &image);
    let directory = machine.text("a");
    let url = format!("nvme+rdma://127.0.0.1:{port}/{NQN}");
    machine.ok(&["mount", &url, &directory, "--mkfs", "ext4"]);
    let device = machine.only()["device"].as_str().expect("a device").to_owned();
    let sectors = || attribute(&device, "size").parse::<u64>().expect("a number");
    assert_eq!((sectors(), machine.only()["namespaces"][0]["bytes"].as_u64()), (131_072, Some(64 << 20)));
    file.set_len(128 << 20).expect("it grows");
    wait_until("the device has grown", || sectors() == 262_144);
    assert_eq!(machine.only()["namespaces"][0]["bytes"].as_u64(), Some(128 << 20));
    assert!(machine.ok(&["list"]).contains("128 MiB"), "people are told, too");
    let grown = Command::new("timeout").args(["60", "resize2fs", &device]).output().expect("it runs");
    let said = String::from_utf8_lossy(&grown.stderr).into_owned();
    // Where root has no CAP_SYS_RESOURCE, ext4 refuses to grow. The device has grown all the same.
    let bytes = if said.contains("Permission denied to resize") {
        1 << 20
    } else {
        assert!(grown.status.success(), "{said}");
        80 << 20
    };
    fs::write(machine.path("a/file"), vec![7; bytes]).expect("written");
    machine.ok(&["umount", &directory]);
    machine.assert_clean();
    machine.ok(&["mount", &url, &directory, "--fsck"]);
    assert!(fs::read(machine.path("a/file")).expect("a file") == vec![7; bytes]);
    machine.ok(&["umount", &directory]);
    machine.assert_clean();
}

/// The process in the background has nothing of the terminal.
#[test]
fn a_terminal_that_closes_ends_nothing() {
    let Some(machine) = Machine::new("a mount without its terminal") else { return };
    let target = target();
    let mut session = machine
        .command(&program("ringfab"), &["mount", &url(&target, 1), &machine.text("a"), "--mkfs", "ext4"]);
    // What a terminal's end does to its processes: SIGHUP to the whole group.
    session.process_group(0);
    let mut session = session.stdout(Stdio::null()).spawn().expect("it starts");
    let group = Pid::from_raw(-session.id().cast_signed());
    assert_eq!(code(&mut session), Some(0));
    let keeper = machine.only()["pid"].as_i64().expect("a process");
    let stat = fs::read_to_string(format!("/proc/{keeper}/stat")).expect("its state");
    let fields: Vec<&str> = stat.rsplit(')').next().expect("fields").split_whitespace().collect();
    assert_eq!(fields[3], keeper.to_string(), "a session of its own");
    let _nobody = kill(group, Signal::SIGHUP);
    for descriptor in 0..3 {
        let file = fs::read_link(format!("/proc/{keeper}/fd/{descriptor}")).expect("open");
        let run = machine.path("run");
        let own = file == Path::new("/dev/null") || file.starts_with(run) || file.starts_with("socket:");
        assert!(own, "{}", file.display());
    }
    assert_eq!(fs::read_link(format!("/proc/{keeper}/cwd")).expect("a directory"), Path::new("/"));
    kill(Pid::from_raw(keeper as i32), Signal::SIGHUP).expect("it lives");
    // It must be seen to do nothing.
    std::thread::sleep(Duration::from_millis(200));
    fs::write(machine.path("a/file"), "written").expect("it serves");
    machine.ok(&["umount", &machine.text("a")]);
    machine.assert_clean();
}
