//! Handshakes and records that are cut or changed at every byte, and what comes beside data.

use ringfab_fabric::tcp::TcpEvent;
use ringfab_spec::tcp::IcResp;
use ringfab_tls::{Alert, ContentType, Opened, Sealer, TlsError};

use crate::raw::{RESPONSE_BYTES, RawHost, Secured, command, ic_req};
use crate::support::{Pair, known, required};

/// Lengths of the flights of a host's handshake.
fn flights(pair: &mut Pair) -> Vec<usize> {
    let mut lengths = Vec::new();
    let secured = RawHost::connect(pair.listening).secure(pair, &known(), |_, bytes| {
        lengths.push(bytes.len());
        true
    });
    assert!(secured.is_ok(), "a handshake");
    drop(secured);
    pair.drained();
    assert!(lengths.len() == 2 && lengths[0] > 150 && lengths[1] > 50, "{lengths:?}");
    lengths
}

fn nobody_came(pair: &mut Pair) {
    pair.drained();
    assert!(pair.accepted.is_empty(), "nobody was handed out");
    assert!(!pair.target.events.iter().any(|event| matches!(event, TcpEvent::Incoming(_))));
}

#[test]
fn a_handshake_that_is_cut_anywhere_ends_and_leaves_nothing() {
    let mut pair = Pair::over_loopback(required());
    for (cut_flight, length) in flights(&mut pair).into_iter().enumerate() {
        for cut in 0..length {
            let host = RawHost::connect(pair.listening);
            let result = host.secure(&mut pair, &known(), |flight, bytes| {
                let is_cut = flight == cut_flight;
                if is_cut {
                    bytes.truncate(cut);
                }
                !is_cut
            });
            let (mut host, _) = result.err().expect("it was cut");
            host.end();
            nobody_came(&mut pair);
        }
    }
}

#[test]
fn a_handshake_that_is_changed_anywhere_fails() {
    let mut pair = Pair::over_loopback(required());
    let mut succeeded = 0;
    for (changed_flight, length) in flights(&mut pair).into_iter().enumerate() {
        for at in 0..length {
            let host = RawHost::connect(pair.listening);
            let result = host.secure(&mut pair, &known(), |flight, bytes| {
                if flight == changed_flight {
                    bytes[at] ^= 1 << (at % 8);
                }
                // A length that has become larger has the target wait for what never comes.
                flight != changed_flight || changed_flight == 1
            });
            match result {
                // Nobody looks at the version of a record in clear text (RFC 8446, section 5.1).
                Ok(mut secured) => {
                    secured.send(&mut pair, ContentType::ApplicationData, &ic_req());
                    secured.host.end();
                    match secured.receive(&mut pair) {
                        Some(Ok((Opened::Data(_), bytes))) => {
                            assert_eq!(bytes.len(), IcResp::SIZE);
                            assert_eq!(changed_flight, 1);
                            succeeded += 1;
                        }
                        Some(Ok((opened, _))) => panic!("{opened:?} at {at}"),
                        Some(Err(_)) | None => {}
                    }
                }
                Err((mut host, _)) => host.end(),
            }
            nobody_came(&mut pair);
        }
    }
    assert!(succeeded <= 2, "{succeeded}: the version of ChangeCipherSpec, and nothing else");
}

#[test]
fn a_record_that_is_cut_anywhere_ends_the_connection() {
    let mut pair = Pair::over_loopback(required());
    let whole = Secured::with(&mut pair, &known()).seal(ContentType::ApplicationData, &ic_req()).len();
    for cut in 0..=whole {
        let mut host = Secured::with(&mut pair, &known());
        let record = host.seal(ContentType::ApplicationData, &ic_req());
        host.host.send(&mut pair, &record[..cut]);
        if cut == whole {
            assert_eq!(host.receive_data(&mut pair, IcResp::SIZE).len(), IcResp::SIZE);
        }
        host.host.end();
        nobody_came(&mut pair);
    }
}

#[test]
fn a_record_that_is_changed_anywhere_is_answered_with_an_alert() {
    let mut pair = Pair::over_loopback(required());
    let whole = Secured::with(&mut pair, &known()).seal(ContentType::ApplicationData, &ic_req()).len();
    for at in 0..whole {
        let mut host = Secured::with(&mut pair, &known());
        let mut record = host.seal(ContentType::ApplicationData, &ic_req());
        record[at] ^= 1 << (at % 8);
        host.host.send(&mut pair, &record);
        host.host.end();
        match host.receive(&mut pair) {
            Some(Err(TlsError::PeerAlert { alert, .. })) => {
                let expected = if at == 0 { Alert::UNEXPECTED_MESSAGE } else { Alert::BAD_RECORD_MAC };
                assert!(alert == expected || at < 5, "{alert} at {at}");
            }
            // Of a record that has become longer the rest is missing.
            None => assert!((3..5).contains(&at), "no alert at {at}"),
            other => panic!("{other:?} at {at}"),
        }
        nobody_came(&mut pair);
    }
}

#[test]
fn an_end_without_close_notify_is_told_apart_from_one_with_it() {
    for (notifies, expected) in [
        (true, "the peer closed the connection"),
        (false, "the connection was cut off: its stream ended without TLS's close_notify"),
    ] {
        let mut pair = Pair::over_loopback(required());
        let mut host = Secured::adopted(&mut pair, &known());
        if notifies {
            host.send(&mut pair, ContentType::Alert, &Alert::CLOSE_NOTIFY.to_bytes());
        }
        host.host.end();
        assert_eq!(pair.target_end(), expected);
        pair.drained();
    }
}

#[test]
fn a_record_cut_on_an_adopted_connection_is_a_truncation_and_a_changed_one_is_told() {
    let mut pair = Pair::over_loopback(required());
    let mut host = Secured::adopted(&mut pair, &known());
    let record = host.seal(ContentType::ApplicationData, &command(2));
    host.host.send(&mut pair, &record[..record.len() - 1]);
    host.host.end();
    assert!(pair.target_end().contains("cut off"));
    let mut host = Secured::adopted(&mut pair, &known());
    let mut record = host.seal(ContentType::ApplicationData, &command(2));
    record[20] ^= 1;
    host.host.send(&mut pair, &record);
    let answer = host.receive(&mut pair).expect("an alert");
    assert!(matches!(answer, Err(TlsError::PeerAlert { alert: Alert::BAD_RECORD_MAC, .. })), "{answer:?}");
    host.host.end();
    let reason = pair.target_end();
    assert!(reason.starts_with("TLS: a record cannot be decrypted"), "{reason}");
    pair.drained();
}

#[test]
fn an_alert_of_the_peer_is_the_reason_of_the_end() {
    let mut pair = Pair::over_loopback(required());
    let mut host = Secured::adopted(&mut pair, &known());
    host.send(&mut pair, ContentType::Alert, &Alert::INTERNAL_ERROR.to_bytes());
    let reason = pair.target_end();
    assert!(reason.starts_with("TLS: ") && reason.contains("internal_error"), "{reason}");
    host.host.end();
    pair.drained();
}

#[test]
fn data_may_come_in_records_of_any_size_and_empty_ones_between() {
    let mut pair = Pair::over_loopback(required());
    let mut host = Secured::with(&mut pair, &known());
    let data = ContentType::ApplicationData;
    for byte in ic_req() {
        host.send(&mut pair, data, &[byte]);
        host.send(&mut pair, data, &[]);
    }
    host.receive_data(&mut pair, IcResp::SIZE);
    for cid in 1..5 {
        command(cid).iter().for_each(|byte| host.send(&mut pair, data, &[*byte]));
        host.receive_data(&mut pair, RESPONSE_BYTES);
    }
    // And many messages in one record.
    let many: Vec<u8> = (1..30).flat_map(command).collect();
    host.send(&mut pair, data, &many);
    host.receive_data(&mut pair, 29 * RESPONSE_BYTES);
    host.host.end();
    pair.drained();
}

#[test]
fn data_may_follow_the_handshake_in_the_same_segment() {
    let mut pair = Pair::over_loopback(required());
    let mut finished = Vec::new();
    let host = RawHost::connect(pair.listening).secure(&mut pair, &known(), |flight, bytes| {
        if flight == 1 {
            finished = std::mem::take(bytes);
        }
        true
    });
    let mut host = host.map_err(|(_, error)| error).expect("a handshake");
    let records = [ic_req(), command(1)].map(|bytes| host.seal(ContentType::ApplicationData, &bytes));
    host.host.send(&mut pair, &[finished, records.concat()].concat());
    host.receive_data(&mut pair, IcResp::SIZE + RESPONSE_BYTES);
    host.host.end();
    pair.drained();
}

#[test]
fn new_keys_are_followed_and_given_to_who_asks_for_them() {
    let mut pair = Pair::over_loopback(required());
    let mut host = Secured::adopted(&mut pair, &known());
    let data = ContentType::ApplicationData;
    for cid in 2..5 {
        let mut record = [0; 64];
        let length = host.sealer.update(&mut record).expect("sealed");
        host.host.send(&mut pair, &record[..length]);
        host.send(&mut pair, data, &command(cid));
        host.receive_data(&mut pair, RESPONSE_BYTES);
    }
    // One that asks for the same.
    host.send(&mut pair, ContentType::Handshake, &[24, 0, 0, 1, 1]);
    host.sealer = Sealer::new(host.sealer.keys().next());
    let before = host.opener.keys().clone();
    host.send(&mut pair, data, &command(6));
    host.receive_data(&mut pair, RESPONSE_BYTES);
    assert_ne!(host.opener.keys().key(), before.key(), "the target has new keys");
    host.host.end();
    pair.drained();
}

#[test]
fn messages_of_a_handshake_that_must_not_come_end_the_connection() {
    // A ticket from a client, a second ClientHello, and a message that is interrupted by data.
    for message in [&[4, 0, 0, 1, 0][..], &[1, 0, 0, 0], &[24, 0]] {
        let mut pair = Pair::over_loopback(required());
        let mut host = Secured::adopted(&mut pair, &known());
        host.send(&mut pair, ContentType::Handshake, message);
        host.send(&mut pair, ContentType::ApplicationData, &command(2));
        let reason = pair.target_end();
        assert!(reason.starts_with("TLS: "), "{message:?}: {reason}");
        let answer = host.receive(&mut pair).expect("an alert");
        assert!(matches!(answer, Err(TlsError::PeerAlert { .. })), "{answer:?}");
        host.host.end();
        pair.drained();
    }
}
