//! Managing a target that runs: namespaces added, removed and resized, and what it is doing, over a Unix socket.
//!
//! | module | what it does |
//! | --- | --- |
//! | [`request`] | what is asked and answered: one JSON value in a line each |
//! | [`configured`] | what is configured: by the file, and since |
//! | [`manager`] | what can be done with a target that runs |
//! | `apply` | does it: makes what is to be served next, and opens disks |
//! | `change` | has the cores serve it, and tells hosts |
//! | `in_turns` | the same with cores that are in the caller's thread, for simulations |
//! | `disk_watch` | looks at the disks from time to time |
//! | `exchange` | exchanges the disk under a namespace |
//! | [`freeze`] | holds changes of some disks for a moment |
//! | `leave` | asks hosts to go elsewhere before a way ends |
//! | `access` | the states of access groups, as they are shown |
//! | `activity` | what hosts do each second |
//! | [`status`] | what there is, as it is shown |
//! | [`socket`] | the socket's file: its place, its owner, its end |
//! | `timed_mutex` | changes, one after the other |
//! | `masked` | what of a request may be logged |
//! | [`server`] | the threads that listen and answer, and the one that looks at disks and counters from time to time |
//! | [`client`] | the other end |
//! | [`command`] | the part of the command line that uses it |
//!
//! Who may connect may do everything: the permissions of the socket decide. Requests are bounded in size and time, and
//! are served beside each other; only changes wait for each other. Nothing is written into the configuration file
//! unless an administrator says so. docs/control.md describes the protocol for other programs.

mod access;
mod activity;
mod apply;
mod change;
pub mod client;
pub mod command;
pub mod configured;
mod disk_watch;
mod exchange;
pub mod freeze;
mod in_turns;
mod leave;
pub mod limits;
mod manager;
mod masked;
pub mod request;
mod server;
mod socket;
pub mod status;
mod timed_mutex;

pub use in_turns::{change_in_turns, claim_in_turns, reopen_in_turns};
pub(crate) use leave::{LEAVE_LIMIT, leave};
pub use manager::Manager;
pub use request::Request;
pub use server::{Control, ControlError, start};
pub use socket::ControlSocket;
