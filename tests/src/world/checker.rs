//! What each sector may hold.
//!
//! Of every sector two sets are known: the writes whose content a read may show now (`current`), and those that a loss
//! of power may leave behind (`durable`).
//!
//! | event | current | durable |
//! | --- | --- | --- |
//! | a write is submitted | and its content | and its content |
//! | it is acknowledged | its content only | unchanged |
//! | it is acknowledged with FUA | its content only | its content only |
//! | power is lost while it is in flight, then it is acknowledged | unchanged: it may have been lost | unchanged |
//! | it fails | unchanged: all, some or none of its sectors were written | unchanged |
//! | a discard is acknowledged | unchanged: it may have done nothing | unchanged |
//! | a flush is acknowledged | unchanged | only what was current when it was submitted, or came later |
//! | power is lost | what was durable | unchanged |
//! | a server beneath loses what was not flushed | unchanged, in doubt: what was durable may be seen, too | unchanged |
//! | a write is acknowledged that began after that | its content only, no doubt | unchanged |
//! | hosts are told of the loss | all that may be seen, no doubt | unchanged |
//! | a read without a write beside it | what it showed | unchanged |

use std::collections::BTreeMap;
use std::ops::Range;

use super::content::{SECTOR_BYTES, Stamp, stamp_of};

/// How a command that changes sectors ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// With success.
    Done,
    /// With an error, or with nothing at all: it may have happened in any part.
    Unknown,
}

#[derive(Clone, Debug)]
struct Sector {
    current: Vec<Stamp>,
    /// With the number of the submission that last wrote this content.
    durable: Vec<(Stamp, u64)>,
    /// Whether a write is in flight; the workload never has two.
    writing: bool,
    /// What is current may have been lost, and nobody was told. It may not be lost if a flush succeeds.
    in_doubt: bool,
}

/// What has become of a disk while a command was in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    /// It has lost what was not flushed, and hosts know.
    Known,
    /// The same, and hosts do not know.
    Silent,
}

/// A command in flight.
#[derive(Debug)]
enum Pending {
    Write { range: Range<u64>, stamp: Stamp, durable: bool, loss: Option<Loss> },
    Discard { ranges: Vec<Range<u64>> },
    Flush { submitted: u64, current: Vec<Vec<Stamp>> },
    Look { range: Range<u64>, allowed: Vec<Vec<Stamp>>, calm: bool, expected: Vec<Stamp> },
}

/// The model of a range of sectors that one host alone writes.
#[derive(Debug)]
pub struct Checker {
    first: u64,
    sectors: Vec<Sector>,
    /// Counts submissions.
    submissions: u64,
    pending: BTreeMap<u64, Pending>,
}

impl Checker {
    /// A range of sectors, all zero and stable.
    pub fn new(range: Range<u64>) -> Self {
        let sector = Sector { current: vec![0], durable: vec![(0, 0)], writing: false, in_doubt: false };
        let sectors = vec![sector; (range.end - range.start) as usize];
        Self { first: range.start, sectors, submissions: 0, pending: BTreeMap::new() }
    }

    /// The sectors of the model.
    pub fn range(&self) -> Range<u64> {
        self.first..self.first + self.sectors.len() as u64
    }

    /// Whether a write, zeroing or discard is in flight somewhere in a range.
    pub fn is_writing(&self, range: &Range<u64>) -> bool {
        self.sectors[self.indices(range)].iter().any(|sector| sector.writing)
    }

    /// What a range holds, when that is certain.
    pub fn certain(&self, range: &Range<u64>) -> Option<Vec<Stamp>> {
        let only = |sector: &Sector| match sector.visible()[..] {
            [only] => Some(only),
            _ => None,
        };
        self.sectors[self.indices(range)].iter().map(only).collect()
    }

    /// A write (or a zeroing, with stamp zero) is submitted.
    pub fn begin_write(&mut self, tag: u64, range: Range<u64>, stamp: Stamp, durable: bool) {
        self.start_writing(&range, stamp);
        self.pending.insert(tag, Pending::Write { range, stamp, durable, loss: None });
    }

    /// A discard is submitted.
    pub fn begin_discard(&mut self, tag: u64, ranges: Vec<Range<u64>>) {
        for range in &ranges {
            self.start_writing(range, 0);
        }
        self.pending.insert(tag, Pending::Discard { ranges });
    }

    /// A flush is submitted.
    pub fn begin_flush(&mut self, tag: u64) {
        let current = self.sectors.iter().map(|sector| sector.current.clone()).collect();
        self.pending.insert(tag, Pending::Flush { submitted: self.submissions, current });
    }

    /// A read is submitted, or a compare with content that is `expected`.
    pub fn begin_look(&mut self, tag: u64, range: Range<u64>, expected: Vec<Stamp>) {
        let calm = !self.is_writing(&range);
        let allowed = self.sectors[self.indices(&range)].iter().map(Sector::visible).collect();
        self.pending.insert(tag, Pending::Look { range, allowed, calm, expected });
    }

    /// Anything but a look has ended.
    pub fn end(&mut self, tag: u64, outcome: Outcome) {
        match self.take(tag) {
            Pending::Write { range, stamp, durable, loss } => {
                // Its answer may have been on its way while the disk lost what it wrote.
                let loss = loss.filter(|_| !durable);
                let outcome = if loss == Some(Loss::Known) { Outcome::Unknown } else { outcome };
                let indices = self.indices(&range);
                for sector in &mut self.sectors[indices] {
                    sector.end_write(stamp, durable, outcome);
                    sector.in_doubt |= loss == Some(Loss::Silent);
                }
            }
            Pending::Discard { ranges } => {
                for range in ranges {
                    let indices = self.indices(&range);
                    self.sectors[indices].iter_mut().for_each(|sector| sector.writing = false);
                }
            }
            Pending::Flush { submitted, current } if outcome == Outcome::Done => {
                for (sector, current) in self.sectors.iter_mut().zip(current) {
                    sector.durable.retain(|(stamp, at)| *at > submitted || current.contains(stamp));
                }
            }
            Pending::Flush { .. } => {}
            Pending::Look { .. } => unreachable!("a look ends with what it saw"),
        }
    }

    /// A read has ended with these bytes, or failed.
    ///
    /// # Errors
    /// What it should not have shown.
    pub fn end_read(&mut self, tag: u64, bytes: Option<&[u8]>) -> Result<(), String> {
        let Pending::Look { range, allowed, calm, .. } = self.take(tag) else {
            unreachable!("a read is a look")
        };
        let Some(bytes) = bytes else { return Ok(()) };
        let calm = calm && !self.is_writing(&range);
        let sectors = range.zip(bytes.chunks_exact(SECTOR_BYTES)).zip(allowed);
        for ((number, bytes), allowed) in sectors {
            let stamp = stamp_of(bytes, number)?;
            if !allowed.contains(&stamp) {
                return Err(format!("sector {number} shows write {stamp}, it may show {allowed:?}"));
            }
            let sector = &mut self.sectors[(number - self.first) as usize];
            // What is seen of a loss is no news: a flush that succeeds says that there was none.
            if calm && (!sector.in_doubt || sector.current.contains(&stamp)) {
                (sector.current, sector.in_doubt) = (vec![stamp], false);
            }
        }
        Ok(())
    }

    /// A compare has ended with this result, or failed for another reason.
    ///
    /// # Errors
    /// Why it cannot have this result.
    pub fn end_compare(&mut self, tag: u64, equal: Option<bool>) -> Result<(), String> {
        let Pending::Look { range, allowed, expected, .. } = self.take(tag) else {
            unreachable!("a compare is a look")
        };
        let pairs = || allowed.iter().zip(&expected);
        let possible = match equal {
            Some(true) => pairs().all(|(allowed, expected)| allowed.contains(expected)),
            Some(false) => pairs().any(|(allowed, expected)| allowed.iter().any(|stamp| stamp != expected)),
            None => true,
        };
        if possible { Ok(()) } else { Err(format!("compare of {range:?} says equal: {equal:?}")) }
    }

    /// The disk has lost its volatile cache.
    pub fn power_lost(&mut self) {
        for sector in &mut self.sectors {
            sector.current = sector.durable.iter().map(|(stamp, _)| *stamp).collect();
            sector.in_doubt = false;
        }
        self.add_to_looks();
        let sectors = &self.sectors;
        for pending in self.pending.values_mut() {
            match pending {
                // What was lost before it is executed again cannot be made durable by it.
                Pending::Flush { current, .. } => {
                    for (current, sector) in current.iter_mut().zip(sectors) {
                        sector.current.iter().for_each(|stamp| add(current, *stamp));
                    }
                }
                Pending::Write { loss, .. } => *loss = Some(Loss::Known),
                Pending::Look { .. } | Pending::Discard { .. } => {}
            }
        }
    }

    /// What stands beneath the disk has lost what was not flushed. Hosts were not told: no flush may succeed that would
    /// have to make durable what is lost, until they [are](Self::told_of_loss).
    pub fn lost_silently(&mut self) {
        self.sectors.iter_mut().for_each(|sector| sector.in_doubt = true);
        self.add_to_looks();
        for pending in self.pending.values_mut() {
            if let Pending::Write { loss: loss @ None, .. } = pending {
                *loss = Some(Loss::Silent);
            }
        }
    }

    /// Hosts know now that what was not flushed may be lost.
    pub fn told_of_loss(&mut self) {
        for sector in self.sectors.iter_mut().filter(|sector| sector.in_doubt) {
            (sector.current, sector.in_doubt) = (sector.visible(), false);
        }
        let sectors = &self.sectors;
        for pending in self.pending.values_mut() {
            match pending {
                Pending::Flush { current, .. } => {
                    for (current, sector) in current.iter_mut().zip(sectors) {
                        sector.current.iter().for_each(|stamp| add(current, *stamp));
                    }
                }
                Pending::Write { loss: loss @ Some(Loss::Silent), .. } => *loss = Some(Loss::Known),
                _ => {}
            }
        }
    }

    /// Looks in flight may have seen what can be seen now, or what could be seen before.
    fn add_to_looks(&mut self) {
        let (first, sectors) = (self.first, &self.sectors);
        for pending in self.pending.values_mut() {
            let Pending::Look { range, allowed, calm, .. } = pending else { continue };
            *calm = false;
            let range = (range.start - first) as usize..(range.end - first) as usize;
            for (allowed, sector) in allowed.iter_mut().zip(&sectors[range]) {
                sector.visible().iter().for_each(|stamp| add(allowed, *stamp));
            }
        }
    }

    /// Looks at the disk itself: as it reads now, and as a loss of power would leave it.
    ///
    /// # Errors
    /// What should not be there.
    pub fn check_disk(&self, visible: &[u8], stable: &[u8]) -> Result<(), String> {
        let both = visible.chunks_exact(SECTOR_BYTES).zip(stable.chunks_exact(SECTOR_BYTES));
        for ((number, sector), (visible, stable)) in self.range().zip(&self.sectors).zip(both) {
            let (visible, stable) = (stamp_of(visible, number)?, stamp_of(stable, number)?);
            let allowed = sector.visible();
            if !allowed.contains(&visible) {
                return Err(format!("sector {number} holds write {visible}, may hold {allowed:?}"));
            }
            if !sector.durable.iter().any(|(stamp, _)| *stamp == stable) {
                let durable = &sector.durable;
                return Err(format!("sector {number} would keep write {stable}, may keep {durable:?}"));
            }
        }
        Ok(())
    }

    fn take(&mut self, tag: u64) -> Pending {
        self.pending.remove(&tag).expect("a command ends once")
    }

    fn indices(&self, range: &Range<u64>) -> Range<usize> {
        (range.start - self.first) as usize..(range.end - self.first) as usize
    }

    /// A change of a range begins: from now on its content may be seen, also by looks in flight.
    fn start_writing(&mut self, range: &Range<u64>, stamp: Stamp) {
        self.submissions += 1;
        let (number, indices) = (self.submissions, self.indices(range));
        for sector in &mut self.sectors[indices] {
            sector.start_write(stamp, number);
        }
        for pending in self.pending.values_mut() {
            let Pending::Look { range: looked, allowed, calm, .. } = pending else { continue };
            for (number, allowed) in looked.clone().zip(allowed) {
                if range.contains(&number) {
                    *calm = false;
                    add(allowed, stamp);
                }
            }
        }
    }
}

impl Sector {
    /// The writes whose content a read may show now.
    fn visible(&self) -> Vec<Stamp> {
        let mut all = self.current.clone();
        if self.in_doubt {
            self.durable.iter().for_each(|(stamp, _)| add(&mut all, *stamp));
        }
        all
    }

    fn start_write(&mut self, stamp: Stamp, number: u64) {
        assert!(!self.writing, "the workload writes a sector once at a time");
        self.writing = true;
        add(&mut self.current, stamp);
        self.durable.retain(|(known, _)| *known != stamp);
        self.durable.push((stamp, number));
    }

    fn end_write(&mut self, stamp: Stamp, durable: bool, outcome: Outcome) {
        self.writing = false;
        if outcome == Outcome::Unknown {
            return;
        }
        (self.current, self.in_doubt) = (vec![stamp], false);
        if durable {
            self.durable.retain(|(known, _)| *known == stamp);
        }
    }
}

fn add(set: &mut Vec<Stamp>, stamp: Stamp) {
    if !set.contains(&stamp) {
        set.push(stamp);
    }
}
