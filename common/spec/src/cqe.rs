//! Completion queue entries (NVM Express Base 2.0, section 3.3.3.2) and the Fabrics responses in them
//! (section 6).

use zerocopy::little_endian::{U16, U32};

use crate::macros::wire;
use crate::status::Status;

wire! {
    /// A completion queue entry; on fabrics, the first and only part of a response capsule.
    #[derive(Copy)]
    pub struct CompletionEntry[16, align 8] {
        /// Command specific, or the low half of a property's value.
        0 => pub dw0: U32,
        /// Command specific, or the high half of a property's value.
        4 => pub dw1: U32,
        /// Submission Queue Head Pointer: the flow control of the submission queue.
        8 => pub sqhd: U16,
        /// Submission Queue Identifier; reserved on fabrics.
        10 => pub sqid: U16,
        /// Command Identifier of the command that completed.
        12 => pub cid: U16,
        /// The Status Field in bits 15:1; bit 0 is the phase tag, reserved on fabrics.
        14 => pub status_field: U16,
    }
}

impl CompletionEntry {
    /// The completion of a command with a status; `dw0` and `dw1` are zero.
    pub fn new(cid: u16, sqhd: u16, status: Status) -> Self {
        Self {
            sqhd: U16::new(sqhd),
            cid: U16::new(cid),
            status_field: U16::new(status.bits() << 1),
            ..Self::zeroed()
        }
    }

    /// A successful completion.
    pub fn success(cid: u16, sqhd: u16) -> Self {
        Self::new(cid, sqhd, Status::SUCCESS)
    }

    /// This completion with a result in `dw0`.
    #[must_use]
    pub fn with_dw0(self, dw0: u32) -> Self {
        Self { dw0: U32::new(dw0), ..self }
    }

    /// This completion with a 64-bit result, low half first: the value of a Property Get.
    #[must_use]
    pub fn with_result(self, result: u64) -> Self {
        Self { dw0: U32::new(result as u32), dw1: U32::new((result >> 32) as u32), ..self }
    }

    /// The completion of a Connect that succeeded, with the controller's identifier.
    pub fn connected(cid: u16, sqhd: u16, cntlid: u16) -> Self {
        Self::success(cid, sqhd).with_dw0(u32::from(cntlid))
    }

    /// The status of the command.
    pub fn status(&self) -> Status {
        Status::from_bits(self.status_field.get() >> 1)
    }

    /// The 64-bit result.
    pub fn result(&self) -> u64 {
        u64::from(self.dw1.get()) << 32 | u64::from(self.dw0.get())
    }

    /// Controller identifier in the completion of a Connect that succeeded.
    pub fn connect_cntlid(&self) -> u16 {
        (self.dw0.get() & 0xffff) as u16
    }

    /// Authentication requirements in the completion of a Connect that succeeded; zero when none.
    pub fn connect_authreq(&self) -> u16 {
        (self.dw0.get() >> 16) as u16
    }

    /// Which field the controller refused, in a completion with Connect Invalid Parameters.
    pub fn connect_parameter(&self) -> ConnectParameter {
        ConnectParameter::from_dw0(self.dw0.get())
    }
}

/// The field of a Connect that its controller refused (Base 2.0, section 6.3: IPO and IATTR).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectParameter {
    /// Byte offset in the submission queue entry.
    Command(u16),
    /// Byte offset in the Connect data.
    Data(u16),
}

impl ConnectParameter {
    const IN_DATA: u32 = 1 << 16;

    /// As the completion carries it in its first dword.
    pub const fn to_dw0(self) -> u32 {
        match self {
            Self::Command(offset) => offset as u32,
            Self::Data(offset) => Self::IN_DATA | offset as u32,
        }
    }

    /// From the first dword of a completion.
    pub const fn from_dw0(dw0: u32) -> Self {
        let offset = (dw0 & 0xffff) as u16;
        if dw0 & Self::IN_DATA == 0 { Self::Command(offset) } else { Self::Data(offset) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zerocopy::{FromBytes, IntoBytes};

    use super::*;

    #[test]
    fn a_completion_has_its_golden_bytes() {
        let entry = CompletionEntry::new(0x1234, 0x0056, Status::LBA_OUT_OF_RANGE.with_dnr());
        let golden = [0, 0, 0, 0, 0, 0, 0, 0, 0x56, 0, 0, 0, 0x34, 0x12, 0x00, 0x81];
        assert_eq!(entry.as_bytes(), golden);
    }

    #[test]
    fn a_property_value_has_its_low_half_first() {
        let entry = CompletionEntry::success(1, 2).with_result(0x0102_0304_0506_0708);
        assert_eq!(&entry.as_bytes()[..8], [8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(entry.result(), 0x0102_0304_0506_0708);
    }

    #[test]
    fn a_refused_connect_says_where_the_field_is() {
        let status = Status::CONNECT_INVALID_PARAMETERS.with_dnr();
        let entry = CompletionEntry::new(7, 0, status).with_dw0(ConnectParameter::Data(256).to_dw0());
        assert_eq!(entry.as_bytes(), [0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0x04, 0x83]);
        assert_eq!(entry.connect_parameter(), ConnectParameter::Data(256));
        assert_eq!(entry.status().code(), Status::CONNECT_INVALID_PARAMETERS);
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_entry_and_go_out_unchanged(bytes: [u8; 16]) {
            let entry = CompletionEntry::read_from_bytes(&bytes).unwrap();
            prop_assert_eq!(entry.as_bytes(), bytes);
            prop_assert_eq!(CompletionEntry::zeroed().with_result(entry.result()).result(), entry.result());
            let parameter = entry.connect_parameter();
            prop_assert_eq!(ConnectParameter::from_dw0(parameter.to_dw0()), parameter);
            let status = entry.status();
            prop_assert_eq!(CompletionEntry::new(0, 0, status).status(), status);
        }
    }
}
