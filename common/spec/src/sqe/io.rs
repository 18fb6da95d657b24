//! Commands of the NVM Command Set 1.0, section 3.

use zerocopy::little_endian::{U16, U32, U64};

use super::{AbortDword10, IoOpcode, SubmissionEntry};
use crate::macros::{bits, open_enum, wire};

bits! {
    /// Dword 12 of Read, Write, Compare and Write Zeroes.
    pub struct IoFlags(U32 as u32) {
        /// Number of Logical Blocks, zero's based.
        nlb_z / with_nlb_z: u16 = 15:0;
        /// Deallocate (Write Zeroes).
        deac / with_deac: bool = 25:25;
        /// Protection Information: PRACT and PRCHK.
        prinfo / with_prinfo: u8 = 29:26;
        /// Force Unit Access.
        fua / with_fua: bool = 30:30;
        /// Limited Retry.
        lr / with_lr: bool = 31:31;
    }
}

open_enum! {
    /// Action Code of Cancel: which commands it is about.
    pub struct CancelAction(u8) {
        SINGLE = 0 => "the command that CID names";
        MULTIPLE = 1 => "all commands of the queue, for one namespace or for all";
    }
}

bits! {
    /// Dword 11 of Cancel (Base 2.1, section 7.1). Dword 10 is that of Abort.
    pub struct CancelDword11(U32 as u32) {
        /// Action Code.
        action / with_action: CancelAction = 1:0;
    }
}

bits! {
    /// Dword 0 of the completion of Cancel.
    pub struct CancelResult(U32 as u32) {
        /// Commands Aborted: those that were ended before Cancel completed.
        aborted / with_aborted: u16 = 15:0;
        /// Commands Eligible for Deferred Abort: those that may still be ended after Cancel completed.
        deferred / with_deferred: u16 = 31:16;
    }
}

wire! {
    /// A range of a Dataset Management command.
    #[derive(Copy)]
    pub struct DsmRange[16] {
        /// Context Attributes.
        0 => pub cattr: U32,
        /// Length in logical blocks.
        4 => pub nlb: U32,
        /// Starting LBA.
        8 => pub slba: U64,
    }
}

impl DsmRange {
    /// The most ranges of one command.
    pub const COUNT_MAX: usize = 256;

    /// A range without context.
    pub fn new(slba: u64, nlb: u32) -> Self {
        Self { cattr: U32::new(0), nlb: U32::new(nlb), slba: U64::new(slba) }
    }
}

bits! {
    /// Dword 12 of Copy.
    pub struct CopyDword12(U32 as u32) {
        /// Number of Ranges, zero's based.
        nr_z / with_nr_z: u8 = 7:0;
        /// Descriptor Format of the source ranges.
        desfmt / with_desfmt: u8 = 11:8;
        /// Protection Information of the reads: PRACT and PRCHK.
        prinfor / with_prinfor: u8 = 15:12;
        /// Directive Type.
        dtype / with_dtype: u8 = 23:20;
        /// Protection Information of the writes: PRACT and PRCHK.
        prinfow / with_prinfow: u8 = 29:26;
        /// Force Unit Access.
        fua / with_fua: bool = 30:30;
        /// Limited Retry.
        lr / with_lr: bool = 31:31;
    }
}

wire! {
    /// A source range of a Copy command, of Descriptor Format 0.
    #[derive(Copy)]
    pub struct CopyRange[32] {
        0 => reserved0: [u8; 8],
        /// Starting LBA.
        8 => pub slba: U64,
        /// Number of Logical Blocks, zero's based.
        16 => pub nlb_z: U16,
        18 => reserved18: [u8; 6],
        /// Expected Initial Logical Block Reference Tag.
        24 => pub eilbrt: U32,
        /// Expected Logical Block Application Tag.
        28 => pub elbat: U16,
        /// Expected Logical Block Application Tag Mask.
        30 => pub elbatm: U16,
    }
}

impl CopyRange {
    /// A range without protection information; one to 65,536 blocks.
    pub fn new(slba: u64, blocks: u32) -> Self {
        assert!((1..=65_536).contains(&blocks), "1 to 65,536 blocks");
        Self { slba: U64::new(slba), nlb_z: U16::new((blocks - 1) as u16), ..Self::zeroed() }
    }

    /// Number of logical blocks, 1 to 65,536.
    pub fn nlb(&self) -> u32 {
        u32::from(self.nlb_z.get()) + 1
    }
}

bits! {
    /// Dword 11 of Dataset Management.
    pub struct DsmAttributes(U32 as u32) {
        /// Integral Dataset for Read.
        idr / with_idr: bool = 0:0;
        /// Integral Dataset for Write.
        idw / with_idw: bool = 1:1;
        /// Deallocate.
        ad / with_ad: bool = 2:2;
    }
}

/// Constructors and accessors of I/O commands. Counts of blocks are at least one and at most 65,536.
impl SubmissionEntry {
    /// Cancel one command of the queue `sqid`, on which this is sent.
    pub fn cancel(cid: u16, nsid: u32, sqid: u16, canceled_cid: u16) -> Self {
        Self::cancel_of(
            cid,
            nsid,
            AbortDword10::default().with_sqid(sqid).with_cid(canceled_cid),
            CancelAction::SINGLE,
        )
    }

    /// Cancel all commands of the queue `sqid`, on which this is sent, for one namespace or for all (FFFFFFFFh).
    pub fn cancel_all(cid: u16, nsid: u32, sqid: u16) -> Self {
        Self::cancel_of(
            cid,
            nsid,
            AbortDword10::default().with_sqid(sqid).with_cid(u16::MAX),
            CancelAction::MULTIPLE,
        )
    }

    fn cancel_of(cid: u16, nsid: u32, dword10: AbortDword10, action: CancelAction) -> Self {
        Self {
            cdw10: U32::new(dword10.bits()),
            cdw11: U32::new(CancelDword11::default().with_action(action).bits()),
            ..Self::new(IoOpcode::CANCEL.0, cid, nsid)
        }
    }

    /// Action Code, of Cancel.
    pub fn cancel_action(&self) -> CancelAction {
        CancelDword11::from_bits(self.cdw11.get()).action()
    }

    /// The command to be ended, of Abort and Cancel.
    pub fn aborted_command(&self) -> AbortDword10 {
        AbortDword10::from_bits(self.cdw10.get())
    }

    /// Read `blocks` blocks from `slba`.
    pub fn read(cid: u16, nsid: u32, slba: u64, blocks: u32) -> Self {
        Self::new(IoOpcode::READ.0, cid, nsid).with_blocks(slba, blocks)
    }

    /// Write `blocks` blocks from `slba`.
    pub fn write(cid: u16, nsid: u32, slba: u64, blocks: u32, fua: bool) -> Self {
        Self::new(IoOpcode::WRITE.0, cid, nsid).with_blocks(slba, blocks).with_io(|io| io.with_fua(fua))
    }

    /// Compare `blocks` blocks from `slba`.
    pub fn compare(cid: u16, nsid: u32, slba: u64, blocks: u32) -> Self {
        Self::new(IoOpcode::COMPARE.0, cid, nsid).with_blocks(slba, blocks)
    }

    /// Write zeroes to `blocks` blocks from `slba`.
    pub fn write_zeroes(cid: u16, nsid: u32, slba: u64, blocks: u32, deallocate: bool, fua: bool) -> Self {
        Self::new(IoOpcode::WRITE_ZEROES.0, cid, nsid)
            .with_blocks(slba, blocks)
            .with_io(|io| io.with_deac(deallocate).with_fua(fua))
    }

    /// Flush a namespace, or all with FFFFFFFFh.
    pub fn flush(cid: u16, nsid: u32) -> Self {
        Self::new(IoOpcode::FLUSH.0, cid, nsid)
    }

    /// Deallocate `ranges` ranges (1 to 256), which the command's data lists.
    pub fn deallocate(cid: u16, nsid: u32, ranges: u16) -> Self {
        assert!((1..=256).contains(&ranges), "1 to 256 ranges");
        Self {
            cdw10: U32::new(u32::from(ranges) - 1),
            cdw11: U32::new(DsmAttributes::default().with_ad(true).bits()),
            ..Self::new(IoOpcode::DATASET_MANAGEMENT.0, cid, nsid)
        }
    }

    /// Verify `blocks` blocks from `slba`.
    pub fn verify(cid: u16, nsid: u32, slba: u64, blocks: u32) -> Self {
        Self::new(IoOpcode::VERIFY.0, cid, nsid).with_blocks(slba, blocks)
    }

    /// Copy `ranges` source ranges (1 to 256) of Descriptor Format 0, which the command's data lists, to `sdlba`.
    pub fn copy(cid: u16, nsid: u32, sdlba: u64, ranges: u16) -> Self {
        assert!((1..=256).contains(&ranges), "1 to 256 ranges");
        let dword_12 = CopyDword12::default().with_nr_z((ranges - 1) as u8);
        Self {
            cdw10: U32::new(sdlba as u32),
            cdw11: U32::new((sdlba >> 32) as u32),
            cdw12: U32::new(dword_12.bits()),
            ..Self::new(IoOpcode::COPY.0, cid, nsid)
        }
    }

    /// Starting LBA; of Copy, the Starting Destination LBA.
    pub fn slba(&self) -> u64 {
        u64::from(self.cdw11.get()) << 32 | u64::from(self.cdw10.get())
    }

    /// Number of logical blocks, 1 to 65,536.
    pub fn nlb(&self) -> u32 {
        u32::from(self.io_flags().nlb_z()) + 1
    }

    /// Force Unit Access.
    pub fn fua(&self) -> bool {
        self.io_flags().fua()
    }

    /// Deallocate, of Write Zeroes.
    pub fn deac(&self) -> bool {
        self.io_flags().deac()
    }

    /// Protection information, which namespaces without it want clear.
    pub fn prinfo(&self) -> u8 {
        self.io_flags().prinfo()
    }

    /// How many ranges a Dataset Management command lists: NR counts from zero.
    pub fn dsm_ranges(&self) -> u16 {
        (self.cdw10.get() & 0xff) as u16 + 1
    }

    /// Whether a Dataset Management command deallocates its ranges.
    pub fn dsm_deallocate(&self) -> bool {
        DsmAttributes::from_bits(self.cdw11.get()).ad()
    }

    /// Dword 12, of Copy.
    pub fn copy_dword12(&self) -> CopyDword12 {
        CopyDword12::from_bits(self.cdw12.get())
    }

    fn io_flags(&self) -> IoFlags {
        IoFlags::from_bits(self.cdw12.get())
    }

    fn with_io(self, change: impl FnOnce(IoFlags) -> IoFlags) -> Self {
        Self { cdw12: U32::new(change(self.io_flags()).bits()), ..self }
    }

    fn with_blocks(self, slba: u64, blocks: u32) -> Self {
        assert!((1..=65_536).contains(&blocks), "1 to 65,536 blocks");
        let entry = self.with_io(|io| io.with_nlb_z((blocks - 1) as u16));
        Self { cdw10: U32::new(slba as u32), cdw11: U32::new((slba >> 32) as u32), ..entry }
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    #[test]
    fn a_cancel_has_its_golden_bytes() {
        let entry = SubmissionEntry::cancel_all(0x0102, u32::MAX, 0x0304);
        assert_eq!(entry.as_bytes()[..8], [0x18, 0x40, 0x02, 0x01, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(entry.as_bytes()[40..48], [0x04, 0x03, 0xff, 0xff, 1, 0, 0, 0]);
        let one = SubmissionEntry::cancel(1, 2, 3, 4);
        assert_eq!((one.cancel_action(), one.aborted_command().cid()), (CancelAction::SINGLE, 4));
        assert_eq!(CancelResult::from_bits(0x0002_0001).deferred(), 2);
    }

    #[test]
    fn a_write_has_its_golden_bytes() {
        let entry = SubmissionEntry::write(0x0102, 3, 0x1122_3344_5566_7788, 65_536, true);
        let bytes = entry.as_bytes();
        assert_eq!(&bytes[..8], [0x01, 0x40, 0x02, 0x01, 3, 0, 0, 0]);
        assert_eq!(&bytes[40..52], [0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0xff, 0xff, 0, 0x40]);
        assert_eq!((entry.slba(), entry.nlb(), entry.fua()), (0x1122_3344_5566_7788, 65_536, true));
    }

    #[test]
    fn write_zeroes_says_whether_to_deallocate() {
        let entry = SubmissionEntry::write_zeroes(1, 1, 0, 1, true, false);
        assert_eq!(&entry.as_bytes()[48..52], [0, 0, 0, 0x02]);
        assert!(entry.deac() && !entry.fua() && entry.prinfo() == 0);
    }

    #[test]
    fn copy_has_its_golden_bytes() {
        let entry = SubmissionEntry::copy(1, 1, 0x1122_3344_5566_7788, 256);
        let golden = [0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0xff, 0, 0, 0];
        assert_eq!((entry.opcode, &entry.as_bytes()[40..52]), (0x19, &golden[..]));
        let range = CopyRange::new(0x0807_0605_0403_0201, 0x0b0b);
        let golden = [1, 2, 3, 4, 5, 6, 7, 8, 0x0a, 0x0b, 0, 0];
        assert_eq!((&range.as_bytes()[8..20], range.nlb()), (&golden[..], 0x0b0b));
        let dword = CopyDword12::from_bits(0x7c50_b300);
        assert_eq!((dword.nr_z(), dword.desfmt(), dword.prinfor()), (0, 3, 0xb));
        assert_eq!((dword.dtype(), dword.prinfow(), dword.fua(), dword.lr()), (5, 0xf, true, false));
    }

    #[test]
    fn dataset_management_counts_its_ranges_from_zero() {
        let entry = SubmissionEntry::deallocate(1, 1, 256);
        assert_eq!(&entry.as_bytes()[40..48], [0xff, 0, 0, 0, 4, 0, 0, 0]);
        assert_eq!((entry.dsm_ranges(), entry.dsm_deallocate()), (256, true));
        let range = DsmRange::new(0x0807_0605_0403_0201, 0x0d0c_0b0a);
        assert_eq!(range.as_bytes(), [0, 0, 0, 0, 10, 11, 12, 13, 1, 2, 3, 4, 5, 6, 7, 8]);
    }
}
