//! Records of TLS from a hostile peer: noise as records, or those of a good handshake with some bits changed, for
//! either end; and records and messages after the handshake.
#![cfg_attr(feature = "libfuzzer", no_main)]

use std::sync::Arc;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use ringfab_auth::{CipherSuite, Secret};
use ringfab_fuzz::fuzz_target;
use ringfab_tls::{
    ContentType, ControlRecords, HEADER_BYTES, Handshake, Opener, Psk, PskStore, RECORD_BYTES_MAX, Role,
    SEALED_OVERHEAD, Sealer, Session,
};

fuzz_target!(|input: &[u8]| {
    let [flags, step, noise @ ..] = input else { return };
    stream(noise);
    let Some((host, controller)) = session(*flags, *step, noise) else { return };
    after(&host, &controller, *flags, noise);
});

#[derive(Debug)]
struct Store(Vec<Psk>);

impl PskStore for Store {
    fn find(&self, identity: &[u8]) -> Result<Vec<(Secret, CipherSuite)>, String> {
        let found = self.0.iter().find(|psk| psk.identity == identity).ok_or("nobody has it")?;
        Ok(vec![(found.secret.clone(), found.suite)])
    }
}

fn psks(flags: u8) -> Vec<Psk> {
    let psk = |identity: &str, suite: CipherSuite| Psk {
        identity: identity.into(),
        secret: Secret::copy_of(&vec![7; suite.hash().length()]),
        suite,
    };
    let mut psks = vec![psk("NVMe0R02 a b", CipherSuite::Aes256GcmSha384)];
    psks.insert(usize::from(flags & 1), psk("NVMe0R01 a b", CipherSuite::Aes128GcmSha256));
    psks
}

fn client(flags: u8) -> Handshake {
    Handshake::client(psks(flags), &mut ChaCha8Rng::seed_from_u64(1)).expect("keys that can be offered")
}

fn server(flags: u8) -> Handshake {
    Handshake::server(Arc::new(Store(psks(flags))), &mut ChaCha8Rng::seed_from_u64(2))
}

/// A stream of bytes, for either end, cut into records as its owner cuts it.
fn stream(noise: &[u8]) {
    for mut end in [client(0), server(0)] {
        end.take_outgoing();
        let mut rest = noise;
        loop {
            let mut length = 0;
            // The header first, then the body, and no more.
            while end.wanted(&rest[..length]) > 0 {
                length += end.wanted(&rest[..length]);
                assert!(length <= RECORD_BYTES_MAX);
                if length > rest.len() {
                    return;
                }
            }
            let mut record = rest[..length].to_vec();
            if end.receive(&mut record).is_err() {
                let alert = end.take_outgoing();
                assert!(alert.is_none_or(|alert| alert.len() <= SEALED_OVERHEAD + 2));
                assert_eq!(end.receive(&mut record).err(), end.receive(&mut []).err());
                break;
            }
            rest = &rest[length..];
        }
        assert!(!end.is_complete(), "noise has completed a handshake");
    }
}

fn records(mut flight: &[u8]) -> Vec<Vec<u8>> {
    let mut records = Vec::new();
    while !flight.is_empty() {
        let (record, rest) = flight.split_at(HEADER_BYTES + Opener::wanted(&flight[..HEADER_BYTES]));
        records.push(record.to_vec());
        flight = rest;
    }
    records
}

/// A handshake in which one flight is changed, or none. What is changed never leads to a session.
fn session(flags: u8, step: u8, noise: &[u8]) -> Option<(Session, Session)> {
    let (mut host, mut controller) = (client(flags), server(flags));
    let changed = (flags & 2 != 0).then_some(step % 3);
    let mut differs = false;
    for number in 0..3 {
        let (from, to) =
            if number == 1 { (&mut controller, &mut host) } else { (&mut host, &mut controller) };
        // None: the record before has only begun a message.
        for mut record in records(&from.take_outgoing()?) {
            if changed == Some(number) {
                differs |= flip(&mut record, noise);
            }
            if to.wanted(&record) > 0 || to.receive(&mut record).is_err() {
                return None;
            }
        }
    }
    let sessions = (host.finish().ok()?, controller.finish().ok()?);
    assert!(!differs, "a changed handshake succeeds");
    Some(sessions)
}

/// Changes bits of a record, but for the version in its header, which means nothing. Whether it has.
fn flip(record: &mut [u8], noise: &[u8]) -> bool {
    let mut differs = false;
    for (at, (byte, flipped)) in record.iter_mut().zip(noise).enumerate() {
        if !(1..3).contains(&at) {
            *byte ^= flipped;
            differs |= *flipped != 0;
        }
    }
    differs
}

/// What a peer that has the keys sends, and what one without them does.
fn after(host: &Session, controller: &Session, flags: u8, noise: &[u8]) {
    let mut sealer = Sealer::new(host.send.clone());
    let mut opener = Opener::new(controller.receive.clone(), Role::Server);
    let mut control = [ControlRecords::new(Role::Client), ControlRecords::new(Role::Server)];
    let contents = [ContentType::Handshake, ContentType::Alert, ContentType::ApplicationData];
    for (number, part) in noise.chunks(16).enumerate() {
        let content = contents[(number + usize::from(flags >> 2)) % 3];
        let mut record = vec![0; part.len() + SEALED_OVERHEAD];
        sealer.seal(content, &[part], &mut record).expect("a short record");
        let opened = opener.open(&mut record);
        for control in &mut control {
            drop(control.receive(content, part));
        }
        // A KeyUpdate in the noise makes both ends differ from then on.
        if opened.is_err() || sealer.keys().records() != opener.keys().records() {
            break;
        }
    }
    let mut forged = [&[23, 3, 3, 0, u8::try_from(noise.len() % 256).expect("a byte")][..], noise].concat();
    assert!(opener.open(&mut forged).is_err(), "a record without the keys is opened");
}
