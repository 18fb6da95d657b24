//! Loop devices: a file of a FUSE file system as a disk of the kernel.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use ringfab_base::VisiblePath as _;
use zerocopy::{Immutable, IntoBytes};

const CONTROL: &str = "/dev/loop-control";
/// Requests of ioctl(2) (`include/uapi/linux/loop.h`).
const CLR_FD: libc::c_ulong = 0x4c01;
const SET_CAPACITY: libc::c_ulong = 0x4c07;
const CONFIGURE: libc::c_ulong = 0x4c0a;
const CTL_GET_FREE: libc::c_ulong = 0x4c82;
/// Flags of a device.
const READ_ONLY: u32 = 1;
const AUTOCLEAR: u32 = 4;
const DIRECT_IO: u32 = 16;
/// Others look for a free device at the same time; so often another one may have been faster.
const ATTEMPTS: usize = 64;

/// `struct loop_config`, with `struct loop_info64` in it.
#[repr(C)]
#[derive(Clone, IntoBytes, Immutable)]
struct LoopConfig {
    fd: u32,
    block_bytes: u32,
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_bytes: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<LoopConfig>() == 304);

/// A loop device that has a file. The kernel takes the file away from it when nobody has it open any more, so it is
/// mounted while this is still there, and is gone with its mount.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
    _open: File,
}

/// How a loop device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoopOptions {
    /// Bytes in a logical block: a power of two from 512 to the size of a page.
    pub block_bytes: u32,
    /// Whether writes are refused.
    pub read_only: bool,
}

impl LoopDevice {
    /// Makes a free device one of this file, with direct I/O. The file is opened as the device shall be.
    ///
    /// # Errors
    /// What the kernel says, with the step.
    pub fn attach(file: &File, name: &Path, options: LoopOptions) -> io::Result<Self> {
        let control = OpenOptions::new().read(true).write(true).custom_flags(libc::O_CLOEXEC).open(CONTROL);
        let control = control.map_err(|error| at_step(CONTROL, &error))?;
        let config = config(file, name, options);
        for _ in 0..ATTEMPTS {
            let number =
                ask(control.as_raw_fd(), CTL_GET_FREE).map_err(|error| at_step("find a free one", &error))?;
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let open = OpenOptions::new().read(true).write(!options.read_only).open(&path);
            let open = open.map_err(|error| at_step(&path.visible().to_string(), &error))?;
            match configure(open.as_raw_fd(), &config) {
                Ok(()) => return Ok(Self { path, _open: open }),
                // Somebody else has got it meanwhile.
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
                Err(error) => return Err(at_step(&format!("set up {}", path.visible()), &error)),
            }
        }
        Err(io::Error::other("others take each free one first"))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Takes the file away from a device, at once, or when the last one that has it open closes it.
///
/// # Errors
/// What the kernel says; ENXIO when the device has no file.
pub fn detach(device: &Path) -> io::Result<()> {
    let open = File::open(device)?;
    ask(open.as_raw_fd(), CLR_FD).map(drop)
}

/// Has a device take the size that its file has by now, as the kernel knows it. What is mounted from it stays.
///
/// # Errors
/// What the kernel says; ENXIO when the device has no file.
pub fn take_size(device: &Path) -> io::Result<()> {
    let open = File::open(device)?;
    ask(open.as_raw_fd(), SET_CAPACITY).map(drop)
}

fn config(file: &File, name: &Path, options: LoopOptions) -> LoopConfig {
    let mut config = LoopConfig {
        fd: file.as_raw_fd().cast_unsigned(),
        block_bytes: options.block_bytes,
        device: 0,
        inode: 0,
        rdevice: 0,
        offset: 0,
        size_limit: 0,
        number: 0,
        encrypt_type: 0,
        encrypt_key_bytes: 0,
        flags: AUTOCLEAR | DIRECT_IO | if options.read_only { READ_ONLY } else { 0 },
        file_name: [0; 64],
        crypt_name: [0; 64],
        encrypt_key: [0; 32],
        init: [0; 2],
        reserved: [0; 8],
    };
    // It is only shown, and ends with a zero.
    let name = name.as_os_str().as_encoded_bytes();
    let shown = name.len().min(config.file_name.len() - 1);
    config.file_name[..shown].copy_from_slice(&name[..shown]);
    config
}

/// A request without an argument; its answer is a number.
fn ask(fd: RawFd, request: libc::c_ulong) -> io::Result<i32> {
    // SAFETY: the descriptor is open while its owner, the caller's file, is; the request takes no memory.
    let answer = unsafe { libc::ioctl(fd, request as _, 0) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

fn configure(fd: RawFd, config: &LoopConfig) -> io::Result<()> {
    // SAFETY: the kernel reads a `struct loop_config` during the call; ours has its size and layout, and the caller
    // owns it until then. The descriptors in it and of the device are open: the caller's files own them.
    let answer = unsafe { libc::ioctl(fd, CONFIGURE as _, std::ptr::from_ref(config)) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn at_step(step: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{step}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_is_told_lies_where_it_looks() {
        let file = File::open("/dev/null").expect("a file");
        let long = format!("/{}", "n".repeat(100));
        let options = LoopOptions { block_bytes: 4096, read_only: true };
        let config = config(&file, Path::new(&long), options);
        let bytes = config.as_bytes();
        assert_eq!(bytes[..4], file.as_raw_fd().to_ne_bytes());
        assert_eq!(bytes[4..8], 4096_u32.to_ne_bytes());
        // lo_flags follows five numbers of 64 bits and three of 32.
        assert_eq!(bytes[8 + 40 + 12..8 + 40 + 16], (1_u32 | 4 | 16).to_ne_bytes());
        assert_eq!((&bytes[64..66], bytes[64 + 63]), (&b"/n"[..], 0));
    }
}
