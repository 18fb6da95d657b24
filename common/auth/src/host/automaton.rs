//! The automaton of a host's transaction: its states, the events, and the step that follows.

/// Where a transaction waits, on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostState {
    /// The Negotiate is on its way. The controller has to send its challenge.
    AwaitChallenge,
    /// A worker computes the host's DH value and the shared secret.
    Answering,
    /// The reply is on its way. The controller has to say whether it was right.
    AwaitSuccess1,
    /// Over: it has succeeded.
    Authenticated,
    /// Over: it has failed.
    Refused,
}

impl HostState {
    /// Every state, in the order of a transaction.
    pub const ALL: [Self; 5] =
        [Self::AwaitChallenge, Self::Answering, Self::AwaitSuccess1, Self::Authenticated, Self::Refused];

    /// Whether the transaction is over.
    pub const fn is_over(self) -> bool {
        matches!(self, Self::Authenticated | Self::Refused)
    }
}

/// What happens to a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// DH-HMAC-CHAP_Challenge was received.
    Challenge,
    /// DH-HMAC-CHAP_Success1 was received.
    Success1,
    /// AUTH_Failure1 was received.
    Failure1,
    /// A message was received that no controller sends.
    Foreign,
    /// Bytes were received that are no message.
    Malformed,
    /// A worker has computed.
    Computed,
}

/// What follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Check the challenge, and have the answer computed.
    Answer,
    /// Send the reply with what was computed.
    Reply,
    /// Compare the controller's response with the expected one.
    Verify,
    /// The controller has refused to go on.
    EndByController,
    /// Refuse: the message cannot be understood.
    RefusePayload,
    /// Refuse: it is not the turn of such a message.
    RefuseMessage,
    /// Nothing: the transaction is over, or the result is late.
    Ignore,
}

/// With which step a transaction in a state continues after an event.
pub(super) const fn next(state: HostState, event: Event) -> Step {
    use Event as E;
    use HostState as S;
    match (state, event) {
        (S::Authenticated | S::Refused, _) => Step::Ignore,

        (S::AwaitChallenge, E::Challenge) => Step::Answer,
        (S::Answering, E::Computed) => Step::Reply,
        (S::AwaitSuccess1, E::Success1) => Step::Verify,

        (_, E::Failure1) => Step::EndByController,
        (_, E::Computed) => Step::Ignore,
        (_, E::Malformed) => Step::RefusePayload,
        (_, E::Challenge | E::Success1 | E::Foreign) => Step::RefuseMessage,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENTS: [Event; 6] = [
        Event::Challenge,
        Event::Success1,
        Event::Failure1,
        Event::Foreign,
        Event::Malformed,
        Event::Computed,
    ];

    #[test]
    fn the_automaton_of_a_host_is_this_one() {
        use HostState as S;
        use Step::*;
        let refuse = RefuseMessage;
        #[rustfmt::skip]
        let table = [
            // Challenge, Success1, Failure1, Foreign, Malformed, Computed
            (S::AwaitChallenge, [Answer, refuse, EndByController, refuse, RefusePayload, Ignore]),
            (S::Answering, [refuse, refuse, EndByController, refuse, RefusePayload, Reply]),
            (S::AwaitSuccess1, [refuse, Verify, EndByController, refuse, RefusePayload, Ignore]),
            (S::Authenticated, [Ignore; 6]),
            (S::Refused, [Ignore; 6]),
        ];
        assert_eq!(table.map(|(state, _)| state), S::ALL);
        for (state, expected) in table {
            assert_eq!(EVENTS.map(|event| next(state, event)), expected, "{state:?}");
        }
    }
}
