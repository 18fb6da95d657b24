//! Devices of drivers that a program brings: looked at before cores open them, and from time to time.

use std::path::PathBuf;
use std::time::Duration;

use ringfab_base::VisiblePath as _;
use ringfab_block::{DeviceIdentity, DriverHandle, Seen};

use crate::disk_identity::Sharing;
use crate::model::{Namespace, Served};
use crate::worker;

/// Has a driver look at its device, and waits no longer than `limit`.
///
/// # Errors
/// Why cores cannot open it, or that the driver has not returned.
pub(crate) fn look(driver: &DriverHandle, limit: Duration) -> Result<Seen, String> {
    let (name, this) = (PathBuf::from(driver.name()), driver.clone());
    let seen = worker::within("looking at", &name, limit, move || this.look());
    let seen = seen.map_err(|error| error.to_string())?;
    seen.map_err(|error| format!("cannot open {}: {error}", name.visible()))
}

/// All namespaces that are served, with the NQNs of their subsystems.
pub(crate) fn all(served: &Served) -> impl Iterator<Item = (&str, &Namespace)> {
    served.namespaces().map(|(subsystem, namespace)| (subsystem.nqn(), &**namespace))
}

/// Notes which disk the driver of a namespace has found. Whichever name it is found by, one of the `others` may have it
/// only if both say so. Those are with the NQNs of their subsystems.
///
/// # Errors
/// Which namespace has the disk.
pub(crate) fn identify<'a>(
    namespace: &Namespace,
    found: Option<DeviceIdentity>,
    mut others: impl Iterator<Item = (&'a str, &'a Namespace)>,
) -> Result<(), String> {
    let sharing = |namespace: &Namespace| Sharing::new(namespace.read_only(), namespace.shared());
    let has_it = |other: &Namespace| {
        other.index() != namespace.index()
            && found.is_some()
            && other.opened_disk().identity() == found
            && !sharing(namespace).allows(sharing(other))
    };
    if let Some((nqn, other)) = others.find(|(_, other)| has_it(other)) {
        return Err(format!(
            "{} is the disk of namespace {} of {nqn} already; write shared = true for both if that is meant",
            namespace.source(),
            other.nsid()
        ));
    }
    namespace.opened_disk().set_identity(found);
    Ok(())
}
