//! A volume whose two ends know each other, and along with whom nobody reads: as `keys pair` sets it up.

use std::fs;

use ringfab_tests::{NQN, Service, free_port, wait_until};

use super::machine::{Machine, Said};
use super::volumes::helper;

const HOST: &str = "nqn.2026-11.org.ringfab:pair";

/// A target that takes nobody without keys, with what `keys pair` has printed for it.
fn target(machine: &Machine, port: u16) -> Service {
    let keys = machine.text("keys");
    let make = ["keys", "pair", "--tls", "--host", HOST, "--subsystem", NQN, "--directory", &keys];
    let pair = machine.ok(&make);
    let lines = pair.lines().skip_while(|line| !line.starts_with("In the target's configuration")).skip(1);
    let host: Vec<&str> = lines.take_while(|line| !line.is_empty()).collect();
    let text = format!(
        "[target]\nstate_dir = {:?}\ncores = 1\nlog = \"debug\"\n[control]\nsocket = {:?}\n\
         [[listener]]\naddress = \"127.0.0.1\"\n\
         port = {port}\ntransport = \"tcp\"\ntls = \"allowed\"\n[[subsystem]]\nnqn = {NQN:?}\n\
         allowed_hosts = [{HOST:?}]\nauthentication = \"required\"\ntls = \"required\"\n[[subsystem.namespace]]\n\
         memory = \"32MiB\"\n[[subsystem.namespace]]\nmemory = \"32MiB\"\n{}\n",
        machine.path("state"),
        machine.path("control"),
        host.join("\n"),
    );
    fs::write(machine.path("target.toml"), text).expect("a configuration");
    let config = machine.text("target.toml");
    Service::start("ringfab-target", |_| ["serve", "--config", &config].map(str::to_owned).to_vec())
}

#[test]
fn two_commands_mount_a_volume_that_is_authenticated_and_encrypted() {
    let Some(machine) = Machine::new("a mount over TLS") else { return };
    let port = free_port();
    let service = target(&machine, port);
    let url = format!("nvme+tcp://127.0.0.1:{port}/{NQN}");
    let keys = machine.path("keys").join(format!("{HOST}.keys")).display().to_string();
    let file = |option: &str| format!("{option}=file:{keys}");
    let (host, controller) = (file("--dhchap-key"), file("--dhchap-controller-key"));
    let directory = machine.text("a");
    machine.ok(&["mount", &url, &directory, "--nsid=1", "--mkfs=ext4", "--keys", &keys]);
    fs::write(machine.path("a/file"), vec![7; 1 << 20]).expect("written");
    machine.ok(&["umount", &directory]);
    machine.assert_clean();
    a_volume_and_a_line_of_fstab(&machine, &url, &keys);
    let log = service.log();
    assert!(log.contains("authenticated") && log.contains("TLS_AES_128_GCM_SHA256"), "{log}");
    // Without a key for TLS, authentication makes one, for each mount its own, and another one every second.
    let concatenates = [&host, &controller, "--concat", "--reauthenticate=1s", "--hostnqn", HOST];
    for (nsid, directory) in [("--nsid=1", "a"), ("--nsid=2", "b")] {
        let place = machine.text(directory);
        let mkfs = if directory == "b" { &["--mkfs=ext4"][..] } else { &[] };
        machine.ok(&[&["mount", &url, &place, nsid], mkfs, &concatenates].concat());
    }
    assert_eq!(fs::read(machine.path("a/file")).expect("a file"), vec![7; 1 << 20]);
    fs::write(machine.path("b/file"), "written").expect("written");
    let status = || {
        let output = std::process::Command::new(ringfab_tests::program("ringfab-target"))
            .args(["status", "--json", "--socket"])
            .arg(machine.path("control"))
            .output();
        String::from_utf8(output.expect("it runs").stdout).expect("text")
    };
    assert_eq!(status().matches("\"generated\"").count(), 2, "{}", status());
    let again = || service.log().matches("authenticated again").count();
    wait_until("both have authenticated again", || again() >= 4);
    assert_eq!(fs::read_to_string(machine.path("b/file")).expect("a file"), "written");
    assert!(machine.list().iter().all(|one| one["state"] == "connected"));
    for directory in ["a", "b"] {
        machine.ok(&["umount", &machine.text(directory)]);
    }
    machine.assert_clean();
}

/// All keys of this host are one file for `volumes.toml` and for fstab, too.
fn a_volume_and_a_line_of_fstab(machine: &Machine, url: &str, keys: &str) {
    let write = |keys: &str| {
        let place = machine.path("a");
        let text = format!(
            "[[volume]]\nname = \"data\"\nurl = {url:?}\nwhere = {place:?}\nnsid = 1\nkeys = {keys:?}\n"
        );
        fs::write(machine.path("volumes.toml"), text).expect("written");
    };
    for form in [keys.to_owned(), format!("file:{keys}")] {
        write(&form);
        machine.ok(&["volume", "check"]);
        machine.ok(&["mount", "data"]);
        assert_eq!(fs::read(machine.path("a/file")).expect("a file"), vec![7; 1 << 20]);
        machine.ok(&["umount", "data"]);
    }
    let (open, mode) = (machine.text("open.keys"), std::os::unix::fs::PermissionsExt::from_mode(0o640));
    fs::copy(keys, &open).expect("a copy");
    fs::set_permissions(&open, mode).expect("a mode");
    write(&open);
    let said = machine.run(&["volume", "check"]);
    assert!(
        said.code == Some(1) && said.stdout.contains(&format!("(mode 0640): chmod 600 {open}")),
        "{said:?}"
    );
    machine.fails(&["mount", "data"], &format!("chmod 600 {open}"));
    let helper = helper(machine);
    let (place, fstab) = (machine.text("a"), machine.text("fstab"));
    let options = format!("rw,_netdev,nsid=1,keys={keys}");
    fs::write(&fstab, format!("{url} {place} ringfab {options} 0 0\n")).expect("written");
    let mut command = machine.command(helper.as_ref(), &[url, &place, "-o", &options]);
    let said = Said::of(&command.env("LIBMOUNT_FSTAB", &fstab).output().expect("it runs"));
    assert!(said.code == Some(0), "{said:?}");
    assert_eq!(fs::read(machine.path("a/file")).expect("a file"), vec![7; 1 << 20]);
    machine.ok(&["umount", &place]);
    machine.assert_clean();
}
