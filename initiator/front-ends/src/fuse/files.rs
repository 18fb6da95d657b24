//! The directory and its files, and the requests that they allow, whether by `/dev/fuse` or over io_uring.

use std::ffi::OsStr;
use std::ops::Range;
use std::time::{Duration, SystemTime};

use fuser::{Errno, FileAttr, FileType, FopenFlags, INodeNo, OpenAccMode, OpenFlags, SessionACL};
use nix::fcntl::OFlag;
use nix::unistd::{getegid, geteuid};
use ringfab_initiator::blocking::{Claim, Controller, Disk};
use ringfab_initiator::bytes::{BlockWriter, Cut};
use ringfab_initiator::{BlockRange, Host, IoError, Namespace, SubmitError};
use ringfab_spec::Status;

use super::disks::{Disks, file_name, nsid_of, nsid_of_inode};
use super::truncated::Truncated;
use super::usage::Usage;
use crate::failures;

/// How long the kernel may believe a size.
pub(super) const TTL: Duration = Duration::from_secs(1);
/// Zeroes that are written at once where the controller has no Write Zeroes.
const ZEROES_BYTES: usize = 1 << 20;
/// What is zeroed at once of that which a writer skips.
const FILL_BYTES: u64 = 64 << 20;
/// Commands that look for the next hole or data at most. Each tells of 255 ranges.
const SEEK_COMMANDS_MAX: usize = 4096;
/// Preferred size of I/O, as `stat` tells it.
pub(super) const PREFERRED_BYTES: u32 = 4096;

/// Operations of fallocate(2).
mod falloc {
    pub(super) const KEEP_SIZE: i32 = 1;
    pub(super) const PUNCH_HOLE: i32 = 2;
    pub(super) const ZERO_RANGE: i32 = 16;
}

/// Whence of lseek(2) for holes.
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

/// The files of one controller's namespaces.
pub(crate) struct Files {
    controller: Controller,
    read_only: bool,
    acl: SessionACL,
    truncated: Truncated,
    usage: Usage,
    disks: Disks,
    mounted_at: SystemTime,
    owner: (u32, u32),
}

/// A file, by the handle of who has it open.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenFile {
    pub(super) ino: INodeNo,
    pub(super) handle: u64,
}

/// Bytes of a file: how long it is, and how many are in use.
struct Sizes {
    bytes: u64,
    used: u64,
}

/// One name of the directory.
pub(super) struct Entry {
    pub(super) ino: INodeNo,
    /// Where to go on after it.
    pub(super) next: u64,
    pub(super) kind: FileType,
    pub(super) name: String,
}

/// What the file system as a whole holds.
pub(super) struct Totals {
    /// Blocks of [`PREFERRED_BYTES`].
    pub(super) blocks: u64,
    /// Those of them that are not in use.
    pub(super) free: u64,
    pub(super) files: u64,
}

impl Files {
    pub(crate) fn new(controller: Controller, read_only: bool, acl: SessionACL) -> Self {
        let owner = (geteuid().as_raw(), getegid().as_raw());
        Self {
            usage: Usage::new(controller.clone()),
            controller,
            read_only,
            acl,
            truncated: Truncated::default(),
            disks: Disks::default(),
            mounted_at: SystemTime::now(),
            owner,
        }
    }

    /// Whether a user may ask for more than reading and writing what is open. The kernel lets nobody else in without
    /// `allow_other`; that root may enter with the user, and nobody else, is the server's affair.
    pub(super) fn admits(&self, uid: u32) -> bool {
        match self.acl {
            SessionACL::All => true,
            SessionACL::RootAndOwner => uid == 0 || uid == self.owner.0,
            SessionACL::Owner => uid == self.owner.0,
        }
    }

    /// The namespace of a file that is open. Without it there is nothing but errors: other numbers would tell programs
    /// of holes, or of an end. Each error counts, as that of a command does: what was to be written is lost.
    pub(super) fn namespace(&self, ino: INodeNo) -> Result<Namespace, Errno> {
        let nsid = nsid_of_inode(ino)?;
        self.find(ino)?.ok_or_else(|| errno(SubmitError::NoNamespace(nsid).into()))
    }

    /// The namespace of a file, if it is still there and still the same disk.
    fn find(&self, ino: INodeNo) -> Result<Option<Namespace>, Errno> {
        let now = self.controller.namespace(nsid_of_inode(ino)?);
        Ok(self.disks.still(ino, now))
    }

    /// Of a file that is looked for by its name. Where the kernel remembers another disk it asks for the name again.
    fn find_anew(&self, ino: INodeNo) -> Result<Namespace, Errno> {
        self.find(ino)?.ok_or(Errno::ESTALE)
    }

    /// What a namespace's I/O goes through: it reaches this disk and no other.
    fn disk(&self, namespace: &Namespace) -> Disk {
        self.controller.disk_of(namespace)
    }

    /// For commands on an engine's thread that write whole blocks.
    pub(super) fn block_writer(&self, host: &mut Host) -> BlockWriter {
        self.controller.block_writer(host)
    }

    /// The attributes of what has a name.
    pub(super) fn look_up(&self, parent: INodeNo, name: &OsStr) -> Result<FileAttr, Errno> {
        let nsid = nsid_of(name).filter(|_| parent == INodeNo::ROOT).ok_or(Errno::ENOENT)?;
        let namespace = self.controller.namespace(nsid).ok_or(Errno::ENOENT)?;
        self.attributes(self.disks.inode(&namespace)?)
    }

    pub(super) fn is_read_only(&self, namespace: &Namespace) -> bool {
        self.read_only || namespace.read_only
    }

    pub(super) fn attributes(&self, ino: INodeNo) -> Result<FileAttr, Errno> {
        if ino == INodeNo::ROOT {
            return Ok(self.attribute(ino, FileType::Directory, &Sizes { bytes: 0, used: 0 }, 0o755));
        }
        let namespace = self.find_anew(ino)?;
        let mode = if self.is_read_only(&namespace) { 0o400 } else { 0o600 };
        let sizes = Sizes { bytes: namespace.bytes(), used: self.used_bytes(&namespace) };
        Ok(self.attribute(ino, FileType::RegularFile, &sizes, mode))
    }

    /// Bytes of a namespace that are in use, as far as is known.
    fn used_bytes(&self, namespace: &Namespace) -> u64 {
        self.usage.blocks(namespace.nsid, namespace.blocks).saturating_mul(namespace.block_bytes.into())
    }

    fn attribute(&self, ino: INodeNo, kind: FileType, sizes: &Sizes, perm: u16) -> FileAttr {
        FileAttr {
            ino,
            size: sizes.bytes,
            blocks: sizes.used.div_ceil(512),
            atime: self.mounted_at,
            mtime: self.mounted_at,
            ctime: self.mounted_at,
            crtime: self.mounted_at,
            kind,
            perm,
            nlink: if kind == FileType::Directory { 2 } else { 1 },
            uid: self.owner.0,
            gid: self.owner.1,
            rdev: 0,
            blksize: PREFERRED_BYTES,
            flags: 0,
        }
    }

    /// Times are accepted and forgotten; the size is what it is, as that of a block device. Who has the file open may
    /// set one that it has room for: up to there it reads as written, or as zeroes. See [`Truncated`].
    pub(super) fn set_attributes(
        &self,
        ino: INodeNo,
        size: Option<u64>,
        handle: Option<u64>,
        of_owner: bool,
    ) -> Result<FileAttr, Errno> {
        let attributes = self.attributes(ino)?;
        if of_owner {
            return Err(Errno::EPERM);
        }
        let Some(size) = size else { return Ok(attributes) };
        let refused = |error| {
            let (file, bytes) = (file_name(nsid_of_inode(ino)?), attributes.size);
            tracing::warn!(file, bytes, size, "not truncated: a namespace has a fixed size");
            Err(error)
        };
        match handle {
            _ if size > attributes.size => refused(Errno::EFBIG),
            Some(handle) => {
                self.resize(&self.namespace(ino)?, OpenFile { ino, handle }, size)?;
                Ok(attributes)
            }
            None if size == attributes.size => Ok(attributes),
            // truncate(2), which block devices refuse in this way.
            None => refused(Errno::EINVAL),
        }
    }

    /// Whether a handle is that of a file which its writer believes to be shorter than it is.
    pub(super) fn is_truncated(&self, handle: u64) -> bool {
        self.truncated.end(handle).is_some()
    }

    /// A file was closed.
    pub(super) fn close_file(&self, handle: u64) {
        self.truncated.close(handle);
    }

    /// A write of whole blocks has ended well. Whoever claims them from now on has to find them written.
    pub(super) fn written(&self, ino: INodeNo, range: &Range<u64>) {
        self.truncated.renew(ino, range);
    }

    /// A writer sets the size of its file. What it adds is zeroed, unless somebody has written it meanwhile.
    fn resize(&self, namespace: &Namespace, file: OpenFile, size: u64) -> Result<(), Errno> {
        let OpenFile { ino, handle } = file;
        match self.truncated.end(handle) {
            Some(end) if size >= end => return self.grow(namespace, file, Some(size)),
            None if size >= namespace.bytes() => {}
            Some(_) | None => self.truncated.cut(ino, handle, size),
        }
        Ok(())
    }

    /// A writer makes its file so long, if it says so.
    fn grow(&self, namespace: &Namespace, file: OpenFile, size: Option<u64>) -> Result<(), Errno> {
        let Some(size) = size else { return Ok(()) };
        self.fill(namespace, file, size)?;
        self.truncated.extend(file.handle, size);
        Ok(())
    }

    /// Before bytes are written at `to` by an open file: zeroes what its writer has skipped because it believes that
    /// the file ends before that. It does that in steps, so that other writers need not wait for all of it.
    fn fill(&self, namespace: &Namespace, file: OpenFile, to: u64) -> Result<(), Errno> {
        let OpenFile { ino, handle } = file;
        let to = to.min(namespace.bytes());
        while let Some(gap) = self.truncated.skipped(handle, to)? {
            let step = gap.start..gap.end.min((gap.start / FILL_BYTES + 1) * FILL_BYTES);
            let claim = self.claim(namespace, &step)?;
            for old in self.truncated.old_in(handle, &step) {
                zero(namespace, &claim, &old, true)?;
                self.truncated.renew(ino, &old);
            }
        }
        Ok(())
    }

    /// Waits until nobody else has a block of a range of bytes.
    fn claim(&self, namespace: &Namespace, range: &Range<u64>) -> Result<Claim, Errno> {
        self.disk(namespace).claim(range.start, range.end - range.start).map_err(errno)
    }

    /// Reads up to the end of the namespace.
    pub(super) fn read_into(
        &self,
        ino: INodeNo,
        offset: u64,
        size: u32,
        scratch: &mut Vec<u8>,
    ) -> Result<(), Errno> {
        let namespace = self.namespace(ino)?;
        let length = namespace.bytes().saturating_sub(offset).min(u64::from(size)) as usize;
        scratch.resize(length, 0);
        if length == 0 {
            return Ok(());
        }
        self.disk(&namespace).read_at(offset, scratch).map_err(errno)
    }

    /// Writes up to the end of the namespace, and says how much. Pages that a program has changed in a mapping come
    /// from nobody's handle: the kernel takes one that is open.
    pub(super) fn write_from(
        &self,
        ino: INodeNo,
        handle: Option<u64>,
        offset: u64,
        data: &[u8],
        flags: OpenFlags,
    ) -> Result<u32, Errno> {
        let namespace = self.namespace(ino)?;
        let length = self.writable(&namespace, ino, offset, data.len())?;
        let range = offset..offset + length as u64;
        if let Some(handle) = handle {
            self.fill(&namespace, OpenFile { ino, handle }, range.start)?;
        }
        self.write(&namespace, ino, &range, &data[..length], is_durable(flags))?;
        if let Some(handle) = handle {
            self.truncated.extend(handle, range.end);
        }
        Ok(length as u32)
    }

    /// Writes bytes. Where some file is shorter for its writer than it is, nobody zeroes them before they count as new.
    fn write(
        &self,
        namespace: &Namespace,
        ino: INodeNo,
        range: &Range<u64>,
        data: &[u8],
        fua: bool,
    ) -> Result<(), Errno> {
        let Cut { head, tail, .. } = Cut::new(range, namespace.block_bytes);
        if head.is_empty() && tail.is_empty() && !self.truncated.is_any() {
            self.disk(namespace).write_at(range.start, data, fua).map_err(errno)?;
            self.truncated.renew(ino, range);
            return Ok(());
        }
        let claim = self.claim(namespace, range)?;
        claim.write_at(range.start, data, fua).map_err(errno)?;
        self.truncated.renew(ino, range);
        Ok(())
    }

    /// How much of a write the namespace takes. To write behind its end is a program's mistake, unless it had more when
    /// the program looked: what was to be written there is lost then. It is not written in part either, since a loop
    /// device takes that for all. The same is true of a namespace that could be written to before.
    pub(super) fn writable(
        &self,
        namespace: &Namespace,
        ino: INodeNo,
        offset: u64,
        length: usize,
    ) -> Result<usize, Errno> {
        if self.read_only {
            return Err(Errno::EROFS);
        }
        if namespace.read_only {
            failures::note_reason(&"the namespace may only be read");
            return Err(Errno::EROFS);
        }
        let rest = namespace.bytes().saturating_sub(offset);
        if rest < length as u64 && self.disks.had(ino, offset.max(namespace.bytes())) {
            failures::note_reason(&"the namespace has become shorter");
            return Err(Errno::ENOSPC);
        }
        if rest == 0 && length > 0 {
            return Err(Errno::ENOSPC);
        }
        Ok(length.min(usize::try_from(rest).unwrap_or(usize::MAX)))
    }

    /// Makes what was written to a file durable.
    pub(super) fn flush(&self, ino: INodeNo) -> Result<(), Errno> {
        let namespace = self.namespace(ino)?;
        self.disk(&namespace).flush().map_err(errno)
    }

    pub(super) fn allocate(&self, file: OpenFile, offset: u64, length: u64, mode: i32) -> Result<(), Errno> {
        let namespace = self.namespace(file.ino)?;
        if self.is_read_only(&namespace) {
            return Err(Errno::EROFS);
        }
        let end = offset.checked_add(length).ok_or(Errno::EFBIG)?;
        let grows = mode & falloc::KEEP_SIZE == 0;
        let deallocate = match mode & !falloc::KEEP_SIZE {
            // All of a namespace is there from the start.
            0 if end <= namespace.bytes() => return self.grow(&namespace, file, grows.then_some(end)),
            0 => return Err(Errno::ENOSPC),
            falloc::PUNCH_HOLE if !grows => true,
            falloc::ZERO_RANGE if end <= namespace.bytes() || !grows => false,
            falloc::ZERO_RANGE => return Err(Errno::ENOSPC),
            _ => return Err(Errno::EOPNOTSUPP),
        };
        let end = end.min(namespace.bytes());
        if offset >= end {
            return Ok(());
        }
        // A hole is made to free space. Writing zeroes does not, and would take as long as a whole disk for some
        // callers; those that want zeroes can do without, as they do on a block device.
        if deallocate && namespace.write_zeroes_blocks_max == 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let range = offset..end;
        let claim = self.claim(&namespace, &range)?;
        zero(&namespace, &claim, &range, deallocate)?;
        self.truncated.renew(file.ino, &range);
        drop(claim);
        self.grow(&namespace, file, grows.then_some(end))
    }

    /// Opens a file, and says under which handle. O_TRUNC is no reason to empty a disk; see [`Truncated`].
    pub(super) fn open_file(&self, ino: INodeNo, flags: OpenFlags) -> Result<(u64, FopenFlags), Errno> {
        let namespace = self.find_anew(ino)?;
        let anew = flags.0 & OFlag::O_TRUNC.bits() != 0;
        if self.is_read_only(&namespace) && (anew || flags.acc_mode() != OpenAccMode::O_RDONLY) {
            return Err(Errno::EROFS);
        }
        let handle = self.truncated.open(ino, anew);
        // Writes of different blocks need not wait for each other; those of the same do so here.
        let how = FopenFlags::FOPEN_DIRECT_IO
            | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
            | FopenFlags::FOPEN_NOFLUSH;
        Ok((handle, how))
    }

    /// Finds data or a hole. What is deallocated is a hole, where the controller says what is, and where that reads as
    /// zeroes. Else all of a namespace counts as data.
    pub(super) fn seek(&self, ino: INodeNo, offset: i64, whence: i32) -> Result<i64, Errno> {
        let namespace = self.namespace(ino)?;
        let plain = seek(namespace.bytes(), offset, whence)?;
        if !namespace.reports_allocation || !namespace.deallocated_reads_zeroes {
            return Ok(plain);
        }
        let (block, wants_data) = (u64::from(namespace.block_bytes), whence == SEEK_DATA);
        let (disk, first) = (self.disk(&namespace), offset.unsigned_abs());
        let mut lba = first / block;
        // A controller may say little at once, but not for ever: what is left then is data.
        for _ in 0..SEEK_COMMANDS_MAX {
            for run in disk.allocation(lba, namespace.blocks - lba).map_err(errno_of_optional)? {
                if run.allocated == wants_data {
                    return Ok((lba * block).max(first) as i64);
                }
                lba += run.blocks;
            }
            if lba >= namespace.blocks {
                // The end is a hole, and behind it there is no data.
                return if wants_data { Err(Errno::ENXIO) } else { Ok(plain) };
            }
        }
        Ok(if wants_data { (lba * block).max(first) as i64 } else { plain })
    }

    /// The names of the directory from a place on, which is zero or that of an [`Entry`].
    pub(super) fn entries(&self, ino: INodeNo, from: u64) -> Result<impl Iterator<Item = Entry>, Errno> {
        if ino != INodeNo::ROOT {
            return Err(Errno::ENOTDIR);
        }
        let special = [".", ".."].map(|name| (INodeNo::ROOT, FileType::Directory, name.to_owned()));
        let file = |namespace: Namespace| {
            let ino = self.disks.inode(&namespace).ok()?;
            Some((ino, FileType::RegularFile, file_name(namespace.nsid)))
        };
        let files = self.controller.namespaces().into_iter().filter_map(file);
        let entries = special.into_iter().chain(files).zip(1..);
        let entries = entries.map(|((ino, kind, name), next)| Entry { ino, next, kind, name });
        Ok(entries.skip(usize::try_from(from).unwrap_or(usize::MAX)))
    }

    /// What there is and what of it is in use, as the controller says. It waits for that, but not for long.
    pub(super) fn totals(&self) -> Totals {
        self.usage.refresh();
        let namespaces = self.controller.namespaces();
        let bytes: u64 = namespaces.iter().map(Namespace::bytes).sum();
        let used: u64 = namespaces.iter().map(|namespace| self.used_bytes(namespace)).sum();
        let unit = u64::from(PREFERRED_BYTES);
        let (blocks, used) = (bytes / unit, used.div_ceil(unit));
        Totals { blocks, free: blocks.saturating_sub(used), files: namespaces.len() as u64 }
    }
}

/// A range of bytes of a namespace as blocks, if it is whole blocks within it and no more than one command takes.
pub(super) fn blocks_of_one_command(namespace: &Namespace, offset: u64, length: usize) -> Option<BlockRange> {
    let block = u64::from(namespace.block_bytes);
    let whole = offset.is_multiple_of(block) && (length as u64).is_multiple_of(block) && length > 0;
    let nlb = u32::try_from(length as u64 / block).ok()?;
    let (lba, end) = (offset / block, (offset / block).checked_add(u64::from(nlb))?);
    (whole && nlb <= namespace.transfer_blocks_max && end <= namespace.blocks)
        .then_some(BlockRange { lba, nlb })
}

/// Makes a range read as zeroes: whole blocks by Write Zeroes where the controller has it, everything else by writing.
/// The caller has its blocks claimed.
fn zero(namespace: &Namespace, claim: &Claim, range: &Range<u64>, deallocate: bool) -> Result<(), Errno> {
    let Cut { head, body, tail } = Cut::new(range, namespace.block_bytes);
    let mut written = vec![head, tail];
    if namespace.write_zeroes_blocks_max == 0 {
        let starts = body.clone().step_by(ZEROES_BYTES);
        written.extend(starts.map(|start| start..body.end.min(start + ZEROES_BYTES as u64)));
    } else if !body.is_empty() {
        let result = claim.write_zeroes(body.start, body.end - body.start, deallocate);
        result.map_err(errno_of_optional)?;
    }
    for part in written.into_iter().filter(|part| !part.is_empty()) {
        let zeroes = vec![0; (part.end - part.start) as usize];
        claim.write_at(part.start, &zeroes, false).map_err(errno)?;
    }
    Ok(())
}

/// Whether a write by such an open file is durable when it has ended.
pub(super) fn is_durable(flags: OpenFlags) -> bool {
    flags.0 & (OFlag::O_DSYNC | OFlag::O_SYNC).bits() != 0
}

fn seek(bytes: u64, offset: i64, whence: i32) -> Result<i64, Errno> {
    let position = u64::try_from(offset).ok().filter(|offset| *offset < bytes).ok_or(Errno::ENXIO)?;
    match whence {
        SEEK_DATA => Ok(position as i64),
        SEEK_HOLE => Ok(bytes as i64),
        _ => Err(Errno::EINVAL),
    }
}

/// What a program is told when a command fails.
pub(super) fn errno(error: IoError) -> Errno {
    failures::note(error);
    errno_of(error)
}

/// The same of a command that not every controller has: a program asks for it once, and does without.
fn errno_of_optional(error: IoError) -> Errno {
    match errno_of(error) {
        Errno::EOPNOTSUPP => Errno::EOPNOTSUPP,
        _ => errno(error),
    }
}

fn errno_of(error: IoError) -> Errno {
    let status = match error {
        IoError::Status(status) | IoError::Exhausted { status, .. } => status.code(),
        IoError::TimedOut => return Errno::ETIMEDOUT,
        IoError::Refused(SubmitError::NoCommand(_)) => return Errno::EOPNOTSUPP,
        IoError::Refused(SubmitError::NoNamespace(_) | SubmitError::Transport) => return Errno::EIO,
        IoError::Refused(_) => return Errno::EINVAL,
        _ => return Errno::EIO,
    };
    match status {
        Status::LBA_OUT_OF_RANGE | Status::INVALID_FIELD => Errno::EINVAL,
        Status::CAPACITY_EXCEEDED => Errno::ENOSPC,
        Status::NAMESPACE_WRITE_PROTECTED => Errno::EROFS,
        Status::INVALID_OPCODE => Errno::EOPNOTSUPP,
        _ => Errno::EIO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_library_refuses_is_told_as_what_a_controller_refuses() {
        for (reason, status) in [
            (SubmitError::NoNamespace(1), Status::INVALID_NAMESPACE),
            (SubmitError::NoCommand("Write Zeroes"), Status::INVALID_OPCODE),
            (SubmitError::Range, Status::LBA_OUT_OF_RANGE),
            (SubmitError::Transport, Status::DATA_TRANSFER_ERROR),
        ] {
            let told = [reason.into(), IoError::Status(status)].map(|error| errno_of(error).code());
            assert_eq!(told[0], told[1], "{reason}");
        }
    }

    #[test]
    fn all_of_a_file_is_data_and_its_only_hole_is_its_end() {
        assert_eq!(seek(4096, 100, SEEK_DATA).ok(), Some(100));
        assert_eq!(seek(4096, 100, SEEK_HOLE).ok(), Some(4096));
        for (offset, whence) in [(4096, SEEK_DATA), (-1, SEEK_HOLE), (0, 0)] {
            assert!(seek(4096, offset, whence).is_err());
        }
    }
}
