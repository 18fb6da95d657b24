//! The structures of the FUSE protocol, version 7.42 (`include/uapi/linux/fuse.h`), in the byte order of the machine.
//! Fields have the protocol's names; times are seconds and nanoseconds, sizes are bytes.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Declares structures as the kernel lays them out, with their sizes checked.
macro_rules! structures {
    ($($(#[$meta:meta])* $name:ident, $size:literal { $($field:ident: $type:ty),* $(,)? })*) => {$(
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
        #[expect(missing_docs, reason = "the protocol's own names")]
        pub struct $name {
            $(pub $field: $type,)*
        }
        const _: () = assert!(size_of::<$name>() == $size);
    )*};
}

structures! {
    /// What every request begins with (`fuse_in_header`).
    InHeader, 40 {
        len: u32,
        opcode: u32,
        unique: u64,
        nodeid: u64,
        uid: u32,
        gid: u32,
        pid: u32,
        total_extlen: u16,
        padding: u16,
    }
    /// What every answer begins with (`fuse_out_header`). `error` is zero or a negated error number.
    OutHeader, 16 {
        len: u32,
        error: i32,
        unique: u64,
    }
    /// Attributes of a node (`fuse_attr`).
    Attr, 88 {
        ino: u64,
        size: u64,
        blocks: u64,
        atime: u64,
        mtime: u64,
        ctime: u64,
        atimensec: u32,
        mtimensec: u32,
        ctimensec: u32,
        mode: u32,
        nlink: u32,
        uid: u32,
        gid: u32,
        rdev: u32,
        blksize: u32,
        flags: u32,
    }
    /// The answer to LOOKUP (`fuse_entry_out`).
    EntryOut, 128 {
        nodeid: u64,
        generation: u64,
        entry_valid: u64,
        attr_valid: u64,
        entry_valid_nsec: u32,
        attr_valid_nsec: u32,
        attr: Attr,
    }
    /// The answer to GETATTR and SETATTR (`fuse_attr_out`).
    AttrOut, 104 {
        attr_valid: u64,
        attr_valid_nsec: u32,
        dummy: u32,
        attr: Attr,
    }
    /// SETATTR (`fuse_setattr_in`); [`setattr`] has the bits of `valid`.
    SetattrIn, 88 {
        valid: u32,
        padding: u32,
        fh: u64,
        size: u64,
        lock_owner: u64,
        atime: u64,
        mtime: u64,
        ctime: u64,
        atimensec: u32,
        mtimensec: u32,
        ctimensec: u32,
        mode: u32,
        unused4: u32,
        uid: u32,
        gid: u32,
        unused5: u32,
    }
    /// OPEN and OPENDIR (`fuse_open_in`).
    OpenIn, 8 {
        flags: u32,
        open_flags: u32,
    }
    /// Their answer (`fuse_open_out`).
    OpenOut, 16 {
        fh: u64,
        open_flags: u32,
        backing_id: i32,
    }
    /// RELEASE and RELEASEDIR (`fuse_release_in`).
    ReleaseIn, 24 {
        fh: u64,
        flags: u32,
        release_flags: u32,
        lock_owner: u64,
    }
    /// READ and READDIR (`fuse_read_in`).
    ReadIn, 40 {
        fh: u64,
        offset: u64,
        size: u32,
        read_flags: u32,
        lock_owner: u64,
        flags: u32,
        padding: u32,
    }
    /// WRITE (`fuse_write_in`), before the data.
    WriteIn, 40 {
        fh: u64,
        offset: u64,
        size: u32,
        write_flags: u32,
        lock_owner: u64,
        flags: u32,
        padding: u32,
    }
    /// The answer to WRITE (`fuse_write_out`).
    WriteOut, 8 {
        size: u32,
        padding: u32,
    }
    /// FALLOCATE (`fuse_fallocate_in`).
    FallocateIn, 32 {
        fh: u64,
        offset: u64,
        length: u64,
        mode: u32,
        padding: u32,
    }
    /// LSEEK (`fuse_lseek_in`).
    LseekIn, 24 {
        fh: u64,
        offset: u64,
        whence: u32,
        padding: u32,
    }
    /// The answer to LSEEK (`fuse_lseek_out`).
    LseekOut, 8 {
        offset: u64,
    }
    /// The answer to STATFS (`fuse_statfs_out`).
    StatfsOut, 80 {
        blocks: u64,
        bfree: u64,
        bavail: u64,
        files: u64,
        ffree: u64,
        bsize: u32,
        namelen: u32,
        frsize: u32,
        padding: u32,
        spare: [u32; 6],
    }
    /// One entry of READDIR (`fuse_dirent`), before its name; the next begins at a multiple of [`DIRENT_ALIGN`].
    Dirent, 24 {
        ino: u64,
        off: u64,
        namelen: u32,
        kind: u32,
    }
    /// How much of an entry's memory is used, and for which request (`fuse_uring_ent_in_out`).
    RingEntInOut, 32 {
        flags: u64,
        commit_id: u64,
        payload_sz: u32,
        padding: u32,
        reserved: u64,
    }
    /// The command's part of a submission queue entry (`fuse_uring_cmd_req`).
    RingCmdReq, 24 {
        flags: u64,
        commit_id: u64,
        qid: u16,
        padding: [u8; 6],
    }
}

/// Entries of a directory are padded to a multiple of this.
pub const DIRENT_ALIGN: usize = 8;

/// Values of [`InHeader::opcode`] (`enum fuse_opcode`), those that are answered here or there.
#[expect(missing_docs, reason = "the protocol's own names")]
pub mod opcode {
    pub const LOOKUP: u32 = 1;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const FLUSH: u32 = 25;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const ACCESS: u32 = 34;
    pub const CREATE: u32 = 35;
    pub const DESTROY: u32 = 38;
    pub const FALLOCATE: u32 = 43;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
}

/// Bits of [`SetattrIn::valid`] (`FATTR_*`).
#[expect(missing_docs, reason = "the protocol's own names")]
pub mod setattr {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const FH: u32 = 1 << 6;
}

/// The bit of [`WriteIn::write_flags`] of pages that were changed in a mapping (`FUSE_WRITE_CACHE`).
pub const WRITE_CACHE: u32 = 1 << 0;

/// Commands of a ring (`enum fuse_uring_cmd`).
pub(crate) mod ring_cmd {
    pub(crate) const REGISTER: u32 = 1;
    pub(crate) const COMMIT_AND_FETCH: u32 = 2;
}

/// Bytes of the headers' area for the request's and the answer's header (`FUSE_URING_IN_OUT_HEADER_SZ`).
pub(crate) const IN_OUT_BYTES: usize = 128;
/// The same for the request's first argument (`FUSE_URING_OP_IN_OUT_SZ`).
pub(crate) const OP_IN_BYTES: usize = 128;
