//! Which disks this process serves, and as what.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::DiskIdentity;

/// How a disk is used beside others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// By nobody else.
    Exclusive,
    /// By others that only read, too.
    ReadOnly,
    /// By whoever says so, too.
    Shared,
}

impl Sharing {
    pub(crate) const fn new(read_only: bool, shared: bool) -> Self {
        match (shared, read_only) {
            (true, _) => Self::Shared,
            (false, true) => Self::ReadOnly,
            (false, false) => Self::Exclusive,
        }
    }

    pub(crate) const fn allows(self, other: Self) -> bool {
        !matches!(self, Self::Exclusive) && !matches!(other, Self::Exclusive)
    }
}

/// A disk that is served, until it is dropped.
#[derive(Debug)]
pub(crate) struct InUse {
    number: u64,
}

struct Use {
    number: u64,
    identity: DiskIdentity,
    sharing: Sharing,
    /// The namespace, as it is called in messages.
    name: String,
}

/// Of the whole process: two targets in it must not spoil each other's disks either.
static USES: Mutex<(u64, Vec<Use>)> = Mutex::new((0, Vec::new()));

impl InUse {
    /// Notes that a namespace serves a disk.
    ///
    /// # Errors
    /// The name of the namespace that serves it already, when the two cannot share it.
    pub(crate) fn take(identity: DiskIdentity, sharing: Sharing, name: &str) -> Result<Self, String> {
        let mut uses = uses();
        let (next, all) = &mut *uses;
        let other = all.iter().find(|one| one.identity == identity && !one.sharing.allows(sharing));
        if let Some(other) = other {
            return Err(other.name.clone());
        }
        let number = *next;
        *next += 1;
        all.push(Use { number, identity, sharing, name: name.to_owned() });
        Ok(Self { number })
    }
}

impl InUse {
    /// Its namespace is another one from now on, which shares the disk in another way. Returns how it was before.
    ///
    /// # Errors
    /// The name of a namespace that serves the disk, too, when the two cannot share it so.
    pub(crate) fn change(&self, sharing: Sharing, name: &str) -> Result<(Sharing, String), String> {
        let mut uses = uses();
        let all = &mut uses.1;
        let identity = all.iter().find(|one| one.number == self.number).map(|one| one.identity);
        let others = all.iter().filter(|one| Some(one.identity) == identity && one.number != self.number);
        if let Some(other) = others.into_iter().find(|one| !one.sharing.allows(sharing)) {
            return Err(other.name.clone());
        }
        let this =
            all.iter_mut().find(|one| one.number == self.number).expect("it is there until it is dropped");
        let before = (this.sharing, std::mem::replace(&mut this.name, name.to_owned()));
        this.sharing = sharing;
        Ok(before)
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        uses().1.retain(|one| one.number != self.number);
    }
}

fn uses() -> MutexGuard<'static, (u64, Vec<Use>)> {
    USES.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_has_one_user_unless_all_share_it() {
        use Sharing::{Exclusive, ReadOnly, Shared};
        let disk = DiskIdentity::File { device: u64::MAX, inode: 1 };
        let first = InUse::take(disk, Exclusive, "namespace 1 of a").unwrap();
        for sharing in [Exclusive, ReadOnly, Shared] {
            assert_eq!(InUse::take(disk, sharing, "b").unwrap_err(), "namespace 1 of a");
        }
        let other = DiskIdentity::File { device: u64::MAX, inode: 2 };
        assert!(InUse::take(other, Exclusive, "b").is_ok());
        drop(first);
        let mine = InUse::take(disk, ReadOnly, "mine").unwrap();
        assert_eq!(mine.change(Exclusive, "new"), Ok((ReadOnly, "mine".to_owned())));
        assert_eq!(InUse::take(disk, Shared, "b").unwrap_err(), "new");
        assert_eq!(mine.change(Shared, "mine"), Ok((Exclusive, "new".to_owned())));
        let second = InUse::take(disk, Shared, "second").unwrap();
        assert_eq!(mine.change(Exclusive, "mine"), Err("second".to_owned()));
        drop((mine, second));
        let _readers = [ReadOnly, ReadOnly, Shared].map(|sharing| InUse::take(disk, sharing, "c").unwrap());
        assert!(InUse::take(disk, Exclusive, "d").is_err());
    }
}
