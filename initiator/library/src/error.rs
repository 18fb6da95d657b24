//! Errors: one sentence that says what failed, at which step and what the peer answered. What a user can do about it is
//! said by whoever has one, from the typed cause.

use std::time::Duration;

use ringfab_fabric::rdma::DisconnectReason;
use ringfab_spec::Status;

use crate::authentication::AuthenticationFailure;
use crate::refusal::RefusedField;
use crate::retry::{Tries, Verdict};
use crate::tls::TlsFailure;
use crate::wire::data::Short;

/// A step of attaching a controller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Step {
    /// Host name to address.
    Resolve,
    /// TCP connection of the software RNIC.
    Connect,
    /// Exchange of MPA frames with the private data of NVMe/RDMA.
    Mpa,
    /// The TLS handshake, or the key for it.
    Tls,
    /// Exchange of ICReq and ICResp of NVMe/TCP.
    Initialize,
    /// The Fabrics Connect command.
    FabricsConnect,
    /// The ends prove to each other who they are.
    Authenticate,
    /// Enabling the controller until it says that it is ready.
    Ready,
    /// Identify and Set Features.
    Identify,
    /// Connecting the I/O queues.
    IoQueues,
    /// Everything after: the controller was in use.
    Live,
    /// Orderly shutdown.
    Shutdown,
}

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Step::Resolve => "resolve",
            Step::Connect => "connect",
            Step::Mpa => "MPA",
            Step::Tls => "TLS",
            Step::Initialize => "ICReq",
            Step::FabricsConnect => "Fabrics Connect",
            Step::Authenticate => "authentication",
            Step::Ready => "ready",
            Step::Identify => "identify",
            Step::IoQueues => "I/O queues",
            Step::Live => "while attached",
            Step::Shutdown => "shutdown",
        })
    }
}

/// Why a controller is not attached (any more).
#[derive(Clone, Debug, thiserror::Error)]
#[error("{peer}: {step}: {cause}")]
#[non_exhaustive]
pub struct ConnectError {
    /// Host, port and subsystem.
    pub peer: String,
    /// At which step.
    pub step: Step,
    /// What happened.
    pub cause: Cause,
}

impl ConnectError {
    /// An error of a peer: host, port and subsystem.
    pub fn new(peer: String, step: Step, cause: Cause) -> Self {
        Self { peer, step, cause }
    }
}

/// What happened at a [`Step`].
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// The host name has no address.
    #[error("the name has no address ({0})")]
    Name(String),
    /// No connection, in the provider's words.
    #[error("{0}")]
    Fabric(String),
    /// The connection was made, and ended before its first answer.
    #[error("the connection ended before the target answered: {0}")]
    Unanswered(String),
    /// The peer rejected the connection.
    #[error("the target rejected the connection: {0}")]
    Rejected(String),
    /// A command failed.
    #[error("{command} was answered with {}", status_text(.command, .status))]
    Status {
        /// Name of the command.
        command: &'static str,
        /// What the controller answered.
        status: Status,
    },
    /// A Connect was refused for one of its fields.
    #[error("Connect was answered with {}: the target refuses {field}", status_text("Connect", .status))]
    Field {
        /// Which one, and what we sent in it.
        field: RefusedField,
        /// What the controller answered.
        status: Status,
    },
    /// The ends have not proved to each other who they are.
    #[error("{0}")]
    Authentication(AuthenticationFailure),
    /// The connection is not over TLS.
    #[error("{0}")]
    Tls(TlsFailure),
    /// No answer in time.
    #[error("{what}: no answer within {} s", .limit.as_secs_f32())]
    TimedOut {
        /// What was waited for.
        what: &'static str,
        /// For how long.
        limit: Duration,
    },
    /// The controller reported Controller Fatal Status.
    #[error("the controller reports a fatal error (CSTS.CFS)")]
    ControllerFatal,
    /// The connection ended.
    #[error("{0}")]
    Disconnected(DisconnectReason),
    /// The peer broke a rule of NVMe.
    #[error("the target broke the protocol: {0}")]
    Protocol(&'static str),
    /// A command was answered with less data than it takes to know what it asked for.
    #[error("{}", short_text(.command, *.received, *.needed))]
    Short {
        /// Name of the command.
        command: &'static str,
        /// Bytes that came.
        received: u32,
        /// Bytes that are needed.
        needed: u32,
    },
    /// The peer cannot do what we need.
    #[error("{0}")]
    Unsupported(String),
    /// After a reconnect it is not the same namespace.
    #[error("after the reconnect namespace {nsid} is another one: {what}")]
    Changed {
        /// Which one.
        nsid: u32,
        /// What differs.
        what: String,
    },
    /// By this path, a namespace cannot be known to be the one that the other paths lead to.
    #[error("namespace {nsid} is not known to be the one that other paths lead to: {what}")]
    OtherDisk {
        /// Which one.
        nsid: u32,
        /// What differs.
        what: String,
    },
    /// After a reconnect the namespace is not there.
    #[error("after the reconnect there is no namespace {nsid}")]
    Missing {
        /// Which one.
        nsid: u32,
    },
    /// The namespace is there, but has no size yet.
    #[error("the target has namespace {nsid}, but it is not ready")]
    NotReady {
        /// Which one.
        nsid: u32,
    },
    /// Reconnecting was given up.
    #[error(
        "given up {after:?} after the connection was lost; the last attempt failed at step {step}: {last}"
    )]
    GaveUp {
        /// The controller-loss timeout.
        after: Duration,
        /// Where the last attempt failed.
        step: Step,
        /// Why.
        last: Box<Cause>,
    },
    /// Our own resources.
    #[error("{0}")]
    Local(String),
    /// Another controller of the subsystem tells that this one has lost us.
    #[error("the target has lost this host here, as it tells on another path")]
    LostHost,
    /// The program has asked for a reset of the controller.
    #[error("reset, as asked for")]
    Reset,
    /// The caller cancelled it.
    #[error("cancelled")]
    Cancelled,
}

impl Cause {
    /// Whether another attempt may end differently.
    pub fn is_transient(&self) -> bool {
        match self {
            // The target has given the controller up meanwhile. The next attempt gets another one.
            Cause::Field { field, .. } if field.is_controller() => true,
            Cause::Status { status, .. } | Cause::Field { status, .. } => !status.dnr(),
            Cause::Tls(failure) => *failure != TlsFailure::NoKey,
            Cause::Authentication(_)
            | Cause::Unsupported(_)
            | Cause::Changed { .. }
            | Cause::OtherDisk { .. }
            | Cause::GaveUp { .. }
            | Cause::Cancelled => false,
            _ => true,
        }
    }

    /// At which step it is found, of those before there is a connection.
    pub(crate) fn first_step(&self) -> Step {
        match self {
            Cause::Tls(_) => Step::Tls,
            Cause::Authentication(_) => Step::Authenticate,
            _ => Step::Resolve,
        }
    }

    /// Whether one end does not know the other by its key, which changes while keys are being changed.
    pub(crate) fn is_about_keys(&self) -> bool {
        match self {
            Cause::Authentication(_) => true,
            Cause::Status { status, .. } => status.code() == Status::AUTHENTICATION_REQUIRED,
            _ => false,
        }
    }
}

/// Why a command did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IoError {
    /// The controller's answer.
    #[error("{}", .0.name_in_nvm().map_or_else(|| .0.to_string(), str::to_owned))]
    Status(Status),
    /// The controller's answer to the last of several tries.
    #[error("{}, after {tries} tries", .status.name_in_nvm().map_or_else(|| .status.to_string(), str::to_owned))]
    Exhausted {
        /// What it answered.
        status: Status,
        /// How often the command was sent.
        tries: u32,
    },
    /// No connection to the controller, and the policy says not to wait (any longer).
    #[error("no connection to the controller")]
    NoPath,
    /// No answer in time, and none was to be had by aborting.
    #[error("no answer in time")]
    TimedOut,
    /// Cancelled by the caller, or by detaching.
    #[error("cancelled")]
    Cancelled,
    /// It was answered with less data than it takes to know what it asked for.
    #[error("{}", short_text(.command, *.received, *.needed))]
    Short {
        /// Name of the command.
        command: &'static str,
        /// Bytes that came.
        received: u32,
        /// Bytes that are needed.
        needed: u32,
    },
    /// It was not sent: what it wants is not there, or cannot be expressed as a command. The controller has not said
    /// so.
    #[error("{0}")]
    Refused(SubmitError),
}

impl IoError {
    /// Of a command that gets no further try.
    pub(crate) fn final_status(verdict: Verdict, status: Status, tries: Tries) -> Self {
        let bounded = matches!(verdict, Verdict::Retry | Verdict::WaitForPath);
        match tries.sent() {
            tries if bounded && tries > 1 => Self::Exhausted { status, tries },
            _ => Self::Status(status),
        }
    }
}

impl From<IoError> for std::io::Error {
    fn from(error: IoError) -> Self {
        use std::io::ErrorKind;
        let kind = match error {
            IoError::Status(status) | IoError::Exhausted { status, .. } => match status.code() {
                Status::LBA_OUT_OF_RANGE | Status::INVALID_FIELD => ErrorKind::InvalidInput,
                Status::CAPACITY_EXCEEDED => ErrorKind::StorageFull,
                Status::INVALID_OPCODE => ErrorKind::Unsupported,
                _ => ErrorKind::Other,
            },
            IoError::NoPath => ErrorKind::NotConnected,
            IoError::TimedOut => ErrorKind::TimedOut,
            IoError::Cancelled => ErrorKind::Interrupted,
            IoError::Refused(SubmitError::NoCommand(_)) => ErrorKind::Unsupported,
            IoError::Refused(SubmitError::NoNamespace(_)) => ErrorKind::NotFound,
            IoError::Refused(_) => ErrorKind::InvalidInput,
            IoError::Short { .. } => ErrorKind::InvalidData,
        };
        std::io::Error::new(kind, error)
    }
}

/// Why a request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// As many requests wait as may: take events first.
    #[error("as many requests wait as may")]
    Full,
    /// No such controller, or it is being detached.
    #[error("the controller is not attached")]
    Gone,
    /// The controller was never ready so far.
    #[error("the controller is not ready yet")]
    NotReady,
    /// The controller has no such namespace.
    #[error("the controller has no namespace {0}")]
    NoNamespace(u32),
    /// The controller did not announce this command.
    #[error("the controller does not have {0}")]
    NoCommand(&'static str),
    /// No blocks, or more than one command can take: see
    /// [`Namespace::transfer_blocks_max`](crate::Namespace::transfer_blocks_max).
    #[error("a command cannot take that many blocks")]
    Length,
    /// The buffer or source is shorter than the blocks.
    #[error("the buffer is shorter than the blocks")]
    Buffer,
    /// The blocks are not all within the namespace.
    #[error("the blocks reach beyond the end of the namespace")]
    Range,
    /// There is no path of that name.
    #[error("there is no such path")]
    NoPath,
    /// A path that cannot be added or removed.
    #[error("{0}")]
    Path(&'static str),
    /// The transport of this machine cannot carry such a command, however long it waits.
    #[error("the transport cannot carry that much data with one command")]
    Transport,
}

impl From<SubmitError> for IoError {
    fn from(reason: SubmitError) -> Self {
        match reason {
            SubmitError::Gone | SubmitError::NotReady => IoError::NoPath,
            _ => IoError::Refused(reason),
        }
    }
}

fn short_text(command: &str, received: u32, needed: u32) -> String {
    format!("the target answered {command} with {received} bytes of data, of which {needed} are needed")
}

fn status_text(command: &str, status: &Status) -> String {
    let name = if matches!(command, "Connect" | "Property Get" | "Property Set" | "Disconnect") {
        status.name_in_fabrics()
    } else {
        status.name()
    };
    let code = format!("status type {:#x} code {:#04x}", status.sct(), status.sc());
    name.map_or(code.clone(), |name| format!("{name} ({code})"))
}

impl Short {
    /// What it means for attaching.
    pub(crate) fn cause(self, command: &'static str) -> Cause {
        Cause::Short { command, received: self.received, needed: self.needed }
    }

    /// What it means for a command of a program.
    pub(crate) fn error(self, command: &'static str) -> IoError {
        IoError::Short { command, received: self.received, needed: self.needed }
    }
}

#[cfg(test)]
mod tests {
    use ringfab_spec::cqe::ConnectParameter;
    use ringfab_spec::sqe::ConnectData;
    use ringfab_spec::{IntoBytes as _, Nqn, SubmissionEntry};

    use super::*;

    #[test]
    fn a_controller_that_the_target_has_given_up_is_no_reason_to_give_up() {
        let subsystem = Nqn::new("nqn.2026-11.org.ringfab:one").expect("a name");
        let sent = ConnectData::new([9; 16], 6, subsystem, subsystem);
        let refused = |offset| {
            let parameter = ConnectParameter::Data(offset);
            let field = RefusedField::new(parameter, &SubmissionEntry::default(), sent.as_bytes());
            let status = Status::CONNECT_INVALID_PARAMETERS.with_dnr();
            Cause::Field { field: field.expect("it has a name"), status }
        };
        assert!(refused(16).is_transient(), "the next attempt has another controller");
        assert!(!refused(0).is_transient(), "HOSTID will be the same");
    }

    #[test]
    fn what_was_refused_here_is_no_status_of_the_controller() {
        for reason in [
            SubmitError::NoNamespace(2),
            SubmitError::NoCommand("Verify"),
            SubmitError::Range,
            SubmitError::Full,
            SubmitError::Length,
            SubmitError::Buffer,
            SubmitError::Transport,
        ] {
            assert_eq!(IoError::from(reason), IoError::Refused(reason));
        }
        let unsupported = std::io::Error::from(IoError::from(SubmitError::NoCommand("Verify")));
        assert_eq!(unsupported.kind(), std::io::ErrorKind::Unsupported);
        assert_eq!(unsupported.to_string(), "the controller does not have Verify");
    }
}
