//! What a peer can do wrong, and the Terminate that answers it (RFC 5040, section 4.8; RFC 5041, section 7; RFC 5044,
//! section 8; RFC 6581, section 9).

use ringfab_spec::iwarp::{RdmapOpcode, TerminateCode};
use thiserror::Error;

use super::region::{Access, RegionError, RegionErrorKind};

/// A rule that the peer broke, with the numbers it used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Violation {
    /// The CRC field does not match the bytes (RFC 5044, section 4.4).
    #[error("an FPDU carries CRC {carried:02x?}, but its bytes give {computed:02x?}")]
    Crc {
        /// The four bytes of the CRC field.
        carried: [u8; 4],
        /// The bytes that the field should hold.
        computed: [u8; 4],
    },
    /// The ULPDU length is smaller than the header it must hold.
    #[error("an FPDU announces a ULPDU of {len} bytes, too short for its {need}-byte header")]
    ShortUlpdu {
        /// The announced ULPDU length in bytes.
        len: usize,
        /// The shortest valid length in bytes.
        need: usize,
    },
    /// A DDP version other than 1 (RFC 5041, section 4.1).
    #[error("a segment has DDP version {version}, only 1 is known")]
    DdpVersion {
        /// Whether the segment is tagged.
        tagged: bool,
        /// The version it carries.
        version: u8,
    },
    /// An RDMAP version other than 1 (RFC 5040, section 4.1).
    #[error("a segment has RDMAP version {version}, only 1 is known")]
    RdmapVersion {
        /// The version it carries.
        version: u8,
    },
    /// An opcode that is reserved, or not allowed on this queue or in this state.
    #[error("RDMAP opcode {} ({opcode}) is not allowed {place}", .opcode.0)]
    UnexpectedOpcode {
        /// The opcode.
        opcode: RdmapOpcode,
        /// Where it was found.
        place: &'static str,
    },
    /// A queue number other than 0, 1 and 2.
    #[error("an untagged segment names queue {qn}, only 0, 1 and 2 exist")]
    QueueNumber {
        /// The queue number.
        qn: u32,
    },
    /// A Send arrived and no receive buffer is posted.
    #[error("a Send with MSN {msn} arrived while no receive buffer was posted")]
    NoReceiveBuffer {
        /// The message sequence number.
        msn: u32,
    },
    /// More Read Requests than the negotiated IRD.
    #[error("a Read Request with MSN {msn} exceeds the negotiated limit of {ird} outstanding reads")]
    TooManyReads {
        /// The message sequence number.
        msn: u32,
        /// The negotiated IRD.
        ird: usize,
    },
    /// A message sequence number that is not the next one.
    #[error("queue {qn} got MSN {msn}, expected {expected}")]
    MessageSequence {
        /// The queue number.
        qn: u32,
        /// What the segment carries.
        msn: u32,
        /// What it should carry.
        expected: u32,
    },
    /// A message offset that does not continue the message.
    #[error("queue {qn} got message offset {mo}, expected {expected}")]
    MessageOffset {
        /// The queue number.
        qn: u32,
        /// What the segment carries.
        mo: u32,
        /// What it should carry.
        expected: u32,
    },
    /// A Send that is longer than the receive buffer it consumes.
    #[error("a Send reaches byte {end}, its receive buffer holds {room}")]
    MessageTooLong {
        /// The offset behind the last byte of the segment.
        end: u64,
        /// The length of the buffer in bytes.
        room: u32,
    },
    /// The segments of one Send disagree on opcode or STag to invalidate.
    #[error("a Send changes its opcode or STag between segments: opcode {opcode}, first was {first}")]
    MixedMessage {
        /// The opcode of the offending segment.
        opcode: RdmapOpcode,
        /// The opcode of the first segment.
        first: RdmapOpcode,
    },
    /// A Read Request or Terminate of impossible length, or in more than one segment.
    #[error("a {message} has {len} bytes of payload, which is not possible")]
    ControlLength {
        /// The name of the message.
        message: &'static str,
        /// The bytes behind the DDP header.
        len: usize,
    },
    /// An access through an STag that the region table refuses.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// A Read Response while no read is outstanding.
    #[error("a Read Response to STag {stag:#010x} arrived while no read is outstanding")]
    UnaskedResponse {
        /// The sink STag it names.
        stag: u32,
    },
    /// A Read Response for another sink than that of the oldest outstanding read.
    #[error("a Read Response names STag {stag:#010x}, the oldest read expects {expected:#010x}")]
    ResponseStag {
        /// The sink STag it names.
        stag: u32,
        /// The sink STag of the read.
        expected: u32,
    },
    /// A Read Response that does not continue where the last one ended, or overruns the read.
    #[error(
        "a Read Response places {len} bytes at {to:#x}, the read expects at most {room} at {expected:#x}"
    )]
    ResponseBounds {
        /// The tagged offset it names.
        to: u64,
        /// Its payload in bytes.
        len: u32,
        /// The tagged offset that is next.
        expected: u64,
        /// The bytes that are missing.
        room: u32,
    },
    /// The last flag of a Read Response does not agree with the length of the read.
    #[error("a Read Response ends with {missing} bytes of the read missing (last flag: {last})")]
    ResponseEnd {
        /// The bytes that are missing behind it.
        missing: u32,
        /// Whether the last flag is set.
        last: bool,
    },
    /// A Send with Invalidate for an STag that cannot be invalidated.
    #[error("STag {stag:#010x} cannot be invalidated by this peer")]
    CannotInvalidate {
        /// The STag.
        stag: u32,
    },
}

impl Violation {
    /// The Terminate that answers this violation.
    #[must_use]
    pub fn terminate_code(&self) -> TerminateCode {
        match self {
            Self::Crc { .. } => TerminateCode::MPA_CRC,
            Self::ShortUlpdu { .. } => TerminateCode::DDP_LOCAL_CATASTROPHIC,
            Self::DdpVersion { tagged: true, .. } => TerminateCode::DDP_TAGGED_INVALID_VERSION,
            Self::DdpVersion { tagged: false, .. } => TerminateCode::DDP_UNTAGGED_INVALID_VERSION,
            Self::RdmapVersion { .. } => TerminateCode::RDMAP_INVALID_VERSION,
            Self::UnexpectedOpcode { .. } | Self::UnaskedResponse { .. } | Self::MixedMessage { .. } => {
                TerminateCode::RDMAP_UNEXPECTED_OPCODE
            }
            Self::QueueNumber { .. } => TerminateCode::DDP_INVALID_QN,
            Self::NoReceiveBuffer { .. } | Self::TooManyReads { .. } => TerminateCode::DDP_NO_BUFFER,
            Self::MessageSequence { .. } => TerminateCode::DDP_MSN_RANGE,
            Self::MessageOffset { .. } => TerminateCode::DDP_INVALID_MO,
            Self::MessageTooLong { .. } => TerminateCode::DDP_MESSAGE_TOO_LONG,
            Self::ControlLength { .. } | Self::ResponseEnd { .. } => TerminateCode::RDMAP_CATASTROPHIC_STREAM,
            Self::Region(error) => region_code(error),
            Self::ResponseStag { .. } => TerminateCode::DDP_INVALID_STAG,
            Self::ResponseBounds { .. } => TerminateCode::DDP_BASE_OR_BOUNDS,
            Self::CannotInvalidate { .. } => TerminateCode::RDMAP_PROTECTION_CANNOT_INVALIDATE,
        }
    }
}

/// DDP detects what is wrong with the target of an RDMA Write, RDMAP what is wrong with the source of a read; DDP has
/// no code for missing access rights, so that one is always RDMAP's.
fn region_code(error: &RegionError) -> TerminateCode {
    match (error.kind, error.access) {
        (RegionErrorKind::InvalidStag, Access::RemoteWrite) => TerminateCode::DDP_INVALID_STAG,
        (RegionErrorKind::BaseOrBounds, Access::RemoteWrite) => TerminateCode::DDP_BASE_OR_BOUNDS,
        (RegionErrorKind::NotAssociated, Access::RemoteWrite) => TerminateCode::DDP_STAG_NOT_ASSOCIATED,
        (RegionErrorKind::ToWrap, Access::RemoteWrite) => TerminateCode::DDP_TO_WRAP,
        (RegionErrorKind::InvalidStag, Access::RemoteRead) => TerminateCode::RDMAP_INVALID_STAG,
        (RegionErrorKind::BaseOrBounds, Access::RemoteRead) => TerminateCode::RDMAP_BASE_OR_BOUNDS,
        (RegionErrorKind::NotAssociated, Access::RemoteRead) => TerminateCode::RDMAP_STAG_NOT_ASSOCIATED,
        (RegionErrorKind::ToWrap, Access::RemoteRead) => TerminateCode::RDMAP_TO_WRAP,
        (RegionErrorKind::AccessRights, _) => TerminateCode::RDMAP_ACCESS_RIGHTS,
    }
}

/// A Terminate that the peer sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TerminateReceived {
    /// What the peer objects to.
    pub code: TerminateCode,
}

/// Why a queue pair ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum EngineError {
    /// The peer broke a rule; a Terminate is ready to be transmitted.
    #[error("the peer broke the protocol: {0}")]
    Violation(#[from] Violation),
    /// The peer sent a Terminate.
    #[error("the peer terminated the connection: {}", .0.code)]
    Terminated(TerminateReceived),
    /// The stream ended inside an FPDU.
    #[error("the peer closed the stream inside an FPDU, {missing} bytes before the end of a field")]
    Truncated {
        /// The number of bytes that were needed to go on.
        missing: usize,
    },
    /// The stream ended between FPDUs, as RFC 5044 (section 6) provides.
    #[error("the peer closed the stream")]
    Closed,
    /// This side ended the connection.
    #[error("this side ended the connection: {0}")]
    Local(TerminateCode),
}
