//! `ringfab-target check`: what it warns of, and which commands it suggests.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;
use std::process::{Command, Output};

use ringfab_tests::{not_run, program};

const DHCHAP_KEY: &str = "DHHC-1:00:ycnJycnJycnJycnJycnJycnJycnJycnJycnJycnJyclx132H:";

fn check(file: &Path, more: &[&str]) -> Output {
    let mut command = Command::new(program("ringfab-target"));
    command.arg("check").args(more).arg(file).output().expect("it runs")
}

#[test]
fn what_the_machine_lacks_is_a_warning_and_no_mistake() {
    let folder = tempfile::tempdir().expect("a folder");
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("its address").port();
    let odd = folder.path().join("odd");
    fs::write(&odd, [0; 4097]).expect("a file");
    let file = folder.path().join("target.toml");
    let disk = |path: &Path| format!("[[subsystem.namespace]]\npath = {path:?}\n");
    let text = format!(
        "[[listener]]\naddress = \"127.0.0.1\"\nport = {port}\ntransport = \"tcp\"\n\
         [[listener]]\naddress = \"192.0.2.77\"\n[control]\nsocket = \"/nonexistent/socket\"\n\
         [[subsystem]]\nnqn = \"nqn.2026-11.org.ringfab:a\"\nallow_any_host = true\n{}{}{}\
         [[subsystem.namespace]]\nmemory = \"1GB\"\n",
        disk(Path::new("/nonexistent/disk")),
        disk(folder.path()),
        disk(&odd)
    );
    fs::write(&file, text).expect("a configuration");
    let output = check(&file, &[]);
    let said = String::from_utf8(output.stderr).expect("text");
    assert!(output.status.success(), "{said}");
    for warning in [
        format!(
            "warning: listener tcp 127.0.0.1:{port}: the port is in use by process {} (",
            std::process::id()
        ),
        "listener rdma 192.0.2.77:4420: this machine has no such address".to_owned(),
        "control.socket: /nonexistent: No such file".to_owned(),
        "namespace 1 of nqn.2026-11.org.ringfab:a: /nonexistent/disk does not exist".to_owned(),
        "it is a directory".to_owned(),
        "has 4097 bytes, the last 1 of them are not used".to_owned(),
    ] {
        assert!(said.contains(&warning), "{warning} in {said}");
    }
    let (warnings, note) = said.split_once("note: while it runs, these need a restart: ").expect("a note");
    assert!(warnings.lines().count() == 6 && note.contains("listeners at other ports"), "{said}");
    let resolved = String::from_utf8(output.stdout).expect("text");
    assert!(
        resolved.contains("memory = \"1000000000\"") || resolved.contains("memory = 1000000000"),
        "{resolved}"
    );
    // For scripts, without the configuration.
    let quiet = check(&file, &["--quiet"]);
    assert!(quiet.status.success() && quiet.stdout.is_empty());
    assert_eq!(String::from_utf8(quiet.stderr).expect("text"), warnings);
}

/// Who checks is root, and may read everything. Who serves is another user.
#[test]
fn what_the_service_may_not_read_is_said_to_root() {
    if !nix::unistd::geteuid().is_root() {
        return not_run("check as the user of the service: not root");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let [disk, key, state, file] =
        ["disk", "key", "state", "target.toml"].map(|name| folder.path().join(name));
    let text = format!(
        "[target]\nstate_dir = {state:?}\n[control]\nenabled = false\n\
         [[listener]]\naddress = \"127.0.0.1\"\nport = 0\ntransport = \"tcp\"\n\
         [[subsystem]]\nnqn = \"nqn.2026-11.org.ringfab:a\"\nallow_any_host = true\n\
         [[subsystem.namespace]]\npath = {disk:?}\n"
    );
    fs::write(&file, &text).expect("a configuration");
    fs::write(&disk, [0; 4096]).expect("a disk");
    fs::create_dir(&state).expect("a folder");
    for (path, mode) in [(folder.path(), 0o755), (&disk, 0o600), (&file, 0o644)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("changed");
    }
    let said = |arguments: &[&str]| String::from_utf8(check(&file, arguments).stderr).expect("text");
    assert_eq!(said(&["--quiet"]), "", "root has the state, and so is who serves");
    chown(&state, Some(65534), Some(65534)).expect("of another user");
    let as_service = said(&[]);
    assert!(
        as_service.contains("looking as nobody, who runs the service; --as root looks as root"),
        "{as_service}"
    );
    let remedy =
        format!("it is of root:root with mode 0600, and nobody runs this: chown nobody {}", disk.display());
    assert!(as_service.contains("Permission denied") && as_service.contains(&remedy), "{as_service}");
    assert_eq!(said(&["--quiet", "--as", "root"]), "");
    assert!(said(&["--quiet", "--as", "nobody"]).contains(&remedy));
    assert!(said(&["--quiet", "--as", "65534:0"]).contains(&remedy), "its group may not read it either");
    fs::set_permissions(&disk, fs::Permissions::from_mode(0o660)).expect("changed");
    assert_eq!(said(&["--quiet", "--as", "65534:0"]), "", "its group may");
    // A key is a part of the configuration: without it nothing is served.
    fs::write(&key, DHCHAP_KEY).expect("a key");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("changed");
    let host =
        format!("[[host]]\nnqn = \"nqn.2026-11.org.ringfab:h\"\ndhchap_key = \"file:{}\"\n", key.display());
    fs::write(&file, text + &host).expect("a configuration");
    let output = check(&file, &["--quiet"]);
    let said = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("cannot read") && said.contains("chown"), "{said}");
}

/// What can never start ends once, and not again and again: the service manager does not repeat what ends with 2.
#[test]
fn what_serve_refuses_is_found_by_check_and_ends_with_2() {
    let folder = tempfile::tempdir().expect("a folder");
    let (file, state) = (folder.path().join("target.toml"), folder.path().join("state"));
    let taken = folder.path().join("taken");
    fs::write(&taken, "a file").expect("a file");
    let port = ringfab_tests::free_port();
    let listener =
        |address: &str| format!("[[listener]]\naddress = {address:?}\nport = {port}\ntransport = \"tcp\"\n");
    let socket = |name: &str| format!("[control]\nsocket = {:?}\n", folder.path().join(name));
    for (state, tables, said) in [
        (&state, listener("0.0.0.0"), format!("and 127.0.0.1 in line 4 cannot both have port {port}")),
        (
            &state,
            format!("[metrics]\naddress = \"127.0.0.1:{port}\"\n"),
            format!("metrics.address: is the listener's 127.0.0.1:{port}; choose another port"),
        ),
        (&state, socket("s") + "group = \"no-such-group\"\n", "control.group: there is no group".to_owned()),
        (&state, socket(&"s".repeat(107)), "but the path of a socket has at most 107".to_owned()),
        (&taken, socket("s"), "target.state_dir: ".to_owned() + &taken.display().to_string()),
    ] {
        let text = format!(
            "[target]\nstate_dir = {state:?}\n{}{tables}[[subsystem]]\nnqn = \"nqn.2026-11.org.ringfab:a\"\n\
             allow_any_host = true\n[[subsystem.namespace]]\nmemory = \"1MiB\"\n",
            listener("127.0.0.1")
        );
        fs::write(&file, text).expect("a configuration");
        let checked = String::from_utf8(check(&file, &[]).stderr).expect("text");
        assert!(checked.contains(&said), "{checked:?} instead of {said}");
        let mut serve = Command::new(program("ringfab-target"));
        let output = serve.args(["serve", "--config"]).arg(&file).output().expect("it runs");
        let refused = String::from_utf8(output.stderr).expect("text");
        assert!(output.status.code() == Some(2) && refused.contains(&said), "{refused}");
    }
}

#[test]
fn a_control_socket_for_everybody_is_warned_of() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("target.toml");
    let text = format!(
        "[control]\nsocket = {:?}\nmode = \"0666\"\n[[listener]]\naddress = \"127.0.0.1\"\n\
         port = 0\n[[subsystem]]\nnqn = \"nqn.2026-11.org.ringfab:a\"\nallow_any_host = true\n\
         [[subsystem.namespace]]\nmemory = \"1MiB\"\n",
        folder.path().join("s")
    );
    fs::write(&file, text).expect("a configuration");
    let output = check(&file, &[]);
    let said = String::from_utf8(output.stderr).expect("text");
    let warning = "warning: control.mode: is \"0666\": every user of this machine may change what is served";
    assert!(output.status.success() && said.contains(warning), "{said}");
}

#[test]
fn a_misspelt_command_is_answered_with_the_one_that_is_meant() {
    for (name, wrong, meant) in [
        ("ringfab-target", vec!["statsu"], "status"),
        ("ringfab-target", vec!["namespace", "ad"], "add"),
        ("ringfab-target", vec!["host", "alow", "x"], "allow"),
        ("ringfab", vec!["discovr", "x"], "discover"),
        ("ringfab", vec!["list", "--hostqnq", "x"], "--hostnqn"),
    ] {
        let output = Command::new(program(name)).args(&wrong).output().expect("it runs");
        let said = String::from_utf8(output.stderr).expect("text");
        assert_eq!(output.status.code(), Some(2));
        assert!(said.contains("similar") && said.contains(meant), "{wrong:?}: {said}");
    }
}

#[test]
fn who_may_use_a_new_subsystem_has_to_be_said_in_one_of_two_ways() {
    let run = |more: &[&str]| {
        let mut command = Command::new(program("ringfab-target"));
        let output = command.args(["subsystem", "add", "nqn.2026-11.org.ringfab:a"]).args(more).output();
        let output = output.expect("it runs");
        (output.status.code(), String::from_utf8(output.stderr).expect("text"))
    };
    let (code, said) = run(&[]);
    assert!(code == Some(2) && said.contains("--allow-any-host") && said.contains("--host <NQN>"), "{said}");
    let (code, said) = run(&["--allow-any-host", "--host", "nqn.h"]);
    assert!(code == Some(2) && said.contains("cannot be used with"), "{said}");
    let (code, said) = run(&["--host", "nqn.h", "--host", "nqn.i", "--socket", "/nonexistent/socket"]);
    assert!(code == Some(1) && said.contains("/nonexistent/socket"), "{said}");
}

/// The same words mean the same in the file and in both programs.
#[test]
fn sizes_have_the_same_units_in_the_file_and_in_both_programs() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("target.toml");
    let resolved = |size: &str| {
        let text = format!(
            "[[listener]]\naddress = \"127.0.0.1\"\n[[subsystem]]\nnqn = \"nqn.2026-11.org.ringfab:a\"\n\
             allow_any_host = true\n[[subsystem.namespace]]\nmemory = {size:?}\n"
        );
        fs::write(&file, text).expect("a configuration");
        let output = check(&file, &[]);
        (String::from_utf8(output.stdout).expect("text"), String::from_utf8(output.stderr).expect("text"))
    };
    for (size, bytes) in [("4MiB", "4MiB"), ("4M", "4MiB"), ("512KB", "500KiB"), ("4096", "4KiB")] {
        let (text, _) = resolved(size);
        assert!(text.contains(&format!("memory = \"{bytes}\"")), "{size}: {text}");
    }
    let wrong = "must be a size such as 16GiB or 500GB";
    assert!(resolved("4x").1.contains(wrong));
    for (name, arguments) in [
        ("ringfab-target", ["namespace", "resize", "1", "--size", "4x"]),
        ("ringfab", ["bench", "nvme+tcp://127.0.0.1:1/nqn.x:y?ns=1", "--time=1", "--bs", "4x"]),
    ] {
        let output = Command::new(program(name)).args(arguments).output().expect("it runs");
        let said = String::from_utf8(output.stderr).expect("text");
        assert!(output.status.code() == Some(2) && said.contains(wrong), "{name}: {said}");
    }
}
