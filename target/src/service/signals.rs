//! SIGTERM and SIGINT as messages.

use std::io;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};

/// Takes the signals that tell the service to stop.
#[derive(Debug)]
pub(super) struct Signals {
    received: Receiver<Signal>,
}

impl Signals {
    /// Blocks the signals in this thread, and so in all that it starts, and takes them in one of their own.
    pub(super) fn catch() -> io::Result<Self> {
        let mut set = SigSet::empty();
        set.add(Signal::SIGTERM);
        set.add(Signal::SIGINT);
        set.thread_block()?;
        let (sender, received) = mpsc::channel();
        let take = move || {
            while let Ok(signal) = set.wait() {
                if sender.send(signal).is_err() {
                    return;
                }
            }
        };
        thread::Builder::new().name("signals".to_owned()).spawn(take)?;
        Ok(Self { received })
    }

    /// The next signal's name, if one comes in time.
    pub(super) fn wait(&self, timeout: Duration) -> Option<&'static str> {
        self.received.recv_timeout(timeout).ok().map(Signal::as_str)
    }

    #[cfg(test)]
    pub(super) fn from_channel(received: Receiver<Signal>) -> Self {
        Self { received }
    }
}
