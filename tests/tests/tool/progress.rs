//! What is shown while a command works or waits, and what is left when it is interrupted.

use std::fs::File;
use std::io::Write as _;
use std::net::TcpListener;
use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use ringfab_tests::{NQN, file_target, free_port, wait_until};
use serde_json::Value;

use super::screen::Screen;
use super::{err, out, output, ringfab, target};

const PIECE: usize = 1 << 20;

#[test]
fn a_copy_shows_how_far_it_is_and_that_the_target_does_not_answer() {
    let folder = tempfile::tempdir().expect("a folder");
    let image = folder.path().join("image");
    File::create(&image).expect("a file").set_len(64 << 20).expect("as long as that");
    let port = free_port();
    let service = file_target(port, &image);
    let url = format!("nvme+rdma://127.0.0.1:{port}/{NQN}?provider=iwarp");
    let (screen, mut input) = Screen::with_input(120, &mut ringfab(&["write", &url, "--destroy-data", "1"]));
    input.write_all(&vec![1; 2 * PIECE]).expect("it reads");
    screen.wait_for("written 2 MiB, ");
    let target = Pid::from_raw(service.id() as i32);
    kill(target, Signal::SIGSTOP).expect("a process");
    input.write_all(&vec![2; PIECE]).expect("it reads");
    screen.wait_for(": the target has not answered for 2 s; lost after 30 s");
    kill(target, Signal::SIGCONT).expect("a process");
    screen.wait_for("written 3 MiB, ");
    drop(input);
    let (status, text) = screen.end();
    assert!(status.success(), "{text}");
    // The line is removed at the end.
    assert!(text.ends_with("\r\x1b[K"), "{text:?}");
}

#[test]
fn the_end_of_a_copy_says_how_long_it_took_and_how_fast_it_was() {
    let (_target, url) = target();
    let copied = out(&output(&mut ringfab(&["read", &url, "--nsid", "1", "-o", "/dev/null"])));
    assert!(copied.starts_with("1 MiB read in ") && copied.trim_end().ends_with("/s)"), "{copied}");
}

#[test]
fn waiting_for_a_connection_is_told_on_a_terminal() {
    // It accepts, and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = silent.local_addr().expect("an address");
    let nqn = "nqn.2026-11.org.ringfab:silent";
    let url = format!("nvme+tcp://{address}/{nqn}");
    let screen = Screen::start(120, &mut ringfab(&["list", &url]));
    screen.wait_for(&format!("connecting to {nqn} at {address} for 1 s, for at most 60 s"));
    screen.signal(Signal::SIGINT);
    let (status, text) = screen.end();
    assert_eq!(status.code(), Some(130));
    assert!(text.contains("cancelled"), "{text:?}");
}

#[test]
fn a_measurement_that_is_interrupted_keeps_its_result() {
    let (target, url) = target();
    let load = ["bench", &url, "--nsid", "1", "--runtime", "600s", "--warmup", "0s", "--iodepth", "4"];
    let screen = Screen::start(100, &mut ringfab(&load));
    screen.wait_for(" 1 s ");
    screen.signal(Signal::SIGINT);
    let (status, text) = screen.end();
    assert_eq!(status.code(), Some(130), "{text}");
    for part in [" IOPS ", " MiB/s  us: mean ", ", interrupted\n", "mean ", "stdev ", "read latency\n  up to"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    // The same for programs.
    let mut command = ringfab(&load);
    command.arg("--json").stdout(Stdio::piped()).stderr(Stdio::piped());
    let reads = || {
        let status = target.manager().status().expect("a status");
        status.controllers.iter().map(|one| one.total.commands.read).sum::<u64>()
    };
    let child = command.spawn().expect("it runs");
    wait_until("it measures", || reads() > 100);
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).expect("a process");
    let ended = child.wait_with_output().expect("it ends");
    assert_eq!(ended.status.code(), Some(130));
    let value: Value = serde_json::from_slice(&ended.stdout).expect("a document");
    assert_eq!(value["interrupted"], true);
    assert!(value["read"]["count"].as_u64().expect("a number") > 0);
    assert!(value["elapsed_s"].as_f64().expect("a number") < 60.0);
    assert!(err(&ended).ends_with("ringfab: cancelled\n") && !err(&ended).contains("IOPS"), "{ended:?}");
}

#[test]
fn every_io_of_a_measurement_is_in_a_second_and_in_the_histogram() {
    let (_target, url) = target();
    let folder = tempfile::tempdir().expect("a folder");
    let picture = folder.path().join("latency.svg");
    let mut command = ringfab(&["bench", &url, "--nsid", "1", "--time", "2200ms", "--warmup", "100ms"]);
    command.args(["--cores", "2", "--depth", "4", "--json", "--svg"]).arg(&picture);
    let ended = output(&mut command);
    assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
    let value: Value = serde_json::from_slice(&ended.stdout).expect("a document");
    let count = value["read"]["count"].as_u64().expect("a number");
    let buckets = value["read"]["histogram"].as_array().expect("a list");
    assert_eq!(buckets.iter().map(|one| one["count"].as_u64().expect("a number")).sum::<u64>(), count);
    let seconds = value["seconds"].as_array().expect("a list");
    let at: Vec<u64> = seconds.iter().map(|one| one["at_s"].as_u64().expect("a number")).collect();
    // On a busy machine a second may be missed, and is part of the one before.
    assert!(at[0] == 0 && at.len() >= 2 && at.is_sorted_by(|a, b| a < b), "{at:?}");
    let svg = std::fs::read_to_string(&picture).expect("a picture");
    assert!(svg.starts_with("<svg ") && svg.matches("<polyline").count() == 2 && !svg.contains("<script"));
}

#[test]
fn a_choice_that_is_missing_is_named_with_what_there_is() {
    let (_target, url) = target();
    let ended = output(&mut ringfab(&["read", &url, "-o", "/dev/null"]));
    assert_eq!(ended.status.code(), Some(1));
    assert!(err(&ended).contains("choose one with --nsid: 1, 2"), "{ended:?}");
}
