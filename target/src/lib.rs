//! The NVMe over Fabrics target.
//!
//! Each module uses only those above it.
//!
//! | module | what it does |
//! | --- | --- |
//! | [`limits`], [`failure`], `command`, [`nqn`] | what commands may ask for, why they fail, how their fields are read |
//! | `sync` | the atomics of what cores share without a lock |
//! | [`worker`] | threads for what may take long or hang |
//! | `confinement` | what this process has given up, and how whoever meets that is told |
//! | [`disk_identity`] | which disk a path leads to, and which are in use |
//! | [`config`] | reads and checks the configuration file |
//! | `backings` | the drivers of disks that are on other machines |
//! | `known_disks` | which disk was served under which identifiers |
//! | [`identity`] | the identifiers that stay the same over restarts |
//! | [`model`] | what is served: subsystems and namespaces |
//! | `nvm` | what an I/O command asks for, parsed into a value that can only be valid |
//! | `placement` | which core serves a queue |
//! | [`controller`] | one controller: its registers, keep-alive timer, events and errors |
//! | [`target`] | what is served and who is connected; takes Connect commands |
//! | [`disks`] | the files and devices behind namespaces: opened, kept and closed |
//! | [`admin`] | the admin commands of a controller |
//! | `transport` | how capsules and data move |
//! | `resources` | what the queues of a core share |
//! | [`queue`] | a queue on its core: the life of its requests |
//! | [`core`] | a core: its ring, RNIC, disks and queues; the threads |
//! | [`metrics`] | metrics for Prometheus and a page for people, over HTTP |
//! | [`control`] | managing a target that runs, over a Unix socket |
//! | `machine` | what this machine has of what a configuration asks for |
//! | [`service`] | the process: logging, signals, the service manager, an orderly end |
//!
//! The control side keeps its state behind ordinary locks. What the data path reads for each command (readiness, sizes,
//! whether I/O is allowed) is in atomics.
//!
//! # What is not there
//!
//! `docs/not-there.md` of the project lists it.

pub mod admin;
mod backings;
mod command;
pub mod config;
mod confinement;
pub mod control;
pub mod controller;
pub mod core;
pub mod disk_identity;
pub mod disks;
pub mod failure;
pub mod identity;
mod known_disks;
pub mod limits;
mod machine;
pub mod metrics;
pub mod model;
pub mod nqn;
mod nvm;
mod placement;
pub mod queue;
mod resources;
pub mod service;
mod sync;
pub mod target;
mod transport;
pub mod worker;

pub use admin::{AdminContext, AdminOutcome, Transfer};
pub use config::{Config, ConfigErrors};
pub use controller::{Controller, ErrorRecord, PropertyEffect};
pub use failure::{ErrorLocation, Failure};
pub use identity::{Identity, IdentityError};
pub use model::{Namespace, QueueRecord, Subsystem};
pub use target::{Attached, ConnectRequest, Target, TargetError};
