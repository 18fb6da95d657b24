//! Opening files and block devices, and what direct I/O on them needs.

use std::fs::{self, File, FileType, Metadata, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ringfab_memory::{Mapping, PAGE_BYTES};

use crate::{FileInfo, FileOptions, PreferredSizes};

/// Opens the file and finds out its size and alignment.
pub(super) fn open(path: &Path, options: FileOptions) -> io::Result<(File, FileInfo)> {
    // To open some things is to wait for somebody (a FIFO) or to set something off (a device).
    check_kind(fs::metadata(path)?.file_type())?;
    let direct = if options.direct { libc::O_DIRECT } else { 0 };
    let file = OpenOptions::new()
        .read(true)
        .write(!options.read_only)
        .custom_flags(direct | libc::O_CLOEXEC)
        .open(path)?;
    let info = inspect_file(&file, options)?;
    Ok((file, info))
}

/// Whether a file is of a kind that can be a disk. What cannot is better not opened.
///
/// # Errors
/// Says what it is.
pub fn check_kind(kind: FileType) -> io::Result<()> {
    let what = match () {
        () if kind.is_file() || kind.is_block_device() => return Ok(()),
        () if kind.is_fifo() => "a FIFO",
        () if kind.is_dir() => "a directory",
        () if kind.is_socket() => "a socket",
        () if kind.is_char_device() => "a character device",
        () => "something else",
    };
    let message = format!("it is {what}, neither a regular file nor a block device");
    Err(io::Error::new(io::ErrorKind::InvalidInput, message))
}

/// Finds out the size and alignment of a file or block device that was opened with these options. This may block.
///
/// # Errors
/// What is neither, or the kernel's refusal; `EINVAL` for direct I/O that the file system does not do.
pub fn inspect_file(mut file: &File, options: FileOptions) -> io::Result<FileInfo> {
    let metadata = file.metadata()?;
    let kind = metadata.file_type();
    check_kind(kind)?;
    // The size that `stat` gives for a block device is zero; its end is where seeking leads.
    let bytes = file.seek(SeekFrom::End(0))?;
    let block_device = kind.is_block_device();
    let (offset_align, memory_align) =
        if options.direct { direct_alignment(file, block_device)? } else { (1, 1) };
    let remote = !block_device && is_remote(file)?;
    let preferred = match block_device {
        true => preferred_by_device(metadata.rdev()),
        false => preferred_by_file(&metadata, remote),
    };
    Ok(FileInfo { bytes, block_device, offset_align, memory_align, remote, preferred })
}

/// A file system names the size of its blocks. One that is served elsewhere names the size of its transfers instead;
/// what is written to it is whole pages of the cache.
fn preferred_by_file(metadata: &Metadata, remote: bool) -> PreferredSizes {
    let named = u32::try_from(metadata.blksize()).unwrap_or(0);
    let (granularity, optimal_write) = if remote { (PAGE_BYTES as u32, named) } else { (named, 0) };
    PreferredSizes { write: granularity, discard: granularity, optimal_write }
}

/// What the kernel says of a block device (Documentation/ABI/stable/sysfs-block).
fn preferred_by_device(number: u64) -> PreferredSizes {
    let (major, minor) = (nix::sys::stat::major(number), nix::sys::stat::minor(number));
    preferred_in(&PathBuf::from(format!("/sys/dev/block/{major}:{minor}")))
}

/// The folder of a device has its queue, or that of a partition lies in the folder of a device. What cannot be read is
/// unknown.
fn preferred_in(folder: &Path) -> PreferredSizes {
    let read = |name: &str| {
        let text = ["queue", "../queue"]
            .iter()
            .find_map(|queue| fs::read_to_string(folder.join(queue).join(name)).ok());
        text.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    };
    PreferredSizes {
        write: read("minimum_io_size"),
        discard: read("discard_granularity"),
        optimal_write: read("optimal_io_size"),
    }
}

/// File systems that somebody else serves: the magic numbers of `statfs` (linux/magic.h and the file systems' own).
const REMOTE_FILE_SYSTEMS: [u32; 12] = [
    0x6573_5546, // FUSE
    0x6969,      // NFS
    0x517b,      // SMB
    0xff53_4d42, // CIFS
    0xfe53_4d42, // SMB2
    0x0102_1997, // 9P
    0x00c3_6400, // Ceph
    0x5346_414f, // AFS
    0x7375_7245, // Coda
    0x0bd0_0bd0, // Lustre
    0x0116_1970, // GFS2
    0x7461_636f, // OCFS2
];

fn is_remote(file: &File) -> io::Result<bool> {
    let status = nix::sys::statfs::fstatfs(file)?;
    // The type is signed or unsigned, and has 32 or 64 bits, depending on the machine.
    Ok(REMOTE_FILE_SYSTEMS.contains(&(status.filesystem_type().0 as u32)))
}

/// Alignment of offsets and of memory for direct I/O: as the kernel says, or as can be found out.
fn direct_alignment(file: &File, block_device: bool) -> io::Result<(u32, u32)> {
    if let Some((offset, memory)) = statx_alignment(file)? {
        if offset == 0 || memory == 0 {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        return Ok((offset, memory));
    }
    if block_device {
        let bytes = logical_block_bytes(file)?;
        return Ok((bytes, bytes));
    }
    trial_alignment(file)
}

/// `STATX_DIOALIGN` (Linux 6.1): zeroes where the file does not do direct I/O, `None` where the kernel does not say.
fn statx_alignment(file: &File) -> io::Result<Option<(u32, u32)>> {
    // SAFETY: the all-zero bit pattern is a valid `statx`.
    let mut status: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open for the call, the path is an empty string constant, and the kernel fills a
    // structure that lives in this frame.
    let result = unsafe {
        libc::statx(
            file.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            libc::STATX_DIOALIGN,
            &raw mut status,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let answered = status.stx_mask & libc::STATX_DIOALIGN != 0;
    Ok(answered.then_some((status.stx_dio_offset_align, status.stx_dio_mem_align)))
}

fn logical_block_bytes(file: &File) -> io::Result<u32> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the descriptor is open for the call, and BLKSSZGET writes one int, which lives in this frame.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), libc::BLKSSZGET, &raw mut bytes) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    u32::try_from(bytes).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

/// The smallest usual block that can be read from. An empty file proves nothing, so it gets the largest.
fn trial_alignment(file: &File) -> io::Result<(u32, u32)> {
    let page = Mapping::new(PAGE_BYTES).map_err(io::Error::other)?;
    let read = |length: usize| {
        // SAFETY: the mapping is a page long and lives through the call; `length` is not more than that.
        let result = unsafe { libc::pread(file.as_raw_fd(), page.base().as_ptr().cast(), length, 0) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
    };
    if file.metadata()?.len() > 0 && read(512).is_ok() {
        return Ok((512, 512));
    }
    read(PAGE_BYTES)?;
    Ok((PAGE_BYTES as u32, PAGE_BYTES as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_and_its_partitions_like_what_the_queue_of_the_device_says() {
        let folder = tempfile::tempdir().expect("a folder");
        let (queue, partition) = (folder.path().join("queue"), folder.path().join("part1"));
        fs::create_dir(&queue).and_then(|()| fs::create_dir(&partition)).expect("folders");
        for (name, text) in [("minimum_io_size", "65536\n"), ("optimal_io_size", "1048576\n")] {
            fs::write(queue.join(name), text).expect("a file");
        }
        let known = PreferredSizes { write: 65_536, discard: 0, optimal_write: 1 << 20 };
        assert_eq!([folder.path(), &partition].map(preferred_in), [known, known]);
        assert_eq!(preferred_in(&partition.join("none")), PreferredSizes::default());
    }

    #[test]
    fn a_file_likes_the_blocks_of_its_file_system() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let metadata = file.as_file().metadata().expect("metadata");
        let named = metadata.blksize() as u32;
        let local = PreferredSizes { write: named, discard: named, optimal_write: 0 };
        assert_eq!(preferred_by_file(&metadata, false), local);
        let remote = PreferredSizes { write: 4096, discard: 4096, optimal_write: named };
        assert_eq!(preferred_by_file(&metadata, true), remote);
    }
}
