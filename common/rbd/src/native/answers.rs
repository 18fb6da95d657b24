//! The list of answers that a core has not taken yet, without a lock: threads of librbd put answers there, and the
//! core takes all that there are.

use std::ptr;
use std::sync::Arc;

use crate::sync::{AtomicI64, AtomicPtr, Ordering};

/// An answer to a call. A call has the same one each time: it is on the list once at the most.
pub(crate) struct Answer {
    slot: u32,
    result: AtomicI64,
    /// The next older one on the list.
    next: AtomicPtr<Answer>,
}

impl Answer {
    /// For the call of this slot.
    pub(crate) fn new(slot: u32) -> Self {
        Self { slot, result: AtomicI64::new(0), next: AtomicPtr::new(ptr::null_mut()) }
    }

    /// The slot of its call.
    pub(crate) fn slot(&self) -> u32 {
        self.slot
    }

    /// What the answer is, once it was taken.
    pub(crate) fn result(&self) -> i64 {
        self.result.load(Ordering::Relaxed)
    }
}

/// The list. Who puts the first answer there has to wake the core.
pub(crate) struct Answers {
    /// As [`Arc::into_raw`] made it; null when there is none, or [`Answers::gone`].
    youngest: AtomicPtr<Answer>,
}

impl Answers {
    /// An empty list.
    pub(crate) fn new() -> Self {
        Self { youngest: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Stands on the list when nobody takes answers any more.
    fn gone() -> *mut Answer {
        ptr::without_provenance_mut(align_of::<Answer>())
    }

    /// Puts an answer on the list. Returns whether it is the first, of which the core does not know yet.
    pub(crate) fn put(&self, answer: Arc<Answer>, result: i64) -> bool {
        answer.result.store(result, Ordering::Relaxed);
        let answer = Arc::into_raw(answer).cast_mut();
        let mut youngest = self.youngest.load(Ordering::Relaxed);
        loop {
            if youngest == Self::gone() {
                // SAFETY: it was made by `into_raw` above, and is on no list.
                drop(unsafe { Arc::from_raw(answer) });
                return false;
            }
            // SAFETY: as above. Nobody takes it before it is on the list.
            unsafe { &*answer }.next.store(youngest, Ordering::Relaxed);
            match self.exchange(youngest, answer) {
                Ok(_) => return youngest.is_null(),
                Err(other) => youngest = other,
            }
        }
    }

    /// Releases what was written for the answer, and what older answers on the list have released.
    fn exchange(&self, youngest: *mut Answer, answer: *mut Answer) -> Result<*mut Answer, *mut Answer> {
        self.youngest.compare_exchange_weak(youngest, answer, Ordering::Release, Ordering::Relaxed)
    }

    /// Takes all answers, the youngest first.
    pub(crate) fn take(&self, each: impl FnMut(&Answer)) {
        Self::walk(self.youngest.swap(ptr::null_mut(), Ordering::Acquire), each);
    }

    /// Takes those that are there. From now on answers are dropped.
    pub(crate) fn close(&self, each: impl FnMut(&Answer)) {
        Self::walk(self.youngest.swap(Self::gone(), Ordering::Acquire), each);
    }

    fn walk(mut youngest: *mut Answer, mut each: impl FnMut(&Answer)) {
        while !youngest.is_null() {
            // SAFETY: what is on the list was made by `into_raw` in `put`. Whoever takes it from the list has it
            // alone, and this list was taken as a whole. It is closed once, so it does not end with `gone`.
            let answer = unsafe { Arc::from_raw(youngest) };
            youngest = answer.next.load(Ordering::Relaxed);
            each(&answer);
        }
    }
}
