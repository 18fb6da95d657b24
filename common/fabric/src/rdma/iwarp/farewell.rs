//! Sockets that still have a rejection to deliver: the reply is sent, our stream ends, and the socket is closed when the
//! peer's has ended too, for a bounded time.

use ringfab_reactor::{Completion, Payload, Reactor, ReceiveOp, SendBatch, SocketId, Time, TimerId};

use super::kind;
use super::shared::Shared;
use crate::rdma::table::{Key, Table};

/// Bytes of what still comes are thrown away in pieces of this size.
const STAGING_BYTES: usize = 1024;

/// Private data, header and enhanced fields fit.
const FRAME_BYTES_MAX: usize = 1024;

/// One of them.
#[derive(Debug)]
pub(super) struct Farewell {
    socket: Option<SocketId>,
    timer: (TimerId, Time),
    in_flight: u32,
}

/// All of them, within a bound.
#[derive(Debug)]
pub(super) struct Farewells(Table<Farewell>);

impl Farewells {
    pub(super) fn new(count_max: u32) -> Self {
        Self(Table::new(count_max))
    }

    /// Delivers `frame` on a socket with nothing in flight, and closes it.
    pub(super) fn start(&mut self, shared: &Shared, reactor: &mut Reactor, socket: SocketId, frame: &[u8]) {
        let at = reactor.now() + shared.config.close_timeout;
        let make = |key| {
            let timer = (reactor.set_timer(at, shared.token(kind::FAREWELL_TIMER, key)), at);
            Farewell { socket: Some(socket), timer, in_flight: 1 }
        };
        let Some(key) = self.0.insert_with(make) else { return reactor.close_socket(socket) };
        let mut batch = SendBatch::new(FRAME_BYTES_MAX, 1);
        batch.push_bytes(frame);
        reactor.send(socket, batch, shared.token(kind::FAREWELL_SEND, key));
    }

    /// Takes a completion of one of the three kinds.
    pub(super) fn on_completion(&mut self, shared: &Shared, reactor: &mut Reactor, completion: Completion) {
        let token = completion.token;
        let Some(key) = self.0.key_of(token.index, token.generation) else { return };
        let Some(farewell) = self.0.get_mut(key) else { return };
        match completion.payload {
            Payload::Send(_) if completion.result.is_ok() => {
                farewell.in_flight -= 1;
                if let Some(socket) = farewell.socket {
                    reactor.shutdown_write(socket);
                }
                farewell.receive(shared, reactor, key, ReceiveOp::new(STAGING_BYTES));
            }
            Payload::Receive(receive) if completion.result.as_ref().is_ok_and(|bytes| *bytes > 0) => {
                farewell.in_flight -= 1;
                farewell.receive(shared, reactor, key, receive);
            }
            Payload::Send(_) | Payload::Receive(_) => {
                farewell.in_flight -= 1;
                farewell.close(reactor);
            }
            _ if reactor.now() >= farewell.timer.1 => farewell.close(reactor),
            _ => {}
        }
        if farewell.socket.is_none() && farewell.in_flight == 0 {
            reactor.cancel_timer(farewell.timer.0);
            self.0.remove(key);
        }
    }
}

impl Farewell {
    fn receive(&mut self, shared: &Shared, reactor: &mut Reactor, key: Key, mut receive: Box<ReceiveOp>) {
        let Some(socket) = self.socket else { return };
        receive.aim(None, 0, STAGING_BYTES);
        self.in_flight += 1;
        reactor.receive(socket, receive, shared.token(kind::FAREWELL_RECEIVE, key));
    }

    fn close(&mut self, reactor: &mut Reactor) {
        if let Some(socket) = self.socket.take() {
            reactor.close_socket(socket);
        }
    }
}
