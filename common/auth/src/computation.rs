//! What takes long, as a value that a worker computes.

use std::fmt;
use std::time::Duration;

use rand_core::CryptoRng;

use crate::group::{Offer, Private};
use crate::hash::Hash;
use crate::secret::{Secret, on_clean_stack};

/// An exponentiation, or two. A transaction returns it, waits, and takes the [`Computed`]. A copy of it computes the
/// same.
#[derive(Clone)]
#[must_use = "the transaction waits for it"]
pub struct Computation {
    ticket: Ticket,
    task: Task,
}

/// Which computation it is, so that a late result is not taken for another one's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket(u64);

#[derive(Clone)]
pub(crate) enum Task {
    Offer(Private),
    Answer { private: Private, peer: Vec<u8>, hash: Hash },
    Conclude { offer: Offer, peer: Vec<u8>, hash: Hash },
}

/// What came of a computation.
pub struct Computed {
    ticket: Ticket,
    outcome: Outcome,
}

pub(crate) enum Outcome {
    Offered(Offer),
    Answered {
        value: Vec<u8>,
        session_key: Secret,
    },
    Concluded {
        session_key: Secret,
    },
    /// The peer's value is none of the group.
    InvalidValue,
}

impl Computation {
    pub(crate) fn new(ticket: Ticket, task: Task) -> Self {
        Self { ticket, task }
    }

    /// About how long it takes, so that those that take little need not wait for those that take much.
    pub fn cost(&self) -> Duration {
        match &self.task {
            Task::Offer(private) => private.cost(),
            Task::Answer { private, .. } => 2 * private.cost(),
            Task::Conclude { offer, .. } => offer.cost(),
        }
    }

    /// Computes it, which takes up to 25 milliseconds with ffdhe8192.
    pub fn run(self) -> Computed {
        on_clean_stack(|| self.compute())
    }

    fn compute(self) -> Computed {
        let outcome = match self.task {
            Task::Offer(private) => Outcome::Offered(private.offer()),
            Task::Answer { private, peer, hash } => match private.answer(&peer) {
                Ok(answer) => {
                    Outcome::Answered { value: answer.value, session_key: hash.of(answer.shared.expose()) }
                }
                Err(_) => Outcome::InvalidValue,
            },
            Task::Conclude { offer, peer, hash } => match offer.conclude(&peer) {
                Ok(shared) => Outcome::Concluded { session_key: hash.of(shared.expose()) },
                Err(_) => Outcome::InvalidValue,
            },
        };
        Computed { ticket: self.ticket, outcome }
    }
}

impl Ticket {
    pub(crate) fn new(random: &mut dyn CryptoRng) -> Self {
        Self(random.next_u64())
    }
}

impl Computed {
    /// The outcome, if it is that of the computation with this ticket.
    pub(crate) fn of(self, ticket: Option<Ticket>) -> Option<Outcome> {
        (ticket == Some(self.ticket)).then_some(self.outcome)
    }
}

impl fmt::Debug for Computation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.task {
            Task::Offer(_) => "Computation(Offer)",
            Task::Answer { .. } => "Computation(Answer)",
            Task::Conclude { .. } => "Computation(Conclude)",
        })
    }
}

impl fmt::Debug for Computed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.outcome {
            Outcome::Offered(_) => "Computed(Offered)",
            Outcome::Answered { .. } => "Computed(Answered)",
            Outcome::Concluded { .. } => "Computed(Concluded)",
            Outcome::InvalidValue => "Computed(InvalidValue)",
        })
    }
}
