//! A log that cannot be written, or whose reader does not read.

use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::ExitStatusExt as _;

use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::signal::Signal;

use super::*;

fn full_disk(_: &Path) -> Stdio {
    fs::File::options().write(true).open("/dev/full").expect("a full disk").into()
}

#[test]
fn a_log_on_a_full_disk_ends_neither_program() {
    let port = free_port();
    let target = target_by(port, &[], full_disk);
    assert!(serves(port));
    let disk = nbd(port, &[], full_disk);
    ends_in_order(target);
    let target = target_by(port, &[], full_disk);
    assert!(nbd_answers(&disk));
    ends_in_order(disk);
    ends_in_order(target);
}

#[test]
fn the_reader_of_the_log_may_go_away() {
    let port = free_port();
    let closed = |_: &Path| {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        writer.into()
    };
    let target = target_by(port, &[], closed);
    let disk = nbd(port, &[], closed);
    assert!(serves(port));
    ends_in_order(target);
    let target = target_by(port, &[], closed);
    assert!(serves(port) && nbd_answers(&disk));
    ends_in_order(disk);
    ends_in_order(target);
}

/// A pipe that has no room for another byte, and its reader.
fn full_pipe() -> (std::io::PipeReader, Stdio) {
    use std::io::Write as _;
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    let capacity =
        usize::try_from(fcntl(&writer, FcntlArg::F_GETPIPE_SZ).expect("its size")).expect("a size");
    writer.write_all(&vec![b'.'; capacity]).expect("room for so much");
    (reader, writer.into())
}

#[test]
fn a_reader_that_stalls_blocks_nobody_and_reads_later_how_much_it_has_missed() {
    let port = free_port();
    let (mut reader, log) = full_pipe();
    // Details are not folded, so that the queue is full soon.
    let target = target_by(port, &["env", "RUST_LOG=debug"], |_| log);
    let (_stalls, log) = full_pipe();
    let disk = nbd(port, &["env", "RUST_LOG=debug"], |_| log);
    for _ in 0..1000 {
        refused::connect(port, (0, 0xffff, 32), 9, "nqn.2026-11.org.ringfab:unknown", NQN);
    }
    assert!(serves(port) && nbd_answers(&disk));
    // The end does not wait for the reader either.
    ends_in_order(disk);
    let reading = std::thread::spawn(move || {
        let mut text = String::new();
        reader.read_to_string(&mut text).map(|_| text)
    });
    ends_in_order(target);
    let text = reading.join().expect("the reader").expect("text");
    assert!(text.contains("lines of the log were lost: they came faster"), "{} bytes", text.len());
    assert!(text.lines().any(|line| line.ends_with(" stopped")), "{:?}", text.lines().last());
}

#[test]
fn the_journal_gets_priorities_and_no_times() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = fs::File::create(folder.path().join("log")).expect("a log");
    let place = file.metadata().expect("its place");
    let stream = format!("JOURNAL_STREAM={}:{}", place.dev(), place.ino());
    let subsystem = format!("[[subsystem]]\nnqn = {NQN:?}\nallow_any_host = true\n");
    let command = serve_command(&folder, free_port(), &["env", &stream], &subsystem);
    let target = Service::start_command(folder, command, file.into());
    assert!(await_line(&target, "listening").starts_with("<6>ringfab_target"), "{}", target.log());
    // The stream of another process is no journal of ours.
    let target = target_by(free_port(), &["env", &stream], log_file);
    assert!(await_line(&target, "listening").contains("Z  INFO ringfab_target"), "{}", target.log());
}

#[test]
fn a_filter_that_would_silence_everything_is_told_and_left_out() {
    let target = target_by(free_port(), &["env", "RUST_LOG=loud"], log_file);
    let line = await_line(&target, "RUST_LOG");
    assert!(line.contains("WARN") && line.contains("names `loud`, which is neither a level"), "{line}");
    await_line(&target, "listening");
    let said = ringfab(&["list", &url(free_port()), "--ctrl-loss-timeout", "0s"], Some("loud"));
    assert!(String::from_utf8_lossy(&said.stderr).contains("RUST_LOG names `loud`"), "{said:?}");
}

#[test]
fn of_a_request_the_environment_and_the_configuration_the_first_says_what_is_logged() {
    let folder = tempfile::tempdir().expect("a folder");
    let subsystem = format!("[[subsystem]]\nnqn = {NQN:?}\nallow_any_host = true\n");
    let command = serve_command(&folder, free_port(), &["env", "RUST_LOG=error"], &subsystem);
    let (file, socket) = (folder.path().join("target.toml"), folder.path().join("control"));
    let text = fs::read_to_string(&file).expect("a configuration");
    let with_socket = text.replace("enabled = false", &format!("socket = {socket:?}"));
    fs::write(&file, with_socket).expect("a configuration");
    let log = log_file(folder.path());
    let target = Service::start_command(folder, command, log);
    let ask = |arguments: &[&str]| {
        let mut ask = Command::new(program("ringfab-target"));
        let output = ask.args(arguments).arg("--socket").arg(&socket).output().expect("it runs");
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
    };
    ringfab_tests::wait_until("it answers", || ask(&["status"]).contains("SUBSYSTEM"));
    // The environment goes before the configuration, which has "info".
    assert!(ask(&["status"]).contains("the log has \"error\", by RUST_LOG"), "{}", ask(&["status"]));
    assert_eq!(target.log(), "");
    // A request goes before both, and is compared with what is in force.
    assert_eq!(ask(&["log", "info"]), "~ target.log: \"error\" (RUST_LOG) -> \"info\"\n");
    let line = await_line(&target, "the log has another filter");
    assert!(line.contains("filter=\"info\" from=\"request\""), "{line}");
    assert_eq!(ask(&["log", "info"]), "nothing is different\n");
    assert!(ask(&["status"]).contains("the log has \"info\", by request"));
    let said = ask(&["log", "debug"]);
    assert!(said.starts_with("~ target.log: \"info\" -> \"debug\"\nnote: 1 change is not in"), "{said}");
    for (filter, why) in [
        ("", "is empty"),
        ("ringfab_targt=debug", "did you mean ringfab_target?"),
        ("ringfabtarg_t=debug", "did you mean ringfab_target?"),
    ] {
        let said = ask(&["log", filter]);
        assert!(said.contains(why), "{filter:?}: {said}");
    }
    assert!(ask(&["status"]).contains("the log has \"debug\", by request"), "nothing has changed it");
    // A reload has what a start has.
    assert_eq!(ask(&["reload"]), "~ target.log: \"debug\" -> \"info\"\n");
    assert!(ask(&["status"]).contains("the log has \"error\", by RUST_LOG"));
    let before = target.log().len();
    ask(&["host", "kick", "nqn.2026-11.org.ringfab:nobody"]);
    assert!(ask(&["status"]).contains("SUBSYSTEM") && target.log().len() == before, "{}", target.log());
}

#[test]
fn a_reader_of_what_is_printed_may_go_away() {
    // As every program does, they end by SIGPIPE where what they print is what they are run for.
    let ends = [
        ("ringfab", "--help", Err(Signal::SIGPIPE)),
        ("ringfab-target", "--help", Err(Signal::SIGPIPE)),
        ("ringfab", "list", Err(Signal::SIGPIPE)),
        ("ringfab", "id-ctrl", Ok(2)),
    ];
    for (name, argument, end) in ends {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let errors = writer.try_clone().expect("a second end");
        let status = Command::new(program(name)).arg(argument).stdout(writer).stderr(errors).status();
        let status = status.expect("it runs");
        let ended = status.code().ok_or(status.signal());
        assert_eq!(ended, end.map_err(|signal: Signal| Some(signal as i32)), "{name} {argument}");
    }
    let folder = tempfile::tempdir().expect("a folder");
    drop(serve_command(
        &folder,
        free_port(),
        &[],
        &format!("[[subsystem]]\nnqn = {NQN:?}\nallow_any_host = true\n"),
    ));
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let checked = Command::new(program("ringfab-target"))
        .arg("check")
        .arg(folder.path().join("target.toml"))
        .stdout(writer)
        .status();
    assert_eq!(checked.expect("it runs").signal(), Some(Signal::SIGPIPE as i32));
}

#[test]
fn a_service_whose_standard_output_cannot_be_written_serves() {
    let port = free_port();
    let target = target_by(port, &[], log_file);
    let disk = nbd(port, &["bash", "-c", "exec \"$0\" \"$@\" >/dev/full"], log_file);
    assert!(await_line(&disk, "No space left").contains("WARN"));
    assert!(nbd_answers(&disk));
    ends_in_order(disk);
    ends_in_order(target);
}
