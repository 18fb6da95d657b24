//! What the sequence of a controller consists of.

use crate::error::Step;

/// One of the commands. Where a number stands in it, it is the queue or the namespace that it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    /// Fabrics Connect of the admin queue.
    Connect,
    /// Property Get of CAP.
    Capabilities,
    /// Property Get of VS.
    Version,
    /// Property Set of CC, enabling.
    Enable,
    /// Property Get of CSTS, until it is ready.
    ReadyStatus,
    /// Identify Controller.
    Identify,
    /// Identify of the NVM Command Set's limits; old controllers have none.
    Limits,
    /// Set Features, Host Behavior Support, where the controller has delays for another try.
    HostBehavior,
    /// Set Features, Number of Queues.
    QueueCount,
    /// Set Features, Asynchronous Event Configuration.
    EventConfig,
    /// The RNIC connects a queue pair.
    QueueEstablish(u16),
    /// Fabrics Connect of an I/O queue.
    QueueConnect(u16),
    /// Identify, active namespaces after this one.
    List(u32),
    /// Identify of the namespace at this index of the list.
    Namespace(usize),
    /// Identify, active namespaces from this one on, which has no size.
    Listed(u32),
    /// Its identification descriptors; old controllers have none.
    Descriptors(usize),
    /// Get Log Page, changed namespaces, which also lets the next event of this kind come.
    ChangedLog,
    /// Flush of this namespace.
    Flush(u32),
    /// Fabrics Disconnect of an I/O queue; a controller need not have it.
    Disconnect(u16),
    /// Property Set of CC, normal shutdown.
    ShutdownSet,
    /// Property Get of CSTS, until shutdown is complete.
    ShutdownStatus,
}

impl Task {
    /// The step that a failure belongs to.
    pub(super) fn step(self) -> Step {
        match self {
            Task::Connect => Step::FabricsConnect,
            Task::Capabilities | Task::Version | Task::Enable | Task::ReadyStatus => Step::Ready,
            Task::QueueEstablish(_) | Task::QueueConnect(_) => Step::IoQueues,
            Task::Flush(_) | Task::Disconnect(_) | Task::ShutdownSet | Task::ShutdownStatus => Step::Shutdown,
            _ => Step::Identify,
        }
    }

    /// The command's name, for an error.
    pub(super) fn command(self) -> &'static str {
        match self {
            Task::Connect | Task::QueueConnect(_) => "Connect",
            Task::Capabilities | Task::Version | Task::ReadyStatus | Task::ShutdownStatus => "Property Get",
            Task::Enable | Task::ShutdownSet => "Property Set",
            Task::Identify | Task::Limits => "Identify Controller",
            Task::HostBehavior => "Set Features (Host Behavior Support)",
            Task::QueueCount => "Set Features (Number of Queues)",
            Task::EventConfig => "Set Features (Asynchronous Event Configuration)",
            Task::List(_) | Task::Listed(_) => "Identify (active namespaces)",
            Task::Namespace(_) | Task::Descriptors(_) => "Identify Namespace",
            Task::ChangedLog => "Get Log Page (changed namespaces)",
            Task::Flush(_) => "Flush",
            Task::Disconnect(_) => "Disconnect",
            Task::QueueEstablish(_) => "the connection of an I/O queue",
        }
    }

    /// Whether the sequence goes on when the controller refuses it.
    pub(super) fn is_optional(self) -> bool {
        matches!(
            self,
            Task::Limits
                | Task::HostBehavior
                | Task::EventConfig
                | Task::Descriptors(_)
                | Task::ChangedLog
                | Task::Disconnect(_)
        )
    }

    /// Whether it may be tried again on the same connection. A Connect has a connection of its own.
    pub(super) fn may_repeat(self) -> bool {
        !matches!(self, Task::Connect | Task::QueueConnect(_) | Task::QueueEstablish(_) | Task::Disconnect(_))
    }
}
