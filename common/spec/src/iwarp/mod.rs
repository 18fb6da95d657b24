//! iWARP: the layers that carry RDMA over a TCP stream. Everything here is big-endian.
//!
//! An FPDU (RFC 5044) holds one DDP segment (RFC 5041), whose second control byte and, in untagged segments,
//! whose first word belong to RDMAP (RFC 5040).

mod ddp;
mod mpa;
mod terminate;

pub use ddp::{
    DdpControl, QueueNumber, RdmapControl, RdmapOpcode, ReadRequest, TaggedHeader, UntaggedHeader,
};
pub use mpa::{
    DEPTH_MAX, EnhancedHeader, FPDU_CRC_SIZE, FPDU_LENGTH_SIZE, InboundDepth, MPA_KEY_REPLY, MPA_KEY_REQUEST,
    MPA_PRIVATE_DATA_BYTES_MAX, MpaFlags, MpaHeader, OutboundDepth, fpdu_padding, fpdu_size,
};
pub use terminate::{TerminateCode, TerminateControl, TerminateLayer, TerminateWord};
