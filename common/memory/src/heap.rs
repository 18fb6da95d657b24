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

/// Bytes of addresses that the process may have in all (`ulimit -v`, `LimitAS=`). None without such a limit.
pub fn address_limit() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the kernel writes the limit during the call.
    unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) };
    (limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// Has all threads share one heap where addresses are limited. Otherwise the GNU C library reserves up to 128 MiB of
/// addresses for each thread, so that what is left for buffers depends on which thread allocates first. Call it before
/// there is a second thread.
pub fn share_heap_where_addresses_are_limited() {
    #[cfg(target_env = "gnu")]
    if address_limit().is_some() {
        // SAFETY: it sets a number of the allocator. A refusal leaves it as it was.
        unsafe {
            libc::mallopt(libc::M_ARENA_MAX, 1);
        }
    }
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
