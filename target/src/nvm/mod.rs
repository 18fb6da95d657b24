//! Parses an I/O command into an action that can only be valid, or into the failure that the host gets.

mod action;
mod lengths;
mod memory;

use ringfab_spec::sqe::{CancelAction, CopyRange, DsmRange};
use ringfab_spec::{IoOpcode, Status, SubmissionEntry};

use crate::failure::Failure;
use crate::limits::{COPY_BYTES_MAX, COPY_RANGE_BYTES_MAX, COPY_RANGES_MAX, FUSED_BYTES_MAX};
use crate::model::Namespace;

pub(crate) use action::{Access, Action, Copying, Extent, Kind, Place};
pub(crate) use lengths::{Blocks, DataBytes, DiskBytes, Lba, NamespaceSize};
pub(crate) use memory::{HostMemory, SGL_OF_ANOTHER_TRANSPORT, host_memory};

/// Offsets of fields in a submission queue entry, for error locations.
mod at {
    pub(super) const FLAGS: u16 = 1;
    pub(super) const NSID: u16 = 4;
    pub(super) const DATA_POINTER: u16 = 24;
    pub(super) const SGL_LENGTH: u16 = 32;
    pub(super) const CDW10: u16 = 40;
    pub(super) const CDW11: u16 = 44;
    pub(super) const CDW12: u16 = 48;
    /// Descriptor Format and protection information of the reads, of Copy.
    pub(super) const COPY_FORMAT: u16 = 49;
    /// Directive Type.
    pub(super) const DTYPE: u16 = 50;
}

/// The direction and size of a command's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transfer {
    /// None.
    None,
    /// From the host.
    ToController(DataBytes),
    /// To the host.
    ToHost(DataBytes),
}

impl Transfer {
    /// Its length, in either direction.
    pub(crate) fn length(self) -> DataBytes {
        match self {
            Self::None => DataBytes(0),
            Self::ToController(length) | Self::ToHost(length) => length,
        }
    }
}

/// The failure of a command for a namespace that its host does not see.
pub(crate) const NO_NAMESPACE: Failure = Failure::at(Status::INVALID_NAMESPACE, at::NSID);

/// What an I/O command asks for.
pub(crate) fn parse(
    command: &SubmissionEntry,
    namespace: impl Fn(u32) -> Option<NamespaceView>,
) -> Result<(Action, Transfer), Failure> {
    check_fuse(command)?;
    let (nsid, opcode) = (command.nsid.get(), command.opcode);
    if nsid == u32::MAX {
        match IoOpcode(opcode) {
            IoOpcode::FLUSH => return Ok((Action::FlushAll { rounds: 0 }, Transfer::None)),
            IoOpcode::CANCEL => return cancel(command),
            _ => {}
        }
    }
    let view = namespace(nsid).ok_or(NO_NAMESPACE)?;
    view.check(Access::None)?;
    match IoOpcode(opcode) {
        IoOpcode::READ => read_or_compare(command, &view, Action::Read, Transfer::ToHost),
        IoOpcode::COMPARE => read_or_compare(command, &view, Action::Compare, Transfer::ToController),
        IoOpcode::WRITE => write(command, &view),
        IoOpcode::FLUSH => Ok((Action::Flush { disk: view.disk }, Transfer::None)),
        IoOpcode::WRITE_ZEROES => write_zeroes(command, &view),
        IoOpcode::DATASET_MANAGEMENT => dataset_management(command, &view),
        IoOpcode::VERIFY => verify(command, &view),
        IoOpcode::COPY => copy(command, &view),
        IoOpcode::CANCEL => cancel(command),
        _ => Err(Failure::at(Status::INVALID_OPCODE, 0)),
    }
}

/// The one fused operation is Compare and Write.
fn check_fuse(command: &SubmissionEntry) -> Result<(), Failure> {
    let half = match command.fuse() {
        0 => return Ok(()),
        SubmissionEntry::FUSE_FIRST => Some(IoOpcode::COMPARE.0),
        SubmissionEntry::FUSE_SECOND => Some(IoOpcode::WRITE.0),
        _ => None,
    };
    let known = half == Some(command.opcode);
    if known { Ok(()) } else { Err(Failure::at(Status::INVALID_FIELD, at::FLAGS)) }
}

/// Whether a Compare and a Write are the halves of a fused operation: of the same blocks, which are not too many.
pub(crate) fn check_pair(compare: Action, write: Action) -> Result<(), Failure> {
    let (Action::Compare(compared), Action::Write { extent, .. }) = (compare, write) else {
        unreachable!("the halves of a fused operation are a Compare and a Write")
    };
    if compared != extent {
        return Err(Failure::at(Status::INVALID_FIELD, at::CDW10));
    }
    if extent.length > DiskBytes(u64::from(FUSED_BYTES_MAX)) {
        return Err(Failure::at(Status::ATOMIC_WRITE_UNIT_EXCEEDED, at::CDW12));
    }
    Ok(())
}

/// What the data path knows of a namespace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NamespaceView {
    disk: usize,
    size: NamespaceSize,
    read_only: bool,
    ready: bool,
}

impl NamespaceView {
    /// As the namespace is now.
    pub(crate) fn of(namespace: &Namespace) -> Self {
        let (ready, blocks) = namespace.readiness();
        Self {
            disk: namespace.index(),
            size: NamespaceSize { blocks: Blocks(blocks), block_shift: namespace.block_shift() },
            read_only: namespace.read_only(),
            ready,
        }
    }

    /// Whether a command that uses it so may run.
    #[inline(always)]
    pub(crate) fn check(&self, access: Access) -> Result<(), Failure> {
        if !self.ready {
            return Err(Failure::transient(Status::NAMESPACE_NOT_READY));
        }
        match access {
            Access::Writes | Access::Changes => self.writable(),
            Access::Reads | Access::Flushes | Access::None => Ok(()),
        }
    }

    fn extent(&self, first: Lba, count: Blocks) -> Result<Extent, Failure> {
        let Some((offset, length)) = self.size.range(first, count) else {
            return Err(Failure::at(Status::LBA_OUT_OF_RANGE, at::CDW10));
        };
        Ok(Extent { disk: self.disk, offset, length })
    }

    /// The extent of a Read, Write, Compare or Write Zeroes: SLBA in dwords 10 and 11, NLB in dword 12.
    fn command_extent(&self, command: &SubmissionEntry) -> Result<Extent, Failure> {
        self.extent(Lba(command.slba()), Blocks(command.nlb().into()))
    }

    fn writable(&self) -> Result<(), Failure> {
        if self.read_only {
            return Err(Failure::new(Status::NAMESPACE_WRITE_PROTECTED));
        }
        Ok(())
    }
}

#[inline]
fn read_or_compare(
    command: &SubmissionEntry,
    view: &NamespaceView,
    action: impl FnOnce(Extent) -> Action,
    transfer: impl FnOnce(DataBytes) -> Transfer,
) -> Result<(Action, Transfer), Failure> {
    let (extent, length) = data_extent(command, view)?;
    Ok((action(extent), transfer(length)))
}

fn write(command: &SubmissionEntry, view: &NamespaceView) -> Result<(Action, Transfer), Failure> {
    view.writable()?;
    no_directive(command)?;
    let (extent, length) = data_extent(command, view)?;
    Ok((Action::Write { extent, durable: command.fua() }, Transfer::ToController(length)))
}

fn write_zeroes(command: &SubmissionEntry, view: &NamespaceView) -> Result<(Action, Transfer), Failure> {
    view.writable()?;
    no_protection(command)?;
    let extent = view.command_extent(command)?;
    Ok((Action::WriteZeroes { extent, deallocate: command.deac(), durable: command.fua() }, Transfer::None))
}

fn verify(command: &SubmissionEntry, view: &NamespaceView) -> Result<(Action, Transfer), Failure> {
    // Its limit is that of a transfer (VSL).
    let (extent, _) = data_extent(command, view)?;
    Ok((Action::Verify { extent, begun: 0 }, Transfer::None))
}

/// It is about commands of its own queue, which the queue knows.
fn cancel(command: &SubmissionEntry) -> Result<(Action, Transfer), Failure> {
    match (command.cancel_action(), command.aborted_command().cid()) {
        (CancelAction::SINGLE, _) | (CancelAction::MULTIPLE, u16::MAX) => {
            Ok((Action::Controller, Transfer::None))
        }
        (CancelAction::MULTIPLE, _) => Err(Failure::at(Status::INVALID_FIELD, at::CDW10 + 2)),
        _ => Err(Failure::at(Status::INVALID_FIELD, at::CDW11)),
    }
}

/// What the ranges themselves say is checked when they are here, by [`check_copy`].
fn copy(command: &SubmissionEntry, view: &NamespaceView) -> Result<(Action, Transfer), Failure> {
    let dword_12 = command.copy_dword12();
    view.writable()?;
    if dword_12.desfmt() != 0 {
        return Err(Failure::at(Status::INVALID_FIELD, at::COPY_FORMAT));
    }
    if dword_12.prinfor() != 0 {
        return Err(Failure::at_bit(Status::INVALID_FIELD, at::COPY_FORMAT, 4));
    }
    no_directive(command)?;
    no_protection(command)?;
    let ranges = u16::from(dword_12.nr_z()) + 1;
    if ranges > COPY_RANGES_MAX {
        return Err(Failure::at(Status::COMMAND_SIZE_LIMIT_EXCEEDED, at::CDW12));
    }
    let to = view.extent(Lba(command.slba()), Blocks(1))?.offset;
    let durable = dword_12.fua();
    let copying = Copying { disk: view.disk, ranges, range: 0, done: 0, to, read: 0, durable };
    let length = DataBytes(u32::from(ranges) * CopyRange::SIZE as u32);
    Ok((Action::Copy(copying), Transfer::ToController(length)))
}

fn dataset_management(
    command: &SubmissionEntry,
    view: &NamespaceView,
) -> Result<(Action, Transfer), Failure> {
    let ranges = command.dsm_ranges();
    let length = DataBytes(u32::from(ranges) * DsmRange::SIZE as u32);
    if !command.dsm_deallocate() {
        // The hints about access alone ask for nothing that we could do, but the ranges still travel.
        return Ok((Action::Hints { disk: view.disk }, Transfer::ToController(length)));
    }
    view.writable()?;
    Ok((Action::Discard { disk: view.disk, ranges, next: 0, begun: 0 }, Transfer::ToController(length)))
}

/// The extent of a command that transfers its blocks, and the length of its data.
fn data_extent(command: &SubmissionEntry, view: &NamespaceView) -> Result<(Extent, DataBytes), Failure> {
    no_protection(command)?;
    let extent = view.command_extent(command)?;
    let length = extent.length.data().ok_or(Failure::at(Status::INVALID_FIELD, at::CDW12))?;
    Ok((extent, length))
}

/// No namespace of ours has protection information, so that PRACT and PRCHK must be clear.
fn no_protection(command: &SubmissionEntry) -> Result<(), Failure> {
    if command.prinfo() != 0 {
        return Err(Failure::at_bit(Status::INVALID_FIELD, at::CDW12 + 3, 2));
    }
    Ok(())
}

/// No directive is supported, so that the type of each write must be that of none.
fn no_directive(command: &SubmissionEntry) -> Result<(), Failure> {
    if command.copy_dword12().dtype() != 0 {
        return Err(Failure::at_bit(Status::INVALID_FIELD, at::DTYPE, 4));
    }
    Ok(())
}

/// The blocks of a range of a Dataset Management command.
pub(crate) fn discard_extent(view: &NamespaceView, first: Lba, count: Blocks) -> Result<Extent, Failure> {
    view.extent(first, count).map_err(|failure| Failure { location: None, ..failure })
}

/// The blocks of a source range of a Copy.
pub(crate) fn copy_extent(view: &NamespaceView, range: &CopyRange) -> Result<Extent, Failure> {
    let count = Blocks(range.nlb().into());
    if view.size.bytes(count) > DiskBytes(COPY_RANGE_BYTES_MAX.into()) {
        return Err(Failure::new(Status::COMMAND_SIZE_LIMIT_EXCEEDED));
    }
    view.extent(Lba(range.slba.get()), count).map_err(|failure| Failure { location: None, ..failure })
}

/// Whether all ranges of a Copy, and where they go to, lie within the namespace and the limits. Of a range that does
/// not, dword 0 has the number. Returns how much is to be copied.
pub(crate) fn check_copy(
    view: &NamespaceView,
    copying: &Copying,
    range: impl Fn(u16) -> CopyRange,
) -> Result<DiskBytes, Failure> {
    let mut bytes = 0;
    for index in 0..copying.ranges {
        let extent = copy_extent(view, &range(index));
        bytes += extent.map_err(|failure| Failure { dw0: u32::from(index), ..failure })?.length.0;
    }
    if bytes > u64::from(COPY_BYTES_MAX) {
        return Err(Failure::new(Status::COMMAND_SIZE_LIMIT_EXCEEDED));
    }
    view.extent(view.size.lba_of(copying.to), view.size.blocks_of(DiskBytes(bytes)))?;
    Ok(DiskBytes(bytes))
}

#[cfg(test)]
mod tests;
