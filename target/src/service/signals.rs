//! Signals as messages.

use std::io;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use ringfab_process::signals::{self, SignalEvent};

/// Takes the signals that mean something to the service.
#[derive(Debug)]
pub(super) struct Signals {
    events: Receiver<SignalEvent>,
}

impl Signals {
    /// Takes them over from the system.
    pub(super) fn catch() -> io::Result<Self> {
        let (sender, events) = mpsc::channel();
        signals::listen(move |signal| {
            // The service ends, and hears nothing any more.
            let _ends = sender.send(signal);
        })?;
        Ok(Self { events })
    }

    /// The next signal that asks for something, if one comes in time.
    pub(super) fn wait(&self, timeout: Duration) -> Option<SignalEvent> {
        self.events.recv_timeout(timeout).ok()
    }

    #[cfg(test)]
    pub(super) fn from_channel(events: Receiver<SignalEvent>) -> Self {
        Self { events }
    }
}
