//! Which disk a file is.
//!
//! A target may give the number of a removed namespace to another disk. The new disk is another file with the same
//! name: each disk has its own inode. So a program that opened the old disk cannot write to the new one.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::sync::{Mutex, PoisonError};

use fuser::{Errno, INodeNo};
use ringfab_initiator::{Namespace, NamespaceIdentity};

/// Disks that one number can have had; after that it stands for none.
const DISKS_MAX: usize = 1024;

/// All disks that were seen, by their numbers.
#[derive(Debug, Default)]
pub(super) struct Disks(Mutex<HashMap<u32, Vec<Disk>>>);

#[derive(Debug)]
struct Disk {
    identity: NamespaceIdentity,
    /// The most that it had.
    bytes: u64,
    logged: Logged,
}

/// What the log says of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Logged {
    Nothing,
    Removed,
    Replaced,
}

/// The name of a namespace's file.
pub(crate) fn file_name(nsid: u32) -> String {
    format!("ns{nsid}")
}

/// The namespace of a file's name, as [`file_name`] writes it and in no other way.
pub(super) fn nsid_of(name: &OsStr) -> Option<u32> {
    let digits = name.to_str()?.strip_prefix("ns")?;
    let nsid = digits.parse().ok()?;
    (file_name(nsid) == format!("ns{digits}")).then_some(nsid)
}

/// The namespace identifier that belongs to a file's inode.
pub(super) fn nsid_of_inode(ino: INodeNo) -> Result<u32, Errno> {
    (u64::from(ino) as u32).checked_sub(1).filter(|nsid| *nsid > 0).ok_or(Errno::EISDIR)
}

/// Files' inodes follow the root's; those of later disks have the upper half for themselves.
fn inode(nsid: u32, index: usize) -> INodeNo {
    INodeNo((index as u64) << 32 | (u64::from(nsid) + 1))
}

fn index_of(ino: INodeNo) -> usize {
    (u64::from(ino) >> 32) as usize
}

impl Disks {
    /// The inode of a namespace as it is now.
    ///
    /// # Errors
    /// When its number had too many disks.
    pub(super) fn inode(&self, namespace: &Namespace) -> Result<INodeNo, Errno> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let disks = all.entry(namespace.nsid).or_default();
        let index = disks.iter().position(|disk| disk.identity.agrees_with(&namespace.identity));
        let index = index.unwrap_or(disks.len());
        if index >= DISKS_MAX {
            return Err(Errno::EMFILE);
        }
        if index == disks.len() {
            if let Some(before) = disks.last_mut() {
                before.log_change(namespace.nsid, Some(&namespace.identity));
            }
            let (identity, bytes) = (namespace.identity, namespace.bytes());
            disks.push(Disk { identity, bytes, logged: Logged::Nothing });
        }
        Ok(inode(namespace.nsid, index))
    }

    /// What has an inode's number now, if it is the disk of that inode.
    pub(super) fn still(&self, ino: INodeNo, now: Option<Namespace>) -> Option<Namespace> {
        let nsid = nsid_of_inode(ino).ok()?;
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let disk = all.get_mut(&nsid)?.get_mut(index_of(ino))?;
        let identity = now.as_ref().map(|now| now.identity);
        if identity.is_some_and(|identity| identity.agrees_with(&disk.identity)) {
            disk.logged = Logged::Nothing;
            disk.bytes = disk.bytes.max(now.as_ref().map_or(0, Namespace::bytes));
            return now;
        }
        disk.log_change(nsid, identity.as_ref());
        None
    }

    /// Whether the disk of an inode had a byte once that it does not have any more.
    pub(super) fn had(&self, ino: INodeNo, byte: u64) -> bool {
        let Ok(nsid) = nsid_of_inode(ino) else { return false };
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(&nsid).and_then(|disks| disks.get(index_of(ino))).is_some_and(|disk| byte < disk.bytes)
    }
}

impl Disk {
    /// Says once that it is gone, and once what has its number.
    fn log_change(&mut self, nsid: u32, now: Option<&NamespaceIdentity>) {
        let news = if now.is_some() { Logged::Replaced } else { Logged::Removed };
        if news <= self.logged {
            return;
        }
        self.logged = news;
        let (file, old) = (file_name(nsid), self.identity);
        match now {
            Some(new) => tracing::warn!(
                file,
                "another disk has the number {nsid} by now: it was {old}, and is {new}. Programs that have the old \
                 one open get errors; programs that open it get the new one"
            ),
            None => {
                tracing::warn!(
                    file,
                    "the target has removed this namespace; whoever has it open gets errors"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stands_for_a_namespace_only_as_it_is_written() {
        assert_eq!(nsid_of(OsStr::new("ns1")), Some(1));
        assert_eq!(nsid_of(OsStr::new("ns4294967294")), Some(4_294_967_294));
        for name in ["ns", "ns01", "ns+1", "ns4294967296", "NS1", "1", "ns1 "] {
            assert_eq!(nsid_of(OsStr::new(name)), None, "{name}");
        }
    }

    #[test]
    fn an_inode_tells_the_number_and_which_of_its_disks() {
        for nsid in [1, 2, 0xffff_fffe] {
            for index in [0, 1, DISKS_MAX - 1] {
                let ino = inode(nsid, index);
                assert_eq!((nsid_of_inode(ino).ok(), index_of(ino)), (Some(nsid), index));
            }
        }
        assert!(nsid_of_inode(INodeNo::ROOT).is_err());
        assert_eq!(inode(1, 0), INodeNo(2));
    }
}
