//! Devices that go away, and come back.
//!
//! Many drivers let a device go only when no process uses it any more, so everything that was made on it is given up:
//! its queue pairs end, then come domains and queues, last the identifiers that hold it, and the library closes it.
//! Listeners wait for its return.

use ringfab_reactor::Reactor;

use super::connection::End;
use super::device::Device;
use super::queue_pairs::REMOVED;
use crate::rdma::DisconnectReason;

impl Device {
    /// Looks at what the devices have reported.
    pub(super) fn take_device_events(&mut self, reactor: &mut Reactor) {
        use super::sys::AsyncEventKind as Kind;
        let mut lost = None;
        let mut failed = Vec::new();
        for (index, adapter) in self.queue_pairs.adapters.iter_mut() {
            while let Some(event) = adapter.next_event() {
                match event.kind {
                    Kind::Device => lost = Some((index, event.number)),
                    Kind::QueuePair => {
                        failed.extend(event.queue_pair.map(|number| (index, number, event.number)));
                    }
                    Kind::PortDown | Kind::PortUp | Kind::Other => {}
                }
            }
        }
        for (index, number, event) in failed {
            if let Some(key) = self.queue_pairs.by_number.get(&(index, number)).copied() {
                self.queue_pairs.violations += 1;
                let why = format!("the device reports event {event} of the queue pair");
                self.queue_pairs.finish_soon(key, End::Disconnected(DisconnectReason::Broken(why)));
            }
        }
        if let Some((index, event)) = lost {
            self.mark_lost(reactor, index, &format!("the RDMA device has failed (event {event})"));
        }
    }

    /// The connection manager says that the device of an adapter is being removed.
    pub(super) fn on_removal(&mut self, reactor: &mut Reactor, index: usize) {
        self.mark_lost(reactor, index, REMOVED);
    }

    /// Gives up everything on a device.
    fn mark_lost(&mut self, reactor: &mut Reactor, index: usize, why: &str) {
        let Some(adapter) = self.queue_pairs.adapters.get_mut(index).filter(|adapter| !adapter.lost) else {
            return;
        };
        adapter.lost = true;
        if adapter.subscription.note_lost() {
            tracing::warn!(device = adapter.name, "{why}; its connections end");
        }
        for key in self.queue_pairs.on_adapter(index) {
            self.queue_pairs.finish_soon(key, End::Disconnected(DisconnectReason::Broken(why.to_owned())));
        }
        self.queue_pairs.finish_due(reactor);
        for domain in &mut self.queue_pairs.domains {
            domain.take_if(|domain| domain.adapter == index);
        }
        self.close_lost(reactor, index);
        self.listeners.close_removed_devices(reactor);
    }

    /// Closes a lost device, once the core's ring does not look at its channel any more.
    pub(super) fn close_lost(&mut self, reactor: &mut Reactor, index: usize) {
        let Some(adapter) = self.queue_pairs.adapters.get_mut(index) else { return };
        if adapter.watched {
            reactor.stop_polling(adapter.descriptor());
        } else {
            self.queue_pairs.adapters.remove(index);
        }
    }
}
