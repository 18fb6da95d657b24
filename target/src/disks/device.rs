//! Devices of drivers that a program brings: looked at before cores open them, and from time to time.

use std::path::PathBuf;
use std::time::Duration;

use ringfab_base::VisiblePath as _;
use ringfab_block::{DriverHandle, Seen};

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
