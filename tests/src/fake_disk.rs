//! A disk in memory behind [`FakeTarget`](crate::fake_target::FakeTarget): a controller that does what it announces,
//! refuses everything else, and keeps a note of it.

use ringfab_spec::{Status, SubmissionEntry};

use crate::fake_target::BLOCK;

/// ONCS: Dataset Management.
pub const DSM: u16 = 1 << 2;
/// ONCS: Write Zeroes.
pub const WRITE_ZEROES: u16 = 1 << 3;
/// DLFEAT: Write Zeroes may deallocate.
pub const DEALLOCATES: u8 = 1 << 3;

/// The most of one command, as a power of two of pages: all of a write is in its capsule.
const MDTS: u8 = 1;
/// What a deallocated block reads as: this controller promises nothing of them.
pub const DEALLOCATED: u8 = 0xdb;
/// Force Unit Access and Deallocate in dword 12, and the blocks of a command.
const FUA: u32 = 1 << 30;
const DEAC: u32 = 1 << 25;
const NLB: u32 = 0xffff;

/// What the controller announces.
#[derive(Clone, Copy, Debug, Default)]
pub struct Abilities {
    /// Optional NVM Command Support.
    pub oncs: u16,
    /// Deallocate Logical Block Features.
    pub dlfeat: u8,
    /// Whether it has a volatile write cache.
    pub vwc: bool,
}

/// The disk.
#[derive(Debug)]
pub struct Disk {
    /// What is announced.
    pub abilities: Abilities,
    /// The content.
    pub bytes: Vec<u8>,
    /// Blocks that it says are in use (NUSE); all where it does not know.
    pub used: Option<u64>,
    /// Commands that were not allowed.
    pub refused: Vec<String>,
    /// Opcodes of the others.
    pub executed: Vec<u8>,
}

impl Disk {
    /// A disk that is full of one byte.
    pub fn new(abilities: Abilities, blocks: usize, byte: u8) -> Self {
        let bytes = vec![byte; blocks * BLOCK];
        Self { abilities, bytes, used: None, refused: Vec::new(), executed: Vec::new() }
    }

    /// Writes its fields of Identify Controller.
    pub(crate) fn fill_controller(&self, data: &mut [u8]) {
        data[77] = MDTS;
        data[520..522].copy_from_slice(&self.abilities.oncs.to_le_bytes());
        data[525] = u8::from(self.abilities.vwc);
    }

    /// Writes its fields of Identify Namespace.
    pub(crate) fn fill_namespace(&self, data: &mut [u8]) {
        let blocks = (self.bytes.len() / BLOCK) as u64;
        for (place, value) in [(0, blocks), (8, blocks), (16, self.used.unwrap_or(blocks))] {
            data[place..place + 8].copy_from_slice(&value.to_le_bytes());
        }
        data[33] = self.abilities.dlfeat;
    }

    /// Carries out an I/O command with its data, and returns what it reads.
    ///
    /// # Errors
    /// The status of what it has not announced, or of what is no command.
    pub(crate) fn execute(&mut self, sqe: &SubmissionEntry, data: &[u8]) -> Result<Vec<u8>, Status> {
        if let Err(status) = self.allow(sqe, data) {
            self.refused.push(format!("{status}: {sqe:?}"));
            return Err(status.with_dnr());
        }
        self.executed.push(sqe.opcode);
        let (start, length) = (sqe.slba() as usize * BLOCK, sqe.nlb() as usize * BLOCK);
        match sqe.opcode {
            1 => self.bytes[start..start + length].copy_from_slice(data),
            2 => return Ok(self.bytes[start..start + length].to_vec()),
            8 => self.bytes[start..start + length].fill(0),
            9 => {
                for (start, end) in ranges(data) {
                    self.bytes[start as usize * BLOCK..end as usize * BLOCK].fill(DEALLOCATED);
                }
            }
            _ => {}
        }
        Ok(Vec::new())
    }

    fn allow(&self, sqe: &SubmissionEntry, data: &[u8]) -> Result<(), Status> {
        let (oncs, blocks) = (self.abilities.oncs, (self.bytes.len() / BLOCK) as u64);
        let (bits, dword11) = match sqe.opcode {
            0 => (0, 0),
            1 => (NLB | FUA, u32::MAX),
            2 => (NLB, u32::MAX),
            8 if oncs & WRITE_ZEROES != 0 && self.abilities.dlfeat & DEALLOCATES != 0 => {
                (NLB | FUA | DEAC, u32::MAX)
            }
            8 if oncs & WRITE_ZEROES != 0 => (NLB | FUA, u32::MAX),
            // Deallocate; the others are hints.
            9 if oncs & DSM != 0 => (0, 1 << 2),
            _ => return Err(Status::INVALID_OPCODE),
        };
        let fits = match sqe.opcode {
            0 => true,
            9 => {
                let ranges = ranges(data);
                ranges.len() == (sqe.cdw10.get() as usize & 0xff) + 1
                    && ranges.iter().all(|(start, end)| start < end && *end <= blocks)
            }
            // Without limits of its own, Write Zeroes is held to that of transfers.
            _ => {
                let length = u64::from(sqe.nlb());
                length * BLOCK as u64 <= 4096 << MDTS && sqe.slba() + length <= blocks
            }
        };
        let plain = sqe.cdw12.get() & !bits == 0 && sqe.cdw11.get() & !dword11 == 0 && sqe.fuse() == 0;
        let rest = [sqe.cdw2, sqe.cdw3, sqe.cdw13, sqe.cdw14, sqe.cdw15];
        let whole = sqe.opcode != 1 || data.len() == sqe.nlb() as usize * BLOCK;
        if plain && fits && whole && rest.iter().all(|dword| dword.get() == 0) {
            Ok(())
        } else {
            Err(Status::INVALID_FIELD)
        }
    }
}

/// First blocks and ends of the ranges of a Dataset Management command.
fn ranges(data: &[u8]) -> Vec<(u64, u64)> {
    let range = |bytes: &[u8]| {
        let blocks = u32::from_le_bytes(bytes[4..8].try_into().expect("four bytes"));
        let start = u64::from_le_bytes(bytes[8..16].try_into().expect("eight bytes"));
        (start, start + u64::from(blocks))
    };
    data.chunks_exact(16).map(range).collect()
}
