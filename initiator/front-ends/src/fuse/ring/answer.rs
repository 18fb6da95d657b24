//! Requests that are answered at once, and their structures.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::time::{Duration, SystemTime};

use fuser::{Errno, FileAttr, FileType, INodeNo, OpenFlags};
use nix::libc;
use ringfab_fuse::Request;
use ringfab_fuse::abi::{
    Attr, AttrOut, DIRENT_ALIGN, Dirent, EntryOut, LseekIn, LseekOut, OpenIn, OpenOut, ReadIn, ReleaseIn,
    SetattrIn, StatfsOut, opcode, setattr,
};
use ringfab_memory::SharedBuffer;
use zerocopy::IntoBytes;

use crate::fuse::files::{Entry, Files, PREFERRED_BYTES, TTL};

/// The longest name of a file here, and the longest that the kernel asks for.
const NAME_BYTES_MAX: usize = 255;

/// Whether a request that is no read or write takes I/O, or an admin command, and so has to wait for it: who has a file
/// open sets its size; `df` wants to know how much is in use, and `cp` where the holes are.
pub(super) fn takes_time(request: &Request) -> bool {
    match request.header.opcode {
        opcode::SETATTR => {
            let what: SetattrIn = request.argument();
            what.valid & setattr::SIZE != 0 && what.valid & setattr::FH != 0
        }
        opcode::STATFS | opcode::LSEEK => true,
        _ => false,
    }
}

/// The answer to one of these.
pub(super) fn answer_slowly(files: &Files, request: &Request) -> Result<Vec<u8>, Errno> {
    if !files.admits(request.header.uid) {
        return Err(Errno::EACCES);
    }
    match request.header.opcode {
        opcode::STATFS => Ok(statfs(files)),
        opcode::LSEEK => lseek(files, request),
        _ => set_attributes(files, request),
    }
}

/// The answer to anything but I/O.
pub(super) fn answer(files: &Files, request: &Request, payload: &SharedBuffer) -> Result<Vec<u8>, Errno> {
    let ino = INodeNo(request.header.nodeid);
    if !is_for_all(request.header.opcode) && !files.admits(request.header.uid) {
        return Err(Errno::EACCES);
    }
    match request.header.opcode {
        opcode::LOOKUP => {
            let mut name = [0; NAME_BYTES_MAX + 1];
            let name = name_in(&mut name, request, payload)?;
            files.look_up(ino, name).map(|found| bytes(&entry_out(&found)))
        }
        opcode::GETATTR => files.attributes(ino).map(|found| bytes(&attr_out(&found))),
        opcode::SETATTR => set_attributes(files, request),
        opcode::ACCESS => files.attributes(ino).map(|_| Vec::new()),
        opcode::OPEN => {
            let what: OpenIn = request.argument();
            let (fh, flags) = files.open_file(ino, OpenFlags(what.flags as i32))?;
            Ok(bytes(&OpenOut { fh, open_flags: flags.bits(), ..OpenOut::default() }))
        }
        opcode::OPENDIR => Ok(bytes(&OpenOut::default())),
        opcode::READDIR => {
            let what: ReadIn = request.argument();
            let room = (what.size as usize).min(payload.len());
            files.entries(ino, what.offset).map(|entries| directory(entries, room))
        }
        opcode::RELEASE => {
            let what: ReleaseIn = request.argument();
            files.close_file(what.fh);
            Ok(Vec::new())
        }
        // Closing a file promises nothing; fsync does.
        opcode::FLUSH | opcode::RELEASEDIR | opcode::DESTROY => Ok(Vec::new()),
        _ if changes_names(request.header.opcode) => Err(Errno::EPERM),
        _ => Err(Errno::ENOSYS),
    }
}

fn lseek(files: &Files, request: &Request) -> Result<Vec<u8>, Errno> {
    let what: LseekIn = request.argument();
    let found = files.seek(INodeNo(request.header.nodeid), what.offset as i64, what.whence as i32)?;
    Ok(bytes(&LseekOut { offset: found as u64 }))
}

fn statfs(files: &Files) -> Vec<u8> {
    let totals = files.totals();
    bytes(&StatfsOut {
        blocks: totals.blocks,
        bfree: totals.free,
        bavail: totals.free,
        files: totals.files,
        bsize: PREFERRED_BYTES,
        namelen: NAME_BYTES_MAX as u32,
        frsize: PREFERRED_BYTES,
        ..StatfsOut::default()
    })
}

fn set_attributes(files: &Files, request: &Request) -> Result<Vec<u8>, Errno> {
    let what: SetattrIn = request.argument();
    let size = (what.valid & setattr::SIZE != 0).then_some(what.size);
    let of_owner = what.valid & (setattr::MODE | setattr::UID | setattr::GID) != 0;
    let handle = (what.valid & setattr::FH != 0).then_some(what.fh);
    let found = files.set_attributes(INodeNo(request.header.nodeid), size, handle, of_owner)?;
    Ok(bytes(&attr_out(&found)))
}

/// Whether this would make, remove or rename a file.
fn changes_names(operation: u32) -> bool {
    use opcode::{CREATE, LINK, MKDIR, MKNOD, RENAME, RENAME2, RMDIR, SYMLINK, UNLINK};
    matches!(operation, CREATE | LINK | MKDIR | MKNOD | RENAME | RENAME2 | RMDIR | SYMLINK | UNLINK)
}

/// Whether the kernel asks for this in nobody's name, or for what was opened before.
fn is_for_all(operation: u32) -> bool {
    use opcode::{DESTROY, FSYNCDIR, READDIR, RELEASE, RELEASEDIR};
    matches!(operation, DESTROY | FSYNCDIR | READDIR | RELEASE | RELEASEDIR)
}

/// The name that a request is about, which ends with a zero byte.
fn name_in<'a>(
    room: &'a mut [u8; NAME_BYTES_MAX + 1],
    request: &Request,
    payload: &SharedBuffer,
) -> Result<&'a OsStr, Errno> {
    let length = (request.payload_bytes as usize).min(payload.len());
    let name = room.get_mut(..length).ok_or(Errno::ENAMETOOLONG)?;
    payload.read_at(0, name);
    let end = name.iter().position(|byte| *byte == 0).ok_or(Errno::EINVAL)?;
    Ok(OsStr::from_bytes(&name[..end]))
}

/// As many entries as there is room for.
fn directory(entries: impl Iterator<Item = Entry>, room: usize) -> Vec<u8> {
    let mut listed = Vec::new();
    for entry in entries {
        let name = entry.name.as_bytes();
        let header = Dirent {
            ino: entry.ino.into(),
            off: entry.next,
            namelen: name.len() as u32,
            kind: type_bits(entry.kind) >> 12,
        };
        let length = (size_of::<Dirent>() + name.len()).next_multiple_of(DIRENT_ALIGN);
        if listed.len() + length > room {
            break;
        }
        let end = listed.len() + length;
        listed.extend_from_slice(header.as_bytes());
        listed.extend_from_slice(name);
        listed.resize(end, 0);
    }
    listed
}

fn entry_out(found: &FileAttr) -> EntryOut {
    EntryOut {
        nodeid: found.ino.into(),
        entry_valid: TTL.as_secs(),
        attr_valid: TTL.as_secs(),
        entry_valid_nsec: TTL.subsec_nanos(),
        attr_valid_nsec: TTL.subsec_nanos(),
        attr: attr(found),
        ..EntryOut::default()
    }
}

fn attr_out(found: &FileAttr) -> AttrOut {
    AttrOut {
        attr_valid: TTL.as_secs(),
        attr_valid_nsec: TTL.subsec_nanos(),
        attr: attr(found),
        ..AttrOut::default()
    }
}

fn attr(found: &FileAttr) -> Attr {
    let [atime, mtime, ctime] = [found.atime, found.mtime, found.ctime].map(since_epoch);
    Attr {
        ino: found.ino.into(),
        size: found.size,
        blocks: found.blocks,
        atime: atime.as_secs(),
        mtime: mtime.as_secs(),
        ctime: ctime.as_secs(),
        atimensec: atime.subsec_nanos(),
        mtimensec: mtime.subsec_nanos(),
        ctimensec: ctime.subsec_nanos(),
        mode: type_bits(found.kind) | u32::from(found.perm),
        nlink: found.nlink,
        uid: found.uid,
        gid: found.gid,
        rdev: found.rdev,
        blksize: found.blksize,
        flags: found.flags,
    }
}

/// A clock before 1970 is taken for 1970.
fn since_epoch(time: SystemTime) -> Duration {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// The bits of a mode that tell the type; there are directories and files here.
fn type_bits(kind: FileType) -> u32 {
    if kind == FileType::Directory { libc::S_IFDIR } else { libc::S_IFREG }
}

fn bytes(structure: &(impl IntoBytes + zerocopy::Immutable)) -> Vec<u8> {
    structure.as_bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromBytes;

    fn entries(count: u64) -> impl Iterator<Item = Entry> {
        (1..=count).map(|number| Entry {
            ino: INodeNo(number + 1),
            next: number,
            kind: if number == 1 { FileType::Directory } else { FileType::RegularFile },
            name: format!("ns{number}"),
        })
    }

    /// The entries of a listing, as the kernel reads it.
    fn listed(mut bytes: &[u8]) -> Vec<(u64, u64, u32, String)> {
        let mut found = Vec::new();
        while !bytes.is_empty() {
            let (header, rest) = Dirent::read_from_prefix(bytes).expect("a whole header");
            let name = &rest[..header.namelen as usize];
            found.push((
                header.ino,
                header.off,
                header.kind,
                String::from_utf8(name.to_vec()).expect("text"),
            ));
            bytes =
                &bytes[(size_of::<Dirent>() + name.len()).next_multiple_of(DIRENT_ALIGN).min(bytes.len())..];
        }
        found
    }

    #[test]
    fn a_directory_lists_whole_entries_and_as_many_as_there_is_room_for() {
        let all = listed(&directory(entries(20), 4096));
        assert_eq!(all.len(), 20);
        assert_eq!(all[0], (2, 1, 4, "ns1".to_owned()));
        assert_eq!(all[19], (21, 20, 8, "ns20".to_owned()));
        for room in 0..200 {
            let bytes = directory(entries(20), room);
            assert!(bytes.len() <= room && bytes.len().is_multiple_of(DIRENT_ALIGN));
            // Each of these takes a header and eight bytes.
            assert_eq!(listed(&bytes), all[..room / 32], "{room}");
        }
    }

    #[test]
    fn attributes_are_told_as_they_are() {
        let time = SystemTime::UNIX_EPOCH + Duration::new(5, 7);
        let found = FileAttr {
            ino: INodeNo(3),
            size: 8192,
            blocks: 16,
            atime: time,
            mtime: SystemTime::UNIX_EPOCH - Duration::from_secs(1),
            ctime: time,
            crtime: time,
            kind: FileType::RegularFile,
            perm: 0o600,
            nlink: 1,
            uid: 10,
            gid: 20,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        };
        let told = attr(&found);
        assert_eq!((told.ino, told.size, told.blocks, told.mode), (3, 8192, 16, 0o100_600));
        assert_eq!((told.atime, told.atimensec, told.mtime, told.mtimensec), (5, 7, 0, 0));
        assert_eq!((told.uid, told.gid, told.nlink, told.blksize), (10, 20, 1, 4096));
        let folder = FileAttr { kind: FileType::Directory, perm: 0o755, ..found };
        assert_eq!(attr(&folder).mode, 0o040_755);
        assert_eq!((entry_out(&found).nodeid, entry_out(&found).attr_valid), (3, TTL.as_secs()));
    }
}
