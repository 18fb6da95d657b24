use super::*;
use crate::tests::{SHA256, SHA384};
use ringfab_auth::Secret;

fn keys(suite: CipherSuite) -> TrafficKeys {
    TrafficKeys::new(suite, Secret::copy_of(&vec![3; suite.hash().length()]))
}

fn pair(suite: CipherSuite) -> (Sealer, Opener) {
    (Sealer::new(keys(suite)), Opener::new(keys(suite), Role::Client))
}

fn sealed(sealer: &mut Sealer, content: ContentType, plaintext: &[u8]) -> Vec<u8> {
    let mut record = vec![0; plaintext.len() + SEALED_OVERHEAD];
    assert_eq!(sealer.seal(content, &[plaintext], &mut record), Ok(record.len()));
    record
}

/// A record with any inner plaintext.
fn raw(keys: &TrafficKeys, inner: &[u8]) -> Vec<u8> {
    let length = inner.len() + TAG_BYTES;
    let header = Header { content: ContentType::ApplicationData, length }.to_bytes();
    let mut record = [&header[..], inner, &[0; TAG_BYTES]].concat();
    Protection::new(keys.clone()).seal(&mut record);
    record
}

#[test]
fn records_of_every_length_are_opened() {
    for suite in [SHA256, SHA384] {
        let (mut sealer, mut opener) = pair(suite);
        for length in [0, 1, 15, 16, 17, 4096, PLAINTEXT_BYTES_MAX - 1, PLAINTEXT_BYTES_MAX] {
            // Zeroes at the end are data, not padding.
            let mut record = sealed(&mut sealer, ContentType::ApplicationData, &vec![0; length]);
            assert_eq!(Opener::wanted(&record[..5]), record.len() - 5);
            assert_eq!(opener.open(&mut record), Ok(Opened::Data(5..5 + length)));
            assert!(record[5..5 + length].iter().all(|&byte| byte == 0));
        }
        assert_eq!((sealer.keys().records(), opener.keys().records()), (8, 8));
    }
}

#[test]
fn what_cannot_be_sealed_is_refused_and_not_counted() {
    let (mut sealer, _) = pair(SHA256);
    let mut output = vec![0; PLAINTEXT_BYTES_MAX + SEALED_OVERHEAD + 1];
    let plaintext = vec![0; PLAINTEXT_BYTES_MAX + 1];
    assert_eq!(
        sealer.seal(ContentType::ApplicationData, &[&plaintext], &mut output),
        Err(TlsError::Sealing(PLAINTEXT_BYTES_MAX + 1))
    );
    let short = &mut output[..SEALED_OVERHEAD + 1];
    assert_eq!(sealer.seal(ContentType::ApplicationData, &[&[1, 2]], short), Err(TlsError::Sealing(2)));
    assert_eq!(sealer.keys().records(), 0);
}

#[test]
fn padding_is_taken_off_and_what_is_nothing_else_is_refused() {
    for (inner, expected) in [
        (&[7, 23][..], Ok(Opened::Data(5..6))),
        (&[7, 23, 0, 0, 0], Ok(Opened::Data(5..6))),
        (&[7, 0, 23, 0], Ok(Opened::Data(5..7))),
        (&[23], Ok(Opened::Data(5..5))),
        (&[1, 0, 21, 0], Ok(Opened::Closed)),
        (&[4, 0, 0, 0, 22, 0], Ok(Opened::Nothing)),
        (&[0], Err("a record has no content but padding")),
        (&[0, 0, 0], Err("a record has no content but padding")),
        (&[7, 24], Err("a record has a content that is not known")),
        (&[1, 20], Err("a record has a content that is not known")),
        (&[22], Err("a record other than data is empty")),
        (&[21], Err("a record other than data is empty")),
    ] {
        let mut opener = Opener::new(keys(SHA256), Role::Client);
        let opened = opener.open(&mut raw(&keys(SHA256), inner)).map_err(|error| error.to_string());
        assert_eq!(opened, expected.map_err(str::to_owned), "{inner:?}");
    }
    let mut longest = vec![0; PLAINTEXT_BYTES_MAX + 1];
    longest[0] = 23;
    let mut opener = Opener::new(keys(SHA256), Role::Client);
    assert_eq!(opener.open(&mut raw(&keys(SHA256), &longest)), Ok(Opened::Data(5..5)));
    longest.push(0);
    let mut opener = Opener::new(keys(SHA256), Role::Client);
    let error = opener.open(&mut raw(&keys(SHA256), &longest)).unwrap_err();
    assert_eq!(error.alert(), Some(Alert::RECORD_OVERFLOW));
}

#[test]
fn a_record_that_is_changed_anywhere_or_comes_in_another_order_is_refused() {
    let (mut sealer, mut opener) = pair(SHA384);
    let record = sealed(&mut sealer, ContentType::ApplicationData, b"eleven byte");
    for bit in 0..record.len() * 8 {
        let mut changed = record.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert!(opener.open(&mut changed).is_err(), "bit {bit}");
    }
    for length in 0..record.len() {
        assert!(opener.open(&mut record[..length].to_vec()).is_err(), "{length} bytes");
    }
    let second = sealed(&mut sealer, ContentType::ApplicationData, b"second");
    assert_eq!(opener.open(&mut second.clone()), Err(TlsError::Undecryptable));
    assert!(opener.open(&mut record.clone()).is_ok());
    assert_eq!(opener.open(&mut record.clone()), Err(TlsError::Undecryptable));
    assert!(opener.open(&mut second.clone()).is_ok());
    let clear = [&[23, 3, 3, 0, 16][..], &[0; 16]].concat();
    assert_eq!(opener.open(&mut clear.clone()), Err(TlsError::Undecryptable));
    for content in [20, 21, 22] {
        let mut clear = vec![content, 3, 3, 0, 1, 1];
        assert_eq!(opener.open(&mut clear).unwrap_err().to_string(), "a record is not encrypted");
    }
}

#[test]
fn keys_are_updated_in_both_directions() {
    let (mut sealer, mut opener) = pair(SHA256);
    let mut record = sealed(&mut sealer, ContentType::Handshake, &[24, 0, 0, 1, 1]);
    assert_eq!(opener.open(&mut record), Ok(Opened::UpdateRequested));
    // Both count from zero again, but the sealer has not been told.
    let mut old = sealed(&mut sealer, ContentType::ApplicationData, b"old");
    assert_eq!(opener.open(&mut old), Err(TlsError::Undecryptable));

    let (mut sealer, mut opener) = pair(SHA256);
    for _ in 0..3 {
        let mut record = [0; 64];
        let length = sealer.update(&mut record).unwrap();
        assert_eq!(opener.open(&mut record[..length]), Ok(Opened::Nothing));
        assert_eq!((sealer.keys().records(), opener.keys().records()), (0, 0));
        let mut data = sealed(&mut sealer, ContentType::ApplicationData, b"data");
        assert_eq!(opener.open(&mut data), Ok(Opened::Data(5..9)));
    }
    assert_eq!(sealer.keys().key(), keys(SHA256).next().next().next().key());
}

#[test]
fn keys_that_are_worn_seal_alerts_alone() {
    let (mut sealer, _) = pair(SHA256);
    sealer.0.keys.set_records(RECORDS_MAX - 1);
    sealed(&mut sealer, ContentType::ApplicationData, b"last");
    let mut record = [0; 64];
    let refused = sealer.seal(ContentType::ApplicationData, &[b"more"], &mut record).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the keys of this connection have protected as many records as they may: a new connection makes new ones"
    );
    assert_eq!(sealer.update(&mut record), Err(TlsError::KeysWorn));
    assert_eq!(sealer.keys().records(), RECORDS_MAX);
    let length = sealer.alert(refused.alert().unwrap(), &mut record).unwrap();
    let mut keys = keys(SHA256);
    keys.set_records(RECORDS_MAX);
    assert_eq!(Opener::new(keys, Role::Client).open(&mut record[..length]), Ok(Opened::Closed));
}

/// Each costs this end more than the peer.
#[test]
fn records_without_data_are_taken_only_so_often_one_after_the_other() {
    type Make = fn(&mut Sealer) -> Vec<u8>;
    let updated: Make = |sealer| {
        let mut record = [0; 64];
        let length = sealer.update(&mut record).unwrap();
        record[..length].to_vec()
    };
    let rows: [(Make, &str); 4] = [
        (|sealer| sealed(sealer, ContentType::ApplicationData, &[]), "nothing"),
        (|sealer| sealed(sealer, ContentType::Handshake, &[4, 0, 0, 0]), "a ticket"),
        (|sealer| sealed(sealer, ContentType::Alert, &[1, 90]), "user_canceled"),
        (updated, "KeyUpdate"),
    ];
    for (make, name) in rows {
        let (mut sealer, mut opener) = pair(SHA256);
        for _ in 0..3 {
            for number in 0..WITHOUT_DATA_MAX {
                assert!(opener.open(&mut make(&mut sealer)).is_ok(), "{name}: {number}");
            }
            let mut data = sealed(&mut sealer, ContentType::ApplicationData, &[7]);
            assert_eq!(opener.open(&mut data), Ok(Opened::Data(5..6)), "{name}");
        }
        (0..WITHOUT_DATA_MAX).for_each(|_| assert!(opener.open(&mut make(&mut sealer)).is_ok(), "{name}"));
        let refused = opener.open(&mut make(&mut sealer)).unwrap_err();
        assert_eq!(refused.to_string(), "too many records without data follow one another", "{name}");
        assert_eq!(refused.alert(), Some(Alert::UNEXPECTED_MESSAGE), "{name}");
    }
}
