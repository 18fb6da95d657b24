//! Why a command failed, with the place of the field that was wrong.

use ringfab_spec::Status;

/// Where in a submission queue entry the first wrong field is (NVM Express Base 2.0, figure "Error Information Log
/// Entry", Parameter Error Location).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorLocation {
    /// Offset of the byte in the submission queue entry.
    pub byte: u16,
    /// Lowest bit of the field in that byte, 0 to 7.
    pub bit: u8,
}

impl ErrorLocation {
    /// A field that begins with a byte.
    pub const fn byte(byte: u16) -> Self {
        Self { byte, bit: 0 }
    }
}

/// The completion of a command that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{status}")]
pub struct Failure {
    /// The status, Do Not Retry included.
    pub status: Status,
    /// Dword 0 of the completion: for Connect Invalid Parameters the place of the wrong parameter, else zero.
    pub dw0: u32,
    /// Where in the command the wrong field is, when there is one.
    pub location: Option<ErrorLocation>,
}

impl Failure {
    /// A failure that will repeat if the same command is sent again.
    pub const fn new(status: Status) -> Self {
        Self { status: status.with_dnr(), dw0: 0, location: None }
    }

    /// A failure which another try may not meet.
    pub const fn transient(status: Status) -> Self {
        Self { status, dw0: 0, location: None }
    }

    /// A failure caused by the field that begins at `byte` of the command.
    pub const fn at(status: Status, byte: u16) -> Self {
        Self { status: status.with_dnr(), dw0: 0, location: Some(ErrorLocation::byte(byte)) }
    }

    /// A failure caused by the field that begins at `bit` of `byte` of the command.
    pub const fn at_bit(status: Status, byte: u16, bit: u8) -> Self {
        Self { status: status.with_dnr(), dw0: 0, location: Some(ErrorLocation { byte, bit }) }
    }

    /// Connect Invalid Parameters, for the field of the command that begins at `byte`.
    pub const fn invalid_connect_command(byte: u16) -> Self {
        let (status, location) = (Status::CONNECT_INVALID_PARAMETERS.with_dnr(), ErrorLocation::byte(byte));
        Self { status, dw0: byte as u32, location: Some(location) }
    }

    /// Connect Invalid Parameters, for the field of its data that begins at `byte` (IATTR is 1).
    pub const fn invalid_connect_data(byte: u16) -> Self {
        let status = Status::CONNECT_INVALID_PARAMETERS.with_dnr();
        Self { status, dw0: byte as u32 | 1 << 16, location: None }
    }

    /// Invalid Field in Command, for the field that begins at `byte`.
    pub const fn invalid_field(byte: u16) -> Self {
        Self::at(Status::INVALID_FIELD, byte)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_that_repeats_says_do_not_retry() {
        assert!(Failure::new(Status::INVALID_FIELD).status.dnr());
        assert!(!Failure::transient(Status::NAMESPACE_NOT_READY).status.dnr());
    }
}
