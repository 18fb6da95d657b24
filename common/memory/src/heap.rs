//! How much more the process may have, and what its heap keeps.

use crate::mapping::Mapping;

/// Whether the process may map so many bytes more. Nothing of them stays mapped.
///
/// Where its address space is limited, an allocation that the heap cannot serve ends the process. So whoever is about
/// to let somebody have memory asks first whether there is far more left than that takes, and refuses otherwise: what
/// must not fail then never does.
pub fn has_headroom(bytes: usize) -> bool {
    Mapping::new(bytes).is_ok()
}

/// Has the allocator give pages of free blocks back to the kernel, as far as it has any. It takes milliseconds for a
/// large heap.
pub fn trim_heap() {
    // The GNU C library keeps free blocks for good unless they are at the end of its heap; others decide for
    // themselves.
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes the allocator's own locks and moves no block that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_for_a_little_and_not_for_more_than_an_address_can_name() {
        assert!(has_headroom(1 << 20));
        assert!(!has_headroom(1 << 60));
    }
}
