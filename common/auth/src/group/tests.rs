//! Known values, and values that are refused.

use super::*;
use crate::hash::Hash;
use crate::system_random;
use crate::tests::hex;

/// The hashes of a value and of a shared secret, computed with Python's `pow` and compared with OpenSSL.
const KNOWN: [(Group, &str, &str); 5] = [
    (
        Group::Ffdhe2048,
        "9f5425b4050feaaf99f727b3377ec34aaca1c06283819eaa6a5d940aa755b3f0",
        "f4ca9bd15ed8e32aad201eaf432f117d014c59504d0a21c4aadeb1159867b8f0",
    ),
    (
        Group::Ffdhe3072,
        "9ce8b7939a9aef0005a308caf4a714410af3d7baf175e716b9a2500778ad2acb",
        "f711eabe82aa6d0a9d123758d2a4490bb5db0401ad9237324cd11659535d5ae3",
    ),
    (
        Group::Ffdhe4096,
        "342b14146b1f376604bb10d8db6b0dcbea1b955c72e29227f9717b6534455596",
        "2f9b03bfff50b258fac4fb17f29a9fce183db236d4d7c8ddfafc1e96b52cb250",
    ),
    (
        Group::Ffdhe6144,
        "6ec740366e428d5b717f0c31d26621680ca5b243bbad6c63f39b48311e3ba89f",
        "bf10144564aa3803470e1e51a5f32e4210069a9df1efb236b2e2f0cc21b897be",
    ),
    (
        Group::Ffdhe8192,
        "e0a1f929b650d7df7b727e176058730db8f2f6eea31e73d9a4de027179a7c8ea",
        "cd89cea04cba4e19fcaca7f0d7a20b120d2cbf09b42ea8fce96b520f63cca772",
    ),
];

/// The same of NVM Express 2.4's: the hash of a value, of the answer to it, and the secret of both. Points are
/// OpenSSL's, and so are the secrets of curves. Keys and secrets of ML-KEM are those of OpenSSL, too. It cannot be
/// given the randomness of a ciphertext: that is as in `tests/transactions/exchange.py`, and OpenSSL finds the secret
/// in it.
const PARTS: [(Group, &str, &str, &str); 4] = [
    (
        Group::Secp256r1,
        "6d8ea26d44bca20f37bdf00568629aaa283275de929a595dad1e447061f85c24",
        "fb268ec85ef2d9dc17eba8671270c8228148006ce6fa3fa85e55567bd75329a0",
        "b10fac276ad19b9014f9bc2dd1ddff76bd46d2bec9bcc0367af6c2b6c94329b6",
    ),
    (
        Group::Secp384r1,
        "a822ca54de2fb27bf74e1f0333f384f86317eba5fd16cfb41ab07ea586fbe9cf",
        "838b609121440f4ee463e066be0a8d566e2bbebbbc56de6babe788be1249a105",
        "9cc45ae7fa097882f4692f909fa24a71277323fdf647f274c8cb057df85198148200e4626a2bcb0a74076a067b763093",
    ),
    (
        Group::MlKem768,
        "206c5fecc20b8f890f6954a9f5cfbfa83bb649cd97efa8df5688f0fd8c8f8b5f",
        "be9dd338da73264df2b35597a2eae6b19d65bf17240a63b4781f2b68680bfb2d",
        "c12d95ce4bac3fd31765dc7f22ff5ac2bd6a077fdc66522c217d48ff397d9010",
    ),
    (
        Group::MlKem1024,
        "71f4ab9675c0ec887309db0112b7399947cf5c08fdb1c235e9d3285ce35346c6",
        "23d832cecc46d80dcc5abf032a22edc35a6c5135a6d7d75fb5c9092f5a29b5ba",
        "06bc45cc66989f7853c3155f504328c92a61fcaf305e42b0608087830f4d8f16",
    ),
];

/// What a ciphertext has for a secret whose first bit was changed, as OpenSSL says it, for the keys above.
const REJECTED: [(Group, &str); 2] = [
    (Group::MlKem768, "f6be48ed2805c7f25d7bfedc3c2f9f9469ec9afbc645a7c13dd285eca740c3b2"),
    (Group::MlKem1024, "47d0130b6a0f2294b062ff2ca83562c5d25551b5df67ebef0092c9524fb51553"),
];

/// Secrets of these numbers: an arithmetic progression. A number that is computed with has 80h with `first` before it.
fn private(group: Group, first: u8, step: u8, start: u8) -> Private {
    let mut private = group.private(&mut system_random()).unwrap();
    for (primitive, secret) in &mut private.0 {
        for (i, byte) in (0..).zip(secret.bytes_mut()) {
            *byte = step.wrapping_mul(i).wrapping_add(start);
        }
        if !matches!(primitive, Primitive::Kem(_)) {
            secret.bytes_mut()[0] = 0x80 | first;
        }
    }
    private
}

fn controller(group: Group) -> Private {
    private(group, 1, 7, 3)
}

fn host(group: Group) -> Private {
    private(group, 2, 11, 5)
}

fn hash(bytes: &[u8]) -> Secret {
    Hash::Sha256.of(bytes)
}

#[test]
fn values_and_secrets_are_those_of_others() {
    for (group, value, shared) in KNOWN {
        let offer = controller(group).offer();
        assert_eq!(hash(&offer.value).expose(), hex(value), "{group}");
        let answer = host(group).answer(&offer.value).unwrap();
        assert_eq!(hash(answer.shared.expose()).expose(), hex(shared), "{group}");
        assert_eq!(offer.conclude(&answer.value), Ok(answer.shared));
    }
    for (group, value, answered, shared) in PARTS {
        let offer = controller(group).offer();
        let (offer_length, answer_length) = lengths(group.primitives()[0]);
        assert_eq!(hash(&offer.value[..offer_length]).expose(), hex(value), "{group}");
        let answer = host(group).answer(&offer.value).unwrap();
        assert_eq!(hash(&answer.value[..answer_length]).expose(), hex(answered), "{group}");
        assert_eq!(answer.shared.expose(), hex(shared), "{group}");
        assert_eq!(offer.conclude(&answer.value), Ok(answer.shared));
    }
}

fn lengths(primitive: Primitive) -> (usize, usize) {
    (primitive.offer_length(), primitive.answer_length())
}

#[test]
fn a_group_of_two_has_both_values_and_both_secrets_the_curve_first_and_zeroes_behind() {
    for (group, [curve, kem], padding) in [
        (Group::Secp256r1MlKem768, [PARTS[0], PARTS[2]], 3),
        (Group::Secp384r1MlKem1024, [PARTS[1], PARTS[3]], 3),
    ] {
        let offer = controller(group).offer();
        let answer = host(group).answer(&offer.value).unwrap();
        let (point, _) = lengths(group.primitives()[0]);
        let (key, ciphertext) = lengths(group.primitives()[1]);
        assert_eq!(
            [&offer.value, &answer.value].map(Vec::len),
            [point + key + padding, point + ciphertext + padding]
        );
        for (value, length, [first, second]) in
            [(&offer.value, key, [curve.1, kem.1]), (&answer.value, ciphertext, [curve.2, kem.2])]
        {
            assert_eq!(hash(&value[..point]).expose(), hex(first));
            assert_eq!(hash(&value[point..point + length]).expose(), hex(second));
            assert_eq!(value[point + length..], [0; 3]);
        }
        assert_eq!(answer.shared.expose(), [hex(curve.3), hex(kem.3)].concat());
        assert_eq!(offer.conclude(&answer.value), Ok(answer.shared));
    }
}

#[test]
fn a_value_of_another_length_or_with_something_behind_it_is_refused() {
    for group in &Group::ALL[1..] {
        let offer = controller(*group).offer();
        let answer = host(*group).answer(&offer.value).unwrap();
        assert_eq!((offer.value.len(), answer.value.len()), (group.offer_length(), group.answer_length()));
        for change in [-4_isize, -1, 1, 4] {
            let resized = |value: &[u8]| {
                let mut value = value.to_vec();
                value.resize(value.len().strict_add_signed(change), 0);
                value
            };
            assert!(
                matches!(host(*group).answer(&resized(&offer.value)), Err(InvalidValue)),
                "{group} {change}"
            );
            let resized = resized(&answer.value);
            assert_eq!(controller(*group).offer().conclude(&resized), Err(InvalidValue), "{group} {change}");
        }
        for at in
            1..=group.offer_length() - group.primitives().into_iter().map(|one| lengths(one).0).sum::<usize>()
        {
            let with_byte = |value: &[u8]| {
                let mut value = value.to_vec();
                let last = value.len() - at;
                value[last] = 1;
                value
            };
            assert!(
                matches!(host(*group).answer(&with_byte(&offer.value)), Err(InvalidValue)),
                "{group} {at}"
            );
            let padded = with_byte(&answer.value);
            assert_eq!(controller(*group).offer().conclude(&padded), Err(InvalidValue), "{group} {at}");
        }
    }
}

#[test]
fn a_point_that_is_infinite_compressed_or_beside_the_curve_is_refused() {
    for (group, length) in [(Group::Secp256r1, 32), (Group::Secp384r1, 48)] {
        let point = controller(group).offer().value;
        let with = |at: usize, byte: u8| {
            let mut value = point.clone();
            value[at] = byte;
            value
        };
        // Infinity is one byte 00h; a number may be as large as the prime.
        let mut refused =
            vec![vec![0; point.len()], with(0, 0), with(0, 2), with(0, 3), with(0, 5), with(0, 6)];
        refused.push(
            [vec![2 + (point[2 * length] & 1)], point[1..=length].to_vec(), vec![0; length + 3]].concat(),
        );
        refused.push([vec![4], vec![0; 2 * length + 3]].concat());
        refused.push([vec![4], vec![0xff; 2 * length], vec![0; 3]].concat());
        refused.extend((1..=2 * length).map(|at| with(at, point[at] ^ 1)));
        for value in refused {
            assert_eq!(value.len(), group.offer_length());
            assert!(matches!(host(group).answer(&value), Err(InvalidValue)), "{value:x?}");
            assert_eq!(host(group).offer().conclude(&value), Err(InvalidValue));
        }
        assert!(host(group).answer(&point).is_ok());
    }
}

#[test]
fn an_encapsulation_key_with_a_number_that_is_too_large_is_refused() {
    for group in [Group::MlKem768, Group::MlKem1024] {
        let key = controller(group).offer().value;
        // Twelve bits for each number, which are less than 3329 = d01h.
        for (low, accepted) in [(0x00, true), (0x01, false), (0xff, false)] {
            let mut key = key.clone();
            (key[0], key[1]) = (low, key[1] & 0xf0 | 0x0d);
            assert_eq!(host(group).answer(&key).is_ok(), accepted, "{low:x}");
        }
    }
}

#[test]
fn a_changed_ciphertext_has_a_secret_that_its_sender_does_not_know() {
    for (group, rejected) in REJECTED {
        let offer = controller(group).offer();
        let mut answer = host(group).answer(&offer.value).unwrap();
        answer.value[0] ^= 1;
        let found = offer.conclude(&answer.value).unwrap();
        assert_ne!(found, answer.shared);
        assert_eq!(found.expose(), hex(rejected));
    }
}

#[test]
fn a_scalar_is_drawn_again_if_it_is_none() {
    /// Numbers that are too large, then others.
    struct Large(u32);
    impl rand_core::TryRng for Large {
        type Error = std::convert::Infallible;

        fn try_next_u32(&mut self) -> Result<u32, Self::Error> {
            self.try_next_u64().map(|number| number as u32)
        }

        fn try_next_u64(&mut self) -> Result<u64, Self::Error> {
            unreachable!("secrets are bytes")
        }

        fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Self::Error> {
            bytes.fill([0xff, 0x00, 0x5a][self.0 as usize]);
            self.0 += 1;
            Ok(())
        }
    }
    impl rand_core::TryCryptoRng for Large {}
    for group in [Group::Secp256r1, Group::Secp384r1] {
        let private = group.private(&mut Large(0)).unwrap();
        assert!(private.0[0].1.expose().iter().all(|byte| *byte == 0x5a));
    }
}

#[test]
fn a_value_outside_of_the_group_is_refused() {
    let group = Group::Ffdhe2048;
    let length = group.offer_length();
    let prime = hex(primes::FFDHE2048);
    let number = |low: u8| [vec![0; length - 1], vec![low]].concat();
    let below_prime = |by: u8| [&prime[..length - 1], &[prime[length - 1] - by]].concat();
    let refused = [
        vec![],
        number(0),
        number(1),
        below_prime(1),
        below_prime(0),
        vec![0xff; length],
        number(2)[1..].to_vec(),
        [vec![0], number(2)].concat(),
    ];
    for value in refused {
        assert!(matches!(private(group, 1, 7, 3).answer(&value), Err(InvalidValue)), "{value:x?}");
        assert_eq!(private(group, 1, 7, 3).offer().conclude(&value), Err(InvalidValue));
    }
    for value in [number(2), below_prime(2)] {
        assert!(private(group, 1, 7, 3).answer(&value).is_ok());
    }
}

#[test]
fn a_controller_refuses_its_own_value_and_the_part_of_it_that_a_host_could_send_back() {
    for group in [Group::Ffdhe2048, Group::Secp256r1, Group::Secp384r1, Group::MlKem1024] {
        let offer = controller(group).offer();
        let value = offer.value.clone();
        assert_eq!(offer.conclude(&value), Err(InvalidValue), "{group}");
    }
    let offer = controller(Group::Secp256r1MlKem768).offer();
    let mut value = host(Group::Secp256r1MlKem768).answer(&offer.value).unwrap().value;
    value[..65].copy_from_slice(&offer.value[..65]);
    assert_eq!(offer.conclude(&value), Err(InvalidValue));
}

#[test]
fn every_group_is_found_by_its_identifier_and_others_are_not() {
    for group in Group::ALL {
        assert_eq!(Group::from_id(group.id()), Some(group));
        assert_eq!(group.name().parse(), Ok(group));
        assert_eq!(group.private(&mut system_random()).is_none(), group == Group::Null);
        assert!(group.offer_length() % UNIT == 0 && group.answer_length() % UNIT == 0);
    }
    let offers = [0, 256, 384, 512, 768, 1024, 68, 100, 1184, 1568, 1252, 1668];
    let answers = [0, 256, 384, 512, 768, 1024, 68, 100, 1088, 1568, 1156, 1668];
    assert_eq!(Group::ALL.map(Group::offer_length), offers);
    assert_eq!(Group::ALL.map(Group::answer_length), answers);
    let longest = 16 + 2 * 64 + answers.into_iter().max().unwrap();
    assert_eq!(longest, crate::MESSAGE_BYTES_MAX);
    assert!(Group::ALL.is_sorted());
    let unknown = "modp2048".parse::<Group>().unwrap_err().to_string();
    assert!(unknown.starts_with("\"modp2048\" is none of the groups null, ffdhe2048, "), "{unknown}");
    assert_eq!([GroupId(6), GroupId(0x12), GroupId(0x32)].map(Group::from_id), [None; 3]);
}

#[test]
fn a_private_exponent_is_never_short() {
    for group in &Group::ALL[1..6] {
        let private = group.private(&mut system_random()).unwrap();
        let exponent = private.0[0].1.expose();
        assert!(exponent[0] >= 0x80 && exponent.len() >= 32);
    }
}

#[test]
fn the_largest_field_costs_most_and_a_curve_little() {
    let cost = |group: Group| controller(group).cost();
    assert!(Group::ALL[1..6].is_sorted_by_key(|group| cost(*group)));
    let (largest, curve) = (cost(Group::Ffdhe8192), cost(Group::Secp256r1));
    assert!(largest > Duration::from_millis(10) && largest < Duration::from_millis(20), "{largest:?}");
    assert!(curve < cost(Group::Ffdhe2048) && cost(Group::Secp256r1MlKem768) > curve);
}
