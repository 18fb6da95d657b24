//! What is served: subsystems with their hosts and namespaces, listeners, and records of the queues that use them.

pub(crate) mod disk_failures;
pub mod listener;
pub mod namespace;
pub mod queue_record;
mod served;
pub mod subsystem;

pub use listener::{ControllerLimits, Listener};
pub use namespace::Namespace;
pub use queue_record::QueueRecord;
pub use served::{Difference, Draft, Served, ServedError, ServedSubsystem, ShownNamespace};
pub use subsystem::Subsystem;
