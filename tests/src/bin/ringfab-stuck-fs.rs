//! A file system with one file, `disk`, that stops answering when it is told to: a disk that hangs, for tests.
//!
//! It is a process of its own. One that serves its own file system and hangs could not even be killed. Its words come
//! by standard input, a line each, and each has one line of answer: `stick`, `release`, `waiting`, `bytes OFFSET
//! LENGTH`. The end of standard input ends it, and with it everything that waits for it.

use std::ffi::OsStr;
use std::io::{BufRead, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, LockOwner,
    OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, WriteFlags,
};

/// The one file.
const FILE: INodeNo = INodeNo(2);
const NAME: &str = "disk";
const TTL: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    bytes: Vec<u8>,
    stuck: bool,
    waiting: Vec<Waiting>,
}

/// A request that was not answered.
#[derive(Debug)]
enum Waiting {
    Read { offset: u64, size: u32, reply: ReplyData },
    Write { offset: u64, data: Vec<u8>, reply: ReplyWrite },
    Sync(ReplyEmpty),
}

fn main() {
    let [folder, bytes] = &std::env::args().skip(1).collect::<Vec<_>>()[..] else {
        panic!("a folder and a size in bytes are needed")
    };
    let bytes = bytes.parse().expect("a size in bytes");
    let state = State { bytes: vec![0; bytes], stuck: false, waiting: Vec::new() };
    let shared = Arc::new(Shared { state: Mutex::new(state) });
    let session = fuser::spawn_mount(Server(Arc::clone(&shared)), folder, &Config::default());
    let mut out = std::io::stdout();
    let session = match session {
        Ok(session) => session,
        Err(error) => return writeln!(out, "cannot mount: {error}").expect("somebody listens"),
    };
    writeln!(out, "mounted").expect("somebody listens");
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        writeln!(out, "{}", shared.obey(&line)).expect("somebody listens");
    }
    shared.release();
    drop(session);
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn obey(&self, line: &str) -> String {
        match &line.split(' ').collect::<Vec<_>>()[..] {
            ["stick"] => self.lock().stuck = true,
            ["release"] => self.release(),
            ["waiting"] => return self.lock().waiting.len().to_string(),
            ["bytes", offset, length] => {
                let number = |text: &str| text.parse::<usize>().expect("a number");
                let start = number(offset);
                let bytes = self.lock().bytes[start..start + number(length)].to_vec();
                return bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            }
            _ => panic!("what is {line}?"),
        }
        "done".to_owned()
    }

    fn release(&self) {
        let mut state = self.lock();
        state.stuck = false;
        for waiting in std::mem::take(&mut state.waiting) {
            state.answer(waiting);
        }
    }

    fn take(&self, request: Waiting) {
        let mut state = self.lock();
        if state.stuck {
            state.waiting.push(request);
        } else {
            state.answer(request);
        }
    }
}

impl State {
    fn answer(&mut self, request: Waiting) {
        match request {
            Waiting::Read { offset, size, reply } => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX).min(self.bytes.len());
                let end = start.saturating_add(size as usize).min(self.bytes.len());
                reply.data(&self.bytes[start..end]);
            }
            Waiting::Write { offset, data, reply } => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX).min(self.bytes.len());
                let count = data.len().min(self.bytes.len() - start);
                self.bytes[start..start + count].copy_from_slice(&data[..count]);
                reply.written(count as u32);
            }
            Waiting::Sync(reply) => reply.ok(),
        }
    }
}

struct Server(Arc<Shared>);

impl Server {
    fn attributes(&self, ino: INodeNo) -> FileAttr {
        let is_file = ino == FILE;
        let size = if is_file { self.0.lock().bytes.len() as u64 } else { 0 };
        let (kind, perm, nlink) =
            if is_file { (FileType::RegularFile, 0o600, 1) } else { (FileType::Directory, 0o755, 2) };
        let then = SystemTime::UNIX_EPOCH;
        FileAttr {
            ino,
            size,
            blocks: size / 512,
            atime: then,
            mtime: then,
            ctime: then,
            crtime: then,
            kind,
            perm,
            nlink,
            uid: nix::unistd::geteuid().as_raw(),
            gid: nix::unistd::getegid().as_raw(),
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

impl Filesystem for Server {
    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if parent == INodeNo::ROOT && name == NAME {
            reply.entry(&TTL, &self.attributes(FILE), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _request: &Request, ino: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&TTL, &self.attributes(ino));
    }

    /// Past the page cache, so that every read and write comes here. The kernel waits for those of who opened the file
    /// with `O_DIRECT` without a thread, unless it is told to go past the cache by us.
    fn open(&self, _request: &Request, _ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let direct = flags.0 & nix::libc::O_DIRECT != 0;
        let past = if direct { FopenFlags::empty() } else { FopenFlags::FOPEN_DIRECT_IO };
        reply.opened(FileHandle(0), past);
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
        self.0.take(Waiting::Read { offset, size, reply });
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
        self.0.take(Waiting::Write { offset, data: data.to_vec(), reply });
    }

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

    fn fsync(&self, _request: &Request, _ino: INodeNo, _handle: FileHandle, _data: bool, reply: ReplyEmpty) {
        self.0.take(Waiting::Sync(reply));
    }
}
