//! TLS 1.3 (RFC 8446) with an external pre-shared key, mode psk_dhe_ke, for both ends of NVMe/TCP (TCP Transport 1.1,
//! section 3.6). Without sockets, clocks and threads: records in, records and traffic keys out.

#![forbid(unsafe_code)]

mod alert;
mod control;
mod error;
mod handshake;
mod keys;
mod psk;
mod record;

pub use alert::Alert;
pub use control::{Control, ControlRecords};
pub use error::TlsError;
pub use handshake::{Handshake, Session};
pub use keys::{IV_BYTES, SALT_BYTES, TrafficKeys};
pub use psk::{Psk, PskStore};
pub use record::{
    ContentType, HEADER_BYTES, Opened, Opener, PLAINTEXT_BYTES_MAX, RECORD_BYTES_MAX, Role, SEALED_OVERHEAD,
    Sealer,
};
