//! What comes after the handshake and is no data.

use crate::error::TlsError;
use crate::record::{ContentType, Role};

/// What a record that carries no data means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Nothing: a ticket, or a part of a message.
    Nothing,
    /// The peer's next record has the next keys ([`crate::TrafficKeys::next`]).
    KeyUpdate {
        /// Whether the peer asks for the same of this end, before its next data.
        requested: bool,
    },
    /// The peer sends no more (close_notify).
    Closed,
}

/// Reads the records that carry no data: an [`crate::Opener`] has its own, another one is for what the kernel has
/// decrypted.
#[derive(Debug)]
pub struct ControlRecords {
    role: Role,
    unread: Vec<u8>,
}

impl ControlRecords {
    /// For this end of a connection.
    pub fn new(role: Role) -> Self {
        Self { role, unread: Vec::new() }
    }

    /// Takes the plaintext of one record of a kind other than data.
    ///
    /// # Errors
    /// It is none that the peer may send, or a fatal alert. The connection has to end.
    pub fn receive(&mut self, content: ContentType, plaintext: &[u8]) -> Result<Control, TlsError> {
        let _ = (self.role, &self.unread, content, plaintext);
        Err(TlsError::NotImplemented)
    }
}
