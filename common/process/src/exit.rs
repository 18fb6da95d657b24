//! The exit statuses of our programs. `docs/exit-status.md` is the table for users.

/// It failed; one sentence on the standard error says why.
pub const FAILED: u8 = 1;

/// The command line or the configuration is wrong. The same command fails again until somebody corrects it, so a
/// service manager need not try (`RestartPreventExitStatus=`).
pub const WRONG: u8 = 2;

/// A signal ended it.
pub const CANCELLED: u8 = 130;
