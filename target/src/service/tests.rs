//! The service with cores that do nothing but end when they are told.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};

use ringfab_process::signals::SignalEvent;

use super::*;

/// Cores that end at once, never, or by an error.
struct Pretend {
    addresses: Vec<SocketAddr>,
    drained: AtomicBool,
    ends: Ends,
}

#[derive(Clone, Copy, PartialEq)]
enum Ends {
    WhenDrained,
    Never,
    ByAnError,
}

static JOINED: AtomicBool = AtomicBool::new(false);
static RELOADS: AtomicUsize = AtomicUsize::new(0);

impl Running for Pretend {
    fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    fn monitors(&self) -> &[Monitor] {
        &[]
    }

    fn cores(&self) -> Cores {
        Cores::default()
    }

    fn drain(&self, _limit: Duration) {
        self.drained.store(true, Ordering::Relaxed);
    }

    fn is_any_finished(&self) -> bool {
        self.is_finished()
    }

    fn is_finished(&self) -> bool {
        match self.ends {
            Ends::WhenDrained => self.drained.load(Ordering::Relaxed),
            Ends::Never => false,
            Ends::ByAnError => true,
        }
    }

    fn join(self) -> io::Result<()> {
        JOINED.store(true, Ordering::Relaxed);
        if self.ends == Ends::ByAnError { Err(io::Error::other("broken ring")) } else { Ok(()) }
    }
}

fn run(
    ends: Ends,
    drain_timeout: Duration,
    signals: impl FnOnce(Sender<SignalEvent>),
) -> Result<(), ServeError> {
    let text = include_str!("../../../configs/minimal.toml");
    let mut config = Config::parse(text, "minimal.toml").unwrap();
    config.target.drain_timeout = drain_timeout;
    let target = Target::new(&config, &Identity::from_seed([1; 32])).unwrap();
    let (sender, received) = mpsc::channel();
    signals(sender);
    let running = Pretend { addresses: Vec::new(), drained: AtomicBool::new(false), ends };
    let count = || {
        RELOADS.fetch_add(1, Ordering::Relaxed);
    };
    watch(running, &target, &|| drain_timeout, &Signals::from_channel(received), count, |_| {})
}

#[test]
fn a_signal_drains_the_cores_and_ends_in_order() {
    let ended = run(Ends::WhenDrained, Duration::from_secs(5), |signals| {
        signals.send(SignalEvent::End("SIGTERM")).unwrap();
    });
    assert!(ended.is_ok());
    assert!(JOINED.load(Ordering::Relaxed));
}

#[test]
fn a_hang_up_asks_for_a_reload_and_ends_nothing() {
    let ended = run(Ends::WhenDrained, Duration::from_secs(5), |signals| {
        signals.send(SignalEvent::HangUp).unwrap();
        signals.send(SignalEvent::HangUp).unwrap();
        signals.send(SignalEvent::End("SIGTERM")).unwrap();
    });
    assert!(ended.is_ok());
    assert_eq!(RELOADS.load(Ordering::Relaxed), 2);
}

#[test]
fn a_second_signal_ends_at_once() {
    let ended = run(Ends::Never, Duration::from_secs(3600), |signals| {
        signals.send(SignalEvent::End("SIGTERM")).unwrap();
        signals.send(SignalEvent::End("SIGINT")).unwrap();
    });
    assert!(matches!(ended, Err(ServeError::Interrupted)));
}

#[test]
fn cores_that_do_not_end_are_left_behind_after_the_limit() {
    let start = Instant::now();
    let ended = run(Ends::Never, Duration::ZERO, |signals| {
        signals.send(SignalEvent::End("SIGTERM")).unwrap();
        // The channel stays open, as that of the signal thread does.
        std::mem::forget(signals);
    });
    assert!(matches!(ended, Err(ServeError::DrainTimeout)));
    assert!(start.elapsed() >= DRAIN_GRACE);
}

#[test]
fn a_core_that_fails_ends_the_service_with_its_error() {
    let ended = run(Ends::ByAnError, Duration::ZERO, std::mem::forget).unwrap_err();
    assert_eq!(ended.to_string(), "a core has failed: broken ring");
    assert_eq!(ended.exit_code(), 1);
}

#[test]
fn a_wrong_configuration_ends_before_anything_is_opened() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("target.toml");
    std::fs::write(&config, "[target]\nstate_dir = \"state\"\n").unwrap();
    let options = ServeOptions { config, ready_file: None, log_format: None };
    let error =
        serve(&options, |_, _| -> io::Result<Pretend> { unreachable!("nothing may start") }).unwrap_err();
    assert_eq!(error.exit_code(), 2);
    assert_eq!(error.to_string().lines().count(), 3, "{error}");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
}
