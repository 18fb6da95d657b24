//! Which disk a path leads to, whatever its name, and which disks this process serves already.

mod fingerprint;
mod in_use;

use std::fmt;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use ringfab_reactor::check_kind;

pub(crate) use fingerprint::Fingerprint;
pub(crate) use in_use::{InUse, OtherUse, Sharing};

/// A regular file or a block device, however many names it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DiskIdentity {
    /// A regular file: its file system's device, and its inode.
    File {
        /// Device of the file system.
        device: u64,
        /// Inode number there.
        inode: u64,
    },
    /// A block device, by its number.
    Device(u64),
}

impl DiskIdentity {
    /// What a path leads to, without opening it. This may block.
    ///
    /// # Errors
    /// The system's answer, or what it is that cannot be a disk.
    pub fn of_path(path: &Path) -> io::Result<Self> {
        Self::of(&fs::metadata(path)?)
    }

    /// What was looked at.
    ///
    /// # Errors
    /// What it is, when that cannot be a disk.
    pub fn of(metadata: &Metadata) -> io::Result<Self> {
        check_kind(metadata.file_type())?;
        Ok(if metadata.file_type().is_block_device() {
            Self::Device(metadata.rdev())
        } else {
            Self::File { device: metadata.dev(), inode: metadata.ino() }
        })
    }
}

impl fmt::Display for DiskIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers = |device| (nix::sys::stat::major(device), nix::sys::stat::minor(device));
        match *self {
            Self::File { device, inode } => {
                let (major, minor) = numbers(device);
                write!(f, "inode {inode} of file system {major}:{minor}")
            }
            Self::Device(device) => {
                let (major, minor) = numbers(device);
                write!(f, "block device {major}:{minor}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn every_name_of_a_file_leads_to_the_same_disk() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        fs::write(&path, "x").unwrap();
        fs::hard_link(&path, folder.path().join("hard")).unwrap();
        symlink(&path, folder.path().join("soft")).unwrap();
        fs::write(folder.path().join("other"), "x").unwrap();
        let of = |name: &str| DiskIdentity::of_path(&folder.path().join(name)).unwrap();
        assert_eq!(of("disk"), of("hard"));
        assert_eq!(of("disk"), of("soft"));
        assert_ne!(of("disk"), of("other"));
    }

    #[test]
    fn what_cannot_be_a_disk_is_named_and_not_opened() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let socket = folder.path().join("socket");
        let _socket = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for (path, what) in [
            (fifo.as_path(), "a FIFO"),
            (&socket, "a socket"),
            (folder.path(), "a directory"),
            (Path::new("/dev/null"), "a character device"),
        ] {
            let error = DiskIdentity::of_path(path).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
    }
}
