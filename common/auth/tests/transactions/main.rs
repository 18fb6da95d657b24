//! Both roles against each other: what succeeds, and every way to fail.

mod peer;
mod support;

use std::sync::Arc;

use proptest::prelude::*;
use ringfab_auth::{
    Authenticated, Channel, Concatenation, ControllerState, Failure, Group, Hash, HostState, Message,
    Parties, Policy, PolicyError, Received, Refusal, RefusedBy, Reply,
};
use ringfab_spec::auth::{FailureExplanation as Explanation, FailureReason, SecureChannel};

use support::{BUFFER, Controller, Host, Sent, only, parties, run};

/// Groups that are computed quickly in a build for tests.
const QUICK: [Group; 2] = [Group::Null, Group::Ffdhe2048];

/// What happens to a message on its way.
type Change = fn(&mut Vec<u8>);

/// Both ends with the same keys and policies.
struct Pair {
    host: Host,
    negotiate: Vec<u8>,
    controller: Controller,
}

impl Pair {
    fn new(parties: &Arc<Parties>, policy: &Arc<Policy>) -> Self {
        Self::with(parties, policy, (SecureChannel::NONE, Concatenation::Refused))
    }

    fn with(parties: &Arc<Parties>, policy: &Arc<Policy>, of: (SecureChannel, Concatenation)) -> Self {
        Self::of((parties, policy), (Some(parties), policy), of)
    }

    /// A host and a controller that may differ.
    fn of(
        host: (&Arc<Parties>, &Arc<Policy>),
        controller: (Option<&Arc<Parties>>, &Arc<Policy>),
        of: (SecureChannel, Concatenation),
    ) -> Self {
        let (secure_channel, concatenation) = of;
        let (host, negotiate) = Host::new(host.0.clone(), host.1.clone(), secure_channel);
        let controller = Controller::new(controller.0.cloned(), controller.1.clone(), concatenation);
        Self { host, negotiate, controller }
    }

    fn quick() -> Self {
        Self::new(&parties(1, Some(2)), &only(Hash::Sha256, Group::Null))
    }

    fn run(self) -> (Result<Authenticated, Refusal>, Result<Authenticated, Refusal>) {
        self.run_changed(|_| ())
    }

    /// How both ended, when messages are changed on their way.
    fn run_changed(
        mut self,
        change: impl FnMut(&mut Vec<u8>),
    ) -> (Result<Authenticated, Refusal>, Result<Authenticated, Refusal>) {
        run(&mut self.host, &mut self.controller, self.negotiate, change);
        (self.host.outcome().expect("it is over"), self.controller.outcome().expect("it is over"))
    }

    /// As far as the challenge; the host's reply, which was not sent yet.
    fn reply(&mut self) -> Vec<u8> {
        self.controller.send(&self.negotiate);
        match self.host.receive(&self.controller.receive()) {
            Sent::Exchange(reply) => reply,
            other => panic!("{other:?}"),
        }
    }
}

fn refused<T: std::fmt::Debug>(outcome: Result<T, Refusal>) -> (RefusedBy, Explanation) {
    let refusal = outcome.unwrap_err();
    assert_eq!(refusal.reason, FailureReason::AUTHENTICATION_FAILURE);
    (refusal.by, refusal.explanation)
}

#[track_caller]
fn refused_by_controller(pair: Pair, explanation: Explanation) {
    let (host, controller) = pair.run();
    assert_eq!(refused(controller), (RefusedBy::Us, explanation));
    assert_eq!(refused(host), (RefusedBy::Peer, explanation));
}

#[track_caller]
fn refused_by_host(pair: Pair, explanation: Explanation, change: impl FnMut(&mut Vec<u8>)) {
    let (host, controller) = pair.run_changed(change);
    assert_eq!(refused(host), (RefusedBy::Us, explanation));
    assert_eq!(refused(controller), (RefusedBy::Peer, explanation));
}

#[test]
fn both_ends_succeed_with_every_hash_and_group_one_way_and_both_ways() {
    for (hash, group) in Hash::ALL.into_iter().flat_map(|hash| Group::ALL.map(|group| (hash, group))) {
        for controller_key in [None, Some(2)] {
            let parties = parties(1, controller_key);
            let (host, controller) = Pair::new(&parties, &only(hash, group)).run();
            let (controller_too, key) = (controller_key.is_some(), parties.key());
            let expected = Authenticated { hash, group, controller_too, key, generated_psk: None };
            assert_eq!((host, controller), (Ok(expected.clone()), Ok(expected)), "{hash} {group}");
        }
    }
}

#[test]
fn a_host_with_its_old_key_is_let_in_and_finds_the_controllers_old_key() {
    let [new, old, other] = [(1, 2), (3, 4), (5, 6)].map(|(host, own)| parties(host, Some(own)));
    let policy = only(Hash::Sha256, Group::Ffdhe2048);
    for (host, known) in [(&new, true), (&old, true), (&other, false)] {
        let mut pair = Pair::new(host, &policy);
        let keys = [new.clone(), old.clone()];
        pair.controller = Controller::new(keys, policy.clone(), Concatenation::Refused);
        let (of_host, of_controller) = pair.run();
        if known {
            let shown = of_controller.expect("a key that counts");
            assert_eq!((shown.key, shown.controller_too), (host.key(), true));
            assert_eq!(of_host.expect("both ways").key, host.key());
        } else {
            assert_eq!(refused(of_controller), (RefusedBy::Us, Explanation::AUTHENTICATION_FAILED));
        }
    }
}

#[test]
fn concatenation_makes_the_same_psk_at_both_ends_and_another_each_time() {
    let channels = [
        (SecureChannel::NEW_TLS_PSK, Concatenation::Allowed(Channel::Clear)),
        (SecureChannel::REPLACE_TLS_PSK, Concatenation::Required(Channel::Tls)),
    ];
    for (of, hash) in channels.into_iter().flat_map(|of| [Hash::Sha256, Hash::Sha384].map(|hash| (of, hash)))
    {
        let psks = [None, Some(2)].map(|controller_key| {
            let (host, controller) =
                Pair::with(&parties(1, controller_key), &only(hash, Group::Ffdhe2048), of).run();
            let (host, controller) = (host.unwrap(), controller.unwrap());
            assert_eq!(host, controller);
            assert_eq!(host.controller_too, controller_key.is_some());
            let psk = host.generated_psk.expect("a PSK");
            assert_eq!(psk.secret().expose().len(), hash.length());
            psk
        });
        assert_ne!(psks[0], psks[1]);
    }
}

#[test]
fn the_controller_chooses_the_first_of_its_own_that_the_host_offers() {
    let parties = parties(1, None);
    let host =
        Arc::new(Policy::new(&[Hash::Sha256, Hash::Sha384], &[Group::Null, Group::Ffdhe2048]).unwrap());
    let controller = Arc::new(
        Policy::new(&[Hash::Sha512, Hash::Sha384, Hash::Sha256], &[Group::Ffdhe2048, Group::Null]).unwrap(),
    );
    let pair = Pair::of(
        (&parties, &host),
        (Some(&parties), &controller),
        (SecureChannel::NONE, Concatenation::Refused),
    );
    let (host, _) = pair.run();
    let host = host.unwrap();
    assert_eq!((host.hash, host.group), (Hash::Sha384, Group::Ffdhe2048));
}

#[test]
fn a_host_with_another_key_or_none_is_refused() {
    let policy = only(Hash::Sha256, Group::Ffdhe2048);
    let none = (SecureChannel::NONE, Concatenation::Refused);
    let (one, other) = (parties(1, None), parties(3, None));
    let another = Pair::of((&one, &policy), (Some(&other), &policy), none);
    refused_by_controller(another, Explanation::AUTHENTICATION_FAILED);
    let unknown = Pair::of((&one, &policy), (None, &policy), none);
    refused_by_controller(unknown, Explanation::AUTHENTICATION_FAILED);
}

#[test]
fn a_controller_with_another_key_or_none_is_refused() {
    let policy = only(Hash::Sha384, Group::Null);
    let none = (SecureChannel::NONE, Concatenation::Refused);
    let (host, other, without) = (parties(1, Some(2)), parties(1, Some(3)), parties(1, None));
    let another = Pair::of((&host, &policy), (Some(&other), &policy), none);
    refused_by_host(another, Explanation::AUTHENTICATION_FAILED, |_| ());
    // The controller knows by itself that it cannot prove who it is.
    let unable = Pair::of((&host, &policy), (Some(&without), &policy), none);
    refused_by_controller(unable, Explanation::AUTHENTICATION_FAILED);
    // A host that asks for nothing takes a controller that has a key.
    let unasked = Pair::of((&without, &policy), (Some(&host), &policy), none);
    assert!(!unasked.run().0.unwrap().controller_too);
}

#[test]
fn names_are_part_of_the_proof() {
    let policy = only(Hash::Sha256, Group::Null);
    let key = support::key(1, None);
    let nqn = |name| ringfab_spec::Nqn::new(name).unwrap();
    let host = Parties::new(nqn("host"), nqn("subsystem"), &key, None);
    for (host_name, subsystem) in [("other", "subsystem"), ("host", "other")] {
        let controller = Parties::new(nqn(host_name), nqn(subsystem), &key, None);
        let pair = Pair::of(
            (&host, &policy),
            (Some(&controller), &policy),
            (SecureChannel::NONE, Concatenation::Refused),
        );
        refused_by_controller(pair, Explanation::AUTHENTICATION_FAILED);
    }
}

#[test]
fn without_a_common_hash_or_group_the_host_is_refused() {
    let parties = parties(1, None);
    let none = (SecureChannel::NONE, Concatenation::Refused);
    let [weak, strong] = [(Hash::Sha256, Group::Null), (Hash::Sha512, Group::Ffdhe2048)];
    let policy = only(weak.0, weak.1);
    let pair = |hash, group| Pair::of((&parties, &policy), (Some(&parties), &only(hash, group)), none);
    refused_by_controller(pair(strong.0, weak.1), Explanation::HASH_NOT_USABLE);
    refused_by_controller(pair(weak.0, strong.1), Explanation::GROUP_NOT_USABLE);
}

#[test]
fn a_concatenation_that_the_queue_does_not_have_is_refused() {
    let (parties, policy) = (parties(1, None), Arc::new(Policy::default()));
    let refused = [
        (SecureChannel::NEW_TLS_PSK, Concatenation::Refused),
        (SecureChannel::NEW_TLS_PSK, Concatenation::Allowed(Channel::Tls)),
        (SecureChannel::REPLACE_TLS_PSK, Concatenation::Allowed(Channel::Clear)),
        (SecureChannel::NONE, Concatenation::Required(Channel::Clear)),
        (SecureChannel::OBSOLETE, Concatenation::Allowed(Channel::Clear)),
    ];
    for of in refused {
        refused_by_controller(Pair::with(&parties, &policy, of), Explanation::SECURE_CHANNEL_MISMATCH);
    }
}

#[test]
fn sha_512_and_the_null_group_make_no_key_for_tls() {
    let parties = parties(1, None);
    let start = |policy: Arc<Policy>| {
        let secure_channel = SecureChannel::NEW_TLS_PSK;
        ringfab_auth::HostTransaction::start(parties.clone(), policy, secure_channel, 1)
            .map(|_| ())
            .unwrap_err()
    };
    assert_eq!(start(only(Hash::Sha512, Group::Ffdhe2048)), PolicyError::NoHash);
    assert_eq!(start(only(Hash::Sha256, Group::Null)), PolicyError::NoGroup);
    // A host that offers them nevertheless.
    for (hash, group, explanation) in [
        (Hash::Sha512, Group::Ffdhe2048, Explanation::HASH_NOT_USABLE),
        (Hash::Sha256, Group::Null, Explanation::GROUP_NOT_USABLE),
    ] {
        let allowed = Concatenation::Allowed(Channel::Clear);
        let pair = Pair::of(
            (&parties, &only(hash, group)),
            (Some(&parties), &Arc::new(Policy::default())),
            (SecureChannel::NONE, allowed),
        );
        let (_, controller) = pair.run_changed(|message| {
            if Message::is_negotiate(message) {
                message[6] = SecureChannel::NEW_TLS_PSK.0;
            }
        });
        assert_eq!(refused(controller), (RefusedBy::Us, explanation));
    }
}

#[test]
fn a_host_without_a_protocol_that_is_known_is_refused() {
    for change in [(7, 0, Some(8)), (8, 2, None)] {
        let (at, byte, cut) = change;
        let (host, controller) = Pair::quick().run_changed(|message| {
            if Message::is_negotiate(message) {
                message[at] = byte;
                message.truncate(cut.unwrap_or(message.len()));
            }
        });
        assert_eq!(refused(controller), (RefusedBy::Us, Explanation::PROTOCOL_NOT_USABLE));
        assert_eq!(refused(host), (RefusedBy::Peer, Explanation::PROTOCOL_NOT_USABLE));
    }
}

/// Whether these bytes are such a message.
fn is(bytes: &[u8], auth_id: u8) -> bool {
    bytes[..2] == [1, auth_id]
}

#[test]
fn a_host_refuses_what_it_has_not_offered() {
    // The controller's answer is changed on its way: that is what a downgrade looks like.
    let changes: [(usize, u8, Explanation); 6] = [
        (8, 9, Explanation::HASH_NOT_USABLE),
        (9, 1, Explanation::GROUP_NOT_USABLE),
        (9, 0x20, Explanation::GROUP_NOT_USABLE),
        (4, 0, Explanation::INCORRECT_PAYLOAD),
        (6, 33, Explanation::INCORRECT_PAYLOAD),
        (10, 4, Explanation::INCORRECT_PAYLOAD),
    ];
    for (at, byte, explanation) in changes {
        refused_by_host(Pair::quick(), explanation, |message| {
            if is(message, 1) {
                message[at] = byte;
            }
        });
    }
    refused_by_host(Pair::quick(), Explanation::INCORRECT_PAYLOAD, |message| {
        if is(message, 1) {
            message[12..16].fill(0);
        }
    });
}

#[test]
fn a_host_takes_no_success_without_the_proof_that_it_has_asked_for() {
    let changes: [Change; 4] = [
        |message| message[8] = 0,
        |message| message[4] ^= 1,
        |message| message[6] = 48,
        |message| message.truncate(40),
    ];
    for change in changes {
        refused_by_host(Pair::quick(), Explanation::INCORRECT_PAYLOAD, |message| {
            if is(message, 3) {
                change(message);
            }
        });
    }
    refused_by_host(Pair::quick(), Explanation::AUTHENTICATION_FAILED, |message| {
        if is(message, 3) {
            message[16] ^= 1;
        }
    });
}

#[test]
fn a_controller_refuses_a_reply_with_a_wrong_field() {
    let changes: [(Change, Explanation); 7] = [
        (|message| message[4] ^= 1, Explanation::INCORRECT_PAYLOAD),
        (|message| message[8] = 2, Explanation::INCORRECT_PAYLOAD),
        (|message| message[12..16].fill(0), Explanation::INCORRECT_PAYLOAD),
        (|message| message.push(0), Explanation::INCORRECT_PAYLOAD),
        (|message| message.truncate(message.len() - 1), Explanation::INCORRECT_PAYLOAD),
        (
            |message| {
                message[10] = 4;
                message.extend([0; 4]);
            },
            Explanation::INCORRECT_PAYLOAD,
        ),
        (|message| message[16] ^= 1, Explanation::AUTHENTICATION_FAILED),
    ];
    for (change, explanation) in changes {
        let (host, controller) = Pair::quick().run_changed(|message| {
            if is(message, 2) {
                change(message);
            }
        });
        assert_eq!(refused(controller), (RefusedBy::Us, explanation));
        assert_eq!(refused(host), (RefusedBy::Peer, explanation));
    }
}

#[test]
fn a_value_outside_of_the_group_is_refused_by_both() {
    let pair = || Pair::new(&parties(1, None), &only(Hash::Sha256, Group::Ffdhe2048));
    refused_by_host(pair(), Explanation::INCORRECT_PAYLOAD, |message| {
        if is(message, 1) {
            message[48..].fill(0);
        }
    });
    let (_, controller) = pair().run_changed(|message| {
        if is(message, 2) {
            message[80..].fill(0xff);
        }
    });
    assert_eq!(refused(controller), (RefusedBy::Us, Explanation::INCORRECT_PAYLOAD));
}

#[test]
fn a_challenge_that_is_sent_back_is_refused() {
    let mut pair = Pair::quick();
    pair.controller.send(&pair.negotiate);
    let challenge = pair.controller.receive();
    let reply = pair.host.receive(&challenge).message();
    let Ok(Message::Reply(reply)) = Message::parse_exact(&reply) else { panic!("a reply") };
    let reflected = Message::Reply(Reply { challenge: &challenge[16..48], ..reply }).to_bytes();
    pair.controller.send(&reflected);
    let Ok((Message::Failure1(failure), _)) =
        Message::parse(&pair.controller.receive()).map(|(one, rest)| {
            let failure = match one {
                Message::Failure1(failure) => Message::Failure1(failure),
                other => panic!("{other:?}"),
            };
            (failure, rest.len())
        })
    else {
        panic!("a failure")
    };
    assert_eq!(failure.explanation, Explanation::AUTHENTICATION_FAILED);
    let detail = pair.controller.outcome().unwrap().unwrap_err().detail;
    assert_eq!(detail, Some("the host has sent our own challenge back"));
}

#[test]
fn a_value_that_is_sent_back_is_refused() {
    let mut pair = Pair::new(&parties(1, None), &only(Hash::Sha256, Group::Ffdhe2048));
    pair.controller.send(&pair.negotiate);
    let challenge = pair.controller.receive();
    let mut reply = pair.host.receive(&challenge).message();
    reply[80..].copy_from_slice(&challenge[48..]);
    pair.controller.send(&reply);
    pair.controller.receive();
    assert_eq!(refused(pair.controller.outcome().unwrap()), (RefusedBy::Us, Explanation::INCORRECT_PAYLOAD));
}

#[test]
fn the_reply_of_another_transaction_is_refused() {
    let mut first = Pair::quick();
    let old = first.reply();
    let mut second = Pair::quick();
    second.reply();
    second.controller.send(&old);
    second.controller.receive();
    assert_eq!(
        refused(second.controller.outcome().unwrap()),
        (RefusedBy::Us, Explanation::AUTHENTICATION_FAILED)
    );
}

#[test]
fn the_controller_of_another_transaction_is_refused() {
    let mut first = Pair::quick();
    let reply = first.reply();
    first.controller.send(&reply);
    let old = first.controller.receive();
    let mut second = Pair::quick();
    let reply = second.reply();
    second.controller.send(&reply);
    second.controller.receive();
    let Sent::Last(failure) = second.host.receive(&old) else { panic!("the host goes on") };
    assert!(matches!(Message::parse_exact(&failure), Ok(Message::Failure2(_))));
    assert_eq!(refused(second.host.outcome().unwrap()), (RefusedBy::Us, Explanation::AUTHENTICATION_FAILED));
}

#[test]
fn re_authentication_is_another_transaction() {
    let (parties, policy) = (parties(1, Some(2)), only(Hash::Sha256, Group::Null));
    let mut seen = Vec::new();
    for _ in 0..2 {
        let pair = Pair::new(&parties, &policy);
        let (host, controller) = pair.run_changed(|message| seen.push(message.clone()));
        assert_eq!(host.unwrap(), controller.unwrap());
    }
    let (first, second) = seen.split_at(seen.len() / 2);
    assert_eq!(first[0], second[0], "both offer the same");
    for (one, other) in first[1..4].iter().zip(&second[1..4]) {
        assert_ne!(one, other);
    }
}

#[test]
fn a_message_out_of_turn_is_refused() {
    let ended = |pair: &mut Pair| {
        let message = pair.controller.receive();
        let Ok(Message::Failure1(failure)) = Message::parse_exact(&message) else { panic!("{message:x?}") };
        assert_eq!(failure.t_id, 0x1234);
        assert_eq!(failure.explanation, Explanation::INCORRECT_MESSAGE);
        assert_eq!(
            refused(pair.controller.outcome().unwrap()),
            (RefusedBy::Us, Explanation::INCORRECT_MESSAGE)
        );
    };
    // A reply, or a success, before anything; and with a wish to receive instead of it.
    let mut earlier = Pair::quick();
    let reply = earlier.reply();
    let success2 = Message::Success2(0x1234).to_bytes();
    for message in
        [&reply, &success2, &Message::Success1(success1()).to_bytes(), &[3, 9, 0, 0, 0x34, 0x12].to_vec()]
    {
        let mut pair = Pair::quick();
        if message[0] == 3 {
            pair.controller.send(&pair.negotiate);
            pair.controller.receive();
        }
        pair.controller.send(message);
        ended(&mut pair);
    }
    // A second Negotiate, a success instead of a reply, and a wish to receive instead of a reply.
    for message in [Some(earlier.negotiate.clone()), Some(success2), None] {
        let mut pair = Pair::quick();
        pair.reply();
        if let Some(message) = message {
            pair.controller.send(&message);
        }
        ended(&mut pair);
    }
    // After the end.
    let mut pair = Pair::new(&parties(1, None), &only(Hash::Sha256, Group::Null));
    let reply = pair.reply();
    pair.controller.send(&reply);
    pair.host.receive(&pair.controller.receive());
    assert_eq!(pair.controller.transaction.state(), ControllerState::Authenticated);
    pair.controller.send(&reply);
    ended(&mut pair);
}

fn success1() -> ringfab_auth::Success1<'static> {
    ringfab_auth::Success1 { t_id: 0x1234, hash_length: 32, response: None }
}

#[test]
fn a_host_refuses_a_message_out_of_turn_and_hears_none_after_the_end() {
    let mut pair = Pair::quick();
    let Sent::Last(failure) = pair.host.receive(&Message::Success1(success1()).to_bytes()) else {
        panic!("the host goes on")
    };
    let failure2 = Failure {
        t_id: 0x1234,
        reason: FailureReason::AUTHENTICATION_FAILURE,
        explanation: Explanation::INCORRECT_MESSAGE,
    };
    assert_eq!(Message::parse_exact(&failure), Ok(Message::Failure2(failure2)));
    assert_eq!(pair.host.transaction.state(), HostState::Refused);
    pair.controller.send(&pair.negotiate);
    assert_eq!(pair.host.receive(&pair.controller.receive()), Sent::Nothing);
    assert_eq!(refused(pair.host.outcome().unwrap()), (RefusedBy::Us, Explanation::INCORRECT_MESSAGE));
}

#[test]
fn a_host_may_refuse_after_the_success() {
    let mut pair = Pair::new(&parties(1, None), &only(Hash::Sha256, Group::Null));
    let reply = pair.reply();
    pair.controller.send(&reply);
    pair.controller.receive();
    let failure = Failure {
        t_id: 0x1234,
        reason: FailureReason::AUTHENTICATION_FAILURE,
        explanation: Explanation::AUTHENTICATION_FAILED,
    };
    pair.controller.send(&Message::Failure2(failure).to_bytes());
    assert_eq!(
        refused(pair.controller.outcome().unwrap()),
        (RefusedBy::Peer, Explanation::AUTHENTICATION_FAILED)
    );
}

#[test]
fn a_buffer_that_is_too_small_ends_the_transaction() {
    let mut pair = Pair::quick();
    pair.controller.send(&pair.negotiate);
    assert_eq!(pair.controller.transaction.on_receive(7), Received::BufferTooSmall);
    assert_eq!(pair.controller.transaction.state(), ControllerState::Failure1Ready);
    let Received::Message(message) = pair.controller.transaction.on_receive(8) else { panic!("a message") };
    assert!(matches!(Message::parse_exact(&message), Ok(Message::Failure1(_))));
    assert_eq!(refused(pair.controller.outcome().unwrap()), (RefusedBy::Us, Explanation::INCORRECT_PAYLOAD));

    let mut pair = Pair::quick();
    pair.controller.send(&pair.negotiate);
    // As long as a challenge with the null group, and not one byte less.
    assert!(matches!(pair.controller.transaction.on_receive(48), Received::Message(_)));
    let mut pair = Pair::quick();
    pair.controller.send(&pair.negotiate);
    let Received::Message(message) = pair.controller.transaction.on_receive(47) else { panic!("a message") };
    assert_eq!(message.len(), 8);
}

#[test]
fn a_late_result_changes_nothing() {
    let (parties, policy) = (parties(1, None), only(Hash::Sha256, Group::Ffdhe2048));
    let mut pair = Pair::new(&parties, &policy);
    let mut random = ringfab_auth::system_random();
    let computation =
        pair.controller.transaction.on_send(&pair.negotiate, &pair.controller.sequence, &mut random);
    // The host loses patience.
    pair.controller.send(&[]);
    pair.controller.transaction.on_computed(computation.unwrap().run());
    assert_eq!(pair.controller.transaction.state(), ControllerState::Failure1Ready);
    pair.controller.receive();
    assert_eq!(refused(pair.controller.outcome().unwrap()), (RefusedBy::Us, Explanation::INCORRECT_PAYLOAD));
}

#[test]
fn the_result_of_an_earlier_transaction_is_not_taken_for_this_one_s() {
    let (parties, policy) = (parties(1, None), only(Hash::Sha256, Group::Ffdhe2048));
    let mut random = ringfab_auth::system_random();
    let mut begin = || {
        let mut pair = Pair::new(&parties, &policy);
        let computation =
            pair.controller.transaction.on_send(&pair.negotiate, &pair.controller.sequence, &mut random);
        (pair, computation.expect("a computation"))
    };
    let (_, earlier) = begin();
    let (mut pair, own) = begin();
    pair.controller.transaction.on_computed(earlier.run());
    assert_eq!(pair.controller.transaction.state(), ControllerState::MakingOffer);
    pair.controller.transaction.on_computed(own.run());
    assert_eq!(pair.controller.transaction.state(), ControllerState::ChallengeReady);
}

#[test]
fn linux_before_7_1_can_be_met_by_a_policy() {
    let parties = parties(1, Some(2));
    let of = (SecureChannel::NEW_TLS_PSK, Concatenation::Allowed(Channel::Clear));
    let specified = only(Hash::Sha256, Group::Ffdhe2048);
    let mut old = (*specified).clone();
    old.controller_response_without_sc_c = true;
    let old = Arc::new(old);
    assert!(Pair::with(&parties, &old, of).run().0.is_ok());
    let mixed = Pair::of((&parties, &specified), (Some(&parties), &old), of);
    refused_by_host(mixed, Explanation::AUTHENTICATION_FAILED, |_| ());
    // Without concatenation there is no difference.
    let none = (SecureChannel::NONE, Concatenation::Refused);
    assert!(Pair::of((&parties, &specified), (Some(&parties), &old), none).run().0.is_ok());
}

#[test]
fn nothing_secret_is_printed() {
    let mut pair = Pair::with(
        &parties(0xa7, Some(0xa7)),
        &only(Hash::Sha256, Group::Ffdhe2048),
        (SecureChannel::NEW_TLS_PSK, Concatenation::Allowed(Channel::Clear)),
    );
    let reply = pair.reply();
    let host = format!("{:?}", pair.host.transaction);
    pair.controller.send(&reply);
    let controller = format!("{:?}", pair.controller.transaction);
    for text in [host, controller] {
        assert!(
            text.contains("generated_psk: Some(InputPsk { origin: Generated, secret: Secret })"),
            "{text}"
        );
        assert!(!text.contains("167, 167") && !text.contains("a7a7"), "{text}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whoever changes, cuts or lengthens any message: nobody succeeds who should not, and nothing panics.
    #[test]
    fn a_changed_message_never_leads_to_a_success_of_both(
        which in 0..4_usize,
        at: prop::sample::Index,
        flip in 1..=255_u8,
        group in prop::sample::select(QUICK.to_vec()),
    ) {
        let mut count = 0;
        let pair = Pair::new(&parties(1, Some(2)), &only(Hash::Sha256, group));
        let mut reserved = false;
        let (host, controller) = pair.run_changed(|message| {
            if count == which {
                let at = at.index(message.len());
                message[at] ^= flip;
                reserved = is_reserved(message, at);
            }
            count += 1;
        });
        // What is offered is not authenticated, but each end has what it accepts. Reserved bytes mean nothing.
        prop_assert!(host.is_err() || controller.is_err() || which == 0 || reserved);
    }

    #[test]
    fn a_message_cut_anywhere_ends_the_transaction(which in 0..4_usize, at: prop::sample::Index) {
        let mut count = 0;
        let (host, controller) = Pair::quick().run_changed(|message| {
            if count == which {
                message.truncate(at.index(message.len()));
            }
            count += 1;
        });
        prop_assert!(host.is_err() && controller.is_err());
    }

    /// Messages of a good transaction in any order, some of them more than once.
    #[test]
    fn messages_in_another_order_authenticate_nobody(order in prop::collection::vec(0..5_usize, 1..8)) {
        let mut pair = Pair::quick();
        let reply = pair.reply();
        let failure = Failure {
            t_id: 0x1234,
            reason: FailureReason::AUTHENTICATION_FAILURE,
            explanation: Explanation::AUTHENTICATION_FAILED,
        };
        let messages = [
            pair.negotiate.clone(),
            reply,
            Message::Success2(0x1234).to_bytes(),
            Message::Failure2(failure).to_bytes(),
            vec![1, 2],
        ];
        // Another controller: that reply is not for its challenge.
        let mut other = Pair::quick().controller;
        for which in order {
            other.send(&messages[which]);
            let _ = other.transaction.on_receive(BUFFER);
        }
        prop_assert!(!matches!(other.outcome(), Some(Ok(_))));
    }

    #[test]
    fn noise_authenticates_nobody(messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 1..6)) {
        let mut pair = Pair::quick();
        for message in &messages {
            pair.controller.send(message);
            let _ = pair.controller.transaction.on_receive(BUFFER);
            let _ = pair.host.receive(message);
        }
        prop_assert!(!matches!(pair.controller.outcome(), Some(Ok(_))));
        prop_assert!(!matches!(pair.host.outcome(), Some(Ok(_))));
    }
}

/// Bytes that mean nothing, and the HL of a success, whose response is compared as a whole.
fn is_reserved(message: &[u8], at: usize) -> bool {
    let own = match (message[0], message[1]) {
        (1, 1) => at == 7,
        (1, 2) => at == 7 || at == 9,
        (1, 3) => at == 7 || (9..16).contains(&at),
        _ => false,
    };
    own || (2..4).contains(&at)
}
