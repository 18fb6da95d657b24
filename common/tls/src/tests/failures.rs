//! What goes wrong in a handshake: what both ends say, and what the peer is told.

use proptest::prelude::*;

use super::{SHA256, SHA384, Store, client, deliver, psk, random, records, server, sessions, shake};
use crate::alert::Alert;
use crate::group::Group;
use crate::message::HelloRetryRequest;
use crate::{Handshake, Psk, RECORD_BYTES_MAX, Role, TlsError};

fn keys() -> Vec<Psk> {
    vec![psk("NVMe0R01 host sub", 7, SHA256)]
}

/// How it fails, on the end that finds it and on the other one.
fn failure(client: &mut Handshake, server: &mut Handshake) -> (String, String) {
    let (error, answer) = shake(client, server).unwrap_err();
    (error.to_string(), answer.expect("the peer is told").to_string())
}

/// The flights of a good handshake: both of the client, and that of the server between them.
fn flights(psks: &[Psk]) -> [Vec<u8>; 3] {
    let (mut host, mut controller) = (client(psks), server(psks));
    let mut flights = [const { Vec::new() }; 3];
    for (number, flight) in flights.iter_mut().enumerate() {
        let (from, to) =
            if number % 2 == 0 { (&mut host, &mut controller) } else { (&mut controller, &mut host) };
        *flight = from.take_outgoing().unwrap();
        records(flight).iter_mut().for_each(|record| to.receive(record).unwrap());
    }
    assert!(host.is_complete() && controller.is_complete());
    flights
}

fn record(content: u8, plaintext: &[u8]) -> Vec<u8> {
    let length = u16::try_from(plaintext.len()).unwrap().to_be_bytes();
    [&[content, 3, 3][..], &length, plaintext].concat()
}

#[test]
fn a_key_that_is_not_known_or_another_one_is_named_on_both_ends() {
    let offered = [psk("one", 1, SHA256), psk("two\n", 2, SHA384)];
    let mut server_end = server(&keys());
    let (here, there) = failure(&mut client(&offered), &mut server_end);
    let why = "the host offers no key that is known here (nobody has it)";
    assert_eq!(here, format!("{why}: identity \"one\", identity \"two\\n\""));
    assert_eq!(server_end.offered(), Some(&b"one"[..]));
    assert_eq!(
        there,
        "the controller has ended the connection with unknown_psk_identity: it has no key with an identity that was \
         offered (identity \"one\", identity \"two\\n\")"
    );
    let wrong = [psk("NVMe0R01 host sub", 8, SHA256)];
    let (here, there) = failure(&mut client(&wrong), &mut server(&keys()));
    let identity = "identity \"NVMe0R01 host sub\"";
    assert_eq!(
        here,
        format!("the key of the host and the key here differ (the binder does not verify): {identity}")
    );
    assert_eq!(
        there,
        format!(
            "the controller has ended the connection with decrypt_error: it has another key for this identity, or a \
             message was changed ({identity})"
        )
    );
    let other_suite = [psk("NVMe0R01 host sub", 7, SHA384)];
    let (here, _) = failure(&mut client(&other_suite), &mut server(&keys()));
    assert_eq!(
        here,
        format!("the host does not offer TLS_AES_128_GCM_SHA256, the cipher suite of its key: {identity}")
    );
    let both = [psk("NVMe0R01 host sub", 7, SHA384), psk("other", 1, SHA256)];
    let (here, _) = failure(&mut client(&both), &mut server(&keys()));
    assert!(here.contains("with another hash function (the binder has a wrong length)"), "{here}");
}

#[test]
fn the_first_key_that_is_known_is_taken() {
    let known = [psk("b", 2, SHA384), psk("c", 3, SHA256), psk("d", 4, SHA256)];
    let offered = [psk("a", 1, SHA256), psk("c", 3, SHA256), psk("b", 2, SHA384)];
    let (host, controller) = sessions(client(&offered), server(&known));
    assert_eq!((host.identity, controller.identity, host.suite), (b"c".to_vec(), b"c".to_vec(), SHA256));
}

#[test]
fn keys_that_cannot_be_offered_are_refused_at_once() {
    let start = |psks: Vec<Psk>| Handshake::client(psks, &mut random(1)).err().map(|error| error.to_string());
    assert_eq!(start(vec![]).unwrap(), "there is no key to offer");
    assert_eq!(start(vec![psk("x", 1, SHA256); 33]).unwrap(), "no more than 32 keys can be offered");
    assert_eq!(start(vec![psk("x", 1, SHA256); 32]), None);
    assert_eq!(start(vec![psk("", 1, SHA256)]).unwrap(), "a key without an identity cannot be offered");
    let long = psk(&"x".repeat(14_000), 1, SHA384);
    let (host, _) = sessions(client(std::slice::from_ref(&long)), server(std::slice::from_ref(&long)));
    assert_eq!(host.identity.len(), 14_000);
    let longer = psk(&"x".repeat(15_000), 1, SHA384);
    assert_eq!(start(vec![longer]).unwrap(), "the identities of the keys are too long to be offered");
}

#[test]
fn what_is_no_tls_is_named() {
    let mut icreq = [0; 128];
    icreq[2] = 128;
    icreq[4] = 128;
    let mut controller = server(&keys());
    assert_eq!(controller.wanted(&icreq[..5]), 0);
    let error = controller.receive(&mut icreq[..5]).unwrap_err();
    assert_eq!(error.to_string(), "the peer speaks NVMe/TCP in clear text, not TLS");
    // It stays so, and the peer gets one alert.
    assert_eq!(controller.receive(&mut flights(&keys())[0].clone()), Err(error));
    assert_eq!(controller.take_outgoing(), Some(record(21, &[2, Alert::UNEXPECTED_MESSAGE.0])));
    assert_eq!(controller.take_outgoing(), None);
    assert!(!controller.is_complete());
    assert_eq!(controller.finish().err(), Some(TlsError::Incomplete));
}

#[test]
fn records_of_the_wrong_kind_are_refused() {
    let [hello, flight, proof] = flights(&keys());
    let said = |end: &mut Handshake, mut record: Vec<u8>| end.receive(&mut record).unwrap_err().to_string();
    let mut long = record(22, &[1; 16385]);
    assert_eq!(said(&mut server(&keys()), long.clone()), "a record of 16385 bytes is too long");
    long.truncate(RECORD_BYTES_MAX - 300);
    assert_eq!(said(&mut server(&keys()), long), "the bytes are not exactly one record");
    assert_eq!(said(&mut server(&keys()), record(22, &[])), "a record of the handshake is empty");
    assert_eq!(
        said(&mut server(&keys()), record(23, &[1])),
        "the host sends data where ClientHello is awaited"
    );
    assert_eq!(
        said(&mut server(&keys()), record(20, &[1])),
        "the host sends ChangeCipherSpec where ClientHello is awaited"
    );
    assert_eq!(
        said(&mut server(&keys()), records(&flight)[0].clone()),
        "the host sends ServerHello where ClientHello is awaited"
    );
    assert_eq!(said(&mut server(&keys()), record(21, &[2])), "an alert cannot be parsed");

    let mut host = client(&keys());
    assert_eq!(
        said(&mut host, hello.clone()),
        "the controller sends ClientHello where ServerHello is awaited"
    );
    let mut host = client(&keys());
    for _ in 0..4 {
        host.receive(&mut record(20, &[1])).unwrap();
    }
    assert_eq!(said(&mut host, record(20, &[1])), "ChangeCipherSpec has a wrong content, or comes too often");
    assert!(said(&mut client(&keys()), record(20, &[2])).starts_with("ChangeCipherSpec has a wrong content"));

    // Behind ServerHello, everything is encrypted, but for an alert of a peer that has no keys.
    let mut host = client(&keys());
    host.receive(&mut records(&flight)[0].clone()).unwrap();
    assert_eq!(said(&mut host, records(&flight)[0].clone()), "a record of the handshake is not encrypted");
    let mut controller = server(&keys());
    controller.receive(&mut hello.clone()).unwrap();
    assert_eq!(
        said(&mut controller, record(21, &[2, 47])),
        "the host has ended the connection with illegal_parameter: a field has a value that it does not allow \
         (identity \"NVMe0R01 host sub\")"
    );

    // Nothing comes behind the end.
    let mut controller = server(&keys());
    deliver(&mut client(&keys()), &mut controller).unwrap();
    controller.take_outgoing().unwrap();
    controller.receive(&mut proof.clone()).unwrap();
    assert!(controller.is_complete());
    assert!(controller.receive(&mut proof.clone()).is_err());
}

#[test]
fn messages_may_be_cut_into_records_and_joined_in_them() {
    let [hello, flight, _] = flights(&keys());
    for size in [1, 7, 100] {
        let (mut host, mut controller) = (client(&keys()), server(&keys()));
        host.take_outgoing().unwrap();
        for part in hello[5..].chunks(size) {
            controller.receive(&mut record(22, part)).unwrap();
        }
        let answer = controller.take_outgoing().unwrap();
        assert_eq!(answer, flight);
        let all = records(&answer);
        for part in all[0][5..].chunks(size) {
            host.receive(&mut record(22, part)).unwrap();
        }
        host.receive(&mut all[1].clone()).unwrap();
        deliver(&mut host, &mut controller).unwrap();
        assert!(host.is_complete() && controller.is_complete());
    }
    // But nothing follows in the same record where keys change.
    let behind = [&hello[5..], &[20, 0]].concat();
    let error = server(&keys()).receive(&mut record(22, &behind)).unwrap_err();
    assert_eq!(error.to_string(), "a message follows in the same record, where keys change");
    let behind = [&records(&flight)[0][5..], &[8]].concat();
    let error = client(&keys()).receive(&mut record(22, &behind)).unwrap_err();
    assert_eq!(error.alert(), Some(Alert::UNEXPECTED_MESSAGE));
    let error = server(&keys()).receive(&mut record(22, &[1, 1, 0, 0])).unwrap_err();
    assert_eq!(error, TlsError::MessageTooLong(1 << 16));
}

#[test]
fn a_client_is_asked_for_another_share_once() {
    for (group, count) in [(Group::Secp256r1, 65), (Group::Secp384r1, 97)] {
        let mut host = client(&keys());
        let first = host.take_outgoing().unwrap();
        let request = HelloRetryRequest::write(SHA256, group, &[]);
        host.receive(&mut record(22, &request)).unwrap();
        let second = host.take_outgoing().unwrap();
        assert_eq!(second.len(), first.len() - 32 + count);
        let error = host.receive(&mut record(22, &request)).unwrap_err();
        assert_eq!(error.to_string(), "the controller sends HelloRetryRequest where ServerHello is awaited");
    }
    let said = |request: &[u8]| {
        let mut host = client(&keys());
        host.receive(&mut record(22, request)).unwrap_err().to_string()
    };
    let nonsense = "the controller asks for a key share that it has, or cannot get";
    assert_eq!(said(&HelloRetryRequest::write(SHA256, Group::X25519, &[])), nonsense);
    assert_eq!(
        said(&HelloRetryRequest::write(SHA384, Group::Secp256r1, &[])),
        "the controller chooses another cipher suite than that of the key"
    );
}

/// A client whose share has a group that the server does not know.
fn with_unknown_share(hello: &[u8]) -> Vec<u8> {
    let mut hello = hello.to_vec();
    let at = hello.windows(4).position(|window| window == [0, 0x1d, 0, 32]).unwrap();
    hello[at + 1] = 0x1e;
    hello
}

#[test]
fn a_server_asks_for_a_share_after_it_has_verified_the_key() {
    // The binder is over the changed message: the host has no share of use.
    let error = server(&keys()).receive(&mut with_unknown_share(&flights(&keys())[0])).unwrap_err();
    assert!(matches!(error, TlsError::BinderDiffers(_)));
}

#[test]
fn every_message_is_cut_flipped_and_replayed_without_success() {
    let psks = keys();
    let [hello, flight, proof] = flights(&psks);
    for bit in 0..hello.len() * 8 {
        let mut changed = hello.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        let mut controller = server(&psks);
        let took = controller.wanted(&changed) == 0 && controller.receive(&mut changed).is_ok();
        // Of the record's header, the minor version means nothing. All else is under the binder, or makes it differ.
        assert!(!took || bit / 8 == 2 || controller.take_outgoing().is_none(), "bit {bit}");
    }
    let all = records(&flight);
    for (number, record) in all.iter().enumerate() {
        for bit in 0..record.len() * 8 {
            let mut host = client(&psks);
            host.take_outgoing();
            let mut flight = all.clone();
            flight[number][bit / 8] ^= 1 << (bit % 8);
            let took =
                flight.iter_mut().all(|record| host.wanted(record) == 0 && host.receive(record).is_ok());
            assert!(!took || (number == 0 && bit / 8 == 2), "record {number}, bit {bit}");
        }
    }
    for bit in 0..proof.len() * 8 {
        let mut controller = server(&psks);
        controller.receive(&mut hello.clone()).unwrap();
        let mut changed = proof.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert!(controller.wanted(&changed) != 0 || controller.receive(&mut changed).is_err(), "bit {bit}");
        assert!(!controller.is_complete());
    }
    // A whole handshake that is sent again to another server, which has other random numbers.
    let mut controller = Handshake::server(Store::of(&psks), &mut random(3));
    controller.receive(&mut hello.clone()).unwrap();
    assert_eq!(controller.receive(&mut proof.clone()), Err(TlsError::Undecryptable));
    let mut host = Handshake::client(psks.clone(), &mut random(4)).unwrap();
    host.receive(&mut all[0].clone()).unwrap();
    assert_eq!(host.receive(&mut all[1].clone()), Err(TlsError::Undecryptable));
    assert_eq!(host.role(), Role::Client);
}

#[test]
fn every_prefix_of_a_flight_wants_more_and_no_more_than_its_record() {
    let psks = [psk("one", 1, SHA384)];
    for flight in flights(&psks) {
        for record in records(&flight) {
            let host = client(&psks);
            for length in 0..record.len() {
                let wanted = host.wanted(&record[..length]);
                assert!(wanted > 0 && length + wanted <= record.len(), "{length} bytes");
                assert!(server(&psks).receive(&mut record[..length].to_vec()).is_err());
            }
            assert_eq!(host.wanted(&record), 0);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn bytes_that_are_replaced_lead_to_an_error_and_never_to_a_session(
        number in 0_usize..3,
        at in any::<prop::sample::Index>(),
        bytes in prop::collection::vec(any::<u8>(), 1..40),
    ) {
        let psks = keys();
        let mut flights = flights(&psks);
        let flight = &mut flights[number];
        let at = at.index(flight.len());
        let end = flight.len().min(at + bytes.len());
        // The minor version of a record means nothing.
        prop_assume!(flight[at..end] != bytes[..end - at] && at != 2);
        flight[at..end].copy_from_slice(&bytes[..end - at]);
        let (mut host, mut controller) = (client(&psks), server(&psks));
        host.take_outgoing();
        let mut failed = false;
        for (number, flight) in flights.iter().enumerate() {
            let end = if number == 1 { &mut host } else { &mut controller };
            let mut rest = &flight[..];
            while !rest.is_empty() && !failed {
                let header = end.wanted(&rest[..rest.len().min(5)]);
                let Some((record, behind)) = rest.split_at_checked(5 + header) else {
                    failed = true;
                    break;
                };
                failed |= end.receive(&mut record.to_vec()).is_err();
                rest = behind;
            }
        }
        prop_assert!(failed || !(host.is_complete() && controller.is_complete()));
    }

    #[test]
    fn any_records_are_an_error_or_nothing(
        parts in prop::collection::vec((20_u8..24, prop::collection::vec(any::<u8>(), 0..200)), 1..6),
    ) {
        for mut end in [client(&keys()), server(&keys())] {
            end.take_outgoing();
            for (content, plaintext) in &parts {
                let mut record = record(*content, plaintext);
                prop_assert_eq!(end.wanted(&record), 0);
                if end.receive(&mut record).is_err() {
                    break;
                }
            }
            prop_assert!(!end.is_complete());
        }
    }
}
