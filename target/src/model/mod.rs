//! What is served: subsystems with their namespaces, and what is known of the queues that use them.

pub(crate) mod disk_failures;
pub mod namespace;
pub mod queue_record;
pub mod subsystem;

pub use namespace::Namespace;
pub use queue_record::QueueRecord;
pub use subsystem::Subsystem;
