//! What takes the lines of the log.

use nix::errno::Errno;

/// Where lines go.
pub(super) trait Output {
    /// Writes some bytes, and says how many.
    fn write(&mut self, bytes: &[u8]) -> Result<usize, Errno>;
}
