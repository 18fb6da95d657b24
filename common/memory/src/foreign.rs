//! Memory that somebody else may write while we look: a guest's, or another program's.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU8, Ordering};

use crate::mapping::Mapping;
use crate::{MemoryError, PAGE_BYTES};

/// A file in memory that another program has, too, and may write at any time. Nobody is shown its bytes, because a
/// reference says that they stay as they are. They are copied, and what is to be checked is checked in the copy.
///
/// A copy is made byte by byte, and each byte is what it was at some time meanwhile. That is for what is short:
/// descriptors and headers. Data go by the kernel.
///
/// ```compile_fail
/// # fn look(memory: &ringfab_memory::ForeignMemory) {
/// let bytes: &[u8] = &memory;
/// # }
/// ```
#[derive(Debug)]
pub struct ForeignMemory {
    mapping: Mapping,
    bytes: usize,
    can_shrink: bool,
}

/// A range that is not all in the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{length} bytes at {at} are not all within {bytes} bytes of memory")]
pub struct OutOfBounds {
    /// First byte of the range.
    pub at: usize,
    /// Bytes of the range.
    pub length: usize,
    /// Bytes of the memory.
    pub bytes: usize,
}

impl ForeignMemory {
    /// Maps `bytes` of a file from `offset` on, a multiple of [`PAGE_BYTES`].
    ///
    /// # Errors
    /// [`MemoryError::Map`] with the kernel's answer, or `EINVAL` for a range that is empty, not aligned, or not all
    /// in the file: whoever touches what is not there ends with SIGBUS.
    pub fn map(file: BorrowedFd<'_>, offset: u64, bytes: usize) -> Result<Self, MemoryError> {
        let refused = |source| MemoryError::Map { bytes, source };
        let file_bytes = bytes_of(file).map_err(refused)?;
        let end = offset.checked_add(bytes as u64);
        let is_inside = end.is_some_and(|end| end <= file_bytes) && bytes != 0;
        if !is_inside || !offset.is_multiple_of(PAGE_BYTES as u64) {
            return Err(refused(io::ErrorKind::InvalidInput.into()));
        }
        let mapping = Mapping::of_file(file, offset, bytes)?;
        Ok(Self { mapping, bytes, can_shrink: !is_sealed_against_shrinking(file) })
    }

    /// How many bytes there are.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether another program can cut the file off. Then whoever touches the bytes that are gone ends with SIGBUS.
    /// A memory file that is sealed by `F_SEAL_SHRINK` cannot be cut off.
    pub fn can_shrink(&self) -> bool {
        self.can_shrink
    }

    /// Copies the bytes at `at`.
    ///
    /// # Errors
    /// [`OutOfBounds`]; nothing is copied then.
    pub fn read_at(&self, at: usize, into: &mut [u8]) -> Result<(), OutOfBounds> {
        let cells = self.cells(at, into.len())?;
        into.iter_mut().zip(cells).for_each(|(byte, cell)| *byte = cell.load(Ordering::Relaxed));
        Ok(())
    }

    /// Copies `from` to `at`.
    ///
    /// # Errors
    /// [`OutOfBounds`]; nothing is copied then.
    pub fn write_at(&self, at: usize, from: &[u8]) -> Result<(), OutOfBounds> {
        let cells = self.cells(at, from.len())?;
        from.iter().zip(cells).for_each(|(byte, cell)| cell.store(*byte, Ordering::Relaxed));
        Ok(())
    }

    /// A range, as bytes that anybody may change. Atomics of one size only: what two threads of ours do at once to the
    /// same bytes is defined, and so is what another program does.
    fn cells(&self, at: usize, length: usize) -> Result<&[AtomicU8], OutOfBounds> {
        let Self { mapping, bytes, .. } = self;
        if at.checked_add(length).is_none_or(|end| end > *bytes) {
            return Err(OutOfBounds { at, length, bytes: *bytes });
        }
        // SAFETY: the range lies in the mapping, which `self` keeps alive. Every access to it is by these cells, which
        // have the size and alignment of bytes.
        Ok(unsafe { std::slice::from_raw_parts(mapping.base().as_ptr().add(at).cast::<AtomicU8>(), length) })
    }
}

fn bytes_of(file: BorrowedFd<'_>) -> io::Result<u64> {
    // SAFETY: all zeroes is a value of this structure of numbers.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open as long as it is borrowed, and the structure lives through the call.
    match unsafe { libc::fstat(file.as_raw_fd(), &raw mut stat) } {
        0 => Ok(u64::try_from(stat.st_size).unwrap_or(0)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Files that know no seals have none.
fn is_sealed_against_shrinking(file: BorrowedFd<'_>) -> bool {
    // SAFETY: the descriptor is open as long as it is borrowed; the call has no other argument.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    seals != -1 && seals & libc::F_SEAL_SHRINK != 0
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::{AsFd, FromRawFd};
    use std::thread;

    use super::*;

    /// A file in memory, which may be sealed.
    fn file(bytes: u64) -> File {
        // SAFETY: the name is a C string; the call returns a descriptor of our own, or -1.
        let descriptor = unsafe { libc::memfd_create(c"foreign".as_ptr(), libc::MFD_ALLOW_SEALING) };
        assert_ne!(descriptor, -1, "{}", io::Error::last_os_error());
        // SAFETY: nobody else has the descriptor.
        let file = unsafe { File::from_raw_fd(descriptor) };
        file.set_len(bytes).expect("a size");
        file
    }

    #[test]
    fn two_who_have_the_same_file_see_what_the_other_writes() {
        let file = file(3 * PAGE_BYTES as u64);
        let ours =
            ForeignMemory::map(file.as_fd(), PAGE_BYTES as u64, PAGE_BYTES + 100).expect("it is there");
        let theirs = ForeignMemory::map(file.as_fd(), 0, 3 * PAGE_BYTES).expect("it is there");
        theirs.write_at(PAGE_BYTES + 7, b"a descriptor").expect("it is inside");
        let mut seen = [0; 12];
        ours.read_at(7, &mut seen).expect("it is inside");
        assert_eq!(&seen, b"a descriptor");
        ours.write_at(7, b"an").expect("it is inside");
        theirs.read_at(PAGE_BYTES + 7, &mut seen).expect("it is inside");
        assert_eq!(&seen, b"andescriptor");
        assert_eq!(ours.bytes(), PAGE_BYTES + 100);
    }

    #[test]
    fn what_is_not_all_inside_is_refused_and_nothing_is_copied() {
        let memory = ForeignMemory::map(file(8192).as_fd(), 0, 5000).expect("it is there");
        let mut seen = [7; 16];
        for at in [4985, 5000, 6000, usize::MAX] {
            let refused = Err(OutOfBounds { at, length: 16, bytes: 5000 });
            assert_eq!(memory.read_at(at, &mut seen), refused);
            assert_eq!(memory.write_at(at, &seen), refused);
        }
        assert_eq!(seen, [7; 16]);
        assert_eq!(memory.read_at(4984, &mut seen), Ok(()));
        assert_eq!((seen, memory.read_at(5000, &mut [])), ([0; 16], Ok(())));
    }

    #[test]
    fn a_range_that_is_not_in_the_file_is_not_mapped() {
        let file = file(8192);
        for (offset, bytes) in [(0, 0), (0, 8193), (4096, 4097), (8192, 1), (1, 16), (u64::MAX - 4095, 4096)]
        {
            let mapped = ForeignMemory::map(file.as_fd(), offset, bytes);
            assert!(matches!(mapped, Err(MemoryError::Map { .. })), "{offset} {bytes}");
        }
    }

    #[test]
    fn who_can_cut_a_file_off_is_known() {
        let file = file(4096);
        let can_shrink = || ForeignMemory::map(file.as_fd(), 0, 4096).expect("it is there").can_shrink();
        assert!(can_shrink());
        // SAFETY: the descriptor is open; the seals are a number.
        let sealed = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) };
        assert_eq!(sealed, 0, "{}", io::Error::last_os_error());
        assert!(!can_shrink());
        let ordinary = File::open("/proc/self/exe").expect("this program");
        assert!(!is_sealed_against_shrinking(ordinary.as_fd()));
    }

    #[test]
    fn each_byte_of_a_copy_is_what_it_was_at_some_time() {
        let memory = ForeignMemory::map(file(4096).as_fd(), 0, 4096).expect("it is there");
        memory.write_at(0, &[1; 512]).expect("it is inside");
        thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..2000_u16 {
                    memory.write_at(0, &[1 + (round % 2) as u8; 512]).expect("it is inside");
                }
            });
            for _ in 0..2000 {
                let mut seen = [0; 512];
                memory.read_at(0, &mut seen).expect("it is inside");
                assert!(seen.iter().all(|byte| [1, 2].contains(byte)), "{seen:?}");
            }
        });
    }
}
