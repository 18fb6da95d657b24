//! Identify data structures (NVM Express Base 2.0, section 5.17; NVM Command Set 1.0, section 4.1.5).
//!
//! Each is 4,096 bytes, the data of one Identify command.

mod attributes;
mod controller;
mod descriptor;
mod list;
mod namespace;
mod nvm;

pub use attributes::{
    AnaCapabilities, ControllerAttributes, ControllerType, EntrySizes, FabricsCommands, FirmwareUpdates,
    FormatAttributes, FusedOperations, LogPageAttributes, MultiPath, OptionalAdminCommands, OptionalEvents,
    OptionalNvmCommands, SanitizeCapabilities, SglAlignment, SglSupport, VolatileCacheAttributes,
};
pub use controller::{IdentifyController, PowerState};
pub use descriptor::{
    DescriptorError, NamespaceDescriptor, NamespaceDescriptorHeader, NamespaceDescriptorList,
    NamespaceDescriptors, NamespaceIdType,
};
pub use list::{CommandSetVector, CommandSetVectors, ControllerList, NamespaceList};
pub use namespace::{
    DataProtection, DeallocateFeatures, FormatProgress, FormattedLbaSize, IdentifyNamespace,
    IndependentNamespace, LbaFormat, MetadataCapabilities, NamespaceAttributes, NamespaceFeatures,
    NamespaceSharing, NamespaceStatus, ProtectionCapabilities, ReservationCapabilities,
};
pub use nvm::{
    ExtendedLbaFormat, IdentifyNvmController, IdentifyNvmNamespace, OptionalAdminActions,
    ProtectionInformation,
};

use crate::macros::open_enum;

/// Size of every Identify data structure, in bytes.
pub const DATA_LEN: usize = 4096;

/// Namespace identifier that stands for all namespaces.
pub const NSID_ALL: u32 = u32::MAX;

/// The largest identifier that a namespace can have.
pub const NSID_MAX: u32 = u32::MAX - 2;

open_enum! {
    /// Controller or Namespace Structure: what Identify returns (section 5.17.1).
    pub struct Cns(u8) {
        NAMESPACE = 0x00 => "Identify Namespace";
        CONTROLLER = 0x01 => "Identify Controller";
        ACTIVE_NAMESPACES = 0x02 => "Active Namespace ID list";
        NAMESPACE_DESCRIPTORS = 0x03 => "Namespace Identification Descriptor list";
        NVM_SETS = 0x04 => "NVM Set List";
        COMMAND_SET_NAMESPACE = 0x05 => "I/O Command Set specific Identify Namespace";
        COMMAND_SET_CONTROLLER = 0x06 => "I/O Command Set specific Identify Controller";
        COMMAND_SET_ACTIVE_NAMESPACES = 0x07 => "I/O Command Set specific Active Namespace ID list";
        INDEPENDENT_NAMESPACE = 0x08 => "I/O Command Set Independent Identify Namespace";
        ALLOCATED_NAMESPACES = 0x10 => "Allocated Namespace ID list";
        ALLOCATED_NAMESPACE = 0x11 => "Identify Namespace of an allocated namespace";
        NAMESPACE_CONTROLLERS = 0x12 => "Controller List of a namespace";
        CONTROLLERS = 0x13 => "Controller List of the NVM subsystem";
        PRIMARY_CONTROLLER = 0x14 => "Primary Controller Capabilities";
        SECONDARY_CONTROLLERS = 0x15 => "Secondary Controller List";
        NAMESPACE_GRANULARITY = 0x16 => "Namespace Granularity List";
        UUIDS = 0x17 => "UUID List";
        DOMAINS = 0x18 => "Domain List";
        ENDURANCE_GROUPS = 0x19 => "Endurance Group List";
        COMMAND_SET_ALLOCATED_NAMESPACES = 0x1a => "I/O Command Set specific Allocated Namespace ID list";
        COMMAND_SET_ALLOCATED_NAMESPACE = 0x1b => "I/O Command Set specific Identify of an allocated namespace";
        COMMAND_SETS = 0x1c => "I/O Command Set data structure";
    }
}

open_enum! {
    /// Command Set Identifier (section 5.17.1).
    pub struct CommandSet(u8) {
        NVM = 0 => "NVM";
        KEY_VALUE = 1 => "Key Value";
        ZONED_NAMESPACE = 2 => "Zoned Namespace";
    }
}
