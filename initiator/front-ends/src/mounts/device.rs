//! The loop device of a namespace, as the kernel shows it.

use std::fs;
use std::path::{Path, PathBuf};

use super::holders::Mount;

/// What the kernel counts sizes in.
const SECTOR_BYTES: u64 = 512;

/// Whether a device has this file.
pub(crate) fn has_file(device: &Path, file: &Path) -> bool {
    self::file(device).is_some_and(|found| found == file)
}

/// The devices whose file is below a directory.
pub(crate) fn below(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let devices = entries.map(|entry| Path::new("/dev").join(entry.file_name()));
    devices.filter(|device| file(device).is_some_and(|file| file.starts_with(directory))).collect()
}

/// Where a device is mounted.
pub(crate) fn mounts(device: &Path) -> Vec<PathBuf> {
    let mounts = Mount::all().into_iter().filter(|mount| Path::new(&mount.source) == device);
    mounts.map(|mount| mount.at).collect()
}

/// What a device does, as the kernel counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Activity {
    pub(crate) sectors_written: u64,
    pub(crate) in_flight: u64,
}

/// What a device does.
pub(crate) fn activity(device: &Path) -> Option<Activity> {
    Activity::parse(&attribute(device, "stat")?)
}

impl Activity {
    fn parse(text: &str) -> Option<Self> {
        let number = |place| text.split_whitespace().nth(place)?.parse().ok();
        Some(Self { sectors_written: number(6)?, in_flight: number(8)? })
    }
}

/// The size of a device.
pub(crate) fn bytes(device: &Path) -> Option<u64> {
    let sectors: u64 = attribute(device, "size")?.parse().ok()?;
    sectors.checked_mul(SECTOR_BYTES)
}

/// Whether the kernel reads and writes its file without a cache of its own.
pub(crate) fn does_direct_io(device: &Path) -> bool {
    attribute(device, "loop/dio").is_some_and(|text| text == "1")
}

/// Whether a file system is mounted there whose loop device has a file of a FUSE server that is gone. When its mount is
/// gone, too, the kernel shows the file's path from the mount's root.
pub(crate) fn is_lost_at(directory: &Path) -> bool {
    let device = Mount::at(directory).map(|mount| PathBuf::from(mount.source));
    let file = device.and_then(|device| self::file(&device));
    file.is_some_and(|file| is_disk_at_root(&file) && !file.exists())
}

fn is_disk_at_root(file: &Path) -> bool {
    file.to_str().and_then(|file| file.strip_prefix("/ns")).is_some_and(|nsid| nsid.parse::<u32>().is_ok())
}

/// The file that a loop device is on, by the name that it had.
pub(crate) fn file(device: &Path) -> Option<PathBuf> {
    attribute(device, "loop/backing_file").map(PathBuf::from)
}

fn attribute(device: &Path, name: &str) -> Option<String> {
    let path = Path::new("/sys/block").join(device.file_name()?).join(name);
    fs::read_to_string(path).ok().map(|text| text.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_disk_does_is_in_its_statistics() {
        let text = "     104        1      870       13       28       40     3216        5        2       24       18";
        assert_eq!(Activity::parse(text), Some(Activity { sectors_written: 3216, in_flight: 2 }));
        assert_eq!(Activity::parse("1 2 3"), None);
    }

    #[test]
    fn a_disk_whose_mount_is_gone_has_the_root_in_its_path() {
        for (file, is_one) in [("/ns1", true), ("/ns", false), ("/run/x/ns1", false), ("/nsx", false)] {
            assert_eq!(is_disk_at_root(Path::new(file)), is_one, "{file}");
        }
    }
}
