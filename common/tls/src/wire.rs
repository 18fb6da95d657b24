//! The numbers of records (RFC 8446, section 5), and the two ends.

use std::fmt;

/// Bytes of a record's header.
pub const HEADER_BYTES: usize = 5;
/// The most bytes of plaintext in a record.
pub const PLAINTEXT_BYTES_MAX: usize = 1 << 14;
/// Bytes of the longest record that a peer may send.
pub const RECORD_BYTES_MAX: usize = HEADER_BYTES + PLAINTEXT_BYTES_MAX + 256;

/// Of every record and message, where version 1.2 has its own.
pub(crate) const LEGACY_VERSION: u16 = 0x0303;

/// Which end this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The host.
    Client,
    /// The controller.
    Server,
}

impl Role {
    /// The other end.
    pub(crate) const fn peer(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

/// As sentences call it.
impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Client => "the host",
            Self::Server => "the controller",
        })
    }
}

/// What a record carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentType {
    /// A change of keys in older versions, which means nothing in this one.
    ChangeCipherSpec,
    /// An alert.
    Alert,
    /// A handshake message, or several, or a part of one.
    Handshake,
    /// Data. On the wire, any encrypted record.
    ApplicationData,
}

impl ContentType {
    /// Its number on the wire.
    pub const fn number(self) -> u8 {
        match self {
            Self::ChangeCipherSpec => 20,
            Self::Alert => 21,
            Self::Handshake => 22,
            Self::ApplicationData => 23,
        }
    }

    /// The one with this number, if any.
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            20 => Some(Self::ChangeCipherSpec),
            21 => Some(Self::Alert),
            22 => Some(Self::Handshake),
            23 => Some(Self::ApplicationData),
            _ => None,
        }
    }
}
