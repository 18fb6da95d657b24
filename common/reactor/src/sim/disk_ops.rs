//! Operations in flight on disks.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use ringfab_memory::{Buffer, SharedBuffer};

use super::HostId;
use super::core::Event;
use super::disk::{Disk, SECTOR_BYTES};
use super::machines::{Machines, OpenFile, PortKey, errno};
use crate::{FileId, FileInfo, FileOptions, Payload, PreferredSizes, Token};

/// All disks and what is in flight on them.
#[derive(Default)]
pub(super) struct Disks {
    pub(super) disks: Vec<Disk>,
    operations: BTreeMap<u64, Operation>,
}

struct Operation {
    port: PortKey,
    disk: usize,
    token: Token,
    kind: Kind,
    /// It tells of a write-back that has failed before.
    tells_failure: bool,
}

/// What an operation does, and what it holds until it completes.
pub(super) enum Kind {
    Read {
        offset: u64,
        buffer: Buffer,
        at: usize,
        length: usize,
    },
    Write {
        offset: u64,
        source: SharedBuffer,
        at: usize,
        length: usize,
        durable: bool,
    },
    Sync,
    /// A sync on its way, which covers the writes that had completed when it was asked for.
    SyncUntil(u64),
    Zero {
        offset: u64,
        length: u64,
    },
}

impl Kind {
    fn into_payload(self) -> Payload {
        match self {
            Self::Read { buffer, .. } => Payload::Buffer(buffer),
            Self::Write { source, .. } => Payload::SharedBuffer(source),
            Self::Sync | Self::SyncUntil(_) | Self::Zero { .. } => Payload::None,
        }
    }

    /// Address of the memory, for the alignment that direct I/O needs.
    fn pointer(&self) -> Option<*const u8> {
        match self {
            Self::Read { buffer, at, length, .. } => Some(buffer.io_pointer(*at, *length)),
            Self::Write { source, at, length, .. } => Some(source.io_pointer(*at, *length)),
            Self::Sync | Self::SyncUntil(_) | Self::Zero { .. } => None,
        }
    }

    fn extent(&self) -> Option<(u64, u64)> {
        match self {
            Self::Read { offset, length, .. } | Self::Write { offset, length, .. } => {
                Some((*offset, *length as u64))
            }
            Self::Zero { offset, length } => Some((*offset, *length)),
            Self::Sync | Self::SyncUntil(_) => None,
        }
    }

    fn changes(&self) -> bool {
        matches!(self, Self::Write { .. } | Self::Zero { .. })
    }

    /// Range and bytes of a write, cut at the end of the disk.
    fn bytes_to_write(&self, disk_bytes: u64) -> Option<(u64, Vec<u8>)> {
        let (offset, length) = self.extent().filter(|_| self.changes())?;
        let mut bytes = vec![0; length.min(disk_bytes.saturating_sub(offset)) as usize];
        if let Self::Write { source, at, .. } = self {
            source.read_at(*at, &mut bytes);
        }
        Some((offset, bytes))
    }
}

impl Disks {
    pub(super) fn find(&self, host: HostId, path: &Path) -> Option<usize> {
        let is_there = |(at, place): &(HostId, PathBuf)| *at == host && place == path;
        self.disks.iter().position(|disk| disk.places.iter().any(is_there))
    }
}

impl Disks {
    pub(super) fn open_file(
        &mut self,
        machines: &mut Machines,
        port: PortKey,
        path: &Path,
        options: FileOptions,
    ) -> io::Result<(FileId, FileInfo)> {
        let host = machines.ports[port].host;
        let disk = self.find(host, path).ok_or_else(|| errno(libc::ENOENT))?;
        match &mut self.disks[disk].opens_left {
            Some(0) => return Err(errno(libc::EMFILE)),
            Some(left) => *left -= 1,
            None => {}
        }
        let FileOptions { direct, read_only } = options;
        let id = machines.ports[port].files.insert(OpenFile {
            disk,
            direct,
            read_only,
            failures_told: self.disks[disk].failures_told,
        });
        let align = if direct { self.disks[disk].faults.alignment } else { 1 };
        let info = FileInfo {
            bytes: self.disks[disk].bytes,
            block_device: true,
            offset_align: align,
            memory_align: align,
            remote: false,
            preferred: PreferredSizes { write: 4096, discard: 4096, optimal_write: 0 },
        };
        Ok((FileId(id), info))
    }

    /// Starts an operation, or refuses it as the kernel would; either way it completes.
    pub(super) fn start_on_disk(
        &mut self,
        machines: &mut Machines,
        port: PortKey,
        file: FileId,
        mut kind: Kind,
        token: Token,
    ) {
        let Some(open) = machines.ports[port].files.get(file.0).copied() else {
            machines.complete(port, token, Err(errno(libc::ECANCELED)), kind.into_payload());
            return;
        };
        if let Some(error) = self.refusal(open, &kind) {
            machines.complete(port, token, Err(errno(error)), kind.into_payload());
            return;
        }
        let tells_failure = self.tells_failure(machines, port, file, &kind);
        let disk = &self.disks[open.disk];
        let (delay_min, delay_max, torn) =
            (disk.faults.delay_min, disk.faults.delay_max, disk.faults.torn_writes);
        if let Kind::Sync = kind {
            kind = Kind::SyncUntil(disk.version);
        }
        let done = machines.core.after(delay_min, delay_max);
        let operation = machines.core.next_sequence();
        if torn && kind.changes() {
            let part = machines.core.after(delay_min, delay_max).min(done);
            machines.core.schedule(part, Event::DiskPart { operation });
        }
        machines.core.schedule(done, Event::DiskDone { operation });
        self.operations.insert(operation, Operation { port, disk: open.disk, token, kind, tells_failure });
    }

    /// Whether an operation is the one by which a file tells of a write-back that failed: it does so once.
    fn tells_failure(&mut self, machines: &mut Machines, port: PortKey, file: FileId, kind: &Kind) -> bool {
        if !matches!(kind, Kind::Sync | Kind::Write { durable: true, .. }) {
            return false;
        }
        let Some(open) = machines.ports[port].files.get_mut(file.0) else { return false };
        let disk = &mut self.disks[open.disk];
        let tells = open.failures_told < disk.write_back_failures;
        if tells {
            (open.failures_told, disk.failures_told) = (disk.write_back_failures, disk.write_back_failures);
        }
        tells
    }

    /// Completes the question for a file's size: a disk keeps its own.
    pub(super) fn complete_file_bytes(
        &mut self,
        machines: &mut Machines,
        port: PortKey,
        file: FileId,
        token: Token,
    ) {
        let (result, payload) = match machines.ports[port].files.get(file.0) {
            Some(open) => (Ok(0), Payload::FileBytes(self.disks[open.disk].bytes)),
            None => (Err(errno(libc::ECANCELED)), Payload::None),
        };
        machines.complete(port, token, result, payload);
    }

    fn refusal(&self, open: OpenFile, kind: &Kind) -> Option<i32> {
        let disk = &self.disks[open.disk];
        let align = u64::from(disk.faults.alignment);
        if kind.changes() && open.read_only {
            return Some(libc::EBADF);
        }
        let (offset, length) = kind.extent()?;
        let allocates = matches!(kind, Kind::Zero { .. });
        let misaligned = !offset.is_multiple_of(align) || !length.is_multiple_of(align);
        if misaligned && (open.direct || allocates) {
            return Some(libc::EINVAL);
        }
        let memory = kind.pointer().map_or(0, |pointer| pointer as u64);
        if open.direct && !memory.is_multiple_of(align) {
            return Some(libc::EINVAL);
        }
        match kind {
            Kind::Zero { .. } if length == 0 || offset >= disk.bytes => Some(libc::EINVAL),
            Kind::Write { .. } if length > 0 && offset >= disk.bytes => Some(libc::ENOSPC),
            _ => None,
        }
    }

    /// Some sectors of a write become visible before it completes.
    pub(super) fn disk_part_due(&mut self, machines: &mut Machines, operation: u64) {
        let Some(found) = self.operations.get(&operation) else { return };
        let disk = &mut self.disks[found.disk];
        if let Some((offset, bytes)) = found.kind.bytes_to_write(disk.bytes) {
            disk.write(offset, &bytes, || machines.core.chance(0.5));
        }
    }

    pub(super) fn disk_done_due(&mut self, machines: &mut Machines, operation: u64) {
        let Some(mut found) = self.operations.remove(&operation) else { return };
        let disk = &mut self.disks[found.disk];
        let (error_probability, full_probability) =
            (disk.faults.error_probability, disk.faults.full_probability);
        let result = if found.tells_failure {
            Err(errno(libc::EIO))
        } else if machines.core.chance(error_probability) {
            self.fail_part(machines, &found);
            Err(errno(libc::EIO))
        } else if found.kind.changes() && machines.core.chance(full_probability) {
            Err(errno(libc::ENOSPC))
        } else {
            disk.perform(&mut found.kind).map_err(errno)
        };
        machines.complete(found.port, found.token, result, found.kind.into_payload());
    }

    /// A write that fails has happened in some of its sectors.
    fn fail_part(&mut self, machines: &mut Machines, failed: &Operation) {
        let disk = &mut self.disks[failed.disk];
        if let Some((offset, bytes)) = failed.kind.bytes_to_write(disk.bytes) {
            let all_or_none = machines.core.chance(0.5);
            let torn = disk.faults.torn_writes;
            disk.write(offset, &bytes, || if torn { machines.core.chance(0.5) } else { all_or_none });
        }
    }

    /// The power of a host goes: what it has in flight happens in part or not, in any order, and then the volatile
    /// caches are lost of the disks that have no other power.
    pub(super) fn crash_disks(&mut self, machines: &mut Machines, host: HostId) {
        let of_host = |operation: &Operation| machines.ports[operation.port].host == host;
        let found = self.operations.iter().filter(|(_, operation)| of_host(operation));
        let mut keys: Vec<u64> = found.map(|(key, _)| *key).collect();
        while !keys.is_empty() {
            let key = keys.swap_remove(machines.core.below(keys.len() as u64) as usize);
            let operation = self.operations.remove(&key).expect("just listed");
            self.fail_part(machines, &operation);
        }
        for disk in self.disks.iter_mut().filter(|disk| disk.is_powered_by(host)) {
            disk.lose_power(&mut machines.core);
        }
    }
}

impl Disk {
    /// Does what a completed operation has done, and returns the bytes moved. A write that reaches beyond the end
    /// stops there and fails.
    fn perform(&mut self, kind: &mut Kind) -> Result<u32, i32> {
        match kind {
            Kind::Read { offset, buffer, at, length } => {
                let length = (*length as u64).min(self.bytes.saturating_sub(*offset)) as usize;
                self.read(*offset, &mut buffer[*at..*at + length]);
                Ok(length as u32)
            }
            Kind::Sync => unreachable!("a sync in flight knows what it covers"),
            Kind::SyncUntil(version) => {
                self.settle_until(*version);
                Ok(0)
            }
            Kind::Write { .. } | Kind::Zero { .. } => {
                let (offset, bytes) = kind.bytes_to_write(self.bytes).expect("it changes the disk");
                self.write(offset, &bytes, || true);
                if let Kind::Write { durable: true, .. } = kind {
                    self.settle_range(offset, bytes.len());
                }
                match kind {
                    Kind::Write { length, .. } if bytes.len() < *length => Err(libc::ENOSPC),
                    Kind::Write { length, .. } => Ok(*length as u32),
                    _ => Ok(0),
                }
            }
        }
    }
}

/// A disk is made of whole sectors.
pub(super) fn assert_whole_sectors(bytes: u64, alignment: u32) {
    assert!(bytes.is_multiple_of(SECTOR_BYTES as u64), "a disk is made of whole sectors");
    assert!((alignment as usize).is_multiple_of(SECTOR_BYTES), "an alignment is a number of sectors");
}
