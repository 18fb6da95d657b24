//! Memory exposed to peers.

use rand_chacha::ChaCha12Rng;
use rand_core::{Rng, SeedableRng};
use ringfab_base::{SlotId, Slots};
use ringfab_memory::SharedBuffer;
use ringfab_proto::iwarp as proto;

use super::work::WorkTable;
use crate::rdma::{Access, ProtectionDomain, RegionId, RemoteBuffer};

/// The tagged offset of the first byte of every exposure. It says nothing about where the memory lies, and it is
/// not zero, which peers take for a missing address.
const ADDRESS_FIRST: u64 = 1 << 32;

/// How the engine names memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Handle {
    /// Exposed memory, as long as the exposure lasts.
    Region(SlotId),
    /// The memory of a work request of the same queue pair.
    Work(u32),
}

/// The shared buffers behind the handles.
#[derive(Debug)]
pub(super) struct ExposedMemory(Slots<Exposure>);

#[derive(Debug)]
struct Exposure {
    key: u32,
    domain: ProtectionDomain,
    offset: u32,
    shared_buffer: SharedBuffer,
}

/// All exposed memory of a core. Nothing is allocated by exposing and revoking no more than ever before at once.
#[derive(Debug)]
pub(super) struct Regions {
    /// What the engines check a peer's accesses against. A key that a peer has invalidated stays there, unusable,
    /// until it is revoked.
    pub(super) table: proto::RegionTable<Handle>,
    pub(super) memory: ExposedMemory,
    keys: ChaCha12Rng,
    count_max: usize,
    domain_next: u32,
}

impl Regions {
    pub(super) fn new(count_max: u32, seed: [u8; 32]) -> Self {
        let count_max = count_max as usize;
        Self {
            table: proto::RegionTable::new(count_max),
            memory: ExposedMemory::new(count_max),
            keys: ChaCha12Rng::from_seed(seed),
            count_max,
            domain_next: 1,
        }
    }

    /// Exposures that have not been revoked.
    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    pub(super) fn allocate_domain(&mut self) -> ProtectionDomain {
        let domain = ProtectionDomain(self.domain_next);
        self.domain_next += 1;
        domain
    }

    pub(super) fn deallocate_domain(&mut self, domain: ProtectionDomain) {
        let exposed = self.memory.0.values().filter(|exposure| exposure.domain == domain);
        let keys: Vec<u32> = exposed.map(|exposure| exposure.key).collect();
        for key in keys {
            self.revoke(key);
        }
    }

    #[inline]
    pub(super) fn expose(
        &mut self,
        domain: ProtectionDomain,
        shared_buffer: SharedBuffer,
        offset: u32,
        length: u32,
        access: Access,
    ) -> Option<RemoteBuffer> {
        let end = offset.checked_add(length).map(|end| end as usize);
        assert!(end.is_some_and(|end| end <= shared_buffer.len()), "an exposure lies within its memory");
        if self.len() >= self.count_max {
            return None;
        }
        let id = self.memory.0.insert(Exposure { key: 0, domain, offset, shared_buffer });
        let region = proto::Region {
            pd: proto::ProtectionDomain(domain.0),
            qp: None,
            base: ADDRESS_FIRST,
            len: u64::from(length),
            access: access.into(),
            handle: Handle::Region(id),
        };
        let keys = &mut self.keys;
        let Ok(key) = self.table.register(region, || keys.next_u32()) else {
            self.memory.0.remove(id);
            return None;
        };
        if let Some(exposure) = self.memory.0.get_mut(id) {
            exposure.key = key;
        }
        let region = RegionId::Iwarp(key);
        Some(RemoteBuffer { address: ADDRESS_FIRST, length, key, region, invalidate: true })
    }

    pub(super) fn revoke(&mut self, key: u32) -> Option<SharedBuffer> {
        match self.table.deregister(key)?.handle {
            Handle::Region(id) => self.memory.0.remove(id).map(|exposure| exposure.shared_buffer),
            Handle::Work(_) => unreachable!("only exposed memory is registered"),
        }
    }
}

impl ExposedMemory {
    /// Room for all that may ever be exposed at once, so that exposing and revoking never allocate.
    fn new(count_max: usize) -> Self {
        Self(Slots::with_capacity(count_max))
    }

    /// The memory behind a handle, and where `offset` of it lies in the shared buffer. `None` when the exposure has
    /// ended.
    #[inline]
    pub(super) fn resolve<'a>(
        &'a self,
        work: &'a WorkTable,
        handle: Handle,
        offset: u64,
    ) -> Option<(&'a SharedBuffer, usize)> {
        match handle {
            Handle::Work(slot) => {
                work.shared_buffer(slot).map(|shared_buffer| (shared_buffer, offset as usize))
            }
            Handle::Region(id) => {
                let exposure = self.0.get(id)?;
                Some((&exposure.shared_buffer, exposure.offset as usize + offset as usize))
            }
        }
    }
}

impl From<Access> for proto::Access {
    fn from(access: Access) -> Self {
        match access {
            Access::RemoteRead => Self::RemoteRead,
            Access::RemoteWrite => Self::RemoteWrite,
        }
    }
}

#[cfg(test)]
mod tests {
    use ringfab_memory::{ClassLayout, Pool};

    use super::*;

    fn shared_buffer(pool: &Pool) -> SharedBuffer {
        pool.take(4096).expect("a buffer").share()
    }

    #[test]
    fn keys_differ_and_only_their_own_exposure_comes_back() {
        let pool = Pool::new(&[ClassLayout { buffer_bytes: 4096, count: 4 }]).expect("pool");
        let mut regions = Regions::new(2, [1; 32]);
        let domain = regions.allocate_domain();
        let one = regions.expose(domain, shared_buffer(&pool), 0, 4096, Access::RemoteRead).expect("room");
        let two = regions.expose(domain, shared_buffer(&pool), 8, 8, Access::RemoteWrite).expect("room");
        assert_ne!(one.key, two.key);
        assert!(
            regions.expose(domain, shared_buffer(&pool), 0, 1, Access::RemoteRead).is_none(),
            "the table is full"
        );
        assert!(regions.revoke(one.key).is_some());
        assert!(regions.revoke(one.key).is_none());
        assert_eq!(regions.len(), 1);
        regions.deallocate_domain(domain);
        assert_eq!((regions.len(), pool.usage().taken), (0, 0));
    }

    #[test]
    fn a_handle_of_an_ended_exposure_resolves_to_nothing_though_its_slot_is_used_again() {
        let pool = Pool::new(&[ClassLayout { buffer_bytes: 4096, count: 4 }]).expect("pool");
        let (mut regions, work) = (Regions::new(2, [1; 32]), WorkTable::new(1));
        let domain = regions.allocate_domain();
        let one = regions.expose(domain, shared_buffer(&pool), 16, 64, Access::RemoteWrite).expect("room");
        let handle = regions.table.get(one.key).expect("registered").handle;
        let (_, offset) = regions.memory.resolve(&work, handle, 4).expect("exposed");
        assert_eq!(offset, 20);
        regions.revoke(one.key);
        regions.expose(domain, shared_buffer(&pool), 0, 64, Access::RemoteWrite).expect("room");
        assert!(regions.memory.resolve(&work, handle, 4).is_none());
    }
}
