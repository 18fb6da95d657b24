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
    /// Whether it was removed, and its last commands have not ended.
    ends: bool,
}

/// A namespace that has a disk which another one cannot share with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OtherUse {
    /// As it is called in messages.
    pub(crate) name: String,
    /// Whether it was removed, and lets go of the disk when its last commands have ended.
    pub(crate) ends: bool,
}

impl Use {
    fn as_other(&self) -> OtherUse {
        OtherUse { name: self.name.clone(), ends: self.ends }
    }
}

/// Of the whole process: two targets in it must not spoil each other's disks either.
static USES: Mutex<(u64, Vec<Use>)> = Mutex::new((0, Vec::new()));

impl InUse {
    /// Notes that a namespace serves a disk.
    ///
    /// # Errors
    /// The namespace that serves it already, when the two cannot share it.
    pub(crate) fn take(identity: DiskIdentity, sharing: Sharing, name: &str) -> Result<Self, OtherUse> {
        let mut uses = uses();
        let (next, all) = &mut *uses;
        let others = all.iter().filter(|one| one.identity == identity && !one.sharing.allows(sharing));
        // To wait for one that ends is of use when there is no other.
        if let Some(other) = others.min_by_key(|one| one.ends) {
            return Err(other.as_other());
        }
        let number = *next;
        *next += 1;
        all.push(Use { number, identity, sharing, name: name.to_owned(), ends: false });
        Ok(Self { number })
    }
}

impl InUse {
    /// Its namespace is another one from now on, which shares the disk in another way. Returns how it was before.
    ///
    /// # Errors
    /// A namespace that serves the disk, too, when the two cannot share it so.
    pub(crate) fn change(&self, sharing: Sharing, name: &str) -> Result<(Sharing, String), OtherUse> {
        let mut uses = uses();
        let all = &mut uses.1;
        let identity = all.iter().find(|one| one.number == self.number).map(|one| one.identity);
        let others = all.iter().filter(|one| Some(one.identity) == identity && one.number != self.number);
        if let Some(other) = others.into_iter().find(|one| !one.sharing.allows(sharing)) {
            return Err(other.as_other());
        }
        let this =
            all.iter_mut().find(|one| one.number == self.number).expect("it is there until it is dropped");
        let before = (this.sharing, std::mem::replace(&mut this.name, name.to_owned()));
        this.sharing = sharing;
        Ok(before)
    }

    /// Its namespace was removed: the disk is only in use until its last commands have ended.
    pub(crate) fn end(&self) {
        uses().1.iter_mut().filter(|one| one.number == self.number).for_each(|one| one.ends = true);
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

    fn other(name: &str, ends: bool) -> OtherUse {
        OtherUse { name: name.to_owned(), ends }
    }

    #[test]
    fn a_disk_has_one_user_unless_all_share_it() {
        use Sharing::{Exclusive, ReadOnly, Shared};
        let disk = DiskIdentity::File { device: u64::MAX, inode: 1 };
        let first = InUse::take(disk, Exclusive, "namespace 1 of a").unwrap();
        for sharing in [Exclusive, ReadOnly, Shared] {
            assert_eq!(InUse::take(disk, sharing, "b").unwrap_err(), other("namespace 1 of a", false));
        }
        first.end();
        assert_eq!(InUse::take(disk, Exclusive, "b").unwrap_err(), other("namespace 1 of a", true));
        let another = DiskIdentity::File { device: u64::MAX, inode: 2 };
        assert!(InUse::take(another, Exclusive, "b").is_ok());
        drop(first);
        let mine = InUse::take(disk, ReadOnly, "mine").unwrap();
        assert_eq!(mine.change(Exclusive, "new"), Ok((ReadOnly, "mine".to_owned())));
        assert_eq!(InUse::take(disk, Shared, "b").unwrap_err(), other("new", false));
        assert_eq!(mine.change(Shared, "mine"), Ok((Exclusive, "new".to_owned())));
        let second = InUse::take(disk, Shared, "second").unwrap();
        assert_eq!(mine.change(Exclusive, "mine"), Err(other("second", false)));
        drop((mine, second));
        let _readers = [ReadOnly, ReadOnly, Shared].map(|sharing| InUse::take(disk, sharing, "c").unwrap());
        assert!(InUse::take(disk, Exclusive, "d").is_err());
    }
}
