//! Admin commands (NVM Express Base 2.0, section 5).

use zerocopy::little_endian::U32;

use super::{AdminOpcode, SubmissionEntry};
use crate::log::ControllerInstance;
use crate::macros::bits;

bits! {
    /// Dword 10 of Identify.
    pub struct IdentifyDword10(U32 as u32) {
        /// Controller or Namespace Structure.
        cns / with_cns: u8 = 7:0;
        /// Controller Identifier.
        cntid / with_cntid: u16 = 31:16;
    }
}

bits! {
    /// Dword 11 of Identify.
    pub struct IdentifyDword11(U32 as u32) {
        /// Command Set Identifier.
        csi / with_csi: u8 = 31:24;
    }
}

bits! {
    /// Dword 10 of Get Log Page.
    pub struct LogPageDword10(U32 as u32) {
        /// Log Page Identifier.
        lid / with_lid: u8 = 7:0;
        /// Log Specific Parameter.
        lsp / with_lsp: u8 = 14:8;
        /// Retain Asynchronous Event.
        rae / with_rae: bool = 15:15;
        /// Number of Dwords, zero's based: the lower half.
        numdl_z / with_numdl_z: u16 = 31:16;
    }
}

bits! {
    /// Dword 11 of Get Log Page.
    pub struct LogPageDword11(U32 as u32) {
        /// Number of Dwords, zero's based: the upper half.
        numdu_z / with_numdu_z: u16 = 15:0;
        /// Log Specific Identifier.
        lsi / with_lsi: u16 = 31:16;
    }
}

bits! {
    /// Dword 10 of Get Features and Set Features.
    pub struct FeatureDword10(U32 as u32) {
        /// Feature Identifier.
        fid / with_fid: u8 = 7:0;
        /// Select (Get Features).
        sel / with_sel: u8 = 10:8;
        /// Save (Set Features).
        sv / with_sv: bool = 31:31;
    }
}

bits! {
    /// Dword 10 of Abort.
    pub struct AbortDword10(U32 as u32) {
        /// Submission Queue Identifier of the command to abort.
        sqid / with_sqid: u16 = 15:0;
        /// Command Identifier of the command to abort.
        cid / with_cid: u16 = 31:16;
    }
}

bits! {
    /// Dword 10 of Cross-Controller Reset (Base 2.3, section 5.4.3).
    pub struct CrossControllerResetDword10(U32 as u32) {
        /// Impacted Controller ID.
        icid / with_icid: u16 = 15:0;
        /// Controller Instance Uniquifier of the impacted controller.
        ciu / with_ciu: u8 = 23:16;
    }
}

/// Constructors and accessors of admin commands.
impl SubmissionEntry {
    /// Identify: what `cns` selects, for a namespace and a controller where they apply. The data is 4,096 bytes.
    pub fn identify(cid: u16, cns: u8, nsid: u32, cntid: u16, csi: u8) -> Self {
        Self {
            cdw10: U32::new(IdentifyDword10::default().with_cns(cns).with_cntid(cntid).bits()),
            cdw11: U32::new(IdentifyDword11::default().with_csi(csi).bits()),
            ..Self::new(AdminOpcode::IDENTIFY.0, cid, nsid)
        }
    }

    /// Get Log Page: `length` bytes (a multiple of four, at least four) of a page from `offset`.
    pub fn get_log_page(cid: u16, lid: u8, nsid: u32, offset: u64, length: u32, retain_event: bool) -> Self {
        assert!(length >= 4 && length.is_multiple_of(4), "whole dwords, at least one");
        let numd_z = length / 4 - 1;
        let cdw10 = LogPageDword10::default().with_lid(lid).with_rae(retain_event);
        Self {
            cdw10: U32::new(cdw10.with_numdl_z(numd_z as u16).bits()),
            cdw11: U32::new(LogPageDword11::default().with_numdu_z((numd_z >> 16) as u16).bits()),
            cdw12: U32::new(offset as u32),
            cdw13: U32::new((offset >> 32) as u32),
            ..Self::new(AdminOpcode::GET_LOG_PAGE.0, cid, nsid)
        }
    }

    /// Get Features; `select` is one of the eight values of its field.
    pub fn get_features(cid: u16, fid: u8, select: u8, nsid: u32) -> Self {
        let cdw10 = U32::new(FeatureDword10::default().with_fid(fid).with_sel(select).bits());
        Self { cdw10, ..Self::new(AdminOpcode::GET_FEATURES.0, cid, nsid) }
    }

    /// Set Features to the value of dword 11.
    pub fn set_features(cid: u16, fid: u8, save: bool, cdw11: u32) -> Self {
        Self {
            cdw10: U32::new(FeatureDword10::default().with_fid(fid).with_sv(save).bits()),
            cdw11: U32::new(cdw11),
            ..Self::new(AdminOpcode::SET_FEATURES.0, cid, 0)
        }
    }

    /// Abort a command of a queue.
    pub fn abort(cid: u16, sqid: u16, aborted_cid: u16) -> Self {
        let cdw10 = U32::new(AbortDword10::default().with_sqid(sqid).with_cid(aborted_cid).bits());
        Self { cdw10, ..Self::new(AdminOpcode::ABORT.0, cid, 0) }
    }

    /// Cross-Controller Reset: ends the instance of another controller of this subsystem and host.
    pub fn cross_controller_reset(cid: u16, impacted: ControllerInstance) -> Self {
        let cdw10 = CrossControllerResetDword10::default().with_icid(impacted.cntlid).with_ciu(impacted.ciu);
        Self {
            cdw10: U32::new(cdw10.bits()),
            cdw12: U32::new(impacted.cirn as u32),
            cdw13: U32::new((impacted.cirn >> 32) as u32),
            ..Self::new(AdminOpcode::CROSS_CONTROLLER_RESET.0, cid, 0)
        }
    }

    /// The controller that a Cross-Controller Reset is about.
    pub fn impacted_controller(&self) -> ControllerInstance {
        let dword10 = CrossControllerResetDword10::from_bits(self.cdw10.get());
        let cirn = u64::from(self.cdw13.get()) << 32 | u64::from(self.cdw12.get());
        ControllerInstance { cntlid: dword10.icid(), ciu: dword10.ciu(), cirn }
    }

    /// This Get Log Page with a Log Specific Parameter.
    #[must_use]
    pub fn with_lsp(self, lsp: u8) -> Self {
        Self { cdw10: U32::new(self.log_page().with_lsp(lsp).bits()), ..self }
    }

    /// Asynchronous Event Request.
    pub fn async_event_request(cid: u16) -> Self {
        Self::new(AdminOpcode::ASYNC_EVENT_REQUEST.0, cid, 0)
    }

    /// Keep Alive.
    pub fn keep_alive(cid: u16) -> Self {
        Self::new(AdminOpcode::KEEP_ALIVE.0, cid, 0)
    }

    /// Controller or Namespace Structure, of Identify.
    pub fn cns(&self) -> u8 {
        IdentifyDword10::from_bits(self.cdw10.get()).cns()
    }

    /// Controller Identifier, of Identify.
    pub fn cntid(&self) -> u16 {
        IdentifyDword10::from_bits(self.cdw10.get()).cntid()
    }

    /// Command Set Identifier, of Identify.
    pub fn csi(&self) -> u8 {
        IdentifyDword11::from_bits(self.cdw11.get()).csi()
    }

    /// Log Page Identifier.
    pub fn lid(&self) -> u8 {
        self.log_page().lid()
    }

    /// Log Specific Parameter.
    pub fn lsp(&self) -> u8 {
        self.log_page().lsp()
    }

    /// Retain Asynchronous Event.
    pub fn rae(&self) -> bool {
        self.log_page().rae()
    }

    /// Bytes of a log page that are asked for: NUMD counts dwords from zero. Beyond 16 GiB it saturates.
    pub fn log_length(&self) -> u32 {
        let upper = LogPageDword11::from_bits(self.cdw11.get()).numdu_z();
        let numd_z = u32::from(upper) << 16 | u32::from(self.log_page().numdl_z());
        (u64::from(numd_z) * 4 + 4).try_into().unwrap_or(u32::MAX)
    }

    /// Log Page Offset in bytes.
    pub fn lpo(&self) -> u64 {
        u64::from(self.cdw13.get()) << 32 | u64::from(self.cdw12.get())
    }

    /// Feature Identifier.
    pub fn fid(&self) -> u8 {
        self.feature().fid()
    }

    /// Select, of Get Features.
    pub fn sel(&self) -> u8 {
        self.feature().sel()
    }

    /// Save, of Set Features.
    pub fn sv(&self) -> bool {
        self.feature().sv()
    }

    /// The queue of the command to abort.
    pub fn abort_sqid(&self) -> u16 {
        AbortDword10::from_bits(self.cdw10.get()).sqid()
    }

    /// The identifier of the command to abort.
    pub fn abort_cid(&self) -> u16 {
        AbortDword10::from_bits(self.cdw10.get()).cid()
    }

    fn log_page(&self) -> LogPageDword10 {
        LogPageDword10::from_bits(self.cdw10.get())
    }

    fn feature(&self) -> FeatureDword10 {
        FeatureDword10::from_bits(self.cdw10.get())
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

    #[test]
    fn a_cross_controller_reset_has_its_golden_bytes() {
        let impacted = ControllerInstance { cntlid: 0x0102, ciu: 3, cirn: 0x0405_0607_0809_0a0b };
        let entry = SubmissionEntry::cross_controller_reset(9, impacted);
        assert_eq!(entry.as_bytes()[..2], [0x38, 0x40]);
        assert_eq!(&entry.as_bytes()[40..56], [2, 1, 3, 0, 0, 0, 0, 0, 0xb, 0xa, 9, 8, 7, 6, 5, 4]);
        assert_eq!(entry.impacted_controller(), impacted);
    }
}
