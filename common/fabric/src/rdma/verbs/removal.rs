//! Devices that go away, and come back.
//!
//! Many drivers let a device go only when no process uses it any more, so everything that was made on it is given up:
//! its queue pairs end, then come domains and queues, last the identifiers that hold it, and the library closes it.
//! Listeners wait for its return.

use std::time::Duration;

use ringfab_reactor::{Reactor, Token};

use super::connection::{End, Phase};
use super::device::Device;
use super::kind;
use super::listener;
use super::sys;
use crate::rdma::{ConnectError, DisconnectReason};
use crate::table::Key;

/// How often a listener whose device is gone looks for it, and the library is told to close what has gone.
const RETURN_TRY: Duration = Duration::from_secs(1);
/// How often it is told. The driver takes the device from the connection manager first, and only then out of the list.
const CLOSE_TRIES: u32 = 10;

impl Device {
    /// Looks at what the devices have reported.
    pub(super) fn take_device_events(&mut self, reactor: &mut Reactor) {
        use super::sys::AsyncEventKind as Kind;
        let mut lost = None;
        let mut failed = Vec::new();
        for (index, adapter) in self.adapters.iter_mut() {
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
            if let Some(key) = self.by_number.get(&(index, number)).copied() {
                self.violations += 1;
                let why = format!("the device reports event {event} of the queue pair");
                self.finish_soon(key, End::Disconnected(DisconnectReason::Broken(why)));
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
        let Some(adapter) = self.adapters.get_mut(index).filter(|adapter| !adapter.lost) else { return };
        adapter.lost = true;
        if adapter.subscription.note_lost() {
            tracing::warn!(device = adapter.name, "{why}; its connections end");
        }
        let domains = &self.domains;
        let on_device = self.connections.keys_where(|connection| {
            let domain = connection.domain.and_then(|index| domains[index].as_ref());
            domain.is_some_and(|domain| domain.adapter == index)
        });
        for key in on_device {
            self.finish_soon(key, End::Disconnected(DisconnectReason::Broken(why.to_owned())));
        }
        self.finish_due(reactor);
        for domain in &mut self.domains {
            domain.take_if(|domain| domain.adapter == index);
        }
        self.close_lost(reactor, index);
        self.to_close = CLOSE_TRIES;
        self.look_for_devices(reactor);
    }

    /// Closes a lost device, once the core's ring does not look at its channel any more.
    pub(super) fn close_lost(&mut self, reactor: &mut Reactor, index: usize) {
        let Some(adapter) = self.adapters.get_mut(index) else { return };
        if adapter.watched {
            reactor.stop_polling(adapter.descriptor());
        } else {
            self.adapters.remove(index);
        }
    }

    /// The device of one queue pair's identifier is being removed.
    pub(super) fn lose_connection(&mut self, key: Key, phase: Phase) {
        let end = match phase {
            Phase::Resolving | Phase::Connecting | Phase::Accepting => {
                End::Failed(ConnectError::Connect(std::io::Error::other(REMOVED)))
            }
            Phase::Established | Phase::Draining | Phase::Closing => {
                End::Disconnected(DisconnectReason::Broken(REMOVED.to_owned()))
            }
        };
        self.finish_soon(key, end);
    }

    /// A listener has lost its device.
    pub(super) fn lose_listener(&mut self, reactor: &mut Reactor, key: Key) {
        let Some(listener) = self.listeners.get_mut(key) else { return };
        listener.cm = None;
        let address = listener.address;
        tracing::warn!(%address, "the RDMA device of a listener was removed; it listens again when there is one");
        self.look_for_devices(reactor);
    }

    /// Listens again wherever there is a device again.
    pub(super) fn listen_again(&mut self, reactor: &mut Reactor) {
        self.returning = None;
        if self.to_close > 0 {
            self.to_close -= 1;
            sys::close_removed_devices();
        }
        let mut waiting = self.to_close > 0;
        for key in self.listeners.keys() {
            let Some(lost) = self.listeners.get_mut(key).filter(|listener| listener.cm.is_none()) else {
                continue;
            };
            match listener::listen(&self.channel, lost.address, lost.backlog) {
                Ok(mut cm) => {
                    cm.set_context(listener::context(key.index));
                    lost.cm = Some(cm);
                    tracing::info!(address = %lost.address, "listens again");
                }
                Err(error) => {
                    tracing::debug!(address = %lost.address, %error, "no device to listen on yet");
                    waiting = true;
                }
            }
        }
        if waiting {
            self.look_for_devices(reactor);
        }
    }

    fn look_for_devices(&mut self, reactor: &mut Reactor) {
        if self.returning.is_none() {
            let token = Token::new(self.config.owner, kind::RETURN, 0, 0);
            self.returning = Some(reactor.set_timer(reactor.now() + RETURN_TRY, token));
        }
    }
}

const REMOVED: &str = "the RDMA device was removed";
