//! Authentication with a controller that does not keep to it. What honest ends do is in the tests of both.

#[allow(dead_code, reason = "each test program uses its part")]
mod support;

use std::time::Duration;

use ringfab_auth::{DhchapKey, Hash, Message, system_random};
use ringfab_initiator::{
    Authentication, AuthenticationFailure, Cause, ConnectError, ConnectOptions, HostEvent, Key, Keys, Step,
};
use ringfab_spec::Status;
use support::Peer;
use support::host::{host, next_event, options};

/// AUTHREQ.ATR in dword 0 of the completion of a Connect.
const ATR: u64 = 1 << 17;

fn key() -> Key {
    Key::Known(DhchapKey::generate(Hash::Sha256, None, &mut system_random()))
}

/// How attaching fails that authenticates one way, with a controller prepared by `prepare`.
fn fails(
    prepare: impl FnOnce(&mut Peer),
    change: impl FnOnce(&mut ConnectOptions),
) -> (ConnectError, Vec<Vec<u8>>) {
    let (mut host, mut peer) = (host(), Peer::new());
    peer.faults.connect = Some((0, Status::SUCCESS, ATR | 1));
    prepare(&mut peer);
    let mut options = options(&peer);
    options.authentication = Some(Authentication::new(Keys { host: key(), controller: None }));
    options.timeouts.admin = Duration::from_millis(300);
    change(&mut options);
    host.attach(options);
    match next_event(&mut host, &mut peer) {
        HostEvent::Failed { error, .. } => (error, peer.messages),
        event => panic!("{event:?}"),
    }
}

#[test]
fn a_controller_that_never_answers_is_waited_for_no_longer_than_an_admin_command() {
    let (error, messages) = fails(|_| {}, |_| {});
    assert_eq!(error.step, Step::Authenticate);
    assert!(matches!(error.cause, Cause::TimedOut { what: "Authentication Receive", .. }), "{error}");
    assert_eq!(messages.len(), 1, "AUTH_Negotiate");
    assert!(Message::is_negotiate(&messages[0]));
}

#[test]
fn what_is_no_message_or_not_its_turn_ends_it_and_the_controller_is_told() {
    let challenge = |hash: u8, group: u8, seqnum: u8| {
        let mut message = vec![1, 1, 0, 0, 1, 0, 32, 0, hash, group, 0, 0, seqnum, 0, 0, 0];
        message.extend([7; 32]);
        message
    };
    for (message, explanation, said) in [
        (vec![0xee; 4096], 7, "it is not the turn of this message"),
        (vec![1, 1, 0, 0, 1, 0, 9, 0, 1, 1, 0, 0, 1, 0, 0, 0], 6, "the bytes are no message"),
        (vec![1, 3, 0, 0, 1, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0], 7, "it is not the turn of this message"),
        (challenge(9, 0, 1), 4, "the controller has chosen a hash function that was not offered"),
        (challenge(1, 0, 1), 5, "the controller has chosen a group that was not offered"),
        (challenge(1, 0, 0), 6, "the sequence number of the challenge is zero"),
    ] {
        let (error, messages) = fails(|peer| peer.message = Some(message.clone()), |_| {});
        assert_eq!(error.step, Step::Authenticate);
        assert!(error.to_string().contains(said), "{error}, not {said}");
        // The host's message says nothing else than the explanation.
        assert_eq!(messages.last().expect("messages")[..2], [0, 0xf0], "AUTH_Failure2");
        assert_eq!(messages.last().expect("messages")[7], explanation, "{said}");
    }
}

#[test]
fn a_controller_that_asks_for_more_or_less_than_this_host_can_is_left_at_once() {
    let failure = |connect, change: fn(&mut ConnectOptions)| {
        let (error, messages) =
            fails(|peer| peer.faults.connect = Some((0, Status::SUCCESS, connect)), change);
        assert!(messages.is_empty());
        match error.cause {
            Cause::Authentication(failure) => failure,
            _ => panic!("{error}"),
        }
    };
    let nothing = |_: &mut ConnectOptions| {};
    let without = |options: &mut ConnectOptions| options.authentication = None;
    let both = |options: &mut ConnectOptions| {
        options.authentication.as_mut().expect("one").keys.controller = Some(key());
    };
    assert_eq!(failure(ATR | 1, without), AuthenticationFailure::NoKey);
    assert_eq!(failure(1, both), AuthenticationFailure::NotAsked);
    assert_eq!(failure(ATR | 1 << 18 | 1, nothing), AuthenticationFailure::SecureChannel);
}
