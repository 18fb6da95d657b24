//! The memory of a pool: classes of slots of one size each, and what is known of every slot.

use std::cell::{Cell, RefCell};
use std::ptr::NonNull;
use std::rc::Rc;

use crate::mapping::Mapping;

/// What one user of a pool holds of it.
pub(crate) struct Share {
    /// Buffers, by class.
    pub(crate) classes: Vec<ClassShare>,
    /// What the user may hold of each class, however little that leaves.
    pub(crate) least: usize,
}

#[derive(Default)]
pub(crate) struct ClassShare {
    /// Buffers that the user holds.
    pub(crate) held: Cell<usize>,
    /// How many of them do not count: see [`Pool::exempt_held`].
    pub(crate) exempt: Cell<usize>,
}

pub(crate) struct Inner {
    pub(crate) mapping: Mapping,
    pub(crate) classes: Vec<Class>,
    pub(crate) slots: Vec<Slot>,
    pub(crate) registration: Cell<Option<u16>>,
    pub(crate) taken: Cell<usize>,
    pub(crate) taken_max: Cell<usize>,
}

pub(crate) struct Class {
    pub(crate) bytes: usize,
    pub(crate) count: usize,
    /// Its first slot, and where that lies in the mapping.
    pub(crate) slot_first: u32,
    pub(crate) offset: usize,
    pub(crate) free: RefCell<Vec<u32>>,
}

/// What there is to know of a slot, in half a line of the cache.
pub(crate) struct Slot {
    /// The first of its bytes: its own, or those of shared memory that were lent to it.
    pub(crate) base: Cell<NonNull<u8>>,
    /// Its size.
    pub(crate) capacity: u32,
    /// Index of its class.
    pub(crate) class: u16,
    /// Whether its bytes are lent.
    pub(crate) is_borrowed: Cell<bool>,
    /// How many shared buffers hold it (zero while it is free or unique).
    pub(crate) handles: Cell<u32>,
    /// In how many places the kernel or a device may write it: see [`crate::SharedBuffer::post`].
    pub(crate) posted: Cell<u32>,
    /// How many borrows of [`crate::SharedBuffer::with_bytes`] run.
    pub(crate) readers: Cell<u8>,
    /// Whose share it counts in while it is out.
    pub(crate) share: Cell<Option<Rc<Share>>>,
}

impl Share {
    /// Whether its user may take one more of a class of which so many are free.
    pub(crate) fn may_take(&self, class: usize, free: usize) -> bool {
        let ClassShare { held, exempt } = &self.classes[class];
        let held = held.get();
        if exempt.get() == 0 {
            return held < self.least || held < free;
        }
        // What came back since then is exempt no more.
        exempt.set(exempt.get().min(held));
        let held = held - exempt.get();
        held < self.least || held < free
    }
}

impl Inner {
    /// Puts a slot back on its class's stack.
    pub(crate) fn give_back(&self, number: u32) {
        let slot = self.slot(number);
        if slot.is_borrowed.get() {
            self.restore_base(number);
        }
        let class = usize::from(slot.class);
        self.classes[class].free.borrow_mut().push(number);
        if let Some(share) = slot.share.take() {
            share.classes[class].held.update(|held| held - 1);
        }
        self.taken.set(self.taken.get() - 1);
    }

    /// A slot has its own bytes again, whatever they are. Returns the first of those that it had before.
    pub(crate) fn restore_base(&self, number: u32) -> NonNull<u8> {
        let slot = self.slot(number);
        let class = &self.classes[usize::from(slot.class)];
        let place = class.offset + (number - class.slot_first) as usize * class.bytes;
        // SAFETY: the mapping is as large as all slots of all classes together.
        let own = unsafe { self.mapping.base().add(place) };
        slot.is_borrowed.set(false);
        slot.base.replace(own)
    }

    #[inline]
    pub(crate) fn slot(&self, number: u32) -> &Slot {
        &self.slots[number as usize]
    }

    /// The index under which the core's ring knows the memory, if it was registered.
    pub(crate) fn registration(&self) -> Option<u16> {
        self.registration.get()
    }
}
