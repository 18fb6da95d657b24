//! The RDMA devices of this machine, for people.

use std::io;

pub use super::verbs::devices::{Address, DeviceInfo, LinkLayer, PortInfo, list};

/// Whether the kernel has any device. Asking it first keeps the libraries quiet on machines without.
///
/// # Errors
/// When it has none.
pub(super) fn any() -> io::Result<()> {
    match std::fs::read_dir("/sys/class/infiniband").map(|mut devices| devices.next().is_some()) {
        Ok(true) => Ok(()),
        _ => Err(io::Error::new(io::ErrorKind::NotFound, "the kernel knows no RDMA device")),
    }
}

/// The first device that could serve.
///
/// # Errors
/// When there is none.
pub(super) fn first_usable() -> io::Result<String> {
    let none = || io::Error::new(io::ErrorKind::NotFound, "this machine has no RDMA device that is up");
    any()?;
    list()?.into_iter().find(|device| device.trouble.is_none()).map(|device| device.name).ok_or_else(none)
}
