//! Known values: those of libnvme's and Linux's own tests, and others computed by a program in Python.

use super::*;
use crate::tests::hex;

use CipherSuite::{Aes128GcmSha256, Aes256GcmSha384};

const KEY: &str =
    "5512dbb6737d0106f65975b773dfb011ffc344bcf442e2dd6d8bc4870b5d5b03ffc344bcf442e2dd6d8bc4870b5d5b03";

const TEXTS: [(CipherSuite, usize, &str); 2] = [
    (Aes128GcmSha256, 32, "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:"),
    (
        Aes256GcmSha384,
        48,
        "NVMeTLSkey-1:02:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwP/w0S89ELi3W2LxIcLXVsDn8kXZQ==:",
    ),
];

fn names() -> Names<'static> {
    Names {
        host: Nqn::new("nqn.psk-test-host").unwrap(),
        subsystem: Nqn::new("nqn.psk-test-subsys").unwrap(),
    }
}

/// What comes from the configured PSK of a suite.
struct Known {
    suite: CipherSuite,
    derivation: Derivation,
    retained: &'static str,
    digest: &'static str,
    tls: [&'static str; 2],
}

const KNOWN: [Known; 4] = [
    Known {
        suite: Aes128GcmSha256,
        derivation: Derivation::Specified,
        retained: "073311dec37e219ff3acd43f130130c5bdd443c066e1cc3424e49030234ff7d5",
        digest: "iSbjiStwJ/1TrTvDlt2fjFmzvsytOJelidNnA+X5lEU=",
        tls: [
            "05c6503551ad136e6ee32e6eeb3f6d500b69701d84ec71e328f65c7f51566f68",
            "8fc3c0badfd4c0c66fa3ca33aadd0314f85536cc9bc47338b60f3e6e563786ca",
        ],
    },
    Known {
        suite: Aes256GcmSha384,
        derivation: Derivation::Specified,
        retained: "73973a1b51a9acdde29a0610ac6a3ef852cf45936cca6830a661d18f68502f1a4c7a8ecb37524e0b1f7087cb4d680ad9",
        digest: "QhW2+Rp6RzHlNtCslyRxMnwJ11tKKhz8JCAQpQ+XUD8f9td1VeH5h53yz2wKJG1a",
        tls: [
            "f42ba63824cdfe421914c582921f85b5b5b7e2d4df084caeedc9be20b212e8bb0fe8a23e9d59a1c8fc6449da4970a78d",
            "a2b2f943f479fc682555cec89857c80ed004ce92f32a973d5764155bb7e36b17a85368a0666d250afac9282dda2e62ca",
        ],
    },
    Known {
        suite: Aes128GcmSha256,
        derivation: Derivation::LibnvmeBefore202507,
        retained: "ad4cdadfcbaf4e353fcbd09aac891c4d75c5300fe5ee7bb04ae87726a312eddc",
        digest: "66GuqV08TsAGII39teWUfwQwizjv06Jy8jOcX3NAAzM=",
        tls: [
            "09fb1983ac6d6d0353e7cae4f23daddd651c367fa347c59d9cf6936f5a83eafb",
            "b9f5ab2a41ba6e72a23a12066302a2f775fa6c0942c8e0b18ca8ac07edf305e2",
        ],
    },
    Known {
        suite: Aes256GcmSha384,
        derivation: Derivation::LibnvmeBefore202507,
        retained: "12d2452bc4783f50286bf940ad1caa05a304065e379024d9278ca7c9d8a42400c47029f198bfcdf5f14c07cb04eb7306",
        digest: "RsKmYJ3nAn1ApjjMloJFbAkLPivONDAX/xW327YBUsn2eGShXSjCZvBaOxscLqmz",
        tls: [
            "2ee4754186a625b28a3936ef4a40d839c3ad958b2e017562ee07e2501f172ce999dc9c29033ea7ee33f814f192c13f47",
            "fcefe2e2a2e682b1447dcabf1ec268f78f08c63cd075753abcc8bda2c5c34d48d3014aa8d76ad80107e4f5c9f27e2149",
        ],
    },
];

fn configured(suite: CipherSuite) -> ConfiguredPsk {
    let length = suite.hash().length();
    ConfiguredPsk::new(Secret::copy_of(&hex(KEY)[..length]), Some(suite)).unwrap()
}

#[test]
fn the_text_of_a_key_is_that_of_libnvme() {
    for (suite, length, text) in TEXTS {
        let key = configured(suite);
        assert_eq!(key.to_text().expose(), text);
        assert_eq!(ConfiguredPsk::parse(text), Ok(key.clone()));
        assert_eq!((key.length(), key.suite(), key.transformation()), (length, suite, Some(suite.hash())));
        let plain = ConfiguredPsk::parse(&text.replace(":01:", ":00:").replace(":02:", ":00:")).unwrap();
        assert_eq!(plain.transformation(), None);
        let retained = plain.retained(names().host, Derivation::Specified);
        assert_eq!(retained.secret().expose(), &hex(KEY)[..length]);
    }
}

#[test]
fn keys_and_identities_have_the_known_values() {
    for Known { suite, derivation, retained, digest, tls } in KNOWN {
        let psk = configured(suite).retained(names().host, derivation);
        assert_eq!(psk.secret().expose(), hex(retained));
        let specifier = specifier(suite);
        let of_names = "nqn.psk-test-host nqn.psk-test-subsys";
        let identities =
            [format!("NVMe0R{specifier} {of_names}"), format!("NVMe1R{specifier} {of_names} {digest}")];
        for ((version, identity), known) in
            [IdentityVersion::Zero, IdentityVersion::One].into_iter().zip(identities).zip(tls)
        {
            let tls = psk.tls(version, suite, names(), derivation).unwrap();
            assert_eq!((tls.identity(), tls.suite()), (&identity[..], suite));
            assert_eq!(tls.secret().expose(), hex(known), "{identity}");
        }
    }
}

#[test]
fn a_generated_psk_has_the_values_of_the_kernel() {
    let known = [
        (
            Aes128GcmSha256,
            "1733c59fa7f48fcf37f5f26fc4ff0268ad4f78e030f4f3b0bfd1d47e7bb1447a",
            "OldoKuTfKddMuyCznAZojkWD7P4D9/AtzDzLimtOxqI=",
            "3c17da628474a04d2247c4cab47968c915388193f7c071bd9489cc3666cd7cc8",
        ),
        (
            Aes256GcmSha384,
            "f14b2dd3234c459694d3bc63f8968bd6b37c2c6de849e22e118749001ce4bbe8640b9e3a748cb11ce4b1d71d359cce39",
            "cffMWk8TSS7HOQebjgYEIkrPrjWPV4JE5cdPB8WhEvY4JBW5YynKyv66XscN4A9n",
            "2774753233537b3fa50eb7d16a8e43457d85f4906c005b2236616c5d80939d0898fff15bb8b77119d2be0aac423e7590",
        ),
    ];
    let names = Names { host: Nqn::new("hostnqn").unwrap(), subsystem: Nqn::new("subsysnqn").unwrap() };
    for (suite, generated, digest, tls) in known {
        let length = suite.hash().length();
        let session_key = Secret::copy_of(&(b'A'..).take(length).collect::<Vec<_>>());
        let c1: Vec<u8> = (0..).take(length).collect();
        let c2: Vec<u8> = (0..).take(length).map(|i: u8| 0xff - i).collect();
        let secret = suite.hash().hmac(&session_key, &[&c1, &c2]);
        assert_eq!(secret.expose(), hex(generated));
        let psk = InputPsk::generated(secret);
        let derived = psk.tls(IdentityVersion::One, suite, names, Derivation::Specified).unwrap();
        let specifier = specifier(suite);
        assert_eq!(derived.identity(), format!("NVMe1G{specifier} hostnqn subsysnqn {digest}"));
        assert_eq!(derived.secret().expose(), hex(tls));
    }
}

#[test]
fn names_that_are_too_long_for_an_identity_of_version_0_are_said_to_be() {
    let long = format!("nqn.2026-11.{}", "x".repeat(211));
    let psk = configured(Aes128GcmSha256).retained(Nqn::new(&long).unwrap(), Derivation::Specified);
    for (subsystem, fits) in [("x".repeat(22), true), ("x".repeat(23), false)] {
        let names = Names { host: Nqn::new(&long).unwrap(), subsystem: Nqn::new(&subsystem).unwrap() };
        let zero = psk.tls(IdentityVersion::Zero, Aes128GcmSha256, names, Derivation::Specified);
        assert_eq!(zero.err(), (!fits).then_some(IdentityTooLong(256)));
        assert!(psk.tls(IdentityVersion::One, Aes128GcmSha256, names, Derivation::Specified).is_ok());
    }
}

#[test]
fn what_is_wrong_with_a_key_is_said() {
    let text = TEXTS[0].2;
    let said = |text: &str| ConfiguredPsk::parse(text).unwrap_err().to_string();
    assert_eq!(said("VRLb"), "the key must begin with \"NVMeTLSkey-1:\"");
    assert_eq!(
        said("DHHC-1:00:VRLb:"),
        "this is a key for authentication (DHHC-1), and a key for TLS (NVMeTLSkey-1) is needed"
    );
    assert_eq!(
        said(&text.replace(":01:", ":03:")),
        "\"03\" is not a hash of such a key: it is one of 00 (none), 01 (SHA-256) and 02 (SHA-384)"
    );
    // 64 bytes are no PSK.
    let long = crate::DhchapKey::generate(Hash::Sha512, None, &mut crate::system_random()).to_text();
    let long = long.expose().replace("DHHC-1", "NVMeTLSkey-1");
    assert_eq!(said(&long), "the key has 64 bytes, and must have 32 or 48");
    assert_eq!(
        ConfiguredPsk::new(Secret::zeroed(64), None),
        Err(KeyError::Length { found: 64, allowed: "32 or 48" })
    );
    assert_eq!(
        said(&text.replacen("VRL", "WRL", 1)),
        "the checksum of the key is wrong: a character was changed"
    );
}

#[test]
fn a_generated_key_survives_its_text_and_nothing_of_it_is_printed_otherwise() {
    for suite in [Aes128GcmSha256, Aes256GcmSha384] {
        let key = ConfiguredPsk::generate(suite, &mut crate::system_random());
        assert_eq!(ConfiguredPsk::parse(key.to_text().expose()), Ok(key.clone()));
        let retained = key.retained(names().host, Derivation::Specified);
        let tls = retained.tls(IdentityVersion::One, suite, names(), Derivation::Specified).unwrap();
        assert_eq!(
            format!("{key:?}"),
            format!("ConfiguredPsk {{ transformation: Some({:?}), secret: Secret }}", suite.hash())
        );
        assert_eq!(format!("{retained:?}"), "InputPsk { origin: Retained, secret: Secret }");
        assert!(format!("{tls:?}").ends_with("secret: Secret }"));
    }
}
