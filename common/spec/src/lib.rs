//! The bytes that NVMe over Fabrics, RDMA CM private data and iWARP put on a wire.
//!
//! Every structure is `#[repr(C)]` with alignment 1, so it can be read in place from any buffer
//! (`zerocopy::FromBytes::ref_from_bytes`) and written with `zerocopy::IntoBytes::as_bytes`. Its size and the
//! offset of each field are asserted by the compiler. Unknown and reserved values are data: no accessor of
//! this crate panics whatever the bytes are. A field that counts from zero ends in `_z` and is converted once,
//! by the accessor of the same name without `_z`.
//!
//! | module | specification |
//! | --- | --- |
//! | [`sqe`], [`cqe`], [`status`] | NVM Express Base 2.0, sections 3.3.3, 5, 6; NVM Command Set 1.0, section 3 |
//! | [`identify`], [`features`], [`log`] | Base 2.0, sections 5.16, 5.17, 5.27; NVM Command Set 1.0, section 4 |
//! | [`lba_status`] | NVM Command Set 1.1, section 4.2.1 |
//! | [`auth`] | NVM Express Base 2.2, section 8.3.4 |
//! | [`sgl`] | NVM Express Base 2.0, section 4.1.2; RDMA Transport 1.0, section 3.2 |
//! | [`property`] | NVM Express Base 2.0, section 3.1.3 |
//! | [`rdma_cm`] | NVM Express RDMA Transport 1.0, section 3.5 |
//! | [`tcp`] | NVM Express TCP Transport 1.0, section 3.6 |
//! | [`nqn`] | NVM Express Base 2.0, section 4.5 |
//! | [`iwarp`] | RFC 5040 (RDMAP), RFC 5041 (DDP), RFC 5044 (MPA), RFC 6581 (MPA revision 2) |
//!
//! Not implemented here: behaviour, such as which PDU or command may follow which, which `common/proto` and the two
//! ends have; and structures that neither end sends or receives.

#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

mod macros;

pub mod auth;
pub mod cqe;
pub mod features;
pub mod identify;
pub mod iwarp;
pub mod lba_status;
pub mod log;
pub mod nqn;
pub mod property;
pub mod rdma_cm;
pub mod sgl;
pub mod sqe;
pub mod status;
pub mod tcp;
pub mod text;

pub use cqe::CompletionEntry;
pub use macros::BitField;
pub use nqn::{Nqn, NqnError, NqnField};
pub use sgl::{Sgl, SglDescriptor, SglError};
pub use sqe::{AdminOpcode, FabricsType, IoOpcode, SubmissionEntry};
pub use status::Status;
pub use text::{AsciiField, TextError};
pub use zerocopy::{self, FromBytes, IntoBytes};
