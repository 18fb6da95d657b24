//! Discovery log page (NVM Express Base 2.0, section 5.16.1.23).

use core::mem;

use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, transmute};

use crate::macros::{bits, open_enum, wire};
use crate::nqn::NqnField;
use crate::text::AsciiField;

open_enum! {
    /// Transport Type (TRTYPE).
    pub struct TransportType(u8) {
        RDMA = 1 => "rdma";
        FIBRE_CHANNEL = 2 => "fc";
        TCP = 3 => "tcp";
        INTRA_HOST = 254 => "loop";
    }
}

open_enum! {
    /// Address Family (ADRFAM): what the transport address is.
    pub struct AddressFamily(u8) {
        IPV4 = 1 => "ipv4";
        IPV6 = 2 => "ipv6";
        INFINIBAND = 3 => "ib";
        FIBRE_CHANNEL = 4 => "fc";
        INTRA_HOST = 254 => "loop";
    }
}

open_enum! {
    /// Subsystem Type (SUBTYPE).
    pub struct SubsystemType(u8) {
        REFERRAL = 1 => "discovery subsystem referral";
        NVM = 2 => "nvme subsystem";
        CURRENT_DISCOVERY = 3 => "current discovery subsystem";
    }
}

open_enum! {
    /// Whether a fabric secure channel is needed, in the transport requirements.
    pub struct SecureChannel(u8) {
        NOT_SPECIFIED = 0 => "not specified";
        REQUIRED = 1 => "required";
        NOT_REQUIRED = 2 => "not required";
    }
}

bits! {
    /// Transport Requirements (TREQ).
    pub struct TransportRequirements(u8 as u8) {
        /// Whether a fabric secure channel is needed.
        secure_channel / with_secure_channel: SecureChannel = 1:0;
        /// The controller can work without the flow control of submission queues.
        sq_flow_control_disable / with_sq_flow_control_disable: bool = 2:2;
    }
}

bits! {
    /// Entry Flags (EFLAGS).
    pub struct EntryFlags(U16 as u16) {
        /// Duplicate Returned Information: other ports of the discovery subsystem return the same.
        dupretinfo / with_dupretinfo: bool = 0:0;
        /// Explicit Persistent Connection Support for Discovery.
        epcsd / with_epcsd: bool = 1:1;
    }
}

/// Values of a discovery log entry's Controller ID which are no controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiscoveryCntlid;

impl DiscoveryCntlid {
    /// The subsystem has the dynamic controller model: Connect allocates a controller.
    pub const DYNAMIC: u16 = 0xffff;
    /// The subsystem has the static controller model: Connect may ask for any controller.
    pub const STATIC: u16 = 0xfffe;
}

wire! {
    /// The first 1024 bytes of the discovery log page.
    pub struct DiscoveryLogHeader[1024] {
        /// Generation Counter: it differs after any change of the log page.
        0 => pub genctr: U64,
        /// Number of Records: how many entries follow.
        8 => pub numrec: U64,
        /// Record Format; 0 is the only one.
        16 => pub recfmt: U16,
        18 => reserved18: [u8; 1006],
    }
}

wire! {
    /// A discovery log page entry: one subsystem at one port.
    pub struct DiscoveryLogEntry[1024] {
        /// Transport Type.
        0 => pub trtype: TransportType,
        /// Address Family.
        1 => pub adrfam: AddressFamily,
        /// Subsystem Type.
        2 => pub subtype: SubsystemType,
        /// Transport Requirements.
        3 => pub treq: TransportRequirements,
        /// Port ID: the same for all entries of one port of the subsystem.
        4 => pub portid: U16,
        /// Controller ID, or a value of [`DiscoveryCntlid`].
        6 => pub cntlid: U16,
        /// Admin Max SQ Size, in entries; at least 32.
        8 => pub asqsz: U16,
        /// Entry Flags.
        10 => pub eflags: EntryFlags,
        12 => reserved12: [u8; 20],
        /// Transport Service Identifier: the port number, for RDMA and TCP.
        32 => pub trsvcid: AsciiField<32>,
        64 => reserved64: [u8; 192],
        /// NVM Subsystem Qualified Name.
        256 => pub subnqn: NqnField,
        /// Transport Address: an IP address, for RDMA and TCP.
        512 => pub traddr: AsciiField<256>,
        /// Transport Specific Address Subtype; see [`Self::rdma`] and [`Self::tcp`].
        768 => pub tsas: [u8; 256],
    }
}

impl DiscoveryLogEntry {
    /// Transport Specific Address Subtype of an entry for RDMA.
    pub fn rdma(&self) -> Option<RdmaTsas> {
        (self.trtype == TransportType::RDMA).then(|| transmute!(self.tsas))
    }

    /// Transport Specific Address Subtype of an entry for TCP.
    pub fn tcp(&self) -> Option<TcpTsas> {
        (self.trtype == TransportType::TCP).then(|| transmute!(self.tsas))
    }

    /// Makes this an entry for RDMA.
    pub fn set_rdma(&mut self, tsas: RdmaTsas) {
        self.trtype = TransportType::RDMA;
        self.tsas = transmute!(tsas);
    }

    /// Makes this an entry for TCP.
    pub fn set_tcp(&mut self, tsas: TcpTsas) {
        self.trtype = TransportType::TCP;
        self.tsas = transmute!(tsas);
    }
}

open_enum! {
    /// RDMA QP Service Type (RDMA_QPTYPE).
    pub struct RdmaQpType(u8) {
        RELIABLE_CONNECTED = 1 => "connected";
        RELIABLE_DATAGRAM = 2 => "datagram";
    }
}

open_enum! {
    /// RDMA Provider Type (RDMA_PRTYPE).
    pub struct RdmaProviderType(u8) {
        NOT_SPECIFIED = 1 => "not specified";
        INFINIBAND = 2 => "infiniband";
        ROCE_V1 = 3 => "roce";
        ROCE_V2 = 4 => "roce-v2";
        IWARP = 5 => "iwarp";
    }
}

open_enum! {
    /// RDMA Connection Management Service (RDMA_CMS).
    pub struct ConnectionManagement(u8) {
        RDMA_CM = 1 => "rdma-cm";
    }
}

wire! {
    /// Transport Specific Address Subtype for RDMA (NVM Express RDMA Transport 1.0, section 3.1).
    pub struct RdmaTsas[256] {
        /// RDMA QP Service Type.
        0 => pub qptype: RdmaQpType,
        /// RDMA Provider Type.
        1 => pub prtype: RdmaProviderType,
        /// RDMA Connection Management Service.
        2 => pub cms: ConnectionManagement,
        3 => reserved3: [u8; 5],
        /// RDMA Partition Key; only for the address family InfiniBand.
        8 => pub pkey: U16,
        10 => reserved10: [u8; 246],
    }
}

impl RdmaTsas {
    /// A reliable connection made with RDMA CM, over such a provider.
    pub fn new(prtype: RdmaProviderType) -> Self {
        let (qptype, cms) = (RdmaQpType::RELIABLE_CONNECTED, ConnectionManagement::RDMA_CM);
        Self { qptype, prtype, cms, ..Self::zeroed() }
    }
}

open_enum! {
    /// Security Type (SECTYPE).
    pub struct TcpSecurityType(u8) {
        NONE = 0 => "none";
        TLS_1_2 = 1 => "tls";
        TLS_1_3 = 2 => "tls13";
    }
}

wire! {
    /// Transport Specific Address Subtype for TCP (NVM Express TCP Transport 1.0, section 3.1).
    pub struct TcpTsas[256] {
        /// Security Type.
        0 => pub sectype: TcpSecurityType,
        1 => reserved1: [u8; 255],
    }
}

impl TcpTsas {
    /// Connections with this security.
    pub fn new(sectype: TcpSecurityType) -> Self {
        Self { sectype, ..Self::zeroed() }
    }
}

/// The header and the whole entries at the start of a read of the log page from offset 0.
///
/// None when the bytes end before the header does. There may be fewer entries than the header announces, when
/// the read was shorter than the log page, and never more.
pub fn split_discovery_log(bytes: &[u8]) -> Option<(&DiscoveryLogHeader, &[DiscoveryLogEntry])> {
    let (header, rest) = DiscoveryLogHeader::ref_from_prefix(bytes).ok()?;
    let whole = rest.len() / mem::size_of::<DiscoveryLogEntry>();
    let count = usize::try_from(header.numrec.get()).map_or(whole, |announced| announced.min(whole));
    let (entries, _) = <[DiscoveryLogEntry]>::ref_from_prefix_with_elems(rest, count).ok()?;
    Some((header, entries))
}

#[cfg(test)]
mod tests {
    use std::string::ToString;
    use std::vec;
    use std::vec::Vec;

    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    use super::*;
    use crate::nqn::Nqn;

    fn entry() -> DiscoveryLogEntry {
        let mut entry = DiscoveryLogEntry {
            adrfam: AddressFamily::IPV4,
            subtype: SubsystemType::NVM,
            treq: TransportRequirements::default().with_sq_flow_control_disable(true),
            portid: U16::new(1),
            cntlid: U16::new(DiscoveryCntlid::DYNAMIC),
            asqsz: U16::new(32),
            trsvcid: AsciiField::new("4420").unwrap(),
            subnqn: NqnField::new(Nqn::new("nqn.2014-08.org.example:disk").unwrap()),
            traddr: AsciiField::new("192.0.2.1").unwrap(),
            ..DiscoveryLogEntry::zeroed()
        };
        entry.set_rdma(RdmaTsas::new(RdmaProviderType::IWARP));
        entry
    }

    #[test]
    fn an_entry_has_its_golden_bytes() {
        let entry = entry();
        let bytes = entry.as_bytes();
        assert_eq!(bytes[..12], [1, 1, 2, 4, 1, 0, 0xff, 0xff, 32, 0, 0, 0]);
        assert_eq!(&bytes[32..40], b"4420    ");
        assert_eq!(&bytes[256..285], b"nqn.2014-08.org.example:disk\0");
        assert_eq!(&bytes[512..524], b"192.0.2.1   ");
        assert_eq!(bytes[768..779], [1, 5, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn a_tsas_belongs_to_its_transport() {
        let mut entry = entry();
        assert_eq!(entry.rdma().unwrap().prtype.to_string(), "iwarp");
        assert_eq!(entry.tcp(), None);
        entry.set_tcp(TcpTsas { sectype: TcpSecurityType::TLS_1_3, ..TcpTsas::zeroed() });
        assert_eq!(entry.trtype, TransportType::TCP);
        assert_eq!(entry.tcp().unwrap().sectype, TcpSecurityType::TLS_1_3);
        assert_eq!(entry.rdma(), None);
    }

    /// A log page with a header that announces `numrec` entries, and `len` bytes in all.
    fn log(numrec: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let header = DiscoveryLogHeader { numrec: U64::new(numrec), ..DiscoveryLogHeader::zeroed() };
        let there = len.min(DiscoveryLogHeader::SIZE);
        bytes[..there].copy_from_slice(&header.as_bytes()[..there]);
        bytes
    }

    #[test]
    fn a_log_page_has_the_entries_that_are_announced_and_there() {
        let count = |numrec, len| split_discovery_log(&log(numrec, len)).map(|(_, entries)| entries.len());
        assert_eq!(count(0, 1023), None);
        assert_eq!(count(0, 1024), Some(0));
        assert_eq!(count(1, 1024 + 1023), Some(0));
        assert_eq!(count(1, 1024 + 1024), Some(1));
        assert_eq!(count(1, 1024 + 2048), Some(1));
        assert_eq!(count(u64::MAX, 1024 + 2048), Some(2));
    }

    proptest! {
        #[test]
        fn any_log_page_can_be_read(
            numrec: u64,
            entry in proptest::collection::vec(any::<u8>(), 1024),
            len in 0..4096_usize,
        ) {
            let mut bytes = log(numrec, len);
            for place in bytes.get_mut(1024..).unwrap_or_default().chunks_mut(1024) {
                place.copy_from_slice(&entry[..place.len()]);
            }
            if let Some((header, entries)) = split_discovery_log(&bytes) {
                prop_assert!(entries.len() as u64 <= header.numrec.get());
                for found in entries {
                    prop_assert_eq!(found.as_bytes(), &entry);
                    prop_assert_eq!(found.rdma().is_some(), entry[0] == 1);
                    prop_assert!(found.traddr.to_string().len() <= 256);
                }
            }
        }
    }
}
