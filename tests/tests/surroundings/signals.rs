//! Signals whose default is the end of a process.

use super::*;

/// Those that mean nothing to a service, or that it survives, as `kill` knows them; real-time signals have numbers
/// only.
const SURVIVED: [&str; 15] = [
    "HUP", "USR1", "USR2", "PIPE", "ALRM", "VTALRM", "PROF", "POLL", "XCPU", "XFSZ", "PWR", "STKFLT", "34",
    "41", "64",
];

#[test]
fn no_signal_but_those_that_ask_for_it_ends_a_service() {
    let port = free_port();
    let target = target_by(port, &[], log_file);
    let disk = nbd(port, &[], log_file);
    for signal in SURVIVED {
        target.signal(signal);
        disk.signal(signal);
    }
    let line = await_line(&target, "the configuration is reloaded");
    assert!(line.contains("by=SIGHUP") || line.contains("by=\"SIGHUP\""), "{line}");
    assert!(await_line(&target, "SIGXFSZ").contains("the limit on the size of files"));
    assert!(serves(port) && nbd_answers(&disk));
    ends_in_order(disk);
    ends_in_order(target);
}

#[test]
fn a_mask_that_a_parent_has_left_keeps_no_signal_away() {
    let mask = ["env", "--block-signal=TERM", "--block-signal=INT"];
    if !Command::new(mask[0]).args([mask[1], "true"]).status().is_ok_and(|status| status.success()) {
        return ringfab_tests::not_run("this env cannot block signals");
    }
    let port = free_port();
    let target = target_by(port, &mask, log_file);
    let disk = nbd(port, &mask, log_file);
    // What a program of ours starts has the mask of the thread that starts it.
    for service in [&target, &disk] {
        let threads = fs::read_dir(format!("/proc/{}/task", service.id())).expect("its threads");
        for thread in threads.map(|thread| thread.expect("a thread").path()) {
            // A thread may have ended meanwhile. One that has a mask of its own has chosen it.
            let Ok(status) = fs::read_to_string(thread.join("status")) else { continue };
            assert!(!status.contains("SigBlk:\t0000000000004002\n"), "{status}");
        }
    }
    ends_in_order(disk);
    ends_in_order(target);
}

/// A process that is killed when it is not ended otherwise.
struct Measurement(std::process::Child);

impl From<std::process::Child> for Measurement {
    fn from(child: std::process::Child) -> Self {
        Self(child)
    }
}

impl Drop for Measurement {
    fn drop(&mut self) {
        // It is an error that it has ended already, and that is what was wanted.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A measurement that would take an hour.
fn bench(port: u16, wraps: &[&str]) -> Measurement {
    let arguments = ["bench", &url(port), "--time", "3600s", "--warmup", "0s", "-v"];
    let mut command = wrapped(wraps, "ringfab", &arguments);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts")
        .into()
}

fn send(child: &Measurement, signal: nix::sys::signal::Signal) {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(child.0.id().cast_signed()), signal)
        .expect("it is there");
}

fn ends_with(mut child: Measurement, code: i32) {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if let Some(status) = child.0.try_wait().expect("its state") {
            return assert_eq!(status.code(), Some(code), "{status}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("it did not end");
}

#[test]
fn a_terminal_that_goes_away_ends_a_measurement_unless_it_was_started_by_nohup() {
    use nix::sys::signal::Signal;
    let port = free_port();
    let target = target_by(port, &[], log_file);
    let (plain, kept) = (bench(port, &[]), bench(port, &["nohup"]));
    let deadline = Instant::now() + PATIENCE;
    while target.log().matches(": connected").count() < 2 {
        assert!(Instant::now() < deadline, "{}", target.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    send(&plain, Signal::SIGHUP);
    send(&kept, Signal::SIGHUP);
    ends_with(plain, 130);
    let mut kept = kept;
    assert!(kept.0.try_wait().expect("its state").is_none(), "nohup keeps it");
    send(&kept, Signal::SIGINT);
    ends_with(kept, 130);
}
