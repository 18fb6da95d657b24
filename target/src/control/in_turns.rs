//! What the control side does with cores that are in the caller's thread; for simulations. While it waits for their
//! answers, it has `turn` turn them, and let time pass.

use std::sync::Arc;
use std::time::Duration;

use super::change::{OpenedDisks, apply};
use crate::core::{AllCores, ControlClaim, Cores, CoresInTurns, ServeMessage};
use crate::model::{Draft, Namespace};
use crate::resources::scope::Scope;
use crate::target::Target;

/// Serves something else. Cores open files by themselves.
///
/// # Errors
/// Why that cannot be served, or why a core cannot. Nothing has changed then.
pub fn change_in_turns(
    cores: &Cores,
    target: &Target,
    draft: Draft,
    turn: &mut dyn FnMut(),
) -> Result<(), String> {
    let next = draft.check().map_err(|error| error.to_string())?;
    apply(target, &CoresInTurns::new(cores, turn), &Arc::default(), next, OpenedDisks::by_cores())
}

/// Has all cores open the disk of a namespace anew. What was lost is given up.
///
/// # Errors
/// When a core cannot open it, or there is no such namespace.
pub fn reopen_in_turns(
    cores: &Cores,
    target: &Target,
    namespace: &Arc<Namespace>,
    turn: &mut dyn FnMut(),
) -> Result<(), String> {
    let served = target.served();
    let found = served.namespaces().find(|(_, one)| Arc::ptr_eq(one, namespace));
    let (subsystem, _) = found.ok_or("there is no such namespace")?;
    let (subsystem, namespace) = (Arc::clone(subsystem.subsystem()), Arc::clone(namespace));
    let message =
        ServeMessage::Reopen { subsystem, namespace: Arc::clone(&namespace), files: Arc::default() };
    CoresInTurns::new(cores, turn).broadcast(message)?;
    namespace.reopened();
    Ok(())
}

/// Brings the disk of a namespace to rest: nothing runs on it on any core, until the claim is dropped. With a host, by
/// its Host Identifier, that is so for its commands alone.
///
/// Nothing when the cores have ended meanwhile.
pub fn claim_in_turns(
    cores: &Cores,
    namespace: &Namespace,
    host: Option<[u8; 16]>,
    turn: &mut dyn FnMut(),
) -> Option<ControlClaim> {
    let disk = namespace.index();
    let scope = host.map_or(Scope::Disk(disk), |host| Scope::HostOnDisk { host, disk });
    CoresInTurns::new(cores, turn).claim(scope, Duration::MAX)
}
