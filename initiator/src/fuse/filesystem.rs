//! The directory and its files.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::time::{Duration, SystemTime};

use fuser::{
    AccessFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, OpenAccMode, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, Request, WriteFlags,
};
use nix::fcntl::OFlag;
use nix::unistd::{getegid, geteuid};
use ringfab_initiator::blocking::Controller;
use ringfab_initiator::{IoError, Namespace};
use ringfab_spec::Status;

use super::range_lock::{RangeLock, cut, touched};

/// How long the kernel may believe a size.
const TTL: Duration = Duration::from_secs(1);
/// The longest write of the kernel at once.
const WRITE_BYTES_MAX: u32 = 1 << 20;
/// Asynchronous requests that the kernel may have outstanding.
const BACKGROUND_MAX: u16 = 128;
/// Preferred size of I/O, as `stat` tells it.
const PREFERRED_BYTES: u32 = 4096;

/// Operations of fallocate(2).
mod falloc {
    pub(super) const KEEP_SIZE: i32 = 1;
    pub(super) const PUNCH_HOLE: i32 = 2;
    pub(super) const ZERO_RANGE: i32 = 16;
}

/// Whence of lseek(2) for holes.
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

thread_local! {
    /// Where a thread reads to; it keeps its memory from one request to the next.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The files of one controller's namespaces.
pub(crate) struct Files {
    controller: Controller,
    read_only: bool,
    writers: RangeLock,
    mounted_at: SystemTime,
    owner: (u32, u32),
}

/// The name of a namespace's file.
pub(crate) fn file_name(nsid: u32) -> String {
    format!("ns{nsid}")
}

/// The namespace of a file's name, as [`file_name`] writes it and in no other way.
fn nsid_of(name: &OsStr) -> Option<u32> {
    let digits = name.to_str()?.strip_prefix("ns")?;
    let nsid = digits.parse().ok()?;
    (file_name(nsid) == format!("ns{digits}")).then_some(nsid)
}

/// Files' inodes follow the root's.
fn inode(nsid: u32) -> INodeNo {
    INodeNo(u64::from(nsid) + 1)
}

impl Files {
    pub(crate) fn new(controller: Controller, read_only: bool) -> Self {
        let owner = (geteuid().as_raw(), getegid().as_raw());
        Self { controller, read_only, writers: RangeLock::default(), mounted_at: SystemTime::now(), owner }
    }

    /// The namespace of a file.
    fn namespace(&self, ino: INodeNo) -> Result<Namespace, Errno> {
        let nsid = u64::from(ino).checked_sub(1).and_then(|nsid| u32::try_from(nsid).ok());
        let nsid = nsid.filter(|nsid| *nsid > 0).ok_or(Errno::EISDIR)?;
        self.controller.namespace(nsid).ok_or(Errno::ENOENT)
    }

    fn is_read_only(&self, namespace: &Namespace) -> bool {
        self.read_only || namespace.read_only
    }

    fn attributes(&self, ino: INodeNo) -> Result<FileAttr, Errno> {
        if ino == INodeNo::ROOT {
            return Ok(self.attribute(ino, FileType::Directory, 0, 0o755));
        }
        let namespace = self.namespace(ino)?;
        let mode = if self.is_read_only(&namespace) { 0o400 } else { 0o600 };
        Ok(self.attribute(ino, FileType::RegularFile, namespace.bytes(), mode))
    }

    fn attribute(&self, ino: INodeNo, kind: FileType, size: u64, perm: u16) -> FileAttr {
        FileAttr {
            ino,
            size,
            blocks: size / 512,
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

    /// Reads up to the end of the namespace.
    fn read_into(&self, ino: INodeNo, offset: u64, size: u32, scratch: &mut Vec<u8>) -> Result<(), Errno> {
        let namespace = self.namespace(ino)?;
        let length = namespace.bytes().saturating_sub(offset).min(u64::from(size)) as usize;
        scratch.resize(length, 0);
        if length == 0 {
            return Ok(());
        }
        self.controller.read_at(namespace.nsid, offset, scratch).map_err(errno)
    }

    /// Writes up to the end of the namespace, and says how much.
    fn write_from(&self, ino: INodeNo, offset: u64, data: &[u8], flags: OpenFlags) -> Result<u32, Errno> {
        let namespace = self.namespace(ino)?;
        if self.is_read_only(&namespace) {
            return Err(Errno::EROFS);
        }
        let rest = namespace.bytes().saturating_sub(offset);
        if rest == 0 && !data.is_empty() {
            return Err(Errno::ENOSPC);
        }
        let data = &data[..data.len().min(usize::try_from(rest).unwrap_or(usize::MAX))];
        let blocks = touched(offset, data.len() as u64, u64::from(namespace.block_bytes));
        let _guard = self.writers.lock(namespace.nsid, blocks);
        let durable = flags.0 & (OFlag::O_DSYNC | OFlag::O_SYNC).bits() != 0;
        self.controller.write_at(namespace.nsid, offset, data, durable).map_err(errno)?;
        Ok(data.len() as u32)
    }

    fn allocate(&self, ino: INodeNo, offset: u64, length: u64, mode: i32) -> Result<(), Errno> {
        let namespace = self.namespace(ino)?;
        if self.is_read_only(&namespace) {
            return Err(Errno::EROFS);
        }
        let end = offset.checked_add(length).ok_or(Errno::EFBIG)?;
        let deallocate = match mode & !falloc::KEEP_SIZE {
            // All of a namespace is there from the start.
            0 if end <= namespace.bytes() => return Ok(()),
            0 => return Err(Errno::ENOSPC),
            falloc::PUNCH_HOLE if mode & falloc::KEEP_SIZE != 0 => true,
            falloc::ZERO_RANGE if end <= namespace.bytes() || mode & falloc::KEEP_SIZE != 0 => false,
            falloc::ZERO_RANGE => return Err(Errno::ENOSPC),
            _ => return Err(Errno::EOPNOTSUPP),
        };
        let end = end.min(namespace.bytes());
        if offset >= end {
            return Ok(());
        }
        self.zero(&namespace, offset, end - offset, deallocate)
    }

    /// Makes a range read as zeroes: whole blocks by Write Zeroes, what is left of others by writing.
    fn zero(&self, namespace: &Namespace, offset: u64, length: u64, deallocate: bool) -> Result<(), Errno> {
        if namespace.write_zeroes_blocks_max == 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let (nsid, block) = (namespace.nsid, u64::from(namespace.block_bytes));
        let _guard = self.writers.lock(nsid, touched(offset, length, block));
        let [head, body, tail] = cut(offset, length, block);
        if !body.is_empty() {
            let result = self.controller.write_zeroes(nsid, body.start, body.end - body.start, deallocate);
            result.map_err(errno)?;
        }
        for part in [head, tail].into_iter().filter(|part| !part.is_empty()) {
            let zeroes = vec![0; (part.end - part.start) as usize];
            self.controller.write_at(nsid, part.start, &zeroes, false).map_err(errno)?;
        }
        Ok(())
    }

    fn open_file(&self, ino: INodeNo, flags: OpenFlags) -> Result<FopenFlags, Errno> {
        let namespace = self.namespace(ino)?;
        if self.is_read_only(&namespace) && flags.acc_mode() != OpenAccMode::O_RDONLY {
            return Err(Errno::EROFS);
        }
        // Writes of different blocks need not wait for each other; those of the same do so here.
        Ok(FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES | FopenFlags::FOPEN_NOFLUSH)
    }
}

impl Filesystem for Files {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Where the kernel's limits are lower, its own hold.
        let _ = config.set_max_write(WRITE_BYTES_MAX);
        let _ = config.set_max_background(BACKGROUND_MAX);
        let wanted = InitFlags::FUSE_ASYNC_DIO & config.capabilities();
        config.add_capabilities(wanted).map_err(|_| io::Error::from(io::ErrorKind::Unsupported))
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let nsid = nsid_of(name).filter(|_| parent == INodeNo::ROOT);
        match nsid.ok_or(Errno::ENOENT).and_then(|nsid| self.attributes(inode(nsid))) {
            Ok(attributes) => reply.entry(&TTL, &attributes, Generation(0)),
            Err(error) => reply.error(error),
        }
    }

    fn getattr(&self, _request: &Request, ino: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(ino) {
            Ok(attributes) => reply.attr(&TTL, &attributes),
            Err(error) => reply.error(error),
        }
    }

    /// Times are accepted and forgotten; the size is what it is.
    fn setattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<fuser::TimeOrNow>,
        _mtime: Option<fuser::TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        match self.attributes(ino) {
            Ok(attributes) => {
                let resized = size.is_some_and(|size| size != attributes.size);
                if resized || mode.is_some() || uid.is_some() || gid.is_some() {
                    return reply.error(Errno::EPERM);
                }
                reply.attr(&TTL, &attributes);
            }
            Err(error) => reply.error(error),
        }
    }

    fn access(&self, _request: &Request, ino: INodeNo, _mask: AccessFlags, reply: ReplyEmpty) {
        answer(self.attributes(ino).map(drop), reply);
    }

    fn open(&self, _request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.open_file(ino, flags) {
            Ok(flags) => reply.opened(FileHandle(0), flags),
            Err(error) => reply.error(error),
        }
    }

    fn read(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        SCRATCH.with_borrow_mut(|scratch| match self.read_into(ino, offset, size, scratch) {
            Ok(()) => reply.data(scratch),
            Err(error) => reply.error(error),
        });
    }

    fn write(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.write_from(ino, offset, data, flags) {
            Ok(written) => reply.written(written),
            Err(error) => reply.error(error),
        }
    }

    /// Closing a file promises nothing; fsync does.
    fn flush(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn fsync(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        let flushed =
            self.namespace(ino).and_then(|namespace| self.controller.flush(namespace.nsid).map_err(errno));
        answer(flushed, reply);
    }

    fn fallocate(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        answer(self.allocate(ino, offset, length, mode), reply);
    }

    /// All of a namespace counts as data.
    fn lseek(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        match self.namespace(ino).and_then(|namespace| seek(namespace.bytes(), offset, whence)) {
            Ok(offset) => reply.offset(offset),
            Err(error) => reply.error(error),
        }
    }

    fn readdir(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        if ino != INodeNo::ROOT {
            return reply.error(Errno::ENOTDIR);
        }
        let special = [".", ".."].map(|name| (INodeNo::ROOT, FileType::Directory, name.to_owned()));
        let namespaces = self.controller.namespaces();
        let files = namespaces
            .iter()
            .map(|namespace| (inode(namespace.nsid), FileType::RegularFile, file_name(namespace.nsid)));
        let entries = special.into_iter().chain(files).enumerate();
        for (index, (ino, kind, name)) in entries.skip(usize::try_from(offset).unwrap_or(usize::MAX)) {
            if reply.add(ino, index as u64 + 1, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _request: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        let namespaces = self.controller.namespaces();
        let bytes: u64 = namespaces.iter().map(Namespace::bytes).sum();
        let (block, files) = (PREFERRED_BYTES, namespaces.len() as u64);
        reply.statfs(bytes / u64::from(block), 0, 0, files, 0, block, 255, block);
    }
}

fn answer(result: Result<(), Errno>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}

fn seek(bytes: u64, offset: i64, whence: i32) -> Result<i64, Errno> {
    let position = u64::try_from(offset).ok().filter(|offset| *offset < bytes).ok_or(Errno::ENXIO)?;
    match whence {
        SEEK_DATA => Ok(position as i64),
        SEEK_HOLE => Ok(bytes as i64),
        _ => Err(Errno::EINVAL),
    }
}

fn errno(error: IoError) -> Errno {
    let status = match error {
        IoError::Status(status) => status.code(),
        IoError::TimedOut => return Errno::ETIMEDOUT,
        IoError::NoPath | IoError::Cancelled => return Errno::EIO,
        IoError::Refused(_) => return Errno::EINVAL,
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
    fn a_name_stands_for_a_namespace_only_as_it_is_written() {
        assert_eq!(nsid_of(OsStr::new("ns1")), Some(1));
        assert_eq!(nsid_of(OsStr::new("ns4294967294")), Some(4_294_967_294));
        for name in ["ns", "ns01", "ns+1", "ns4294967296", "NS1", "1", "ns1 "] {
            assert_eq!(nsid_of(OsStr::new(name)), None, "{name}");
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
