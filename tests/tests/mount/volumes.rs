//! Volumes by their names, and what mount(8) and fstab make of them.

use std::fs;

use ringfab_base::shell_quoted;
use ringfab_tests::{NQN, mountinfo, program};

use super::machine::{Machine, Said};
use super::{mounted, target, url};

/// Two volumes, whose file systems are there.
pub(crate) fn volumes(machine: &Machine, target: &ringfab_tests::TestTarget) {
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

/// The program under the names that mount(8) and umount(8) look for. The path of the first one.
pub(crate) fn helper(machine: &Machine) -> String {
    fs::create_dir(machine.path("sbin")).expect("a folder");
    for name in ["mount.ringfab", "umount.ringfab"] {
        let link = machine.path("sbin").join(name);
        std::os::unix::fs::symlink(program("ringfab"), link).expect("a link");
    }
    machine.text("sbin/mount.ringfab")
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
    assert!(wrong.code == Some(32) && wrong.stderr.contains("two mounts would destroy it"), "{wrong:?}");
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

#[test]
fn a_line_of_fstab_without_the_network_is_told() {
    let Some(machine) = Machine::new("a line of fstab without _netdev") else { return };
    let target = target();
    mounted(&machine, &target, &[]);
    machine.ok(&["umount", &machine.text("a")]);
    let helper = helper(&machine);
    let (url, a) = (url(&target, 1), machine.text("a"));
    let fstab = machine.text("fstab");
    let run = |program: &str, arguments: &[&str]| {
        let mut command = machine.command(program.as_ref(), arguments);
        Said::of(&command.env("LIBMOUNT_FSTAB", &fstab).output().expect("it runs"))
    };
    let ringfab = program("ringfab").display().to_string();
    let words = format!("{fstab}:2: {a} has no _netdev among its options");
    fs::write(&fstab, format!("/dev/x / ext4 rw 0 1\n{url} {a} ringfab noatime,nofail 0 0\n"))
        .expect("written");
    // Without volumes.toml, too.
    let said = run(&ringfab, &["volume", "check"]);
    assert!(said.code == Some(1) && said.stdout.contains(&words), "{said:?}");
    let said = run(&helper, &[&url, &a, "-o", "rw,noatime"]);
    assert!(said.code == Some(0) && said.stderr.contains(&words), "{said:?}");
    machine.ok(&["umount", &a]);
    for (line, words) in [
        (format!("{url} {a} ringfab _netdev 0 0"), "1: ok"),
        (format!("{url} {a} ringfab _netdev,keep_alive=soon 0 0"), "`soon` is not a time"),
        (format!("nothing {a} ringfab _netdev 0 0"), "`nothing` is not an address"),
        (format!("{url} {fstab} ringfab _netdev 0 0"), "is not a directory"),
        (format!("{url} / ringfab _netdev 0 0"), "/ cannot be where a file system is mounted"),
    ] {
        fs::write(&fstab, format!("{line}\n")).expect("written");
        let said = run(&ringfab, &["volume", "check"]);
        let is_fine = words.ends_with("ok");
        let shown = shell_quoted(&url);
        let expected = if is_fine { format!("{fstab}:1: {shown} on {a}: ok") } else { words.to_owned() };
        assert!(
            said.code == Some(i32::from(!is_fine)) && said.stdout.contains(&expected),
            "{line}: {said:?}"
        );
        let said = run(&helper, &[&url, &a, "-f"]);
        assert!(said.code == Some(0) && said.stderr.is_empty(), "{said:?}");
    }
    machine.assert_clean();
}

#[test]
fn what_a_list_of_options_has_is_trimmed_or_named() {
    let Some(machine) = Machine::new("a list of options") else { return };
    let target = target();
    volumes(&machine, &target);
    let text = fs::read_to_string(machine.path("volumes.toml")).expect("volumes");
    let write = |options: &str| {
        let text = text.replace("options = [\"noatime\"]", &format!("options = \"{options}\""));
        fs::write(machine.path("volumes.toml"), text).expect("written");
    };
    write("noatime, ro");
    machine.ok(&["volume", "check"]);
    machine.ok(&["mount", "data"]);
    assert_eq!(machine.list()[0]["read_only"], true);
    machine.ok(&["umount", "data"]);
    machine.ok(&["mount", &url(&target, 1), &machine.text("a"), "-o", "noatime, ro"]);
    machine.ok(&["umount", &machine.text("a")]);
    write("noatime ro");
    let words = "`noatime ro` is not a mount option";
    assert!(machine.run(&["volume", "check"]).stdout.contains(words));
    machine.fails(&["mount", "data"], words);
    let said = machine.run(&["mount", &url(&target, 1), "/"]);
    assert!(said.code == Some(2) && said.stderr.contains("/ cannot be where"), "{said:?}");
    machine.assert_clean();
}
