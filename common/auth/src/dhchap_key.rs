//! Keys of DH-HMAC-CHAP.

use rand_core::CryptoRng;
use ringfab_spec::Nqn;

use crate::fingerprint::KeyFingerprint;
use crate::hash::Hash;
use crate::interchange::{DHCHAP, KeyError};
use crate::secret::{Secret, SecretText};

/// What is hashed behind an NQN when a secret is transformed.
const TRANSFORMATION: &[u8] = b"NVMe-over-Fabrics";

/// The secret of a host or of a subsystem: `DHHC-1:` as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DhchapKey {
    transformation: Option<Hash>,
    secret: Secret,
}

impl DhchapKey {
    /// Reads the text of a key.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let (hash, secret) = DHCHAP.parse(text)?;
        Ok(Self { transformation: Hash::from_id(hash.into()), secret })
    }

    /// A key of these bytes, with the hash by which both ends transform it.
    ///
    /// # Errors
    /// A length other than 32, 48 or 64.
    pub fn new(secret: Secret, transformation: Option<Hash>) -> Result<Self, KeyError> {
        DHCHAP.check_length(secret.expose().len())?;
        Ok(Self { transformation, secret })
    }

    /// A new key with as many bits as the hash has.
    pub fn generate(length_of: Hash, transformation: Option<Hash>, random: &mut dyn CryptoRng) -> Self {
        Self { transformation, secret: Secret::random(length_of.length(), random) }
    }

    /// Its text.
    pub fn to_text(&self) -> SecretText {
        DHCHAP.print(self.transformation.map_or(0, |hash| hash.id().0), &self.secret)
    }

    /// The hash by which it is transformed.
    pub fn transformation(&self) -> Option<Hash> {
        self.transformation
    }

    /// Bytes of the secret.
    pub fn length(&self) -> usize {
        self.secret.expose().len()
    }

    /// Which key it is.
    pub fn fingerprint(&self) -> KeyFingerprint {
        KeyFingerprint::of(&self.secret)
    }

    /// The key that responses are computed with. `owner` is who proves to have it: the host for a host's key, the
    /// subsystem for a controller's.
    pub fn transformed(&self, owner: Nqn<'_>) -> Secret {
        match self.transformation {
            None => self.secret.clone(),
            Some(hash) => hash.hmac(&self.secret, &[owner.as_str().as_bytes(), TRANSFORMATION]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::hex;

    /// What `nvme gen-dhchap-key` of nvme-cli 2.3 prints for a secret of bytes C9h and `--hmac` 0, 1, 2 and 3. Other
    /// than later versions, it prints the transformed secret.
    const NVME_CLI: [(usize, &str); 4] = [
        (32, "DHHC-1:00:ycnJycnJycnJycnJycnJycnJycnJycnJycnJycnJyclx132H:"),
        (32, "DHHC-1:01:25AZh+8PsKGihjkkFwYQDDmTxxBmIZH6ThqC/JRCPOdD8gp4:"),
        (48, "DHHC-1:02:Q3U06btnsmATPFyVqfCSzKbdkH8b/qhEjDvpRqC4Xf5Sz2tIoONFrsWqQc//EBUD1PnJSQ==:"),
        (
            64,
            "DHHC-1:03:bFclKbB6NTc7UmE2CvVDTk6wp/6p79xVBlKo9EP5gRyBmAjmgBPiDTscgjXewjDPeTobp1eG851kk74eZPgoTBi4C0U=:",
        ),
    ];

    const NQN: &str = "nqn.2014-08.org.nvmexpress:uuid:7c6c3f5e-3d4e-4c53-9c5a-000000000001";

    #[test]
    fn a_transformed_secret_is_what_nvme_cli_computes() {
        for ((length, text), transformation) in
            NVME_CLI.into_iter().zip([None, Some(Hash::Sha256), Some(Hash::Sha384), Some(Hash::Sha512)])
        {
            let key = DhchapKey::new(Secret::copy_of(&vec![0xc9; length]), transformation).unwrap();
            let transformed = key.transformed(Nqn::new(NQN).unwrap());
            let printed = DhchapKey { transformation, secret: transformed }.to_text();
            assert_eq!(printed.expose(), text);
            assert_eq!(DhchapKey::parse(text).unwrap().to_text().expose(), text);
        }
    }

    #[test]
    fn a_key_of_any_length_has_any_transformation() {
        for length_of in Hash::ALL {
            for transformation in [None, Some(Hash::Sha256), Some(Hash::Sha384), Some(Hash::Sha512)] {
                let key = DhchapKey::generate(length_of, transformation, &mut crate::system_random());
                let again = DhchapKey::parse(&format!(" {}\n", key.to_text().expose())).unwrap();
                assert_eq!(again, key);
                assert_eq!((again.length(), again.transformation()), (length_of.length(), transformation));
            }
        }
    }

    #[test]
    fn a_published_key_is_read() {
        let text = "DHHC-1:00:9wCYVQqDvADjGIZo6q/v2SfmXZqqkNa9TcvYu97Ly3Q/gajh:";
        let secret = hex("f70098550a83bc00e3188668eaafefd927e65d9aaa90d6bd4dcbd8bbdecbcb74");
        assert_eq!(DhchapKey::parse(text).unwrap().transformed(Nqn::new("any").unwrap()).expose(), secret);
    }

    #[test]
    fn what_is_wrong_with_a_key_is_said() {
        let base64 = "9wCYVQqDvADjGIZo6q/v2SfmXZqqkNa9TcvYu97Ly3Q/gajh";
        let said = |text: &str| DhchapKey::parse(text).unwrap_err().to_string();
        assert_eq!(said(""), "the key must begin with \"DHHC-1:\"");
        assert_eq!(said(&format!("dhhc-1:00:{base64}:")), "the key must begin with \"DHHC-1:\"");
        assert_eq!(
            said(&format!("NVMeTLSkey-1:00:{base64}:")),
            "this is a key for TLS (NVMeTLSkey-1), and a key for authentication (DHHC-1) is needed"
        );
        let parts = "the key must have a hash of two digits, a colon, Base64, and a colon at its end";
        for text in ["DHHC-1:", "DHHC-1:00", &format!("DHHC-1:00:{base64}"), &format!("DHHC-1:{base64}")] {
            assert_eq!(said(text), parts);
        }
        for (hash, shown) in [("04", "04"), ("1", "1"), ("0x", "0x"), ("", ""), (base64, "9w")] {
            let allowed = "00 (none), 01 (SHA-256), 02 (SHA-384) and 03 (SHA-512)";
            assert_eq!(
                said(&format!("DHHC-1:{hash}:{base64}:")),
                format!("\"{shown}\" is not a hash of such a key: it is one of {allowed}")
            );
        }
        let broken = "the key has characters that are not Base64, or lacks some at its end";
        for wrong in [&base64[..47], &base64.replace('9', "-"), "====", "a b"] {
            assert_eq!(said(&format!("DHHC-1:00:{wrong}:")), broken, "{wrong}");
        }
        for (wrong, bytes) in
            [("", 0), (&base64[..44], 29), (&base64.repeat(3)[..], 104), (&base64.repeat(30), 1076)]
        {
            let length = format!("the key has {bytes} bytes, and must have 32, 48 or 64");
            assert_eq!(said(&format!("DHHC-1:00:{wrong}:")), length);
        }
        let changed = base64.replacen('w', "x", 1);
        let checksum = "the checksum of the key is wrong: a character was changed";
        assert_eq!(said(&format!("DHHC-1:00:{changed}:")), checksum);
        let length = KeyError::Length { found: 31, allowed: "32, 48 or 64" };
        assert_eq!(DhchapKey::new(Secret::zeroed(31), None), Err(length));
    }

    #[test]
    fn a_changed_character_is_found_everywhere() {
        let text = DhchapKey::generate(Hash::Sha384, None, &mut crate::system_random()).to_text();
        let text = text.expose();
        for at in 0..text.len() {
            let mut bytes = text.as_bytes().to_vec();
            bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
            assert!(DhchapKey::parse(&String::from_utf8(bytes).unwrap()).is_err(), "character {at}");
            assert!(DhchapKey::parse(&text[..at]).is_err(), "cut at {at}");
        }
    }
}
