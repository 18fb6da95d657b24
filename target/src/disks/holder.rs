//! Who else holds a disk, as far as the system tells.

use std::fs;

use nix::sys::stat::{major, minor};

use crate::disk_identity::DiskIdentity;

/// Who holds a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    /// For the end of a sentence: "in use by ...".
    pub(crate) text: String,
    /// Whether it is a process that runs. One that was killed may hold it a little longer.
    pub(crate) lives: bool,
    /// The process, if it is one that runs.
    pub(crate) process: Option<u32>,
}

impl Holder {
    /// Who holds it now.
    pub(crate) fn of(identity: DiskIdentity) -> Self {
        Self::found(identity).unwrap_or_else(|| Self {
            text: "something that the system does not name".to_owned(),
            lives: false,
            process: None,
        })
    }

    /// Who holds it now, if somebody does.
    pub(crate) fn found(identity: DiskIdentity) -> Option<Self> {
        match identity {
            DiskIdentity::File { device, inode } => of_file(device, inode),
            DiskIdentity::Device(device) => of_device(device),
        }
    }

    fn of_thing(text: String) -> Self {
        Self { text, lives: true, process: None }
    }
}

/// The process with a lock on the file.
fn of_file(device: u64, inode: u64) -> Option<Holder> {
    let locks = fs::read_to_string("/proc/locks").ok()?;
    let process = lock_holder(&locks, device, inode)?;
    let name = fs::read_to_string(format!("/proc/{process}/comm")).ok();
    Some(match name {
        Some(name) => Holder {
            text: format!("process {process} ({})", name.trim()),
            lives: true,
            process: Some(process),
        },
        None => Holder { text: format!("process {process}, which has ended"), lives: false, process: None },
    })
}

/// The process of a line `1: FLOCK ADVISORY WRITE 1234 08:01:5678 0 EOF`; some locks have none (-1).
fn lock_holder(locks: &str, device: u64, inode: u64) -> Option<u32> {
    let file = format!("{:02x}:{:02x}:{inode}", major(device), minor(device));
    locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().filter(|word| *word != "->").collect();
        let [_, "FLOCK", _, _, process, place, ..] = words.as_slice() else { return None };
        (*place == file).then(|| process.parse().ok()).flatten()
    })
}

/// What has a block device: a mount, or a device on top of it.
fn of_device(device: u64) -> Option<Holder> {
    let number = format!("{}:{}", major(device), minor(device));
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let partitions = partitions(&number);
    let place = [&number].into_iter().chain(&partitions).find_map(|number| mount_place(&mounts, number));
    if let Some(place) = place {
        return Some(Holder::of_thing(format!("the file system that is mounted on {place}")));
    }
    let above = fs::read_dir(format!("/sys/dev/block/{number}/holders")).ok()?.flatten().next()?;
    Some(Holder::of_thing(format!("the device {}", above.file_name().to_string_lossy())))
}

/// The numbers of a device's partitions, as `8:1`.
fn partitions(number: &str) -> Vec<String> {
    let Ok(entries) = fs::read_dir(format!("/sys/dev/block/{number}")) else { return Vec::new() };
    let folders = entries.flatten().map(|entry| entry.path()).filter(|path| path.join("partition").exists());
    let numbers = folders.filter_map(|path| fs::read_to_string(path.join("dev")).ok());
    numbers.map(|number| number.trim().to_owned()).collect()
}

/// Where a line `36 35 98:0 / /mnt rw ...` says that a device is mounted.
fn mount_place<'a>(mounts: &'a str, number: &str) -> Option<&'a str> {
    mounts.lines().find_map(|line| {
        let mut words = line.split(' ');
        (words.nth(2)? == number).then(|| words.nth(1)).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_of_a_lock_is_found() {
        let locks = "1: POSIX  ADVISORY  WRITE 11 08:01:5678 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 12 08:01:5679 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 13 08:01:5678 0 EOF\n\
                     3: -> FLOCK  ADVISORY  WRITE 14 08:01:5678 0 EOF\n";
        let device = nix::sys::stat::makedev(8, 1);
        assert_eq!(lock_holder(locks, device, 5678), Some(13));
        assert_eq!(lock_holder(locks, device, 1), None);
    }

    #[test]
    fn the_place_of_a_mount_is_found() {
        let mounts = "36 35 98:0 /mnt1 /mnt/a rw,noatime - ext3 /dev/root rw\n\
                      37 35 8:1 / /srv rw - ext4 /dev/sda1 rw\n";
        assert_eq!(mount_place(mounts, "8:1"), Some("/srv"));
        assert_eq!(mount_place(mounts, "8:2"), None);
    }
}
