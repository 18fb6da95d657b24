//! Get LBA Status (NVM Command Set 1.1, section 4.2.1): the command's dwords, and the data that it returns.
//!
//! The action that returns allocated blocks came with NVM Command Set 1.1; controllers announce it by AOCS.

use zerocopy::little_endian::{U32, U64};

use crate::macros::{bits, open_enum, wire};
use crate::sqe::{AdminOpcode, SubmissionEntry};

open_enum! {
    /// Action Type (ATYPE): which blocks are told of.
    pub struct LbaStatusAction(u8) {
        ALLOCATED = 0x02 => "Return Allocated LBAs";
        SCAN = 0x10 => "Scan, and return Untracked LBAs and Tracked LBAs";
        TRACKED = 0x11 => "Return Tracked LBAs";
    }
}

bits! {
    /// Dword 13 of the command.
    pub struct LbaStatusDword13(U32 as u32) {
        /// Range Length, in logical blocks; 0 is up to the end of the namespace.
        rl / with_rl: u16 = 15:0;
        /// Action Type.
        atype / with_atype: LbaStatusAction = 31:24;
    }
}

wire! {
    /// What the data begin with.
    pub struct LbaStatusHeader[8] {
        /// Number of LBA Status Descriptors.
        0 => pub nlsd: U32,
        /// Completion Condition: see the constants.
        4 => pub cmpc: u8,
        5 => reserved5: [u8; 3],
    }
}

impl LbaStatusHeader {
    /// Value of `cmpc`: all that was asked for did not fit the data.
    pub const INCOMPLETE: u8 = 1;
    /// Value of `cmpc`: all that was asked for is there.
    pub const COMPLETE: u8 = 2;

    /// The header of so many descriptors.
    pub fn new(descriptors: u32, incomplete: bool) -> Self {
        let cmpc = if incomplete { Self::INCOMPLETE } else { Self::COMPLETE };
        Self { nlsd: U32::new(descriptors), cmpc, ..Self::zeroed() }
    }

    /// Whether the controller says that no more descriptors would follow.
    pub fn is_complete(&self) -> bool {
        self.cmpc == Self::COMPLETE
    }
}

wire! {
    /// An LBA Status Descriptor: blocks that follow each other.
    pub struct LbaStatusDescriptor[16] {
        /// Descriptor Starting LBA.
        0 => pub dslba: U64,
        /// Number of Logical Blocks, zero's based.
        8 => pub nlb_z: U32,
        12 => reserved12: u8,
        /// LBA Range Status, in bits 2:0.
        13 => pub lbars: u8,
        14 => reserved14: [u8; 2],
    }
}

impl LbaStatusDescriptor {
    /// Value of `lbars`: one of the blocks is allocated.
    pub const ALLOCATED: u8 = 0b010;

    /// Blocks of which one is allocated. Panics without blocks.
    pub fn allocated(dslba: u64, blocks: u32) -> Self {
        assert!(blocks > 0, "a descriptor has blocks");
        Self { dslba: U64::new(dslba), nlb_z: U32::new(blocks - 1), lbars: Self::ALLOCATED, ..Self::zeroed() }
    }
}

impl SubmissionEntry {
    /// Get LBA Status of blocks from `slba` on, for data of at most `bytes`, a multiple of four and not zero.
    pub fn get_lba_status(
        cid: u16,
        nsid: u32,
        slba: u64,
        range_length: u16,
        bytes: u32,
        action: LbaStatusAction,
    ) -> Self {
        assert!(bytes > 0 && bytes.is_multiple_of(4), "whole dwords");
        let dword13 = LbaStatusDword13::default().with_rl(range_length).with_atype(action);
        Self {
            cdw10: U32::new(slba as u32),
            cdw11: U32::new((slba >> 32) as u32),
            // Maximum Number of Dwords, zero's based.
            cdw12: U32::new(bytes / 4 - 1),
            cdw13: U32::new(dword13.bits()),
            ..Self::new(AdminOpcode::GET_LBA_STATUS.0, cid, nsid)
        }
    }

    /// Range Length and Action Type of Get LBA Status.
    pub fn lba_status_dword13(&self) -> LbaStatusDword13 {
        LbaStatusDword13::from_bits(self.cdw13.get())
    }

    /// Bytes that the data of Get LBA Status may have.
    pub fn lba_status_bytes(&self) -> u64 {
        (u64::from(self.cdw12.get()) + 1) * 4
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    #[test]
    fn a_command_and_its_data_have_their_golden_bytes() {
        let slba = 0x0102_0304_0506_0708;
        let entry = SubmissionEntry::get_lba_status(7, 1, slba, 9, 4096, LbaStatusAction::ALLOCATED);
        let golden = [8, 7, 6, 5, 4, 3, 2, 1, 0xff, 3, 0, 0, 9, 0, 0, 2];
        assert_eq!((entry.opcode, &entry.as_bytes()[40..56]), (0x86, &golden[..]));
        assert_eq!((entry.slba(), entry.lba_status_bytes()), (slba, 4096));
        assert_eq!(entry.lba_status_dword13().atype(), LbaStatusAction::ALLOCATED);
        assert_eq!(LbaStatusHeader::new(3, true).as_bytes(), [3, 0, 0, 0, 1, 0, 0, 0]);
        let descriptor = LbaStatusDescriptor::allocated(0x1_0000, 8);
        assert_eq!(descriptor.as_bytes(), [0, 0, 1, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 2, 0, 0]);
    }
}
