//! The automaton of a server's handshake: its states, the events, and the step that follows.

use crate::event::Event;

/// Where a handshake is, on the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Nothing has come. The client begins.
    AwaitClientHello,
    /// The client was asked for a share of another group.
    AwaitSecondClientHello,
    /// Everything is sent, and the client's proof is missing. What comes is encrypted.
    AwaitFinished,
    /// Over.
    Complete,
}

/// What follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Choose a key and a group of what the client offers.
    Choose,
    /// Check the client's proof.
    Finish,
    /// Nothing.
    Ignore,
    /// Refuse: it is not the turn of it.
    Refuse,
}

impl State {
    /// What it waits for, as errors call it.
    pub(crate) const fn awaited(self) -> &'static str {
        match self {
            Self::AwaitClientHello | Self::AwaitSecondClientHello => "ClientHello",
            Self::AwaitFinished => "Finished",
            Self::Complete => "nothing",
        }
    }
}

/// With which step a handshake in a state continues after an event.
pub(super) const fn next(state: State, event: Event) -> Step {
    match (state, event) {
        (State::AwaitClientHello | State::AwaitSecondClientHello, Event::ClientHello) => Step::Choose,
        (State::AwaitFinished, Event::Finished) => Step::Finish,
        (State::AwaitSecondClientHello | State::AwaitFinished, Event::ChangeCipherSpec) => Step::Ignore,
        _ => Step::Refuse,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_automaton_of_a_server_is_this_one() {
        use State as S;
        use Step::{Choose, Finish, Ignore as ignore, Refuse as no};
        #[rustfmt::skip]
        let table = [
            // ClientHello, ServerHello, HelloRetryRequest, EncryptedExtensions, Certificates, Finished, Later, Foreign,
            // ChangeCipherSpec, Data
            (S::AwaitClientHello, [Choose, no, no, no, no, no, no, no, no, no]),
            (S::AwaitSecondClientHello, [Choose, no, no, no, no, no, no, no, ignore, no]),
            (S::AwaitFinished, [no, no, no, no, no, Finish, no, no, ignore, no]),
            (S::Complete, [no, no, no, no, no, no, no, no, no, no]),
        ];
        for (state, expected) in table {
            assert_eq!(Event::ALL.map(|event| next(state, event)), expected, "{state:?}");
        }
    }
}
