//! The commands of a host: of all kinds and sizes, some beside each other, no two writes on the same sector.

use std::ops::Range;

use ringfab_initiator::{BlockRange, DiscardRanges, IoOperation};

use super::client::{Client, Kind};
use super::content::{SECTOR_BYTES, Stamp, fill};
use super::trace::Trace;

/// The most sectors of one command.
const SECTORS_MAX: u64 = 512;

/// How often another range is tried when one is being written.
const TRIES: usize = 8;

impl Client {
    /// Submits one command.
    pub(super) fn submit_random(&mut self, trace: &mut Trace) {
        self.engines.choose();
        match self.random.below(100) {
            0..30 => self.read_somewhere(trace),
            30..64 => self.write_somewhere(trace),
            64..74 => self.flush(trace),
            74..82 => self.zero_somewhere(trace),
            82..89 => self.discard_somewhere(trace),
            _ => self.compare_somewhere(trace),
        }
    }

    /// Makes everything durable.
    pub fn flush(&mut self, trace: &mut Trace) {
        self.engines.choose();
        let tag = self.tag();
        self.checker.begin_flush(tag);
        self.submit(tag, Kind::Flush, IoOperation::Flush, "flush", trace);
    }

    /// Reads the next piece of a range and returns the rest of it.
    pub fn read_first_of(&mut self, range: Range<u64>, trace: &mut Trace) -> Range<u64> {
        let end = range.end.min(range.start + self.transfer_sectors_max.min(SECTORS_MAX));
        self.engines.choose();
        self.read(range.start..end, trace);
        end..range.end
    }

    fn read_somewhere(&mut self, trace: &mut Trace) {
        let range = self.any_range();
        self.read(range, trace);
    }

    fn read(&mut self, range: Range<u64>, trace: &mut Trace) {
        let Some(mut buffer) = self.engines.pool().take(bytes_of(&range)) else { return };
        buffer.set_len(bytes_of(&range));
        // What a read leaves untouched must not look like an answer.
        buffer.fill(0xee);
        let (tag, (lba, nlb)) = (self.tag(), self.blocks(&range));
        self.checker.begin_look(tag, range.clone(), Vec::new());
        let what = format!("read {range:?}");
        self.submit(tag, Kind::Read(range), IoOperation::Read { lba, nlb, buffer }, &what, trace);
    }

    fn write_somewhere(&mut self, trace: &mut Trace) {
        let Some(range) = self.quiet_range() else { return };
        let (tag, fua) = (self.tag(), self.random.one_in(3));
        let stamps = vec![tag; (range.end - range.start) as usize];
        let Some((source, offset)) = self.source(&range, &stamps) else { return };
        let (lba, nlb) = self.blocks(&range);
        self.checker.begin_write(tag, range.clone(), tag, fua);
        let operation = IoOperation::Write { lba, nlb, source, offset, fua };
        let what = format!("write {range:?}{}", if fua { " fua" } else { "" });
        self.submit(tag, Kind::Change, operation, &what, trace);
    }

    fn zero_somewhere(&mut self, trace: &mut Trace) {
        let Some(range) = self.quiet_range() else { return };
        let (tag, fua, deallocate) = (self.tag(), self.random.one_in(3), self.random.one_in(2));
        let (lba, nlb) = self.blocks(&range);
        self.checker.begin_write(tag, range.clone(), 0, fua);
        let operation = IoOperation::WriteZeroes { lba, nlb, deallocate, fua };
        let what = format!("zero {range:?}{}", if fua { " fua" } else { "" });
        self.submit(tag, Kind::Change, operation, &what, trace);
    }

    fn discard_somewhere(&mut self, trace: &mut Trace) {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for _ in 0..1 + self.random.below(3) {
            let Some(range) = self.quiet_range() else { continue };
            if ranges.iter().all(|other| range.end <= other.start || other.end <= range.start) {
                ranges.push(range);
            }
        }
        let blocks: Vec<BlockRange> = ranges
            .iter()
            .map(|range| {
                let (lba, nlb) = self.blocks(range);
                BlockRange { lba, nlb }
            })
            .collect();
        if blocks.is_empty() {
            return;
        }
        let Some(wire) = DiscardRanges::new(self.engines.pool(), &blocks) else { return };
        let (tag, what) = (self.tag(), format!("discard {ranges:?}"));
        self.checker.begin_discard(tag, ranges);
        self.submit(tag, Kind::Change, IoOperation::Discard { ranges: wire }, &what, trace);
    }

    /// Compares with what is there, or with something else.
    fn compare_somewhere(&mut self, trace: &mut Trace) {
        let Some(range) = self.quiet_range() else { return };
        let Some(mut stamps) = self.checker.certain(&range) else { return self.read(range, trace) };
        let different = self.random.one_in(3);
        if different {
            let index = self.random.below(stamps.len() as u64) as usize;
            stamps[index] ^= 1;
        }
        let Some((source, offset)) = self.source(&range, &stamps) else { return };
        let (tag, (lba, nlb)) = (self.tag(), self.blocks(&range));
        let what = format!("compare {range:?}{}", if different { " with other content" } else { "" });
        self.checker.begin_look(tag, range, stamps);
        self.submit(tag, Kind::Compare, IoOperation::Compare { lba, nlb, source, offset }, &what, trace);
    }

    /// Bytes with the content of writes, at some offset in their memory.
    fn source(
        &mut self,
        range: &Range<u64>,
        stamps: &[Stamp],
    ) -> Option<(ringfab_memory::SharedBuffer, u32)> {
        let offset = self.random.pick(&[0, 0, 64, 4096]);
        let mut buffer = self.engines.pool().take(bytes_of(range) + offset)?;
        buffer.set_len(bytes_of(range) + offset);
        let sectors = buffer[offset..].chunks_exact_mut(SECTOR_BYTES);
        for ((bytes, stamp), sector) in sectors.zip(stamps).zip(range.clone()) {
            fill(bytes, *stamp, sector);
        }
        Some((buffer.share(), offset as u32))
    }

    fn quiet_range(&mut self) -> Option<Range<u64>> {
        let mut tries = (0..TRIES).map(|_| self.any_range()).collect::<Vec<_>>().into_iter();
        tries.find(|range| !self.checker.is_writing(range))
    }

    /// A range of whole blocks, more often short than long.
    fn any_range(&mut self) -> Range<u64> {
        let all = self.checker.range();
        let blocks = (all.end - all.start) / self.block_sectors;
        let most = SECTORS_MAX.min(self.transfer_sectors_max) / self.block_sectors;
        let length = self.random.pick(&[1, 1, 1, 2, 3, 8, 16, 17, 64, 128, 512]).min(blocks).min(most);
        let start = self.random.below(blocks - length + 1);
        let first = all.start + start * self.block_sectors;
        first..first + length * self.block_sectors
    }

    /// First block and number of blocks.
    fn blocks(&self, range: &Range<u64>) -> (u64, u32) {
        let nlb = (range.end - range.start) / self.block_sectors;
        (range.start / self.block_sectors, nlb as u32)
    }
}

fn bytes_of(range: &Range<u64>) -> usize {
    (range.end - range.start) as usize * SECTOR_BYTES
}
