//! `ringfab mount`, `umount` and `list`: real file systems over FUSE and loop devices.

mod ends;
mod helper;
mod killed;
mod machine;
mod names;
mod refused;
mod secured;
mod standing;
mod volumes;

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use ringfab_tests::logfmt::{assert_whole, events};
use ringfab_tests::{NQN, Service, TestTarget, file_target, free_port, mountinfo, wait_until};

use machine::Machine;

const MEMORY: &str = "[[subsystem.namespace]]\nmemory = \"32MiB\"\nblock_bytes = 4096\n\
                      [[subsystem.namespace]]\nmemory = \"32MiB\"\nblock_bytes = 512\n";

fn target() -> TestTarget {
    TestTarget::with_listener("transport = \"tcp\"", MEMORY)
}

fn url(target: &TestTarget, nsid: u32) -> String {
    target.url(&format!("&ns={nsid}")).to_string()
}

/// A mount of a new ext4 on `a`.
fn mounted(machine: &Machine, target: &TestTarget, more: &[&str]) {
    let (url, directory) = (url(target, 1), machine.text("a"));
    machine.ok(&[&["mount", &url, &directory, "--mkfs", "ext4"], more].concat());
}

fn attribute(device: &str, name: &str) -> String {
    let device = Path::new(device).file_name().expect("a name");
    let path = Path::new("/sys/block").join(device).join(name);
    fs::read_to_string(path).expect("an attribute").trim().to_owned()
}

#[test]
fn one_command_mounts_and_one_undoes_everything() {
    let Some(machine) = Machine::new("one command mounts") else { return };
    let target = target();
    for (nsid, block_bytes) in [(1, "4096"), (2, "512")] {
        let (url, directory) = (url(&target, nsid), machine.text("a"));
        let said = machine.ok(&["mount", &url, &directory, "--mkfs", "ext4", "-o", "noatime,nodev"]);
        assert!(said.contains(&format!("is mounted on {directory} (ext4, 32 MiB, /dev/loop")), "{said}");
        let entry = machine.only();
        let device = entry["device"].as_str().expect("a device").to_owned();
        assert_eq!(attribute(&device, "queue/logical_block_size"), block_bytes);
        assert_eq!(
            (attribute(&device, "loop/dio"), attribute(&device, "loop/autoclear")),
            ("1".into(), "1".into())
        );
        let known = (entry["state"].as_str(), entry["nqn"].as_str(), entry["kind"].as_str());
        assert_eq!(known, (Some("connected"), Some(NQN), Some("mount")));
        assert_eq!(entry["namespaces"][0]["nsid"], nsid);
        let text = mountinfo();
        let line = text.lines().find(|line| line.contains(&directory)).expect("mounted");
        assert!(line.contains("noatime") && line.contains("nodev"), "{line}");
        let table = machine.ok(&["list"]);
        assert!(table.contains(&directory) && table.contains("connected"), "{table}");
        for list in ["mounted", "attached"] {
            assert!(machine.ok(&["complete", list]).lines().any(|line| line == directory), "{list}");
        }
        fs::write(machine.path("a/file"), "written").expect("written");
        assert!(machine.ok(&["umount", &directory]).contains("is unmounted"));
        machine.assert_clean();
        wait_until("it has left in order", || target.target.controllers().is_empty());
        // Without mkfs, what was written is there.
        machine.ok(&["mount", &url, &directory, "--fsck"]);
        assert_eq!(fs::read_to_string(machine.path("a/file")).expect("a file"), "written");
        machine.ok(&["umount", &directory]);
        machine.assert_clean();
    }
    assert!(machine.ok(&["list"]).contains("nothing is attached"));
}

#[test]
fn what_a_mount_logs_is_logfmt() {
    let Some(machine) = Machine::new("the log of a mount") else { return };
    let target = target();
    let (url, directory) = (url(&target, 1), machine.text("a"));
    let mut lines = Vec::new();
    for arguments in [
        &["mount", &url, &directory, "--mkfs", "ext4", "-vv"][..],
        &["mount", &url, &directory, "-vv"],
        &["reset", &directory, "-vv"],
        &["list", "-vv"],
        &["umount", &directory, "-vv"],
    ] {
        let said = machine.run(arguments);
        lines.extend(events(&said.stderr).into_iter().map(str::to_owned));
    }
    machine.assert_clean();
    assert!(!lines.is_empty());
    assert_whole(&lines.iter().map(String::as_str).collect::<Vec<_>>());
}

#[test]
fn a_read_only_mount_writes_nothing() {
    let Some(machine) = Machine::new("a read only mount") else { return };
    let target = target();
    mounted(&machine, &target, &[]);
    fs::write(machine.path("a/file"), "written").expect("written");
    machine.ok(&["umount", &machine.text("a")]);
    for option in ["--read-only", "-oro"] {
        machine.ok(&["mount", &url(&target, 1), &machine.text("a"), option]);
        let entry = machine.only();
        assert_eq!(entry["read_only"], true);
        assert!(machine.ok(&["list"]).contains("connected, read only"));
        assert_eq!(attribute(entry["device"].as_str().expect("a device"), "ro"), "1");
        assert_eq!(fs::read_to_string(machine.path("a/file")).expect("a file"), "written");
        assert!(fs::write(machine.path("a/file"), "more").is_err());
        // Twice is no danger as long as nobody writes.
        machine.ok(&["mount", &url(&target, 1), &machine.text("b"), "-r"]);
        for directory in ["a", "b"] {
            machine.ok(&["umount", &machine.text(directory)]);
        }
        machine.assert_clean();
    }
}

#[test]
fn a_reset_under_a_file_system_in_use_loses_nothing() {
    let Some(machine) = Machine::new("a reset under a mount") else { return };
    let target = target();
    mounted(&machine, &target, &[]);
    let directory = machine.text("a");
    let content = |number: u8| vec![number; 1 << 20];
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for number in 0..20 {
                let mut file = fs::File::create(machine.path(&format!("a/{number}"))).expect("a file");
                file.write_all(&content(number)).expect("written");
                file.sync_all().expect("on the disk");
            }
        });
        while !writer.is_finished() {
            assert!(machine.ok(&["reset", &directory]).contains("is connected again, "));
        }
    });
    let device = machine.only()["device"].as_str().expect("a device").to_owned();
    machine.ok(&["reset", &device]);
    let entry = machine.only();
    assert!(entry["reconnects"].as_u64() >= Some(2) && entry["state"] == "connected", "{entry}");
    machine.ok(&["umount", &directory]);
    machine.assert_clean();
    machine.ok(&["mount", &url(&target, 1), &directory, "--fsck"]);
    for number in 0..20 {
        assert_eq!(fs::read(machine.path(&format!("a/{number}"))).expect("a file"), content(number));
    }
    machine.ok(&["umount", &directory]);
}

#[test]
fn io_goes_on_when_the_target_comes_back() {
    let Some(machine) = Machine::new("an outage under a mount") else { return };
    let image = machine.path("disk.img");
    fs::File::create(&image).and_then(|file| file.set_len(64 << 20)).expect("an image");
    let port = free_port();
    let mut target = file_target(port, &image);
    let url = format!("nvme+rdma://127.0.0.1:{port}/{NQN}");
    machine.ok(&["mount", &url, &machine.text("a"), "--mkfs", "ext4", "--reconnect-delay", "50ms"]);
    fs::write(machine.path("a/before"), vec![1; 1 << 20]).expect("written");
    target.kill();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut file = fs::File::create(machine.path("a/during")).expect("a file");
            file.write_all(&vec![2; 4 << 20]).expect("written");
            file.sync_all().expect("on the disk");
        });
        wait_until("it is said", || machine.only()["state"] == "reconnecting");
        let entry = machine.only();
        assert!(entry["since_s"].as_u64().is_some(), "{entry}");
        assert!(machine.ok(&["list"]).contains("reconnecting for "), "people are told, too");
        // It must be seen to wait.
        std::thread::sleep(Duration::from_millis(300));
        assert!(!writer.is_finished(), "it waits for the disk");
        target = file_target(port, &image);
        writer.join().expect("the writer");
    });
    wait_until("it is connected", || machine.only()["state"] == "connected");
    assert_eq!(fs::read(machine.path("a/during")).expect("a file"), vec![2; 4 << 20]);
    machine.ok(&["umount", &machine.text("a")]);
    machine.assert_clean();
    drop(target);
}

#[test]
fn two_mounts_have_nothing_to_do_with_each_other() {
    let Some(machine) = Machine::new("two mounts") else { return };
    let target = target();
    for (nsid, directory) in [(1, "a"), (2, "b")] {
        let nsid = nsid.to_string();
        let url = target.url("").to_string();
        machine.ok(&["mount", &url, &machine.text(directory), "--nsid", &nsid, "--mkfs=ext4"]);
        fs::write(machine.path(directory).join("name"), directory).expect("written");
    }
    assert_eq!(machine.list().len(), 2);
    machine.ok(&["umount", &machine.text("a")]);
    assert_eq!(fs::read_to_string(machine.path("b/name")).expect("a file"), "b");
    assert_eq!(machine.only()["directory"], machine.text("b"));
    machine.ok(&["umount", &machine.text("b")]);
    machine.assert_clean();
}

#[test]
fn servers_are_listed_as_long_as_they_live() {
    let Some(machine) = Machine::new("servers in the list") else { return };
    let target = target();
    let url = target.url("").to_string();
    let run = machine.path("run");
    let environment = [("RINGFAB_RUNTIME_DIRECTORY", run.as_path())];
    let nbd = |folder: &Path| {
        let socket = folder.join("socket").display().to_string();
        ["nbd", &url, "--socket", &socket].map(str::to_owned).to_vec()
    };
    let files = |folder: &Path| {
        fs::create_dir(folder.join("files")).expect("a directory");
        ["fuse", &url, &folder.join("files").display().to_string()].map(str::to_owned).to_vec()
    };
    let mut disk = Service::start_with("ringfab", nbd, &environment);
    let directory = Service::start_with("ringfab", files, &environment);
    let list = machine.list();
    assert_eq!(list.len(), 2, "{list:?}");
    for (entry, kind) in list.iter().zip(["nbd", "fuse"]) {
        assert_eq!((entry["kind"].as_str(), entry["state"].as_str()), (Some(kind), Some("connected")));
        assert_eq!(entry["namespaces"].as_array().map(Vec::len), Some(2));
    }
    let socket = disk.path("socket").display().to_string();
    assert!(list[0]["uri"].as_str().is_some_and(|uri| uri.contains(&socket)));
    assert_eq!(list[1]["directory"], directory.path("files").display().to_string());
    disk.kill();
    assert_eq!(machine.only()["kind"], "fuse");
    drop(directory);
    machine.assert_clean();
}
