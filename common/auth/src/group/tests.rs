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

/// An exponent of these numbers: 80h with `first`, then an arithmetic progression.
fn private(group: Group, first: u8, step: u8, start: u8) -> Private {
    let mut private = group.private(&mut system_random()).unwrap();
    for (i, byte) in (0..).zip(private.exponent.bytes_mut()) {
        *byte = if i == 0 { 0x80 | first } else { step.wrapping_mul(i).wrapping_add(start) };
    }
    private
}

#[test]
fn values_and_secrets_are_those_of_others() {
    for (group, value, shared) in KNOWN {
        let offer = private(group, 1, 7, 3).offer();
        assert_eq!(Hash::Sha256.of(&offer.value).expose(), hex(value), "{group}");
        let answer = private(group, 2, 11, 5).answer(&offer.value).unwrap();
        assert_eq!(Hash::Sha256.of(answer.shared.expose()).expose(), hex(shared), "{group}");
        assert_eq!(offer.conclude(&answer.value), Ok(answer.shared));
    }
}

#[test]
fn a_value_outside_of_the_group_is_refused() {
    let group = Group::Ffdhe2048;
    let length = group.value_length();
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
fn a_controller_refuses_its_own_value() {
    let offer = private(Group::Ffdhe2048, 1, 7, 3).offer();
    let value = offer.value.clone();
    assert_eq!(offer.conclude(&value), Err(InvalidValue));
}

#[test]
fn every_group_is_found_by_its_identifier_and_others_are_not() {
    for group in Group::ALL {
        assert_eq!(Group::from_id(group.id()), Some(group));
        assert_eq!(group.private(&mut system_random()).is_none(), group == Group::Null);
    }
    let lengths = Group::ALL.map(Group::value_length);
    assert_eq!(lengths, [0, 256, 384, 512, 768, 1024]);
    let names = ["null", "ffdhe2048", "ffdhe3072", "ffdhe4096", "ffdhe6144", "ffdhe8192"];
    assert_eq!(names.map(str::parse), Group::ALL.map(Ok));
    assert_eq!("modp2048".parse::<Group>(), Err(UnknownGroup("modp2048".to_owned())));
    assert_eq!([GroupId(6), GroupId::MLKEM768].map(Group::from_id), [None, None]);
}

#[test]
fn a_private_exponent_is_never_short() {
    for group in &Group::ALL[1..] {
        let private = group.private(&mut system_random()).unwrap();
        assert!(private.exponent.expose()[0] >= 0x80);
        assert!(private.exponent.expose().len() >= 32);
    }
}
