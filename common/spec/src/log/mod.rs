//! Log pages (NVM Express Base 2.0, section 5.16.1).

mod ana;
mod discovery;
mod effects;
mod event;
mod health;
mod lost_paths;

pub use ana::{AnaGroupDescriptor, AnaLogHeader, AnaLogParameter, AnaState, AnaStateField};
pub use discovery::{
    AddressFamily, ConnectionManagement, DiscoveryCntlid, DiscoveryLogEntry, DiscoveryLogHeader, EntryFlags,
    RdmaProviderType, RdmaQpType, RdmaTsas, SecureChannel, SubsystemType, TcpSecurityType, TcpTsas,
    TransportRequirements, TransportType, split_discovery_log,
};
pub use effects::{CommandEffects, CommandEffectsLog, CommandSubmission};
pub use event::{
    AsyncEvent, AsyncEventType, ErrorInfo, ImmediateInfo, IoCommandSetInfo, NoticeInfo, SmartInfo,
};
pub use health::{
    ActiveFirmware, ChangedNamespaceList, CriticalWarning, ErrorInformation, FirmwareSlot,
    ParameterErrorLocation, Smart,
};
pub use lost_paths::{
    ControllerInstance, CrossControllerResetEntry, CrossControllerResetFlags,
    CrossControllerResetLogParameter, CrossControllerResetResult, CrossControllerResetStatus, LostHostEntry,
    LostPathsHeader,
};

use zerocopy::little_endian::U32;

use crate::macros::{bits, open_enum, wire};

open_enum! {
    /// Log Page Identifier (section 5.16.1).
    pub struct LogId(u8) {
        SUPPORTED_LOG_PAGES = 0x00 => "Supported Log Pages";
        ERROR_INFORMATION = 0x01 => "Error Information";
        SMART = 0x02 => "SMART / Health Information";
        FIRMWARE_SLOT = 0x03 => "Firmware Slot Information";
        CHANGED_NAMESPACE_LIST = 0x04 => "Changed Namespace List";
        COMMAND_EFFECTS = 0x05 => "Commands Supported and Effects";
        DEVICE_SELF_TEST = 0x06 => "Device Self-test";
        TELEMETRY_HOST = 0x07 => "Telemetry Host-Initiated";
        TELEMETRY_CONTROLLER = 0x08 => "Telemetry Controller-Initiated";
        ENDURANCE_GROUP = 0x09 => "Endurance Group Information";
        PREDICTABLE_LATENCY = 0x0a => "Predictable Latency Per NVM Set";
        PREDICTABLE_LATENCY_AGGREGATE = 0x0b => "Predictable Latency Event Aggregate";
        ANA = 0x0c => "Asymmetric Namespace Access";
        PERSISTENT_EVENT = 0x0d => "Persistent Event Log";
        LBA_STATUS = 0x0e => "LBA Status Information";
        ENDURANCE_GROUP_AGGREGATE = 0x0f => "Endurance Group Event Aggregate";
        MEDIA_UNIT_STATUS = 0x10 => "Media Unit Status";
        SUPPORTED_CAPACITY_CONFIGURATION = 0x11 => "Supported Capacity Configuration List";
        FEATURE_EFFECTS = 0x12 => "Feature Identifiers Supported and Effects";
        MI_COMMAND_EFFECTS = 0x13 => "NVMe-MI Commands Supported and Effects";
        LOCKDOWN = 0x14 => "Command and Feature Lockdown";
        BOOT_PARTITION = 0x15 => "Boot Partition";
        ROTATIONAL_MEDIA = 0x16 => "Rotational Media Information";
        CROSS_CONTROLLER_RESET = 0x1e => "Cross-Controller Reset";
        LOST_HOST_COMMUNICATION = 0x1f => "Lost Host Communication";
        DISCOVERY = 0x70 => "Discovery";
        RESERVATION_NOTIFICATION = 0x80 => "Reservation Notification";
        SANITIZE_STATUS = 0x81 => "Sanitize Status";
    }
}

bits! {
    /// LID Supported and Effects (section 5.16.1.1).
    pub struct LogPageSupport(U32 as u32) {
        /// LID Supported.
        lsupp / with_lsupp: bool = 0:0;
        /// Index Offset Supported: the offset may be an index of a data structure.
        ios / with_ios: bool = 1:1;
        /// LID Specific Parameter.
        specific / with_specific: u16 = 31:16;
    }
}

wire! {
    /// Supported Log Pages (section 5.16.1.1): one dword for each log page identifier.
    pub struct SupportedLogPages[1024] {
        /// Indexed by log page identifier.
        0 => pub pages: [LogPageSupport; 256],
    }
}

impl SupportedLogPages {
    /// What the controller says of a log page.
    pub fn get(&self, log_id: LogId) -> LogPageSupport {
        self.pages[usize::from(log_id.0)]
    }

    /// Says that a log page is supported, without an index offset.
    pub fn support(&mut self, log_id: LogId) {
        self.pages[usize::from(log_id.0)] = LogPageSupport::default().with_lsupp(true);
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use zerocopy::IntoBytes;

    use super::*;

    #[test]
    fn a_supported_page_sets_the_first_bit_of_its_dword() {
        let mut pages = SupportedLogPages::zeroed();
        pages.support(LogId::DISCOVERY);
        let offset = 0x70 * 4;
        assert_eq!(pages.as_bytes()[offset..offset + 4], [1, 0, 0, 0]);
        assert_eq!(pages.as_bytes().iter().filter(|byte| **byte != 0).count(), 1);
        assert!(pages.get(LogId::DISCOVERY).lsupp());
        assert!(!pages.get(LogId(0xff)).lsupp());
    }

    #[test]
    fn a_log_page_shows_its_name_and_an_unknown_one_its_number() {
        assert_eq!(LogId::ANA.to_string(), "Asymmetric Namespace Access");
        assert_eq!(LogId(0xc5).to_string(), "LogId 0xc5");
    }
}
