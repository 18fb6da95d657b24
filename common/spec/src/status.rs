//! The status of a completed command (NVM Express Base 2.0, section 3.3.3.2.1; NVM Command Set 1.0, section 3).

use core::fmt;

use crate::macros::{extract, insert};

/// The 15 bits of a Status Field: code, type, retry delay, More and Do Not Retry; the phase tag is not in it.
///
/// Bits 7:0 are the Status Code, 10:8 the Status Code Type, 12:11 the Command Retry Delay, 13 More, 14 Do Not
/// Retry. The constants have only the code and its type; compare them with [`Status::code`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct Status(u16);

impl Status {
    /// From the 15 bits; a 16th bit is dropped.
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits & 0x7fff)
    }

    /// From a Status Code Type (3 bits, higher ones are dropped) and a Status Code.
    pub const fn new(sct: u8, sc: u8) -> Self {
        Self(((sct as u16 & 7) << 8) | sc as u16)
    }

    /// The 15 bits.
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// The status without retry delay, More and Do Not Retry, to compare with the constants.
    #[must_use]
    pub const fn code(self) -> Self {
        Self(self.0 & 0x07ff)
    }

    /// Status Code.
    pub const fn sc(self) -> u8 {
        extract(self.0 as u64, 7, 0) as u8
    }

    /// Status Code Type.
    pub const fn sct(self) -> u8 {
        extract(self.0 as u64, 10, 8) as u8
    }

    /// Command Retry Delay: which of the controller's three delays applies, or 0 for none.
    pub const fn crd(self) -> u8 {
        extract(self.0 as u64, 12, 11) as u8
    }

    /// More: the Error Information log has an entry for this command.
    pub const fn more(self) -> bool {
        extract(self.0 as u64, 13, 13) != 0
    }

    /// Do Not Retry: the same command is expected to fail again.
    pub const fn dnr(self) -> bool {
        extract(self.0 as u64, 14, 14) != 0
    }

    /// This status with Do Not Retry set.
    #[must_use]
    pub const fn with_dnr(self) -> Self {
        Self(insert(self.0 as u64, 1, 14, 14) as u16)
    }

    /// This status with More set.
    #[must_use]
    pub const fn with_more(self) -> Self {
        Self(insert(self.0 as u64, 1, 13, 13) as u16)
    }

    /// Whether the command completed without an error.
    pub const fn is_success(self) -> bool {
        self.code().0 == 0
    }
}

macro_rules! statuses {
    ($($(#[$meta:meta])* $constant:ident = $sct:literal, $sc:literal => $text:literal;)+) => {
        impl Status {
            $(
                #[doc = concat!($text, " (type ", stringify!($sct), ", code ", stringify!($sc), ").")]
                $(#[$meta])*
                pub const $constant: Self = Self::new($sct, $sc);
            )+

            /// The specified name. Command specific codes from 80h have one meaning for Fabrics commands and
            /// another for I/O commands; here both are given, see [`Status::name_in_fabrics`].
            pub const fn name(self) -> Option<&'static str> {
                match (self.sct(), self.sc()) {
                    $(($sct, $sc) => Some($text),)+
                    _ => None,
                }
            }
        }
    };
}

statuses! {
    SUCCESS = 0, 0x00 => "Successful Completion";
    INVALID_OPCODE = 0, 0x01 => "Invalid Command Opcode";
    INVALID_FIELD = 0, 0x02 => "Invalid Field in Command";
    COMMAND_ID_CONFLICT = 0, 0x03 => "Command ID Conflict";
    DATA_TRANSFER_ERROR = 0, 0x04 => "Data Transfer Error";
    ABORTED_POWER_LOSS = 0, 0x05 => "Commands Aborted due to Power Loss Notification";
    INTERNAL_ERROR = 0, 0x06 => "Internal Error";
    ABORT_REQUESTED = 0, 0x07 => "Command Abort Requested";
    ABORTED_SQ_DELETION = 0, 0x08 => "Command Aborted due to SQ Deletion";
    ABORTED_FAILED_FUSED = 0, 0x09 => "Command Aborted due to Failed Fused Command";
    ABORTED_MISSING_FUSED = 0, 0x0a => "Command Aborted due to Missing Fused Command";
    INVALID_NAMESPACE = 0, 0x0b => "Invalid Namespace or Format";
    COMMAND_SEQUENCE_ERROR = 0, 0x0c => "Command Sequence Error";
    INVALID_SGL_SEGMENT = 0, 0x0d => "Invalid SGL Segment Descriptor";
    INVALID_SGL_COUNT = 0, 0x0e => "Invalid Number of SGL Descriptors";
    DATA_SGL_LENGTH_INVALID = 0, 0x0f => "Data SGL Length Invalid";
    METADATA_SGL_LENGTH_INVALID = 0, 0x10 => "Metadata SGL Length Invalid";
    SGL_TYPE_INVALID = 0, 0x11 => "SGL Descriptor Type Invalid";
    INVALID_USE_OF_CMB = 0, 0x12 => "Invalid Use of Controller Memory Buffer";
    PRP_OFFSET_INVALID = 0, 0x13 => "PRP Offset Invalid";
    ATOMIC_WRITE_UNIT_EXCEEDED = 0, 0x14 => "Atomic Write Unit Exceeded";
    OPERATION_DENIED = 0, 0x15 => "Operation Denied";
    SGL_OFFSET_INVALID = 0, 0x16 => "SGL Offset Invalid";
    HOST_ID_INCONSISTENT = 0, 0x18 => "Host Identifier Inconsistent Format";
    KEEP_ALIVE_EXPIRED = 0, 0x19 => "Keep Alive Timer Expired";
    KEEP_ALIVE_TIMEOUT_INVALID = 0, 0x1a => "Keep Alive Timeout Invalid";
    ABORTED_PREEMPT = 0, 0x1b => "Command Aborted due to Preempt and Abort";
    SANITIZE_FAILED = 0, 0x1c => "Sanitize Failed";
    SANITIZE_IN_PROGRESS = 0, 0x1d => "Sanitize In Progress";
    SGL_GRANULARITY_INVALID = 0, 0x1e => "SGL Data Block Granularity Invalid";
    NOT_SUPPORTED_FOR_QUEUE_IN_CMB = 0, 0x1f => "Command Not Supported for Queue in CMB";
    NAMESPACE_WRITE_PROTECTED = 0, 0x20 => "Namespace is Write Protected";
    COMMAND_INTERRUPTED = 0, 0x21 => "Command Interrupted";
    TRANSIENT_TRANSPORT_ERROR = 0, 0x22 => "Transient Transport Error";
    COMMAND_PROHIBITED = 0, 0x23 => "Command Prohibited by Command and Feature Lockdown";
    ADMIN_MEDIA_NOT_READY = 0, 0x24 => "Admin Command Media Not Ready";
    LBA_OUT_OF_RANGE = 0, 0x80 => "LBA Out of Range";
    CAPACITY_EXCEEDED = 0, 0x81 => "Capacity Exceeded";
    NAMESPACE_NOT_READY = 0, 0x82 => "Namespace Not Ready";
    RESERVATION_CONFLICT = 0, 0x83 => "Reservation Conflict";
    FORMAT_IN_PROGRESS = 0, 0x84 => "Format In Progress";

    COMPLETION_QUEUE_INVALID = 1, 0x00 => "Completion Queue Invalid";
    INVALID_QUEUE_ID = 1, 0x01 => "Invalid Queue Identifier";
    INVALID_QUEUE_SIZE = 1, 0x02 => "Invalid Queue Size";
    ABORT_LIMIT_EXCEEDED = 1, 0x03 => "Abort Command Limit Exceeded";
    AER_LIMIT_EXCEEDED = 1, 0x05 => "Asynchronous Event Request Limit Exceeded";
    INVALID_FIRMWARE_SLOT = 1, 0x06 => "Invalid Firmware Slot";
    INVALID_FIRMWARE_IMAGE = 1, 0x07 => "Invalid Firmware Image";
    INVALID_INTERRUPT_VECTOR = 1, 0x08 => "Invalid Interrupt Vector";
    INVALID_LOG_PAGE = 1, 0x09 => "Invalid Log Page";
    INVALID_FORMAT = 1, 0x0a => "Invalid Format";
    FIRMWARE_NEEDS_CONVENTIONAL_RESET = 1, 0x0b => "Firmware Activation Requires Conventional Reset";
    INVALID_QUEUE_DELETION = 1, 0x0c => "Invalid Queue Deletion";
    FEATURE_NOT_SAVEABLE = 1, 0x0d => "Feature Identifier Not Saveable";
    FEATURE_NOT_CHANGEABLE = 1, 0x0e => "Feature Not Changeable";
    FEATURE_NOT_NAMESPACE_SPECIFIC = 1, 0x0f => "Feature Not Namespace Specific";
    FIRMWARE_NEEDS_SUBSYSTEM_RESET = 1, 0x10 => "Firmware Activation Requires NVM Subsystem Reset";
    FIRMWARE_NEEDS_CONTROLLER_RESET = 1, 0x11 => "Firmware Activation Requires Controller Level Reset";
    FIRMWARE_MAXIMUM_TIME_VIOLATION = 1, 0x12 => "Firmware Activation Requires Maximum Time Violation";
    FIRMWARE_ACTIVATION_PROHIBITED = 1, 0x13 => "Firmware Activation Prohibited";
    OVERLAPPING_RANGE = 1, 0x14 => "Overlapping Range";
    NAMESPACE_INSUFFICIENT_CAPACITY = 1, 0x15 => "Namespace Insufficient Capacity";
    NAMESPACE_ID_UNAVAILABLE = 1, 0x16 => "Namespace Identifier Unavailable";
    NAMESPACE_ALREADY_ATTACHED = 1, 0x18 => "Namespace Already Attached";
    NAMESPACE_IS_PRIVATE = 1, 0x19 => "Namespace Is Private";
    NAMESPACE_NOT_ATTACHED = 1, 0x1a => "Namespace Not Attached";
    THIN_PROVISIONING_NOT_SUPPORTED = 1, 0x1b => "Thin Provisioning Not Supported";
    CONTROLLER_LIST_INVALID = 1, 0x1c => "Controller List Invalid";
    SELF_TEST_IN_PROGRESS = 1, 0x1d => "Device Self-test In Progress";
    BOOT_PARTITION_WRITE_PROHIBITED = 1, 0x1e => "Boot Partition Write Prohibited";
    INVALID_CONTROLLER_ID = 1, 0x1f => "Invalid Controller Identifier";
    INVALID_SECONDARY_CONTROLLER_STATE = 1, 0x20 => "Invalid Secondary Controller State";
    INVALID_CONTROLLER_RESOURCE_COUNT = 1, 0x21 => "Invalid Number of Controller Resources";
    INVALID_RESOURCE_ID = 1, 0x22 => "Invalid Resource Identifier";
    SANITIZE_PROHIBITED_BY_PMR = 1, 0x23 => "Sanitize Prohibited While Persistent Memory Region is Enabled";
    ANA_GROUP_ID_INVALID = 1, 0x24 => "ANA Group Identifier Invalid";
    ANA_ATTACH_FAILED = 1, 0x25 => "ANA Attach Failed";
    INSUFFICIENT_CAPACITY = 1, 0x26 => "Insufficient Capacity";
    NAMESPACE_ATTACHMENT_LIMIT_EXCEEDED = 1, 0x27 => "Namespace Attachment Limit Exceeded";
    PROHIBITION_NOT_SUPPORTED = 1, 0x28 => "Prohibition of Command Execution Not Supported";
    COMMAND_SET_NOT_SUPPORTED = 1, 0x29 => "I/O Command Set Not Supported";
    COMMAND_SET_NOT_ENABLED = 1, 0x2a => "I/O Command Set Not Enabled";
    COMMAND_SET_COMBINATION_REJECTED = 1, 0x2b => "I/O Command Set Combination Rejected";
    INVALID_COMMAND_SET = 1, 0x2c => "Invalid I/O Command Set";
    IDENTIFIER_UNAVAILABLE = 1, 0x2d => "Identifier Unavailable";
    CROSS_CONTROLLER_RESET_IN_PROGRESS = 1, 0x3f => "Cross-Controller Reset in Progress";
    CROSS_CONTROLLER_RESET_LOG_FULL = 1, 0x40 => "Cross-Controller Reset Log Page Full";
    CROSS_CONTROLLER_RESET_LIMIT_EXCEEDED = 1, 0x41 => "Cross-Controller Reset Limit Exceeded";
    CONFLICTING_ATTRIBUTES = 1, 0x80 => "Conflicting Attributes or Connect Incompatible Format";
    INVALID_PROTECTION_INFORMATION = 1, 0x81 => "Invalid Protection Information or Connect Controller Busy";
    WRITE_TO_READ_ONLY_RANGE = 1, 0x82 => "Attempted Write to Read Only Range or Connect Invalid Parameters";
    COMMAND_SIZE_LIMIT_EXCEEDED = 1, 0x83 => "Command Size Limit Exceeded or Connect Restart Discovery";
    CONNECT_INVALID_HOST = 1, 0x84 => "Connect Invalid Host";
    INVALID_QUEUE_TYPE = 1, 0x85 => "Invalid Queue Type";
    DISCOVER_RESTART = 1, 0x90 => "Discover Restart";
    AUTHENTICATION_REQUIRED = 1, 0x91 => "Authentication Required";

    WRITE_FAULT = 2, 0x80 => "Write Fault";
    UNRECOVERED_READ_ERROR = 2, 0x81 => "Unrecovered Read Error";
    GUARD_CHECK_ERROR = 2, 0x82 => "End-to-end Guard Check Error";
    APPLICATION_TAG_CHECK_ERROR = 2, 0x83 => "End-to-end Application Tag Check Error";
    REFERENCE_TAG_CHECK_ERROR = 2, 0x84 => "End-to-end Reference Tag Check Error";
    COMPARE_FAILURE = 2, 0x85 => "Compare Failure";
    ACCESS_DENIED = 2, 0x86 => "Access Denied";
    DEALLOCATED_BLOCK = 2, 0x87 => "Deallocated or Unwritten Logical Block";
    STORAGE_TAG_CHECK_ERROR = 2, 0x88 => "End-to-End Storage Tag Check Error";

    INTERNAL_PATH_ERROR = 3, 0x00 => "Internal Path Error";
    ANA_PERSISTENT_LOSS = 3, 0x01 => "Asymmetric Access Persistent Loss";
    ANA_INACCESSIBLE = 3, 0x02 => "Asymmetric Access Inaccessible";
    ANA_TRANSITION = 3, 0x03 => "Asymmetric Access Transition";
    CONTROLLER_PATHING_ERROR = 3, 0x60 => "Controller Pathing Error";
    HOST_PATHING_ERROR = 3, 0x70 => "Host Pathing Error";
    ABORTED_BY_HOST = 3, 0x71 => "Command Aborted By Host";
}

/// What the codes from 80h mean in the completion of a Fabrics command.
impl Status {
    /// Connect Incompatible Format (type 1, code 80h).
    pub const CONNECT_INCOMPATIBLE_FORMAT: Self = Self::new(1, 0x80);
    /// Connect Controller Busy (type 1, code 81h).
    pub const CONNECT_CONTROLLER_BUSY: Self = Self::new(1, 0x81);
    /// Connect Invalid Parameters (type 1, code 82h).
    pub const CONNECT_INVALID_PARAMETERS: Self = Self::new(1, 0x82);
    /// Connect Restart Discovery (type 1, code 83h).
    pub const CONNECT_RESTART_DISCOVERY: Self = Self::new(1, 0x83);

    /// The specified name when a Fabrics command completed with this status.
    pub const fn name_in_fabrics(self) -> Option<&'static str> {
        match self.code() {
            Self::CONNECT_INCOMPATIBLE_FORMAT => Some("Connect Incompatible Format"),
            Self::CONNECT_CONTROLLER_BUSY => Some("Connect Controller Busy"),
            Self::CONNECT_INVALID_PARAMETERS => Some("Connect Invalid Parameters"),
            Self::CONNECT_RESTART_DISCOVERY => Some("Connect Restart Discovery"),
            _ => self.name(),
        }
    }

    /// The specified name when a command of the NVM Command Set completed with this status.
    pub const fn name_in_nvm(self) -> Option<&'static str> {
        match self.code() {
            Self::CONFLICTING_ATTRIBUTES => Some("Conflicting Attributes"),
            Self::INVALID_PROTECTION_INFORMATION => Some("Invalid Protection Information"),
            Self::WRITE_TO_READ_ONLY_RANGE => Some("Attempted Write to Read Only Range"),
            Self::COMMAND_SIZE_LIMIT_EXCEEDED => Some("Command Size Limit Exceeded"),
            _ => self.name(),
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name)?,
            None if self.sct() == 7 => write!(f, "vendor specific status {:#04x}", self.sc())?,
            None => write!(f, "unknown status type {:#x} code {:#04x}", self.sct(), self.sc())?,
        }
        if self.dnr() { f.write_str(" (do not retry)") } else { Ok(()) }
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Status({:#06x} {self})", self.0)
    }
}

impl core::error::Error for Status {}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_status_shows_its_specified_name() {
        assert_eq!(Status::LBA_OUT_OF_RANGE.to_string(), "LBA Out of Range");
        assert_eq!(Status::COMPARE_FAILURE.with_dnr().to_string(), "Compare Failure (do not retry)");
        assert_eq!(Status::new(7, 0xc1).to_string(), "vendor specific status 0xc1");
        assert_eq!(Status::new(0, 0x7f).to_string(), "unknown status type 0x0 code 0x7f");
    }

    #[test]
    fn the_same_code_has_a_name_for_fabrics_and_one_for_nvm() {
        let status = Status::new(1, 0x82).with_dnr();
        assert_eq!(status.name_in_fabrics(), Some("Connect Invalid Parameters"));
        assert_eq!(status.name_in_nvm(), Some("Attempted Write to Read Only Range"));
    }

    #[test]
    fn do_not_retry_and_more_do_not_change_the_code() {
        let status = Status::INVALID_FIELD.with_dnr().with_more();
        assert_eq!(status.bits(), 0x6002);
        assert_eq!(status.code(), Status::INVALID_FIELD);
        assert_ne!(status, Status::INVALID_FIELD);
    }

    proptest! {
        #[test]
        fn any_bits_keep_their_parts(bits: u16) {
            let status = Status::from_bits(bits);
            prop_assert_eq!(status.bits(), bits & 0x7fff);
            prop_assert_eq!(status.code(), Status::new(status.sct(), status.sc()));
            prop_assert!(!status.to_string().is_empty());
            prop_assert_eq!(status.is_success(), status.sc() == 0 && status.sct() == 0);
        }
    }
}
