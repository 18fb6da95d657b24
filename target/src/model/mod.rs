//! What is served: subsystems with their hosts and namespaces, listeners, and records of the queues that use them.

mod access_groups;
pub mod authentication;
pub(crate) mod disk_failure;
pub(crate) mod disk_failures;
pub mod epoch;
pub mod host_account;
pub mod io_record;
pub mod latency;
pub mod listener;
pub mod namespace;
mod opened_disk;
#[doc(hidden)]
pub mod protections;
pub mod queue_record;
pub mod rate;
mod readiness;
mod served;
pub mod subsystem;
mod tls_channel;

pub use access_groups::{ServedGroups, is_same as is_same_address, status_of as ana_status};
pub use authentication::{Authentication, AuthenticationTerms};
pub use epoch::Epoch;
pub use io_record::{IoCounters, IoRecord, IoSum};
pub use listener::{ControllerLimits, Listener, Way};
pub use namespace::Namespace;
pub use queue_record::QueueRecord;
pub use rate::{Direction, LimitedHost, LimitedNamespace, Rate, Unit};
pub use served::{Difference, Draft, Served, ServedError, ServedSubsystem, ShownNamespace};
pub use subsystem::Subsystem;
pub use tls_channel::TlsChannel;
