//! The packed fields of the Identify Controller data structure.

use zerocopy::little_endian::{U16, U32};

use crate::macros::{bits, open_enum};

bits! {
    /// Controller Multi-Path I/O and Namespace Sharing Capabilities (CMIC).
    pub struct MultiPath(u8 as u8) {
        /// The NVM subsystem may have more than one port.
        ports / with_ports: bool = 0:0;
        /// The NVM subsystem may have more than one controller.
        controllers / with_controllers: bool = 1:1;
        /// The controller belongs to an SR-IOV Virtual Function.
        virtual_function / with_virtual_function: bool = 2:2;
        /// Asymmetric Namespace Access Reporting.
        ana / with_ana: bool = 3:3;
    }
}

bits! {
    /// Optional Asynchronous Events Supported (OAES).
    pub struct OptionalEvents(U32 as u32) {
        /// Namespace Attribute Notices.
        namespace_attribute_notices / with_namespace_attribute_notices: bool = 8:8;
        /// Firmware Activation Notices.
        firmware_activation_notices / with_firmware_activation_notices: bool = 9:9;
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
        /// Zone Descriptor Changed Notices.
        zone_descriptor_notices / with_zone_descriptor_notices: bool = 27:27;
        /// Discovery Log Page Change Notification.
        discovery_log_notices / with_discovery_log_notices: bool = 31:31;
    }
}

bits! {
    /// Controller Attributes (CTRATT).
    pub struct ControllerAttributes(U32 as u32) {
        /// Host Identifier Support: 128 bits.
        hids / with_hids: bool = 0:0;
        /// Non-Operational Power State Permissive Mode.
        nopspm / with_nopspm: bool = 1:1;
        /// NVM Sets.
        nvm_sets / with_nvm_sets: bool = 2:2;
        /// Read Recovery Levels.
        read_recovery_levels / with_read_recovery_levels: bool = 3:3;
        /// Endurance Groups.
        endurance_groups / with_endurance_groups: bool = 4:4;
        /// Predictable Latency Mode.
        predictable_latency / with_predictable_latency: bool = 5:5;
        /// Traffic Based Keep Alive Support: any command restarts the timer.
        tbkas / with_tbkas: bool = 6:6;
        /// Namespace Granularity.
        namespace_granularity / with_namespace_granularity: bool = 7:7;
        /// SQ Associations.
        sq_associations / with_sq_associations: bool = 8:8;
        /// UUID List.
        uuid_list / with_uuid_list: bool = 9:9;
        /// Multi-Domain Subsystem.
        mds / with_mds: bool = 10:10;
        /// Fixed Capacity Management.
        fixed_capacity / with_fixed_capacity: bool = 11:11;
        /// Variable Capacity Management.
        variable_capacity / with_variable_capacity: bool = 12:12;
        /// Delete Endurance Group.
        delete_endurance_group / with_delete_endurance_group: bool = 13:13;
        /// Delete NVM Set.
        delete_nvm_set / with_delete_nvm_set: bool = 14:14;
        /// Extended LBA Formats Supported.
        elbas / with_elbas: bool = 15:15;
    }
}

open_enum! {
    /// Controller Type (CNTRLTYPE).
    pub struct ControllerType(u8) {
        NOT_REPORTED = 0 => "not reported";
        IO = 1 => "I/O controller";
        DISCOVERY = 2 => "Discovery controller";
        ADMINISTRATIVE = 3 => "Administrative controller";
    }
}

bits! {
    /// Optional Admin Command Support (OACS).
    pub struct OptionalAdminCommands(U16 as u16) {
        /// Security Send and Security Receive.
        security / with_security: bool = 0:0;
        /// Format NVM.
        format / with_format: bool = 1:1;
        /// Firmware Commit and Firmware Image Download.
        firmware / with_firmware: bool = 2:2;
        /// Namespace Management and Namespace Attachment.
        namespace_management / with_namespace_management: bool = 3:3;
        /// Device Self-test.
        self_test / with_self_test: bool = 4:4;
        /// Directives.
        directives / with_directives: bool = 5:5;
        /// NVMe-MI Send and NVMe-MI Receive.
        mi / with_mi: bool = 6:6;
        /// Virtualization Management.
        virtualization / with_virtualization: bool = 7:7;
        /// Doorbell Buffer Config.
        doorbell_buffer / with_doorbell_buffer: bool = 8:8;
        /// Get LBA Status.
        get_lba_status / with_get_lba_status: bool = 9:9;
        /// Command and Feature Lockdown.
        lockdown / with_lockdown: bool = 10:10;
    }
}

bits! {
    /// Firmware Updates (FRMW).
    pub struct FirmwareUpdates(u8 as u8) {
        /// The first slot is read only.
        slot1_read_only / with_slot1_read_only: bool = 0:0;
        /// Number of firmware slots, 1 to 7.
        slots / with_slots: u8 = 3:1;
        /// A firmware can be activated without a reset.
        activation_without_reset / with_activation_without_reset: bool = 4:4;
        /// Support Multiple Update Detection.
        smud / with_smud: bool = 5:5;
    }
}

bits! {
    /// Log Page Attributes (LPA).
    pub struct LogPageAttributes(u8 as u8) {
        /// The SMART log page can be per namespace.
        smart_per_namespace / with_smart_per_namespace: bool = 0:0;
        /// The Commands Supported and Effects log page.
        command_effects / with_command_effects: bool = 1:1;
        /// Extended data for Get Log Page: lengths of 32 bits, and offsets.
        extended_data / with_extended_data: bool = 2:2;
        /// The telemetry log pages.
        telemetry / with_telemetry: bool = 3:3;
        /// The Persistent Event log page.
        persistent_event / with_persistent_event: bool = 4:4;
        /// The log pages of what is supported: log pages, features, NVMe-MI commands.
        supported_log_pages / with_supported_log_pages: bool = 5:5;
        /// Telemetry Data Area 4.
        telemetry_data_area_4 / with_telemetry_data_area_4: bool = 6:6;
    }
}

bits! {
    /// Sanitize Capabilities (SANICAP).
    pub struct SanitizeCapabilities(U32 as u32) {
        /// Crypto Erase Support.
        ces / with_ces: bool = 0:0;
        /// Block Erase Support.
        bes / with_bes: bool = 1:1;
        /// Overwrite Support.
        ows / with_ows: bool = 2:2;
        /// No-Deallocate Inhibited.
        ndi / with_ndi: bool = 29:29;
        /// No-Deallocate Modifies Media After Sanitize.
        nodmmas / with_nodmmas: u8 = 31:30;
    }
}

bits! {
    /// Asymmetric Namespace Access Capabilities (ANACAP).
    pub struct AnaCapabilities(u8 as u8) {
        /// Reports the ANA Optimized state.
        optimized / with_optimized: bool = 0:0;
        /// Reports the ANA Non-Optimized state.
        non_optimized / with_non_optimized: bool = 1:1;
        /// Reports the ANA Inaccessible state.
        inaccessible / with_inaccessible: bool = 2:2;
        /// Reports the ANA Persistent Loss state.
        persistent_loss / with_persistent_loss: bool = 3:3;
        /// Reports the ANA Change state.
        change / with_change: bool = 4:4;
        /// A namespace's ANA group does not change while it is attached to a controller.
        group_fixed / with_group_fixed: bool = 6:6;
        /// Namespace Management takes an ANA group other than zero.
        group_in_management / with_group_in_management: bool = 7:7;
    }
}

bits! {
    /// Submission or Completion Queue Entry Size (SQES, CQES), each as a power of two of bytes.
    pub struct EntrySizes(u8 as u8) {
        /// Required size.
        required / with_required: u8 = 3:0;
        /// Maximum size.
        maximum / with_maximum: u8 = 7:4;
    }
}

impl EntrySizes {
    /// Submission queue entries of 64 bytes.
    pub fn submission() -> Self {
        Self::default().with_required(6).with_maximum(6)
    }

    /// Completion queue entries of 16 bytes.
    pub fn completion() -> Self {
        Self::default().with_required(4).with_maximum(4)
    }
}

bits! {
    /// Optional NVM Command Support (ONCS).
    pub struct OptionalNvmCommands(U16 as u16) {
        /// Compare.
        compare / with_compare: bool = 0:0;
        /// Write Uncorrectable.
        write_uncorrectable / with_write_uncorrectable: bool = 1:1;
        /// Dataset Management.
        dataset_management / with_dataset_management: bool = 2:2;
        /// Write Zeroes.
        write_zeroes / with_write_zeroes: bool = 3:3;
        /// Save in Set Features and Select in Get Features.
        save_select / with_save_select: bool = 4:4;
        /// Reservations.
        reservations / with_reservations: bool = 5:5;
        /// Timestamp.
        timestamp / with_timestamp: bool = 6:6;
        /// Verify.
        verify / with_verify: bool = 7:7;
        /// Copy.
        copy / with_copy: bool = 8:8;
    }
}

bits! {
    /// Fused Operation Support (FUSES).
    pub struct FusedOperations(U16 as u16) {
        /// Compare and Write.
        compare_and_write / with_compare_and_write: bool = 0:0;
    }
}

bits! {
    /// Format NVM Attributes (FNA).
    pub struct FormatAttributes(u8 as u8) {
        /// A format applies to all namespaces.
        format_all / with_format_all: bool = 0:0;
        /// A secure erase applies to all namespaces.
        erase_all / with_erase_all: bool = 1:1;
        /// Cryptographic erase.
        crypto_erase / with_crypto_erase: bool = 2:2;
        /// The namespace identifier FFFFFFFFh is not supported by Format NVM.
        no_broadcast / with_no_broadcast: bool = 3:3;
    }
}

bits! {
    /// Volatile Write Cache (VWC).
    pub struct VolatileCacheAttributes(u8 as u8) {
        /// A volatile write cache is present.
        present / with_present: bool = 0:0;
        /// What a Flush with the namespace identifier FFFFFFFFh does: 0 is not indicated, 2 is not supported,
        /// 3 flushes all namespaces.
        flush_behavior / with_flush_behavior: u8 = 2:1;
    }
}

impl VolatileCacheAttributes {
    /// Value of `flush_behavior`: Flush does not take the namespace identifier FFFFFFFFh.
    pub const FLUSH_ALL_NOT_SUPPORTED: u8 = 2;
    /// Value of `flush_behavior`: Flush with the namespace identifier FFFFFFFFh flushes all namespaces.
    pub const FLUSH_ALL_SUPPORTED: u8 = 3;
}

open_enum! {
    /// Whether SGLs are supported for commands of the NVM Command Set.
    pub struct SglAlignment(u8) {
        NOT_SUPPORTED = 0 => "SGLs are not supported";
        BYTE = 1 => "SGLs are supported";
        DWORD = 2 => "SGLs are supported for whole dwords";
    }
}

bits! {
    /// SGL Support (SGLS).
    pub struct SglSupport(U32 as u32) {
        /// Whether and with which alignment SGLs are supported.
        alignment / with_alignment: SglAlignment = 1:0;
        /// Keyed SGL Data Block descriptors.
        keyed / with_keyed: bool = 2:2;
        /// SGL Descriptor Threshold: the recommended most descriptors of a command; 0 is not indicated.
        sdt / with_sdt: u8 = 15:8;
        /// SGL Bit Bucket descriptors.
        bit_bucket / with_bit_bucket: bool = 16:16;
        /// A byte aligned contiguous buffer of metadata.
        byte_aligned_metadata / with_byte_aligned_metadata: bool = 17:17;
        /// An SGL longer than the data.
        longer_than_data / with_longer_than_data: bool = 18:18;
        /// The Metadata Pointer may hold the address of an SGL segment.
        mptr_sgl / with_mptr_sgl: bool = 19:19;
        /// The Address field may be an offset, into in-capsule data.
        address_offset / with_address_offset: bool = 20:20;
        /// Transport SGL Data Block descriptors.
        transport / with_transport: bool = 21:21;
    }
}

bits! {
    /// Optional Fabrics Commands Support (OFCS).
    pub struct FabricsCommands(U16 as u16) {
        /// Disconnect.
        disconnect / with_disconnect: bool = 0:0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sgl_support_of_rdma_has_its_golden_bits() {
        let sgls = SglSupport::default().with_alignment(SglAlignment::BYTE).with_keyed(true);
        assert_eq!(sgls.with_address_offset(true).bits(), 0x0010_0005);
        assert_eq!(SglSupport::default().with_transport(true).with_sdt(16).bits(), 0x0020_1000);
    }

    #[test]
    fn the_entry_sizes_have_their_golden_bits() {
        assert_eq!(EntrySizes::submission().bits(), 0x66);
        assert_eq!(EntrySizes::completion().bits(), 0x44);
    }

    #[test]
    fn the_attributes_have_their_golden_bits() {
        let ctratt = ControllerAttributes::default().with_hids(true).with_tbkas(true);
        assert_eq!(ctratt.with_elbas(true).bits(), 0x8041);
        let cache = VolatileCacheAttributes::default().with_present(true);
        assert_eq!(cache.with_flush_behavior(VolatileCacheAttributes::FLUSH_ALL_SUPPORTED).bits(), 0x07);
        assert_eq!(FirmwareUpdates::default().with_slot1_read_only(true).with_slots(1).bits(), 0x03);
        let oaes = OptionalEvents::default().with_namespace_attribute_notices(true);
        assert_eq!(oaes.with_ana_change_notices(true).with_discovery_log_notices(true).bits(), 0x8000_0900);
        let oncs = OptionalNvmCommands::default().with_compare(true).with_dataset_management(true);
        assert_eq!(oncs.with_write_zeroes(true).bits(), 0x000d);
    }
}
