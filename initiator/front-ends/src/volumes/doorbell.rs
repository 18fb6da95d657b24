//! Signals for the watch, which also wake it.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use nix::fcntl::OFlag;
use nix::sys::signal::Signal;
use nix::unistd::{pipe2, read, write};

/// Signals for the watch, which also wake it.
pub(super) struct Doorbell {
    signals: Mutex<VecDeque<Signal>>,
    inside: OwnedFd,
    outside: OwnedFd,
}

impl Doorbell {
    pub(super) fn new() -> io::Result<Self> {
        let (inside, outside) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        Ok(Self { signals: Mutex::default(), inside, outside })
    }

    pub(super) fn ring(&self, signal: Signal) {
        self.signals.lock().unwrap_or_else(PoisonError::into_inner).push_back(signal);
        // A full pipe wakes as well.
        let _full = write(&self.outside, &[0]);
    }

    pub(super) fn take(&self) -> VecDeque<Signal> {
        let mut bytes = [0; 64];
        while read(&self.inside, &mut bytes).is_ok_and(|count| count == bytes.len()) {}
        std::mem::take(&mut *self.signals.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What can be read when it has rung.
    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.inside.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::*;

    #[test]
    fn a_signal_wakes_and_is_taken_once() {
        let doorbell = Doorbell::new().expect("a pipe");
        assert!(doorbell.take().is_empty());
        doorbell.ring(Signal::SIGTERM);
        let ready = PollFd::new(doorbell.as_fd(), PollFlags::POLLIN);
        assert_eq!(poll(&mut [ready], PollTimeout::ZERO), Ok(1));
        assert_eq!(doorbell.take(), [Signal::SIGTERM]);
        let quiet = PollFd::new(doorbell.as_fd(), PollFlags::POLLIN);
        assert_eq!(poll(&mut [quiet], PollTimeout::ZERO), Ok(0));
        assert!(doorbell.take().is_empty());
    }
}
