//! SIGINT and SIGTERM: the first ends every wait, the second the process.

use std::process;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use nix::sys::signal::{SigSet, Signal};
use ringfab_initiator::blocking::CancelToken;
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

/// A command was ended by a signal.
#[derive(Debug, thiserror::Error)]
#[error("cancelled")]
pub(crate) struct Cancelled;

impl Interrupt {
    /// Takes the signals over. It must come before any other thread starts, since they inherit the mask.
    ///
    /// # Errors
    /// When the system has no thread left.
    pub(crate) fn install() -> Result<Self> {
        let mut signals = SigSet::empty();
        signals.add(Signal::SIGINT);
        signals.add(Signal::SIGTERM);
        signals.thread_block().context("block signals")?;
        let this = Self::idle();
        let heard = this.clone();
        std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || heard.listen(signals))
            .context("start the thread for signals")?;
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

    fn listen(&self, signals: SigSet) {
        loop {
            match signals.wait() {
                Ok(_) if self.came() => process::exit(i32::from(super::EXIT_CANCELLED)),
                Ok(signal) => {
                    tracing::info!(%signal, "ending; a second signal ends at once");
                    self.cancel.cancel();
                    self.tell();
                }
                Err(error) => tracing::debug!(%error, "waiting for signals"),
            }
        }
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
