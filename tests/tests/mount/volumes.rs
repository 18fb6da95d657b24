//! Volumes by their names, and what mount(8) and fstab make of them.

use std::fs;

use ringfab_tests::{NQN, mountinfo, not_run, program, wait_until};

use super::machine::{Machine, Said};
use super::{mounted, target, url};

/// Two volumes, whose file systems are there.
fn volumes(machine: &Machine, target: &ringfab_tests::TestTarget) {
    for (nsid, directory) in [(1, "a"), (2, "b")] {
        machine.ok(&["mount", &url(target, nsid), &machine.text(directory), "--mkfs", "ext4"]);
        fs::write(machine.path(directory).join("name"), directory).expect("written");
        machine.ok(&["umount", &machine.text(directory)]);
    }
    let url = target.url("");
    let text = format!(
        "[[volume]]\nname = \"data\"\nurl = \"{url}\"\nwhere = {:?}\nnsid = 1\noptions = [\"noatime\"]\nfsck = true\n\n\
         [[volume]]\nname = \"more\"\nurl = \"{url}\"\nwhere = {:?}\nnsid = 2\nfstype = \"ext4\"\nread_only = true\n\
         ctrl_loss_timeout = \"never\"\n",
        machine.path("a"),
        machine.path("b")
    );
    fs::write(machine.path("volumes.toml"), text).expect("written");
}

#[test]
fn a_volume_is_mounted_by_its_name() {
    let Some(machine) = Machine::new("volumes") else { return };
    let target = target();
    volumes(&machine, &target);
    let said = machine.ok(&["volume", "check"]);
    assert!(said.lines().count() == 2 && said.lines().all(|line| line.ends_with(": ok")), "{said}");
    machine.ok(&["mount", "data"]);
    assert_eq!(machine.only()["volume"], "data");
    assert_eq!(fs::read_to_string(machine.path("a/name")).expect("a file"), "a");
    // What the command line says, too, goes before the file.
    machine.ok(&["mount", "more", "--ctrl-loss-timeout", "1h"]);
    let keeper = machine.list()[1]["pid"].clone();
    let command = fs::read_to_string(format!("/proc/{keeper}/cmdline")).expect("a command line");
    assert!(
        command.rfind("--ctrl-loss-timeout\u{0}1h") > command.find("--ctrl-loss-timeout=never"),
        "{command}"
    );
    assert!(fs::write(machine.path("b/x"), "x").is_err(), "it is read only");
    machine.ok(&["umount", "data"]);
    machine.ok(&["umount", &machine.text("b")]);
    machine.assert_clean();
    machine.fails(&["mount", "nothing"], "has no volume `nothing`; it has data, more");
    machine.fails(&["umount", "data"], "is not mounted");
    let (one, two) = (url(&target, 1), url(&target, 2));
    machine.ok(&["mount", "data"]);
    machine.fails(&["umount", &two], "is not mounted here");
    machine.ok(&["umount", &one]);
    machine.assert_clean();
    machine.ok(&["mount", "data"]);
    machine.ok(&["umount", machine.only()["device"].as_str().expect("a device")]);
    machine.assert_clean();
    machine.fails(&["umount", "nothing"], "`nothing` is neither a directory nor the name of a volume");
}

#[test]
fn a_mistake_in_the_file_is_told_with_its_line() {
    let Some(machine) = Machine::new("a wrong volumes.toml") else { return };
    let good = format!(
        "[[volume]]\nname = \"data\"\nurl = \"nvme+tcp://192.0.2.1/{NQN}\"\nwhere = {:?}\n",
        machine.path("a")
    );
    let write =
        |more: &str| fs::write(machine.path("volumes.toml"), format!("{good}{more}")).expect("written");
    write("colour = 1\n");
    for command in [&["volume", "check"][..], &["mount", "data"], &["umount", "data"]] {
        machine.fails(command, "volumes.toml:5: colour: is not a known key");
    }
    // It is none of the others.
    let other = good.replace("\"data\"", "\"other\"").replace("/a\"", "/b\"");
    write(&format!("colour = 1\n{other}"));
    machine.fails(&["mount", "data"], "volumes.toml:5: colour: is not a known key");
    machine.fails(&["umount", "other"], "is not mounted");
    let checked = machine.run(&["volume", "check", "--json"]);
    let found: serde_json::Value = serde_json::from_str(&checked.stdout).expect("JSON");
    let ok =
        |volume: usize| (found["volumes"][volume]["name"].as_str(), found["volumes"][volume]["ok"].as_bool());
    assert_eq!([ok(0), ok(1)], [(Some("other"), Some(true)), (Some("data"), Some(false))], "{found}");
    assert!(checked.stderr.contains("1 of 2 volumes could not be mounted"), "{checked:?}");
    for (wrong, words) in [
        ("queues = 200\n", "200"),
        ("provider = \"verbs2\"\n", "verbs2"),
        ("keep_alive = \"soon\"\n", "`soon` is not a time"),
        ("tls_key = \"file:/no/such/key\"\n", "cannot read /no/such/key"),
        ("hostid = \"what\"\n", "what"),
    ] {
        write(wrong);
        let said = machine.run(&["volume", "check"]);
        assert!(said.code == Some(1) && said.stdout.contains(words), "{words}: {said:?}");
    }
    machine.assert_clean();
}

/// A copy of the program under the name that mount(8) looks for.
fn helper(machine: &Machine) -> String {
    fs::create_dir(machine.path("sbin")).expect("a folder");
    let helper = machine.path("sbin/mount.ringfab");
    std::os::unix::fs::symlink(program("ringfab"), &helper).expect("a link");
    helper.display().to_string()
}

#[test]
fn the_helper_does_as_mount_wants_it() {
    let Some(machine) = Machine::new("mount.ringfab") else { return };
    let target = target();
    mounted(&machine, &target, &[]);
    machine.ok(&["umount", &machine.text("a")]);
    let helper = helper(&machine);
    let (url, directory) = (url(&target, 1), machine.text("a"));
    let run = |arguments: &[&str]| {
        let mut command = machine.command(helper.as_ref(), arguments);
        Said::of(&command.output().expect("it runs"))
    };
    let fake = run(&[&url, &directory, "-f", "-o", "rw"]);
    assert_eq!((fake.code, fake.stdout.as_str()), (Some(0), ""), "{fake:?}");
    machine.assert_clean();
    let options = "rw,noatime,_netdev,nofail,x-systemd.automount,x-systemd.requires=network.target,hostnqn=\
                   nqn.2026-11.org.example:host,fstype=ext4";
    for _ in 0..2 {
        // The second time it is there already.
        let said = run(&[&url, &directory, "-n", "-s", "-o", options]);
        assert_eq!((said.code, said.stdout.as_str()), (Some(0), ""), "{said:?}");
    }
    let hosts = target.target.controllers();
    assert_eq!(hosts.len(), 1);
    assert!(machine.only()["device"].is_string());
    let options = || {
        let mounts = mountinfo();
        let line = mounts.lines().find(|line| line.contains(&directory)).expect("it is mounted");
        line.split(' ').nth(5).expect("its options").to_owned()
    };
    assert!(options().starts_with("rw"), "{}", options());
    for access in ["ro", "rw"] {
        let said = run(&[&url, &directory, "-o", &format!("remount,{access},noexec,_netdev")]);
        assert_eq!((said.code, said.stdout.as_str()), (Some(0), ""), "{said:?}");
        assert!(options().starts_with(access) && options().contains("noexec"), "{}", options());
        assert_eq!(fs::write(machine.path("a/file"), access).is_ok(), access == "rw");
    }
    let none = run(&[&url, &machine.text("b"), "-o", "remount,ro"]);
    assert!(none.code == Some(32) && none.stderr.contains("is not mounted by `ringfab mount`"), "{none:?}");
    let wrong = run(&[&url, &machine.text("none"), "-o", "rw"]);
    assert!(wrong.code == Some(32) && wrong.stderr.contains("No such file"), "{wrong:?}");
    let usage = run(&["http://x", &directory]);
    assert!(usage.code == Some(1) && usage.stderr.contains("an address begins with"), "{usage:?}");
    machine.ok(&["umount", &directory]);
    machine.assert_clean();
    // A copy does as a link does.
    let copy = machine.path("sbin/copy/mount.ringfab");
    fs::create_dir(copy.parent().expect("a folder")).expect("a folder");
    fs::copy(program("ringfab"), &copy).expect("a copy");
    let mut command = machine.command(&copy, &[&url, &directory]);
    let said = Said::of(&command.output().expect("it runs"));
    assert_eq!(said.code, Some(0), "{said:?}");
    machine.ok(&["umount", &directory]);
    machine.assert_clean();
}

/// mount(8) itself, in a namespace of mounts where its helper is installed.
#[test]
fn a_line_of_fstab_works() {
    let Some(machine) = Machine::new("fstab") else { return };
    let target = target();
    volumes(&machine, &target);
    let helper = helper(&machine);
    let sbin = machine.text("sbin");
    let overlay = |rest: &str| {
        let script = format!(
            "set -eu; mount -t tmpfs none /mnt; mkdir /mnt/upper /mnt/work; \
             mount -t overlay -o lowerdir={sbin}:/usr/sbin overlay /usr/sbin; umount /mnt; {rest}"
        );
        let mut command = machine.command("unshare".as_ref(), &["--mount", "sh", "-c", &script]);
        Said::of(&command.output().expect("unshare runs"))
    };
    let tried = overlay("test -e /sbin/mount.ringfab");
    if tried.code != Some(0) {
        return not_run(&format!("a line of fstab: no overlay over /usr/sbin here: {}", tried.stderr));
    }
    let url = url(&target, 1);
    let fstab = format!(
        "{url} {} ringfab noatime,_netdev,x-systemd.mount-timeout=1min 0 0\nmore {} ringfab nofail 0 0\n",
        machine.text("a"),
        machine.text("b")
    );
    fs::write(machine.path("fstab"), fstab).expect("written");
    let said = overlay(&format!(
        "cd {}; mount -T fstab -a; cat a/name b/name; mount -T fstab -a; mount -T fstab -o remount,ro {0}/a; \
         ! touch a/name 2>/dev/null; umount a b; mount -T fstab a; cat a/name; \
         umount a; until [ -z \"$(ls run | grep json)\" ]; do sleep 0.1; done",
        machine.text("")
    ));
    assert_eq!((said.code, said.stdout.as_str()), (Some(0), "aba"), "{said:?} {helper}");
    wait_until("nothing is left", || machine.is_clean());
}
