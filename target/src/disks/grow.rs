//! Making a file longer.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::fcntl::OFlag;
use ringfab_base::VisiblePath as _;

use crate::disk_identity::DiskIdentity;

/// Makes a file longer, if it is the one that is served.
pub(crate) fn grow(path: &Path, served: DiskIdentity, bytes: u64) -> Result<(), String> {
    let refused = |error: io::Error| format!("cannot resize {}: {error}", path.visible());
    let found = DiskIdentity::of_path(path).map_err(refused)?;
    if found != served {
        return Err(format!("{} is another file than the one that is served", path.visible()));
    }
    if matches!(found, DiskIdentity::Device(_)) {
        return Err(format!("{} is not a regular file: resize it yourself", path.visible()));
    }
    let file =
        OpenOptions::new().write(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path).map_err(refused)?;
    let metadata = file.metadata().map_err(refused)?;
    if DiskIdentity::of(&metadata).map_err(refused)? != served {
        return Err(format!("{} is another file than the one that is served", path.visible()));
    }
    if i64::try_from(bytes).is_err() {
        return Err(format!("{bytes} bytes are more than a file can have, which is {}", i64::MAX));
    }
    if bytes < metadata.len() {
        return Err(format!("{bytes} bytes are less than the {} that there are", metadata.len()));
    }
    file.set_len(bytes).map_err(refused)?;
    // A file system may tell only now that there is no room, and only this descriptor.
    file.sync_all().map_err(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_a_largest_size_which_is_said() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("disk");
        std::fs::write(&path, [0; 4096]).expect("a file");
        let served = DiskIdentity::of_path(&path).expect("a disk");
        assert_eq!(
            grow(&path, served, u64::MAX).expect_err("too much"),
            "18446744073709551615 bytes are more than a file can have, which is 9223372036854775807"
        );
        assert!(grow(&path, served, 100).expect_err("less").contains("are less than the 4096"));
        assert_eq!(grow(&path, served, 8192), Ok(()));
        assert_eq!(std::fs::metadata(&path).expect("the file").len(), 8192);
    }
}
