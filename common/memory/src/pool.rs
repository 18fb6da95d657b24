//! Buffers of fixed sizes from one mapping, for one core.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::ptr::NonNull;
use std::rc::Rc;

use crate::MemoryError;
use crate::handle::{Buffer, Raw};
use crate::mapping::{Mapping, PAGE_BYTES};
use crate::slab::{Class, ClassShare, Inner, Share, Slot};

/// One size of buffer in a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassLayout {
    /// Size of each buffer; rounded up to a multiple of 64 so that no two share a cache line.
    pub buffer_bytes: usize,
    /// How many there are.
    pub count: usize,
}

/// How much of a pool is in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolUsage {
    /// Buffers handed out now.
    pub taken: usize,
    /// The most that were ever handed out at once.
    pub taken_max: usize,
    /// Buffers in all.
    pub total: usize,
}

/// A core's buffers. Cheap to clone; every clone is the same pool. Taking and returning is a pop and a push on
/// a stack, so that the buffer returned last, which is still in the cache, is taken next.
///
/// A handle may be [limited](Pool::limited): what it and its clones hold is counted, so that one of several users
/// cannot take everything.
#[derive(Clone)]
pub struct Pool {
    inner: Rc<Inner>,
    share: Option<Rc<Share>>,
}

impl Pool {
    /// Maps memory for all classes. Buffers of a page or more are page aligned, smaller ones 64-byte aligned.
    ///
    /// # Errors
    /// [`MemoryError`] when the layout is empty or too large, or the kernel refuses the mapping.
    pub fn new(layout: &[ClassLayout]) -> Result<Self, MemoryError> {
        let mut sorted: Vec<ClassLayout> = layout.iter().copied().filter(|class| class.count > 0).collect();
        sorted.sort_by_key(|class| class.buffer_bytes);
        if sorted.len() > usize::from(u16::MAX) {
            return Err(MemoryError::Layout("too many classes"));
        }
        let mut classes = Vec::with_capacity(sorted.len());
        let mut places = Vec::with_capacity(sorted.len());
        let (mut offset, mut slots) = (0_usize, 0_u32);
        for class in sorted {
            let align = if class.buffer_bytes >= PAGE_BYTES { PAGE_BYTES } else { 64 };
            let bytes = class.buffer_bytes.max(1).next_multiple_of(align);
            let capacity =
                u32::try_from(bytes).map_err(|_| MemoryError::Layout("a buffer of 4 GiB or more"))?;
            let count = u32::try_from(class.count).map_err(|_| MemoryError::Layout("too many buffers"))?;
            offset = offset.next_multiple_of(PAGE_BYTES);
            // Slots are stacked so that the first taken is the first in memory.
            let free = (slots..slots + count).rev().collect();
            let free = RefCell::new(free);
            classes.push(Class { bytes, count: class.count, slot_first: slots, offset, free });
            places.push((offset, capacity, count));
            let size = bytes.checked_mul(class.count).and_then(|size| offset.checked_add(size));
            offset = size.ok_or(MemoryError::Layout("larger than the address space"))?;
            slots = slots.checked_add(count).ok_or(MemoryError::Layout("too many buffers"))?;
        }
        if slots == 0 {
            return Err(MemoryError::Layout("it holds no buffer"));
        }
        let mapping = Mapping::new(offset)?;
        let first = mapping.base();
        let slots = places.iter().zip(0_u16..).flat_map(|(&(offset, capacity, count), class)| {
            (0..count as usize).map(move |index| Slot {
                // SAFETY: the mapping is as large as all slots of all classes together.
                base: Cell::new(unsafe { first.add(offset + index * capacity as usize) }),
                capacity,
                class,
                is_borrowed: Cell::new(false),
                handles: Cell::new(0),
                posted: Cell::new(0),
                readers: Cell::new(0),
                share: Cell::new(None),
            })
        });
        let inner = Rc::new(Inner {
            slots: slots.collect(),
            mapping,
            classes,
            registration: Cell::new(None),
            taken: Cell::new(0),
            taken_max: Cell::new(0),
        });
        Ok(Self { inner, share: None })
    }

    /// The same pool for one of several users. Of each class, the new handle and its clones together hold no more
    /// buffers than they leave free, but `least` in any case: alone they can have half, and however many users hold as
    /// much as they can, there is something left for the next. A buffer counts until its last shared buffer is gone.
    #[must_use]
    pub fn limited(&self, least: usize) -> Self {
        let classes = self.inner.classes.iter().map(|_| ClassShare::default()).collect();
        Self { inner: Rc::clone(&self.inner), share: Some(Rc::new(Share { classes, least })) }
    }

    /// What this handle and its clones hold now does not count against their limit any more: it is with somebody who
    /// may never give it back. What they may take is measured against what is left free, as for a new user.
    pub fn exempt_held(&self) {
        for class in self.share.iter().flat_map(|share| &share.classes) {
            class.exempt.set(class.held.get());
        }
    }

    /// Takes a buffer of `length` bytes, from the smallest class that fits and has one left. Its bytes are what
    /// the last user left in them. `None` when all that fit are out, or beyond this handle's limit.
    pub fn take(&self, length: usize) -> Option<Buffer> {
        let inner = &self.inner;
        let fitting = inner.classes.iter().enumerate().filter(|(_, class)| class.bytes >= length);
        for (index, class) in fitting {
            let share = self.share.as_ref();
            let mut free = class.free.borrow_mut();
            if share.is_some_and(|share| !share.may_take(index, free.len())) {
                continue;
            }
            let Some(slot) = free.pop() else { continue };
            if let Some(share) = share {
                share.classes[index].held.update(|held| held + 1);
                inner.slot(slot).share.set(Some(Rc::clone(share)));
            }
            let taken = inner.taken.get() + 1;
            inner.taken.set(taken);
            inner.taken_max.set(inner.taken_max.get().max(taken));
            return Some(Buffer(Raw::new(Rc::clone(inner), slot, length as u32)));
        }
        None
    }

    /// The largest length that [`Pool::take`] can ever satisfy.
    pub fn buffer_bytes_max(&self) -> usize {
        self.inner.classes.last().map_or(0, |class| class.bytes)
    }

    /// How much of the pool is in use, by all of its users.
    pub fn usage(&self) -> PoolUsage {
        PoolUsage {
            taken: self.inner.taken.get(),
            taken_max: self.inner.taken_max.get(),
            total: self.inner.classes.iter().map(|class| class.count).sum(),
        }
    }

    /// Address and size of the whole mapping, for registration with a device or a ring. It stays valid while
    /// any clone of the pool or any of its buffers lives.
    pub fn extent(&self) -> (NonNull<u8>, usize) {
        (self.inner.mapping.base(), self.inner.mapping.bytes())
    }

    /// Remembers the index under which the core's ring knows this mapping.
    pub fn set_registration(&self, index: Option<u16>) {
        self.inner.registration.set(index);
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("usage", &self.usage()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool() -> Pool {
        Pool::new(&[
            ClassLayout { buffer_bytes: 8192, count: 2 },
            ClassLayout { buffer_bytes: 100, count: 1 },
        ])
        .expect("a small pool")
    }

    #[test]
    fn the_smallest_class_that_fits_is_taken_first_and_larger_ones_help_out() {
        let pool = pool();
        let small = pool.take(100).expect("the small one");
        assert_eq!(small.capacity(), 128);
        let helped = pool.take(100).expect("a large one helps out");
        assert_eq!(helped.capacity(), 8192);
        assert_eq!(helped.io_pointer(0, 1) as usize % PAGE_BYTES, 0);
        let large = pool.take(8192).expect("the last large one");
        assert!(pool.take(1).is_none());
        drop(large);
        assert!(pool.take(8193).is_none());
        assert_eq!(pool.usage(), PoolUsage { taken: 2, taken_max: 3, total: 3 });
    }

    #[test]
    fn the_buffer_returned_last_is_taken_next() {
        let pool = pool();
        let (one, two) = (pool.take(8192).expect("one"), pool.take(8192).expect("two"));
        let address = one.io_pointer(0, 0);
        drop(two);
        drop(one);
        assert_eq!(pool.take(8192).expect("again").io_pointer(0, 0), address);
    }

    #[test]
    fn memory_returns_only_with_the_last_shared_buffer_and_only_then_becomes_unique() {
        let pool = pool();
        let first = pool.take(8192).expect("buffer").share();
        let second = first.clone();
        first.write_at(4, &[1, 2, 3]);
        let first = first.into_unique().expect_err("another shared_buffer lives");
        let mut bytes = [0; 3];
        second.read_at(4, &mut bytes);
        assert_eq!(bytes, [1, 2, 3]);
        drop(first);
        assert_eq!(pool.usage().taken, 1);
        let unique = second.into_unique().expect("the last one");
        assert_eq!(unique[4..7], [1, 2, 3]);
        drop(unique);
        assert_eq!(pool.usage().taken, 0);
    }

    #[test]
    #[should_panic(expected = "written while a reader looks")]
    fn writing_to_bytes_that_are_being_looked_at_is_refused() {
        let shared_buffer = pool().take(16).expect("buffer").share();
        let other = shared_buffer.clone();
        shared_buffer.with_bytes(0..16, |_| other.write_at(0, &[1]));
    }

    #[test]
    #[should_panic(expected = "range beyond the buffer")]
    fn a_range_beyond_the_length_is_refused_even_within_the_slot() {
        pool().take(100).expect("buffer").share().write_at(99, &[1, 2]);
    }

    #[test]
    fn a_buffer_whose_length_does_not_fit_its_handle_is_refused() {
        let layout = [ClassLayout { buffer_bytes: 1 << 32, count: 1 }];
        assert!(matches!(Pool::new(&layout), Err(MemoryError::Layout(_))));
    }

    #[test]
    fn a_limited_user_holds_no_more_of_a_class_than_it_leaves_free_until_its_last_shared_buffer_is_gone() {
        let pool = Pool::new(&[ClassLayout { buffer_bytes: 64, count: 16 }]).expect("a small pool");
        let takes_all = |user: &Pool| std::iter::from_fn(|| user.take(64)).collect::<Vec<_>>();
        let (first, second, third) = (pool.limited(1), pool.limited(1), pool.limited(3));
        let mut held = takes_all(&first);
        assert_eq!(held.len(), 8);
        assert_eq!(takes_all(&second.clone()).len(), 4, "what was dropped is free again");
        let others = takes_all(&second);
        assert_eq!(
            (others.len(), takes_all(&third).len()),
            (4, 3),
            "at least three, though two would be left"
        );
        let shared_buffer = held.pop().expect("one of them").share();
        let copy = shared_buffer.clone();
        drop((shared_buffer, others));
        assert!(first.take(64).is_none(), "a shared_buffer still holds it");
        drop(copy);
        assert!(first.take(64).is_some());
        assert_eq!(takes_all(&pool).len(), 9, "the pool itself has no limit");
    }

    #[test]
    fn what_a_limited_user_is_forgiven_does_not_count_until_it_comes_back() {
        let pool = Pool::new(&[ClassLayout { buffer_bytes: 64, count: 16 }]).expect("a small pool");
        let user = pool.limited(1);
        let takes_all = |user: &Pool| std::iter::from_fn(|| user.take(64)).collect::<Vec<_>>();
        let lost = takes_all(&user);
        assert_eq!((lost.len(), takes_all(&user).len()), (8, 0));
        user.exempt_held();
        let more = takes_all(&user);
        assert_eq!(more.len(), 4, "half of the eight that are left");
        drop((lost, more));
        assert_eq!(takes_all(&user).len(), 8, "as before");
        let held = takes_all(&user);
        assert_eq!((held.len(), takes_all(&user).len()), (8, 0), "nothing is exempt any more");
    }

    #[test]
    fn a_user_at_the_limit_of_one_class_goes_on_with_the_next() {
        let layout =
            [ClassLayout { buffer_bytes: 64, count: 2 }, ClassLayout { buffer_bytes: 4096, count: 2 }];
        let user = Pool::new(&layout).expect("a small pool").limited(1);
        let capacities: Vec<_> =
            std::iter::from_fn(|| user.take(64)).map(|buffer| (buffer.capacity(), buffer)).collect();
        let capacities: Vec<_> = capacities.iter().map(|(capacity, _)| *capacity).collect();
        assert_eq!(capacities, [64, 4096]);
    }

    #[test]
    fn a_buffer_outlives_the_handle_of_its_pool() {
        let mut buffer = pool().take(8192).expect("buffer");
        buffer.fill(7);
        assert!(buffer.iter().all(|byte| *byte == 7));
    }

    #[test]
    fn what_the_kernel_may_write_is_shown_as_a_copy_until_it_is_taken_back() {
        let pool = Pool::new(&[ClassLayout { buffer_bytes: 64, count: 1 }]).expect("pool");
        let shared_buffer = pool.take(64).expect("a buffer").share();
        let lies_in_it = || {
            let first = shared_buffer.io_pointer(0, 1).cast_const();
            shared_buffer.with_bytes(0..64, |bytes| bytes.as_ptr() == first)
        };
        assert!(lies_in_it());
        let (posted, again) = (shared_buffer.clone().post(), shared_buffer.clone().post());
        shared_buffer.with_bytes(0..64, |bytes| {
            // As the kernel would. A slice of the memory itself would change under who looks.
            posted.write_at(0, &[9; 64]);
            assert!(bytes.iter().all(|byte| *byte == 0));
        });
        drop(posted);
        assert!(!lies_in_it(), "it is posted in another place");
        drop(again.take_back());
        assert!(lies_in_it());
        assert!(shared_buffer.is_unique());
    }

    #[test]
    #[should_panic(expected = "posted while a reader looks")]
    fn nothing_is_posted_while_a_reader_looks() {
        let pool = Pool::new(&[ClassLayout { buffer_bytes: 64, count: 1 }]).expect("pool");
        let shared_buffer = pool.take(64).expect("a buffer").share();
        shared_buffer.with_bytes(0..64, |_| drop(shared_buffer.clone().post()));
    }
}
