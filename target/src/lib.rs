//! The NVMe over Fabrics target.
//!
//! | module | what it does |
//! | --- | --- |
//! | [`config`] | reads and checks the configuration file |
//! | [`identity`] | the identifiers that stay the same over restarts |
//! | [`target`] | subsystems, namespaces and controllers; takes Connect commands |
//! | [`controller`] | one controller: its registers, keep-alive timer, events and errors |
//! | [`admin`] | the admin commands of a controller |
//! | `nvm` | what an I/O command asks for, parsed into a value that can only be valid |
//! | `transport` | how capsules and data move |
//! | `resources` | what the queues of a core share |
//! | [`core`] | a core: its ring, RNIC, disks and queues; the threads |
//! | [`queue`] | a queue on its core: the life of its requests |
//! | [`control`] | managing a target that runs, over a Unix socket |
//! | [`service`] | the process: logging, signals, the service manager, an orderly end |
//!
//! The control side keeps its state behind ordinary locks. What the data path reads for each command (namespaces,
//! readiness, whether I/O is allowed) is in atomics.

pub mod admin;
mod command;
pub mod config;
pub mod control;
pub mod controller;
pub mod core;
mod disk_failures;
pub mod disks;
pub mod failure;
pub mod identity;
pub mod namespace;
pub mod nqn;
mod nvm;
mod placement;
pub mod queue;
pub mod queue_record;
mod resources;
pub mod service;
pub mod subsystem;
pub mod target;
mod transport;

pub use admin::{AdminContext, AdminOutcome, Transfer};
pub use config::{Config, ConfigErrors};
pub use controller::{Controller, ErrorRecord, PropertyEffect};
pub use failure::{ErrorLocation, Failure};
pub use identity::{Identity, IdentityError};
pub use namespace::Namespace;
pub use queue_record::QueueRecord;
pub use subsystem::Subsystem;
pub use target::{Attached, ConnectRequest, Target, TargetError};
