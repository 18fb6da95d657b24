//! Listeners, and requests that wait for an answer.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ringfab_reactor::{Reactor, TimerId, Token};

use super::kind;
use super::sys::{self, CmId, EventChannel};
use crate::rdma::ListenParameters;
use crate::table::{Key, Table};

/// The most listeners.
const LISTENERS_MAX: u32 = 1024;
/// How often a listener whose device is gone looks for it, and the library is told to close what has gone.
const RETURN_TRY: Duration = Duration::from_secs(1);
/// How often it is told. The driver takes the device from the connection manager first, and only then out of the list.
const CLOSE_TRIES: u32 = 10;

/// A listening identifier.
#[derive(Debug)]
pub(super) struct Listener {
    /// Dropping it stops listening. There is none while the device of the address is gone.
    pub(super) cm: Option<CmId>,
    pub(super) address: SocketAddr,
    /// Connection requests that may wait.
    pub(super) backlog: u32,
}

/// The listeners of a core.
#[derive(Debug)]
pub(super) struct Listeners {
    table: Table<Listener>,
    owner: u8,
    /// Until they look for their device again.
    returning: Option<TimerId>,
    /// How many times more the library is told to close devices that are gone.
    to_close: u32,
}

impl Listeners {
    /// None yet, of an owner of the reactor's.
    pub(super) fn new(owner: u8) -> Self {
        Self { table: Table::new(LISTENERS_MAX), owner, returning: None, to_close: 0 }
    }

    /// Listens: the listener's number, and where it is.
    pub(super) fn listen(
        &mut self,
        channel: &Arc<EventChannel>,
        parameters: &ListenParameters,
    ) -> io::Result<(u32, SocketAddr)> {
        let backlog = parameters.half_open_max;
        let mut cm = listen(channel, parameters.address, backlog)?;
        let address = cm.local_address().unwrap_or(parameters.address);
        let make = |key: Key| {
            cm.set_context(context(key.index));
            Listener { cm: Some(cm), address, backlog }
        };
        let key = self.table.insert_with(make).ok_or(io::ErrorKind::QuotaExceeded)?;
        Ok((key.index, address))
    }

    pub(super) fn close(&mut self, listener: u32) {
        if let Some(key) = self.key_of(listener) {
            self.table.remove(key);
        }
    }

    pub(super) fn get(&self, listener: u32) -> Option<&Listener> {
        self.table.get(self.key_of(listener)?)
    }

    fn key_of(&self, listener: u32) -> Option<Key> {
        self.table.keys().into_iter().find(|key| key.index == listener)
    }

    /// Has the library close devices that are gone, as soon as it can.
    pub(super) fn close_removed_devices(&mut self, reactor: &mut Reactor) {
        self.to_close = CLOSE_TRIES;
        self.look_for_devices(reactor);
    }

    /// A listener has lost its device.
    pub(super) fn lose(&mut self, reactor: &mut Reactor, index: u32) {
        let Some(listener) = self.key_of(index).and_then(|key| self.table.get_mut(key)) else { return };
        listener.cm = None;
        let address = listener.address;
        tracing::warn!(%address, "the RDMA device of a listener was removed; it listens again when there is one");
        self.look_for_devices(reactor);
    }

    /// Listens again wherever there is a device again.
    pub(super) fn listen_again(&mut self, reactor: &mut Reactor, channel: &Arc<EventChannel>) {
        self.returning = None;
        if self.to_close > 0 {
            self.to_close -= 1;
            sys::close_removed_devices();
        }
        let mut waiting = self.to_close > 0;
        for key in self.table.keys() {
            let Some(lost) = self.table.get_mut(key).filter(|listener| listener.cm.is_none()) else {
                continue;
            };
            match listen(channel, lost.address, lost.backlog) {
                Ok(mut cm) => {
                    cm.set_context(context(key.index));
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
            let token = Token::new(self.owner, kind::RETURN, 0, 0);
            self.returning = Some(reactor.set_timer(reactor.now() + RETURN_TRY, token));
        }
    }
}

/// An identifier that listens.
fn listen(channel: &Arc<EventChannel>, address: SocketAddr, backlog: u32) -> io::Result<CmId> {
    let cm = CmId::new(channel)?;
    cm.bind(address)?;
    cm.listen(i32::try_from(backlog).unwrap_or(i32::MAX))?;
    Ok(cm)
}

/// A connection request. It may travel to another core; dropping it refuses the connection.
#[derive(Debug)]
pub(crate) struct PendingAccept {
    pub(super) cm: CmId,
    /// READs that the peer lets us have outstanding.
    pub(super) initiator_depth: u8,
}

impl PendingAccept {
    /// Refuses it and tells the peer why.
    pub(crate) fn reject(&self, private_data: &[u8]) {
        if let Err(error) = self.cm.reject(private_data) {
            tracing::debug!(%error, "a rejection could not be sent");
        }
    }
}

/// The bit that tells what events of a listener bear from what those of a queue pair do.
const LISTENER: u64 = 1 << 63;

/// What events of a listener bear.
fn context(index: u32) -> u64 {
    LISTENER | u64::from(index)
}

/// The listener of an event, unless it is of a queue pair.
pub(super) fn listener_of(context: u64) -> Option<u32> {
    (context & LISTENER != 0).then_some(context as u32)
}
