//! What is so after an unmount by other tools, and not what was noted before.

use std::fs;
use std::process::{Child, Command, Stdio};

use ringfab_tests::{TestTarget, program, run_bounded, wait_until};

use super::machine::{Machine, Said};
use super::volumes::helper;
use super::{mounted, target, url};

/// More rounds than it takes to meet a process that has not ended yet.
const ROUNDS: usize = 12;

#[test]
fn what_was_just_unmounted_is_mounted_nowhere() {
    let Some(machine) = Machine::new("right after an unmount") else { return };
    let target = target();
    let (url, a, b) = (url(&target, 1), machine.text("a"), machine.text("b"));
    mounted(&machine, &target, &[]);
    machine.ok(&["umount", &a]);
    let write = [
        "write",
        &url,
        "--input",
        "/dev/zero",
        "--length",
        "4KiB",
        "--offset",
        "16MiB",
        "--destroy-data",
        "1",
    ];
    let trim = ["trim", &url, "--length", "4KiB", "--offset", "16MiB", "--destroy-data", "1"];
    let mount_there = ["mount", &url, &b];
    let mkfs_there = ["mount", &url, &b, "--mkfs", "ext4", "--force"];
    let mount_here = ["mount", &url, &a];
    for round in 0..ROUNDS {
        for next in [&write[..], &trim, &mount_there, &mkfs_there, &mount_here] {
            machine.ok(&["mount", &url, &a]);
            run_bounded(60, "umount", &[&a]);
            let said = machine.run(next);
            assert_eq!(said.code, Some(0), "round {round}, {next:?}: {said:?}");
            for place in next.iter().filter(|place| [&a, &b].contains(&&(**place).to_owned())) {
                machine.ok(&["umount", place]);
            }
            wait_until("it has ended", || machine.is_clean());
        }
    }
    assert!(machine.ok(&["list"]).contains("nothing is attached"));
}

/// A process that uses the file system still although it is mounted nowhere that others see.
struct Holder(Child);

impl Holder {
    /// In a mount namespace that has a copy.
    fn in_namespace(machine: &Machine) -> Self {
        let mut command = Command::new("unshare");
        let command = command.args(["--mount", "--propagation", "private", "sleep", "600"]);
        let child = command.spawn().expect("unshare runs");
        let comm = format!("/proc/{}/comm", child.id());
        wait_until("it is there", || fs::read_to_string(&comm).is_ok_and(|name| name.trim() == "sleep"));
        run_bounded(60, "umount", &[&machine.text("a")]);
        Self(child)
    }

    /// With an open file of a mount that is taken out of the tree.
    fn with_file(machine: &Machine) -> Self {
        fs::write(machine.path("a/file"), "x").expect("written");
        let file = fs::File::open(machine.path("a/file")).expect("a file");
        let child = Command::new("sleep").arg("600").stdin(file).spawn().expect("sleep runs");
        run_bounded(60, "umount", &["-l", &machine.text("a")]);
        Self(child)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // It may have ended.
        let _killed = self.0.kill();
        let _ended = self.0.wait();
    }
}

#[test]
fn what_is_unmounted_and_in_use_is_said_by_all() {
    let Some(machine) = Machine::new("what is unmounted and in use") else { return };
    let target = target();
    let helper = helper(&machine);
    let (url, a, b) = (url(&target, 1), machine.text("a"), machine.text("b"));
    mounted(&machine, &target, &[]);
    machine.ok(&["umount", &a]);
    for holds in [Holder::in_namespace as fn(&Machine) -> Holder, Holder::with_file] {
        machine.ok(&["mount", &url, &a]);
        let holder = holds(&machine);
        let words = format!("{a} is not mounted any more, but its disk is in use: process {}", holder.0.id());
        let write = ["write", &url, "--input", "/dev/zero", "--length", "4KiB", "--destroy-data", "1"];
        for command in [
            &write[..],
            &["bench", &url, "--rw", "randwrite", "--time", "100ms", "--destroy-data", "1"],
            &["trim", &url, "--length", "4KiB", "--destroy-data", "1"],
            &["mount", &url, &a],
            &["mount", &url, &b],
            &["mount", "--foreground", &url, &a],
            &["mount", &url, &b, "--mkfs", "ext4", "--force"],
            &["umount", &a],
        ] {
            machine.fails(command, &words);
        }
        // It is no success that mount(8) would believe.
        let mut command = machine.command(helper.as_ref(), &[&url, &a, "-o", "rw"]);
        let said = Said::of(&command.output().expect("it runs"));
        assert!(said.code == Some(32) && said.stderr.contains(&words), "{said:?}");
        assert!(machine.ok(&["list"]).contains("unmounted but in use"));
        assert!(nbd_warns(&machine, &target).contains(&format!("namespace 1: {words}")));
        drop(holder);
        wait_until("it ends with its last user", || machine.is_clean());
        machine.ok(&["mount", &url, &a]);
        machine.ok(&["umount", &a]);
    }
    machine.assert_clean();
}

/// What a server of the same namespace says.
fn nbd_warns(machine: &Machine, target: &TestTarget) -> String {
    let log = machine.path("nbd.log");
    let socket = machine.text("socket");
    let mut command = Command::new(program("ringfab"));
    command.args(["nbd", &url(target, 1), "--socket", &socket]).stdin(Stdio::null()).stdout(Stdio::null());
    machine.in_environment(&mut command);
    let mut child = command.stderr(fs::File::create(&log).expect("a log")).spawn().expect("it starts");
    wait_until("it serves", || machine.path("socket").exists());
    let warned = || fs::read_to_string(&log).expect("a log");
    wait_until("it warns", || warned().contains("who writes to it here as well"));
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(child.id().cast_signed()),
        nix::sys::signal::Signal::SIGTERM,
    )
    .expect("it is there");
    child.wait().expect("its end");
    warned()
}
