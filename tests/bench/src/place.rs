//! Who runs where.

use anyhow::{Context, Result};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// What serves.
pub(crate) const TARGET_CORE: usize = 0;
/// What asks and measures.
pub(crate) const INITIATOR_CORE: usize = 1;

/// Keeps the calling thread, and what it starts from now on, on one core.
pub(crate) fn pin(core: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(core)?;
    sched_setaffinity(Pid::from_raw(0), &set).with_context(|| format!("run on core {core}"))
}

/// Does something, which starts processes, on one core. They stay there; the calling thread does not.
pub(crate) fn on_core<T>(core: usize, act: impl FnOnce() -> Result<T>) -> Result<T> {
    let before = sched_getaffinity(Pid::from_raw(0)).context("which cores this process may use")?;
    pin(core)?;
    let result = act();
    sched_setaffinity(Pid::from_raw(0), &before).context("go back to all cores")?;
    result
}
