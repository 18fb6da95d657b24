//! A volume whose two ends know each other, and along with whom nobody reads: as `keys pair` sets it up.

use std::fs;

use ringfab_tests::{NQN, Service, free_port, wait_until};

use super::machine::Machine;

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
    let file =
        |option: &str, name: &str| format!("{option}=file:{}", machine.path("keys").join(name).display());
    let (host, controller, tls) = (
        file("--dhchap-key", "host"),
        file("--dhchap-controller-key", "controller"),
        file("--tls-key", "tls"),
    );
    let directory = machine.text("a");
    let mount = ["mount", &url, &directory, "--nsid=1", "--mkfs=ext4", "--hostnqn", HOST];
    machine.ok(&[&mount[..], &[&host, &controller, &tls]].concat());
    fs::write(machine.path("a/file"), vec![7; 1 << 20]).expect("written");
    machine.ok(&["umount", &directory]);
    machine.assert_clean();
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
