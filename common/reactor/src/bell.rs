//! Bells: what one core has another one do something by, without a message of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{Completion, MailboxReceiver, MailboxSender, Payload, Token, Waker, mailbox};

/// Completes a token on its reactor whenever it is rung, from any thread. Rung twice before the reactor takes a turn,
/// it completes twice or once.
#[derive(Clone)]
pub struct Bell {
    state: Arc<State>,
    sender: MailboxSender<Arc<State>>,
}

#[derive(Debug)]
struct State {
    token: Token,
    /// It has been rung, and that has not completed.
    rung: AtomicBool,
    silent: AtomicBool,
}

impl Bell {
    /// Rings it. Nothing happens where its reactor has ended.
    pub fn ring(&self) {
        if !self.state.rung.swap(true, Ordering::AcqRel) {
            let _ended = self.sender.send(Arc::clone(&self.state));
        }
    }

    /// Whether both are the same bell.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.state, &other.state)
    }

    /// It completes nothing any more. Called on its reactor's thread, this is so at once.
    pub fn silence(&self) {
        self.state.silent.store(true, Ordering::Release);
    }
}

impl std::fmt::Debug for Bell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Bell").field(&self.state).finish()
    }
}

/// The bells of a reactor.
pub(crate) struct Bells {
    sender: MailboxSender<Arc<State>>,
    receiver: MailboxReceiver<Arc<State>>,
}

impl Bells {
    pub(crate) fn new(waker: Waker) -> Self {
        let (sender, receiver) = mailbox(waker);
        Self { sender, receiver }
    }

    pub(crate) fn bell(&self, token: Token) -> Bell {
        let (rung, silent) = (AtomicBool::new(false), AtomicBool::new(false));
        Bell { state: Arc::new(State { token, rung, silent }), sender: self.sender.clone() }
    }

    /// The next one that was rung.
    pub(crate) fn next(&mut self) -> Option<Completion> {
        loop {
            let state = self.receiver.try_receive()?;
            state.rung.store(false, Ordering::Release);
            if !state.silent.load(Ordering::Acquire) {
                return Some(Completion { token: state.token, result: Ok(0), payload: Payload::None });
            }
        }
    }
}

impl std::fmt::Debug for Bells {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bells").finish_non_exhaustive()
    }
}
