//! The devices that a core uses, by numbers that stay theirs.

use std::ops::{Index, IndexMut};

use super::adapter::Adapter;
use super::sys::Context;

/// What a core has on each device. A number is given again when its device is gone with everything that bore it.
#[derive(Debug, Default)]
pub(super) struct Adapters(Vec<Option<Adapter>>);

impl Adapters {
    pub(super) fn add(&mut self, adapter: Adapter) -> usize {
        let free = self.0.iter().position(Option::is_none);
        let index = free.unwrap_or_else(|| {
            self.0.push(None);
            self.0.len() - 1
        });
        self.0[index] = Some(adapter);
        index
    }

    /// The one on a device, unless that is lost.
    pub(super) fn position(&self, context: Context) -> Option<usize> {
        let usable = |adapter: &Adapter| adapter.context == context && !adapter.lost;
        self.0.iter().position(|adapter| adapter.as_ref().is_some_and(usable))
    }

    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut Adapter> {
        self.0.get_mut(index)?.as_mut()
    }

    pub(super) fn remove(&mut self, index: usize) {
        self.0[index] = None;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }

    /// All of them with their numbers.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut Adapter)> {
        self.0.iter_mut().enumerate().filter_map(|(index, adapter)| Some((index, adapter.as_mut()?)))
    }
}

/// That of a domain or a queue pair, which end before it.
impl Index<usize> for Adapters {
    type Output = Adapter;

    fn index(&self, index: usize) -> &Adapter {
        self.0[index].as_ref().expect("a device outlives what is on it")
    }
}

impl IndexMut<usize> for Adapters {
    fn index_mut(&mut self, index: usize) -> &mut Adapter {
        self.0[index].as_mut().expect("a device outlives what is on it")
    }
}
