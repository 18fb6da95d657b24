//! The Identify Controller data structure (NVM Express Base 2.0, section 5.17.2.1).

use zerocopy::little_endian::{U16, U32, U64, U128};

use super::attributes::{
    AnaCapabilities, ControllerAttributes, ControllerType, EntrySizes, FabricsCommands, FirmwareUpdates,
    FormatAttributes, FusedOperations, LogPageAttributes, MultiPath, OptionalAdminCommands, OptionalEvents,
    OptionalNvmCommands, SanitizeCapabilities, SglSupport, VolatileCacheAttributes,
};
use crate::macros::wire;
use crate::nqn::NqnField;
use crate::property::Version;
use crate::text::AsciiField;

wire! {
    /// A Power State Descriptor.
    pub struct PowerState[32] {
        /// Maximum Power, in hundredths of a watt (of 0.1 mW when bit 0 of `flags` is set).
        0 => pub mp: U16,
        2 => reserved2: u8,
        /// Bit 0 is Max Power Scale, bit 1 Non-Operational State.
        3 => pub flags: u8,
        /// Entry Latency, in microseconds.
        4 => pub enlat: U32,
        /// Exit Latency, in microseconds.
        8 => pub exlat: U32,
        /// Relative Read Throughput.
        12 => pub rrt: u8,
        /// Relative Read Latency.
        13 => pub rrl: u8,
        /// Relative Write Throughput.
        14 => pub rwt: u8,
        /// Relative Write Latency.
        15 => pub rwl: u8,
        /// Idle Power, in the unit of `ips`.
        16 => pub idlp: U16,
        /// Idle Power Scale, in bits 7:6.
        18 => pub ips: u8,
        19 => reserved19: u8,
        /// Active Power, in the unit of `apw_aps`.
        20 => pub actp: U16,
        /// Active Power Workload in bits 2:0, Active Power Scale in bits 7:6.
        22 => pub apw_aps: u8,
        23 => reserved23: [u8; 9],
    }
}

wire! {
    /// The Identify Controller data structure, CNS 01h.
    pub struct IdentifyController[4096] {
        /// PCI Vendor ID; 0 without PCI.
        0 => pub vid: U16,
        /// PCI Subsystem Vendor ID; 0 without PCI.
        2 => pub ssvid: U16,
        /// Serial Number.
        4 => pub sn: AsciiField<20>,
        /// Model Number.
        24 => pub mn: AsciiField<40>,
        /// Firmware Revision.
        64 => pub fr: AsciiField<8>,
        /// Recommended Arbitration Burst, as a power of two of commands.
        72 => pub rab: u8,
        /// IEEE OUI Identifier, least significant byte first.
        73 => pub ieee: [u8; 3],
        /// Controller Multi-Path I/O and Namespace Sharing Capabilities.
        76 => pub cmic: MultiPath,
        /// Maximum Data Transfer Size, as a power of two of CAP.MPSMIN; 0 is no limit. See
        /// [`Self::transfer_bytes_max`].
        77 => pub mdts: u8,
        /// Controller ID, unique in the NVM subsystem.
        78 => pub cntlid: U16,
        /// Version, as in the property VS.
        80 => pub ver: Version,
        /// RTD3 Resume Latency, in microseconds.
        84 => pub rtd3r: U32,
        /// RTD3 Entry Latency, in microseconds.
        88 => pub rtd3e: U32,
        /// Optional Asynchronous Events Supported.
        92 => pub oaes: OptionalEvents,
        /// Controller Attributes.
        96 => pub ctratt: ControllerAttributes,
        /// Read Recovery Levels Supported, a bit for each.
        100 => pub rrls: U16,
        102 => reserved102: [u8; 9],
        /// Controller Type.
        111 => pub cntrltype: ControllerType,
        /// FRU Globally Unique Identifier, most significant byte first; 0 when there is none.
        112 => pub fguid: [u8; 16],
        /// Command Retry Delay Times 1 to 3, in units of 100 ms; what the status field's CRD selects.
        128 => pub crdt: [U16; 3],
        134 => reserved134: u8,
        /// Controller Instance Uniquifier (Base 2.3), from 1; 0 when it is not reported. With CIRN it says which of the
        /// controllers that have had this identifier it is.
        135 => pub ciu: u8,
        /// Controller Instance Random Number (Base 2.3), another one each time the controller becomes ready.
        136 => pub cirn: U64,
        144 => reserved144: [u8; 109],
        /// NVM Subsystem Report (NVMe Management Interface).
        253 => pub nvmsr: u8,
        /// VPD Write Cycle Information (NVMe Management Interface).
        254 => pub vwci: u8,
        /// Management Endpoint Capabilities (NVMe Management Interface).
        255 => pub mec: u8,
        /// Optional Admin Command Support.
        256 => pub oacs: OptionalAdminCommands,
        /// Abort Command Limit: concurrent Aborts, zero's based.
        258 => pub acl_z: u8,
        /// Asynchronous Event Request Limit: outstanding requests, zero's based.
        259 => pub aerl_z: u8,
        /// Firmware Updates.
        260 => pub frmw: FirmwareUpdates,
        /// Log Page Attributes.
        261 => pub lpa: LogPageAttributes,
        /// Error Log Page Entries, zero's based.
        262 => pub elpe_z: u8,
        /// Number of Power States Support, zero's based.
        263 => pub npss_z: u8,
        /// Admin Vendor Specific Command Configuration.
        264 => pub avscc: u8,
        /// Autonomous Power State Transition Attributes.
        265 => pub apsta: u8,
        /// Warning Composite Temperature Threshold, in kelvins.
        266 => pub wctemp: U16,
        /// Critical Composite Temperature Threshold, in kelvins.
        268 => pub cctemp: U16,
        /// Maximum Time for Firmware Activation, in units of 100 ms.
        270 => pub mtfa: U16,
        /// Host Memory Buffer Preferred Size, in units of 4 KiB.
        272 => pub hmpre: U32,
        /// Host Memory Buffer Minimum Size, in units of 4 KiB.
        276 => pub hmmin: U32,
        /// Total NVM Capacity, in bytes.
        280 => pub tnvmcap: U128,
        /// Unallocated NVM Capacity, in bytes.
        296 => pub unvmcap: U128,
        /// Replay Protected Memory Block Support.
        312 => pub rpmbs: U32,
        /// Extended Device Self-test Time, in minutes.
        316 => pub edstt: U16,
        /// Device Self-test Options.
        318 => pub dsto: u8,
        /// Firmware Update Granularity, in units of 4 KiB.
        319 => pub fwug: u8,
        /// Keep Alive Support: granularity of the timer in units of 100 ms; 0 is not supported.
        320 => pub kas: U16,
        /// Host Controlled Thermal Management Attributes.
        322 => pub hctma: U16,
        /// Minimum Thermal Management Temperature, in kelvins.
        324 => pub mntmt: U16,
        /// Maximum Thermal Management Temperature, in kelvins.
        326 => pub mxtmt: U16,
        /// Sanitize Capabilities.
        328 => pub sanicap: SanitizeCapabilities,
        /// Host Memory Buffer Minimum Descriptor Entry Size, in units of 4 KiB.
        332 => pub hmminds: U32,
        /// Host Memory Maximum Descriptors Entries.
        336 => pub hmmaxd: U16,
        /// NVM Set Identifier Maximum.
        338 => pub nsetidmax: U16,
        /// Endurance Group Identifier Maximum.
        340 => pub endgidmax: U16,
        /// ANA Transition Time, in seconds.
        342 => pub anatt: u8,
        /// Asymmetric Namespace Access Capabilities.
        343 => pub anacap: AnaCapabilities,
        /// ANA Group Identifier Maximum.
        344 => pub anagrpmax: U32,
        /// Number of ANA Group Identifiers.
        348 => pub nanagrpid: U32,
        /// Persistent Event Log Size, in units of 64 KiB.
        352 => pub pels: U32,
        /// Domain Identifier.
        356 => pub domain_id: U16,
        358 => reserved358: [u8; 10],
        /// Max Endurance Group Capacity, in bytes.
        368 => pub megcap: U128,
        384 => reserved384: [u8; 2],
        /// Command Quiesce Time (Base 2.1), in milliseconds: how long the controller may need, after a keep-alive
        /// timeout or another loss of communication, until all outstanding commands are over; 0 when not reported.
        386 => pub cqt: U16,
        388 => reserved388: [u8; 124],
        /// Submission Queue Entry Size.
        512 => pub sqes: EntrySizes,
        /// Completion Queue Entry Size.
        513 => pub cqes: EntrySizes,
        /// Maximum Outstanding Commands of a queue.
        514 => pub maxcmd: U16,
        /// Number of Namespaces: the largest valid namespace identifier.
        516 => pub nn: U32,
        /// Optional NVM Command Support.
        520 => pub oncs: OptionalNvmCommands,
        /// Fused Operation Support.
        522 => pub fuses: FusedOperations,
        /// Format NVM Attributes.
        524 => pub fna: FormatAttributes,
        /// Volatile Write Cache.
        525 => pub vwc: VolatileCacheAttributes,
        /// Atomic Write Unit Normal, in logical blocks, zero's based.
        526 => pub awun_z: U16,
        /// Atomic Write Unit Power Fail, in logical blocks, zero's based.
        528 => pub awupf_z: U16,
        /// I/O Command Set Vendor Specific Command Configuration.
        530 => pub icsvscc: u8,
        /// Namespace Write Protection Capabilities.
        531 => pub nwpc: u8,
        /// Atomic Compare & Write Unit, in logical blocks, zero's based.
        532 => pub acwu_z: U16,
        /// Copy Descriptor Formats Supported, a bit for each.
        534 => pub cdfs: U16,
        /// SGL Support.
        536 => pub sgls: SglSupport,
        /// Maximum Number of Allowed Namespaces; 0 when it is `nn`.
        540 => pub mnan: U32,
        /// Maximum Domain Namespace Attachments.
        544 => pub maxdna: U128,
        /// Maximum I/O Controller Namespace Attachments.
        560 => pub maxcna: U32,
        564 => reserved564: [u8; 204],
        /// NVM Subsystem NVMe Qualified Name.
        768 => pub subnqn: NqnField,
        1024 => reserved1024: [u8; 768],
        /// I/O Queue Command Capsule Supported Size, in units of 16 bytes; at least 4.
        1792 => pub ioccsz: U32,
        /// I/O Queue Response Capsule Supported Size, in units of 16 bytes; at least 1.
        1796 => pub iorcsz: U32,
        /// In Capsule Data Offset behind the submission queue entry, in units of 16 bytes.
        1800 => pub icdoff: U16,
        /// Fabrics Controller Attributes: bit 0 is the static controller model.
        1802 => pub fcatt: u8,
        /// Maximum SGL Data Block Descriptors of a command; 0 is no limit.
        1803 => pub msdbd: u8,
        /// Optional Fabrics Commands Support.
        1804 => pub ofcs: FabricsCommands,
        1806 => reserved1806: u8,
        /// Cross-Controller Reset Limit (Base 2.3): resets in progress at once; 0 when the command is not supported.
        1807 => pub ccrl: u8,
        1808 => reserved1808: [u8; 240],
        /// Power State Descriptors 0 to 31.
        2048 => pub psd: [PowerState; 32],
        /// Vendor Specific.
        3072 => pub vendor: [u8; 1024],
    }
}

impl IdentifyController {
    /// The unit of `ioccsz`, `iorcsz` and `icdoff`, in bytes.
    pub const CAPSULE_UNIT: u32 = 16;

    /// The longest data transfer of a command, in bytes, from `mdts` and the smallest memory page, which is
    /// 4 KiB shifted left by CAP.MPSMIN. None when there is no limit, or none that 64 bits hold.
    pub fn transfer_bytes_max(&self, mpsmin: u8) -> Option<u64> {
        let shift = 12 + u32::from(mpsmin) + u32::from(self.mdts);
        if self.mdts == 0 { None } else { 1_u64.checked_shl(shift) }
    }

    /// Size of an I/O command capsule, in bytes.
    pub fn command_capsule_bytes(&self) -> u64 {
        u64::from(self.ioccsz.get()) * u64::from(Self::CAPSULE_UNIT)
    }

    /// Room for data in an I/O command capsule, in bytes, behind the submission queue entry and `icdoff`; zero
    /// when the fields contradict each other.
    pub fn in_capsule_bytes_max(&self) -> u64 {
        let offset = 64 + u64::from(self.icdoff.get()) * u64::from(Self::CAPSULE_UNIT);
        self.command_capsule_bytes().saturating_sub(offset)
    }

    /// Outstanding Asynchronous Event Requests, 1 to 256.
    pub fn aerl(&self) -> u16 {
        u16::from(self.aerl_z) + 1
    }

    /// Concurrent Aborts, 1 to 256.
    pub fn acl(&self) -> u16 {
        u16::from(self.acl_z) + 1
    }

    /// Entries of the Error Information log page, 1 to 256.
    pub fn elpe(&self) -> u16 {
        u16::from(self.elpe_z) + 1
    }

    /// Granularity of the keep-alive timer, in milliseconds; none when it is not supported.
    pub fn keep_alive_granularity_ms(&self) -> Option<u32> {
        let units = u32::from(self.kas.get());
        (units != 0).then_some(units * 100)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zerocopy::{FromBytes, IntoBytes};

    use super::super::attributes::SglAlignment;
    use super::*;
    use crate::nqn::Nqn;

    fn controller() -> IdentifyController {
        IdentifyController {
            sn: AsciiField::new("0123456789").unwrap(),
            mn: AsciiField::new("Ringfab").unwrap(),
            fr: AsciiField::new("0.1").unwrap(),
            mdts: 5,
            cntlid: U16::new(0x0102),
            cntrltype: ControllerType::IO,
            ciu: 7,
            cirn: U64::new(0x0102_0304_0506_0708),
            cqt: U16::new(0x090a),
            ccrl: 4,
            kas: U16::new(10),
            sgls: SglSupport::default().with_alignment(SglAlignment::BYTE).with_keyed(true),
            subnqn: NqnField::new(Nqn::new("nqn.2014-08.org.example:disk").unwrap()),
            ioccsz: U32::new(4 + 256),
            iorcsz: U32::new(1),
            msdbd: 1,
            ofcs: FabricsCommands::default().with_disconnect(true),
            ..IdentifyController::zeroed()
        }
    }

    #[test]
    fn a_controller_has_its_golden_bytes() {
        let controller = controller();
        let bytes = controller.as_bytes();
        assert_eq!(&bytes[4..24], b"0123456789          ");
        assert_eq!(&bytes[24..33], b"Ringfab  ");
        assert_eq!(&bytes[64..73], b"0.1     \0");
        assert_eq!(bytes[77..80], [5, 2, 1]);
        assert_eq!(bytes[111], 1);
        assert_eq!(bytes[135..144], [7, 8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(bytes[320..322], [10, 0]);
        assert_eq!(bytes[386..388], [0x0a, 9]);
        assert_eq!(bytes[1807], 4);
        assert_eq!(bytes[536..540], [5, 0, 0, 0]);
        assert_eq!(&bytes[768..797], b"nqn.2014-08.org.example:disk\0");
        assert_eq!(bytes[1792..1806], [4, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 1, 0]);
    }

    #[test]
    fn the_sizes_come_out_in_bytes() {
        let mut controller = controller();
        assert_eq!(controller.transfer_bytes_max(0), Some(128 << 10));
        assert_eq!(controller.command_capsule_bytes(), 4160);
        assert_eq!(controller.in_capsule_bytes_max(), 4096);
        assert_eq!(controller.keep_alive_granularity_ms(), Some(1000));
        controller.ioccsz = U32::new(3);
        assert_eq!(controller.in_capsule_bytes_max(), 0);
        controller.mdts = 0;
        assert_eq!(controller.transfer_bytes_max(0), None);
        controller.kas = U16::new(0);
        assert_eq!(controller.keep_alive_granularity_ms(), None);
    }

    #[test]
    fn a_transfer_size_that_does_not_fit_64_bits_is_no_limit() {
        let mut controller = IdentifyController::zeroed();
        controller.mdts = 51;
        assert_eq!(controller.transfer_bytes_max(0), Some(1 << 63));
        controller.mdts = 52;
        assert_eq!(controller.transfer_bytes_max(0), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_controller_and_go_out_unchanged(
            bytes in proptest::collection::vec(any::<u8>(), 4096), mpsmin: u8,
        ) {
            let controller = IdentifyController::ref_from_bytes(&bytes).unwrap();
            prop_assert_eq!(controller.as_bytes(), &bytes);
            prop_assert!(controller.in_capsule_bytes_max() <= controller.command_capsule_bytes());
            prop_assert!(controller.transfer_bytes_max(mpsmin).is_none_or(|max| max >= 8192));
            prop_assert!((1..=256).contains(&controller.aerl()));
            prop_assert!((1..=256).contains(&controller.acl()));
            prop_assert!((1..=256).contains(&controller.elpe()));
        }
    }
}
