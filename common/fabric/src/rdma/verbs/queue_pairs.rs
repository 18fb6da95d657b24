//! The queue pairs of a core, and what of its devices they use.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use ringfab_memory::SharedBuffer;
use ringfab_reactor::Reactor;

use super::adapters::Adapters;
use super::connection::{Connection, End, Phase};
use super::domain::Domain;
use super::exposure::Exposures;
use super::numbers::{NumberHasher, key_of};
use super::sys::{Chain, EventChannel};
use crate::events::Events;
use crate::rdma::{
    Access, DisconnectReason, PostError, ProtectionDomain, QueuePairId, RegionId, RemoteBuffer, RnicConfig,
    RnicCounters, RnicEvent, SendRequest, Slice,
};
use crate::table::{Key, Table};

/// How long the kernel waits for a neighbour's answer before it is asked again.
pub(super) const RESOLVE_TRY: Duration = Duration::from_millis(500);
/// Why the queue pairs of a device end that goes away.
pub(super) const REMOVED: &str = "the RDMA device was removed";

/// A core's queue pairs over verbs. The fields are dropped in this order: what uses a thing before the thing, and
/// windows before the queue pairs to which they are bound.
#[derive(Debug)]
pub(super) struct QueuePairs {
    pub(super) exposures: Exposures,
    pub(super) connections: Table<Box<Connection>>,
    pub(super) domains: Vec<Option<Domain>>,
    pub(super) adapters: Adapters,
    pub(super) config: RnicConfig,
    pub(super) events: Events<RnicEvent>,
    /// Queue pairs with something to post.
    dirty: Vec<Key>,
    /// Queue pairs that have come to their end.
    pub(super) finishing: Vec<Key>,
    /// By adapter and number.
    pub(super) by_number: HashMap<(usize, u32), Key, BuildHasherDefault<NumberHasher>>,
    scratch: Chain,
    pub(super) violations: u64,
    pub(super) channel: Arc<EventChannel>,
}

impl QueuePairs {
    /// None yet, of a core whose connections report to `channel`.
    pub(super) fn new(config: RnicConfig, channel: Arc<EventChannel>) -> Self {
        Self {
            exposures: Exposures::new(config.regions_max),
            connections: Table::new(config.queue_pairs_max),
            domains: Vec::new(),
            adapters: Adapters::default(),
            config,
            events: Events::with_capacity(256),
            dirty: Vec::new(),
            finishing: Vec::new(),
            by_number: HashMap::default(),
            scratch: Chain::default(),
            violations: 0,
            channel,
        }
    }

    pub(super) fn deallocate_domain(&mut self, domain: ProtectionDomain) {
        for index in 0..self.domains.len() {
            let Some(found) = self.domains[index].as_ref().filter(|found| found.number == domain) else {
                continue;
            };
            let in_use = found.queue_pairs > 0;
            self.exposures.remove_domain(index);
            if in_use {
                tracing::debug!("a protection domain stays until its queue pairs have ended");
            } else {
                self.domains[index] = None;
            }
        }
    }

    pub(super) fn post_send(
        &mut self,
        queue_pair: QueuePairId,
        request: SendRequest,
    ) -> Result<(), PostError> {
        let key = key_of(queue_pair);
        let connection = self.connections.get_mut(key);
        let domain = connection.as_ref().and_then(|connection| connection.domain);
        let domain = domain.and_then(|index| self.domains[index].as_ref());
        let (Some(connection), Some(domain)) = (connection, domain) else {
            return Err(PostError::Ended(Box::new(request)));
        };
        let outstanding = connection.post(domain, request)?;
        self.adapters[domain.adapter].outstanding.add(outstanding);
        if !std::mem::replace(&mut connection.dirty, true) {
            self.dirty.push(key);
        }
        Ok(())
    }

    pub(super) fn post_receive(&mut self, queue_pair: QueuePairId, count: u32) {
        let Some(connection) = self.connections.get_mut(key_of(queue_pair)) else { return };
        let Some(domain) = connection.domain.and_then(|index| self.domains[index].as_mut()) else { return };
        connection.credits += count;
        // What a message used was taken back when it came, so this cannot exceed what was promised at first.
        let _promised = domain.reserve_receives(connection.receives, count, false);
    }

    // Once a turn for a queue pair. `make kernel-instructions` knows it by its name.
    #[inline(never)]
    fn ring(&mut self, reactor: &mut Reactor, key: Key) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        connection.dirty = false;
        let domain = connection.domain.and_then(|index| self.domains[index].as_ref());
        if let Some(domain) =
            domain.filter(|_| matches!(connection.phase, Phase::Established | Phase::Draining))
        {
            let posted = connection.ring(&mut self.scratch, domain, &self.exposures);
            if let Err(error) = posted {
                let why = format!("the device refuses work requests: {error}");
                return self.finish_soon(key, End::Disconnected(DisconnectReason::Broken(why)));
            }
        }
        self.disconnect_when_drained(reactor, key);
    }

    pub(super) fn mark_dirty(&mut self, key: Key) {
        if let Some(connection) = self.connections.get_mut(key)
            && !std::mem::replace(&mut connection.dirty, true)
        {
            self.dirty.push(key);
        }
    }

    pub(super) fn expose(
        &mut self,
        queue_pair: QueuePairId,
        shared_buffer: SharedBuffer,
        offset: u32,
        length: u32,
        access: Access,
    ) -> Option<RemoteBuffer> {
        let end = offset.checked_add(length).map(|end| end as usize);
        assert!(end.is_some_and(|end| end <= shared_buffer.len()), "an exposure lies within its memory");
        let key = key_of(queue_pair);
        let connection = self.connections.get_mut(key)?;
        if self.exposures.is_full() || !connection.can_expose() {
            return None;
        }
        let index = connection.domain?;
        let domain = self.domains[index].as_mut()?;
        let address = shared_buffer.io_pointer(offset as usize, length as usize) as u64;
        let windows = self.adapters[domain.adapter].limits.windows;
        let open_key = domain.prepare(&shared_buffer, &self.adapters[domain.adapter].limits);
        let open_key = open_key.inspect_err(no_window).ok()?;
        let (window, remote_key) = if windows {
            let mut window = domain.take_window().inspect_err(no_window).ok()?;
            let remote_key = window.advance();
            (Some(window), remote_key)
        } else {
            (None, open_key)
        };
        let writable = access == Access::RemoteWrite;
        let slice = Slice { shared_buffer, offset, length };
        let exposure = self.exposures.add(slice, key, index, window, writable)?;
        if windows {
            connection.sends.chain_bind(exposure);
            self.mark_dirty(key);
        }
        let region = region_id(exposure);
        Some(RemoteBuffer { address, length, key: remote_key, region, invalidate: windows })
    }

    pub(super) fn revoke(&mut self, index: u32, generation: u16) -> Option<SharedBuffer> {
        let key = self.exposures.key_of(index, generation)?;
        let (shared_buffer, domain, window) = self.exposures.remove(key)?;
        if let (Some(window), Some(domain)) = (window, self.domains[domain].as_mut()) {
            domain.give_window(window);
        }
        Some(shared_buffer)
    }

    /// Posts what was chained since the last time, receives first: the answer to what is sent now may come at once.
    pub(super) fn flush(&mut self, reactor: &mut Reactor) {
        for domain in self.domains.iter_mut().flatten() {
            domain.fill();
        }
        let mut dirty = std::mem::take(&mut self.dirty);
        for key in dirty.drain(..) {
            self.ring(reactor, key);
        }
        self.dirty = dirty;
        self.finish_due(reactor);
    }

    /// Those on a device.
    pub(super) fn on_adapter(&self, index: usize) -> Vec<Key> {
        self.connections.keys_where(|connection| {
            let domain = connection.domain.and_then(|index| self.domains[index].as_ref());
            domain.is_some_and(|domain| domain.adapter == index)
        })
    }

    pub(super) fn count(&self, counters: &mut RnicCounters) {
        counters.queue_pairs += self.connections.len() as u64;
        counters.regions += self.exposures.len() as u64;
        counters.violations += self.violations;
    }
}

pub(super) fn adapter_of(domains: &[Option<Domain>], connection: &Connection) -> usize {
    let domain = connection.domain.and_then(|index| domains[index].as_ref());
    domain.expect("the queue pair is on a device").adapter
}

pub(super) fn full() -> io::Error {
    io::Error::new(io::ErrorKind::QuotaExceeded, "the table of queue pairs is full")
}

fn region_id(key: Key) -> RegionId {
    RegionId::Verbs { index: key.index, generation: key.generation_low() }
}

fn no_window(error: &io::Error) {
    tracing::warn!(%error, "memory cannot be exposed");
}
