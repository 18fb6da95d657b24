//! Handles of a pool's memory: the only one of its bytes, or one of several.

use std::cell::Cell;
use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::rc::Rc;

use crate::slab::{Inner, Slot};

/// A slot of a pool that is out; the part that buffers and shared buffers have in common. It is two words, which are
/// passed in registers: handles go through many hands. What else there is to know of the slot stands in the pool.
pub(crate) struct Raw {
    inner: Rc<Inner>,
    /// The number of the slot, and above it the length in bytes.
    place: u64,
}

impl Raw {
    #[inline]
    pub(crate) fn new(inner: Rc<Inner>, slot: u32, length: u32) -> Self {
        Self { inner, place: u64::from(length) << 32 | u64::from(slot) }
    }

    #[inline]
    fn number(&self) -> u32 {
        self.place as u32
    }

    #[inline]
    fn length(&self) -> usize {
        (self.place >> 32) as usize
    }

    /// What the pool knows of it.
    #[inline]
    fn slot(&self) -> &Slot {
        self.inner.slot(self.number())
    }

    #[inline]
    fn pointer(&self, offset: usize, length: usize) -> *mut u8 {
        let end = offset.checked_add(length);
        assert!(end.is_some_and(|end| end <= self.length()), "range beyond the buffer");
        // SAFETY: the offset is within the slot by the assertion, or within what was lent to it, which is as long, and
        // `inner` keeps the mapping alive, or the borrow the other one.
        unsafe { self.slot().base.get().as_ptr().add(offset) }
    }

    fn give_back(&self) {
        self.inner.give_back(self.number());
    }

    fn describe(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct(name);
        shown.field("slot", &self.number()).field("length", &self.length()).finish_non_exhaustive()
    }
}

/// The only handle of its bytes. Dropping it returns the memory to the pool.
pub struct Buffer(pub(crate) Raw);

impl Buffer {
    /// Makes the bytes shareable: from now on they are only copied in and out.
    pub fn share(self) -> SharedBuffer {
        let raw = self.into_raw();
        raw.slot().handles.set(1);
        SharedBuffer(raw)
    }

    /// Changes the length, within the capacity of the slot. Bytes beyond the old length are unspecified.
    pub fn set_len(&mut self, length: usize) {
        assert!(length <= self.capacity(), "longer than the slot");
        self.0.place = (length as u64) << 32 | u64::from(self.0.number());
    }

    /// The most bytes that this buffer can hold.
    pub fn capacity(&self) -> usize {
        self.0.slot().capacity as usize
    }

    /// Address of `length` bytes at `offset`, for a device or the kernel. Obtaining it is safe; whoever lets
    /// something write there must own this buffer until that has ended.
    pub fn io_pointer(&self, offset: usize, length: usize) -> *mut u8 {
        self.0.pointer(offset, length)
    }

    /// The index under which the core's ring knows the memory, if it was registered.
    pub fn registration(&self) -> Option<u16> {
        self.0.inner.registration()
    }

    /// Makes it a shared buffer of as many bytes at `base`, which are only read.
    ///
    /// # Safety
    /// The bytes stay where and what they are until [`SharedBuffer::copy_to_own`], or until the last shared buffer is
    /// gone.
    pub(crate) unsafe fn borrow_from(self, base: NonNull<u8>) -> SharedBuffer {
        let shared_buffer = self.share();
        let slot = shared_buffer.0.slot();
        slot.base.set(base);
        slot.is_borrowed.set(true);
        shared_buffer
    }

    fn into_raw(self) -> Raw {
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: `this` is never dropped or used again, so the value is moved out exactly once.
        unsafe { std::ptr::read(&this.0) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.0.give_back();
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the buffer is the only handle of its slot, the mapping is initialized (zeroed by the kernel)
        // and kept alive by `inner`; whoever hands it to the kernel gives the buffer away with it.
        unsafe { std::slice::from_raw_parts(self.0.slot().base.get().as_ptr(), self.0.length()) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`, and `&mut self` excludes any other slice of it.
        unsafe { std::slice::from_raw_parts_mut(self.0.slot().base.get().as_ptr(), self.0.length()) }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.describe("Buffer", f)
    }
}

/// One of several handles of the same bytes. It only copies, so that a device may read or write them meanwhile.
/// Dropping the last one returns the memory to the pool.
///
/// The bytes may be [lent](crate::BorrowedPages): then they lie in shared memory, are not written, and move into the
/// shared buffer's own memory when the borrow ends.
pub struct SharedBuffer(Raw);

impl SharedBuffer {
    /// Length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a length in bytes, not a collection")]
    pub fn len(&self) -> usize {
        self.0.length()
    }

    /// Copies `bytes` to `offset`. A range beyond the end is a caller's error and panics, and so are bytes that are
    /// lent.
    pub fn write_at(&self, offset: usize, bytes: &[u8]) {
        let target = self.0.pointer(offset, bytes.len());
        assert!(!self.is_borrowed(), "written to what is lent");
        assert_eq!(self.readers().get(), 0, "written while a reader looks");
        // SAFETY: the range was checked; no reference into the slot exists, since shared buffers make them only inside
        // `with_bytes`, whose borrow was just excluded, so source and target cannot overlap either.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) };
    }

    /// Copies the bytes at `offset` into `target`. A range beyond the end panics.
    pub fn read_at(&self, offset: usize, target: &mut [u8]) {
        let source = self.0.pointer(offset, target.len());
        // SAFETY: the range was checked, and no mutable reference into a shared slot exists.
        unsafe { std::ptr::copy_nonoverlapping(source, target.as_mut_ptr(), target.len()) };
    }

    /// Shows a range to `look`, for instance to compute a checksum. Writing to the same buffer meanwhile panics, and so
    /// does posting it. While it is posted somewhere, what is shown is a copy.
    pub fn with_bytes<R>(&self, range: Range<usize>, look: impl FnOnce(&[u8]) -> R) -> R {
        let length = range.end.checked_sub(range.start).expect("a range that does not run backwards");
        if self.0.slot().posted.get() > 0 {
            return look(&self.copy(range.start, length));
        }
        let _reader = Reader::new(self.readers());
        let pointer = self.0.pointer(range.start, length);
        // SAFETY: the range was checked and `self` keeps the slot; the bytes have no invariants. Nobody writes them
        // while the borrow counts: `write_at` and `post` refuse, and the kernel and devices write only what is posted.
        look(unsafe { std::slice::from_raw_parts(pointer, length) })
    }

    #[cold]
    fn copy(&self, offset: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.read_at(offset, &mut bytes);
        bytes
    }

    /// From now on the kernel or a device may write the bytes, whenever it likes, until [`PostedBuffer::take_back`]. A
    /// borrow of [`SharedBuffer::with_bytes`] that runs meanwhile panics, and so do bytes that are lent.
    pub fn post(self) -> PostedBuffer {
        assert_eq!(self.readers().get(), 0, "posted while a reader looks");
        assert!(!self.is_borrowed(), "posted what is lent");
        self.0
            .slot()
            .posted
            .update(|posted| posted.checked_add(1).expect("fewer posts than a counter can hold"));
        PostedBuffer(self)
    }

    /// First byte and size of the whole slot, for registering it with a device by itself. Bytes that are lent panic.
    pub fn slot(&self) -> (NonNull<u8>, usize) {
        assert!(!self.is_borrowed(), "a device is not shown what is lent");
        let slot = self.0.slot();
        (slot.base.get(), slot.capacity as usize)
    }

    /// Whether its bytes lie in shared memory until the borrow ends.
    #[inline]
    pub fn is_borrowed(&self) -> bool {
        self.0.slot().is_borrowed.get()
    }

    /// Copies bytes that are lent into its own memory, where they are from then on.
    pub(crate) fn copy_to_own(&self) {
        assert_eq!(self.readers().get(), 0, "moved while a reader looks");
        let borrowed = self.0.inner.restore_base(self.0.number());
        let own = self.0.slot().base.get();
        // SAFETY: both have so many bytes, by [`Buffer::borrow_from`]. Nobody else has the slot's own, which lie in a
        // pool's mapping, where no bytes are lent from.
        unsafe { std::ptr::copy_nonoverlapping(borrowed.as_ptr(), own.as_ptr(), self.len()) };
    }

    /// Becomes the only handle again.
    ///
    /// # Errors
    /// Gives the shared buffer back when others exist, or its bytes are lent.
    pub fn into_unique(self) -> Result<Buffer, SharedBuffer> {
        if self.count().get() != 1 || self.is_borrowed() {
            return Err(self);
        }
        self.count().set(0);
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: `this` is never dropped or used again, so the value is moved out exactly once.
        Ok(Buffer(unsafe { std::ptr::read(&this.0) }))
    }

    /// Whether this is the only handle.
    pub fn is_unique(&self) -> bool {
        self.count().get() == 1
    }

    /// Address of `length` bytes at `offset`, for a device or the kernel. Obtaining it is safe; whoever lets something
    /// read or write there must hold this shared buffer until that has ended, and where the bytes are lent, end it
    /// before the borrow ends, and write nothing.
    pub fn io_pointer(&self, offset: usize, length: usize) -> *mut u8 {
        self.0.pointer(offset, length)
    }

    /// The index under which the core's ring knows the memory, if it was registered.
    pub fn registration(&self) -> Option<u16> {
        self.0.inner.registration()
    }

    fn count(&self) -> &Cell<u32> {
        &self.0.slot().handles
    }

    fn readers(&self) -> &Cell<u8> {
        &self.0.slot().readers
    }
}

impl Clone for SharedBuffer {
    fn clone(&self) -> Self {
        let count = self.count().get().checked_add(1).expect("fewer handles than a counter can hold");
        self.count().set(count);
        SharedBuffer(Raw { inner: Rc::clone(&self.0.inner), place: self.0.place })
    }
}

impl Drop for SharedBuffer {
    fn drop(&mut self) {
        let count = self.count().get() - 1;
        self.count().set(count);
        if count == 0 {
            self.0.give_back();
        }
    }
}

impl fmt::Debug for SharedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.describe("SharedBuffer", f)
    }
}

/// A handle of bytes that the kernel or a device may be writing. It only copies, as every shared buffer does; none of
/// their slot lends its bytes while there is one.
pub struct PostedBuffer(SharedBuffer);

impl PostedBuffer {
    /// Nobody writes them any more on this one's behalf.
    pub fn take_back(self) -> SharedBuffer {
        self.end();
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: `this` is never dropped or used again, so the value is moved out exactly once.
        unsafe { std::ptr::read(&this.0) }
    }

    fn end(&self) {
        self.0.0.slot().posted.update(|posted| posted - 1);
    }
}

impl Drop for PostedBuffer {
    fn drop(&mut self) {
        self.end();
    }
}

impl Deref for PostedBuffer {
    type Target = SharedBuffer;

    fn deref(&self) -> &SharedBuffer {
        &self.0
    }
}

impl fmt::Debug for PostedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.0.describe("PostedBuffer", f)
    }
}

/// Counts a running look at the bytes, also when it unwinds.
struct Reader<'a>(&'a Cell<u8>);

impl<'a> Reader<'a> {
    fn new(count: &'a Cell<u8>) -> Self {
        count.set(count.get().checked_add(1).expect("few looks within looks"));
        Self(count)
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}
