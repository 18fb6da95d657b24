//! Fabrics commands (NVM Express Base 2.0, section 6).

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, IntoBytes};

use super::{AdminOpcode, FabricsType, SubmissionEntry};
use crate::auth::{SECP_NVME, SPSP_NVME};
use crate::macros::wire;
use crate::nqn::{Nqn, NqnField};

wire! {
    /// A Connect command.
    #[derive(Copy)]
    pub struct ConnectCommand[64] {
        /// The Fabrics opcode.
        0 => pub opcode: u8,
        /// PRP or SGL, as in every command.
        1 => pub flags: u8,
        /// Command Identifier.
        2 => pub cid: U16,
        /// Fabrics command type.
        4 => pub fctype: u8,
        5 => reserved5: [u8; 19],
        /// Where the data is: in the capsule or in registered memory.
        24 => pub sgl: crate::sgl::SglDescriptor,
        /// Record Format; zero.
        40 => pub recfmt: U16,
        /// Queue Identifier.
        42 => pub qid: U16,
        /// Submission Queue Size, zero's based.
        44 => pub sqsize_z: U16,
        /// Connect Attributes: bit 2 disables submission queue flow control.
        46 => pub cattr: u8,
        47 => reserved47: u8,
        /// Keep Alive Timeout in milliseconds; zero disables it.
        48 => pub kato: U32,
        52 => reserved52: [u8; 12],
    }
}

wire! {
    /// The data of a Connect command.
    #[derive(Copy)]
    pub struct ConnectData[1024] {
        /// Host Identifier.
        0 => pub hostid: [u8; 16],
        /// Controller Identifier: FFFFh asks for a new controller.
        16 => pub cntlid: U16,
        18 => reserved18: [u8; 238],
        /// NVM Subsystem NVMe Qualified Name.
        256 => pub subnqn: NqnField,
        /// Host NVMe Qualified Name.
        512 => pub hostnqn: NqnField,
        768 => reserved768: [u8; 256],
    }
}

wire! {
    /// An Authentication Send or Authentication Receive command.
    #[derive(Copy)]
    pub struct AuthenticationCommand[64] {
        /// The Fabrics opcode.
        0 => pub opcode: u8,
        /// PRP or SGL, as in every command.
        1 => pub flags: u8,
        /// Command Identifier.
        2 => pub cid: U16,
        /// Fabrics command type.
        4 => pub fctype: u8,
        5 => reserved5: [u8; 19],
        /// Where the message is, or goes.
        24 => pub sgl: crate::sgl::SglDescriptor,
        40 => reserved40: u8,
        /// Security Protocol Specific, its first byte.
        41 => pub spsp0: u8,
        /// Security Protocol Specific, its second byte.
        42 => pub spsp1: u8,
        /// Security Protocol.
        43 => pub secp: u8,
        /// Transfer Length or Allocation Length, in bytes.
        44 => pub length: U32,
        48 => reserved48: [u8; 16],
    }
}

impl AuthenticationCommand {
    /// Authentication Send of a message of `length` bytes.
    pub fn send(cid: u16, length: u32) -> SubmissionEntry {
        Self::command(FabricsType::AUTHENTICATION_SEND, cid, length)
    }

    /// Authentication Receive of a message of at most `length` bytes.
    pub fn receive(cid: u16, length: u32) -> SubmissionEntry {
        Self::command(FabricsType::AUTHENTICATION_RECEIVE, cid, length)
    }

    fn command(fctype: FabricsType, cid: u16, length: u32) -> SubmissionEntry {
        let mut command = Self::of(&SubmissionEntry::fabrics(fctype, cid));
        (command.secp, command.spsp0, command.spsp1) = (SECP_NVME, SPSP_NVME, SPSP_NVME);
        command.length.set(length);
        zerocopy::transmute!(command)
    }

    /// Reads a submission queue entry as an Authentication Send or Receive.
    pub fn of(entry: &SubmissionEntry) -> Self {
        zerocopy::transmute!(*entry)
    }

    /// Whether it carries a message of the NVMe authentication protocols.
    pub fn is_nvme(&self) -> bool {
        (self.secp, self.spsp0, self.spsp1) == (SECP_NVME, SPSP_NVME, SPSP_NVME)
    }
}

impl ConnectCommand {
    /// The bit of CATTR that disables submission queue flow control.
    const DISABLE_FLOW_CONTROL: u8 = 1 << 2;

    /// Reads a submission queue entry as a Connect.
    pub fn of(entry: &SubmissionEntry) -> Self {
        zerocopy::transmute!(*entry)
    }

    /// Entries of the submission queue: SQSIZE counts from zero.
    pub fn sqsize(&self) -> u32 {
        u32::from(self.sqsize_z.get()) + 1
    }

    /// Whether the host goes without submission queue flow control.
    pub fn flow_control_disabled(&self) -> bool {
        self.cattr & Self::DISABLE_FLOW_CONTROL != 0
    }
}

impl ConnectData {
    /// Controller Identifier with which an admin queue asks for a new controller.
    pub const CNTLID_DYNAMIC: u16 = 0xffff;

    /// The data of a host for a queue of a controller.
    pub fn new(hostid: [u8; 16], cntlid: u16, subnqn: Nqn<'_>, hostnqn: Nqn<'_>) -> Self {
        Self {
            hostid,
            cntlid: U16::new(cntlid),
            subnqn: NqnField::new(subnqn),
            hostnqn: NqnField::new(hostnqn),
            ..Self::zeroed()
        }
    }
}

/// Size of a property.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PropertySize {
    /// 4 bytes.
    Four,
    /// 8 bytes.
    Eight,
}

impl PropertySize {
    fn attrib(self) -> u32 {
        match self {
            Self::Four => 0,
            Self::Eight => 1,
        }
    }
}

/// Constructors and accessors of Fabrics commands.
impl SubmissionEntry {
    /// Connect a queue of `entries` entries (2 to 65,536).
    pub fn connect(cid: u16, qid: u16, entries: u32, kato_ms: u32, disable_flow_control: bool) -> Self {
        assert!((2..=65_536).contains(&entries), "2 to 65,536 entries");
        let mut command = ConnectCommand::of(&Self::fabrics(FabricsType::CONNECT, cid));
        command.qid.set(qid);
        command.sqsize_z.set((entries - 1) as u16);
        command.kato.set(kato_ms);
        command.cattr = if disable_flow_control { ConnectCommand::DISABLE_FLOW_CONTROL } else { 0 };
        zerocopy::transmute!(command)
    }

    /// Property Get.
    pub fn property_get(cid: u16, offset: u32, size: PropertySize) -> Self {
        Self {
            cdw10: U32::new(size.attrib()),
            cdw11: U32::new(offset),
            ..Self::fabrics(FabricsType::PROPERTY_GET, cid)
        }
    }

    /// Property Set.
    pub fn property_set(cid: u16, offset: u32, size: PropertySize, value: u64) -> Self {
        Self {
            cdw10: U32::new(size.attrib()),
            cdw11: U32::new(offset),
            cdw12: U32::new(value as u32),
            cdw13: U32::new((value >> 32) as u32),
            ..Self::fabrics(FabricsType::PROPERTY_SET, cid)
        }
    }

    /// Disconnect the I/O queue that carries the command.
    pub fn disconnect(cid: u16) -> Self {
        Self::fabrics(FabricsType::DISCONNECT, cid)
    }

    /// Type of a Fabrics command.
    pub fn fabrics_type(&self) -> FabricsType {
        FabricsType(self.nsid.get() as u8)
    }

    /// Size of the property; `None` when ATTRIB says neither four nor eight bytes.
    pub fn property_size(&self) -> Option<PropertySize> {
        match self.cdw10.get() & 0b111 {
            0 => Some(PropertySize::Four),
            1 => Some(PropertySize::Eight),
            _ => None,
        }
    }

    /// Offset of the property.
    pub fn property_offset(&self) -> u32 {
        self.cdw11.get()
    }

    /// Value of a Property Set.
    pub fn property_value(&self) -> u64 {
        u64::from(self.cdw13.get()) << 32 | u64::from(self.cdw12.get())
    }

    fn fabrics(fctype: FabricsType, cid: u16) -> Self {
        Self::new(AdminOpcode::FABRICS.0, cid, u32::from(fctype.0))
    }
}

/// Reads the data of a Connect; a shorter slice is none.
impl TryFrom<&[u8]> for ConnectData {
    type Error = ();

    fn try_from(bytes: &[u8]) -> Result<Self, ()> {
        Self::read_from_bytes(bytes).map_err(|_| ())
    }
}

/// The bytes of the data, to send.
impl AsRef<[u8]> for ConnectData {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connect_has_its_golden_bytes() {
        let entry = SubmissionEntry::connect(0x0102, 3, 128, 15_000, true);
        let bytes = entry.as_bytes();
        assert_eq!(&bytes[..6], [0x7f, 0x40, 2, 1, 1, 0]);
        assert_eq!(&bytes[40..52], [0, 0, 3, 0, 127, 0, 4, 0, 0x98, 0x3a, 0, 0]);
        let command = ConnectCommand::of(&entry);
        assert_eq!((command.qid.get(), command.sqsize(), command.flow_control_disabled()), (3, 128, true));
    }

    #[test]
    fn connect_data_has_its_fields_where_the_specification_says() {
        let (subnqn, hostnqn) = (Nqn::new("nqn.2026-11.a").unwrap(), Nqn::new("nqn.2026-11.b").unwrap());
        let data = ConnectData::new([7; 16], ConnectData::CNTLID_DYNAMIC, subnqn, hostnqn);
        let bytes = data.as_bytes();
        assert_eq!(&bytes[..19], [[7; 16].as_slice(), &[0xff, 0xff, 0]].concat());
        assert_eq!(&bytes[256..270], b"nqn.2026-11.a\0");
        assert_eq!(&bytes[512..526], b"nqn.2026-11.b\0");
        assert_eq!(ConnectData::try_from(bytes), Ok(data));
        assert_eq!(ConnectData::try_from(&bytes[1..]), Err(()));
    }

    #[test]
    fn authentication_commands_have_their_golden_bytes() {
        let send = AuthenticationCommand::send(9, 0x0102);
        assert_eq!(&send.as_bytes()[..5], [0x7f, 0x40, 9, 0, 5]);
        assert_eq!(&send.as_bytes()[40..48], [0, 1, 1, 0xe9, 2, 1, 0, 0]);
        let receive = AuthenticationCommand::of(&AuthenticationCommand::receive(9, 4096));
        assert_eq!((receive.fctype, receive.is_nvme(), receive.length.get()), (6, true, 4096));
        assert!(!AuthenticationCommand { spsp1: 0, ..receive }.is_nvme());
    }

    #[test]
    fn properties_have_their_golden_bytes() {
        let get = SubmissionEntry::property_get(1, 0x08, PropertySize::Four);
        assert_eq!(&get.as_bytes()[4..5], [4]);
        assert_eq!(&get.as_bytes()[40..48], [0, 0, 0, 0, 8, 0, 0, 0]);
        let set = SubmissionEntry::property_set(1, 0x14, PropertySize::Eight, 0x0807_0605_0403_0201);
        assert_eq!(&set.as_bytes()[40..56], [1, 0, 0, 0, 0x14, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(set.property_value(), 0x0807_0605_0403_0201);
        assert_eq!((set.property_offset(), set.property_size()), (0x14, Some(PropertySize::Eight)));
        let mut odd = get;
        odd.cdw10.set(5);
        assert_eq!(odd.property_size(), None);
        assert_eq!(SubmissionEntry::disconnect(1).fabrics_type(), FabricsType::DISCONNECT);
    }
}
