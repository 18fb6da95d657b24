//! Signals as messages.

use std::io;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use ringfab_process::signals::{self, Heard};

/// Takes the signals that mean something to the service.
#[derive(Debug)]
pub(super) struct Signals {
    heard: Receiver<Heard>,
}

impl Signals {
    /// Takes them over from the system.
    pub(super) fn catch() -> io::Result<Self> {
        let (sender, heard) = mpsc::channel();
        signals::listen(move |signal| {
            // The service ends, and hears nothing any more.
            let _ends = sender.send(signal);
        })?;
        Ok(Self { heard })
    }

    /// The next signal that asks for something, if one comes in time.
    pub(super) fn wait(&self, timeout: Duration) -> Option<Heard> {
        self.heard.recv_timeout(timeout).ok()
    }

    #[cfg(test)]
    pub(super) fn from_channel(heard: Receiver<Heard>) -> Self {
        Self { heard }
    }
}
