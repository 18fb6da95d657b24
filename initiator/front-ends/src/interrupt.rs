//! SIGINT and SIGTERM: the first ends every wait, the second ends the process. SIGHUP ends a command of a terminal, but
//! no service.
//!
//! A command that has not ended [`BACKSTOP`] after the first signal waits for something that cannot be cancelled, a
//! pipe for instance. Then the process ends without detaching. A service calls [`Interrupt::serve`] because it takes
//! longer.

use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use ringfab_initiator::blocking::CancelToken;
use ringfab_process::log;
use ringfab_process::signals::{self, SignalEvent};
use ringfab_reactor::Waker;

/// Tells all parts of a command that it should end.
#[derive(Clone)]
pub struct Interrupt {
    cancel: CancelToken,
    listeners: Arc<Mutex<Vec<Listener>>>,
    /// Whether it is a service that ends in its own time.
    serving: Arc<AtomicBool>,
    /// Who is told of every signal, and decides what it means.
    handler: Arc<Mutex<Option<SignalHandler>>>,
}

/// The exit code of a command that a signal ended.
pub const EXIT_CANCELLED: u8 = 130;

type SignalHandler = Box<dyn FnMut(Signal) + Send>;

/// How long a command may take to end after a signal.
const BACKSTOP: Duration = Duration::from_millis(900);

/// Woken or called at the first signal.
enum Listener {
    Loop(Waker),
    Call(Box<dyn FnOnce() + Send>),
}

/// What a terminal that goes away does to a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HangUp {
    /// It ends, unless it was started by `nohup`.
    End,
    /// It goes on: others use what it serves.
    Survive,
}

/// A command was ended by a signal.
#[derive(Debug, thiserror::Error)]
#[error("cancelled")]
pub struct Cancelled;

impl Interrupt {
    /// Takes the signals over.
    ///
    /// # Errors
    /// When the system has no thread left.
    pub fn install(hang_up: HangUp) -> Result<Self> {
        let this = Self::idle();
        let interrupt = this.clone();
        signals::listen(move |signal| interrupt.on_process_signal(signal, hang_up))
            .context("start the thread for signals")?;
        Ok(this)
    }

    /// One that no signal reaches.
    pub fn idle() -> Self {
        Self {
            cancel: CancelToken::new(),
            listeners: Arc::default(),
            serving: Arc::default(),
            handler: Arc::default(),
        }
    }

    /// Wakes this loop at the first signal.
    pub fn wake(&self, waker: Waker) {
        self.add(Listener::Loop(waker));
    }

    /// Calls this at the first signal, from another thread.
    pub fn call(&self, call: impl FnOnce() + Send + 'static) {
        self.add(Listener::Call(Box::new(call)));
    }

    /// This is a service: it bounds its end itself.
    pub fn serve(&self) {
        self.serving.store(true, Ordering::Release);
    }

    /// This is a service that decides itself what each signal means, the second one, too.
    pub fn handle_signals(&self, mut handler: impl FnMut(Signal) + Send + 'static) {
        self.serve();
        let mut current = self.handler.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_interrupted() {
            handler(Signal::SIGINT);
        }
        *current = Some(Box::new(handler));
    }

    /// Whether a signal came.
    pub fn is_interrupted(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// An error if a signal came.
    pub fn check(&self) -> Result<()> {
        if self.is_interrupted() { Err(Cancelled.into()) } else { Ok(()) }
    }

    /// For calls of the library.
    pub fn token(&self) -> CancelToken {
        self.cancel.clone()
    }

    /// Does what a signal does, but sets no bound to the end: whoever raises it has one.
    pub(crate) fn raise(&self, signal: Signal) {
        let mut handler = self.handler.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.is_interrupted() {
            self.cancel.cancel();
            self.notify();
        }
        if let Some(handler) = handler.as_mut() {
            handler(signal);
        }
    }

    fn add(&self, listener: Listener) {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner).push(listener);
        if self.is_interrupted() {
            self.notify();
        }
    }

    fn on_process_signal(&self, received: SignalEvent, hang_up: HangUp) {
        match (received, hang_up) {
            (SignalEvent::End("SIGTERM"), _) => self.on_signal(Signal::SIGTERM),
            (SignalEvent::End(_), _) => self.on_signal(Signal::SIGINT),
            (SignalEvent::HangUp, HangUp::End) => self.on_signal(Signal::SIGHUP),
            (SignalEvent::HangUp, HangUp::Survive) => {
                tracing::info!(signal = "SIGHUP", "the terminal has gone; still serving");
            }
        }
    }

    fn on_signal(&self, signal: Signal) {
        let mut handler = self.handler.lock().unwrap_or_else(PoisonError::into_inner);
        let first = !self.is_interrupted();
        if first {
            self.cancel.cancel();
            self.notify();
            self.start_backstop();
        }
        match handler.as_mut() {
            Some(handler) => handler(signal),
            None if first => tracing::info!(%signal, "ending; a second signal ends at once"),
            None => exit(),
        }
    }

    fn start_backstop(&self) {
        let serving = self.serving.clone();
        let started = std::thread::Builder::new().name("backstop".to_owned()).spawn(move || {
            std::thread::sleep(BACKSTOP);
            if !serving.load(Ordering::Acquire) {
                tracing::warn!("cancelled; ended without leaving the target in order");
                exit();
            }
        });
        if let Err(error) = started {
            tracing::warn!(%error, "no thread to bound the end; a second signal ends at once");
        }
    }

    fn notify(&self) {
        let listeners = std::mem::take(&mut *self.listeners.lock().unwrap_or_else(PoisonError::into_inner));
        for listener in listeners {
            match listener {
                Listener::Loop(waker) => waker.wake(),
                Listener::Call(call) => call(),
            }
        }
    }
}

/// Ends the process, once the log has been written as far as it can be.
fn exit() -> ! {
    log::flush();
    process::exit(i32::from(EXIT_CANCELLED))
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
        interrupt.notify();
        interrupt.call(move || sender.send("late").expect("a receiver"));
        assert_eq!(receiver.iter().collect::<Vec<_>>(), ["early", "late"]);
        assert!(interrupt.check().expect_err("cancelled").is::<Cancelled>());
    }
}
