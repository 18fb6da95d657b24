//! mount(8) and umount(8) themselves, in a namespace of mounts where their helpers are installed; what a package does
//! when it goes; and the end of a machine.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use ringfab_tests::{NQN, file_target, free_port, not_run, program, wait_until};

use super::machine::{Machine, Said};
use super::volumes::{helper, volumes};
use super::{target, url};

/// A script where the helpers are in /sbin. None, which is said, where they cannot be there.
fn with_helpers(machine: &Machine, what: &str) -> Option<impl Fn(&str) -> Said> {
    helper(machine);
    let sbin = machine.text("sbin");
    let overlay = move |rest: &str| {
        let script = format!(
            "set -eu; mount -t tmpfs none /mnt; mkdir /mnt/upper /mnt/work; \
             mount -t overlay -o lowerdir={sbin}:/usr/sbin overlay /usr/sbin; umount /mnt; {rest}"
        );
        let mut command = machine.command("unshare".as_ref(), &["--mount", "sh", "-c", &script]);
        Said::of(&command.output().expect("unshare runs"))
    };
    let tried = overlay("test -e /sbin/mount.ringfab");
    if tried.code != Some(0) {
        not_run(&format!("{what}: no overlay over /usr/sbin here: {}", tried.stderr));
        return None;
    }
    Some(overlay)
}

#[test]
fn a_line_of_fstab_works() {
    let Some(machine) = Machine::new("fstab") else { return };
    let target = target();
    volumes(&machine, &target);
    let Some(overlay) = with_helpers(&machine, "a line of fstab") else { return };
    let url = url(&target, 1);
    let fstab = format!(
        "{url} {} ringfab noatime,_netdev,x-systemd.mount-timeout=1min 0 0\nmore {} ringfab nofail 0 0\n",
        machine.text("a"),
        machine.text("b")
    );
    fs::write(machine.path("fstab"), fstab).expect("written");
    let said = overlay(&format!(
        "cd {}; mount -T fstab -a; cat a/name b/name; mount -T fstab -a; mount -T fstab -o remount,ro {0}/a; \
         ! touch a/name 2>/dev/null; umount a b; ls run; mount -T fstab a; cat a/name; umount a; ls run",
        machine.text("")
    ));
    // The helper waits for the end, so nothing is noted any more when umount(8) has ended.
    assert_eq!((said.code, said.stdout.as_str()), (Some(0), "aba"), "{said:?}");
    machine.assert_clean();
}

/// What umount(8) does without its helper it does with it.
#[test]
fn umount_does_with_its_helper_what_it_does_without() {
    let Some(machine) = Machine::new("umount.ringfab") else { return };
    let target = target();
    volumes(&machine, &target);
    let Some(overlay) = with_helpers(&machine, "umount.ringfab") else { return };
    let mount = format!("cd {}; {} mount data >/dev/null", machine.text(""), program("ringfab").display());
    // By the device, lazily while it is in use, one of two places, and what lies on top.
    let device = overlay(&format!("{mount}; umount $(findmnt -n -o SOURCE a); ls run"));
    assert_eq!((device.code, device.stdout.as_str()), (Some(0), ""), "{device:?}");
    let busy = overlay(&format!("{mount}; exec 3<a/name; umount a || echo $?; exec 3<&-; umount a; ls run"));
    assert!(busy.stdout == "32\n" && busy.stderr.contains("is in use: process"), "{busy:?}");
    let lazy = overlay(&format!("{mount}; exec 3<a/name; umount -l a; cat <&3; findmnt a; exec 3<&-"));
    assert_eq!(lazy.stdout, "a", "{lazy:?}");
    wait_until("it ends with its last user", || machine.is_clean());
    let twice = overlay(&format!("{mount}; mount --bind a b; umount a; cat b/name; umount b"));
    assert_eq!((twice.code, twice.stdout.as_str()), (Some(0), "a"), "{twice:?}");
    wait_until("it ends with the second place", || machine.is_clean());
    // With the upper one, libmount forgets that the lower one has a helper.
    let covered = overlay(&format!("{mount}; mount -t tmpfs none a; umount a; cat a/name; umount a"));
    assert_eq!((covered.code, covered.stdout.as_str()), (Some(0), "a"), "{covered:?}");
    wait_until("it ends by itself", || machine.is_clean());
    // Who has nothing to do with it.
    let other = overlay(&format!(
        "cd {}; mount -t tmpfs -o helper=ringfab none a; umount a; ls run",
        machine.text("")
    ));
    assert_eq!((other.code, other.stdout.as_str()), (Some(0), ""), "{other:?}");
    machine.assert_clean();
}

/// A target with a disk, in a process of its own, and a mount of it in a namespace of mounts. There the script goes on
/// when the target is gone.
fn when_its_target_is_gone(machine: &Machine, before: &str, then: &str) -> Said {
    let image = machine.path("disk.img");
    fs::File::create(&image).and_then(|file| file.set_len(64 << 20)).expect("an image");
    let port = free_port();
    let mut target = file_target(port, &image);
    let url = format!("nvme+rdma://127.0.0.1:{port}/{NQN}");
    let script = format!(
        "set -eu; cd {}; {before}; PATH=$PWD/bin:$PATH; export PATH; {} mount {url} a --mkfs ext4 >/dev/null; \
         sync -f a; dd if=/dev/zero of=a/file bs=1M count=8 status=none; touch mounted; \
         until [ -e gone ]; do sleep 0.05; done; {then}",
        machine.text(""),
        program("ringfab").display()
    );
    let mut command = machine.command("unshare".as_ref(), &["--mount", "sh", "-c", &script]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("unshare runs");
    wait_until("it is mounted", || machine.path("mounted").exists());
    target.kill();
    fs::write(machine.path("gone"), "").expect("written");
    Said::of(&child.wait_with_output().expect("its end"))
}

/// systemd says that it stops all units, and waits for umount(8).
#[test]
fn at_the_end_of_a_machine_a_target_that_is_away_is_given_up() {
    let Some(machine) = Machine::new("the end of a machine") else { return };
    fs::create_dir(machine.path("bin")).expect("a folder");
    let systemctl = machine.path("bin/systemctl");
    fs::write(&systemctl, format!("#!/bin/sh\ncat {}\nexit 1\n", machine.text("says"))).expect("a program");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&systemctl, mode).expect("a program");
    fs::write(machine.path("says"), "running\n").expect("written");
    let said = when_its_target_is_gone(
        &machine,
        "mount -t tmpfs none /run; mkdir -p /run/systemd/system",
        // As long as the machine does not end, it waits.
        "umount a & sleep 8; kill -0 $!; echo waits; echo stopping >says; wait $!; \
         until [ -z \"$(ls run | grep json)\" ]; do sleep 0.1; done",
    );
    assert_eq!((said.code, said.stdout.as_str()), (Some(0), "waits\n"), "{said:?}");
    let logs = fs::read_dir(machine.path("run")).expect("a folder").flatten();
    let log: String = logs.filter_map(|entry| fs::read_to_string(entry.path()).ok()).collect();
    for words in ["the machine ends, and the target is away", "what was not written yet is lost"] {
        assert!(log.contains(words), "{log}");
    }
    wait_until("nothing is left", || machine.is_clean());
}

/// Of a directory with any name, the script of the package makes nothing.
#[test]
fn a_package_that_goes_unmounts_directories_with_any_name() {
    let Some(machine) = Machine::new("the removal of the package") else { return };
    let target = target();
    // The units of this machine are none of its business.
    fs::create_dir(machine.path("bin")).expect("a folder");
    std::os::unix::fs::symlink("/bin/true", machine.path("bin/systemctl")).expect("a link");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../systemd/debian/ringfab/prerm");
    let folder = program("ringfab").parent().expect("a folder").display().to_string();
    let path = format!("{}:{folder}:{}", machine.text("bin"), std::env::var("PATH").expect("a path"));
    let prerm = || {
        let mut command = machine.command("sh".as_ref(), &[&script.display().to_string(), "remove"]);
        Said::of(&command.env("PATH", &path).output().expect("it runs"))
    };
    let outer = machine.path("a \"b\" \\n \t$(touch x)\n      \"device\": \"loop0\",\n");
    fs::create_dir(&outer).expect("a directory");
    let (first, second) = (url(&target, 1), url(&target, 2));
    machine.ok(&["mount", &first, outer.to_str().expect("text"), "--mkfs", "ext4"]);
    let inner = outer.join("inner 'x'");
    fs::create_dir(&inner).expect("a directory");
    machine.ok(&["mount", &second, inner.to_str().expect("text"), "--mkfs", "ext4"]);
    let mut user = Command::new("sleep").arg("120").current_dir(&inner).spawn().expect("sleep runs");
    let said = prerm();
    let named = format!("process {} (sleep)", user.id());
    assert!(said.code == Some(1) && said.stderr.contains(&named), "{said:?}");
    assert_eq!(machine.list().len(), 2, "both are there");
    user.kill().expect("killed");
    user.wait().expect("ended");
    let said = prerm();
    assert_eq!(said.code, Some(0), "{said:?}");
    machine.assert_clean();
}
