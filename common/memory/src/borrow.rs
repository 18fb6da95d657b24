//! Bytes of shared memory that shared buffers stand for without a copy.
//!
//! What is read from a memory namespace is sent at the end of the same turn, most often at once and as a whole. So the
//! memory is lent to the shared buffer that is sent, and only what could not be sent by then is copied. Pages that are
//! lent are not written.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;

use crate::handle::SharedBuffer;

/// All borrows of a core. Cheap to clone; every clone is the same.
///
/// They end with the turn that began them ([`BorrowedPages::end_all`]), or before it when their core waits for a page:
/// who has lent pages waits for none, so that no two cores wait for each other, and no peer that does not take its data
/// makes anybody wait.
#[derive(Clone, Default)]
pub struct BorrowedPages(Rc<Open>);

#[derive(Default)]
struct Open {
    borrowed: RefCell<Vec<PageBorrow>>,
    copied_bytes: Cell<u64>,
}

/// Memory whose pages can be borrowed.
pub(crate) trait PageOwner {
    /// A range of so many bytes has one reader less.
    fn end_borrow(&self, offset: usize, length: usize);
}

/// A range of shared memory with a reader on each of its pages.
pub(crate) struct PageBorrow {
    /// One of the shared buffers that were lent the bytes. While it is here, the bytes stay.
    pub(crate) shared_buffer: SharedBuffer,
    /// The core's handle of the memory.
    pub(crate) memory: Rc<dyn PageOwner>,
    pub(crate) offset: usize,
}

impl BorrowedPages {
    /// Whether nothing is lent.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.borrowed.borrow().is_empty()
    }

    /// Ends all borrows: what somebody still needs is copied. Whoever looks at a shared buffer's bytes meanwhile
    /// panics.
    pub fn end_all(&self) {
        for borrow in self.0.borrowed.borrow_mut().drain(..) {
            if !borrow.shared_buffer.is_unique() {
                self.0.copied_bytes.update(|bytes| bytes + borrow.shared_buffer.len() as u64);
            }
        }
    }

    /// Bytes that were copied, because they were still needed when their borrow ended.
    pub fn copied_bytes(&self) -> u64 {
        self.0.copied_bytes.get()
    }

    #[inline]
    pub(crate) fn add(&self, borrow: PageBorrow) {
        self.0.borrowed.borrow_mut().push(borrow);
    }
}

impl Drop for PageBorrow {
    fn drop(&mut self) {
        if !self.shared_buffer.is_unique() {
            self.shared_buffer.copy_to_own();
        }
        self.memory.end_borrow(self.offset, self.shared_buffer.len());
    }
}

impl fmt::Debug for BorrowedPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BorrowedPages").field("open", &self.0.borrowed.borrow().len()).finish_non_exhaustive()
    }
}
