//! Messages between cores and from the control plane.

use std::sync::Arc;
use std::sync::mpsc;

/// Wakes a reactor from any thread. Waking one that is awake costs an exchange on one flag.
#[derive(Clone)]
pub struct Waker(pub(crate) Arc<dyn Wake>);

/// How a backend is woken.
pub(crate) trait Wake: Send + Sync {
    fn wake(&self);
}

impl Waker {
    /// Makes the reactor's current or next [`turn`](crate::Reactor::turn) return without sleeping.
    pub fn wake(&self) {
        self.0.wake();
    }
}

/// A channel whose receiver sits in the loop that `waker` wakes.
pub fn mailbox<M: Send>(waker: Waker) -> (MailboxSender<M>, MailboxReceiver<M>) {
    let (sender, receiver) = mpsc::channel();
    (MailboxSender { sender, waker }, MailboxReceiver { receiver })
}

/// The sending end; clone it for every thread that sends.
pub struct MailboxSender<M> {
    sender: mpsc::Sender<M>,
    waker: Waker,
}

impl<M: Send> MailboxSender<M> {
    /// Sends a message and wakes the receiver.
    ///
    /// # Errors
    /// Gives the message back when the receiver is gone.
    pub fn send(&self, message: M) -> Result<(), M> {
        self.sender.send(message).map_err(|error| error.0)?;
        self.waker.wake();
        Ok(())
    }
}

impl<M> Clone for MailboxSender<M> {
    fn clone(&self) -> Self {
        Self { sender: self.sender.clone(), waker: self.waker.clone() }
    }
}

/// The receiving end.
#[derive(Debug)]
pub struct MailboxReceiver<M> {
    receiver: mpsc::Receiver<M>,
}

impl<M> MailboxReceiver<M> {
    /// The next message, if there is one. Never waits.
    pub fn try_receive(&mut self) -> Option<M> {
        self.receiver.try_recv().ok()
    }
}
