//! What a peer can do wrong, and what ends a connection.

use ringfab_spec::FromBytes;
use ringfab_spec::tcp::{FatalError, TermReq};
use thiserror::Error;

/// A rule that the peer broke, as the termination request says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{what} ({fes}, {fei:#x})")]
pub struct Violation {
    /// Fatal Error Status.
    pub fes: FatalError,
    /// Fatal Error Information: the offset of the wrong field, or the digest that was received.
    pub fei: u32,
    /// For people.
    pub what: &'static str,
}

impl Violation {
    /// A field of a header is wrong.
    pub(super) const fn field(offset: u32, what: &'static str) -> Self {
        Self { fes: FatalError::INVALID_HEADER_FIELD, fei: offset, what }
    }

    /// A PDU came where it must not.
    pub(super) const fn sequence(what: &'static str) -> Self {
        Self { fes: FatalError::SEQUENCE_ERROR, fei: 0, what }
    }

    /// Data beyond, or beside, what was asked for.
    pub(super) const fn range(what: &'static str) -> Self {
        Self { fes: FatalError::OUT_OF_RANGE, fei: 0, what }
    }

    /// More than was allowed.
    pub(super) const fn limit(what: &'static str) -> Self {
        Self { fes: FatalError::LIMIT_EXCEEDED, fei: 0, what }
    }

    /// A parameter of the connection that we do not have.
    pub(super) const fn unsupported(offset: u32, what: &'static str) -> Self {
        Self { fes: FatalError::UNSUPPORTED_PARAMETER, fei: offset, what }
    }
}

/// What the peer said when it ended the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{fes} ({fei:#x})")]
pub struct Termination {
    /// Fatal Error Status.
    pub fes: FatalError,
    /// Fatal Error Information.
    pub fei: u32,
}

impl Termination {
    /// Reads a termination request. One that is too short for one says nothing.
    pub(super) fn of(header: &[u8]) -> Self {
        let request =
            TermReq::read_from_prefix(header).map_or_else(|_| TermReq::zeroed(), |(request, _)| request);
        Self { fes: request.fatal_error(), fei: request.fei.get() }
    }
}

/// The connection is of no further use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum EngineError {
    /// The peer broke a rule. A termination request waits to be sent.
    #[error("{0}")]
    Violation(Violation),
    /// The peer sent a termination request.
    #[error("the peer ended the connection: {0}")]
    Terminated(Termination),
    /// It had ended before.
    #[error("the connection has ended")]
    Ended,
}
