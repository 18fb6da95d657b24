//! Readers that go away.

use std::io::{Read as _, pipe};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;

use super::{ringfab, ringfab_target, target};

/// Runs a command whose reader reads so many bytes of the output and goes away; with none, it has gone before. The
/// command has to end by SIGPIPE without a word.
fn ends_quietly(command: &mut Command, bytes: usize) {
    let (reader, writer) = pipe().expect("a pipe");
    let mut reader = (bytes > 0).then_some(reader);
    let mut child = command.stdout(writer).stderr(Stdio::piped()).spawn().expect("it runs");
    command.stdout(Stdio::null());
    if let Some(reader) = &mut reader {
        reader.read_exact(&mut vec![0; bytes]).expect("as much as that");
    }
    drop(reader);
    let mut said = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut said).expect("text");
    let status = child.wait().expect("it ends");
    assert_eq!(said, "", "{command:?}");
    assert_eq!(status.signal(), Some(Signal::SIGPIPE as i32), "{command:?}: {status}");
}

#[test]
fn a_command_whose_reader_has_gone_ends_quietly() {
    let (_target, url) = target();
    ends_quietly(&mut ringfab(&["list", &url]), 0);
    ends_quietly(&mut ringfab(&["--json", "id-ctrl", &url]), 0);
    ends_quietly(&mut ringfab(&["--help"]), 0);
    ends_quietly(&mut ringfab_target(&["--help"]), 0);
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/../configs/minimal.toml");
    ends_quietly(&mut ringfab_target(&["check", config]), 0);
}

#[test]
fn a_copy_ends_when_its_reader_has_enough() {
    let (target, url) = target();
    // More than a pipe takes.
    ends_quietly(&mut ringfab(&["read", &url, "--nsid", "1"]), 10);
    // It has detached in order: nobody is connected.
    ringfab_tests::wait_until("the host has gone", || target.usage().iter().all(|core| core.queues == 0));
}
