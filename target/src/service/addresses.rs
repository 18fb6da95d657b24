//! Whether the process may have as many addresses as it is about to map.

use std::io;

use ringfab_base::shown_size;
use ringfab_memory::{address_limit, has_headroom};

use super::ServeError;
use crate::config::{Config, Source};

/// What a core has beside its buffers for data: a ring, a stack, and buffers for admin commands.
const CORE_BYTES: u64 = 8 << 20;

/// The heap, the other threads, and the code that is mapped when it is first used.
const OWN_BYTES: u64 = 32 << 20;

/// Refuses to start where the limit on addresses is too low. Later it would be met anywhere: an allocation of the heap
/// that fails ends the process without a reason, and a thread that has no room for its stack is taken for one too many.
///
/// # Errors
/// [`ServeError::Start`] with how much is needed and how much is allowed.
pub(super) fn require(config: &Config) -> Result<(), ServeError> {
    let Some(limit) = address_limit() else { return Ok(()) };
    let needed = needed(config);
    if usize::try_from(needed).is_ok_and(has_headroom) {
        return Ok(());
    }
    let (needed, limit) = (shown_size(needed), shown_size(limit));
    Err(ServeError::Start(io::Error::other(format!(
        "{needed} of memory cannot be mapped for buffers, memory namespaces and threads: \
         this process may have {limit} of addresses in all (ulimit -v, LimitAS=)"
    ))))
}

/// What is mapped until the target serves, in bytes.
pub(super) fn needed(config: &Config) -> u64 {
    let namespaces = config.subsystems.iter().flat_map(|subsystem| &subsystem.namespaces);
    let disks: u64 = namespaces
        .map(|namespace| match namespace.source {
            Source::Memory(bytes) => bytes,
            _ => 0,
        })
        .sum();
    let of_core = CORE_BYTES + config.memory.bytes();
    OWN_BYTES + disks + of_core * config.target.cores.len() as u64
}
