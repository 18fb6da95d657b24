use ringfab_auth::{CipherSuite, Secret};

use super::*;
use crate::alert::Alert;
use crate::group::Group;
use crate::tests::{SHA256, SHA384, hex, psk, rfc8448};
use crate::wire::Role;

const ZERO: [u8; RANDOM_BYTES] = [0; RANDOM_BYTES];

/// A ClientHello of these extensions, in this order.
fn hello(extensions: &[(u16, &[u8])]) -> Vec<u8> {
    hello_with(&[0x13, 0x01], &[0], extensions)
}

fn hello_with(suites: &[u8], compressions: &[u8], extensions: &[(u16, &[u8])]) -> Vec<u8> {
    Writer::message(Kind::CLIENT_HELLO.0, |body| {
        body.u16(0x0303);
        body.bytes(&ZERO);
        body.vector8(|id| id.bytes(&[9; 32]));
        body.vector16(|list| list.bytes(suites));
        body.vector8(|methods| methods.bytes(compressions));
        body.vector16(|list| {
            for (number, content) in extensions {
                list.extension(*number, |place| place.bytes(content));
            }
        });
    })
}

const VERSIONS: (u16, &[u8]) = (43, &[4, 3, 4, 3, 3]);
const GROUPS: (u16, &[u8]) = (10, &[0, 4, 0, 0x1d, 0, 0x17]);
const SHARES: (u16, &[u8]) = (51, &[0, 6, 0, 0x1d, 0, 2, 7, 8]);
const MODES: (u16, &[u8]) = (45, &[2, 0, 1]);

fn psks(count: usize, binders: usize) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.vector16(|list| {
        for number in 0..count {
            list.vector16(|identity| identity.u8(u8::try_from(number).unwrap()));
            list.bytes(&[0; 4]);
        }
    });
    writer.vector16(|list| (0..binders).for_each(|_| list.vector8(|binder| binder.bytes(&[5; 32]))));
    writer.into_bytes()
}

/// What is said of a hello in which one extension is another one, or is not there.
fn with(changed: u16, content: Option<&[u8]>) -> Result<(), String> {
    let good = psks(1, 1);
    let all = [VERSIONS, GROUPS, SHARES, MODES, (41, &good[..])];
    let extensions: Vec<_> =
        all.into_iter()
            .filter_map(|(number, old)| {
                if number == changed { content.map(|new| (number, new)) } else { Some((number, old)) }
            })
            .collect();
    ClientHello::parse(&hello(&extensions)).map(|_| ()).map_err(|error| error.to_string())
}

#[test]
fn a_hello_of_our_own_is_parsed() {
    let keys = [psk("first", 1, SHA384), psk("second", 2, SHA256)];
    for cookie in [None, Some(&b"cookie"[..])] {
        let offer =
            ClientHelloOffer { random: &ZERO, group: Group::Secp256r1, share: &[4; 65], cookie, psks: &keys };
        let binder = |psk: &crate::Psk, before: &[u8]| psk.suite.hash().of(before);
        let message = offer.write(binder);
        let hello = ClientHello::parse(&message).unwrap();
        assert_eq!(hello.session_id, [0; 0]);
        assert_eq!(hello.cookie, cookie.is_some());
        assert_eq!(hello.psks.identities, [&b"first"[..], b"second"]);
        let before = &message[..hello.psks.hashed_bytes];
        let expected = [SHA384, SHA256].map(|suite| suite.hash().of(before));
        assert_eq!(hello.psks.binders, expected.each_ref().map(Secret::expose));
        assert!(hello.offers_suite(SHA256) && hello.offers_suite(SHA384));
        assert!(Group::ALL.into_iter().all(|group| hello.offers_group(group)));
        let share = KeyShare { group: Group::Secp256r1, key_exchange: &[4; 65] };
        assert_eq!(hello.best_share(), Some(share));
    }
    let offer = ClientHelloOffer {
        random: &ZERO,
        group: Group::X25519,
        share: &[1; 32],
        cookie: None,
        psks: &keys[1..],
    };
    let message = offer.write(|_, _| Secret::copy_of(&[0; 32]));
    assert!(!ClientHello::parse(&message).unwrap().offers_suite(SHA384));
}

#[test]
fn what_a_hello_must_have_is_missed_by_name() {
    assert_eq!(with(0, None), Ok(()));
    let said = |number, content| with(number, content).unwrap_err();
    assert_eq!(said(43, None), "the host does not speak TLS 1.3");
    assert_eq!(said(43, Some(&[2, 3, 3])), "the host does not speak TLS 1.3");
    // RFC 8446, 9.2: without the one, it must have the other.
    let one_of_two =
        "the host sends ClientHello without the extension signature_algorithms or pre_shared_key";
    assert_eq!(said(41, None), one_of_two);
    assert_eq!(said(45, Some(&[1, 0])), "the host offers no keys with key agreement (psk_dhe_ke)");
    for (number, name) in [(45, "psk_key_exchange_modes"), (10, "supported_groups"), (51, "key_share")] {
        assert_eq!(said(number, None), format!("the host sends ClientHello without the extension {name}"));
    }
}

/// What the peer is told about a ClientHello.
fn alert_of_hello(message: &[u8]) -> Option<&'static str> {
    ClientHello::parse(message).err().and_then(|error| error.alert()).and_then(Alert::name)
}

#[test]
fn the_alert_for_a_hello_says_whether_an_extension_is_missing_or_empty_or_wrong() {
    let keys = psks(1, 1);
    let signatures: (u16, &[u8]) = (13, &[0, 2, 8, 4]);
    let all = [VERSIONS, signatures, GROUPS, SHARES, MODES, (41, &keys[..])];
    let good = hello(&all);
    assert_eq!(alert_of_hello(&good), None);
    let (missing, malformed) = (Some("missing_extension"), Some("decode_error"));
    let (failure, illegal) = (Some("handshake_failure"), Some("illegal_parameter"));
    // Each extension that a hello with keys must have.
    for (number, alert) in [
        (43, Some("protocol_version")),
        (10, missing),
        (51, missing),
        (45, missing),
        (41, failure),
        (13, None),
    ] {
        let rest: Vec<_> = all.into_iter().filter(|(one, _)| *one != number).collect();
        assert_eq!(alert_of_hello(&hello(&rest)), alert, "without {number}");
    }
    // And one without keys, which nothing here can answer.
    assert_eq!(alert_of_hello(&hello(&[VERSIONS, signatures, GROUPS, SHARES])), failure);
    assert_eq!(alert_of_hello(&hello(&[VERSIONS, GROUPS, SHARES])), missing, "no signature_algorithms");
    assert_eq!(alert_of_hello(&hello(&[VERSIONS, signatures, SHARES])), missing, "no supported_groups");
    // Each list that must not be empty, and what else is out of its range.
    let empty_binder = [0, 7, 0, 1, 9, 0, 0, 0, 0, 0, 1, 0];
    for (number, content, alert) in [
        (43, &[0][..], malformed),
        (13, &[0, 0], malformed),
        (10, &[0, 0], malformed),
        (45, &[0], malformed),
        (45, &[1, 0], failure),
        (44, &[0, 0], malformed),
        (44, &[0, 1, 1], None),
        // No share is a question for one; a share is not empty, of whichever group.
        (51, &[0, 0], None),
        (51, &[0, 4, 0, 0x1d, 0, 0], malformed),
        (51, &[0, 4, 0x7a, 0x7a, 0, 0], malformed),
        (41, &[0, 0, 0, 0], malformed),
        (41, &[0, 6, 0, 0, 0, 0, 0, 0, 0, 0], malformed),
        (41, &[0, 7, 0, 1, 9, 0, 0, 0, 0, 0, 0], malformed),
        (41, &empty_binder, malformed),
        (41, &psks(2, 1), illegal),
    ] {
        let mut changed: Vec<_> = all.into_iter().filter(|(one, _)| *one != number).collect();
        let at = if number == 41 { changed.len() } else { 0 };
        changed.insert(at, (number, content));
        assert_eq!(alert_of_hello(&hello(&changed)), alert, "{number} {content:?}");
    }
    assert_eq!(alert_of_hello(&hello_with(&[], &[0], &all)), malformed, "no cipher suite");
    assert_eq!(alert_of_hello(&hello_with(&[0x13, 1], &[], &all)), malformed, "no compression method");
    assert_eq!(alert_of_hello(&hello_with(&[0x13, 1], &[1], &all)), illegal);
    assert_eq!(alert_of_hello(&hello_with(&[0x13, 1], &[0], &[])), Some("protocol_version"));
}

#[test]
fn the_alert_for_an_answer_says_whether_an_extension_is_missing_or_empty_or_wrong() {
    let of = |random: &[u8], extensions: &[(u16, &[u8])]| {
        let message = answer(random, 0x1301, extensions);
        let parsed = match is_retry(&message) {
            true => HelloRetryRequest::parse(&message).map(drop),
            false => ServerHello::parse(&message).map(drop),
        };
        parsed.err().and_then(|error| error.alert()).and_then(Alert::name)
    };
    let message = HelloRetryRequest::write(SHA256, Group::X25519, &[]);
    let retry = &message[6..6 + RANDOM_BYTES];
    for (random, extensions, alert) in [
        (&ZERO[..], &[CHOSEN, SHARE, KEY][..], None),
        (&ZERO, &[SHARE, KEY], Some("protocol_version")),
        (&ZERO, &[CHOSEN], Some("missing_extension")),
        (&ZERO, &[CHOSEN, KEY], Some("illegal_parameter")),
        (&ZERO, &[CHOSEN, (51, &[0, 0x1d, 0, 0]), KEY], Some("decode_error")),
        (&ZERO, &[CHOSEN, (51, &[]), KEY], Some("decode_error")),
        (&ZERO, &[CHOSEN, SHARE, (41, &[])], Some("decode_error")),
        (&ZERO, &[CHOSEN, SHARE, KEY, MODES], Some("unsupported_extension")),
        (&ZERO, &[CHOSEN, SHARE, SHARE, KEY], Some("illegal_parameter")),
        (retry, &[CHOSEN, (51, &[0, 0x17])], None),
        (retry, &[CHOSEN, (44, &[0, 0])], Some("decode_error")),
        (retry, &[CHOSEN, (51, &[])], Some("decode_error")),
        (retry, &[CHOSEN, KEY], Some("unsupported_extension")),
    ] {
        assert_eq!(of(random, extensions), alert, "{extensions:?}");
    }
}

#[test]
fn extensions_with_wrong_lengths_cannot_be_parsed() {
    for (number, wrong) in [
        (43, &[][..]),
        (43, &[0]),
        (43, &[1, 3]),
        (43, &[4, 3, 4]),
        (43, &[2, 3, 4, 0]),
        (10, &[]),
        (10, &[0, 0]),
        (10, &[0, 3, 0, 29, 0]),
        (10, &[0, 2, 0, 29, 0]),
        (51, &[0, 4, 0, 29, 0, 1]),
        (51, &[0, 3, 0, 29, 0]),
        (45, &[2, 1]),
        (45, &[1, 1, 1]),
        (41, &[]),
        (41, &[0, 0, 0, 0]),
        (41, &[0, 6, 0, 0, 0, 0, 0, 0, 0, 0]),
    ] {
        assert_eq!(
            with(number, Some(wrong)),
            Err("ClientHello cannot be parsed".to_owned()),
            "{number} {wrong:?}"
        );
    }
    for (count, binders, said) in [
        (2, 1, "ClientHello has not as many binders as keys"),
        (1, 2, "ClientHello has not as many binders as keys"),
        (33, 33, "the host offers more than 32 keys"),
    ] {
        assert_eq!(with(41, Some(&psks(count, binders))), Err(said.to_owned()));
    }
    assert_eq!(with(41, Some(&psks(32, 32))), Ok(()));
    let twice = [0, 10, 0, 0x1d, 0, 1, 7, 0, 0x1d, 0, 1, 7];
    assert_eq!(with(51, Some(&twice)), Err("the host sends two key shares of one group".to_owned()));
}

#[test]
fn extensions_that_are_not_known_are_ignored_and_none_is_there_twice() {
    let keys = psks(1, 1);
    let unknown =
        [VERSIONS, (0, b"server"), GROUPS, SHARES, (28, &[2, 0]), (0xffff, &[]), MODES, (41, &keys)];
    assert!(ClientHello::parse(&hello(&unknown)).is_ok());
    for extensions in [
        &[VERSIONS, (99, &[]), (99, &[1]), GROUPS, SHARES, MODES, (41, &keys)][..],
        &[VERSIONS, GROUPS, SHARES, MODES, MODES, (41, &keys)],
    ] {
        let error = ClientHello::parse(&hello(extensions)).unwrap_err();
        assert_eq!(error.to_string(), "an extension is there twice");
    }
    let error = ClientHello::parse(&hello(&[VERSIONS, GROUPS, SHARES, (41, &keys), MODES])).unwrap_err();
    assert_eq!(error.to_string(), "pre_shared_key is not the last extension of ClientHello");
    let compressed = hello_with(&[0x13, 1], &[1, 0], &[VERSIONS, GROUPS, SHARES, MODES, (41, &keys)]);
    assert!(ClientHello::parse(&compressed).unwrap_err().to_string().contains("compression"));
    for suites in [&[][..], &[0x13]] {
        let message = hello_with(suites, &[0], &[VERSIONS, GROUPS, SHARES, MODES, (41, &keys)]);
        assert_eq!(ClientHello::parse(&message).unwrap_err(), TlsError::Malformed("ClientHello"));
    }
}

#[test]
fn early_data_is_refused() {
    let message = &hex(rfc8448::CLIENT_HELLO)[5..];
    assert_eq!(
        ClientHello::parse(message).unwrap_err().to_string(),
        "the host announces early data (0-RTT), which NVMe/TCP does not allow"
    );
}

#[test]
fn a_hello_that_is_cut_anywhere_cannot_be_parsed() {
    let keys = psks(2, 2);
    let message = hello(&[VERSIONS, GROUPS, SHARES, MODES, (41, &keys)]);
    assert!(ClientHello::parse(&message).is_ok());
    for length in 4..message.len() {
        assert!(ClientHello::parse(&message[..length]).is_err(), "{length} bytes");
    }
    assert!(ClientHello::parse(&[&message[..], &[0]].concat()).is_err());
}

/// A ServerHello of these extensions.
fn answer(random: &[u8], suite: u16, extensions: &[(u16, &[u8])]) -> Vec<u8> {
    Writer::message(Kind::SERVER_HELLO.0, |body| {
        body.u16(0x0303);
        body.bytes(random);
        body.vector8(|_| {});
        body.u16(suite);
        body.u8(0);
        body.vector16(|list| {
            for (number, content) in extensions {
                list.extension(*number, |place| place.bytes(content));
            }
        });
    })
}

const CHOSEN: (u16, &[u8]) = (43, &[3, 4]);
const SHARE: (u16, &[u8]) = (51, &[0, 0x1d, 0, 2, 7, 8]);
const KEY: (u16, &[u8]) = (41, &[0, 1]);

#[test]
fn answers_of_our_own_are_parsed() {
    let hello = ServerHello { suite: SHA384, group: Some(Group::X25519), share: &[7; 32], psk: Some(3) };
    let message = hello.write(&ZERO, &[]);
    assert!(!is_retry(&message));
    assert_eq!(ServerHello::parse(&message), Ok(hello));
    let message = HelloRetryRequest::write(SHA256, Group::Secp384r1, &[]);
    assert!(is_retry(&message));
    let expected = HelloRetryRequest { suite: SHA256, group: Some(0x0018), cookie: None };
    assert_eq!(HelloRetryRequest::parse(&message), Ok(expected));
    // That of RFC 8448, in another order.
    let message = &hex(rfc8448::SERVER_HELLO)[5..];
    let hello = ServerHello::parse(message).unwrap();
    assert_eq!((hello.suite, hello.group, hello.psk), (SHA256, Some(Group::X25519), Some(0)));
    assert_eq!(check_encrypted_extensions(&encrypted_extensions()[4..]), Ok(()));
}

#[test]
fn an_answer_has_what_it_must_have_and_nothing_else() {
    let parse = |suite, extensions: &[(u16, &[u8])]| {
        ServerHello::parse(&answer(&ZERO, suite, extensions)).map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!(parse(0x1302, &[KEY, SHARE, CHOSEN]), Ok(()));
    let said = |suite, extensions: &[(u16, &[u8])]| parse(suite, extensions).unwrap_err();
    assert_eq!(said(0x1301, &[SHARE, KEY]), TlsError::Version(Role::Server).to_string());
    assert_eq!(said(0x1301, &[(43, &[3, 3]), SHARE, KEY]), TlsError::Version(Role::Server).to_string());
    assert_eq!(
        said(0x1303, &[CHOSEN, SHARE, KEY]),
        "the controller chooses a cipher suite that was not offered"
    );
    assert_eq!(said(0x1301, &[CHOSEN, KEY]), "the controller wants to use a key without key agreement");
    assert_eq!(
        said(0x1301, &[CHOSEN, SHARE, KEY, (44, &[0, 1, 1])]),
        "the controller answers with extension 44, which it must not"
    );
    assert_eq!(said(0x1301, &[CHOSEN, SHARE, KEY, KEY]), "an extension is there twice");
    assert_eq!(said(0x1301, &[CHOSEN, SHARE, (41, &[0])]), "ServerHello cannot be parsed");
    let message = answer(&ZERO, 0x1301, &[CHOSEN, SHARE, KEY]);
    for length in 4..message.len() {
        assert!(ServerHello::parse(&message[..length]).is_err(), "{length} bytes");
    }
    let echo =
        ServerHello { suite: SHA256, group: Some(Group::X25519), share: &[], psk: None }.write(&ZERO, &[1]);
    assert!(ServerHello::parse(&echo).unwrap_err().to_string().contains("session identifier"));
}

#[test]
fn a_server_names_groups_in_encrypted_extensions_and_nothing_else() {
    assert_eq!(check_encrypted_extensions(&[0, 8, 0, 10, 0, 4, 0, 2, 0, 0x1d]), Ok(()));
    assert_eq!(check_encrypted_extensions(&[0, 4, 0, 16, 0, 0]), Err(TlsError::Extension(16)));
    for wrong in [&[][..], &[0], &[0, 1], &[0, 0, 0], &[0, 3, 0, 10, 0], &[0, 6, 0, 10, 0, 2, 0, 0]] {
        assert_eq!(check_encrypted_extensions(wrong), Err(TlsError::Malformed("EncryptedExtensions")));
    }
    let suites = [CipherSuite::Aes128GcmSha256, CipherSuite::Aes256GcmSha384].map(crate::suite::number);
    assert_eq!(suites, [0x1301, 0x1302]);
}
