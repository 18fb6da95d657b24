//! One disk under two names, and names that lead elsewhere.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ringfab_tests::{PATIENCE, TestTarget, free_port, not_run, own_mounts, program, run_bounded};
use serde_json::{Value, json};

use super::{MIB, Target, cached, config, make_file, serve, wait_until};

fn table(path: &Path, more: &Value) -> serde_json::Map<String, Value> {
    let mut table = json!({ "path": path, "direct": false, "allow_page_cache": true });
    for (key, value) in more.as_object().expect("a table") {
        table[key] = value.clone();
    }
    table.as_object().expect("a table").clone()
}

#[test]
fn a_disk_is_served_under_one_name_only_unless_it_is_meant() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = make_file(folder.path(), "disk", MIB);
    let (soft, hard) = (folder.path().join("soft"), folder.path().join("hard"));
    symlink(&path, &soft).expect("a link");
    fs::hard_link(&path, &hard).expect("a link");
    let dotted = folder.path().join("./../").join(folder.path().file_name().expect("a name")).join("disk");
    let target = TestTarget::start(&cached(&path));
    let mut manager = target.manager();
    for other in [&path, &soft, &hard, &dotted] {
        for more in [json!({}), json!({ "read_only": true }), json!({ "shared": true })] {
            let error = manager.add(None, table(other, &more)).expect_err("one disk");
            assert!(error.contains("is namespace 1 of") && error.contains("shared = true"), "{error}");
        }
    }
    manager.remove(None, 1).expect("it is there");
    let share = |manager: &mut ringfab_target::control::Manager, path, more| {
        // What was served a moment ago is being closed.
        let mut outcome = manager.add(None, table(path, &more));
        let begun = Instant::now();
        while outcome.is_err() && begun.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(50));
            outcome = manager.add(None, table(path, &json!({ "shared": true })));
        }
        outcome.expect("it is shared")
    };
    share(&mut manager, &path, json!({ "shared": true }));
    share(&mut manager, &soft, json!({ "shared": true }));
    assert!(manager.add(None, table(&hard, &json!({}))).is_err(), "this one does not share");
}

#[test]
fn a_second_target_names_the_first_and_a_restart_does_not_wait_for_a_dead_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = make_file(folder.path(), "disk", MIB);
    let mut first = Target::start(&cached(&path));
    let second = Target::start(&cached(&path));
    assert_eq!(second.state(), "not ready");
    let reason = second.reason();
    let holder = format!("in use by process {} (ringfab-target)", first.service.id());
    assert!(reason.contains(&holder), "{reason}");
    assert!(second.service.log().contains(&holder));
    drop(second);
    for _ in 0..3 {
        first.service.kill();
        first = Target::start(&cached(&path));
        assert_eq!(first.state(), "ready", "{}", first.reason());
    }
}

#[test]
fn check_names_a_disk_with_two_names() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = make_file(folder.path(), "disk", MIB);
    let hard = folder.path().join("hard");
    fs::hard_link(&path, &hard).expect("a link");
    let text = config(folder.path(), free_port(), &(cached(&path) + &cached(&hard)));
    let arguments = serve(folder.path(), &text);
    let output =
        Command::new(program("ringfab-target")).arg("check").arg(&arguments[2]).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("namespace[1].path: is the same disk as in line"), "{said}");
}

#[test]
fn a_file_that_is_deleted_or_replaced_while_it_is_served_is_told_of_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = make_file(folder.path(), "disk", MIB);
    let target = Target::start(&cached(&path));
    let host = target.attach();
    let aside = folder.path().join("aside");
    fs::rename(&path, &aside).expect("renamed");
    wait_until("it is noticed", || target.state() == "detached");
    assert!(target.reason().contains("its name leads nowhere"), "{}", target.reason());
    make_file(folder.path(), "disk", MIB);
    wait_until("it is noticed", || target.reason().contains("is another file by now"));
    host.write_at(1, 0, &[7; 512], true).expect("hosts have the disk that they had");
    assert_eq!(fs::read(&aside).expect("the file")[..512], [7; 512]);
    let (done, said) = target.run(&["namespace", "reopen", "1"]);
    assert!(!done && said.contains("is another disk by now"), "{said}");
    fs::rename(&aside, &path).expect("renamed back");
    wait_until("it is noticed", || target.state() == "ready");
    assert_eq!(
        target.service.log().matches("the path of a disk is gone or leads to another file").count(),
        2
    );
}

#[test]
fn what_is_no_whole_block_is_told_of_and_less_than_one_is_no_disk() {
    let folder = tempfile::tempdir().expect("a folder");
    let tail = make_file(folder.path(), "tail", MIB + 511);
    let tiny = make_file(folder.path(), "tiny", 511);
    let target = Target::start(&(cached(&tail) + &cached(&tiny)));
    let namespaces = &target.status()["namespaces"];
    assert_eq!(namespaces[0]["state"], "ready");
    assert_eq!(
        (namespaces[0]["bytes"].as_u64(), namespaces[0]["unused_bytes"].as_u64()),
        (Some(1 << 20), Some(511))
    );
    assert_eq!(namespaces[1]["state"], "not ready");
    let reason = namespaces[1]["reason"].as_str().expect("a reason");
    assert!(reason.contains("has 511 bytes, which is less than one block of 512"), "{reason}");
    let log = target.service.log();
    assert!(log.contains("unused_bytes=511"), "{log}");
    fs::write(&tiny, vec![0; 4096]).expect("longer");
    wait_until("it is a disk", || target.status()["namespaces"][1]["state"] == "ready");
}

/// A loop device with a file system, mounted; none where there are no loop devices.
struct MountedDevice {
    folder: tempfile::TempDir,
    device: String,
}

impl MountedDevice {
    fn new() -> Option<Self> {
        own_mounts();
        let folder = tempfile::tempdir().expect("a folder");
        let image = make_file(folder.path(), "image", 8 * MIB);
        let losetup = Command::new("losetup")
            .args(["--find", "--show"])
            .arg(&image)
            .stderr(Stdio::null())
            .output()
            .ok()?;
        let device = String::from_utf8(losetup.stdout).ok()?.trim().to_owned();
        if device.is_empty() {
            return None;
        }
        let this = Self { folder, device };
        run_bounded(20, "mkfs.ext4", &["-q", &this.device]);
        fs::create_dir(this.place()).expect("a directory");
        run_bounded(20, "mount", &[&this.device, this.place().to_str().expect("UTF-8")]);
        Some(this)
    }

    fn place(&self) -> std::path::PathBuf {
        self.folder.path().join("mnt")
    }

    fn unmount(&self) {
        let _was_not_mounted = Command::new("umount").arg(self.place()).stderr(Stdio::null()).status();
    }
}

impl Drop for MountedDevice {
    fn drop(&mut self) {
        self.unmount();
        let _gone = Command::new("losetup").arg("--detach").arg(&self.device).status();
    }
}

#[test]
fn a_device_with_a_mounted_file_system_is_not_served() {
    let Some(mounted) = MountedDevice::new() else { return not_run("there are no loop devices") };
    let device = Path::new(&mounted.device);
    let target = Target::start(&format!("[[subsystem.namespace]]\npath = {device:?}\n"));
    assert_eq!(target.state(), "not ready");
    let place = fs::canonicalize(mounted.place()).expect("the mount");
    let reason = target.reason();
    assert!(reason.contains(&format!("the file system that is mounted on {}", place.display())), "{reason}");
    mounted.unmount();
    wait_until("it is free", || target.state() == "ready");
    let again = Command::new("mount").arg(device).arg(mounted.place()).stderr(Stdio::null()).status();
    assert!(!again.expect("mount runs").success(), "the device is the target's now");
    let by_number = mounted.folder.path().join("by-number");
    symlink(device, &by_number).expect("a link");
    let (done, said) = target.run(&["namespace", "add", by_number.to_str().expect("UTF-8")]);
    assert!(!done && said.contains("is namespace 1 of"), "{said}");
    let mut target = target;
    target.service.kill();
    let target = Target::start(&format!("[[subsystem.namespace]]\npath = {device:?}\n"));
    assert_eq!(target.state(), "ready", "{}", target.reason());
}
