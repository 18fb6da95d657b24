//! Why a connection cannot go on.

use thiserror::Error;

use crate::alert::Alert;

/// Why a connection cannot go on, as a sentence. It contains no secrets.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TlsError {
    /// This part is not there yet.
    #[error("TLS is not implemented yet")]
    NotImplemented,
}

impl TlsError {
    /// What the peer is told about it. None: it is gone, or has said so itself.
    pub fn alert(&self) -> Option<Alert> {
        Some(Alert::INTERNAL_ERROR)
    }
}
