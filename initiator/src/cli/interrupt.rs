//! SIGINT and SIGTERM: the first ends every wait, the second the process. SIGHUP ends what a terminal was used for, and no
//! service.

use std::process;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use ringfab_initiator::blocking::CancelToken;
use ringfab_process::log;
use ringfab_process::signals::{self, Heard};
use ringfab_reactor::Waker;

/// Tells all parts of a command that it should end.
#[derive(Clone)]
pub(crate) struct Interrupt {
    cancel: CancelToken,
    listeners: Arc<Mutex<Vec<Listener>>>,
}

/// Woken or called at the first signal.
enum Listener {
    Loop(Waker),
    Call(Box<dyn FnOnce() + Send>),
}

/// What a terminal that goes away does to a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HangUp {
    /// It ends, unless it was started by `nohup`.
    End,
    /// It goes on: others use what it serves.
    Survive,
}

/// A command was ended by a signal.
#[derive(Debug, thiserror::Error)]
#[error("cancelled")]
pub(crate) struct Cancelled;

impl Interrupt {
    /// Takes the signals over.
    ///
    /// # Errors
    /// When the system has no thread left.
    pub(crate) fn install(hang_up: HangUp) -> Result<Self> {
        let this = Self::idle();
        let heard = this.clone();
        signals::listen(move |signal| heard.hear(signal, hang_up)).context("start the thread for signals")?;
        Ok(this)
    }

    /// One that no signal reaches.
    pub(crate) fn idle() -> Self {
        Self { cancel: CancelToken::new(), listeners: Arc::default() }
    }

    /// Wakes this loop at the first signal.
    pub(crate) fn wake(&self, waker: Waker) {
        self.add(Listener::Loop(waker));
    }

    /// Calls this at the first signal, from another thread.
    pub(crate) fn call(&self, call: impl FnOnce() + Send + 'static) {
        self.add(Listener::Call(Box::new(call)));
    }

    /// Whether a signal came.
    pub(crate) fn came(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// An error if a signal came.
    pub(crate) fn check(&self) -> Result<()> {
        if self.came() { Err(Cancelled.into()) } else { Ok(()) }
    }

    /// For calls of the library.
    pub(crate) fn token(&self) -> CancelToken {
        self.cancel.clone()
    }

    fn add(&self, listener: Listener) {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner).push(listener);
        if self.came() {
            self.tell();
        }
    }

    fn hear(&self, heard: Heard, hang_up: HangUp) {
        let signal = match (heard, hang_up) {
            (Heard::End(name), _) => name,
            (Heard::HangUp, HangUp::End) => "SIGHUP",
            (Heard::HangUp, HangUp::Survive) => {
                return tracing::info!(signal = "SIGHUP", "the terminal has gone; still serving");
            }
        };
        if self.came() {
            log::flush();
            process::exit(i32::from(super::EXIT_CANCELLED));
        }
        tracing::info!(signal, "ending; a second signal ends at once");
        self.cancel.cancel();
        self.tell();
    }

    fn tell(&self) {
        let listeners = std::mem::take(&mut *self.listeners.lock().unwrap_or_else(PoisonError::into_inner));
        for listener in listeners {
            match listener {
                Listener::Loop(waker) => waker.wake(),
                Listener::Call(call) => call(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_listener_that_comes_after_the_signal_is_told_at_once() {
        let interrupt = Interrupt::idle();
        let (sender, receiver) = mpsc::channel();
        let early = sender.clone();
        interrupt.call(move || early.send("early").expect("a receiver"));
        assert!(receiver.try_recv().is_err());
        interrupt.cancel.cancel();
        interrupt.tell();
        interrupt.call(move || sender.send("late").expect("a receiver"));
        assert_eq!(receiver.iter().collect::<Vec<_>>(), ["early", "late"]);
        assert!(interrupt.check().expect_err("cancelled").is::<Cancelled>());
    }
}
