//! Making a file longer.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::fcntl::OFlag;

use crate::disk_identity::DiskIdentity;

/// Makes a file longer, if it is the one that is served.
pub(crate) fn grow(path: &Path, served: DiskIdentity, bytes: u64) -> Result<(), String> {
    let refused = |error: io::Error| format!("cannot resize {}: {error}", path.display());
    let found = DiskIdentity::of_path(path).map_err(refused)?;
    if found != served {
        return Err(format!("{} is another file than the one that is served", path.display()));
    }
    if matches!(found, DiskIdentity::Device(_)) {
        return Err(format!("{} is not a regular file: resize it yourself", path.display()));
    }
    let file =
        OpenOptions::new().write(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path).map_err(refused)?;
    let metadata = file.metadata().map_err(refused)?;
    if DiskIdentity::of(&metadata).map_err(refused)? != served {
        return Err(format!("{} is another file than the one that is served", path.display()));
    }
    if bytes < metadata.len() {
        return Err(format!("{bytes} bytes are less than the {} that there are", metadata.len()));
    }
    file.set_len(bytes).map_err(refused)?;
    // A file system may tell only now that there is no room, and only this descriptor.
    file.sync_all().map_err(refused)
}
