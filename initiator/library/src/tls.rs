//! The key by which this host and a controller know each other in TLS, and why that fails.

use std::sync::Arc;

use ringfab_auth::{ConfiguredPsk, Derivation, IdentityVersion, KeyRole, KeySource, Names};
use ringfab_fabric::tcp::Psk;
use ringfab_spec::Nqn;

/// The key of this host for TLS. Connections over NVMe/TCP are over TLS then, unless the address says otherwise.
///
/// ```
/// use ringfab_initiator::{KeySource, Tls, TlsKey};
///
/// # fn main() -> Result<(), String> {
/// let tls = Tls::new(TlsKey::At(KeySource::parse("file:/etc/ringfab/keys/host.tls")?));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// The key.
    pub key: TlsKey,
    /// How the keys of connections are derived from it, as the other end does.
    pub derivation: Derivation,
}

/// A key for TLS, or where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TlsKey {
    /// The key itself.
    Known(ConfiguredPsk),
    /// It is read anew whenever a controller is connected, so that another one can be put there.
    At(KeySource),
}

impl TlsKey {
    /// The key. One that is somewhere is read, which waits for the file system.
    ///
    /// # Errors
    /// Why it cannot be read, or what is wrong with it. The message has nothing of its text.
    pub fn get(&self) -> Result<ConfiguredPsk, String> {
        let source = match self {
            Self::Known(key) => return Ok(key.clone()),
            Self::At(source) => source,
        };
        source.read(KeyRole::Tls, ConfiguredPsk::parse)
    }
}

impl Tls {
    /// With this key, from which others are derived as the specifications say.
    pub fn new(key: TlsKey) -> Self {
        Self { key, derivation: Derivation::Specified }
    }

    /// Whether it has to be read.
    pub(crate) fn is_elsewhere(&self) -> bool {
        matches!(self.key, TlsKey::At(_))
    }

    /// The keys of connections between these two, the preferred one first. Waits where it has to be read.
    pub(crate) fn psks(&self, host: &str, subsystem: &str) -> Result<Arc<[Psk]>, TlsFailure> {
        let name = |text| Nqn::new(text).map_err(|error| TlsFailure::Key(error.to_string()));
        let names = Names { host: name(host)?, subsystem: name(subsystem)? };
        let key = self.key.get().map_err(TlsFailure::Key)?;
        let retained = key.retained(names.host, self.derivation);
        // Some peers know the older identities only, which not all names have.
        let of = |version| retained.tls(version, key.suite(), names, self.derivation);
        let [one, zero] = [IdentityVersion::One, IdentityVersion::Zero].map(of);
        Ok(one.iter().chain(&zero).map(Psk::from).collect())
    }
}

/// Why a connection is not over TLS.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TlsFailure {
    /// It shall be, and there is no key.
    #[error("the connection must be over TLS, and there is no key")]
    NoKey,
    /// The key cannot be read, or is none.
    #[error("the key for TLS {0}")]
    Key(String),
    /// Both ends could not agree, with a key that authentication has made.
    #[error("{0}, with the key that authentication has made (concatenation)")]
    Generated(String),
    /// Both ends could not agree.
    #[error("{0}")]
    Handshake(String),
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const KEY: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
    const HOST: &str = "nqn.psk-test-host";
    const SUBSYSTEM: &str = "nqn.psk-test-subsys";

    #[test]
    fn the_newer_identity_is_offered_first_and_the_older_one_where_the_names_have_one() {
        let tls = Tls::new(TlsKey::Known(ConfiguredPsk::parse(KEY).expect("a key")));
        let identities = |host: &str, subsystem: &str| -> Vec<String> {
            let psks = tls.psks(host, subsystem).expect("keys");
            psks.iter().map(|psk| String::from_utf8(psk.identity.clone()).expect("text")).collect()
        };
        let digest = "iSbjiStwJ/1TrTvDlt2fjFmzvsytOJelidNnA+X5lEU=";
        let expected =
            [format!("NVMe1R01 {HOST} {SUBSYSTEM} {digest}"), format!("NVMe0R01 {HOST} {SUBSYSTEM}")];
        assert_eq!(identities(HOST, SUBSYSTEM), expected);
        assert_eq!(identities(&"x".repeat(223), &"y".repeat(23)).len(), 1, "too long for the older one");
        assert!(tls.psks("", SUBSYSTEM).is_err());
    }

    #[test]
    fn a_key_is_read_anew_and_never_shown() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("key");
        let tls = Tls::new(TlsKey::At(KeySource::File(path.clone())));
        let why = tls.psks(HOST, SUBSYSTEM).expect_err("no file").to_string();
        assert!(why.starts_with("the key for TLS cannot read "), "{why}");
        fs::write(&path, KEY).expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("for few eyes");
        assert_eq!(tls.psks(HOST, SUBSYSTEM).expect("keys").len(), 2);
        fs::write(&path, KEY.replace("VRL", "WRL")).expect("a file");
        let why = tls.psks(HOST, SUBSYSTEM).expect_err("a wrong checksum").to_string();
        assert!(why.contains("the checksum of the key is wrong") && !why.contains("WRL"), "{why}");
        assert!(!format!("{tls:?}").contains("VRL"));
    }
}
