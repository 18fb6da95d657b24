//! Memory regions as the peer sees them: an STag, a range of tagged offsets, rights, and who may use them (RFC 5041,
//! section 3; RFC 5042, section 2).

use core::fmt;

use thiserror::Error;

/// A protection domain: a region and a queue pair meet only inside one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProtectionDomain(pub u32);

/// A queue pair, for regions that are bound to a single one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueuePairId(pub u32);

/// Who asks for access: the queue pair on whose stream the request arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requester {
    /// The protection domain of the queue pair.
    pub pd: ProtectionDomain,
    /// The queue pair.
    pub qp: QueuePairId,
}

/// What a peer may do with a region. NVMe/RDMA never needs both on one region, so a region grants exactly one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The peer may fetch the region by RDMA Read.
    RemoteRead,
    /// The peer may fill the region by RDMA Write.
    RemoteWrite,
}

/// What the owner registers.
#[derive(Clone, Copy, Debug)]
pub struct Region<H> {
    /// The protection domain.
    pub pd: ProtectionDomain,
    /// When given, only this queue pair may use the region.
    pub qp: Option<QueuePairId>,
    /// The tagged offset of the first byte.
    pub base: u64,
    /// The length in bytes; `base + len` must not wrap.
    pub len: u64,
    /// What a peer may do.
    pub access: Access,
    /// The owner's name for the memory.
    pub handle: H,
}

/// A place in memory: a handle of the owner and an offset in bytes from the start of what it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement<H> {
    /// The owner's name for the memory.
    pub handle: H,
    /// The offset in bytes.
    pub offset: u64,
}

/// Why a peer's access was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionErrorKind {
    /// No region has this STag.
    InvalidStag,
    /// The range is not inside the region.
    BaseOrBounds,
    /// The region does not grant this kind of access.
    AccessRights,
    /// The region belongs to another protection domain or queue pair.
    NotAssociated,
    /// The range wraps around the end of the tagged offsets.
    ToWrap,
}

impl fmt::Display for RegionErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InvalidStag => "no region has this STag",
            Self::BaseOrBounds => "the range is not inside the region",
            Self::AccessRights => "the region does not grant this access",
            Self::NotAssociated => "the region belongs to another protection domain or queue pair",
            Self::ToWrap => "the range wraps around",
        })
    }
}

/// A refused access, with what was tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{access:?} of {len} bytes at {to:#x} through STag {stag:#010x} refused: {kind}")]
pub struct RegionError {
    /// Why.
    pub kind: RegionErrorKind,
    /// What the peer tried to do.
    pub access: Access,
    /// The STag it used.
    pub stag: u32,
    /// The tagged offset of the first byte.
    pub to: u64,
    /// The length in bytes.
    pub len: u64,
}

/// Why a region was not registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RegisterError {
    /// All entries are in use.
    #[error("the region table holds its maximum of {0} regions")]
    Full(usize),
    /// `base + len` does not fit.
    #[error("a region of {len} bytes at {base:#x} wraps around the tagged offsets")]
    Wrap {
        /// The tagged offset of the first byte.
        base: u64,
        /// The length in bytes.
        len: u64,
    },
    /// The random source repeats itself.
    #[error("the random source gave no unused STag in {0} attempts")]
    Random(usize),
}

/// The regions of one core, found by STag in constant time.
///
/// All 32 bits of an STag come from the caller's random source, so that knowing one STag says nothing about others. An
/// STag's own low bits are its place in an open-addressed table that is at most half full. The table grows with the
/// most regions that there ever were at once, and is not larger: a search in it is somewhere else each time, and should
/// find that place in the cache. STag 0 is never used: peers send it where no STag is meant.
#[derive(Debug)]
pub struct RegionTable<H> {
    /// Zero where there is none. Apart from the regions, so that a search sees many of them at once.
    stags: Box<[u32]>,
    /// One for each STag.
    entries: Box<[Option<Entry<H>>]>,
    count: usize,
    count_max: usize,
}

#[derive(Clone, Copy, Debug)]
struct Entry<H> {
    region: Region<H>,
    /// A peer has invalidated it. Its owner has not heard of that yet, so that the STag is not free.
    invalidated: bool,
    /// Bytes from the start beyond which no peer has written.
    written: u64,
}

/// Slots of a table in which there are few regions.
const SLOTS_MIN: usize = 64;

/// With a table at most half full, a random STag collides with a given one once in four billion draws; running out of
/// this many attempts means that the source is not random.
const DRAW_COUNT_MAX: usize = 64;

impl<H: Copy> RegionTable<H> {
    /// A table for at most `count_max` regions.
    #[must_use]
    pub fn new(count_max: usize) -> Self {
        let (stags, entries) = slots(SLOTS_MIN);
        Self { stags, entries, count: 0, count_max }
    }

    /// The number of registered regions, with those that a peer has invalidated and their owner not deregistered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether no region is registered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Registers a region under a new STag drawn from `random`, which must yield unpredictable words.
    ///
    /// # Errors
    /// The table is full, the range wraps, or `random` keeps repeating itself.
    pub fn register(
        &mut self,
        region: Region<H>,
        mut random: impl FnMut() -> u32,
    ) -> Result<u32, RegisterError> {
        if self.count == self.count_max {
            return Err(RegisterError::Full(self.count_max));
        }
        if region.base.checked_add(region.len).is_none() {
            return Err(RegisterError::Wrap { base: region.base, len: region.len });
        }
        if self.count * 2 == self.stags.len() {
            self.grow();
        }
        for _ in 0..DRAW_COUNT_MAX {
            let stag = random();
            if let (true, Err(free)) = (stag != 0, self.find(stag)) {
                self.stags[free] = stag;
                self.entries[free] = Some(Entry { region, invalidated: false, written: 0 });
                self.count += 1;
                return Ok(stag);
            }
        }
        Err(RegisterError::Random(DRAW_COUNT_MAX))
    }

    /// Turns a peer's request into a place in memory, or says why not. `len` is in bytes and not zero: a zero-length
    /// operation must not be checked (RFC 5041, section 5.2).
    ///
    /// # Errors
    /// What the peer tried and which rule refused it.
    #[inline]
    pub fn check(
        &self,
        stag: u32,
        to: u64,
        len: u64,
        access: Access,
        requester: Requester,
    ) -> Result<Placement<H>, RegionError> {
        self.admit(stag, to, len, access, requester).map(|(_, place)| place)
    }

    /// Like [`Self::check`] for a write, which is noted. Returns with the place how many bytes of the region lie behind
    /// it, if no peer has written among them.
    #[inline(always)]
    pub(crate) fn check_write(
        &mut self,
        stag: u32,
        to: u64,
        len: u64,
        requester: Requester,
    ) -> Result<(Placement<H>, Option<u64>), RegionError> {
        let (slot, place) = self.admit(stag, to, len, Access::RemoteWrite, requester)?;
        let fresh = self.entries[slot].as_mut().and_then(|entry| {
            let (fresh, end) = (place.offset >= entry.written, place.offset + len);
            entry.written = entry.written.max(end);
            fresh.then_some(entry.region.len - end)
        });
        Ok((place, fresh))
    }

    /// The slot of the region and the place in memory that a peer's request is for.
    #[inline]
    fn admit(
        &self,
        stag: u32,
        to: u64,
        len: u64,
        access: Access,
        requester: Requester,
    ) -> Result<(usize, Placement<H>), RegionError> {
        let refuse = |kind| RegionError { kind, access, stag, to, len };
        let Some((slot, region)) = self.valid(stag) else { return Err(refuse(RegionErrorKind::InvalidStag)) };
        if !belongs(region, requester) {
            return Err(refuse(RegionErrorKind::NotAssociated));
        }
        let Some(end) = to.checked_add(len) else { return Err(refuse(RegionErrorKind::ToWrap)) };
        if region.access != access {
            return Err(refuse(RegionErrorKind::AccessRights));
        }
        // The sum was checked at registration.
        if to < region.base || end > region.base + region.len {
            return Err(refuse(RegionErrorKind::BaseOrBounds));
        }
        Ok((slot, Placement { handle: region.handle, offset: to - region.base }))
    }

    #[inline]
    fn valid(&self, stag: u32) -> Option<(usize, &Region<H>)> {
        let slot = self.find(stag).ok()?;
        let entry = self.entries[slot].as_ref().filter(|entry| !entry.invalidated)?;
        Some((slot, &entry.region))
    }

    /// The region behind an STag.
    #[must_use]
    #[inline]
    pub fn get(&self, stag: u32) -> Option<&Region<H>> {
        self.valid(stag).map(|(_, region)| region)
    }

    /// Ends the life of an STag on behalf of its owner, and gives the region back.
    pub fn deregister(&mut self, stag: u32) -> Option<Region<H>> {
        let slot = self.find(stag).ok()?;
        let entry = self.entries[slot].take()?;
        self.stags[slot] = 0;
        self.count -= 1;
        self.close_gap(slot);
        Some(entry.region)
    }

    /// Has an STag name nothing any more on behalf of a peer (Send with Invalidate): only its own may go. The owner
    /// still has to deregister it.
    pub fn invalidate(&mut self, stag: u32, requester: Requester) -> Option<Region<H>> {
        let slot = self.find(stag).ok()?;
        let entry = self.entries[slot].as_mut()?;
        if entry.invalidated || !belongs(&entry.region, requester) {
            return None;
        }
        entry.invalidated = true;
        Some(entry.region)
    }

    /// The slot that holds `stag`, or the free slot where it belongs.
    #[inline]
    fn find(&self, stag: u32) -> Result<usize, usize> {
        let mut slot = self.home(stag);
        loop {
            match self.stags[slot] {
                0 => return Err(slot),
                found if found == stag => return Ok(slot),
                _ => slot = self.following(slot),
            }
        }
    }

    #[inline]
    fn home(&self, stag: u32) -> usize {
        stag as usize & (self.stags.len() - 1)
    }

    #[inline]
    fn following(&self, slot: usize) -> usize {
        (slot + 1) & (self.stags.len() - 1)
    }

    /// Moves later entries of a probe chain into the gap, so that no marker for deleted entries is needed.
    fn close_gap(&mut self, mut gap: usize) {
        let mask = self.stags.len() - 1;
        let mut slot = gap;
        loop {
            slot = self.following(slot);
            let stag = self.stags[slot];
            if stag == 0 {
                return;
            }
            let distance_from_home = slot.wrapping_sub(self.home(stag)) & mask;
            let distance_from_gap = slot.wrapping_sub(gap) & mask;
            if distance_from_home >= distance_from_gap {
                self.stags.swap(gap, slot);
                self.entries.swap(gap, slot);
                gap = slot;
            }
        }
    }

    /// Twice as many slots.
    #[cold]
    fn grow(&mut self) {
        let (stags, entries) = slots(self.stags.len() * 2);
        let (stags, entries) =
            (core::mem::replace(&mut self.stags, stags), core::mem::replace(&mut self.entries, entries));
        for (stag, entry) in stags.into_iter().zip(entries).filter(|(stag, _)| *stag != 0) {
            let (Ok(slot) | Err(slot)) = self.find(stag);
            (self.stags[slot], self.entries[slot]) = (stag, entry);
        }
    }
}

/// So many free slots, a power of two.
#[expect(clippy::type_complexity, reason = "two columns of one table")]
fn slots<H: Copy>(count: usize) -> (Box<[u32]>, Box<[Option<Entry<H>>]>) {
    (vec![0; count].into_boxed_slice(), vec![None; count].into_boxed_slice())
}

fn belongs<H>(region: &Region<H>, requester: Requester) -> bool {
    region.pd == requester.pd && region.qp.is_none_or(|qp| qp == requester.qp)
}
