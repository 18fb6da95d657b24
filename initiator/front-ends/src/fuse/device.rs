//! Requests that come by `/dev/fuse`: several threads read them, and each waits for its own I/O on the blocking handle.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use fuser::{
    AccessFlags, Errno, FileHandle, Filesystem, Generation, INodeNo, KernelConfig, LockOwner, OpenFlags,
    RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyLseek,
    ReplyOpen, ReplyStatfs, ReplyWrite, Request, WriteFlags,
};

use super::files::{Files, OpenFile, PREFERRED_BYTES, TTL, Totals};
use super::handshake::Handshake;

thread_local! {
    /// Where a thread reads to; it keeps its memory from one request to the next.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The files, as requests by `/dev/fuse` reach them.
pub(crate) struct Device {
    pub(super) files: Arc<Files>,
    pub(super) handshake: Arc<Handshake>,
}

impl Filesystem for Device {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        self.handshake.agree(config)
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.files.look_up(parent, name) {
            Ok(attributes) => reply.entry(&TTL, &attributes, Generation(0)),
            Err(error) => reply.error(error),
        }
    }

    fn getattr(&self, _request: &Request, ino: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        match self.files.attributes(ino) {
            Ok(attributes) => reply.attr(&TTL, &attributes),
            Err(error) => reply.error(error),
        }
    }

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
        handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let of_owner = mode.is_some() || uid.is_some() || gid.is_some();
        match self.files.set_attributes(ino, size, handle.map(u64::from), of_owner) {
            Ok(attributes) => reply.attr(&TTL, &attributes),
            Err(error) => reply.error(error),
        }
    }

    fn access(&self, _request: &Request, ino: INodeNo, _mask: AccessFlags, reply: ReplyEmpty) {
        answer(self.files.attributes(ino).map(drop), reply);
    }

    fn mknod(
        &self,
        _request: &Request,
        _parent: INodeNo,
        _name: &OsStr,
        _mode: u32,
        _umask: u32,
        _device: u32,
        reply: ReplyEntry,
    ) {
        reply.error(Errno::EPERM);
    }

    fn mkdir(
        &self,
        _request: &Request,
        _parent: INodeNo,
        _name: &OsStr,
        _mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        reply.error(Errno::EPERM);
    }

    fn unlink(&self, _request: &Request, _parent: INodeNo, _name: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EPERM);
    }

    fn rmdir(&self, _request: &Request, _parent: INodeNo, _name: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EPERM);
    }

    fn rename(
        &self,
        _request: &Request,
        _parent: INodeNo,
        _name: &OsStr,
        _new_parent: INodeNo,
        _new_name: &OsStr,
        _flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::EPERM);
    }

    fn create(
        &self,
        _request: &Request,
        _parent: INodeNo,
        _name: &OsStr,
        _mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        reply.error(Errno::EPERM);
    }

    fn open(&self, _request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.files.open_file(ino, flags) {
            Ok((handle, flags)) => reply.opened(FileHandle(handle), flags),
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
        SCRATCH.with_borrow_mut(|scratch| match self.files.read_into(ino, offset, size, scratch) {
            Ok(()) => reply.data(scratch),
            Err(error) => reply.error(error),
        });
    }

    fn write(
        &self,
        _request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let handle = (!write_flags.contains(WriteFlags::FUSE_WRITE_CACHE)).then_some(handle.into());
        match self.files.write_from(ino, handle, offset, data, flags) {
            Ok(written) => reply.written(written),
            Err(error) => reply.error(error),
        }
    }

    fn release(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.files.close_file(handle.into());
        reply.ok();
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
        answer(self.files.flush(ino), reply);
    }

    fn fallocate(
        &self,
        _request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        answer(self.files.allocate(OpenFile { ino, handle: handle.into() }, offset, length, mode), reply);
    }

    fn lseek(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        match self.files.seek(ino, offset, whence) {
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
        match self.files.entries(ino, offset) {
            Ok(mut entries) => {
                // What does not fit is asked for again.
                let _full = entries.any(|entry| reply.add(entry.ino, entry.next, entry.kind, entry.name));
                reply.ok();
            }
            Err(error) => reply.error(error),
        }
    }

    fn statfs(&self, _request: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        let Totals { blocks, free, files } = self.files.totals();
        reply.statfs(blocks, free, free, files, 0, PREFERRED_BYTES, 255, PREFERRED_BYTES);
    }
}

fn answer(result: Result<(), Errno>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}
