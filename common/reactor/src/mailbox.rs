//! Messages between cores and from the control plane.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;

/// Wakes a reactor from any thread. Waking one that is awake costs an exchange on one flag.
#[derive(Clone)]
pub struct Waker(pub(crate) Arc<dyn Wake>);

/// How a backend is woken.
pub(crate) trait Wake: Send + Sync {
    fn wake(&self);

    /// What a new mailbox wakes instead with each message, and what keeps messages back that are on their way: in a
    /// simulation. Elsewhere a message is there when it was sent.
    fn mailbox(&self) -> Option<(Arc<dyn Wake>, Arc<Gate>)> {
        None
    }
}

/// How many messages of a mailbox have arrived.
#[derive(Debug, Default)]
pub(crate) struct Gate(AtomicU64);

impl Gate {
    /// So many have, or more.
    pub(crate) fn open_until(&self, count: u64) {
        self.0.fetch_max(count, Ordering::AcqRel);
    }
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
    let (waker, gate) = match waker.0.mailbox() {
        Some((wake, gate)) => (Waker(wake), Some(gate)),
        None => (waker, None),
    };
    (MailboxSender { sender, waker }, MailboxReceiver { receiver, gate, taken: 0 })
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
    /// Keeps messages back, and how many it has let through.
    gate: Option<Arc<Gate>>,
    taken: u64,
}

impl<M> MailboxReceiver<M> {
    /// The next message, if there is one. Never waits.
    pub fn try_receive(&mut self) -> Option<M> {
        if let Some(gate) = &self.gate {
            if gate.0.load(Ordering::Acquire) <= self.taken {
                return None;
            }
            self.taken += 1;
        }
        self.receiver.try_recv().ok()
    }
}
