//! Controller properties (NVM Express Base 2.0, section 3.1.3), reached by Property Get and Property Set.

use crate::macros::{bits, open_enum};

/// Offsets of the properties.
pub mod offset {
    /// Controller Capabilities, 8 bytes.
    pub const CAP: u32 = 0x00;
    /// Version, 4 bytes.
    pub const VS: u32 = 0x08;
    /// Controller Configuration, 4 bytes.
    pub const CC: u32 = 0x14;
    /// Controller Status, 4 bytes.
    pub const CSTS: u32 = 0x1c;
    /// NVM Subsystem Reset, 4 bytes.
    pub const NSSR: u32 = 0x20;
    /// Controller Ready Timeouts, 4 bytes.
    pub const CRTO: u32 = 0x68;
}

bits! {
    /// Controller Capabilities.
    pub struct Capabilities(zerocopy::little_endian::U64 as u64) {
        /// Maximum Queue Entries Supported, zero's based.
        mqes_z / with_mqes_z: u16 = 15:0;
        /// Contiguous Queues Required.
        cqr / with_cqr: bool = 16:16;
        /// Arbitration Mechanism Supported.
        ams / with_ams: u8 = 18:17;
        /// Timeout: how long CSTS.RDY may take to change, in units of 500 ms.
        to / with_to: u8 = 31:24;
        /// Doorbell Stride.
        dstrd / with_dstrd: u8 = 35:32;
        /// NVM Subsystem Reset Supported.
        nssrs / with_nssrs: bool = 36:36;
        /// Command Sets Supported: NVM command set.
        css_nvm / with_css_nvm: bool = 37:37;
        /// Command Sets Supported: one or more I/O command sets, by Identify.
        css_iocs / with_css_iocs: bool = 43:43;
        /// Command Sets Supported: no I/O command set.
        css_none / with_css_none: bool = 44:44;
        /// Boot Partition Support.
        bps / with_bps: bool = 45:45;
        /// Controller Power Scope.
        cps / with_cps: u8 = 47:46;
        /// Memory Page Size Minimum: 2^(12 + MPSMIN) bytes.
        mpsmin / with_mpsmin: u8 = 51:48;
        /// Memory Page Size Maximum: 2^(12 + MPSMAX) bytes.
        mpsmax / with_mpsmax: u8 = 55:52;
        /// Persistent Memory Region Supported.
        pmrs / with_pmrs: bool = 56:56;
        /// Controller Memory Buffer Supported.
        cmbs / with_cmbs: bool = 57:57;
        /// NVM Subsystem Shutdown Supported.
        nsss / with_nsss: bool = 58:58;
        /// Controller Ready With Media Supported.
        crwms / with_crwms: bool = 59:59;
        /// Controller Ready Independent of Media Supported.
        crims / with_crims: bool = 60:60;
    }
}

bits! {
    /// Version.
    pub struct Version(zerocopy::little_endian::U32 as u32) {
        /// Tertiary version number.
        ter / with_ter: u8 = 7:0;
        /// Minor version number.
        mnr / with_mnr: u8 = 15:8;
        /// Major version number.
        mjr / with_mjr: u16 = 31:16;
    }
}

bits! {
    /// Controller Configuration.
    pub struct Configuration(zerocopy::little_endian::U32 as u32) {
        /// Enable.
        en / with_en: bool = 0:0;
        /// I/O Command Set Selected.
        css / with_css: u8 = 6:4;
        /// Memory Page Size: 2^(12 + MPS) bytes.
        mps / with_mps: u8 = 10:7;
        /// Arbitration Mechanism Selected.
        ams / with_ams: u8 = 13:11;
        /// Shutdown Notification.
        shn / with_shn: ShutdownNotification = 15:14;
        /// I/O Submission Queue Entry Size, as a power of two.
        iosqes / with_iosqes: u8 = 19:16;
        /// I/O Completion Queue Entry Size, as a power of two.
        iocqes / with_iocqes: u8 = 23:20;
        /// Controller Ready Independent of Media Enable.
        crime / with_crime: bool = 24:24;
    }
}

open_enum! {
    /// CC.SHN.
    pub struct ShutdownNotification(u8) {
        NONE = 0 => "No notification";
        NORMAL = 1 => "Normal shutdown notification";
        ABRUPT = 2 => "Abrupt shutdown notification";
    }
}

bits! {
    /// Controller Status.
    pub struct ControllerStatus(zerocopy::little_endian::U32 as u32) {
        /// Ready.
        rdy / with_rdy: bool = 0:0;
        /// Controller Fatal Status.
        cfs / with_cfs: bool = 1:1;
        /// Shutdown Status.
        shst / with_shst: ShutdownStatus = 3:2;
        /// NVM Subsystem Reset Occurred.
        nssro / with_nssro: bool = 4:4;
        /// Processing Paused.
        pp / with_pp: bool = 5:5;
        /// Shutdown Type: 0 of the controller, 1 of the NVM subsystem.
        st / with_st: bool = 6:6;
    }
}

open_enum! {
    /// CSTS.SHST.
    pub struct ShutdownStatus(u8) {
        NORMAL = 0 => "Normal operation";
        OCCURRING = 1 => "Shutdown processing occurring";
        COMPLETE = 2 => "Shutdown processing complete";
    }
}

/// What a host writes to NSSR to reset the NVM subsystem: "NVMe".
pub const NSSR_RESET: u32 = 0x4e56_4d65;

impl Capabilities {
    /// Entries that a queue can have: MQES counts from zero.
    pub fn mqes(self) -> u32 {
        u32::from(self.mqes_z()) + 1
    }

    /// How long CSTS.RDY may take to change, in milliseconds.
    pub fn timeout_ms(self) -> u32 {
        u32::from(self.to()) * 500
    }
}

impl Version {
    /// NVM Express 2.0.0.
    pub fn v2_0() -> Self {
        Self::from_bits(0x0002_0000)
    }
}

impl core::fmt::Display for Version {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}.{}.{}", self.mjr(), self.mnr(), self.ter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_registers_have_their_golden_bits() {
        let cap = Capabilities::default().with_mqes_z(1023).with_cqr(true).with_to(30).with_css_nvm(true);
        assert_eq!(cap.bits(), 1023 | 1 << 16 | 30 << 24 | 1 << 37);
        assert_eq!((cap.mqes(), cap.timeout_ms()), (1024, 15_000));
        let most = Capabilities::from_bits(u64::MAX);
        assert_eq!((most.mqes(), most.timeout_ms()), (65_536, 127_500));
        let cc = Configuration::default().with_en(true).with_iosqes(6).with_iocqes(4);
        assert_eq!(cc.bits(), 0x0046_0001);
        assert_eq!(cc.with_shn(ShutdownNotification::NORMAL).bits(), 0x0046_4001);
        let csts = ControllerStatus::from_bits(0x9);
        assert!(csts.rdy() && csts.shst() == ShutdownStatus::COMPLETE);
        assert_eq!(std::format!("{}", Version::v2_0()), "2.0.0");
    }
}
