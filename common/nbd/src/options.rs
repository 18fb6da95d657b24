//! How an export is used.

use std::time::Duration;

/// A network that takes nothing for so long is down, and a server that does not shake hands is not there. A server that
/// is idle is asked for a sign of life twice as often.
pub(crate) const NETWORK_LIMIT: Duration = Duration::from_secs(10);

/// How an export is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NbdOptions {
    /// Nothing is written.
    pub read_only: bool,
    /// Each write reaches stable storage before it is acknowledged (Force Unit Access), so that nothing can be lost
    /// when the server goes.
    pub write_through: bool,
    /// How many cores open it. Each has a connection of its own, if the export allows several.
    pub cores: usize,
    /// How long operations wait for a server that is gone. They end with
    /// [`BlockError::Removed`](ringfab_block::BlockError::Removed) then, until it is back.
    pub patience: Duration,
    /// How long nothing is sent again after a connection has ended without the server's knowing, when changes of the
    /// disk were not answered: what is still on its way to the server may be done until then.
    pub replay_delay: Duration,
}

impl Default for NbdOptions {
    /// Written and cached by the server; a core; 30 s; 30 s.
    fn default() -> Self {
        Self {
            read_only: false,
            write_through: false,
            cores: 1,
            patience: Duration::from_secs(30),
            replay_delay: Duration::from_secs(30),
        }
    }
}
