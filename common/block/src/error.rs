//! What can go wrong with a disk.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why a disk could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The system refused.
    #[error("cannot open {path}: {source}")]
    Open {
        /// Which file or device.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// What is there cannot serve as a disk of this shape.
    #[error("{path} {reason}")]
    Unsuitable {
        /// Which file or device.
        path: PathBuf,
        /// Why, as the end of a sentence that begins with the path.
        reason: String,
    },
    /// A driver cannot open its device on this core.
    #[error("cannot open {name}: {reason}")]
    Device {
        /// What the driver serves.
        name: String,
        /// Why not.
        reason: String,
    },
}

/// Why an operation failed. Devices make these, and whoever serves disks names them all: so another one concerns no
/// device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlockError {
    /// The range is not within the disk.
    #[error("beyond the end of the disk")]
    OutOfRange,
    /// Offset, length or memory are not aligned as the disk needs.
    #[error("not aligned as the disk needs")]
    Misaligned,
    /// The disk cannot be written.
    #[error("the disk is read only")]
    ReadOnly,
    /// No space is left behind the disk (a thin volume, a sparse file).
    #[error("no space left")]
    NoSpace,
    /// The disk does not do this.
    #[error("not supported by the disk")]
    NotSupported,
    /// The file has become shorter than the disk that it is.
    #[error("the file has become shorter")]
    Shrunk,
    /// The disk is gone.
    #[error("the disk is gone")]
    Removed,
    /// A read failed for good.
    #[error("read error")]
    Read,
    /// A write, flush or deallocation failed for good.
    #[error("write error")]
    Write,
    /// A compare-and-write has found something else than what was expected, and has written nothing.
    #[error("the disk has something else")]
    Miscompare,
    /// More operations are in flight than the disk can tell apart. Trying again later helps.
    #[error("too many operations are in flight")]
    Busy,
    /// An NVMe drive has completed the operation with this status, which is not success. Its code and Do Not Retry are
    /// what a host is told; the rest concerns the drive's own controller.
    #[error("the drive's status is {0}")]
    Drive(DriveStatus),
    /// The operation was given up because the disk was closed.
    #[error("cancelled")]
    Cancelled,
}

/// The Status Field of an NVMe completion, bits 31:17 of its dword 3 (NVM Express Base 2.0, section 3.3.3.2.1). This
/// crate does not know what it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriveStatus(u16);

impl DriveStatus {
    /// From the 15 bits, without the phase tag: the Status Code in bits 7:0, its type in 10:8, Do Not Retry in 14. A
    /// 16th bit is dropped.
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits & 0x7fff)
    }

    /// The 15 bits.
    pub const fn bits(self) -> u16 {
        self.0
    }
}

/// For people: type and code.
impl fmt::Display for DriveStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#05x}", self.0 & 0x07ff)
    }
}
