//! Memory that peers may reach, and the windows through which they do.

use std::collections::HashMap;

use ringfab_memory::{PostedBuffer, SharedBuffer};

use super::sys::Window;
use crate::rdma::Slice;
use crate::table::{Key, Table};

/// One exposure.
#[derive(Debug)]
pub(super) struct Exposure {
    /// The device may write it.
    pub(super) shared_buffer: PostedBuffer,
    /// The queue pair whose peer reaches it.
    pub(super) queue_pair: Key,
    /// The domain of that queue pair.
    pub(super) domain: usize,
    /// Open, unless `closed`; `None` where the device has none, or after the queue pair's end.
    pub(super) window: Option<Window>,
    /// What the window's binding, which is posted with the next doorbell, opens: address and length.
    pub(super) range: (u64, u32),
    pub(super) writable: bool,
    /// Whether the peer has invalidated it.
    closed: bool,
}

/// All exposures of a core.
#[derive(Debug)]
pub(super) struct Exposures {
    table: Table<Exposure>,
    /// By the part of a window's key that stays the same.
    by_window: HashMap<u32, Key>,
}

/// The part of a window's key that is the same for all of its bindings.
fn window_of(key: u32) -> u32 {
    key >> 8
}

impl Exposures {
    pub(super) fn new(count_max: u32) -> Self {
        Self { table: Table::new(count_max), by_window: HashMap::with_capacity(count_max as usize * 2) }
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.table.is_full()
    }

    /// Adds one; `None` when the table is full, which [`Exposures::is_full`] tells before.
    pub(super) fn add(
        &mut self,
        slice: Slice,
        queue_pair: Key,
        domain: usize,
        window: Option<Window>,
        writable: bool,
    ) -> Option<Key> {
        let Slice { shared_buffer, offset, length } = slice;
        let range = (shared_buffer.io_pointer(offset as usize, length as usize) as u64, length);
        let name = window.as_ref().map(|window| window_of(window.key));
        let key = self.table.insert_with(|_| Exposure {
            shared_buffer: shared_buffer.post(),
            queue_pair,
            domain,
            window,
            range,
            writable,
            closed: false,
        })?;
        if let Some(name) = name {
            self.by_window.insert(name, key);
        }
        Some(key)
    }

    /// The exposure with the lower parts of its key.
    pub(super) fn key_of(&self, index: u32, generation_low: u16) -> Option<Key> {
        self.table.key_of(index, generation_low)
    }

    pub(super) fn get(&self, key: Key) -> Option<&Exposure> {
        self.table.get(key)
    }

    /// A message of the peer of `queue_pair` has invalidated a key.
    pub(super) fn invalidated(&mut self, queue_pair: Key, remote_key: u32) {
        let exposure = self.by_window.get(&window_of(remote_key)).and_then(|key| self.table.get_mut(*key));
        if let Some(exposure) = exposure.filter(|exposure| exposure.queue_pair == queue_pair)
            && exposure.window.as_ref().is_some_and(|window| window.key == remote_key)
        {
            exposure.closed = true;
        }
    }

    /// Ends one: its shared buffer, and its window where that can be used again. A window that the peer has not closed
    /// is closed here, by destroying it: when this returns, the peer reaches nothing.
    pub(super) fn remove(&mut self, key: Key) -> Option<(SharedBuffer, usize, Option<Window>)> {
        let exposure = self.table.remove(key)?;
        let Exposure { shared_buffer, domain, window, closed, .. } = exposure;
        if let Some(window) = &window {
            self.by_window.remove(&window_of(window.key));
        }
        let window = window.filter(|_| closed);
        Some((shared_buffer.take_back(), domain, window))
    }

    /// Closes what the peer of a queue pair can still reach. The shared buffers stay until they are asked for.
    pub(super) fn close_all(&mut self, queue_pair: Key) {
        for exposure in self.table.iter_mut().filter(|exposure| exposure.queue_pair == queue_pair) {
            if let Some(window) = exposure.window.take() {
                self.by_window.remove(&window_of(window.key));
            }
        }
    }

    /// Ends all of a domain.
    pub(super) fn remove_domain(&mut self, domain: usize) {
        for key in self.table.keys_where(|exposure| exposure.domain == domain) {
            self.remove(key);
        }
    }
}
