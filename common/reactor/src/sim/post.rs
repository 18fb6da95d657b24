//! Mailboxes of a world. A message between cores is on its way for a while, as if its receiver were busy or its sender
//! had not got so far. Messages of one mailbox arrive in the order in which they were sent. Those of several do not.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::core::PortKey;
use crate::Time;
use crate::mailbox::{Gate, Wake};

/// No port has had a turn yet.
const NOBODY: PortKey = usize::MAX;

/// What was sent since the world last looked. Other threads may send, so that this is shared.
#[derive(Debug)]
pub(super) struct PostOffice {
    posted: Mutex<Vec<Letter>>,
    /// Whose turn it is, or was last.
    turning: AtomicUsize,
}

/// A message that was sent: the mailbox, and which of its messages it is, counted from one.
#[derive(Clone, Debug)]
pub(super) struct Letter {
    pub(super) letter_box: Arc<LetterBox>,
    number: u64,
}

/// A mailbox, as the world sees it.
#[derive(Debug)]
pub(super) struct LetterBox {
    /// Its receiver is there.
    pub(super) port: PortKey,
    gate: Arc<Gate>,
    sent: AtomicU64,
    /// When the last one arrives that is on its way, in nanoseconds.
    last: AtomicU64,
    wanted: Arc<AtomicBool>,
    office: Arc<PostOffice>,
}

/// The sender's end.
struct Slot(Arc<LetterBox>);

impl Default for PostOffice {
    fn default() -> Self {
        Self { posted: Mutex::default(), turning: AtomicUsize::new(NOBODY) }
    }
}

impl PostOffice {
    /// A port has its turn.
    pub(super) fn begin_turn(&self, port: PortKey) {
        self.turning.store(port, Ordering::Relaxed);
    }

    /// Whether something was sent since the last look.
    pub(super) fn has_mail(&self) -> bool {
        !self.posted().is_empty()
    }

    /// What was sent since the last look, in order.
    pub(super) fn collect(&self) -> Vec<Letter> {
        std::mem::take(&mut *self.posted())
    }

    fn posted(&self) -> std::sync::MutexGuard<'_, Vec<Letter>> {
        self.posted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Letter {
    /// When it arrives, if it alone took until `at`: not before the one in front of it.
    pub(super) fn behind_others(&self, at: Time) -> Time {
        let last = self.letter_box.last.load(Ordering::Relaxed).max(at.as_nanos());
        self.letter_box.last.store(last, Ordering::Relaxed);
        Time::from_nanos(last)
    }

    /// It has arrived, and with it all that were sent before it.
    pub(super) fn arrive(&self) {
        self.letter_box.gate.open_until(self.number);
        self.letter_box.wanted.store(true, Ordering::Release);
    }
}

impl LetterBox {
    /// A mailbox of a port, whose loop is told by a flag that it is wanted. Returns its two ends.
    pub(super) fn open(
        port: PortKey,
        wanted: &Arc<AtomicBool>,
        office: &Arc<PostOffice>,
    ) -> (Arc<dyn Wake>, Arc<Gate>) {
        let gate = Arc::<Gate>::default();
        let letter_box = Self {
            port,
            gate: Arc::clone(&gate),
            sent: AtomicU64::new(0),
            last: AtomicU64::new(0),
            wanted: Arc::clone(wanted),
            office: Arc::clone(office),
        };
        (Arc::new(Slot(Arc::new(letter_box))), gate)
    }
}

impl Wake for Slot {
    /// A message was sent. What a port sends to itself is there at once, and all that others have sent before: it looks
    /// into the mailbox until that is empty.
    fn wake(&self) {
        let number = self.0.sent.fetch_add(1, Ordering::Relaxed) + 1;
        let letter = Letter { letter_box: Arc::clone(&self.0), number };
        if self.0.office.turning.load(Ordering::Relaxed) == self.0.port {
            letter.arrive();
        } else {
            self.0.office.posted().push(letter);
        }
    }
}
