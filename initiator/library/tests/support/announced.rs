//! What the controller says it can do, and its answers to whatever it did not announce.

use ringfab_spec::{Status, SubmissionEntry};

use super::BLOCK;

/// Its capabilities, by their fields of the Identify data structures.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Announced {
    /// Version: 0x1_03_00 is 1.3.
    pub(crate) version: u32,
    /// Optional NVM Command Support.
    pub(crate) oncs: u16,
    /// Deallocate Logical Block Features.
    pub(crate) dlfeat: u8,
    /// Abort Command Limit, zero's based.
    pub(crate) acl: u8,
    /// Whether it knows the Identify data structure of the limits.
    pub(crate) limits: bool,
    /// Verify and Write Zeroes Size Limit.
    pub(crate) vsl: u8,
    pub(crate) wzsl: u8,
    /// Limits of Dataset Management: ranges, blocks of one, blocks of all.
    pub(crate) dmrl: u8,
    pub(crate) dmrsl: u32,
    pub(crate) dmsl: u64,
    /// Bytes of metadata of a block of its namespaces.
    pub(crate) metadata_bytes: u16,
}

/// Commands of ONCS.
pub(crate) const COMPARE: u16 = 1;
pub(crate) const DISCARD: u16 = 1 << 2;
pub(crate) const WRITE_ZEROES: u16 = 1 << 3;
pub(crate) const VERIFY: u16 = 1 << 7;
/// DLFEAT: Write Zeroes may deallocate.
pub(crate) const DEALLOCATES: u8 = 1 << 3;
/// Write Zeroes: Deallocate, in dword 12.
const DEAC: u32 = 1 << 25;

impl Default for Announced {
    fn default() -> Self {
        Self {
            version: 0x0002_0000,
            oncs: COMPARE | DISCARD | WRITE_ZEROES,
            dlfeat: 0,
            acl: 0,
            limits: true,
            vsl: 0,
            wzsl: 0,
            dmrl: 0,
            dmrsl: 0,
            dmsl: 0,
            metadata_bytes: 0,
        }
    }
}

impl Announced {
    /// What is wrong with an I/O command whose data, if any, have come.
    pub(crate) fn refuses(&self, entry: &SubmissionEntry, data: &[u8]) -> Option<Status> {
        let needs = match entry.opcode {
            5 => COMPARE,
            8 => WRITE_ZEROES,
            9 => DISCARD,
            12 => VERIFY,
            _ => 0,
        };
        if self.oncs & needs != needs {
            return Some(Status::INVALID_OPCODE.with_dnr());
        }
        let wrong = match entry.opcode {
            8 => {
                self.longer(entry, self.wzsl)
                    || (entry.cdw12.get() & DEAC != 0 && self.dlfeat & DEALLOCATES == 0)
            }
            9 => self.too_much(entry, data),
            12 => self.longer(entry, self.vsl),
            _ => false,
        };
        wrong.then(|| Status::INVALID_FIELD.with_dnr())
    }

    /// Whether a command exceeds a limit, as a power of two of pages of 4 KiB. Without limits that are told it is that
    /// of transfers (16 pages).
    fn longer(&self, entry: &SubmissionEntry, exponent: u8) -> bool {
        let exponent = if self.limits { exponent } else { 4 };
        exponent != 0 && entry.nlb() as usize * BLOCK > 4096 << exponent
    }

    fn too_much(&self, entry: &SubmissionEntry, data: &[u8]) -> bool {
        let lengths = data.chunks_exact(16);
        let lengths = lengths.map(|range| u32::from_le_bytes(range[4..8].try_into().expect("four bytes")));
        let (mut longest, mut total, mut count) = (0, 0, 0);
        for length in lengths {
            (longest, total, count) = (length.max(longest), total + u64::from(length), count + 1);
        }
        // Deallocate is the only attribute that is more than a hint.
        entry.cdw11.get() != 1 << 2
            || entry.cdw10.get() + 1 != count
            || (self.dmrl != 0 && count > u32::from(self.dmrl))
            || (self.dmrsl != 0 && longest > self.dmrsl)
            || (self.dmsl != 0 && total > self.dmsl)
    }

    /// The limits of the NVM Command Set, as Identify data.
    pub(crate) fn fill_limits(&self, data: &mut [u8]) {
        (data[0], data[1], data[3]) = (self.vsl, self.wzsl, self.dmrl);
        data[4..8].copy_from_slice(&self.dmrsl.to_le_bytes());
        data[8..16].copy_from_slice(&self.dmsl.to_le_bytes());
    }

    /// Whether it knows an Identify data structure.
    pub(crate) fn knows(&self, cns: u8) -> bool {
        match cns {
            3 => self.version >= 0x0001_0300,
            6 => self.limits,
            _ => true,
        }
    }
}

/// A list of namespaces.
pub(crate) fn list(nsids: &[u32]) -> Vec<u8> {
    let mut data: Vec<u8> = nsids.iter().flat_map(|nsid| nsid.to_le_bytes()).collect();
    data.resize(4096, 0);
    data
}
