//! The automaton of a client's handshake: its states, the events, and the step that follows.

use crate::event::Event;

/// Where a handshake is, on the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// ClientHello is sent.
    AwaitServerHello,
    /// The second ClientHello is sent, which the server has asked for.
    AwaitSecondServerHello,
    /// The server has chosen, and everything is encrypted from here on.
    AwaitEncryptedExtensions,
    /// Nothing but the server's proof is missing.
    AwaitFinished,
    /// Over.
    Complete,
}

/// What follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Offer the same with another key share.
    Retry,
    /// Make keys with what the server has chosen.
    Agree,
    /// Check the extensions.
    Extensions,
    /// Check the server's proof, and send the own one.
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
            Self::AwaitServerHello | Self::AwaitSecondServerHello => "ServerHello",
            Self::AwaitEncryptedExtensions => "EncryptedExtensions",
            Self::AwaitFinished => "Finished",
            Self::Complete => "nothing",
        }
    }
}

/// With which step a handshake in a state continues after an event.
pub(super) const fn next(state: State, event: Event) -> Step {
    match (state, event) {
        (State::AwaitServerHello, Event::HelloRetryRequest) => Step::Retry,
        (State::AwaitServerHello | State::AwaitSecondServerHello, Event::ServerHello) => Step::Agree,
        (State::AwaitEncryptedExtensions, Event::EncryptedExtensions) => Step::Extensions,
        (State::AwaitFinished, Event::Finished) => Step::Finish,
        (State::Complete, _) => Step::Refuse,
        (_, Event::ChangeCipherSpec) => Step::Ignore,
        _ => Step::Refuse,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_automaton_of_a_client_is_this_one() {
        use State as S;
        use Step::{Agree, Extensions, Finish, Ignore as ignore, Refuse as no, Retry};
        #[rustfmt::skip]
        let table = [
            // ClientHello, ServerHello, HelloRetryRequest, EncryptedExtensions, Certificates, Finished, Later, Foreign,
            // ChangeCipherSpec, Data
            (S::AwaitServerHello, [no, Agree, Retry, no, no, no, no, no, ignore, no]),
            (S::AwaitSecondServerHello, [no, Agree, no, no, no, no, no, no, ignore, no]),
            (S::AwaitEncryptedExtensions, [no, no, no, Extensions, no, no, no, no, ignore, no]),
            (S::AwaitFinished, [no, no, no, no, no, Finish, no, no, ignore, no]),
            (S::Complete, [no, no, no, no, no, no, no, no, no, no]),
        ];
        for (state, expected) in table {
            assert_eq!(Event::ALL.map(|event| next(state, event)), expected, "{state:?}");
        }
    }
}
