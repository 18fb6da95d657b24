//! Feature identifiers and the values of features (NVM Express Base 2.0, section 5.27.1).
//!
//! A feature's value travels in dword 11 of a Set Features command and in dword 0 of the completion of a Get
//! Features command, unless the feature says that it is a data structure.

use core::num::NonZeroU16;

use zerocopy::little_endian::U32;

use crate::macros::{bits, open_enum, wire};

open_enum! {
    /// Feature Identifier (section 5.27.1).
    pub struct FeatureId(u8) {
        ARBITRATION = 0x01 => "Arbitration";
        POWER_MANAGEMENT = 0x02 => "Power Management";
        LBA_RANGE_TYPE = 0x03 => "LBA Range Type";
        TEMPERATURE_THRESHOLD = 0x04 => "Temperature Threshold";
        ERROR_RECOVERY = 0x05 => "Error Recovery";
        VOLATILE_WRITE_CACHE = 0x06 => "Volatile Write Cache";
        NUMBER_OF_QUEUES = 0x07 => "Number of Queues";
        INTERRUPT_COALESCING = 0x08 => "Interrupt Coalescing";
        INTERRUPT_VECTOR_CONFIGURATION = 0x09 => "Interrupt Vector Configuration";
        WRITE_ATOMICITY = 0x0a => "Write Atomicity Normal";
        ASYNC_EVENT_CONFIGURATION = 0x0b => "Asynchronous Event Configuration";
        AUTONOMOUS_POWER_STATE_TRANSITION = 0x0c => "Autonomous Power State Transition";
        HOST_MEMORY_BUFFER = 0x0d => "Host Memory Buffer";
        TIMESTAMP = 0x0e => "Timestamp";
        KEEP_ALIVE_TIMER = 0x0f => "Keep Alive Timer";
        HOST_CONTROLLED_THERMAL_MANAGEMENT = 0x10 => "Host Controlled Thermal Management";
        NON_OPERATIONAL_POWER_STATE = 0x11 => "Non-Operational Power State Config";
        READ_RECOVERY_LEVEL = 0x12 => "Read Recovery Level Config";
        PREDICTABLE_LATENCY_MODE_CONFIG = 0x13 => "Predictable Latency Mode Config";
        PREDICTABLE_LATENCY_MODE_WINDOW = 0x14 => "Predictable Latency Mode Window";
        LBA_STATUS_INFORMATION = 0x15 => "LBA Status Information Report Interval";
        HOST_BEHAVIOR_SUPPORT = 0x16 => "Host Behavior Support";
        SANITIZE_CONFIG = 0x17 => "Sanitize Config";
        ENDURANCE_GROUP_EVENT_CONFIGURATION = 0x18 => "Endurance Group Event Configuration";
        IO_COMMAND_SET_PROFILE = 0x19 => "I/O Command Set Profile";
        SPINUP_CONTROL = 0x1a => "Spinup Control";
        ENHANCED_CONTROLLER_METADATA = 0x7d => "Enhanced Controller Metadata";
        CONTROLLER_METADATA = 0x7e => "Controller Metadata";
        NAMESPACE_METADATA = 0x7f => "Namespace Metadata";
        SOFTWARE_PROGRESS_MARKER = 0x80 => "Software Progress Marker";
        HOST_IDENTIFIER = 0x81 => "Host Identifier";
        RESERVATION_NOTIFICATION_MASK = 0x82 => "Reservation Notification Mask";
        RESERVATION_PERSISTENCE = 0x83 => "Reservation Persistence";
        NAMESPACE_WRITE_PROTECTION = 0x84 => "Namespace Write Protection Config";
    }
}

open_enum! {
    /// Select: which value of a feature Get Features returns (section 5.15).
    pub struct FeatureSelect(u8) {
        CURRENT = 0 => "Current";
        DEFAULT = 1 => "Default";
        SAVED = 2 => "Saved";
        SUPPORTED_CAPABILITIES = 3 => "Supported Capabilities";
    }
}

bits! {
    /// What Get Features returns in dword 0 for Supported Capabilities (section 5.15.2).
    pub struct FeatureCapabilities(U32 as u32) {
        /// The feature has a saved value.
        saveable / with_saveable: bool = 0:0;
        /// The feature's value is per namespace.
        namespace_specific / with_namespace_specific: bool = 1:1;
        /// Set Features can change the value.
        changeable / with_changeable: bool = 2:2;
    }
}

bits! {
    /// Arbitration (section 5.27.1.1).
    pub struct Arbitration(U32 as u32) {
        /// Arbitration Burst, as a power of two of commands; 7 is no limit.
        ab / with_ab: u8 = 2:0;
        /// Low Priority Weight, zero's based.
        lpw_z / with_lpw_z: u8 = 15:8;
        /// Medium Priority Weight, zero's based.
        mpw_z / with_mpw_z: u8 = 23:16;
        /// High Priority Weight, zero's based.
        hpw_z / with_hpw_z: u8 = 31:24;
    }
}

bits! {
    /// Power Management (section 5.27.1.2).
    pub struct PowerManagement(U32 as u32) {
        /// Power State: an index of the controller's power state descriptors.
        ps / with_ps: u8 = 4:0;
        /// Workload Hint.
        wh / with_wh: u8 = 7:5;
    }
}

bits! {
    /// Temperature Threshold (section 5.27.1.3).
    pub struct TemperatureThreshold(U32 as u32) {
        /// Temperature Threshold, in kelvins.
        tmpth / with_tmpth: u16 = 15:0;
        /// Threshold Temperature Select: 0 is the composite temperature, 1 to 8 a sensor, Fh all of them.
        tmpsel / with_tmpsel: u8 = 19:16;
        /// Threshold Type Select: 0 is over, 1 is under temperature.
        thsel / with_thsel: u8 = 21:20;
    }
}

bits! {
    /// Error Recovery (NVM Command Set 1.0, section 4.1.3.2); its value is per namespace.
    pub struct ErrorRecovery(U32 as u32) {
        /// Time Limited Error Recovery, in units of 100 ms; 0 is no limit.
        tler / with_tler: u16 = 15:0;
        /// Deallocated or Unwritten Logical Block Error Enable.
        dulbe / with_dulbe: bool = 16:16;
    }
}

bits! {
    /// Volatile Write Cache (section 5.27.1.4).
    pub struct VolatileWriteCache(U32 as u32) {
        /// Volatile Write Cache Enable.
        wce / with_wce: bool = 0:0;
    }
}

bits! {
    /// Number of Queues (section 5.27.1.5): requested in Set Features, allocated in its completion.
    ///
    /// The Admin Queue is not counted. FFFFh is not a number that a host may request; see
    /// [`NumberOfQueues::is_valid_request`].
    pub struct NumberOfQueues(U32 as u32) {
        /// I/O Submission Queues requested (NSQR) or allocated (NSQA), zero's based.
        nsq_z / with_nsq_z: u16 = 15:0;
        /// I/O Completion Queues requested (NCQR) or allocated (NCQA), zero's based.
        ncq_z / with_ncq_z: u16 = 31:16;
    }
}

impl NumberOfQueues {
    /// From the counts of I/O submission and completion queues; at least one of each exists.
    pub fn from_counts(submission: NonZeroU16, completion: NonZeroU16) -> Self {
        Self::default().with_nsq_z(submission.get() - 1).with_ncq_z(completion.get() - 1)
    }

    /// Number of I/O submission queues, 1 to 65536.
    pub fn nsq(self) -> u32 {
        u32::from(self.nsq_z()) + 1
    }

    /// Number of I/O completion queues, 1 to 65536.
    pub fn ncq(self) -> u32 {
        u32::from(self.ncq_z()) + 1
    }

    /// Whether a host may request this; a controller answers Invalid Field otherwise.
    pub fn is_valid_request(self) -> bool {
        self.nsq_z() != u16::MAX && self.ncq_z() != u16::MAX
    }
}

bits! {
    /// Interrupt Coalescing (NVMe over PCIe Transport 1.0; not used on fabrics).
    pub struct InterruptCoalescing(U32 as u32) {
        /// Aggregation Threshold: completions, zero's based.
        thr_z / with_thr_z: u8 = 7:0;
        /// Aggregation Time, in units of 100 µs.
        time / with_time: u8 = 15:8;
    }
}

bits! {
    /// Interrupt Vector Configuration (NVMe over PCIe Transport 1.0; not used on fabrics).
    pub struct InterruptVectorConfiguration(U32 as u32) {
        /// Interrupt Vector.
        iv / with_iv: u16 = 15:0;
        /// Coalescing Disable.
        cd / with_cd: bool = 16:16;
    }
}

bits! {
    /// Write Atomicity Normal (NVM Command Set 1.0, section 4.1.3.5).
    pub struct WriteAtomicity(U32 as u32) {
        /// Disable Normal: only the atomicity on power fail is needed.
        dn / with_dn: bool = 0:0;
    }
}

bits! {
    /// Asynchronous Event Configuration (section 5.27.1.8): a set bit asks for that event.
    pub struct AsyncEventConfiguration(U32 as u32) {
        /// The critical warnings of the SMART log which are reported, bit by bit.
        smart_critical_warnings / with_smart_critical_warnings: u8 = 7:0;
        /// Namespace Attribute Notices.
        namespace_attribute_notices / with_namespace_attribute_notices: bool = 8:8;
        /// Firmware Activation Notices.
        firmware_activation_notices / with_firmware_activation_notices: bool = 9:9;
        /// Telemetry Log Notices.
        telemetry_log_notices / with_telemetry_log_notices: bool = 10:10;
        /// Asymmetric Namespace Access Change Notices.
        ana_change_notices / with_ana_change_notices: bool = 11:11;
        /// Predictable Latency Event Aggregate Log Change Notices.
        predictable_latency_notices / with_predictable_latency_notices: bool = 12:12;
        /// LBA Status Information Alert Notices.
        lba_status_notices / with_lba_status_notices: bool = 13:13;
        /// Endurance Group Event Aggregate Log Change Notices.
        endurance_group_notices / with_endurance_group_notices: bool = 14:14;
        /// Normal NVM Subsystem Shutdown.
        normal_shutdown_notices / with_normal_shutdown_notices: bool = 15:15;
        /// Cross-Controller Reset Completed Notices (Base 2.3).
        cross_controller_reset_notices / with_cross_controller_reset_notices: bool = 20:20;
        /// Lost Host Communication Notices (Base 2.3).
        lost_host_notices / with_lost_host_notices: bool = 21:21;
        /// Zone Descriptor Changed Notices (Zoned Namespace Command Set).
        zone_descriptor_notices / with_zone_descriptor_notices: bool = 27:27;
        /// Discovery Log Page Change Notification.
        discovery_log_notices / with_discovery_log_notices: bool = 31:31;
    }
}

bits! {
    /// I/O Command Set Profile (section 5.27.1.21).
    pub struct IoCommandSetProfile(U32 as u32) {
        /// I/O Command Set Combination Index: which vector of CNS 1Ch is in use.
        iocsci / with_iocsci: u16 = 8:0;
    }
}

bits! {
    /// Reservation Notification Mask (section 5.27.1.26): a set bit masks the notification.
    pub struct ReservationNotificationMask(U32 as u32) {
        /// Mask Registration Preempted Notification.
        regpre / with_regpre: bool = 1:1;
        /// Mask Reservation Released Notification.
        resrel / with_resrel: bool = 2:2;
        /// Mask Reservation Preempted Notification.
        respre / with_respre: bool = 3:3;
    }
}

bits! {
    /// Reservation Persistence (section 5.27.1.27).
    pub struct ReservationPersistence(U32 as u32) {
        /// Persist Through Power Loss.
        ptpl / with_ptpl: bool = 0:0;
    }
}

open_enum! {
    /// Timestamp Origin (section 5.27.1.11).
    pub struct TimestampOrigin(u8) {
        CONTROLLER_RESET = 0 => "Cleared to zero by a Controller Level Reset";
        SET_FEATURES = 1 => "Set by a Set Features command";
    }
}

bits! {
    /// Attributes of a timestamp (section 5.27.1.11).
    pub struct TimestampAttributes(u8 as u8) {
        /// Synch: the controller may have stopped counting at times.
        synch / with_synch: bool = 0:0;
        /// Timestamp Origin.
        origin / with_origin: TimestampOrigin = 3:1;
    }
}

wire! {
    /// Timestamp (section 5.27.1.11): the data of this feature.
    #[derive(Copy)]
    pub struct Timestamp[8] {
        /// Milliseconds, 48 bits; see [`Timestamp::milliseconds`].
        0 => value: [u8; 6],
        /// Where the value comes from; reserved in Set Features.
        6 => pub attributes: TimestampAttributes,
        7 => reserved7: u8,
    }
}

impl Timestamp {
    /// The largest value: 48 bits of milliseconds.
    pub const MILLISECONDS_MAX: u64 = (1 << 48) - 1;

    /// Milliseconds since 1 January 1970 UTC; the value wraps at 48 bits, in the year 10889.
    pub fn new(milliseconds: u64, attributes: TimestampAttributes) -> Self {
        let [b0, b1, b2, b3, b4, b5, ..] = milliseconds.to_le_bytes();
        Self { value: [b0, b1, b2, b3, b4, b5], attributes, ..Self::zeroed() }
    }

    /// Milliseconds since 1 January 1970 UTC, or since the reset when nobody set the time.
    pub fn milliseconds(&self) -> u64 {
        let [b0, b1, b2, b3, b4, b5] = self.value;
        u64::from_le_bytes([b0, b1, b2, b3, b4, b5, 0, 0])
    }
}

wire! {
    /// Host Behavior Support (section 5.27.1.18): the data of this feature.
    pub struct HostBehaviorSupport[512] {
        /// Advanced Command Retry Enable: 1 when the host honours the Command Retry Delay.
        0 => pub acre: u8,
        /// Extended Telemetry Data Area 4 Supported.
        1 => pub etdas: u8,
        /// LBA Format Extension Enable.
        2 => pub lbafee: u8,
        3 => reserved3: [u8; 509],
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use proptest::prelude::*;
    use zerocopy::{FromBytes, IntoBytes};

    use super::*;

    #[test]
    fn a_feature_shows_its_name_and_an_unknown_one_its_number() {
        assert_eq!(FeatureId(0x07).to_string(), "Number of Queues");
        assert_eq!(FeatureId(0xc0).to_string(), "FeatureId 0xc0");
    }

    #[test]
    fn queue_counts_are_zeros_based_on_the_wire_only() {
        let count = |count| NonZeroU16::new(count).unwrap();
        let queues = NumberOfQueues::from_counts(count(4), count(64));
        assert_eq!(queues.as_bytes(), [3, 0, 63, 0]);
        assert_eq!((queues.nsq(), queues.ncq()), (4, 64));
        assert_eq!(NumberOfQueues::from_counts(count(1), count(1)).bits(), 0);
    }

    #[test]
    fn a_request_for_65536_queues_is_invalid_and_for_65535_is_not() {
        assert!(!NumberOfQueues::from_bits(0x0000_ffff).is_valid_request());
        assert!(!NumberOfQueues::from_bits(0xffff_0000).is_valid_request());
        assert!(NumberOfQueues::from_bits(0xfffe_fffe).is_valid_request());
        assert_eq!(NumberOfQueues::from_bits(0xffff_ffff).nsq(), 65536);
    }

    #[test]
    fn an_event_configuration_has_its_golden_bits() {
        let config = AsyncEventConfiguration::default()
            .with_smart_critical_warnings(0x1f)
            .with_namespace_attribute_notices(true)
            .with_discovery_log_notices(true);
        assert_eq!(config.bits(), 0x8000_011f);
    }

    #[test]
    fn a_timestamp_has_its_golden_bytes() {
        let attributes = TimestampAttributes::default().with_origin(TimestampOrigin::SET_FEATURES);
        let timestamp = Timestamp::new(0x0102_0304_0506, attributes.with_synch(true));
        assert_eq!(timestamp.as_bytes(), [6, 5, 4, 3, 2, 1, 0b011, 0]);
    }

    #[test]
    fn a_temperature_threshold_has_its_golden_bits() {
        let threshold = TemperatureThreshold::default().with_tmpth(0x0157).with_tmpsel(0xf).with_thsel(1);
        assert_eq!(threshold.bits(), 0x001f_0157);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_timestamp_and_its_value_survives(bytes: [u8; 8], milliseconds: u64) {
            let timestamp = Timestamp::read_from_bytes(&bytes).unwrap();
            let again = Timestamp::new(timestamp.milliseconds(), timestamp.attributes);
            prop_assert_eq!(&again.as_bytes()[..7], &bytes[..7]);
            let wrapped = Timestamp::new(milliseconds, timestamp.attributes).milliseconds();
            prop_assert_eq!(wrapped, milliseconds & Timestamp::MILLISECONDS_MAX);
        }

        #[test]
        fn counts_survive_the_wire(submission: NonZeroU16, completion: NonZeroU16) {
            let queues = NumberOfQueues::from_counts(submission, completion);
            prop_assert_eq!(queues.nsq(), u32::from(submission.get()));
            prop_assert_eq!(queues.ncq(), u32::from(completion.get()));
            prop_assert!(queues.is_valid_request());
        }
    }
}
