//! Where the host keeps a command's data.

use ringfab_spec::{Sgl, Status, SubmissionEntry};

use super::{Action, DataBytes, Transfer, at};
use crate::failure::Failure;

/// Where the host keeps a command's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostMemory {
    /// Nowhere: the command has none.
    None,
    /// In the capsule, behind the command.
    Capsule { offset: u32 },
    /// In memory that the host registered.
    Registered { address: u64, key: u32, invalidate: bool },
    /// Wherever it likes: the transport moves the data by the command's identifier.
    Transport,
}

/// Where the host keeps `transfer`, from the command's SGL. `capsule_bytes` came behind the command.
pub(crate) fn host_memory(
    command: &SubmissionEntry,
    action: Action,
    transfer: Transfer,
    capsule_bytes: u32,
) -> Result<HostMemory, Failure> {
    // Fabrics commands transfer by SGL only (PSDT 01b); 10b differs in the metadata, which we have none of.
    if !matches!(command.psdt(), 1 | 2) {
        return Err(Failure::at_bit(Status::INVALID_FIELD, at::FLAGS, 6));
    }
    let needed = transfer.length();
    if needed == DataBytes(0) {
        return Ok(HostMemory::None);
    }
    let sgl = command.sgl.parse();
    let sgl = sgl.map_err(|_| Failure::at(Status::SGL_TYPE_INVALID, at::DATA_POINTER + 15))?;
    match sgl {
        Sgl::KeyedDataBlock { address, length, key, invalidate } => {
            check_length(DataBytes(length), needed, action)?;
            if address.checked_add(u64::from(length)).is_none() {
                return Err(Failure::at(Status::INVALID_FIELD, at::DATA_POINTER));
            }
            Ok(HostMemory::Registered { address, key, invalidate })
        }
        Sgl::TransportDataBlock { length } => {
            check_length(DataBytes(length), needed, action)?;
            Ok(HostMemory::Transport)
        }
        Sgl::DataBlockOffset { offset, length } => {
            check_length(DataBytes(length), needed, action)?;
            if !matches!(transfer, Transfer::ToController(_)) {
                return Err(Failure::at(Status::SGL_TYPE_INVALID, at::DATA_POINTER + 15));
            }
            let inside =
                offset.checked_add(u64::from(length)).is_some_and(|end| end <= u64::from(capsule_bytes));
            if !inside {
                return Err(Failure::at(Status::SGL_OFFSET_INVALID, at::DATA_POINTER));
            }
            Ok(HostMemory::Capsule { offset: offset as u32 })
        }
        _ => Err(Failure::at(Status::SGL_TYPE_INVALID, at::DATA_POINTER + 15)),
    }
}

/// A descriptor for memory that the command's transport cannot reach.
pub(crate) const SGL_OF_ANOTHER_TRANSPORT: Failure =
    Failure::at(Status::SGL_TYPE_INVALID, at::DATA_POINTER + 15);

/// A descriptor names as many bytes as the command transfers. Only those of lists of ranges may name more: Linux always
/// describes the memory for all 256 ranges of Dataset Management.
fn check_length(length: DataBytes, needed: DataBytes, action: Action) -> Result<(), Failure> {
    let longer = action.kind().has_list && length > needed;
    if longer || length == needed {
        return Ok(());
    }
    Err(Failure::at(Status::DATA_SGL_LENGTH_INVALID, at::SGL_LENGTH))
}
