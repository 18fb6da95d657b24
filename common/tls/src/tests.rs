//! Both ends against each other, and what several tests use.

use std::collections::HashMap;
use std::sync::Arc;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use ringfab_auth::{CipherSuite, Secret};

use crate::{
    ContentType, Handshake, Opened, Opener, Psk, PskStore, SEALED_OVERHEAD, Sealer, Session, TlsError,
};

/// The bytes of hexadecimal digits.
pub(crate) fn hex(digits: &str) -> Vec<u8> {
    let digits: Vec<u8> = digits.bytes().filter(u8::is_ascii_hexdigit).collect();
    let pairs = digits.chunks_exact(2);
    assert!(pairs.remainder().is_empty());
    pairs.map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

pub(crate) const SHA256: CipherSuite = CipherSuite::Aes128GcmSha256;
pub(crate) const SHA384: CipherSuite = CipherSuite::Aes256GcmSha384;

pub(crate) fn psk(identity: &str, byte: u8, suite: CipherSuite) -> Psk {
    let secret = Secret::copy_of(&vec![byte; suite.hash().length()]);
    Psk { identity: identity.into(), secret, suite }
}

/// What a server knows.
#[derive(Debug, Default)]
pub(crate) struct Store(HashMap<Vec<u8>, (Secret, CipherSuite)>);

impl Store {
    pub(crate) fn of(psks: &[Psk]) -> Arc<Self> {
        let entry = |psk: &Psk| (psk.identity.clone(), (psk.secret.clone(), psk.suite));
        Arc::new(Self(psks.iter().map(entry).collect()))
    }
}

impl PskStore for Store {
    fn find(&self, identity: &[u8]) -> Option<(Secret, CipherSuite)> {
        self.0.get(identity).cloned()
    }
}

pub(crate) fn random(seed: u64) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(seed)
}

pub(crate) fn client(psks: &[Psk]) -> Handshake {
    Handshake::client(psks.to_vec(), &mut random(1)).unwrap()
}

pub(crate) fn server(psks: &[Psk]) -> Handshake {
    Handshake::server(Store::of(psks), &mut random(2))
}

/// The records of a flight.
pub(crate) fn records(mut flight: &[u8]) -> Vec<Vec<u8>> {
    let mut records = Vec::new();
    while !flight.is_empty() {
        let header = &flight[..5];
        assert!(crate::header::wanted(header) > 0, "an empty record");
        let (record, rest) = flight.split_at(5 + crate::header::wanted(header));
        records.push(record.to_vec());
        flight = rest;
    }
    records
}

/// Everything that one end has to say comes to the other.
pub(crate) fn deliver(from: &mut Handshake, to: &mut Handshake) -> Result<bool, TlsError> {
    let Some(flight) = from.take_outgoing() else { return Ok(false) };
    for mut record in records(&flight) {
        to.receive(&mut record)?;
    }
    Ok(true)
}

/// Until both are complete, or one of them fails: then the other one gets the alert.
pub(crate) fn shake(
    client: &mut Handshake,
    server: &mut Handshake,
) -> Result<(), (TlsError, Option<TlsError>)> {
    for turn in 0..10 {
        let (from, to) =
            if turn % 2 == 0 { (&mut *client, &mut *server) } else { (&mut *server, &mut *client) };
        if let Err(error) = deliver(from, to) {
            let answer = deliver(to, from).err();
            return Err((error, answer));
        }
        if client.is_complete() && server.is_complete() {
            return Ok(());
        }
    }
    panic!("{client:?} and {server:?} do not come to an end");
}

pub(crate) fn sessions(mut client: Handshake, mut server: Handshake) -> (Session, Session) {
    shake(&mut client, &mut server).unwrap();
    (client.finish().unwrap(), server.finish().unwrap())
}

#[test]
fn both_ends_agree_with_either_suite() {
    for suite in [SHA256, SHA384] {
        let psks = [psk("NVMe0R01 host sub", 7, suite)];
        let (host, controller) = sessions(client(&psks), server(&psks));
        assert_eq!((host.suite, controller.suite), (suite, suite));
        assert_eq!((&host.identity[..], &controller.identity), (&b"NVMe0R01 host sub"[..], &host.identity));
        for (send, receive) in [(host.send, controller.receive), (controller.send, host.receive)] {
            assert_eq!((send.key(), send.iv(), send.salt()), (receive.key(), receive.iv(), receive.salt()));
            let (mut sealer, mut opener) = (Sealer::new(send), Opener::new(receive, crate::Role::Server));
            for number in 0..3 {
                let mut record = vec![0; 100 + SEALED_OVERHEAD];
                let pieces: [&[u8]; 3] = [&[number; 60], &[], &[number; 40]];
                assert_eq!(sealer.seal(ContentType::ApplicationData, &pieces, &mut record), Ok(record.len()));
                assert_eq!(opener.open(&mut record), Ok(Opened::Data(5..105)));
                assert_eq!(record[5..105], [number; 100]);
            }
        }
    }
}
