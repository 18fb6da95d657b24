//! Owners of reactor tokens on a core.

/// The core itself: its timers. The token's kind says which.
pub(crate) const CORE: u8 = 1;
/// The RNIC.
pub(crate) const RNIC: u8 = 2;
/// The disks; the rest of the token says which, and what of it: see [`DiskTokens`](ringfab_block::DiskTokens).
pub(crate) const DISK: u8 = 3;
/// NVMe/TCP.
pub(crate) const TCP: u8 = 4;

/// Kinds of the core's timers.
pub(crate) mod timer {
    /// Deadlines are looked at.
    pub(crate) const HOUSEKEEPING: u8 = 0;
    /// Queues without a Connect are looked at.
    pub(crate) const EVICTION: u8 = 1;
    /// The first command that a limit holds up can begin.
    pub(crate) const LIMIT: u8 = 2;
    /// The end of a drain.
    pub(crate) const END: u8 = 3;
}
