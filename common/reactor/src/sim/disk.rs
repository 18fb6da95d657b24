//! A disk: sectors that are stable, and a volatile cache that a crash forgets sector by sector.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use super::HostId;
use super::core::Core;

/// The unit that a crash keeps or loses as a whole.
pub(super) const SECTOR_BYTES: usize = 512;

/// The most unsynced versions of a sector that are kept. The oldest becomes stable when there are more, as a
/// drive writes its cache back in its own time.
const VERSIONS_MAX: usize = 8;

/// How a disk behaves. The default is a quick disk without errors, which tears what was not synced.
#[derive(Clone, Debug, PartialEq)]
pub struct DiskFaults {
    /// The shortest time that an operation takes.
    pub delay_min: Duration,
    /// The longest. Operations in flight complete in any order within it.
    pub delay_max: Duration,
    /// How probable it is that an operation fails with `EIO`. A failed write may have happened in part.
    pub error_probability: f64,
    /// How probable it is that a write or an allocation fails with `ENOSPC`, also having happened in part.
    pub full_probability: f64,
    /// Whether a write that is not synced may survive a crash, and a write in flight be seen, sector by sector.
    /// Otherwise each write is there or not as a whole.
    pub torn_writes: bool,
    /// Alignment in bytes that direct I/O needs of offsets, lengths and memory.
    pub alignment: u32,
}

impl Default for DiskFaults {
    fn default() -> Self {
        Self {
            delay_min: Duration::from_micros(20),
            delay_max: Duration::from_micros(20),
            error_probability: 0.0,
            full_probability: 0.0,
            torn_writes: true,
            alignment: SECTOR_BYTES as u32,
        }
    }
}

pub(super) type Sector = [u8; SECTOR_BYTES];

/// A disk of a host, or of several. It outlives the crashes of its hosts.
pub(super) struct Disk {
    /// Who has it, and where.
    pub(super) places: Vec<(HostId, PathBuf)>,
    pub(super) bytes: u64,
    pub(super) faults: DiskFaults,
    /// How often it can still be opened, if not always.
    pub(super) opens_left: Option<u32>,
    /// Sectors that survive; one that is absent is zero.
    stable: BTreeMap<u64, Sector>,
    /// Versions of sectors since their stable one, each with the number of its write, oldest first.
    cache: BTreeMap<u64, Vec<(u64, Sector)>>,
    /// Number of the last write that was applied.
    pub(super) version: u64,
    /// How often write-back has failed, and how many of these failures some file has told of.
    pub(super) write_back_failures: u64,
    pub(super) failures_told: u64,
}

impl Disk {
    pub(super) fn new(host: HostId, path: PathBuf, bytes: u64, faults: DiskFaults) -> Self {
        let (stable, cache) = (BTreeMap::new(), BTreeMap::new());
        Self {
            places: vec![(host, path)],
            bytes,
            faults,
            opens_left: None,
            stable,
            cache,
            version: 0,
            write_back_failures: 0,
            failures_told: 0,
        }
    }

    /// Whether it loses power with a host. One that several hosts have does not: its power is its own.
    pub(super) fn is_powered_by(&self, host: HostId) -> bool {
        matches!(self.places[..], [(only, _)] if only == host)
    }

    /// What a reader sees of a sector.
    fn current(&self, sector: u64) -> Sector {
        let cached = self.cache.get(&sector).and_then(|versions| versions.last());
        cached.map_or_else(|| self.stable_sector(sector), |(_, bytes)| *bytes)
    }

    fn stable_sector(&self, sector: u64) -> Sector {
        self.stable.get(&sector).copied().unwrap_or([0; SECTOR_BYTES])
    }

    /// Copies what a reader sees at `offset`.
    pub(super) fn read(&self, offset: u64, target: &mut [u8]) {
        for_each_sector(offset, target.len(), |sector, within, range| {
            target[range.clone()].copy_from_slice(&self.current(sector)[within..within + range.len()]);
        });
    }

    /// Copies what would be left at `offset` if every unsynced sector were lost.
    pub(super) fn read_stable(&self, offset: u64, target: &mut [u8]) {
        for_each_sector(offset, target.len(), |sector, within, range| {
            target[range.clone()].copy_from_slice(&self.stable_sector(sector)[within..within + range.len()]);
        });
    }

    /// Applies a write to those of its sectors that `keeps` chooses. They are volatile until a sync.
    pub(super) fn write(&mut self, offset: u64, source: &[u8], mut keeps: impl FnMut() -> bool) {
        self.version += 1;
        for_each_sector(offset, source.len(), |sector, within, range| {
            if !keeps() {
                return;
            }
            let mut bytes = self.current(sector);
            bytes[within..within + range.len()].copy_from_slice(&source[range]);
            let versions = self.cache.entry(sector).or_default();
            versions.push((self.version, bytes));
            if self.faults.torn_writes && versions.len() > VERSIONS_MAX {
                let (_, oldest) = versions.remove(0);
                self.stable.insert(sector, oldest);
            }
        });
    }

    /// Makes the sectors of a range stable as they are now.
    pub(super) fn settle_range(&mut self, offset: u64, length: usize) {
        for_each_sector(offset, length, |sector, _, _| {
            if let Some((_, bytes)) = self.cache.remove(&sector).and_then(|mut versions| versions.pop()) {
                self.settle(sector, bytes);
            }
        });
    }

    /// Makes every write up to this one stable.
    pub(super) fn settle_until(&mut self, version: u64) {
        for (sector, mut versions) in std::mem::take(&mut self.cache) {
            let later = versions.iter().position(|(number, _)| *number > version);
            let kept = versions.split_off(later.unwrap_or(versions.len()));
            if let Some((_, bytes)) = versions.pop() {
                self.settle(sector, bytes);
            }
            if !kept.is_empty() {
                self.cache.insert(sector, kept);
            }
        }
    }

    fn settle(&mut self, sector: u64, bytes: Sector) {
        if bytes == [0; SECTOR_BYTES] {
            self.stable.remove(&sector);
        } else {
            self.stable.insert(sector, bytes);
        }
    }

    /// What is in the cache cannot be written and is forgotten. As with the page cache of Linux, each file that is open
    /// now tells of it once, with its next sync; one that is opened after another has told does not.
    pub(super) fn fail_write_back(&mut self) {
        self.cache.clear();
        self.write_back_failures += 1;
    }

    /// The power goes: of the unsynced writes (or, when they tear, of their sectors) each survives or not.
    pub(super) fn lose_power(&mut self, core: &mut Core) {
        // How much survives varies from crash to crash, so that "all" and "nothing" happen too.
        let survival = core.below(5) as f64 / 4.0;
        let cache = std::mem::take(&mut self.cache);
        let numbers: BTreeSet<u64> = cache.values().flatten().map(|(number, _)| *number).collect();
        let whole: BTreeSet<u64> = numbers.into_iter().filter(|_| core.chance(survival)).collect();
        for (sector, versions) in cache {
            for (number, bytes) in versions {
                let survives =
                    if self.faults.torn_writes { core.chance(survival) } else { whole.contains(&number) };
                if survives {
                    self.settle(sector, bytes);
                }
            }
        }
    }
}

/// Calls `visit` with each sector of a range of a disk, where the part within it starts, and the range of that
/// part within the bytes.
fn for_each_sector(offset: u64, length: usize, mut visit: impl FnMut(u64, usize, std::ops::Range<usize>)) {
    let mut done = 0;
    while done < length {
        let at = offset + done as u64;
        let within = (at % SECTOR_BYTES as u64) as usize;
        let part = (SECTOR_BYTES - within).min(length - done);
        visit(at / SECTOR_BYTES as u64, within, done..done + part);
        done += part;
    }
}
