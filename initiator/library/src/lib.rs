//! The NVMe over Fabrics initiator as a library.
//!
//! [`Host`] is the engine: one per core, single threaded, completion based. It owns the core's reactor, its
//! RNIC and its buffers; a program submits [`IoRequest`]s, calls [`Host::turn`] and takes [`HostEvent`]s.
//! [`blocking::Controller`] is the same for ordinary programs: a handle that any thread may use.

mod allowed;
mod attachment;
pub mod blocking;
mod chooser;
mod command;
mod core;
mod delayed;
pub mod discovery;
mod error;
mod flow;
mod host;
mod identity;
mod messages;
mod namespace;
mod options;
mod path;
mod queue;
mod reconnect;
mod refusal;
mod request;
mod resolve;
mod retry;
mod slots;
mod transport;
mod url;
mod volume;
mod wire;

pub use error::{Cause, ConnectError, IoError, Step, SubmitError};
pub use host::{Host, HostConfig};
pub use identity::{HostIdentity, IdentityError};
pub use namespace::{BlockRange, ControllerInfo, Namespace, NamespaceIdentity};
pub use options::{ConnectOptions, ReconnectPolicy, Timeouts};
pub use path::SharedController;
pub use refusal::RefusedField;
pub use request::{
    AdminData, AdminDone, AdminRequest, ControllerId, DiscardRanges, HostEvent, IoDone, IoOperation,
    IoRequest, Refused,
};
pub use ringfab_fabric::ZonedIp;
pub use url::{DigestOptions, HostName, Provider, TcpOptions, Transport, Url, UrlError};
