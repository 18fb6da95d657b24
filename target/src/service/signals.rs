//! Signals as messages.

use std::io;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

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

    /// The name of the next signal that asks for the end, if one comes in time.
    pub(super) fn wait(&self, timeout: Duration) -> Option<&'static str> {
        let deadline = Instant::now() + timeout;
        loop {
            match self.events.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok()? {
                SignalEvent::End(name) => return Some(name),
                SignalEvent::HangUp => {
                    tracing::warn!(signal = "SIGHUP", "ignored: the configuration is read at the start only");
                }
            }
        }
    }

    #[cfg(test)]
    pub(super) fn from_channel(events: Receiver<SignalEvent>) -> Self {
        Self { events }
    }
}
