//! Records (RFC 8446, section 5), and their protection in the process.

use std::ops::Range;

use crate::error::TlsError;
use crate::keys::TrafficKeys;

/// Bytes of a record's header.
pub const HEADER_BYTES: usize = 5;
/// The most bytes of plaintext in a record.
pub const PLAINTEXT_BYTES_MAX: usize = 1 << 14;
/// What a sealed record has beside its plaintext: header, content type, tag.
pub const SEALED_OVERHEAD: usize = HEADER_BYTES + 1 + 16;
/// Bytes of the longest record that a peer may send.
pub const RECORD_BYTES_MAX: usize = HEADER_BYTES + PLAINTEXT_BYTES_MAX + 256;

/// Which end this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The host.
    Client,
    /// The controller.
    Server,
}

/// What a record carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentType {
    /// An alert.
    Alert,
    /// A handshake message, or several, or a part of one.
    Handshake,
    /// Data.
    ApplicationData,
}

/// What a record was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Opened {
    /// Data: these bytes of the record.
    Data(Range<usize>),
    /// Nothing for the application.
    Nothing,
    /// The peer has updated its keys and asks for the same: call [`Sealer::update`] before the next data.
    UpdateRequested,
    /// The peer sends no more (close_notify).
    Closed,
}

/// Seals records.
#[derive(Debug)]
pub struct Sealer {
    keys: TrafficKeys,
}

/// Opens records.
#[derive(Debug)]
pub struct Opener {
    keys: TrafficKeys,
    role: Role,
}

impl Sealer {
    /// Seals with these keys.
    pub fn new(keys: TrafficKeys) -> Self {
        Self { keys }
    }

    /// Appends nothing and allocates nothing: `output` gets one record with the plaintext of `pieces`, and the result
    /// is how many bytes it has, [`SEALED_OVERHEAD`] more than the pieces.
    ///
    /// # Errors
    /// The pieces or `output` have a wrong length, or the keys have sealed as many records as they may.
    pub fn seal(
        &mut self,
        content: ContentType,
        pieces: &[&[u8]],
        output: &mut [u8],
    ) -> Result<usize, TlsError> {
        let _ = (&self.keys, content, pieces, output);
        Err(TlsError::NotImplemented)
    }

    /// Seals a KeyUpdate that asks for none, and goes on with the next keys.
    ///
    /// # Errors
    /// As for [`Self::seal`].
    pub fn update(&mut self, output: &mut [u8]) -> Result<usize, TlsError> {
        self.seal(ContentType::Handshake, &[], output)
    }

    /// Seals an alert: close_notify, or that of an error.
    ///
    /// # Errors
    /// As for [`Self::seal`].
    pub fn alert(&mut self, alert: crate::Alert, output: &mut [u8]) -> Result<usize, TlsError> {
        self.seal(ContentType::Alert, &[&[2, alert.0]], output)
    }

    /// Records that these keys have sealed.
    pub fn records(&self) -> u64 {
        u64::from_be_bytes(self.keys.sequence())
    }
}

impl Opener {
    /// Opens what the peer of this end has sealed with these keys.
    pub fn new(keys: TrafficKeys, role: Role) -> Self {
        Self { keys, role }
    }

    /// How many more bytes of the stream complete the record that `unread` begins with: those of the header first, then
    /// those of the body. Zero: it is complete, or [`Self::open`] will say what is wrong with its header.
    pub fn wanted(unread: &[u8]) -> usize {
        HEADER_BYTES.saturating_sub(unread.len())
    }

    /// Opens exactly one record, in place.
    ///
    /// # Errors
    /// The record, or what it carries, is none that the peer may send. The connection has to end.
    pub fn open(&mut self, record: &mut [u8]) -> Result<Opened, TlsError> {
        let _ = (&self.keys, self.role, record);
        Err(TlsError::NotImplemented)
    }
}
