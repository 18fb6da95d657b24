//! The automaton of a controller's transaction: its states, the events, and the step that follows.

/// Where a transaction waits, on the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControllerState {
    /// Nothing has come. The host begins.
    AwaitNegotiate,
    /// A worker computes the controller's DH value. The host may wait for the challenge already.
    MakingOffer,
    /// The challenge is there, and the host has to receive it.
    ChallengeReady,
    /// The host has the challenge, and has to reply.
    AwaitReply,
    /// A worker computes the shared secret. The host may wait for the outcome already.
    Concluding,
    /// The host is authenticated, and has to receive that.
    Success1Ready,
    /// The host has the controller's response, and has to say whether it was right.
    AwaitSuccess2,
    /// The transaction has failed, and the host has to receive why.
    Failure1Ready,
    /// Over: it has succeeded.
    Authenticated,
    /// Over: it has failed.
    Refused,
}

impl ControllerState {
    /// Every state, in the order of a transaction.
    pub const ALL: [Self; 10] = [
        Self::AwaitNegotiate,
        Self::MakingOffer,
        Self::ChallengeReady,
        Self::AwaitReply,
        Self::Concluding,
        Self::Success1Ready,
        Self::AwaitSuccess2,
        Self::Failure1Ready,
        Self::Authenticated,
        Self::Refused,
    ];

    /// Whether the transaction is over.
    pub const fn is_over(self) -> bool {
        matches!(self, Self::Authenticated | Self::Refused)
    }
}

/// What happens to a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// AUTH_Negotiate was sent.
    Negotiate,
    /// DH-HMAC-CHAP_Reply was sent.
    Reply,
    /// DH-HMAC-CHAP_Success2 was sent.
    Success2,
    /// AUTH_Failure2 was sent.
    Failure2,
    /// A message was sent that no host sends.
    Foreign,
    /// Bytes were sent that are no message.
    Malformed,
    /// The host wants to receive a message.
    Receive,
    /// A worker has computed.
    Computed,
}

/// What follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Choose hash and group from what the host offers.
    Choose,
    /// Make the challenge with the value that was computed.
    Challenge,
    /// Let the host have the challenge.
    SendChallenge,
    /// Check the reply, and have the shared secret computed.
    Conclude,
    /// Compare the response with the expected one.
    Verify,
    /// Let the host have the success.
    SendSuccess1,
    /// The host has found the controller's response to be right.
    Finish,
    /// The host has refused to go on.
    EndByHost,
    /// Refuse: the message cannot be understood.
    RefusePayload,
    /// Refuse: it is not the turn of such a message.
    RefuseMessage,
    /// Let the host have the failure.
    SendFailure1,
    /// The host has to wait.
    Wait,
    /// Nothing: the transaction has failed already, or the result is late.
    Ignore,
}

/// With which step a transaction in a state continues after an event.
pub(super) const fn next(state: ControllerState, event: Event) -> Step {
    use ControllerState as S;
    use Event as E;
    match (state, event) {
        (S::AwaitNegotiate, E::Negotiate) => Step::Choose,

        (S::MakingOffer, E::Computed) => Step::Challenge,
        (S::MakingOffer | S::Concluding, E::Receive) => Step::Wait,

        (S::ChallengeReady, E::Receive) => Step::SendChallenge,

        (S::AwaitReply, E::Reply) => Step::Conclude,
        (S::Concluding, E::Computed) => Step::Verify,

        (S::Success1Ready, E::Receive) => Step::SendSuccess1,
        (S::AwaitSuccess2, E::Success2) => Step::Finish,

        // A host that has received something may refuse it, also the success.
        (S::AwaitReply | S::AwaitSuccess2 | S::Authenticated, E::Failure2) => Step::EndByHost,

        (S::Failure1Ready | S::Refused, E::Receive) => Step::SendFailure1,
        (S::Failure1Ready | S::Refused, _) => Step::Ignore,

        (_, E::Computed) => Step::Ignore,
        (_, E::Malformed) => Step::RefusePayload,
        (_, E::Negotiate | E::Reply | E::Success2 | E::Failure2 | E::Foreign | E::Receive) => {
            Step::RefuseMessage
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENTS: [Event; 8] = [
        Event::Negotiate,
        Event::Reply,
        Event::Success2,
        Event::Failure2,
        Event::Foreign,
        Event::Malformed,
        Event::Receive,
        Event::Computed,
    ];

    /// Every cell of a state's row, in the order of the events above.
    fn row(state: ControllerState) -> [Step; 8] {
        EVENTS.map(|event| next(state, event))
    }

    #[test]
    fn the_automaton_of_a_controller_is_this_one() {
        use ControllerState as S;
        use Step::*;
        let refuse = RefuseMessage;
        #[rustfmt::skip]
        let table = [
            // Negotiate, Reply, Success2, Failure2, Foreign, Malformed, Receive, Computed
            (S::AwaitNegotiate, [Choose, refuse, refuse, refuse, refuse, RefusePayload, refuse, Ignore]),
            (S::MakingOffer, [refuse, refuse, refuse, refuse, refuse, RefusePayload, Wait, Challenge]),
            (S::ChallengeReady, [refuse, refuse, refuse, refuse, refuse, RefusePayload, SendChallenge, Ignore]),
            (S::AwaitReply, [refuse, Conclude, refuse, EndByHost, refuse, RefusePayload, refuse, Ignore]),
            (S::Concluding, [refuse, refuse, refuse, refuse, refuse, RefusePayload, Wait, Verify]),
            (S::Success1Ready, [refuse, refuse, refuse, refuse, refuse, RefusePayload, SendSuccess1, Ignore]),
            (S::AwaitSuccess2, [refuse, refuse, Finish, EndByHost, refuse, RefusePayload, refuse, Ignore]),
            (S::Failure1Ready, [Ignore, Ignore, Ignore, Ignore, Ignore, Ignore, SendFailure1, Ignore]),
            (S::Authenticated, [refuse, refuse, refuse, EndByHost, refuse, RefusePayload, refuse, Ignore]),
            (S::Refused, [Ignore, Ignore, Ignore, Ignore, Ignore, Ignore, SendFailure1, Ignore]),
        ];
        assert_eq!(table.map(|(state, _)| state), S::ALL);
        for (state, expected) in table {
            assert_eq!(row(state), expected, "{state:?}");
        }
    }

    #[test]
    fn no_event_leads_out_of_a_refusal() {
        for state in [ControllerState::Failure1Ready, ControllerState::Refused] {
            assert!(row(state).iter().all(|step| matches!(step, Step::Ignore | Step::SendFailure1)));
        }
    }
}
