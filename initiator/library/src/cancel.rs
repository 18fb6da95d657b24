//! Ending waits from outside.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often a wait looks whether it was cancelled: a signal handler can set a flag, but wake nobody.
pub(crate) const CANCEL_POLL: Duration = Duration::from_millis(50);

/// Ends every wait of the calls that were given it, for instance when ctrl-C was pressed. Once cancelled it stays
/// so. Clones are the same token.
///
/// ```
/// use ringfab_initiator::blocking::{CancelToken, EngineOptions};
///
/// let cancel = CancelToken::new();
/// let options = EngineOptions::with_cancel(cancel.clone());
/// // On another thread, or in a signal handler:
/// cancel.cancel();
/// assert!(options.cancel.is_cancelled());
/// ```
#[derive(Clone, Debug, Default)]
pub struct CancelToken(Arc<AtomicBool>);

impl CancelToken {
    /// A token that is not cancelled.
    pub fn new() -> Self {
        Self::default()
    }

    /// Cancels. It only stores to a flag, so a signal handler may call it.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether it was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
