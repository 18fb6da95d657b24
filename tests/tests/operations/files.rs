//! What the target makes, writes and reads again: it takes the place of nothing, and nothing keeps it waiting.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use nix::sys::stat::Mode;
use ringfab_tests::{Service, program, wait_until};

const NQN: &str = "nqn.2026-11.org.ringfab:a";

fn text(folder: &Path, port: u16, more: &str) -> String {
    let [state, socket, disk] = ["state", "control.sock", "disk"].map(|name| folder.join(name));
    format!(
        "[target]\nstate_dir = {state:?}\ncores = [0]\n[control]\nsocket = {socket:?}\n{more}\n\
         [[listener]]\naddress = \"127.0.0.1\"\nport = {port}\ntransport = \"tcp\"\n\
         [[subsystem]]\nnqn = {NQN:?}\nallow_any_host = true\n[[subsystem.namespace]]\npath = {disk:?}\n"
    )
}

/// Starts a target with one disk, with these tables, too.
fn start(more: impl FnOnce(&Path) -> String) -> Service {
    Service::start("ringfab-target", |folder| {
        fs::write(folder.join("disk"), [7; 4096]).expect("a disk");
        let file = folder.join("target.toml");
        fs::write(&file, text(folder, ringfab_tests::free_port(), &more(folder))).expect("a configuration");
        ["serve", "--config", &file.display().to_string()].map(str::to_owned).to_vec()
    })
}

fn ask(target: &Service, arguments: &[&str]) -> Output {
    let mut command = Command::new(program("ringfab-target"));
    command.args(arguments).arg("--socket").arg(target.path("control.sock")).output().expect("it runs")
}

/// Why a command fails.
fn refused(target: &Service, arguments: &[&str]) -> String {
    let output = ask(target, arguments);
    assert!(!output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stderr).expect("text")
}

fn succeeds(target: &Service, arguments: &[&str]) {
    let output = ask(target, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_disk_in_the_place_of_a_file_that_is_made_is_a_mistake_and_stays_whole() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    fs::write(at("disk"), [7; 4096]).expect("a disk");
    let file = at("target.toml");
    let run = |arguments: &[&str]| {
        let output = Command::new(program("ringfab-target")).args(arguments).output().expect("it runs");
        let said = String::from_utf8(output.stderr).expect("text");
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert_eq!(fs::read(at("disk")).expect("the disk"), [7; 4096]);
        said
    };
    let config = file.display().to_string();
    fs::write(&file, text(folder.path(), 0, &format!("[metrics]\nfile = {:?}", at("disk")))).expect("a file");
    for arguments in [vec!["check", &config], vec!["serve", "--config", &config]] {
        let said = run(&arguments);
        assert!(
            said.contains("target.toml:7:8: metrics.file: leads to the same file as the disk of"),
            "{said}"
        );
    }
    fs::write(&file, text(folder.path(), 0, "")).expect("a file");
    for (name, what) in
        [("disk", "the disk of namespace 1 of"), ("target.toml", "the file of the configuration")]
    {
        let ready = at(name).display().to_string();
        let said = run(&["serve", "--config", &config, "--ready-file", &ready]);
        assert!(said.contains(what) && said.contains("would be the ready file, too"), "{said}");
    }
}

#[test]
fn only_metrics_are_written_over_by_metrics() {
    let target = start(|folder| {
        fs::write(folder.join("precious"), "mine").expect("a file");
        format!("[metrics]\nfile = {:?}\nfile_interval_s = 1", folder.join("precious"))
    });
    let precious = target.path("precious");
    wait_until("a line in the log", || target.log().contains("the metrics are not written"));
    let log = target.log();
    assert!(log.contains("what is there has no metrics of a target, and is not replaced"), "{log}");
    assert_eq!(fs::read_to_string(&precious).expect("the file"), "mine");
    let output =
        Command::new(program("ringfab-target")).arg("check").arg(target.path("target.toml")).output();
    let said = String::from_utf8(output.expect("it runs").stderr).expect("text");
    assert!(
        said.contains("warning: metrics.file: ") && said.contains("is not replaced; remove it"),
        "{said}"
    );
    fs::remove_file(&precious).expect("removed");
    for _ in 0..2 {
        wait_until("metrics", || fs::read_to_string(&precious).is_ok_and(|text| text.contains("ringfab_")));
        fs::write(&precious, "").expect("emptied");
    }
    wait_until("a line in the log", || target.log().contains("the metrics are written again"));
}

#[test]
fn a_disk_that_comes_is_no_file_of_the_target() {
    let target = start(|folder| format!("[metrics]\nfile = {:?}", folder.join("ringfab.prom")));
    fs::hard_link(target.path("target.toml"), target.path("other")).expect("a link");
    wait_until("metrics", || target.path("ringfab.prom").exists());
    for (name, what) in [
        ("target.toml", "the file of the configuration"),
        ("other", "the file of the configuration"),
        ("ringfab.prom", "metrics.file"),
        ("state/identity", "the identity in target.state_dir"),
    ] {
        let path = target.path(name).display().to_string();
        let said = refused(&target, &["namespace", "add", &path, "--page-cache"]);
        assert!(said.contains(&format!("would be {what}, too")), "{said}");
    }
    fs::write(target.path("second"), [0; 4096]).expect("a disk");
    let second = target.path("second").display().to_string();
    succeeds(&target, &["namespace", "add", &second, "--page-cache"]);
    // What is saved takes the place of no disk, either.
    fs::write(target.path("target.toml.old"), [9; 4096]).expect("a disk");
    let old = target.path("target.toml.old").display().to_string();
    succeeds(&target, &["namespace", "add", &old, "--page-cache"]);
    let said = refused(&target, &["config", "--save"]);
    assert!(said.contains("would be the copy of its old file, too"), "{said}");
    assert_eq!(fs::read(target.path("target.toml.old")).expect("the disk"), [9; 4096]);
}

#[test]
fn a_fifo_in_the_place_of_the_configuration_is_refused_at_once_and_later_files_are_read() {
    let target = start(|_| String::new());
    let (file, mine) = (target.path("target.toml"), target.path("mine"));
    succeeds(&target, &["log", "debug"]);
    fs::rename(&file, &mine).expect("moved");
    nix::unistd::mkfifo(&file, Mode::S_IRWXU).expect("a FIFO");
    let began = Instant::now();
    for arguments in [&["reload"][..], &["reload", "--dry-run"], &["config", "--save"]] {
        let said = refused(&target, arguments);
        assert!(
            said.contains("it is a FIFO, and what a target reads again must be a regular file"),
            "{said}"
        );
    }
    // Each would wait for ten seconds.
    assert!(began.elapsed() < Duration::from_secs(25), "{:?}", began.elapsed());
    fs::rename(&mine, &file).expect("moved back");
    succeeds(&target, &["config", "--save"]);
    succeeds(&target, &["reload"]);
    assert!(fs::read_to_string(&file).expect("the file").contains("log = \"debug\""));
}

/// Process substitution of a shell, and a pipe.
#[test]
fn a_configuration_may_come_through_a_pipe() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("disk"), [7; 4096]).expect("a disk");
    fs::write(folder.path().join("target.toml"), text(folder.path(), 0, "")).expect("a configuration");
    for command in
        ["cat target.toml | TARGET check --quiet /dev/stdin", "TARGET check --quiet <(cat target.toml)"]
    {
        let command = command.replace("TARGET", &program("ringfab-target").display().to_string());
        let output = Command::new("bash").args(["-c", &command]).current_dir(folder.path()).output();
        let output = output.expect("bash runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}
