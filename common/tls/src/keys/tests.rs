use super::*;
use crate::agreed::{Agreed, Transcript};
use crate::group::{Group, Private};
use crate::record::{Opened, Opener};
use crate::tests::rfc8448 as trace;
use crate::tests::{SHA256, SHA384, hex};
use crate::wire::Role;

fn secret(digits: &str) -> Secret {
    Secret::copy_of(&hex(digits))
}

#[test]
fn the_early_secret_and_the_binder_are_those_of_rfc_8448() {
    let early = Schedule::early(Hash::Sha256, &secret(trace::PSK));
    assert_eq!(early.secret, secret("9b2188e9b2fc6d64d71dc329900e20bb41915000f678aa839cbb797cb7d8332c"));
    // A key of a ticket has another label than an external one.
    let binder_key = early.derive("res binder", &[]);
    assert_eq!(binder_key, secret("69fe131a3bbad5d63c64eebcc30e395b9d8107726a13d074e389dbc8a4e47256"));
    let hello = &hex(trace::CLIENT_HELLO)[5..];
    let binder = secret("3add4fb2d8fdf822a0ca3cf7678ef5e88dae990141c5924d57bb6fa31b9e5f9d");
    assert_eq!(&hello[hello.len() - 32..], binder.expose());
    let before_binders = &hello[..hello.len() - 35];
    assert_eq!(finished(Hash::Sha256, &binder_key, before_binders), binder);
    assert_eq!(
        early.binder(before_binders),
        finished(Hash::Sha256, &early.derive("ext binder", &[]), before_binders)
    );
    assert_ne!(early.binder(before_binders), binder);
}

#[test]
fn the_handshake_of_rfc_8448_has_these_keys() {
    let server = secret("de5b4476e7b490b2652d338acbf2948066f255f9440e23b98fc69835298dc107");
    let seed = Secret::copy_of(&[server.expose(), &[0; 32]].concat());
    let private = Private::new(Group::X25519, &seed).unwrap();
    let shared =
        private.agree(&hex("e4ffb68ac05f8d96c99da26698346c6be16482badddafe051a66b4f18d668f0b")).unwrap();
    assert_eq!(shared, secret("f44194756ff9ec9d25180635d66ea6824c6ab3bf179977be37f723570e7ccb2e"));
    assert_eq!(private.public(), hex("121761ee42c333e1b9e77b60dd57c2053cd94512ab47f115e86eff50942cea31"));

    let mut transcript = Transcript::default();
    transcript.push(&hex(trace::CLIENT_HELLO)[5..]);
    transcript.push(&hex(trace::SERVER_HELLO)[5..]);
    let agreed = Agreed::new(vec![], &secret(trace::PSK), SHA256, &shared, &transcript);
    let keys = agreed.keys_of(Role::Server);
    assert_eq!(keys.secret, secret("fe927ae271312e8bf0275b581c54eef020450dc4ecffaa05a1a35d27518e7803"));
    assert_eq!(keys.key(), hex("27c6bdc0a3dcea39a47326d79bc9e4ee"));
    assert_eq!([&keys.salt()[..], keys.iv()].concat(), hex("9569ecdd4d0536705e9ef725"));
    let keys = agreed.keys_of(Role::Client);
    assert_eq!(keys.secret, secret("2faac08f851d35fea3604fcb4de82dc62c9b164a70974d0462e27f1ab278700f"));
    assert_eq!(keys.key(), hex("b1530806f4adfeac83f1413032bbfa82"));
    assert_eq!([&keys.salt()[..], keys.iv()].concat(), hex("eb50c16be7654abf99dd06d9"));

    // EncryptedExtensions and Finished in one record.
    let mut record = hex(trace::SERVER_FLIGHT);
    let (_, range) = Opener::new(agreed.keys_of(Role::Server), Role::Client).decrypt(&mut record).unwrap();
    let (extensions, message) = record[range].split_at(80 - 36);
    transcript.push(extensions);
    assert_eq!(message[4..], *agreed.finished_of(Role::Server, &transcript).expose());
    transcript.push(message);

    let application = agreed.application(&transcript);
    assert_eq!(
        application.client.secret,
        secret("2abbf2b8e381d23dbebe1dd2a7d16a8bf484cb4950d23fb7fb7fa8547062d9a1")
    );
    assert_eq!(
        application.server.secret,
        secret("cc21f1bf8feb7dd5fa505bd9c4b468a9984d554a993dc49e6d285598fb672691")
    );
    assert_eq!(application.server.key(), hex("e857c690a34c5a9129d833619684f95e"));
    assert_eq!(
        [&application.server.salt()[..], application.server.iv()].concat(),
        hex("0685d6b561aab9ef1013faf9")
    );

    let records = [
        (application.client, Role::Server, trace::CLIENT),
        (application.server, Role::Client, trace::SERVER),
    ];
    for (keys, role, [data, alert]) in records {
        let (mut opener, mut data, mut alert) = (Opener::new(keys, role), hex(data), hex(alert));
        assert_eq!(opener.open(&mut data), Ok(Opened::Data(5..55)));
        assert_eq!(data[5..55], (0..50).collect::<Vec<u8>>());
        assert_eq!(opener.open(&mut alert), Ok(Opened::Closed));
        assert_eq!(opener.keys().sequence(), [0, 0, 0, 0, 0, 0, 0, 2]);
    }
}

#[test]
fn the_next_keys_are_others_and_begin_to_count() {
    for (suite, key_bytes) in [(SHA256, 16), (SHA384, 32)] {
        let hash = suite.hash();
        let mut keys = TrafficKeys::new(suite, Secret::copy_of(&vec![1; hash.length()]));
        assert_eq!(keys.key().len(), key_bytes);
        keys.count();
        assert_eq!((keys.records(), keys.sequence()), (1, [0, 0, 0, 0, 0, 0, 0, 1]));
        let next = keys.next();
        assert_eq!((next.suite(), next.records()), (suite, 0));
        assert_ne!((next.key(), next.iv()), (keys.key(), keys.iv()));
        assert_eq!(next.secret, expand_label(hash, &keys.secret, "traffic upd", &[], hash.length()));
    }
}

#[test]
fn a_nonce_is_the_vector_and_the_number() {
    let mut keys = TrafficKeys::new(SHA256, Secret::copy_of(&[1; 32]));
    let vector = [&keys.salt()[..], keys.iv()].concat();
    assert_eq!(keys.nonce(), *vector);
    keys.set_records(0x0102_0304_0506_0708);
    let expected: Vec<u8> =
        vector.iter().zip([0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]).map(|(a, b)| a ^ b).collect();
    assert_eq!(keys.nonce(), *expected);
    let shown = format!("{keys:?}");
    assert_eq!(shown, "TrafficKeys { suite: Aes128GcmSha256, sequence: 72623859790382856, .. }");
}
