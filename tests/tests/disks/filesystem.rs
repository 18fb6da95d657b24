//! A file system with one file, through FUSE, that fails or stops answering when it is told to.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyWrite, Request, Session, TimeOrNow, WriteFlags,
};
use nix::mount::{MntFlags, umount2};
use tempfile::TempDir;

const TTL: Duration = Duration::from_secs(1);
const FILE: INodeNo = INodeNo(2);
const NAME: &str = "disk";

/// What the file system does, and has.
#[derive(Debug, Default)]
struct State {
    bytes: Vec<u8>,
    /// Writes to fail with an I/O error.
    failing_writes: u32,
    /// No answer to anybody.
    hangs: bool,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic")
    }

    /// The state, once it does not hang.
    fn answer(&self) -> MutexGuard<'_, State> {
        self.changed.wait_while(self.state(), |state| state.hangs).expect("no panic")
    }
}

struct OneFile(Arc<Shared>);

fn attributes(ino: INodeNo, bytes: u64) -> FileAttr {
    let now = SystemTime::UNIX_EPOCH;
    let is_file = ino == FILE;
    FileAttr {
        ino,
        size: bytes,
        blocks: bytes / 512,
        atime: now,
        mtime: now,
        ctime: now,
        crtime: now,
        kind: if is_file { FileType::RegularFile } else { FileType::Directory },
        perm: if is_file { 0o600 } else { 0o700 },
        nlink: 1,
        uid: nix::unistd::getuid().as_raw(),
        gid: nix::unistd::getgid().as_raw(),
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

impl Filesystem for OneFile {
    /// Writes stay in the page cache until they are written back, as those of a file system on a disk do.
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let missing = config.add_capabilities(InitFlags::FUSE_WRITEBACK_CACHE);
        missing.map_err(|_| io::Error::other("the kernel has no write-back cache for FUSE"))
    }

    fn lookup(&self, _request: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let state = self.0.answer();
        if name == NAME {
            reply.entry(&TTL, &attributes(FILE, state.bytes.len() as u64), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _request: &Request, ino: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        let state = self.0.answer();
        reply.attr(&TTL, &attributes(ino, state.bytes.len() as u64));
    }

    fn setattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        _size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let state = self.0.answer();
        reply.attr(&TTL, &attributes(ino, state.bytes.len() as u64));
    }

    fn open(&self, _request: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        drop(self.0.answer());
        reply.opened(FileHandle(0), FopenFlags::empty());
    }

    fn read(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let state = self.0.answer();
        let begin = (offset as usize).min(state.bytes.len());
        let end = (begin + size as usize).min(state.bytes.len());
        reply.data(&state.bytes[begin..end]);
    }

    fn write(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let mut state = self.0.answer();
        if state.failing_writes > 0 {
            state.failing_writes -= 1;
            return reply.error(Errno::EIO);
        }
        let begin = offset as usize;
        state.bytes[begin..begin + data.len()].copy_from_slice(data);
        reply.written(data.len() as u32);
    }

    fn flush(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        drop(self.0.answer());
        reply.ok();
    }

    fn fsync(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        drop(self.0.answer());
        reply.ok();
    }
}

/// The mounted file system. Dropping it unmounts it, whatever hangs.
pub(crate) struct Mounted {
    folder: TempDir,
    shared: Arc<Shared>,
    session: Option<Session<OneFile>>,
    serving: Option<JoinHandle<io::Result<()>>>,
}

impl Mounted {
    /// Mounts a file of so many zeroes, and serves it.
    pub(crate) fn new(bytes: usize) -> Self {
        let mut this = Self::silent(bytes);
        let session = this.session.take().expect("it is not served yet");
        this.serving = Some(std::thread::spawn(move || session.run()));
        this
    }

    /// The same, but nobody takes a request: a server that is gone.
    pub(crate) fn silent(bytes: usize) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let shared = Arc::new(Shared::default());
        shared.state().bytes = vec![0; bytes];
        let session = Session::new(OneFile(Arc::clone(&shared)), folder.path(), &Config::default());
        Self { folder, shared, session: Some(session.expect("mounted")), serving: None }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join(NAME)
    }

    /// The next so many writes of the kernel fail.
    pub(crate) fn fail_writes(&self, count: u32) {
        self.shared.state().failing_writes = count;
    }

    /// Whether it answers.
    pub(crate) fn set_hangs(&self, hangs: bool) {
        self.shared.state().hangs = hangs;
        self.shared.changed.notify_all();
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.set_hangs(false);
        let unmounted = umount2(self.folder(), MntFlags::MNT_DETACH);
        // With its session the connection to the kernel goes, and with that every request that waits.
        self.session = None;
        if let Err(error) = unmounted {
            assert!(std::thread::panicking(), "not unmounted: {error}");
        }
    }
}
