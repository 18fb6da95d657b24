//! A namespace: what the data path and the admin commands both need of it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ringfab_block::Backing;
use uuid::Uuid;

/// Positions of namespaces in the cores' tables of disks. One is used again once nobody has its namespace any more: no
/// core's disk, no table.
#[derive(Clone, Debug, Default)]
pub struct Indexes(Arc<Mutex<FreeIndexes>>);

#[derive(Debug, Default)]
struct FreeIndexes {
    free: Vec<usize>,
    next: usize,
}

/// One position, until it is dropped.
#[derive(Debug)]
pub struct Index {
    value: usize,
    from: Indexes,
}

impl Indexes {
    /// A position that nobody has.
    pub fn take(&self) -> Index {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let value = all.free.pop().unwrap_or_else(|| {
            all.next += 1;
            all.next - 1
        });
        Index { value, from: self.clone() }
    }
}

impl Drop for Index {
    fn drop(&mut self) {
        self.from.0.lock().unwrap_or_else(PoisonError::into_inner).free.push(self.value);
    }
}

/// A namespace of a subsystem. Its size and readiness are atomics, because disks are opened by the cores.
#[derive(Debug)]
pub struct Namespace {
    nsid: u32,
    index: Index,
    block_bytes: u32,
    backing: Backing,
    read_only: bool,
    nguid: [u8; 16],
    uuid: Uuid,
    blocks: AtomicU64,
    ready: AtomicBool,
    volatile_cache: AtomicBool,
}

/// What a namespace is made from.
#[derive(Debug)]
pub struct NamespaceParameters {
    /// Namespace identifier, neither zero nor the broadcast value.
    pub nsid: u32,
    /// Position in the cores' tables of disks.
    pub index: Index,
    /// Bytes of a logical block, a power of two.
    pub block_bytes: u32,
    /// What stands behind it.
    pub backing: Backing,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Namespace Globally Unique Identifier, not zero.
    pub nguid: [u8; 16],
    /// Universally unique identifier, not zero.
    pub uuid: Uuid,
}

impl Namespace {
    /// A namespace that is not ready: a core reports its size with [`Namespace::set_ready`].
    pub fn new(parameters: NamespaceParameters) -> Self {
        let NamespaceParameters { nsid, index, block_bytes, backing, read_only, nguid, uuid } = parameters;
        assert!(nsid != 0 && nsid != u32::MAX, "not a namespace identifier");
        assert!(block_bytes.is_power_of_two(), "a block is a power of two of bytes");
        Self {
            nsid,
            index,
            block_bytes,
            backing,
            read_only,
            nguid,
            uuid,
            blocks: AtomicU64::new(0),
            ready: AtomicBool::new(false),
            volatile_cache: AtomicBool::new(false),
        }
    }

    /// Namespace identifier.
    pub fn nsid(&self) -> u32 {
        self.nsid
    }

    /// Position in the cores' tables of disks.
    pub fn index(&self) -> usize {
        self.index.value
    }

    /// Bytes of a logical block.
    pub fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    /// Base two logarithm of the bytes of a logical block.
    pub fn block_shift(&self) -> u32 {
        self.block_bytes.trailing_zeros()
    }

    /// Size in logical blocks; zero until the namespace was ready for the first time.
    pub fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Relaxed)
    }

    /// What stands behind it.
    pub fn backing(&self) -> &Backing {
        &self.backing
    }

    /// What stands behind it, for people: a file or device, `memory` or `null`.
    pub fn source(&self) -> String {
        fn of(backing: &Backing) -> String {
            match backing {
                Backing::File { path, .. } => path.display().to_string(),
                Backing::Memory(_) => "memory".to_owned(),
                Backing::Null { .. } => "null".to_owned(),
                Backing::Faulty { inner, .. } => of(inner),
            }
        }
        of(&self.backing)
    }

    /// Whether writes are refused.
    pub fn read_only(&self) -> bool {
        self.read_only
    }

    /// Namespace Globally Unique Identifier.
    pub fn nguid(&self) -> &[u8; 16] {
        &self.nguid
    }

    /// Universally unique identifier.
    pub fn uuid(&self) -> Uuid {
        self.uuid
    }

    /// Whether it can be read and written. While it cannot, its commands end with Namespace Not Ready.
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// Whether completed writes may be lost in a crash until a Flush.
    pub fn volatile_cache(&self) -> bool {
        self.volatile_cache.load(Ordering::Relaxed)
    }

    /// Its backing was opened, or has another size now; `bytes` beyond the last whole block are not used.
    /// Returns whether hosts see a difference; if so, tell them with [`crate::Target::namespace_changed`].
    pub fn set_ready(&self, bytes: u64, volatile_cache: bool) -> bool {
        let blocks = bytes >> self.block_shift();
        let old_blocks = self.blocks.swap(blocks, Ordering::Relaxed);
        let old_cache = self.volatile_cache.swap(volatile_cache, Ordering::Relaxed);
        let was_ready = self.ready.swap(true, Ordering::Release);
        old_blocks != blocks || old_cache != volatile_cache || !was_ready
    }

    /// Its backing is missing or has gone. Returns whether it was there before.
    pub fn set_not_ready(&self) -> bool {
        self.ready.swap(false, Ordering::Release)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn namespace() -> Namespace {
        Namespace::new(NamespaceParameters {
            nsid: 1,
            index: Indexes::default().take(),
            block_bytes: 4096,
            backing: Backing::Null { bytes: 1 << 20 },
            read_only: false,
            nguid: [1; 16],
            uuid: Uuid::from_bytes([2; 16]),
        })
    }

    #[test]
    fn a_namespace_is_not_ready_until_its_backing_was_opened() {
        let namespace = namespace();
        assert!(!namespace.is_ready());
        assert!(namespace.set_ready((1 << 20) + 4095, false));
        assert!(namespace.is_ready());
        assert_eq!(namespace.blocks(), 256);
    }

    #[test]
    fn a_position_is_used_again_when_it_is_free() {
        let indexes = Indexes::default();
        let (first, second) = (indexes.take(), indexes.take());
        assert_eq!((first.value, second.value), (0, 1));
        drop(first);
        let (again, third) = (indexes.take(), indexes.take());
        assert_eq!((again.value, third.value), (0, 2));
        drop(second);
    }

    #[test]
    fn a_second_core_that_reports_the_same_changes_nothing() {
        let namespace = namespace();
        assert!(namespace.set_ready(8192, true));
        assert!(!namespace.set_ready(8192, true));
        assert!(namespace.set_ready(4096, true));
        assert!(namespace.set_not_ready());
        assert!(!namespace.set_not_ready());
    }
}
