//! Bytes of shared memory that shared buffers stand for without a copy.
//!
//! What is read from a memory namespace is sent at the end of the same turn, most often at once and as a whole. So the
//! memory is lent to the shared buffer that is sent, and only what could not be sent by then is copied. Pages that are
//! lent are not written.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;

use crate::handle::SharedBuffer;

/// All loans of a core. Cheap to clone; every clone is the same.
///
/// They end with the turn that began them ([`Loans::settle`]), or before it when their core waits for a page: who has
/// lent pages waits for none, so that no two cores wait for each other, and no peer that does not take its data makes
/// anybody wait.
#[derive(Clone, Default)]
pub struct Loans(Rc<Open>);

#[derive(Default)]
struct Open {
    loans: RefCell<Vec<Loan>>,
    copied_bytes: Cell<u64>,
}

/// Memory whose pages can be on loan.
pub(crate) trait Lender {
    /// A range of so many bytes has one reader less.
    fn end_loan(&self, offset: usize, length: usize);
}

/// A range of shared memory with a reader on each of its pages.
pub(crate) struct Loan {
    /// One of the shared buffers that were lent the bytes. While it is here, the bytes stay.
    pub(crate) shared_buffer: SharedBuffer,
    /// The core's handle of the memory.
    pub(crate) memory: Rc<dyn Lender>,
    pub(crate) offset: usize,
}

impl Loans {
    /// Whether nothing is lent.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.loans.borrow().is_empty()
    }

    /// Ends all loans: what somebody still needs is copied. Whoever looks at a shared buffer's bytes meanwhile panics.
    pub fn settle(&self) {
        for loan in self.0.loans.borrow_mut().drain(..) {
            if !loan.shared_buffer.is_unique() {
                self.0.copied_bytes.update(|bytes| bytes + loan.shared_buffer.len() as u64);
            }
        }
    }

    /// Bytes that were copied, because they were still needed when their loan ended.
    pub fn copied_bytes(&self) -> u64 {
        self.0.copied_bytes.get()
    }

    #[inline]
    pub(crate) fn add(&self, loan: Loan) {
        self.0.loans.borrow_mut().push(loan);
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        if !self.shared_buffer.is_unique() {
            self.shared_buffer.come_home();
        }
        self.memory.end_loan(self.offset, self.shared_buffer.len());
    }
}

impl fmt::Debug for Loans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loans").field("open", &self.0.loans.borrow().len()).finish_non_exhaustive()
    }
}
