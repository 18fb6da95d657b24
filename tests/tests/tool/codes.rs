//! Every exit code, and where they are told.

use std::fs;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use ringfab_tests::{PATIENCE, Service, free_port, wait_until};

use super::{err, out, output, ringfab, ringfab_target, target};

/// The table below a line that ends with this in docs/command-line.md, as the help has it.
fn documented(program: &str) -> Vec<(String, String)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/command-line.md");
    let text = fs::read_to_string(path).expect("the document");
    let table = text.split_once(&format!("\n`{program}`:\n")).expect("a table").1;
    let rows =
        table.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let rows = rows.skip(2).map(|row| {
        let mut cells = row.trim_matches('|').split('|').map(|cell| cell.trim().to_owned());
        (cells.next().expect("a code"), cells.next().expect("a meaning"))
    });
    rows.collect()
}

/// The same of `--help`.
fn helped(mut command: Command) -> Vec<(String, String)> {
    let help = out(&output(&mut command));
    let table = help.split_once("Exit codes:\n").expect("a table").1.to_owned();
    let rows = table.lines().take_while(|line| line.starts_with("  "));
    let rows = rows.map(|row| row.trim().split_once(' ').expect("a code and a meaning"));
    rows.map(|(code, meaning)| (code.to_owned(), meaning.trim().to_owned())).collect()
}

fn code(command: &mut Command) -> i32 {
    output(command).status.code().expect("a code")
}

fn is_cancelled(status: ExitStatus) {
    assert_eq!(status.code(), Some(130));
}

#[test]
fn the_help_and_the_document_have_the_same_codes() {
    assert_eq!(helped(ringfab(&["--help"])), documented("ringfab"));
    assert_eq!(helped(ringfab_target(&["--help"])), documented("ringfab-target"));
    assert_eq!(documented("ringfab").len(), 6);
}

#[test]
fn success_failure_and_wrong_usage_have_codes_of_their_own() {
    let (_target, url) = target();
    assert_eq!(code(&mut ringfab(&["list", &url])), 0);
    assert_eq!(code(&mut ringfab(&["--version"])), 0);
    // Nobody listens there.
    let port = free_port();
    let failed = output(&mut ringfab(&["list", &format!("nvme+tcp://127.0.0.1:{port}/nqn.2026-11.org.x:y")]));
    assert_eq!(failed.status.code(), Some(1));
    assert!(err(&failed).starts_with("ringfab: ") && out(&failed).is_empty(), "{failed:?}");
    for wrong in [&["id-ctrl"][..], &["nonsense"], &["list", "http://x"], &["list", &url, "--queues", "0"]] {
        let wrong = output(&mut ringfab(wrong));
        assert_eq!(wrong.status.code(), Some(2), "{wrong:?}");
        assert!(err(&wrong).contains("--help") && out(&wrong).is_empty(), "{wrong:?}");
    }
    // It can be parsed, but overwrites what was not named.
    let write = output(&mut ringfab(&["write", &url, "--nsid", "1", "-i", "/dev/null"]));
    assert_eq!(write.status.code(), Some(2), "{write:?}");
    assert!(err(&write).contains("--destroy-data 1"), "{write:?}");
}

#[test]
fn a_signal_cancels() {
    let (_target, url) = target();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let mut command = ringfab(&["discover", "--follow", &url]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it runs");
        // It has attached, and waits, once it has printed.
        let mut first = [0];
        std::io::Read::read_exact(child.stdout.as_mut().expect("piped"), &mut first).expect("entries");
        kill(Pid::from_raw(child.id() as i32), signal).expect("a process");
        is_cancelled(child.wait().expect("it ends"));
    }
}

#[test]
fn the_target_tells_mistakes_from_failures() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("target.toml");
    let port = free_port();
    let state = folder.path().join("state");
    fs::create_dir(&state).expect("a folder");
    let good = format!(
        "[target]\nstate_dir = {state:?}\ncores = 1\n[control]\nsocket = {:?}\n[[listener]]\n\
         address = \"127.0.0.1\"\nport = {port}\n[[subsystem]]\nnqn = \"nqn.2026-11.org.ringfab:codes\"\n\
         allow_any_host = true\n[[subsystem.namespace]]\nmemory = \"1MiB\"\n",
        folder.path().join("socket")
    );
    fs::write(&file, &good).expect("a file");
    let path = file.to_str().expect("text");
    assert_eq!(code(&mut ringfab_target(&["check", "--quiet", path])), 0);
    fs::write(&file, good.replace("allow_any_host", "allow_any")).expect("a file");
    assert_eq!(code(&mut ringfab_target(&["check", path])), 2);
    assert_eq!(code(&mut ringfab_target(&["serve", "--config", path])), 2);
    assert_eq!(code(&mut ringfab_target(&["nonsense"])), 2);
    let socket = folder.path().join("none");
    let socket = socket.to_str().expect("text");
    assert_eq!(code(&mut ringfab_target(&["status", "--socket", socket])), 1);
    // No target runs, says the doctor.
    assert_eq!(code(&mut ringfab_target(&["doctor", path])), 1);
    fs::write(&file, &good).expect("a file");
    let serving = ringfab_target(&["serve", "--config", path]);
    let mut service = Service::start_command(folder, serving, Stdio::null());
    let socket = service.path("socket");
    let socket = socket.to_str().expect("text");
    wait_until("the target serves", || code(&mut ringfab_target(&["status", "--socket", socket])) == 0);
    // It refuses.
    assert_eq!(code(&mut ringfab_target(&["namespace", "remove", "9", "--socket", socket])), 1);
    service.signal("TERM");
    assert_eq!(service.wait(PATIENCE).code(), Some(0));
}
