//! Admin commands (NVM Express Base 2.0, section 5).

use zerocopy::little_endian::U32;

use super::{AdminOpcode, SubmissionEntry};

/// Constructors and accessors of admin commands.
impl SubmissionEntry {
    /// Identify: what `cns` selects, for a namespace and a controller where they apply. The data is 4,096 bytes.
    pub fn identify(cid: u16, cns: u8, nsid: u32, cntid: u16, csi: u8) -> Self {
        Self {
            cdw10: U32::new(u32::from(cns) | u32::from(cntid) << 16),
            cdw11: U32::new(u32::from(csi) << 24),
            ..Self::new(AdminOpcode::IDENTIFY.0, cid, nsid)
        }
    }

    /// Get Log Page: `length` bytes (a multiple of four, at least four) of a page from `offset`.
    pub fn get_log_page(cid: u16, lid: u8, nsid: u32, offset: u64, length: u32, retain_event: bool) -> Self {
        assert!(length >= 4 && length.is_multiple_of(4), "whole dwords, at least one");
        let numd_z = length / 4 - 1;
        Self {
            cdw10: U32::new(u32::from(lid) | u32::from(retain_event) << 15 | (numd_z & 0xffff) << 16),
            cdw11: U32::new(numd_z >> 16),
            cdw12: U32::new(offset as u32),
            cdw13: U32::new((offset >> 32) as u32),
            ..Self::new(AdminOpcode::GET_LOG_PAGE.0, cid, nsid)
        }
    }

    /// Get Features.
    pub fn get_features(cid: u16, fid: u8, select: u8, nsid: u32) -> Self {
        let cdw10 = U32::new(u32::from(fid) | u32::from(select & 0b111) << 8);
        Self { cdw10, ..Self::new(AdminOpcode::GET_FEATURES.0, cid, nsid) }
    }

    /// Set Features to the value of dword 11.
    pub fn set_features(cid: u16, fid: u8, save: bool, cdw11: u32) -> Self {
        Self {
            cdw10: U32::new(u32::from(fid) | u32::from(save) << 31),
            cdw11: U32::new(cdw11),
            ..Self::new(AdminOpcode::SET_FEATURES.0, cid, 0)
        }
    }

    /// Abort a command of a queue.
    pub fn abort(cid: u16, sqid: u16, aborted_cid: u16) -> Self {
        let cdw10 = U32::new(u32::from(sqid) | u32::from(aborted_cid) << 16);
        Self { cdw10, ..Self::new(AdminOpcode::ABORT.0, cid, 0) }
    }

    /// Asynchronous Event Request.
    pub fn async_event_request(cid: u16) -> Self {
        Self::new(AdminOpcode::ASYNC_EVENT_REQUEST.0, cid, 0)
    }

    /// Keep Alive.
    pub fn keep_alive(cid: u16) -> Self {
        Self::new(AdminOpcode::KEEP_ALIVE.0, cid, 0)
    }

    /// Whether it is an Asynchronous Event Request.
    pub fn is_async_event_request(&self) -> bool {
        self.opcode == AdminOpcode::ASYNC_EVENT_REQUEST.0
    }

    /// Controller or Namespace Structure, of Identify.
    pub fn cns(&self) -> u8 {
        self.cdw10.get() as u8
    }

    /// Controller Identifier, of Identify.
    pub fn cntid(&self) -> u16 {
        (self.cdw10.get() >> 16) as u16
    }

    /// Command Set Identifier, of Identify.
    pub fn csi(&self) -> u8 {
        (self.cdw11.get() >> 24) as u8
    }

    /// Log Page Identifier.
    pub fn lid(&self) -> u8 {
        self.cdw10.get() as u8
    }

    /// Log Specific Parameter.
    pub fn lsp(&self) -> u8 {
        (self.cdw10.get() >> 8 & 0x7f) as u8
    }

    /// Retain Asynchronous Event.
    pub fn rae(&self) -> bool {
        self.cdw10.get() >> 15 & 1 != 0
    }

    /// Bytes of a log page that are asked for: NUMD counts dwords from zero. Beyond 16 GiB it saturates.
    pub fn log_length(&self) -> u32 {
        let numd_z = (self.cdw11.get() & 0xffff) << 16 | self.cdw10.get() >> 16;
        (u64::from(numd_z) * 4 + 4).try_into().unwrap_or(u32::MAX)
    }

    /// Log Page Offset in bytes.
    pub fn lpo(&self) -> u64 {
        u64::from(self.cdw13.get()) << 32 | u64::from(self.cdw12.get())
    }

    /// Feature Identifier.
    pub fn fid(&self) -> u8 {
        self.cdw10.get() as u8
    }

    /// Select, of Get Features.
    pub fn sel(&self) -> u8 {
        (self.cdw10.get() >> 8 & 0b111) as u8
    }

    /// Save, of Set Features.
    pub fn sv(&self) -> bool {
        self.cdw10.get() >> 31 != 0
    }

    /// The queue of the command to abort.
    pub fn abort_sqid(&self) -> u16 {
        self.cdw10.get() as u16
    }

    /// The identifier of the command to abort.
    pub fn abort_cid(&self) -> u16 {
        (self.cdw10.get() >> 16) as u16
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    #[test]
    fn identify_has_its_golden_bytes() {
        let entry = SubmissionEntry::identify(9, 0x06, 0xa, 0x1234, 2);
        let bytes = entry.as_bytes();
        assert_eq!(&bytes[..8], [0x06, 0x40, 9, 0, 0xa, 0, 0, 0]);
        assert_eq!(&bytes[40..48], [6, 0, 0x34, 0x12, 0, 0, 0, 2]);
        assert_eq!((entry.cns(), entry.cntid(), entry.csi()), (6, 0x1234, 2));
    }

    #[test]
    fn get_log_page_counts_dwords_from_zero() {
        let entry = SubmissionEntry::get_log_page(1, 0x70, 0, 0x1_0000_0400, 0x40000 + 4, true);
        assert_eq!(&entry.as_bytes()[40..56], [0x70, 0x80, 0, 0, 1, 0, 0, 0, 0, 4, 0, 0, 1, 0, 0, 0]);
        assert_eq!((entry.lid(), entry.rae(), entry.log_length()), (0x70, true, 0x40004));
        assert_eq!((entry.lpo(), entry.lsp()), (0x1_0000_0400, 0));
        let mut all = entry;
        (all.cdw10, all.cdw11) = (U32::new(u32::MAX), U32::new(u32::MAX));
        assert_eq!(all.log_length(), u32::MAX);
    }

    #[test]
    fn features_and_abort_have_their_golden_bytes() {
        let set = SubmissionEntry::set_features(1, 0x07, true, 0x0003_0003);
        assert_eq!(&set.as_bytes()[40..48], [7, 0, 0, 0x80, 3, 0, 3, 0]);
        assert_eq!((set.fid(), set.sv()), (7, true));
        let get = SubmissionEntry::get_features(1, 0x0b, 3, 0);
        assert_eq!(&get.as_bytes()[40..44], [0x0b, 3, 0, 0]);
        assert_eq!((get.fid(), get.sel()), (0x0b, 3));
        let abort = SubmissionEntry::abort(1, 2, 0x0304);
        assert_eq!(&abort.as_bytes()[40..44], [2, 0, 4, 3]);
        assert_eq!((abort.abort_sqid(), abort.abort_cid()), (2, 0x0304));
    }
}
