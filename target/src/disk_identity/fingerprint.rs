//! What tells one disk from another over restarts, when names and numbers may belong to others.

use std::fmt;
use std::fs::{self, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::UNIX_EPOCH;

use nix::sys::stat::{major, minor};
use nix::sys::statfs::{FUSE_SUPER_MAGIC, FsType, MSDOS_SUPER_MAGIC, statfs};
use nix::sys::statvfs::statvfs;
use serde::{Deserialize, Serialize};

/// File systems whose inodes have other numbers after each mount.
const WITHOUT_INODES: [FsType; 3] = [FUSE_SUPER_MAGIC, MSDOS_SUPER_MAGIC, FsType(0x2011_bab0)];

/// Where the kernel tells which disk a device is. The first that says something counts.
const NAMES: [&str; 4] = ["dm/uuid", "md/uuid", "wwid", "device/wwid"];

/// This start of the system: numbers of devices mean the same until the next.
static BOOT: LazyLock<String> =
    LazyLock::new(|| read("/proc/sys/kernel/random/boot_id".as_ref()).unwrap_or_default());

/// What was seen of a file or device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Fingerprint {
    /// The path by which it was opened.
    pub(crate) path: PathBuf,
    /// Where that led.
    real: String,
    /// The start of the system in which it was seen.
    boot: String,
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    File {
        device: u64,
        /// The number that the file system gives itself, often over restarts; 0 if it has none.
        file_system: u64,
        /// None where it changes with each mount.
        inode: Option<u64>,
        /// When it was made, in nanoseconds: another file may get the inode of one that was removed.
        born: Option<u64>,
    },
    Device {
        number: u64,
        /// Which of all disks that this number has had since the system started.
        sequence: Option<String>,
        /// What it says of itself.
        name: Option<String>,
    },
}

impl Fingerprint {
    /// What a path leads to. This may block.
    pub(crate) fn of(path: &Path, metadata: &Metadata) -> Self {
        let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let kind = if metadata.file_type().is_block_device() {
            device(metadata.rdev())
        } else {
            let stable = statfs(&real).is_ok_and(|found| !WITHOUT_INODES.contains(&found.filesystem_type()));
            Kind::File {
                device: metadata.dev(),
                file_system: statvfs(&real).map_or(0, |found| found.filesystem_id()),
                inode: stable.then(|| metadata.ino()),
                born: born(metadata),
            }
        };
        Self { path: path.to_owned(), real: real.to_string_lossy().into_owned(), boot: BOOT.clone(), kind }
    }

    /// Whether both are the same disk, as far as can be told.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let same_boot = self.boot == other.boot;
        match (&self.kind, &other.kind) {
            (
                Kind::File { device, file_system, inode: Some(inode), born },
                Kind::File {
                    device: other_device,
                    file_system: other_file_system,
                    inode: Some(other_inode),
                    born: other_born,
                },
            ) => {
                let same_file_system = *file_system != 0 && file_system == other_file_system;
                // A file that is moved stays on its file system, whose device may have another number later.
                let moved = device == other_device && (same_boot || same_file_system);
                let mounted_again = self.real == other.real && (!same_boot || same_file_system);
                let same_birth = born.zip(*other_born).is_none_or(|(one, other)| one == other);
                inode == other_inode && same_birth && (moved || mounted_again)
            }
            (Kind::File { .. }, Kind::File { .. }) => self.real == other.real,
            (
                Kind::Device { number, sequence, name },
                Kind::Device { number: other_number, sequence: other_sequence, name: other_name },
            ) => match (name, other_name) {
                (Some(name), Some(other)) => name == other,
                _ if same_boot => (number, sequence) == (other_number, other_sequence),
                _ => self.path == other.path,
            },
            _ => false,
        }
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.to_string_lossy().fmt(f)?;
        match &self.kind {
            Kind::File { inode: Some(inode), .. } => write!(f, " (inode {inode})"),
            Kind::File { .. } => Ok(()),
            Kind::Device { number, .. } => write!(f, " (block device {}:{})", major(*number), minor(*number)),
        }
    }
}

fn born(metadata: &Metadata) -> Option<u64> {
    let since = metadata.created().ok()?.duration_since(UNIX_EPOCH).ok()?;
    u64::try_from(since.as_nanos()).ok()
}

fn device(number: u64) -> Kind {
    let folder = PathBuf::from(format!("/sys/dev/block/{}:{}", major(number), minor(number)));
    let folder = folder.canonicalize().unwrap_or(folder);
    let partition = read(&folder.join("partition"));
    let whole = match (&partition, folder.parent()) {
        (Some(_), Some(whole)) => whole,
        _ => &folder,
    };
    let part = partition.map(|partition| {
        format!("partition {partition} at {}", read(&folder.join("start")).unwrap_or_default())
    });
    let name = NAMES.iter().find_map(|file| Some(format!("{file} {}", read(&whole.join(file))?)));
    let name = name.or_else(|| loop_name(&whole.join("loop")));
    Kind::Device {
        number,
        sequence: read(&whole.join("diskseq")),
        name: name.map(|name| format!("{name} {}", part.unwrap_or_default()).trim().to_owned()),
    }
}

/// A loop device is the file behind it.
fn loop_name(folder: &Path) -> Option<String> {
    let file = read(&folder.join("backing_file"))?;
    let metadata = fs::metadata(&file).ok()?;
    let (inode, born) = (metadata.ino(), born(&metadata).unwrap_or_default());
    let offset = read(&folder.join("offset")).unwrap_or_default();
    Some(format!("loop {file} inode {inode} born {born} at {offset}"))
}

/// The text in a file of the kernel, if there is some.
fn read(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?.trim().to_owned();
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn seen(path: &Path) -> Fingerprint {
        Fingerprint::of(path, &fs::metadata(path).unwrap())
    }

    #[test]
    fn a_file_is_the_same_under_every_name_and_another_one_of_its_name_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let (a, b, link) = (folder.path().join("a"), folder.path().join("b"), folder.path().join("link"));
        fs::write(&a, "x").unwrap();
        symlink(&a, &link).unwrap();
        let first = seen(&a);
        assert!(first.is_same(&seen(&link)));
        fs::rename(&a, &b).unwrap();
        assert!(first.is_same(&seen(&b)), "it has moved");
        fs::write(&a, "x").unwrap();
        assert!(!first.is_same(&seen(&a)));
        assert!(!seen(&a).is_same(&seen(&b)));
        let text = serde_json::to_string(&first).unwrap();
        assert_eq!(serde_json::from_str::<Fingerprint>(&text).unwrap(), first);
    }

    fn file(path: &str, boot: &str, kind: Kind) -> Fingerprint {
        Fingerprint { path: path.into(), real: path.to_owned(), boot: boot.to_owned(), kind }
    }

    #[test]
    fn a_file_stays_the_same_when_its_file_system_gets_another_number() {
        let at = |device, file_system, inode, born| Kind::File { device, file_system, inode, born };
        let first = file("/a", "1", at(8, 7, Some(5), Some(99)));
        for (same, other, why) in [
            (true, file("/a", "2", at(9, 7, Some(5), Some(99))), "after a start of the system"),
            (true, file("/a", "1", at(9, 7, Some(5), Some(99))), "after a mount"),
            (true, file("/a", "2", at(9, 0, Some(5), None)), "where little is told"),
            (true, file("/b", "2", at(8, 7, Some(5), Some(99))), "moved before a start of the system"),
            (false, file("/a", "1", at(9, 6, Some(5), Some(99))), "a copy of the file system"),
            (false, file("/b", "2", at(8, 6, Some(5), Some(99))), "the device is another one by now"),
            (false, file("/a", "2", at(8, 7, Some(6), Some(99))), "another inode"),
            (false, file("/a", "2", at(8, 7, Some(5), Some(98))), "an inode that is used again"),
        ] {
            assert_eq!(first.is_same(&other), same, "{why}");
            assert_eq!(other.is_same(&first), same, "{why}");
        }
        let numberless = file("/a", "1", at(8, 7, None, Some(99)));
        assert!(numberless.is_same(&file("/a", "2", at(8, 7, None, Some(98)))), "by its name");
        assert!(!numberless.is_same(&file("/b", "1", at(8, 7, None, Some(99)))));
    }

    #[test]
    fn a_device_is_what_it_says_of_itself_or_else_its_number_or_else_its_path() {
        let disk = |number, sequence: &str, name: Option<&str>| Kind::Device {
            number,
            sequence: Some(sequence.to_owned()),
            name: name.map(str::to_owned),
        };
        let named = file("/dev/a", "1", disk(8, "3", Some("wwid x")));
        assert!(named.is_same(&file("/dev/b", "2", disk(9, "4", Some("wwid x")))));
        assert!(!named.is_same(&file("/dev/a", "1", disk(8, "3", Some("wwid y")))));
        let nameless = file("/dev/a", "1", disk(8, "3", None));
        assert!(nameless.is_same(&file("/dev/b", "1", disk(8, "3", None))));
        assert!(!nameless.is_same(&file("/dev/a", "1", disk(8, "4", None))), "attached anew");
        assert!(nameless.is_same(&file("/dev/a", "2", disk(9, "9", None))));
        assert!(!nameless.is_same(&file("/dev/b", "2", disk(8, "3", None))));
    }
}
