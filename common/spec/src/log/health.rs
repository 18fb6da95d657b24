//! Error Information, SMART / Health, Firmware Slot and Changed Namespace List log pages.

use zerocopy::little_endian::{U16, U32, U64, U128};

use super::TransportType;
use crate::macros::{bits, wire};
use crate::status::Status;
use crate::text::AsciiField;

bits! {
    /// Where the error is in the command's parameters .
    pub struct ParameterErrorLocation(U16 as u16) {
        /// Byte of the command.
        byte / with_byte: u8 = 7:0;
        /// Bit of that byte.
        bit / with_bit: u8 = 10:8;
    }
}

impl ParameterErrorLocation {
    /// The error is not specific to a parameter, or its place is not known.
    pub fn none() -> Self {
        Self::from_bits(u16::MAX)
    }
}

wire! {
    /// An entry of the Error Information log page (section 5.16.1.2); newest first.
    pub struct ErrorInformation[64] {
        /// Error Count: a unique number, from 1; 0 is an unused entry.
        0 => pub error_count: U64,
        /// Submission Queue Identifier of the command, or FFFFh when no command is to blame.
        8 => pub sqid: U16,
        /// Command Identifier of the command, or FFFFh when no command is to blame.
        10 => pub cid: U16,
        /// The Status Field in bits 15:1; bit 0 may be the phase tag.
        12 => pub status_field: U16,
        /// Parameter Error Location.
        14 => pub parameter_error_location: ParameterErrorLocation,
        /// The first logical block that had the error, when there is one.
        16 => pub lba: U64,
        /// Namespace Identifier of the namespace that the error belongs to.
        24 => pub nsid: U32,
        /// Vendor Specific Information Available: a log page identifier from 80h, or 0.
        28 => pub vendor_information: u8,
        /// Transport Type of the controller.
        29 => pub trtype: TransportType,
        30 => reserved30: [u8; 2],
        /// Command Specific Information.
        32 => pub command_specific: U64,
        /// Transport Type Specific Information.
        40 => pub transport_specific: U16,
        42 => reserved42: [u8; 22],
    }
}

impl ErrorInformation {
    /// Value of `sqid` and `cid` when the error is not specific to a command.
    pub const NO_COMMAND: u16 = u16::MAX;

    /// The status of the command.
    pub fn status(&self) -> Status {
        Status::from_bits(self.status_field.get() >> 1)
    }

    /// Sets the status of the command.
    pub fn set_status(&mut self, status: Status) {
        self.status_field = U16::new(status.bits() << 1);
    }
}

bits! {
    /// Critical Warning of the SMART log (section 5.16.1.3).
    pub struct CriticalWarning(u8 as u8) {
        /// The available spare is below its threshold.
        spare_low / with_spare_low: bool = 0:0;
        /// A temperature is beyond its threshold.
        temperature / with_temperature: bool = 1:1;
        /// The NVM subsystem's reliability is degraded.
        reliability_degraded / with_reliability_degraded: bool = 2:2;
        /// All of the media is read only.
        read_only / with_read_only: bool = 3:3;
        /// The volatile memory backup device has failed.
        backup_failed / with_backup_failed: bool = 4:4;
        /// The Persistent Memory Region is read only or unreliable.
        pmr_unreliable / with_pmr_unreliable: bool = 5:5;
    }
}

wire! {
    /// SMART / Health Information log page (section 5.16.1.3).
    pub struct Smart[512] {
        /// Critical Warning.
        0 => pub critical_warning: CriticalWarning,
        /// Composite Temperature, in kelvins.
        1 => pub composite_temperature: U16,
        /// Available Spare, in percent.
        3 => pub available_spare: u8,
        /// Available Spare Threshold, in percent.
        4 => pub available_spare_threshold: u8,
        /// Percentage Used of the expected life; may exceed 100.
        5 => pub percentage_used: u8,
        /// Endurance Group Critical Warning Summary.
        6 => pub endurance_group_warning: u8,
        7 => reserved7: [u8; 25],
        /// Data Units Read, in thousands of 512 bytes, rounded up.
        32 => pub data_units_read: U128,
        /// Data Units Written, in thousands of 512 bytes, rounded up.
        48 => pub data_units_written: U128,
        /// Host Read Commands that completed.
        64 => pub host_reads: U128,
        /// Host Write Commands that completed.
        80 => pub host_writes: U128,
        /// Controller Busy Time, in minutes.
        96 => pub controller_busy_time: U128,
        /// Power Cycles.
        112 => pub power_cycles: U128,
        /// Power On Hours.
        128 => pub power_on_hours: U128,
        /// Unsafe Shutdowns.
        144 => pub unsafe_shutdowns: U128,
        /// Media and Data Integrity Errors.
        160 => pub media_errors: U128,
        /// Number of Error Information Log Entries over the life of the controller.
        176 => pub error_log_entries: U128,
        /// Warning Composite Temperature Time, in minutes.
        192 => pub warning_temperature_time: U32,
        /// Critical Composite Temperature Time, in minutes.
        196 => pub critical_temperature_time: U32,
        /// Temperature Sensors 1 to 8, in kelvins; 0 when a sensor is not there.
        200 => pub temperature_sensors: [U16; 8],
        /// Thermal Management Temperature 1 and 2 Transition Counts.
        216 => pub thermal_transition_count: [U32; 2],
        /// Total Time for Thermal Management Temperature 1 and 2, in seconds.
        224 => pub thermal_total_time: [U32; 2],
        232 => reserved232: [u8; 280],
    }
}

impl Smart {
    /// A count of bytes in the unit of `data_units_read` and `data_units_written`: thousands of 512 bytes,
    /// rounded up.
    pub const fn data_units(bytes: u128) -> u128 {
        bytes.div_ceil(512 * 1000)
    }
}

bits! {
    /// Active Firmware Info (section 5.16.1.4).
    pub struct ActiveFirmware(u8 as u8) {
        /// Slot of the firmware that runs, from 1.
        active_slot / with_active_slot: u8 = 2:0;
        /// Slot that the next Controller Level Reset activates; 0 when not indicated.
        next_slot / with_next_slot: u8 = 6:4;
    }
}

wire! {
    /// Firmware Slot Information log page (section 5.16.1.4).
    pub struct FirmwareSlot[512] {
        /// Active Firmware Info.
        0 => pub afi: ActiveFirmware,
        1 => reserved1: [u8; 7],
        /// Firmware Revision for Slot 1 to 7; all bytes zero when a slot is empty or not there.
        8 => pub frs: [AsciiField<8>; 7],
        64 => reserved64: [u8; 448],
    }
}

wire! {
    /// Changed Namespace List log page (section 5.16.1.5): the namespaces whose attributes changed since the
    /// last read, in increasing order, padded with zeroes.
    pub struct ChangedNamespaceList[4096] {
        /// Namespace identifiers.
        0 => pub nsids: [U32; 1024],
    }
}

impl ChangedNamespaceList {
    /// How many identifiers the list holds.
    pub const COUNT_MAX: usize = 1024;

    /// The first entry when more namespaces changed than the list holds.
    pub const TOO_MANY: u32 = u32::MAX;

    /// The list of these identifiers, which are in increasing order; too many of them become
    /// [`Self::TOO_MANY`].
    pub fn from_nsids(nsids: impl IntoIterator<Item = u32>) -> Self {
        let mut list = Self::zeroed();
        for (index, nsid) in nsids.into_iter().enumerate() {
            let Some(entry) = list.nsids.get_mut(index) else {
                return Self::too_many();
            };
            *entry = U32::new(nsid);
        }
        list
    }

    /// The list that says that more namespaces changed than it holds.
    pub fn too_many() -> Self {
        let mut list = Self::zeroed();
        list.nsids[0] = U32::new(Self::TOO_MANY);
        list
    }

    /// Whether more namespaces changed than the list holds: all have to be looked at again.
    pub fn is_too_many(&self) -> bool {
        self.nsids[0].get() == Self::TOO_MANY
    }

    /// The identifiers up to the padding; none when [`Self::is_too_many`].
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.nsids.iter().map(|nsid| nsid.get()).take_while(|nsid| !matches!(*nsid, 0 | Self::TOO_MANY))
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use proptest::prelude::*;
    use zerocopy::{FromBytes, IntoBytes};

    use super::*;

    #[test]
    fn an_error_entry_has_its_golden_bytes() {
        let mut entry = ErrorInformation {
            error_count: U64::new(9),
            sqid: U16::new(1),
            cid: U16::new(0x0203),
            parameter_error_location: ParameterErrorLocation::default().with_byte(40).with_bit(3),
            nsid: U32::new(1),
            trtype: TransportType::RDMA,
            ..ErrorInformation::zeroed()
        };
        entry.set_status(Status::INVALID_FIELD.with_dnr());
        let golden =
            [9, 0, 0, 0, 0, 0, 0, 0, 1, 0, 3, 2, 0x04, 0x80, 40, 3, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1];
        assert_eq!(entry.as_bytes()[..30], golden);
        assert!(entry.as_bytes()[30..].iter().all(|byte| *byte == 0));
        assert_eq!(entry.status().code(), Status::INVALID_FIELD);
    }

    #[test]
    fn data_units_round_up() {
        assert_eq!(Smart::data_units(0), 0);
        assert_eq!(Smart::data_units(1), 1);
        assert_eq!(Smart::data_units(512_000), 1);
        assert_eq!(Smart::data_units(512_001), 2);
    }

    #[test]
    fn a_full_list_of_changes_fits_and_one_more_is_too_many() {
        let full = ChangedNamespaceList::from_nsids(1..=1024);
        assert_eq!(full.iter().count(), 1024);
        assert!(!full.is_too_many());
        let more = ChangedNamespaceList::from_nsids(1..=1025);
        assert!(more.is_too_many());
        assert_eq!(more.as_bytes()[..8], [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
        assert_eq!(more.iter().count(), 0);
    }

    #[test]
    fn a_firmware_slot_page_has_its_golden_bytes() {
        let mut page = FirmwareSlot::zeroed();
        page.afi = ActiveFirmware::default().with_active_slot(1).with_next_slot(2);
        page.frs[0] = AsciiField::new("0.1").unwrap();
        assert_eq!(page.as_bytes()[..17], *b"\x21\0\0\0\0\0\0\x000.1     \0");
    }

    proptest! {
        #[test]
        fn a_list_of_changes_survives_the_wire(nsids in proptest::collection::btree_set(1..u32::MAX, 0..1200)) {
            let list = ChangedNamespaceList::from_nsids(nsids.iter().copied());
            let list = ChangedNamespaceList::read_from_bytes(list.as_bytes()).unwrap();
            prop_assert_eq!(list.is_too_many(), nsids.len() > 1024);
            if !list.is_too_many() {
                prop_assert_eq!(list.iter().collect::<Vec<_>>(), nsids.into_iter().collect::<Vec<_>>());
            }
        }

        #[test]
        fn any_bytes_are_health_pages_and_go_out_unchanged(bytes in proptest::collection::vec(any::<u8>(), 512)) {
            let smart = Smart::ref_from_bytes(&bytes).unwrap();
            prop_assert_eq!(smart.as_bytes(), &bytes);
            let slots = FirmwareSlot::ref_from_bytes(&bytes).unwrap();
            prop_assert!(slots.afi.active_slot() <= 7 && slots.afi.next_slot() <= 7);
            let entry = ErrorInformation::ref_from_prefix(&bytes).unwrap().0;
            prop_assert_eq!(entry.status().bits(), entry.status_field.get() >> 1);
        }
    }
}
