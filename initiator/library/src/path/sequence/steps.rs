//! The steps of the sequence that attaches, refreshes and shuts down a controller.

use super::authentication::Stage;
use crate::error::Step;

/// A step: one command, or something else that is waited for. Where a number stands in it, it is the namespace that it
/// is about, or the queue among those of this engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::path) enum SequenceStep {
    /// Fabrics Connect of the admin queue.
    Connect,
    /// A queue authenticates, the admin queue or one of I/O.
    Authenticate(u16, Stage),
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
    /// Get Log Page, access states (ANA), from this byte on.
    AccessLog(u32),
    /// Set Features, Number of Queues.
    QueueCount,
    /// Set Features, Asynchronous Event Configuration.
    EventConfig,
    /// The transport connects an I/O queue.
    EstablishQueue(u16),
    /// Fabrics Connect of an I/O queue.
    ConnectQueue(u16),
    /// The followers connect their I/O queues.
    Followers,
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

impl SequenceStep {
    /// The step that a failure belongs to.
    pub(in crate::path) fn step(self) -> Step {
        match self {
            SequenceStep::Connect => Step::FabricsConnect,
            SequenceStep::Authenticate(..) => Step::Authenticate,
            SequenceStep::Capabilities
            | SequenceStep::Version
            | SequenceStep::Enable
            | SequenceStep::ReadyStatus => Step::Ready,
            SequenceStep::EstablishQueue(_) | SequenceStep::ConnectQueue(_) | SequenceStep::Followers => {
                Step::IoQueues
            }
            SequenceStep::Flush(_)
            | SequenceStep::Disconnect(_)
            | SequenceStep::ShutdownSet
            | SequenceStep::ShutdownStatus => Step::Shutdown,
            _ => Step::Identify,
        }
    }

    /// The command's name, for an error.
    pub(in crate::path) fn command(self) -> &'static str {
        match self {
            SequenceStep::Connect | SequenceStep::ConnectQueue(_) => "Connect",
            SequenceStep::Authenticate(_, stage) => stage.name(),
            SequenceStep::Capabilities
            | SequenceStep::Version
            | SequenceStep::ReadyStatus
            | SequenceStep::ShutdownStatus => "Property Get",
            SequenceStep::Enable | SequenceStep::ShutdownSet => "Property Set",
            SequenceStep::Identify | SequenceStep::Limits => "Identify Controller",
            SequenceStep::HostBehavior => "Set Features (Host Behavior Support)",
            SequenceStep::QueueCount => "Set Features (Number of Queues)",
            SequenceStep::EventConfig => "Set Features (Asynchronous Event Configuration)",
            SequenceStep::List(_) | SequenceStep::Listed(_) => "Identify (active namespaces)",
            SequenceStep::Namespace(_) | SequenceStep::Descriptors(_) => "Identify Namespace",
            SequenceStep::AccessLog(_) => "Get Log Page (access states)",
            SequenceStep::ChangedLog => "Get Log Page (changed namespaces)",
            SequenceStep::Flush(_) => "Flush",
            SequenceStep::Disconnect(_) => "Disconnect",
            SequenceStep::EstablishQueue(_) => "the connection of an I/O queue",
            SequenceStep::Followers => "the I/O queues of the other engines",
        }
    }

    /// Whether the sequence goes on when the controller refuses it.
    pub(in crate::path) fn is_optional(self) -> bool {
        matches!(
            self,
            SequenceStep::Limits
                | SequenceStep::HostBehavior
                | SequenceStep::AccessLog(_)
                | SequenceStep::EventConfig
                | SequenceStep::Descriptors(_)
                | SequenceStep::ChangedLog
                | SequenceStep::Disconnect(_)
        )
    }

    /// Whether it may be tried again on the same connection. A Connect has a connection of its own, and a message of
    /// authentication counts once.
    pub(in crate::path) fn may_repeat(self) -> bool {
        !matches!(
            self,
            SequenceStep::Connect
                | SequenceStep::ConnectQueue(_)
                | SequenceStep::EstablishQueue(_)
                | SequenceStep::Authenticate(..)
                | SequenceStep::Disconnect(_)
        )
    }

    /// Whether a message of authentication comes with its answer.
    pub(super) fn is_message(self) -> bool {
        matches!(self, SequenceStep::Authenticate(_, Stage::Receive))
    }

    /// Whether the controller writes data for it.
    pub(in crate::path) fn reads_data(self) -> bool {
        matches!(
            self,
            SequenceStep::Identify
                | SequenceStep::Limits
                | SequenceStep::List(_)
                | SequenceStep::Listed(_)
                | SequenceStep::Namespace(_)
                | SequenceStep::Descriptors(_)
                | SequenceStep::ChangedLog
                | SequenceStep::AccessLog(_)
                | SequenceStep::Authenticate(_, Stage::Receive)
        )
    }
}
