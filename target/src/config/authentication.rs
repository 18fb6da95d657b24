//! How a host proves who it is, and where the keys for that are.

use std::io;
use std::time::Duration;

use ringfab_auth::{DhchapKey, Group, Hash, KeySource, read_key_file};

use crate::worker;

/// How long reading a key may take.
const READ_LIMIT: Duration = Duration::from_secs(5);

/// A key, and where it was read. Its text is never printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfiguredKey {
    /// Where it is.
    pub source: KeySource,
    /// The key, as it was when the configuration was read.
    pub key: DhchapKey,
}

/// How a host proves who it is (DH-HMAC-CHAP).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostAuthentication {
    /// The key of the host.
    pub key: ConfiguredKey,
    /// The key with which the controller proves who it is, if the host asks for that.
    pub controller_key: Option<ConfiguredKey>,
    /// Hash functions, the preferred one first; at least one.
    pub hashes: Vec<Hash>,
    /// Groups, the preferred one first; at least one.
    pub groups: Vec<Group>,
}

/// Reads a key.
///
/// # Errors
/// Why it cannot be read, or what is wrong with it. The message has nothing of its text.
pub(super) fn read_key(source: &KeySource) -> Result<DhchapKey, String> {
    let path = source.path()?;
    let at = path.clone();
    let text = worker::within("reading", &path, READ_LIMIT, move || read_key_file(&at));
    let text = text.map_err(io::Error::from).flatten();
    let text = text.map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    DhchapKey::parse(text.expose()).map_err(|error| format!("{}: {error}", path.display()))
}
