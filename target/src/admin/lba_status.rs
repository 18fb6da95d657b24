//! Get LBA Status (NVM Command Set 1.1, section 4.2.1), of allocated blocks only.
//!
//! A file says where it has data, and where it has holes. That may take long, so a worker asks. The blocks of all other
//! disks count as allocated.

use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

use nix::errno::Errno;
use nix::unistd::{Whence, lseek};
use ringfab_spec::lba_status::{LbaStatusAction, LbaStatusDescriptor, LbaStatusHeader};
use ringfab_spec::{IntoBytes as _, Sgl, Status};

use super::{AdminContext, AdminOutcome, AdminWork, Transfer, WORK_LIMIT, Work, identify};
use crate::command::{Command, dword_offset};
use crate::controller::Controller;
use crate::failure::Failure;
use crate::limits::ADMIN_DATA_BYTES_MAX;
use crate::worker::Task;

const SLBA: u16 = dword_offset(10);
const MNDW: u16 = dword_offset(12);
const ATYPE: u16 = dword_offset(13) + 3;

/// Descriptors of one answer at most, however many a host has room for: a worker asks the file twice for each.
const DESCRIPTORS_MAX: usize = 255;

/// Which blocks of a file are allocated, as far as an answer has room.
#[derive(Clone, Debug)]
pub(super) struct Scan {
    file: Arc<File>,
    name: String,
    blocks: Range<u64>,
    block_shift: u32,
    /// Bytes of the answer.
    bytes: usize,
}

pub(super) fn transfer(command: Command<'_>) -> Result<Transfer, Failure> {
    check_action(command)?;
    Ok(Transfer::ToHost(bytes(command)?))
}

fn check_action(command: Command<'_>) -> Result<(), Failure> {
    let is_known = command.entry().lba_status_dword13().atype() == LbaStatusAction::ALLOCATED;
    if is_known { Ok(()) } else { Err(Failure::invalid_field(ATYPE)) }
}

/// Bytes of the answer. MNDW says how many dwords it may have at most, so a host that has memory for fewer gets fewer.
fn bytes(command: Command<'_>) -> Result<u32, Failure> {
    let entry = command.entry();
    let most = u32::try_from(entry.lba_status_bytes()).ok().filter(|bytes| *bytes <= ADMIN_DATA_BYTES_MAX);
    let most = most.ok_or(Failure::invalid_field(MNDW))?;
    // Memory for nothing, or none that can be reached, is refused as that of any command. There are versions of libnvme
    // that describe memory for nothing.
    let memory = entry.sgl.parse().map_or(0, Sgl::length);
    Ok(if memory == 0 { most } else { most.min(memory) })
}

pub(super) fn get(
    controller: &Controller,
    context: &AdminContext<'_>,
    command: Command<'_>,
) -> Result<AdminOutcome, Failure> {
    let namespace = identify::active(controller, context, command)?;
    check_action(command)?;
    identify::check_access(controller, context, &namespace)?;
    let (ready, blocks) = namespace.readiness();
    if !ready {
        return Err(Failure::transient(Status::NAMESPACE_NOT_READY));
    }
    let (slba, length) = (command.u64(SLBA), u64::from(command.entry().lba_status_dword13().rl()));
    let end = if length == 0 { Some(blocks) } else { slba.checked_add(length) };
    let end = end.filter(|end| slba < *end && *end <= blocks);
    let end = end.ok_or(Failure::at(Status::LBA_OUT_OF_RANGE, SLBA))?;
    let bytes = bytes(command)? as usize;
    match namespace.opened_disk().file() {
        Some(file) => {
            let (name, block_shift) = (namespace.source(), namespace.block_shift());
            let scan = Scan { file, name, blocks: slba..end, block_shift, bytes };
            Ok(AdminOutcome::Slow(AdminWork(Work::Scan(scan))))
        }
        None => {
            let mut answer = Answer::new(bytes);
            answer.add(&(slba..end));
            Ok(AdminOutcome::Data { bytes: answer.into_bytes(), dw0: 0 })
        }
    }
}

impl Scan {
    pub(super) fn task(&self) -> Task {
        Task::new("looking for holes of", self.name.as_str(), WORK_LIMIT)
    }

    /// The answer for the host.
    pub(super) fn run(&self) -> Vec<u8> {
        let mut answer = Answer::new(self.bytes);
        let end = self.blocks.end << self.block_shift;
        let mut at = self.blocks.start << self.block_shift;
        while at < end && !answer.is_full {
            let Some(data) = self.find(at, end) else { break };
            // A block that is allocated in part is allocated.
            let round_up = |bytes: u64| bytes.div_ceil(1 << self.block_shift);
            let blocks = (data.start >> self.block_shift)..round_up(data.end).min(self.blocks.end);
            at = blocks.end << self.block_shift;
            answer.add(&blocks);
        }
        answer.into_bytes()
    }

    /// The first data between two places; none where the file has none. All of a file counts that does not say.
    fn find(&self, at: u64, end: u64) -> Option<Range<u64>> {
        let seek = |place: u64, whence| {
            let place = i64::try_from(place).map_err(|_| Errno::EOVERFLOW)?;
            // Nobody uses the position of the descriptor.
            lseek(&*self.file, place, whence).map(|found| found.unsigned_abs())
        };
        let start = match seek(at, Whence::SeekData) {
            Ok(start) => start.max(at),
            Err(Errno::ENXIO) => return None,
            Err(_) => return Some(at..end),
        };
        let stop = seek(start, Whence::SeekHole).unwrap_or(end);
        (start < end).then(|| start..stop.clamp(start + 1, end))
    }
}

impl PartialEq for Scan {
    fn eq(&self, other: &Self) -> bool {
        let same = |scan: &Self| (scan.blocks.clone(), scan.block_shift, scan.bytes);
        Arc::ptr_eq(&self.file, &other.file) && same(self) == same(other)
    }
}

impl Eq for Scan {}

/// An answer while it is made.
struct Answer {
    bytes: usize,
    room: usize,
    allocated: Vec<Range<u64>>,
    /// Whether there was more than it has room for.
    is_full: bool,
}

impl Answer {
    fn new(bytes: usize) -> Self {
        let room = bytes.saturating_sub(LbaStatusHeader::SIZE) / LbaStatusDescriptor::SIZE;
        Self { bytes, room: room.min(DESCRIPTORS_MAX), allocated: Vec::new(), is_full: false }
    }

    /// Adds blocks behind all others.
    fn add(&mut self, blocks: &Range<u64>) {
        if let Some(last) = self.allocated.last_mut().filter(|last| last.end >= blocks.start) {
            last.end = last.end.max(blocks.end);
        } else if self.allocated.len() < self.room {
            self.allocated.push(blocks.clone());
        } else {
            self.is_full = true;
        }
    }

    /// The header, the descriptors, and zeroes up to the end.
    fn into_bytes(mut self) -> Vec<u8> {
        const MOST: u64 = u32::MAX as u64;
        let piece = |blocks: &Range<u64>, number| {
            let start = blocks.start + number * MOST;
            LbaStatusDescriptor::allocated(start, (blocks.end - start).min(MOST) as u32)
        };
        let pieces = self.allocated.iter().flat_map(|blocks| {
            (0..(blocks.end - blocks.start).div_ceil(MOST)).map(move |number| piece(blocks, number))
        });
        let descriptors: Vec<_> = pieces.take(self.room + 1).collect();
        self.is_full |= descriptors.len() > self.room;
        let count = descriptors.len().min(self.room);
        let mut bytes = LbaStatusHeader::new(count as u32, self.is_full).as_bytes().to_vec();
        for descriptor in &descriptors[..count] {
            bytes.extend_from_slice(descriptor.as_bytes());
        }
        bytes.resize(self.bytes, 0);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::slice::from_ref;

    use ringfab_spec::FromBytes as _;

    use super::*;

    /// The descriptors of an answer, and whether it is complete.
    fn read(bytes: &[u8]) -> (Vec<(u64, u64)>, bool) {
        let (header, rest) = LbaStatusHeader::ref_from_prefix(bytes).expect("a header");
        let all = rest.chunks_exact(LbaStatusDescriptor::SIZE).take(header.nlsd.get() as usize);
        let read = |bytes| {
            let descriptor = LbaStatusDescriptor::ref_from_bytes(bytes).expect("a descriptor");
            assert_eq!(descriptor.lbars, LbaStatusDescriptor::ALLOCATED);
            (descriptor.dslba.get(), u64::from(descriptor.nlb_z.get()) + 1)
        };
        (all.map(read).collect(), header.is_complete())
    }

    #[test]
    fn an_answer_tells_what_it_has_room_for_and_whether_there_is_more() {
        let made = |bytes, ranges: &[Range<u64>]| {
            let mut answer = Answer::new(bytes);
            ranges.iter().for_each(|range| answer.add(range));
            let made = answer.into_bytes();
            assert_eq!(made.len(), bytes);
            made
        };
        assert_eq!(read(&made(40, &[1..2, 5..9])), (vec![(1, 1), (5, 4)], true));
        assert_eq!(read(&made(40, &[1..2, 5..9, 9..20, 30..31])), (vec![(1, 1), (5, 15)], false));
        assert_eq!(read(&made(8, from_ref(&(1..2)))), (vec![], false));
        assert_eq!(read(&made(8, &[])), (vec![], true));
        assert_eq!(made(4, from_ref(&(1..2))), [0; 4], "not even the header fits");
        let long = u64::from(u32::MAX);
        assert_eq!(read(&made(64, from_ref(&(0..long + 5)))), (vec![(0, long), (long, 5)], true));
        assert_eq!(read(&made(24, from_ref(&(0..long + 5)))), (vec![(0, long)], false));
    }

    #[test]
    fn a_file_tells_its_data_and_its_holes() {
        const BLOCK: u64 = 4096;
        let file = tempfile::tempfile().expect("a file");
        file.set_len(1000 * BLOCK).expect("a size");
        let scan = |file: &File, blocks: Range<u64>| {
            let file = Arc::new(file.try_clone().expect("a descriptor"));
            let scan = Scan { file, name: String::new(), blocks, block_shift: 12, bytes: 4096 };
            read(&scan.run())
        };
        let (holes, _) = scan(&file, 0..1000);
        if holes == [(0, 1000)] {
            // A file system that does not say.
            return;
        }
        assert_eq!(holes, []);
        for block in [0, 1, 500, 999] {
            file.write_all_at(&[1; BLOCK as usize], block * BLOCK).expect("written");
        }
        assert_eq!(scan(&file, 0..1000), (vec![(0, 2), (500, 1), (999, 1)], true));
        assert_eq!(scan(&file, 1..501), (vec![(1, 1), (500, 1)], true));
        assert_eq!(scan(&file, 501..999), (vec![], true));
        // Of a file that was cut off, what is gone has no data.
        file.set_len(10 * BLOCK).expect("shorter");
        assert_eq!(scan(&file, 0..1000), (vec![(0, 2)], true));
    }
}
