//! From a command's bytes to work that can only be valid, or to the failure that the host is told.

use ringfab_spec::{IoOpcode, Sgl, Status, SubmissionEntry};

use crate::failure::Failure;
use crate::namespace::Namespace;

/// Bytes that one command may transfer: 2^8 units of the smallest page, as Identify says in MDTS.
pub(crate) const TRANSFER_BYTES_MAX: u32 = 1 << 20;

/// Offsets of fields in a submission queue entry, for error locations.
mod at {
    pub(super) const FLAGS: u16 = 1;
    pub(super) const NSID: u16 = 4;
    pub(super) const DATA_POINTER: u16 = 24;
    pub(super) const SGL_LENGTH: u16 = 32;
    pub(super) const CDW10: u16 = 40;
    pub(super) const CDW12: u16 = 48;
}

/// A range of a namespace, checked against its size when it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Which disk of the core.
    pub(crate) disk: usize,
    /// First byte on the disk.
    pub(crate) offset: u64,
    /// Bytes.
    pub(crate) length: u64,
}

/// What a request does between its data's arrival and its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Nothing more: it has failed already.
    Nothing,
    /// Read the range and send it to the host.
    Read(Extent),
    /// Write the host's data to the range.
    Write { extent: Extent, durable: bool },
    /// Read the range and compare it with the host's data.
    Compare(Extent),
    /// Make the range zeroes.
    WriteZeroes { extent: Extent, deallocate: bool, durable: bool },
    /// Make what was written to a disk durable.
    Flush { disk: usize },
    /// The same for every disk of the subsystem, in rounds; so many have begun.
    FlushAll { rounds: u8 },
    /// Deallocate the ranges that the host's data lists; `next` is the first not yet begun.
    Discard { disk: usize, ranges: u16, next: u16 },
    /// An admin or Fabrics command, for the controller.
    Controller,
}

/// The direction and size of a command's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transfer {
    /// None.
    None,
    /// From the host.
    ToController(u32),
    /// To the host.
    ToHost(u32),
}

impl Transfer {
    /// Bytes, in either direction.
    pub(crate) fn length(self) -> u32 {
        match self {
            Self::None => 0,
            Self::ToController(length) | Self::ToHost(length) => length,
        }
    }
}

/// Where the host keeps a command's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostMemory {
    /// Nowhere: the command has none.
    None,
    /// In the capsule, behind the command.
    Capsule { offset: u32 },
    /// In memory that the host registered.
    Registered { address: u64, key: u32, invalidate: bool },
}

/// What an I/O command asks for.
pub(crate) fn io_work(
    command: &SubmissionEntry,
    namespace: impl Fn(u32) -> Option<NamespaceView>,
) -> Result<(Work, Transfer), Failure> {
    if command.fuse() != 0 {
        return Err(Failure::at(Status::INVALID_FIELD, at::FLAGS));
    }
    let nsid = command.nsid.get();
    let opcode = command.opcode;
    if opcode == IoOpcode::FLUSH.0 && nsid == u32::MAX {
        return Ok((Work::FlushAll { rounds: 0 }, Transfer::None));
    }
    let view = namespace(nsid).ok_or(Failure::at(Status::INVALID_NAMESPACE, at::NSID))?;
    if !view.ready {
        return Err(Failure::transient(Status::NAMESPACE_NOT_READY));
    }
    match IoOpcode(opcode) {
        IoOpcode::READ => read_or_compare(command, &view, Work::Read, Transfer::ToHost),
        IoOpcode::COMPARE => read_or_compare(command, &view, Work::Compare, Transfer::ToController),
        IoOpcode::WRITE => write(command, &view),
        IoOpcode::FLUSH => Ok((Work::Flush { disk: view.disk }, Transfer::None)),
        IoOpcode::WRITE_ZEROES => write_zeroes(command, &view),
        IoOpcode::DATASET_MANAGEMENT => dataset_management(command, &view),
        _ => Err(Failure::at(Status::INVALID_OPCODE, 0)),
    }
}

/// Where the host keeps `transfer`, from the command's SGL. `capsule_bytes` came behind the command.
pub(crate) fn host_memory(
    command: &SubmissionEntry,
    (work, transfer): (Work, Transfer),
    capsule_bytes: u32,
) -> Result<HostMemory, Failure> {
    // Fabrics commands transfer by SGL only (PSDT 01b); 10b differs in the metadata, which we have none of.
    if !matches!(command.psdt(), 1 | 2) {
        return Err(Failure::at_bit(Status::INVALID_FIELD, at::FLAGS, 6));
    }
    let needed = transfer.length();
    if needed == 0 {
        return Ok(HostMemory::None);
    }
    let sgl = command.sgl.parse();
    let sgl = sgl.map_err(|_| Failure::at(Status::SGL_TYPE_INVALID, at::DATA_POINTER + 15))?;
    match sgl {
        Sgl::KeyedDataBlock { address, length, key, invalidate } => {
            check_length(length, needed, work)?;
            if address.checked_add(u64::from(length)).is_none() {
                return Err(Failure::at(Status::INVALID_FIELD, at::DATA_POINTER));
            }
            Ok(HostMemory::Registered { address, key, invalidate })
        }
        Sgl::DataBlockOffset { offset, length } => {
            check_length(length, needed, work)?;
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

/// What the data path knows of a namespace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NamespaceView {
    disk: usize,
    block_shift: u32,
    blocks: u64,
    read_only: bool,
    ready: bool,
}

impl NamespaceView {
    /// As the namespace is now.
    pub(crate) fn of(namespace: &Namespace) -> Self {
        Self {
            disk: namespace.index(),
            block_shift: namespace.block_shift(),
            blocks: namespace.blocks(),
            read_only: namespace.read_only(),
            ready: namespace.is_ready(),
        }
    }

    fn extent(&self, lba: u64, blocks: u64) -> Result<Extent, Failure> {
        let end = lba.checked_add(blocks);
        if end.is_none_or(|end| end > self.blocks) {
            return Err(Failure::at(Status::LBA_OUT_OF_RANGE, at::CDW10));
        }
        Ok(Extent { disk: self.disk, offset: lba << self.block_shift, length: blocks << self.block_shift })
    }

    /// The extent of a Read, Write, Compare or Write Zeroes: SLBA in dwords 10 and 11, NLB in dword 12.
    fn command_extent(&self, command: &SubmissionEntry) -> Result<Extent, Failure> {
        self.extent(command.slba(), u64::from(command.nlb()))
    }

    fn writable(&self) -> Result<(), Failure> {
        if self.read_only {
            return Err(Failure::new(Status::NAMESPACE_WRITE_PROTECTED));
        }
        Ok(())
    }
}

fn read_or_compare(
    command: &SubmissionEntry,
    view: &NamespaceView,
    work: fn(Extent) -> Work,
    transfer: fn(u32) -> Transfer,
) -> Result<(Work, Transfer), Failure> {
    let (extent, length) = data_extent(command, view)?;
    Ok((work(extent), transfer(length)))
}

fn write(command: &SubmissionEntry, view: &NamespaceView) -> Result<(Work, Transfer), Failure> {
    view.writable()?;
    let (extent, length) = data_extent(command, view)?;
    Ok((Work::Write { extent, durable: command.fua() }, Transfer::ToController(length)))
}

fn write_zeroes(command: &SubmissionEntry, view: &NamespaceView) -> Result<(Work, Transfer), Failure> {
    view.writable()?;
    no_protection(command)?;
    let extent = view.command_extent(command)?;
    Ok((Work::WriteZeroes { extent, deallocate: command.deac(), durable: command.fua() }, Transfer::None))
}

fn dataset_management(command: &SubmissionEntry, view: &NamespaceView) -> Result<(Work, Transfer), Failure> {
    let ranges = command.dsm_ranges();
    let length = u32::from(ranges) * 16;
    if !command.dsm_deallocate() {
        // The hints about access alone ask for nothing that we could do, but the ranges still travel.
        return Ok((Work::Discard { disk: view.disk, ranges: 0, next: 0 }, Transfer::ToController(length)));
    }
    view.writable()?;
    Ok((Work::Discard { disk: view.disk, ranges, next: 0 }, Transfer::ToController(length)))
}

/// The extent of a command that transfers its blocks, and their size in bytes.
fn data_extent(command: &SubmissionEntry, view: &NamespaceView) -> Result<(Extent, u32), Failure> {
    no_protection(command)?;
    let extent = view.command_extent(command)?;
    match u32::try_from(extent.length) {
        Ok(length) if length <= TRANSFER_BYTES_MAX => Ok((extent, length)),
        _ => Err(Failure::at(Status::INVALID_FIELD, at::CDW12)),
    }
}

/// No namespace of ours has protection information, so that PRACT and PRCHK must be clear.
fn no_protection(command: &SubmissionEntry) -> Result<(), Failure> {
    if command.prinfo() != 0 {
        return Err(Failure::at_bit(Status::INVALID_FIELD, at::CDW12 + 3, 2));
    }
    Ok(())
}

/// The blocks of a range of a Dataset Management command.
pub(crate) fn discard_extent(view: &NamespaceView, lba: u64, blocks: u32) -> Result<Extent, Failure> {
    view.extent(lba, u64::from(blocks)).map_err(|failure| Failure { location: None, ..failure })
}

/// A descriptor names as many bytes as the command transfers. Only that of Dataset Management may name more: Linux always
/// describes the memory for all 256 ranges.
fn check_length(length: u32, needed: u32, work: Work) -> Result<(), Failure> {
    let longer = matches!(work, Work::Discard { .. }) && length > needed;
    if longer || length == needed {
        return Ok(());
    }
    Err(Failure::at(Status::DATA_SGL_LENGTH_INVALID, at::SGL_LENGTH))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use ringfab_spec::FromBytes;

    use super::*;

    const VIEW: NamespaceView =
        NamespaceView { disk: 3, block_shift: 9, blocks: 1 << 20, read_only: false, ready: true };

    /// Any 64 bytes, though most often a command that is nearly right.
    fn commands() -> impl Strategy<Value = SubmissionEntry> {
        let opcodes = prop::sample::select(vec![0x00, 0x01, 0x02, 0x05, 0x08, 0x09, 0x0c, 0xff]);
        let near_end = prop_oneof![0..(1_u64 << 21), any::<u64>()];
        let kinds = prop::sample::select(vec![0x40_u8, 0x4f, 0x01, 0x00, 0x5a]);
        let parts = (opcodes, near_end, any::<u32>(), kinds, any::<bool>());
        (any::<[u8; 64]>(), parts).prop_map(|(mut bytes, (opcode, lba, blocks, kind, tame))| {
            if tame {
                (bytes[0], bytes[1], bytes[39]) = (opcode, 0x40, kind);
                bytes[4..8].copy_from_slice(&1_u32.to_le_bytes());
                bytes[40..48].copy_from_slice(&lba.to_le_bytes());
                bytes[48..52].copy_from_slice(&(blocks & 0x4200_ffff).to_le_bytes());
            }
            SubmissionEntry::read_from_bytes(&bytes).expect("64 bytes")
        })
    }

    fn extent_of(work: Work) -> Option<Extent> {
        match work {
            Work::Read(extent) | Work::Compare(extent) => Some(extent),
            Work::Write { extent, .. } | Work::WriteZeroes { extent, .. } => Some(extent),
            _ => None,
        }
    }

    proptest! {
        #[test]
        fn whatever_a_command_says_its_work_lies_within_the_namespace(command in commands()) {
            let found = io_work(&command, |nsid| (nsid == 1).then_some(VIEW));
            let Ok((work, transfer)) = found else { return Ok(()) };
            prop_assert!(transfer.length() <= TRANSFER_BYTES_MAX);
            if let Some(extent) = extent_of(work) {
                let end = extent.offset.checked_add(extent.length).expect("no wrap");
                prop_assert!(end <= VIEW.blocks << VIEW.block_shift && extent.length > 0);
                prop_assert!(transfer == Transfer::None || u64::from(transfer.length()) == extent.length);
            }
        }

        #[test]
        fn whatever_a_descriptor_says_the_data_lie_within_the_capsule_or_do_not_wrap(
            command in commands(),
            length in 0_u32..=TRANSFER_BYTES_MAX,
            capsule_bytes in 0_u32..=65_536,
            to_host: bool,
            discards: bool,
        ) {
            let transfer = if to_host { Transfer::ToHost(length) } else { Transfer::ToController(length) };
            let work = if discards { Work::Discard { disk: 3, ranges: 1, next: 0 } } else { Work::Controller };
            match host_memory(&command, (work, transfer), capsule_bytes) {
                Ok(HostMemory::Capsule { offset }) => {
                    prop_assert!(!to_host && u64::from(offset) + u64::from(length) <= u64::from(capsule_bytes));
                }
                Ok(HostMemory::Registered { address, .. }) => {
                    prop_assert!(address.checked_add(u64::from(length)).is_some());
                }
                Ok(HostMemory::None) => prop_assert_eq!(length, 0),
                Err(failure) => prop_assert!(failure.status.dnr() && failure.location.is_some()),
            }
        }

        #[test]
        fn whatever_a_range_says_it_lies_within_the_namespace(lba: u64, blocks: u32) {
            if let Ok(extent) = discard_extent(&VIEW, lba, blocks) {
                prop_assert!(extent.offset + extent.length <= VIEW.blocks << VIEW.block_shift);
            }
        }
    }
}
