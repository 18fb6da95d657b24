//! By which way the kernel's requests come.

use std::fs::{self, OpenOptions};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ringfab_tests::{PATIENCE, not_run};

/// The kernel's switch for FUSE over io_uring, which is off where nobody has set it.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// Tests for which the switch is on, and whether they found it off.
static USERS: Mutex<(usize, bool)> = Mutex::new((0, false));

/// One of the two ways.
pub(crate) enum Way {
    Device,
    IoUring(Switched),
}

impl Way {
    /// By reading and writing `/dev/fuse`; `None` where this process may not mount.
    pub(crate) fn device() -> Option<Self> {
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse");
        if let Err(error) = device {
            not_run(&format!("/dev/fuse cannot be opened: {error}"));
            return None;
        }
        Some(Self::Device)
    }

    /// Over io_uring; `None` also where the kernel does not have it or this process may not switch it on.
    pub(crate) fn io_uring() -> Option<Self> {
        Self::device()?;
        match Switched::on() {
            Ok(switched) => Some(Self::IoUring(switched)),
            Err(error) => {
                not_run(&format!("FUSE over io_uring: {SWITCH}: {error}"));
                None
            }
        }
    }

    /// What tells `ringfab fuse` to use it.
    pub(crate) fn option(&self) -> &'static str {
        match self {
            Self::Device => "--io-uring=never",
            Self::IoUring(_) => "--io-uring=always",
        }
    }
}

/// The switch is on as long as one of these lives; then it is as it was found.
pub(crate) struct Switched(());

impl Switched {
    fn on() -> std::io::Result<Self> {
        let mut users = users();
        if users.0 == 0 {
            users.1 = fs::read_to_string(SWITCH)?.trim() == "N";
            if users.1 {
                fs::write(SWITCH, "Y")?;
            }
        }
        users.0 += 1;
        Ok(Self(()))
    }
}

impl Drop for Switched {
    fn drop(&mut self) {
        let mut users = users();
        users.0 -= 1;
        if users.0 == 0 && users.1 {
            fs::write(SWITCH, "N").expect("it was switched on the same way");
        }
    }
}

/// Runs something while the kernel does not offer it; `None` where it cannot be switched off.
pub(crate) fn while_off<R>(run: impl FnOnce() -> R) -> Option<R> {
    let deadline = Instant::now() + PATIENCE;
    let mut others = users();
    while others.0 > 0 {
        assert!(Instant::now() < deadline, "other tests take too long");
        drop(others);
        std::thread::sleep(Duration::from_millis(20));
        others = users();
    }
    let was_on = fs::read_to_string(SWITCH).is_ok_and(|value| value.trim() == "Y");
    if was_on && let Err(error) = fs::write(SWITCH, "N") {
        not_run(&format!("without FUSE over io_uring: {SWITCH}: {error}"));
        return None;
    }
    let result = run();
    if was_on {
        fs::write(SWITCH, "Y").expect("it was switched off the same way");
    }
    Some(result)
}

fn users() -> MutexGuard<'static, (usize, bool)> {
    USERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes each function a test by both ways.
macro_rules! by_both_ways {
    ($($name:ident)*) => {
        mod by_device {
            $(#[test]
            fn $name() {
                if let Some(way) = crate::way::Way::device() {
                    super::$name(&way);
                }
            })*
        }
        mod by_io_uring {
            $(#[test]
            fn $name() {
                if let Some(way) = crate::way::Way::io_uring() {
                    super::$name(&way);
                }
            })*
        }
    };
}
pub(crate) use by_both_ways;
