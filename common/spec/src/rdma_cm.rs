//! Private data of the RDMA connection manager (NVM Express RDMA Transport 1.0, section 3.5).

use zerocopy::FromBytes;
use zerocopy::little_endian::U16;

use crate::macros::{open_enum, wire};

wire! {
    /// What a host says when it asks for a connection.
    #[derive(Copy)]
    pub struct Request[32] {
        /// Record format; zero.
        0 => pub recfmt: U16,
        /// Queue Identifier; zero is the admin queue.
        2 => pub qid: U16,
        /// RDMA QP Host Receive Queue Size: how many responses the host can receive.
        4 => pub hrqsize: U16,
        /// RDMA QP Host Send Queue Size, zero's based: the size of the submission queue.
        6 => pub hsqsize_z: U16,
        /// Controller Identifier that an I/O queue will connect to, so that its resources can be near it; zero when
        /// unknown.
        8 => pub cntlid: U16,
        10 => reserved: [u8; 22],
    }
}

wire! {
    /// What a controller says when it accepts.
    #[derive(Copy)]
    pub struct Accept[32] {
        /// Record format; zero.
        0 => pub recfmt: U16,
        /// RDMA QP Controller Receive Queue Size: how many commands it can receive.
        2 => pub crqsize: U16,
        4 => reserved: [u8; 28],
    }
}

wire! {
    /// What a controller says when it refuses.
    #[derive(Copy)]
    pub struct Reject[4] {
        /// Record format; zero.
        0 => pub recfmt: U16,
        /// Status.
        2 => sts: U16,
    }
}

open_enum! {
    /// Why a connection was refused (RDMA Transport 1.0, figure "RDMA_CM_REJECT Status").
    pub struct RejectStatus(u16) {
        INVALID_PRIVATE_DATA_LENGTH = 0x01 => "Invalid Private Data Length";
        INVALID_RECFMT = 0x02 => "Invalid RECFMT";
        INVALID_QID = 0x03 => "Invalid QID";
        INVALID_HSQSIZE = 0x04 => "Invalid HSQSIZE";
        INVALID_HRQSIZE = 0x05 => "Invalid HRQSIZE";
        NO_RESOURCES = 0x06 => "No Resources";
        INVALID_IRD = 0x07 => "Invalid IRD";
        INVALID_ORD = 0x08 => "Invalid ORD";
        INVALID_CNTLID = 0x09 => "Invalid CNTLID";
    }
}

impl Request {
    /// The request for a queue of `entries` entries.
    pub fn new(qid: u16, entries: u16, hrqsize: u16, cntlid: u16) -> Self {
        Self {
            qid: U16::new(qid),
            hrqsize: U16::new(hrqsize),
            hsqsize_z: U16::new(entries.saturating_sub(1)),
            cntlid: U16::new(cntlid),
            ..Self::zeroed()
        }
    }

    /// Reads a host's private data; a provider may have padded it at the end.
    ///
    /// # Errors
    /// The status to refuse with.
    pub fn parse(private_data: &[u8]) -> Result<Self, RejectStatus> {
        let (request, _) =
            Self::read_from_prefix(private_data).map_err(|_| RejectStatus::INVALID_PRIVATE_DATA_LENGTH)?;
        if request.recfmt.get() != 0 {
            return Err(RejectStatus::INVALID_RECFMT);
        }
        Ok(request)
    }

    /// Entries of the submission queue: HSQSIZE counts from zero.
    pub fn entries(&self) -> u32 {
        u32::from(self.hsqsize_z.get()) + 1
    }
}

impl Accept {
    /// The answer of a controller that can receive so many commands.
    pub fn new(crqsize: u16) -> Self {
        Self { crqsize: U16::new(crqsize), ..Self::zeroed() }
    }
}

impl Reject {
    /// A refusal.
    pub fn new(status: RejectStatus) -> Self {
        Self { sts: U16::new(status.0), ..Self::zeroed() }
    }

    /// Why.
    pub fn status(&self) -> RejectStatus {
        RejectStatus(self.sts.get())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    use super::*;

    #[test]
    fn a_request_has_its_golden_bytes() {
        let request = Request::new(3, 128, 129, 0x1234);
        let mut golden = [0; 32];
        golden[..10].copy_from_slice(&[0, 0, 3, 0, 129, 0, 127, 0, 0x34, 0x12]);
        assert_eq!(request.as_bytes(), golden);
        assert_eq!(request.entries(), 128);
    }

    #[test]
    fn an_answer_has_its_golden_bytes() {
        assert_eq!(&Accept::new(0x0102).as_bytes()[..4], [0, 0, 2, 1]);
        let reject = Reject::new(RejectStatus::NO_RESOURCES);
        assert_eq!(reject.as_bytes(), [0, 0, 6, 0]);
        assert_eq!(std::format!("{}", reject.status()), "No Resources");
    }

    #[test]
    fn a_request_that_is_short_or_of_another_format_is_refused_with_its_status() {
        assert_eq!(Request::parse(&[0; 31]), Err(RejectStatus::INVALID_PRIVATE_DATA_LENGTH));
        let mut bytes = [0; 40];
        assert!(Request::parse(&bytes).is_ok());
        bytes[0] = 1;
        assert_eq!(Request::parse(&bytes), Err(RejectStatus::INVALID_RECFMT));
    }

    proptest! {
        #[test]
        fn any_private_data_are_a_request_or_are_refused_with_the_reason(
            bytes in proptest::collection::vec(any::<u8>(), 0..80),
            tame: bool,
        ) {
            let mut bytes = bytes;
            if tame {
                bytes.iter_mut().take(2).for_each(|byte| *byte = 0);
            }
            match Request::parse(&bytes) {
                Ok(request) => {
                    prop_assert_eq!(request.as_bytes(), &bytes[..32]);
                    prop_assert!((1..=65_536).contains(&request.entries()));
                }
                Err(RejectStatus::INVALID_PRIVATE_DATA_LENGTH) => prop_assert!(bytes.len() < 32),
                Err(status) => {
                    prop_assert_eq!(status, RejectStatus::INVALID_RECFMT);
                    prop_assert!(bytes[..2] != [0, 0]);
                }
            }
        }
    }
}
