//! TLS 1.3 (RFC 8446) with an external pre-shared key, mode psk_dhe_ke, for both ends of NVMe/TCP (TCP Transport 1.1,
//! section 3.6). Without sockets, clocks and threads: records in, records and traffic keys out.
//!
//! A [`Handshake`] leads to a [`Session`], with a pair of [`TrafficKeys`]. These go to the kernel (kTLS), or to a
//! [`Sealer`] and an [`Opener`], which protect records in this process. What the kernel hands up that is no data,
//! [`ControlRecords`] reads.
//!
//! Offered and accepted are TLS_AES_128_GCM_SHA256 and TLS_AES_256_GCM_SHA384, x25519, secp256r1 and secp384r1. A
//! client offers several keys; a server takes the first that it knows. HelloRetryRequest is understood and sent. A
//! KeyUpdate is followed, and answered if that is asked for.
//!
//! Not implemented: certificates, tickets and resumption, early data, other versions, exporters.
//!
//! Keys are zeroed when they are dropped, compared in constant time, and not printed. What the libraries leave on the
//! stack while they compute, and ring's form of an AES key, are not zeroed.

#![forbid(unsafe_code)]

mod agreed;
mod alert;
mod channel;
mod client;
mod codec;
mod control;
mod error;
mod event;
mod group;
mod handshake;
mod header;
mod joiner;
mod keys;
mod message;
mod psk;
mod record;
mod server;
mod suite;
mod wire;

pub use alert::Alert;
pub use control::{Control, ControlRecords};
pub use error::{Heard, Identities, TlsError, Tried};
pub use handshake::{Handshake, Session};
pub use keys::{IV_BYTES, SALT_BYTES, TrafficKeys};
pub use psk::{Psk, PskStore};
pub use record::{Opened, Opener, RECORDS_MAX, SEALED_OVERHEAD, Sealer, WITHOUT_DATA_MAX};
pub use wire::{ContentType, HEADER_BYTES, PLAINTEXT_BYTES_MAX, RECORD_BYTES_MAX, Role};

#[cfg(test)]
mod tests;
