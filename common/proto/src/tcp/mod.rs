//! NVMe/TCP (NVM Express TCP Transport 1.0): one connection, from either end.
//!
//! An [`Engine`] gets bytes and says what they mean; it is told what to send and emits bytes. Memory is named by
//! handles and places: what arrives for a place is put there by the engine's owner, and large data can be received
//! there at once. After each of them the engine says whether all of it arrived intact.
//!
//! | module | what it does |
//! | --- | --- |
//! | `rx` | from bytes to PDUs: lengths, flags, alignment, digests |
//! | `engine` | what PDUs mean on a connection, in the order in which they come |
//! | `init` | ICReq and ICResp: what the two ends agree on |
//! | `transfers` | the controller's side of R2T: which data may come |
//! | `commands` | the host's side: what each command may be sent and asked for |
//! | `tx` | from what is to be sent to PDUs |

mod commands;
mod engine;
mod error;
mod init;
mod rx;
mod transfers;
mod tx;

pub use crate::crc;
pub use commands::{CommandData, SubmitError};
pub use engine::{Engine, Event, Place, Step};
pub use error::{EngineError, Termination, Violation};
pub use init::{ControllerConfig, HostConfig, Negotiated};
pub use ringfab_spec::tcp::Digests;
pub use tx::{C2hData, HEAD_BYTES_MAX, Source, TxSink};
