//! What hosts may see of blocks that all of them change by Compare and Write.
//!
//! Every write has a stamp of its own, so a pair is the one that replaces the content which it has compared: no two
//! replace the same. What is there is that of one write, whole, as no other command sees a pair half done. A write that
//! was acknowledged is not undone by a pair that compared what was there before it. And no look shows what was replaced
//! before it began.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::content::{SECTOR_BYTES, Stamp, stamp_of};

/// The writes whose content the sectors hold, in their order.
pub type Content = Vec<Stamp>;

/// How a change has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It was made.
    Done,
    /// The content was another one: it was not made.
    Unequal,
    /// It may have been made, or not, and may still be.
    Unknown,
}

/// A command in flight.
#[derive(Debug)]
struct Pending {
    kind: Kind,
    begun: u64,
    /// The power went meanwhile.
    power_lost: bool,
}

#[derive(Debug)]
enum Kind {
    Look,
    Write(Stamp),
    Pair { old: Content, new: Stamp },
}

/// Blocks that hosts share.
#[derive(Debug)]
pub struct Register {
    range: Range<u64>,
    /// Whether a disk that fails, or loses power, may leave parts of several writes.
    may_be_torn: bool,
    /// Counts what begins and ends: the order of all that is known.
    clock: u64,
    pending: BTreeMap<u64, Pending>,
    /// By which write each content was replaced, and which one each write has replaced.
    replaced: BTreeMap<Content, Stamp>,
    replaces: BTreeMap<Stamp, Content>,
    /// Pairs that may have been made, with the content that they have compared.
    unknown: BTreeMap<Stamp, Content>,
    /// Ordinary writes that have not ended with success. What is seen of one may be overwritten, and come once more.
    unsettled: BTreeSet<Stamp>,
    /// Since when the content of a write is known to have been there, for good.
    known: BTreeMap<Stamp, u64>,
    /// Writes that were acknowledged: when they began and ended.
    written: BTreeMap<Stamp, (u64, u64)>,
}

impl Register {
    /// Sectors of zeroes.
    pub fn new(range: Range<u64>, may_be_torn: bool) -> Self {
        Self {
            range,
            may_be_torn,
            clock: 0,
            pending: BTreeMap::new(),
            replaced: BTreeMap::new(),
            replaces: BTreeMap::new(),
            unknown: BTreeMap::new(),
            unsettled: BTreeSet::new(),
            known: BTreeMap::new(),
            written: BTreeMap::new(),
        }
    }

    /// Its sectors.
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// A read is submitted.
    pub fn begin_look(&mut self, tag: u64) {
        self.begin(tag, Kind::Look);
    }

    /// An ordinary write is submitted.
    pub fn begin_write(&mut self, tag: u64, stamp: Stamp) {
        self.unsettled.insert(stamp);
        self.begin(tag, Kind::Write(stamp));
    }

    /// A pair is submitted that replaces a content.
    pub fn begin_pair(&mut self, tag: u64, old: Content, new: Stamp) {
        self.begin(tag, Kind::Pair { old, new });
    }

    /// A change has ended.
    ///
    /// # Errors
    /// Why it cannot have ended so.
    pub fn end(&mut self, tag: u64, end: End) -> Result<(), String> {
        let Pending { kind, begun, power_lost } = self.take(tag);
        if power_lost {
            // It was made before that or after it, and is there or not.
            return Ok(());
        }
        match (kind, end) {
            (Kind::Pair { old, new }, End::Done) => {
                self.replace(old, new)?;
                self.know(new)
            }
            (Kind::Pair { old, new }, End::Unknown) => {
                self.unknown.insert(new, old);
                Ok(())
            }
            (Kind::Write(stamp), End::Done) => {
                self.unsettled.remove(&stamp);
                self.written.insert(stamp, (begun, self.clock));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// A read has ended with these bytes, or failed. Returns what it shows.
    ///
    /// # Errors
    /// What it should not have shown.
    pub fn end_look(&mut self, tag: u64, bytes: Option<&[u8]>) -> Result<Option<Content>, String> {
        let Pending { begun, power_lost, .. } = self.take(tag);
        let Some(bytes) = bytes else { return Ok(None) };
        let content = self.content_of(bytes)?;
        if !power_lost {
            self.check(&content, begun)?;
        }
        Ok(Some(content))
    }

    /// Looks at the disk itself, while nothing is in flight.
    ///
    /// # Errors
    /// What should not be there.
    pub fn check_disk(&mut self, bytes: &[u8]) -> Result<(), String> {
        let content = self.content_of(bytes)?;
        self.clock += 1;
        self.check(&content, self.clock)
    }

    /// From now on there may be parts of several writes.
    pub fn tear(&mut self) {
        self.may_be_torn = true;
    }

    /// The disk has lost its volatile cache: what is there is older than what was known.
    pub fn power_lost(&mut self) {
        self.may_be_torn = true;
        self.pending.values_mut().for_each(|pending| pending.power_lost = true);
        (self.replaced, self.replaces) = (BTreeMap::new(), BTreeMap::new());
        (self.unknown, self.known, self.written) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    }

    fn begin(&mut self, tag: u64, kind: Kind) {
        self.clock += 1;
        self.pending.insert(tag, Pending { kind, begun: self.clock, power_lost: false });
    }

    fn take(&mut self, tag: u64) -> Pending {
        self.clock += 1;
        self.pending.remove(&tag).expect("a command ends once")
    }

    fn content_of(&self, bytes: &[u8]) -> Result<Content, String> {
        let sectors = self.range.clone().zip(bytes.chunks_exact(SECTOR_BYTES));
        sectors.map(|(number, sector)| stamp_of(sector, number)).collect()
    }

    /// A look that began at a time has shown this.
    fn check(&mut self, content: &Content, begun: u64) -> Result<(), String> {
        let first = content[0];
        if content.iter().any(|stamp| *stamp != first) {
            let what = || format!("{:?} hold parts of several writes: {content:x?}", self.range);
            return if self.may_be_torn { Ok(()) } else { Err(what()) };
        }
        self.know(first)?;
        if let Some(next) = self.replaced.get(content)
            && self.known.get(next).is_some_and(|known| *known < begun)
        {
            return Err(format!("{first:x} was replaced by {next:x} before a look began that shows it"));
        }
        self.check_written(first, begun)
    }

    /// Before a look at this content began, some writes were acknowledged. None of them was undone by pairs.
    fn check_written(&self, shown: Stamp, begun: u64) -> Result<(), String> {
        let mut chain = vec![shown];
        while let Some(older) = chain.last().and_then(|last| self.replaces.get(last)) {
            chain.push(older[0]);
        }
        for (stamp, (began, ended)) in self.written.iter().filter(|(_, (_, ended))| *ended < begun) {
            let was_there = |older: &&Stamp| self.known.get(older).is_some_and(|known| known < began);
            if !chain.contains(stamp)
                && let Some(older) = chain.iter().find(was_there)
            {
                return Err(format!(
                    "write {stamp:x} ({began} to {ended}) is lost: only pairs lead from {older:x}, which was there \
                     before it, to {shown:x}"
                ));
            }
        }
        Ok(())
    }

    /// The content of a write was there, so that it was made.
    fn know(&mut self, stamp: Stamp) -> Result<(), String> {
        let now = self.clock;
        let mut next = Some(stamp);
        while let Some(stamp) = next {
            if !self.unsettled.contains(&stamp) {
                self.known.entry(stamp).or_insert(now);
            }
            next = match self.unknown.remove(&stamp) {
                Some(old) => {
                    let older = old[0];
                    self.replace(old, stamp)?;
                    Some(older)
                }
                None => None,
            };
        }
        Ok(())
    }

    /// A pair was made.
    fn replace(&mut self, old: Content, new: Stamp) -> Result<(), String> {
        let uniform = old.iter().all(|stamp| *stamp == old[0]);
        if let Some(other) = self.replaced.insert(old.clone(), new).filter(|other| *other != new) {
            return Err(format!("both {other:x} and {new:x} have replaced {old:x?}"));
        }
        if uniform {
            self.replaces.insert(new, old);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::content::fill;
    use super::*;

    fn register() -> Register {
        Register::new(0..2, false)
    }

    fn bytes(content: [Stamp; 2]) -> Vec<u8> {
        let mut bytes = vec![0; 2 * SECTOR_BYTES];
        for (number, sector) in bytes.chunks_exact_mut(SECTOR_BYTES).enumerate() {
            fill(sector, content[number], number as u64);
        }
        bytes
    }

    fn look(register: &mut Register, content: [Stamp; 2]) -> Result<Option<Content>, String> {
        register.begin_look(1000);
        register.end_look(1000, Some(&bytes(content)))
    }

    fn pair(register: &mut Register, old: Stamp, new: Stamp, end: End) -> Result<(), String> {
        register.begin_pair(new, vec![old; 2], new);
        register.end(new, end)
    }

    #[test]
    fn two_pairs_that_replace_the_same_are_found_out() {
        let mut register = register();
        assert_eq!(pair(&mut register, 0, 1, End::Done), Ok(()));
        assert_eq!(pair(&mut register, 1, 2, End::Done), Ok(()));
        assert_eq!(pair(&mut register, 0, 3, End::Unequal), Ok(()));
        assert!(pair(&mut register, 1, 4, End::Done).is_err());
    }

    #[test]
    fn a_pair_of_unknown_end_counts_once_its_content_is_seen() {
        for seen in [false, true] {
            let mut register = register();
            assert_eq!(pair(&mut register, 0, 1, End::Unknown), Ok(()));
            if seen {
                assert_eq!(look(&mut register, [1, 1]), Ok(Some(vec![1, 1])));
            }
            assert_eq!(pair(&mut register, 0, 2, End::Done).is_ok(), !seen);
        }
    }

    #[test]
    fn half_a_pair_is_found_out_unless_a_disk_may_have_torn_it() {
        let mut register = register();
        assert!(look(&mut register, [1, 0]).is_err());
        register.power_lost();
        assert_eq!(look(&mut register, [1, 0]), Ok(Some(vec![1, 0])));
    }

    #[test]
    fn a_look_that_shows_what_was_replaced_before_it_began_is_found_out() {
        let mut register = register();
        register.begin_look(7);
        assert_eq!(pair(&mut register, 0, 1, End::Done), Ok(()));
        assert!(register.end_look(7, Some(&bytes([0, 0]))).is_ok(), "it began before");
        assert!(look(&mut register, [0, 0]).is_err());
        register.power_lost();
        assert!(look(&mut register, [0, 0]).is_ok());
    }

    #[test]
    fn a_write_that_a_pair_has_undone_is_found_out() {
        for undone in [false, true] {
            let mut register = register();
            assert!(look(&mut register, [0, 0]).is_ok());
            register.begin_pair(1, vec![0; 2], 1);
            register.begin_write(5, 5);
            assert_eq!(register.end(5, End::Done), Ok(()));
            assert_eq!(register.end(1, End::Done), Ok(()));
            let shown = if undone { 1 } else { 5 };
            assert_eq!(look(&mut register, [shown; 2]).is_err(), undone);
        }
    }

    #[test]
    fn a_write_that_is_seen_before_it_ends_may_come_after_another_one() {
        for ended in [false, true] {
            let mut register = register();
            register.begin_write(5, 5);
            assert!(look(&mut register, [5, 5]).is_ok());
            if ended {
                assert_eq!(register.end(5, End::Done), Ok(()));
                assert!(look(&mut register, [5, 5]).is_ok());
            }
            register.begin_write(6, 6);
            assert_eq!(register.end(6, End::Done), Ok(()));
            assert_eq!(look(&mut register, [5, 5]).is_ok(), !ended);
        }
    }

    #[test]
    fn what_was_in_flight_while_the_power_went_promises_nothing() {
        let mut register = register();
        register.begin_pair(1, vec![0; 2], 1);
        register.power_lost();
        assert_eq!(register.end(1, End::Done), Ok(()));
        assert!(look(&mut register, [0, 0]).is_ok());
        assert_eq!(pair(&mut register, 0, 2, End::Done), Ok(()));
    }
}
