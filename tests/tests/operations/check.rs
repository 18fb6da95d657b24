//! `ringfab-target check`: what it warns of, and which commands it suggests.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};

use ringfab_tests::program;

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
    assert_eq!(said.lines().count(), 6, "{said}");
    let resolved = String::from_utf8(output.stdout).expect("text");
    assert!(
        resolved.contains("memory = \"1000000000\"") || resolved.contains("memory = 1000000000"),
        "{resolved}"
    );
    // For the service manager, mistakes only.
    let quiet = check(&file, &["--quiet"]);
    assert!(quiet.status.success() && quiet.stderr.is_empty() && quiet.stdout.is_empty());
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
