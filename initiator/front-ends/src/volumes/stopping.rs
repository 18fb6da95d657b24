//! Whether the machine is about to end. Nobody tells the process of a mount: the service manager unmounts the file
//! system and waits.

use std::path::Path;
use std::time::{Duration, Instant};

use super::child::Running;

/// Where systemd is.
const SYSTEMD: &str = "/run/systemd/system";
/// From one question to the next.
const ASK: Duration = Duration::from_secs(3);
/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(10);
/// The answer while all units are being stopped (systemctl(1), is-system-running).
const STOPPING: &str = "stopping";

/// What is known of the end of the machine.
pub(super) struct Stopping {
    is_so: bool,
    asked: Option<Running>,
    next: Instant,
    /// What says how the system is; none where there is no systemd.
    program: Option<&'static str>,
}

impl Stopping {
    /// Nothing is known so far.
    pub(super) fn new() -> Self {
        Self::with(Path::new(SYSTEMD).exists().then_some("systemctl"))
    }

    fn with(program: Option<&'static str>) -> Self {
        Self { is_so: false, asked: None, next: Instant::now(), program }
    }

    /// Whether all units are being stopped, as far as is known. It asks now and then, and waits for no answer.
    pub(super) fn is_so(&mut self) -> bool {
        let Some(program) = self.program.filter(|_| !self.is_so) else { return self.is_so };
        if let Some(asked) = &mut self.asked {
            match asked.poll() {
                Ok(Some(ended)) => {
                    self.is_so = ended.stdout.trim() == STOPPING;
                    self.asked = None;
                }
                Ok(None) if asked.age() < ANSWER => {}
                failed => {
                    tracing::debug!(?failed, "the service manager does not say how the system is");
                    asked.kill();
                    self.asked = None;
                }
            }
        } else if Instant::now() >= self.next {
            self.next = Instant::now() + ASK;
            self.asked = Running::start(program, &["is-system-running"])
                .inspect_err(|error| tracing::debug!("{error:#}"))
                .ok();
        }
        self.is_so
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// systemctl says it, and exits with an error, since that is not `running`.
    #[test]
    fn a_system_that_stops_says_so() {
        let folder = tempfile::tempdir().expect("a folder");
        let program = folder.path().join("systemctl");
        std::fs::write(&program, "#!/bin/sh\n[ $1 = is-system-running ] && echo stopping\nexit 1\n")
            .expect("written");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&program, mode).expect("a program");
        let program: &'static str = program.display().to_string().leak();
        let (mut stopping, until) = (Stopping::with(Some(program)), Instant::now() + Duration::from_secs(60));
        while !stopping.is_so() {
            assert!(Instant::now() < until, "it says so");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(stopping.is_so(), "once is enough");
    }

    #[test]
    fn a_system_that_does_not_stop_is_asked_again() {
        // It repeats what it is asked.
        let mut running = Stopping::with(Some("echo"));
        let until = Instant::now() + Duration::from_secs(60);
        let mut answers = 0;
        while answers < 2 {
            assert!(!running.is_so() && Instant::now() < until);
            let waited = running.asked.is_some();
            if waited {
                while running.asked.is_some() {
                    assert!(!running.is_so() && Instant::now() < until);
                    std::thread::sleep(Duration::from_millis(10));
                }
                answers += 1;
                // As if the time had passed.
                running.next = Instant::now();
            }
        }
        assert!(!Stopping::with(None).is_so());
        assert!(!Stopping::with(Some("no-such-program")).is_so());
    }
}
