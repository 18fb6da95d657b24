//! Keys, and who has them.

use std::fmt;

use ringfab_auth::{CipherSuite, Secret, TlsPsk};

/// An external pre-shared key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Psk {
    /// What the client sends and the server looks up.
    pub identity: Vec<u8>,
    /// The key.
    pub secret: Secret,
    /// The one suite that it is for.
    pub suite: CipherSuite,
}

impl From<&TlsPsk> for Psk {
    fn from(psk: &TlsPsk) -> Self {
        Self { identity: psk.identity().into(), secret: psk.secret().clone(), suite: psk.suite() }
    }
}

/// Where a server finds a client's key. A client hears whether its identity is known, and so can find out which ones
/// are: identities consist of names, which are no secrets.
pub trait PskStore: Send + Sync + fmt::Debug {
    /// The key with this identity, and the suite that it is for. If the identity does not tell several keys apart, as
    /// while a key is replaced, they are all there; the client shows which one it has. A peer chooses the identity,
    /// which may be any bytes, and the handshake waits for the answer.
    ///
    /// # Errors
    /// Why there is none, for whoever reads why the handshake failed. The peer does not hear it.
    fn find(&self, identity: &[u8]) -> Result<Vec<(Secret, CipherSuite)>, String>;
}
