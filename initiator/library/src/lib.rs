//! The NVMe over Fabrics initiator as a library: remote disks for a program, over NVMe/TCP or NVMe/RDMA.
//!
//! There are two ways to use it:
//!
//! - [`blocking::Controller`] is a handle that any thread may use, and has a [`blocking::Disk`] for each namespace. Its
//!   calls wait, and take bytes of any alignment.
//! - [`Host`] is the engine: one thread, completion based. For several cores, start one engine on each. A program
//!   submits [`IoRequest`]s, calls [`Host::turn`], and takes [`HostEvent`]s. Data stays in the engine's [`Pool`].
//!
//! A [`blocking::EngineClient`] combines both: it runs on the threads that the handle has started.
//!
//! A program with a loop of its own waits for an engine beside other descriptors: [`Host::descriptor`].
//!
//! [`discovery::discover`] lists subsystems. The examples `read_write`, `many_commands`, `own_loop` and `discovery`
//! show each of these.
//!
//! ```no_run
//! use ringfab_initiator::blocking::{Controller, EngineOptions};
//! use ringfab_initiator::{ConnectOptions, HostIdentity, Url};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let url: Url = "nvme+tcp://192.0.2.1/nqn.2026-01.org.example:disk".parse()?;
//! let options = ConnectOptions::new(url.clone(), HostIdentity::for_url(&url)?);
//! let controller = Controller::connect(options, EngineOptions::default())?;
//! let disk = controller.disk(1).ok_or("there is no namespace 1")?;
//! disk.write_at(4096, b"hello", false)?;
//! disk.flush()?;
//! controller.detach()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Lost connections
//!
//! The engine connects again after a loss, and then sends commands without an answer again, as [`ReconnectPolicy`]
//! says. Until then they wait. A command that fails without Do Not Retry is tried again as well.
//!
//! # Several paths
//!
//! What is attached may have several paths: addresses of one subsystem, each with a controller of its own
//! ([`ConnectOptions::further_urls`], [`Host::add_path`], [`discovery::PathDiscovery`]). Commands go by the best path
//! that is there, as [`PathPolicy`] and the access states (ANA) say. When a path is lost, new commands take another one
//! at once. [`Host::paths`] tells how each is.
//!
//! # What is not there
//!
//! `docs/not-there.md` of the project lists it. The library has authentication and TLS: [`ConnectOptions`] takes the
//! keys.

#![deny(missing_docs)]

// What helps the tests in `tests` helps those beside the code, too, and uses the crate by its name.
#[cfg(test)]
extern crate self as ringfab_initiator;

mod access;
mod allowed;
mod attachment;
mod authentication;
pub mod blocking;
pub mod bytes;
mod cancel;
mod chooser;
mod command;
mod delayed;
pub mod discovery;
mod error;
mod fences;
mod flow;
mod host;
mod identity;
mod messages;
mod namespace;
mod options;
mod path;
mod path_status;
mod queue;
mod reconnect;
mod refusal;
mod request;
mod resolve;
mod resources;
mod retry;
mod slots;
mod tls;
mod transport;
mod url;
mod volume;
mod wire;
mod work;

pub use authentication::{Authentication, AuthenticationFailure, Key, Keys};
pub use error::{Cause, ConnectError, IoError, Step, SubmitError};
pub use host::{Host, HostConfig};
pub use identity::{HostIdentity, IdentityError};
pub use namespace::{BlockRange, ControllerInfo, Namespace, NamespaceIdentity};
pub use options::{ConnectOptions, PathChooser, PathPolicy, ReconnectPolicy, Timeouts};
pub use path::SharedController;
pub use path_status::{AnaState, GroupAccess, PathLoss, PathState, PathStatus};
pub use refusal::RefusedField;
pub use request::{
    AdminData, AdminDone, AdminRequest, ControllerId, DiscardRanges, HostEvent, IoDone, IoOperation,
    IoRequest, PathId, Refused,
};
pub use ringfab_auth::{
    CipherSuite, ConfiguredPsk, Derivation, DhchapKey, Group, Hash, KeyRole, KeySource, Policy, Refusal,
    RefusedBy,
};
pub use ringfab_fabric::rdma::{DisconnectReason, RnicConfig, RnicCounters};
pub use ringfab_fabric::{CopiedBytes, Events, ZoneError, ZonedIp};
pub use ringfab_memory::{Buffer, ClassLayout, Pool, SharedBuffer};
pub use ringfab_reactor::{Completion, Payload, Reactor, ReactorConfig, Time, TimerId, Token, Wait};
pub use ringfab_spec::auth::{FailureExplanation, FailureReason};
pub use ringfab_spec::{CompletionEntry, Nqn, NqnError, Status, SubmissionEntry};
pub use tls::{Tls, TlsFailure, TlsKey};
pub use url::{DigestOptions, HostName, Provider, RdmaOptions, TcpOptions, Transport, Url, UrlError};
pub use uuid::Uuid;
