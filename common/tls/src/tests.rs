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
    fn find(&self, identity: &[u8]) -> Result<Vec<(Secret, CipherSuite)>, String> {
        self.0.get(identity).map(|key| vec![key.clone()]).ok_or_else(|| "nobody has it".to_owned())
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

/// Records of the resumed handshake of RFC 8448 (section 4).
pub(crate) mod rfc8448 {
    pub(crate) const PSK: &str = "4ecd0eb6ec3b4d87f5d6028f922ca4c5851a277fd41311c9e62d2c9492e1c4f3";

    /// It offers early data.
    pub(crate) const CLIENT_HELLO: &str = "\
        1603010200010001fc03031bc3ceb6bbe39cff938355b5a50adb6db21b7a6af649d7b4bc419d7876487d95000006130113031302\
        010001cd0000000b0009000006736572766572ff01000100000a00140012001d0017001800190100010101020103010400330026\
        0024001d0020e4ffb68ac05f8d96c99da26698346c6be16482badddafe051a66b4f18d668f0b002a0000002b0003020304000d00\
        20001e040305030603020308040805080604010501060102010402050206020202002d00020101001c0002400100150057000000\
        00000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000\
        0000000000000000000000000000000000000000000000000000000000000000002900dd00b800b22c035d829359ee5ff7af4ec9\
        00000000262a6494dc486d2c8a34cb33fa90bf1b0070ad3c498883c9367c09a2be785abc55cd226097a3a982117283f82a03a143\
        efd3ff5dd36d64e861be7fd61d2827db279cce145077d454a3664d4e6da4d29ee03725a6a4dafcd0fc67d2aea70529513e3da267\
        7fa5906c5b3f7d8f92f228bda40dda721470f9fbf297b5aea617646fac5c03272e970727c621a79141ef5f7de6505e5bfbc388e9\
        3343694093934ae4d357fad6aacb0021203add4fb2d8fdf822a0ca3cf7678ef5e88dae990141c5924d57bb6fa31b9e5f9d";

    pub(crate) const SERVER_HELLO: &str = "\
        16030300600200005c03033ccfd2dec890222763472ae8136777c9d7358777bb66e91ea5122495f559ea2d00130100003400290002\
        000000330024001d0020121761ee42c333e1b9e77b60dd57c2053cd94512ab47f115e86eff50942cea31002b00020304";

    /// EncryptedExtensions and Finished.
    pub(crate) const SERVER_FLIGHT: &str = "\
        1703030061dc48237b4b879f50d0d4d262ea8b4716eb40ddc1eb957e11126e8a7149c2d012d37a7115957e64ce30008b9e0323f2c0\
        5a9c1c77b4f37849a695ab255060a33fee770ca95cb8486bfd0843b87024865ca35cc41c4e515c64dcb1369f98635bc7a5";

    /// Data and an alert.
    pub(crate) const CLIENT: [&str; 2] = [
        "1703030043b1cebce242aa201be9ae5e1cb2a9aa4b33d4e866af1edb068919237741aa031d7a74d491c99b9d4e232b74206bc6fbaa04\
         fe78be44a9b4f54320a17eb76992afac3103",
        "17030300130facce3246bdfc6369838d6a82ae6de5d422dc",
    ];
    pub(crate) const SERVER: [&str; 2] = [
        "1703030043275e9f20acff57bc000657d3867df039cccf79047884cf75771746f740b5a83f462a0954c3581393a203a25a7dd14141ef\
         1a37900cdb62ff62dee1ba39ab2590cbf194",
        "17030300135b18af444e8e1eec7158fb62d8f2577d37ba5d",
    ];
}

mod failures;
