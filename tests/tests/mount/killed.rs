//! Programs that are killed, and what is left then.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use ringfab_tests::{NQN, Service, free_port, program, wait_until};
use serde_json::Value;

use super::machine::{Machine, Said};
use super::{mounted, target, url};

#[test]
fn what_a_killed_server_of_files_leaves_is_shown_and_taken_away() {
    let Some(machine) = Machine::new("a killed server of files") else { return };
    let target = target();
    let (url, directory) = (url(&target, 1), machine.text("a"));
    for next in ["umount", "mount"] {
        let environment = machine.path("run");
        let arguments = |_: &Path| ["fuse", &url, &directory].map(str::to_owned).to_vec();
        let mut server =
            Service::start_with("ringfab", arguments, &[("RINGFAB_RUNTIME_DIRECTORY", &environment)]);
        assert_eq!(machine.only()["state"], "connected");
        machine.fails(&["umount", &directory], "was not mounted by `ringfab mount`");
        server.kill();
        wait_until("its lock is gone", || machine.only()["state"] == "dead");
        let table = machine.ok(&["list"]);
        assert!(table.contains(&format!("dead: `ringfab umount {directory}`")), "{table}");
        if next == "umount" {
            assert!(machine.run(&["umount", &directory]).stderr.contains("a killed process"));
        } else {
            machine.ok(&["mount", &url, &directory, "--mkfs", "ext4"]);
            machine.ok(&["umount", &directory]);
        }
        assert!(machine.ok(&["list"]).contains("nothing is attached"));
        machine.assert_clean();
    }
}

/// A program with its working directory in the mount.
pub(crate) struct User(Child);

impl User {
    pub(crate) fn of(machine: &Machine) -> Self {
        let child = Command::new("sleep").arg("120").current_dir(machine.path("a")).spawn();
        Self(child.expect("sleep runs"))
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for User {
    fn drop(&mut self) {
        // It is an error that it has ended already, and that is what was wanted.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn what_a_killed_keeper_leaves_is_shown_and_taken_away() {
    let Some(machine) = Machine::new("a killed keeper") else { return };
    let target = target();
    mounted(&machine, &target, &[]);
    fs::write(machine.path("a/file"), "written").expect("written");
    machine.ok(&["umount", &machine.text("a")]);
    let (url, directory) = (url(&target, 1), machine.text("a"));
    // Whether somebody looks before or not.
    for looks in [true, false] {
        machine.ok(&["mount", &url, &directory]);
        machine.kill_keeper();
        if looks {
            // The last of its threads may end a little later than the first.
            wait_until("its lock is gone", || machine.only()["state"] == "dead");
            assert_eq!(machine.only()["state"], "dead");
            let table = machine.ok(&["list"]);
            assert!(table.contains(&format!("dead: `ringfab umount {directory}`")), "{table}");
        }
        let said = machine.run(&["umount", &directory]);
        assert_eq!(said.code, Some(0), "{said:?}");
        assert!(said.stderr.contains("which was killed"), "{said:?}");
        machine.assert_clean();
    }
    // Somebody unmounts it with other tools: whoever comes next takes the rest away.
    machine.ok(&["mount", &url, &directory]);
    machine.kill_keeper();
    assert!(Command::new("umount").arg(&directory).status().expect("umount runs").success());
    assert!(machine.ok(&["list"]).contains("nothing is attached"));
    machine.assert_clean();
    machine.ok(&["mount", &url, &directory]);
    assert_eq!(fs::read_to_string(machine.path("a/file")).expect("a file"), "written");
    machine.ok(&["umount", &directory]);
    machine.assert_clean();
}

#[test]
fn a_mount_after_a_kill_takes_the_place_of_the_dead_one() {
    let Some(machine) = Machine::new("a mount after a kill") else { return };
    let target = target();
    mounted(&machine, &target, &[]);
    fs::write(machine.path("a/file"), "written").expect("written");
    assert!(Command::new("sync").arg("-f").arg(machine.path("a")).status().expect("sync runs").success());
    let user = User::of(&machine);
    machine.kill_keeper();
    let words = format!("process {} (sleep) uses", user.id());
    machine.fails(&["umount", &machine.text("a")], &words);
    let said = machine.run(&["mount", &url(&target, 1), &machine.text("a")]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(
        said.stderr.contains("detached, because its disk is gone") && said.stderr.contains(&words),
        "{said:?}"
    );
    assert_eq!(fs::read_to_string(machine.path("a/file")).expect("a file"), "written");
    drop(user);
    machine.ok(&["umount", &machine.text("a")]);
    machine.assert_clean();
}

/// A command that is not waited for.
fn start(machine: &Machine, arguments: &[&str]) -> Child {
    let mut command = Command::new(program("ringfab"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    machine.in_environment(&mut command);
    command.spawn().expect("it starts")
}

fn send(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id().cast_signed()), signal).expect("it is there");
}

/// What waits for a target that does not come.
fn waiting(machine: &Machine) -> Child {
    let nobody = format!("nvme+tcp://127.0.0.1:{}/{NQN}", free_port());
    let child = start(machine, &["mount", &nobody, &machine.text("a"), "--retry", "10min"]);
    wait_until("it is noted", || machine.list().len() == 1);
    assert_eq!(machine.only()["state"], "mounting");
    child
}

#[test]
fn a_mount_that_is_ended_midway_leaves_nothing() {
    let Some(machine) = Machine::new("a mount that is ended midway") else { return };
    let cancelled = waiting(&machine);
    machine.fails(
        &["mount", "nvme+tcp://127.0.0.1/a", &machine.text("a")],
        "is just being mounted or unmounted",
    );
    send(&cancelled, Signal::SIGINT);
    let said = Said::of(&cancelled.wait_with_output().expect("its end"));
    assert_eq!((said.code, said.stderr.matches("cancelled").count()), (Some(130), 1), "{said:?}");
    machine.assert_clean();
    // Killed: whoever mounts in the background notices.
    let mut killed = waiting(&machine);
    send(&killed, Signal::SIGKILL);
    killed.wait().expect("its end");
    wait_until("nothing is left", || machine.is_clean());
    // The other one is killed: whoever waits notices.
    let orphan = waiting(&machine);
    machine.kill_keeper();
    let said = Said::of(&orphan.wait_with_output().expect("its end"));
    assert!(said.code == Some(1) && said.stderr.contains("has ended"), "{said:?}");
    machine.ok(&["list"]);
    machine.assert_clean();
}

/// Wherever it is killed, nothing stays that the next command does not take away.
#[test]
fn a_mount_that_is_killed_anywhere_is_cleaned_up() {
    let Some(machine) = Machine::new("a mount that is killed anywhere") else { return };
    let target = target();
    let (url, directory) = (url(&target, 1), machine.text("a"));
    for (round, delay) in [5, 20, 40, 60, 80, 110, 150, 250].into_iter().enumerate() {
        let mut mount = start(&machine, &["mount", &url, &directory, "--mkfs", "ext4", "--force"]);
        // At any moment of the mount.
        std::thread::sleep(Duration::from_millis(delay));
        // In turns the one that waits, and the one that mounts.
        let keeper = machine.list().first().and_then(|entry| entry["pid"].as_i64());
        match keeper.filter(|_| round % 2 == 1) {
            Some(keeper) => drop(kill(Pid::from_raw(keeper as i32), Signal::SIGKILL)),
            None => drop(mount.kill()),
        }
        mount.wait().expect("its end");
        // It may have been mounted by then, or the keeper may not have noted anything yet.
        wait_until("it is over", || {
            let list = machine.list();
            let is_over = |entry: &Value| entry["state"] != "mounting" && entry["state"] != "not known";
            let is_noted = |pid: &i64| list.iter().any(|entry| entry["pid"].as_i64() == Some(*pid));
            list.iter().all(is_over) && machine.processes().iter().all(is_noted)
        });
        if !machine.list().is_empty() {
            let said = machine.run(&["umount", &directory]);
            // One whose mount has failed takes its entry away itself.
            let gone = said.stderr.contains("is not mounted") && machine.list().is_empty();
            assert!(said.code == Some(0) || gone, "{said:?}");
        }
        machine.ok(&["list"]);
        wait_until("nothing is left, or the next command takes it away", || {
            if !machine.mounts().is_empty() {
                let said = machine.run(&["umount", &directory]);
                assert!(said.code == Some(0) || machine.mounts().is_empty(), "{said:?}");
            }
            machine.is_clean() && machine.processes().is_empty()
        });
    }
    machine.ok(&["mount", &url, &directory, "--mkfs", "ext4", "--force"]);
    machine.ok(&["umount", &directory]);
    machine.assert_clean();
}

#[test]
fn old_entries_and_sockets_are_not_believed() {
    let Some(machine) = Machine::new("old entries") else { return };
    let run = machine.path("run");
    let entry = |kind: &str, pid: u32| {
        format!(
            "{{\"kind\":\"{kind}\",\"pid\":{pid},\"started_s\":1,\"address\":\"nvme+tcp://a/b\",\"nqn\":\"b\",\
             \"namespaces\":[]}}"
        )
    };
    // Its process number belongs to somebody who lives.
    fs::write(run.join("fuse-1-0.json"), entry("fuse", std::process::id())).expect("written");
    fs::write(run.join("nbd-1-0.json"), entry("nbd", 1)).expect("written");
    drop(std::os::unix::net::UnixListener::bind(run.join("nbd-1-0.sock")).expect("a socket"));
    fs::write(run.join("mount-1.json"), "").expect("written");
    fs::write(run.join("mount-2.json"), "{").expect("written");
    fs::create_dir(run.join("mount-3")).expect("a directory");
    assert!(machine.ok(&["list"]).contains("nothing is attached"));
    machine.assert_clean();
    // Where others may write, nothing is noted or believed.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    fs::set_permissions(&run, open).expect("open");
    let target = target();
    machine.fails(&["mount", &url(&target, 1), &machine.text("a")], "that this user alone may change");
}
