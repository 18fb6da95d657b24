//! Messages cut, changed and noise.

use proptest::prelude::*;

use super::*;
use crate::group::Group;
use crate::tests::hex;

/// One of each, with different numbers everywhere.
fn one_of_each() -> Vec<Message<'static>> {
    let failure = Failure {
        t_id: 9,
        reason: FailureReason::AUTHENTICATION_FAILURE,
        explanation: FailureExplanation::INCORRECT_PAYLOAD,
    };
    vec![
        Message::Negotiate(Negotiate {
            t_id: 9,
            secure_channel: SecureChannel::NEW_TLS_PSK,
            offer: Some(Proposal {
                hashes: vec![HashId::SHA512, HashId::SHA256],
                groups: vec![GroupId::FFDHE3072, GroupId::NULL],
            }),
        }),
        Message::Challenge(Challenge {
            t_id: 9,
            hash: HashId::SHA256,
            group: GroupId::FFDHE2048,
            seqnum: 0x0102_0304,
            challenge: &[0xc1; 32],
            value: &[0xd1; 8],
        }),
        Message::Reply(Reply {
            t_id: 9,
            seqnum: 5,
            challenge_valid: true,
            response: &[0xa1; 32],
            challenge: &[0xc2; 32],
            value: &[0xd2; 4],
        }),
        Message::Success1(Success1 { t_id: 9, hash_length: 32, response: Some(&[0xa2; 32]) }),
        Message::Success1(Success1 { t_id: 9, hash_length: 48, response: None }),
        Message::Success2(9),
        Message::Failure1(failure),
        Message::Failure2(failure),
    ]
}

#[test]
fn every_message_has_its_golden_bytes() {
    let negotiate =
        format!("0000 0000 0900 02 01  01 00 02 02 0301{} 0200{}", "00".repeat(28), "00".repeat(28));
    let challenge = format!("0101 0000 0900 20 00 01 01 0800 04030201 {}{}", "c1".repeat(32), "d1".repeat(8));
    let reply = format!(
        "0102 0000 0900 20 00 01 00 0400 05000000 {}{}{}",
        "a1".repeat(32),
        "c2".repeat(32),
        "d2".repeat(4)
    );
    let success1 = format!("0103 0000 0900 20 00 01 {} {}", "00".repeat(7), "a2".repeat(32));
    let golden = [
        negotiate,
        challenge,
        reply,
        success1,
        format!("0103 0000 0900 30 00 00 {}", "00".repeat(7)),
        format!("0104 0000 0900 {}", "00".repeat(10)),
        "00f1 0000 0900 01 06".to_owned(),
        "00f0 0000 0900 01 06".to_owned(),
    ];
    for (message, golden) in one_of_each().into_iter().zip(golden) {
        assert_eq!(message.to_bytes(), hex(&golden.replace(' ', "")), "{message:?}");
        assert_eq!(message.t_id(), 9);
    }
}

#[test]
fn every_message_is_read_back_and_is_none_when_it_is_cut() {
    for message in one_of_each() {
        let mut bytes = message.to_bytes();
        assert_eq!(Message::parse_exact(&bytes), Ok(message.clone()));
        assert_eq!(Message::is_negotiate(&bytes), matches!(message, Message::Negotiate(_)));
        for cut in 0..bytes.len() {
            let error = Message::parse(&bytes[..cut]).unwrap_err();
            assert!(
                matches!(error, MessageError::Truncated { needed, available } if needed > cut && available == cut),
                "{message:?} cut at {cut}: {error}"
            );
            assert_eq!(error.explanation(), FailureExplanation::INCORRECT_PAYLOAD);
        }
        bytes.extend([0; 3]);
        assert_eq!(Message::parse(&bytes), Ok((message, &[0; 3][..])));
        assert_eq!(Message::parse_exact(&bytes), Err(MessageError::Value("the length of the message")));
    }
}

#[test]
fn what_is_wrong_is_said() {
    let messages = one_of_each();
    let changed = |message: usize, at: usize, byte: u8| {
        let mut bytes = messages[message].to_bytes();
        bytes[at] = byte;
        Message::parse(&bytes).map(|_| ()).unwrap_err()
    };
    assert_eq!(changed(0, 8 + 2, 31), MessageError::Value("HALEN"));
    assert_eq!(changed(0, 8 + 3, 31), MessageError::Value("DHLEN"));
    assert_eq!(changed(0, 7, 2), MessageError::Truncated { needed: 136, available: 72 });
    assert_eq!(changed(1, 6, 48), MessageError::Value("HL"));
    assert_eq!(changed(1, 10, 7), MessageError::Value("DHVLEN"));
    assert_eq!(changed(2, 10, 2), MessageError::Value("DHVLEN"));
    assert_eq!(changed(2, 8, 2), MessageError::Value("CVALID"));
    assert_eq!(changed(3, 8, 0xff), MessageError::Value("RVALID"));
    for (message, at, byte) in [(0, 0, 1), (0, 0, 2), (1, 1, 5), (6, 0, 1), (6, 1, 2)] {
        let error = changed(message, at, byte);
        let unknown = matches!(error, MessageError::Unknown(..) | MessageError::Truncated { .. });
        assert!(unknown, "{error}");
    }
    assert_eq!(changed(5, 1, 9).explanation(), FailureExplanation::INCORRECT_MESSAGE);
    assert_eq!(
        changed(5, 1, 9).to_string(),
        "no message has type AuthType(0x01 DH-HMAC-CHAP) and identifier AuthId(0x09)"
    );
}

#[test]
fn only_the_first_descriptor_of_the_protocol_counts() {
    let Message::Negotiate(negotiate) = &one_of_each()[0] else { unreachable!() };
    let bytes = Message::Negotiate(negotiate.clone()).to_bytes();
    let (fixed, descriptor) = bytes.split_at(8);
    let other_protocol = [[7].as_slice(), &descriptor[1..]].concat();
    let other_lists = [&descriptor[..4], &[9; 60]].concat();
    let mut both = [fixed, &other_protocol, descriptor, &other_lists].concat();
    both[7] = 3;
    assert_eq!(Message::parse_exact(&both), Ok(Message::Negotiate(negotiate.clone())));
    let mut none = [fixed, &other_protocol].concat();
    none[7] = 1;
    let offer = |bytes| match Message::parse_exact(bytes) {
        Ok(Message::Negotiate(negotiate)) => negotiate.offer,
        other => panic!("{other:?}"),
    };
    assert_eq!(offer(&none), None);
    let mut empty = fixed.to_vec();
    empty[7] = 0;
    assert_eq!(offer(&empty), None);
}

#[test]
fn no_message_of_ours_is_longer_than_the_longest() {
    let longest = Message::Reply(Reply {
        t_id: 0,
        seqnum: 1,
        challenge_valid: true,
        response: &[0; 64],
        challenge: &[0; 64],
        value: &vec![0; Group::Secp384r1MlKem1024.answer_length()],
    });
    assert_eq!(longest.to_bytes().len(), MESSAGE_BYTES_MAX);
}

proptest! {
    #[test]
    fn any_bytes_are_a_message_or_an_error(
        start in prop::sample::select(vec![[0_u8, 0], [1, 1], [1, 2], [1, 3], [1, 4], [0, 0xf1], [0, 0xf0], [3, 3]]),
        rest in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let bytes = [&start[..], &rest].concat();
        if let Ok((message, rest)) = Message::parse(&bytes) {
            let length = bytes.len() - rest.len();
            prop_assert_eq!(Message::parse_exact(&bytes[..length]), Ok(message.clone()));
            // What was meant is the same, although reserved bytes and other descriptors are gone.
            let again = message.to_bytes();
            prop_assert!(again.len() <= length);
            prop_assert_eq!(Message::parse_exact(&again), Ok(message));
        }
    }

    #[test]
    fn a_changed_byte_is_harmless(which in 0..8_usize, at: prop::sample::Index, byte: u8) {
        let mut bytes = one_of_each()[which].to_bytes();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok((_, rest)) = Message::parse(&bytes) {
            prop_assert!(rest.len() < bytes.len());
        }
    }
}
