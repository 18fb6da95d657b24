//! Asynchronous events: dword 0 of a completed Asynchronous Event Request (NVM Express Base 2.0, section 5.2.1).

use zerocopy::little_endian::U32;

use super::LogId;
use crate::macros::{bits, open_enum};

open_enum! {
    /// Asynchronous Event Type: says what the information means.
    pub struct AsyncEventType(u8) {
        ERROR = 0 => "Error status";
        SMART = 1 => "SMART / Health status";
        NOTICE = 2 => "Notice";
        IMMEDIATE = 3 => "Immediate";
        IO_COMMAND_SET = 6 => "I/O Command Set specific status";
        VENDOR = 7 => "Vendor specific";
    }
}

open_enum! {
    /// Information of an event of type Error status.
    pub struct ErrorInfo(u8) {
        INVALID_DOORBELL_REGISTER = 0 => "Write to Invalid Doorbell Register";
        INVALID_DOORBELL_VALUE = 1 => "Invalid Doorbell Write Value";
        DIAGNOSTIC_FAILURE = 2 => "Diagnostic Failure";
        PERSISTENT_INTERNAL_ERROR = 3 => "Persistent Internal Error";
        TRANSIENT_INTERNAL_ERROR = 4 => "Transient Internal Error";
        FIRMWARE_IMAGE_LOAD_ERROR = 5 => "Firmware Image Load Error";
    }
}

open_enum! {
    /// Information of an event of type SMART / Health status.
    pub struct SmartInfo(u8) {
        RELIABILITY = 0 => "NVM subsystem Reliability";
        TEMPERATURE_THRESHOLD = 1 => "Temperature Threshold";
        SPARE_BELOW_THRESHOLD = 2 => "Spare Below Threshold";
    }
}

open_enum! {
    /// Information of an event of type Notice.
    pub struct NoticeInfo(u8) {
        NAMESPACE_ATTRIBUTE_CHANGED = 0x00 => "Namespace Attribute Changed";
        FIRMWARE_ACTIVATION_STARTING = 0x01 => "Firmware Activation Starting";
        TELEMETRY_LOG_CHANGED = 0x02 => "Telemetry Log Changed";
        ANA_CHANGE = 0x03 => "Asymmetric Namespace Access Change";
        PREDICTABLE_LATENCY_CHANGE = 0x04 => "Predictable Latency Event Aggregate Log Change";
        LBA_STATUS_ALERT = 0x05 => "LBA Status Information Alert";
        ENDURANCE_GROUP_CHANGE = 0x06 => "Endurance Group Event Aggregate Log Page Change";
        ZONE_DESCRIPTOR_CHANGED = 0xef => "Zone Descriptor Changed";
        DISCOVERY_LOG_CHANGE = 0xf0 => "Discovery Log Page Change";
        CROSS_CONTROLLER_RESET_COMPLETED = 0xf4 => "Cross-Controller Reset Completed";
        LOST_HOST_COMMUNICATION = 0xf5 => "Lost Host Communication";
    }
}

open_enum! {
    /// Information of an event of type Immediate.
    pub struct ImmediateInfo(u8) {
        NORMAL_SUBSYSTEM_SHUTDOWN = 0 => "Normal NVM Subsystem Shutdown";
    }
}

open_enum! {
    /// Information of an event of type I/O Command Set specific status.
    pub struct IoCommandSetInfo(u8) {
        RESERVATION_LOG_AVAILABLE = 0 => "Reservation Log Page Available";
        SANITIZE_COMPLETED = 1 => "Sanitize Operation Completed";
        SANITIZE_COMPLETED_UNEXPECTEDLY = 2 => "Sanitize Operation Completed With Unexpected Deallocation";
    }
}

bits! {
    /// Dword 0 of the completion of an Asynchronous Event Request.
    pub struct AsyncEvent(U32 as u32) {
        /// Asynchronous Event Type.
        event_type / with_event_type: AsyncEventType = 2:0;
        /// Asynchronous Event Information, whose meaning depends on the type.
        info / with_info: u8 = 15:8;
        /// The log page to read, which also clears the event.
        log_id / with_log_id: LogId = 23:16;
    }
}

impl AsyncEvent {
    /// An event of type Notice.
    pub fn notice(info: NoticeInfo, log_id: LogId) -> Self {
        let event = Self::default().with_event_type(AsyncEventType::NOTICE);
        event.with_info(info.0).with_log_id(log_id)
    }

    /// Namespace Attribute Changed: a namespace came, went or changed.
    pub fn namespace_attribute_changed() -> Self {
        Self::notice(NoticeInfo::NAMESPACE_ATTRIBUTE_CHANGED, LogId::CHANGED_NAMESPACE_LIST)
    }

    /// Asymmetric Namespace Access Change.
    pub fn ana_change() -> Self {
        Self::notice(NoticeInfo::ANA_CHANGE, LogId::ANA)
    }

    /// Discovery Log Page Change.
    pub fn discovery_log_change() -> Self {
        Self::notice(NoticeInfo::DISCOVERY_LOG_CHANGE, LogId::DISCOVERY)
    }

    /// Cross-Controller Reset Completed (Base 2.3).
    pub fn cross_controller_reset_completed() -> Self {
        Self::notice(NoticeInfo::CROSS_CONTROLLER_RESET_COMPLETED, LogId::CROSS_CONTROLLER_RESET)
    }

    /// Lost Host Communication (Base 2.3).
    pub fn lost_host_communication() -> Self {
        Self::notice(NoticeInfo::LOST_HOST_COMMUNICATION, LogId::LOST_HOST_COMMUNICATION)
    }

    /// An event of type Error status; its log page is Error Information.
    pub fn error(info: ErrorInfo) -> Self {
        let event = Self::default().with_event_type(AsyncEventType::ERROR);
        event.with_info(info.0).with_log_id(LogId::ERROR_INFORMATION)
    }

    /// An event of type SMART / Health status; its log page is SMART / Health Information.
    pub fn smart(info: SmartInfo) -> Self {
        let event = Self::default().with_event_type(AsyncEventType::SMART);
        event.with_info(info.0).with_log_id(LogId::SMART)
    }

    /// The information of a notice, when this is one.
    pub fn as_notice(self) -> Option<NoticeInfo> {
        (self.event_type() == AsyncEventType::NOTICE).then(|| NoticeInfo(self.info()))
    }

    /// The specified name of the information, when the type and the information are known.
    pub fn name(self) -> Option<&'static str> {
        match self.event_type() {
            AsyncEventType::ERROR => ErrorInfo(self.info()).name(),
            AsyncEventType::SMART => SmartInfo(self.info()).name(),
            AsyncEventType::NOTICE => NoticeInfo(self.info()).name(),
            AsyncEventType::IMMEDIATE => ImmediateInfo(self.info()).name(),
            AsyncEventType::IO_COMMAND_SET => IoCommandSetInfo(self.info()).name(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_notices_have_their_golden_bits() {
        assert_eq!(AsyncEvent::namespace_attribute_changed().bits(), 0x0004_0002);
        assert_eq!(AsyncEvent::ana_change().bits(), 0x000c_0302);
        assert_eq!(AsyncEvent::discovery_log_change().bits(), 0x0070_f002);
        assert_eq!(AsyncEvent::cross_controller_reset_completed().bits(), 0x001e_f402);
        assert_eq!(AsyncEvent::lost_host_communication().bits(), 0x001f_f502);
    }

    #[test]
    fn errors_and_health_name_their_log_page() {
        assert_eq!(AsyncEvent::error(ErrorInfo::PERSISTENT_INTERNAL_ERROR).bits(), 0x0001_0300);
        assert_eq!(AsyncEvent::smart(SmartInfo::TEMPERATURE_THRESHOLD).bits(), 0x0002_0101);
    }

    #[test]
    fn the_same_information_has_a_name_for_each_type() {
        assert_eq!(AsyncEvent::from_bits(0x0002).name(), Some("Namespace Attribute Changed"));
        assert_eq!(AsyncEvent::from_bits(0x0001).name(), Some("NVM subsystem Reliability"));
        assert_eq!(AsyncEvent::from_bits(0x0007).name(), None);
    }

    proptest! {
        #[test]
        fn any_bits_are_an_event(bits: u32) {
            let event = AsyncEvent::from_bits(bits);
            let again = AsyncEvent::default().with_event_type(event.event_type());
            let again = again.with_info(event.info()).with_log_id(event.log_id());
            prop_assert_eq!(again.bits(), bits & 0x00ff_ff07);
            prop_assert_eq!(event.as_notice().is_some(), bits & 7 == 2);
            prop_assert!(event.name().is_none_or(|name| !name.is_empty()));
        }
    }
}
