//! The handshake of either end.

use std::sync::Arc;

use rand_core::CryptoRng;
use ringfab_auth::CipherSuite;

use crate::error::TlsError;
use crate::keys::TrafficKeys;
use crate::psk::{Psk, PskStore};
use crate::record::{Opener, Role};

/// What a handshake has led to.
#[derive(Debug)]
pub struct Session {
    /// The cipher suite.
    pub suite: CipherSuite,
    /// The identity of the key.
    pub identity: Vec<u8>,
    /// The keys of what this end sends.
    pub send: TrafficKeys,
    /// The keys of what this end receives.
    pub receive: TrafficKeys,
}

/// One handshake of either end.
#[derive(Debug)]
pub struct Handshake {
    role: Role,
    psks: Vec<Psk>,
    store: Option<Arc<dyn PskStore>>,
}

impl Handshake {
    /// The client's, which offers these keys, the best one first.
    pub fn client(psks: Vec<Psk>, random: &mut dyn CryptoRng) -> Self {
        let _ = random;
        Self { role: Role::Client, psks, store: None }
    }

    /// The server's.
    pub fn server(store: Arc<dyn PskStore>, random: &mut dyn CryptoRng) -> Self {
        let _ = random;
        Self { role: Role::Server, psks: Vec::new(), store: Some(store) }
    }

    /// Which end it is.
    pub fn role(&self) -> Role {
        self.role
    }

    /// How many more bytes of the stream complete the record that `unread` begins with: those of the header first, then
    /// those of the body, and never one of the next record. Zero: give it to [`Self::receive`].
    pub fn wanted(&self, unread: &[u8]) -> usize {
        let _ = (&self.psks, &self.store);
        Opener::wanted(unread)
    }

    /// Takes exactly one record, which is decrypted in place.
    ///
    /// # Errors
    /// The handshake has failed. [`Self::take_outgoing`] has the alert for the peer, if it gets one.
    pub fn receive(&mut self, record: &mut [u8]) -> Result<(), TlsError> {
        let _ = record;
        Err(TlsError::NotImplemented)
    }

    /// What has to be sent now: whole records.
    pub fn take_outgoing(&mut self) -> Option<Vec<u8>> {
        None
    }

    /// Whether it has succeeded and everything that it sends was taken. The next byte from the peer belongs to the
    /// record layer.
    pub fn is_complete(&self) -> bool {
        false
    }

    /// The session.
    ///
    /// # Errors
    /// The handshake is not complete.
    pub fn finish(self) -> Result<Session, TlsError> {
        Err(TlsError::NotImplemented)
    }
}
