//! The server on an engine's thread: one ring, its queues of the controller, many clients.

use std::io;
use std::mem;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use anyhow::{Context as _, Result};
use ringfab_base::Slots;
use ringfab_initiator::blocking::{Controller, EngineClient, Turn};
use ringfab_initiator::bytes::BlockWriter;
use ringfab_initiator::{ControllerId, Host, HostEvent, Namespace};
use ringfab_reactor::{
    Completion, DetachedSocket, ListenAddr, ListenerId, MailboxReceiver, Payload, SocketId, SocketOptions,
    mailbox,
};

use super::chores::{Chores, Done};
use super::connection::{Connection, ConnectionId, ServerContext, kind, token};
use super::export::Export;
use super::refresh::refresh;
use super::settings::ExportSettings;
use super::spread::Spread;
use crate::advice::Advised;
use crate::interrupt::Interrupt;

/// How long a handshake, and the end of a connection, may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long clients have to take their replies after a signal. What is not answered by then was not promised.
pub(crate) const SHUTDOWN: Duration = Duration::from_millis(700);
/// Idle time after which a TCP client is asked whether it is still there.
const KEEP_ALIVE: Duration = Duration::from_secs(60);

/// What the servers of all engines have in common.
#[derive(Clone)]
pub(crate) struct Common {
    pub(crate) spread: Arc<Spread>,
    /// For what other threads do.
    pub(crate) controller: Controller,
    pub(crate) interrupt: Interrupt,
    /// How each server has ended.
    pub(crate) result: Sender<Result<()>>,
}

/// Serves the connections of one engine, until a signal comes or the controller is given up.
pub(crate) struct Server {
    common: Common,
    /// Number of its engine.
    engine: usize,
    settings: ExportSettings,
    exports: Vec<Export>,
    /// Connections from the engine that listens.
    sockets: MailboxReceiver<DetachedSocket>,
    connections: Slots<Connection>,
    /// For the commands of the connections that write whole blocks.
    writer: BlockWriter,
    chores: Chores,
    chores_done: MailboxReceiver<Done>,
    /// Of the engine that listens, while it does.
    listener: Option<ListenerId>,
    error: Option<anyhow::Error>,
    shutdown: Shutdown,
}

/// How far the end has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shutdown {
    /// It has not begun.
    None,
    /// Clients are sent what they have asked for.
    Draining,
    /// The time for that is over.
    TimedOut,
}

impl Server {
    /// A server that gets its connections from the one that listens.
    pub(crate) fn new(
        host: &mut Host,
        engine: usize,
        settings: ExportSettings,
        exports: Vec<Export>,
        common: Common,
    ) -> Self {
        common.interrupt.wake(host.reactor().waker());
        let (done, chores_done) = mailbox(host.reactor().waker());
        let connections = Slots::with_capacity(common.spread.per_engine_max());
        Self {
            engine,
            settings,
            exports,
            sockets: common.spread.open(engine, host.reactor()),
            connections,
            writer: common.controller.block_writer(host),
            chores: Chores::new(common.controller.clone(), done),
            chores_done,
            listener: None,
            error: None,
            shutdown: Shutdown::None,
            common,
        }
    }

    /// Listens, and says where.
    pub(crate) fn listen(&mut self, host: &mut Host, address: &ListenAddr) -> Result<ListenAddr> {
        let options = SocketOptions { keep_alive: Some(KEEP_ALIVE), ..SocketOptions::default() };
        let bind = host.reactor().listen(address, &options, token(kind::ACCEPT, 0, 0));
        let bind = bind.with_context(|| match address {
            ListenAddr::Tcp(address) => format!("listen on {address}"),
            ListenAddr::Unix(path) => format!("listen on {}", Path::display(path)),
        })?;
        self.listener = Some(bind.listener);
        Ok(bind.address)
    }

    fn on_completion(&mut self, completion: Completion, host: &mut Host, controller: ControllerId) {
        match (completion.token.kind, completion.payload) {
            (kind::ACCEPT, Payload::Accepted(socket, _)) => self.accept(socket, host, controller),
            (kind::ACCEPT, _) => {
                if let Err(error) = completion.result {
                    self.error = Some(anyhow::Error::new(error).context("accept connections"));
                }
            }
            (kind::SHUTDOWN, _) => self.shutdown = Shutdown::TimedOut,
            (_, payload) => {
                let completion = Completion { payload, ..completion };
                let id = ConnectionId::of_token(&completion.token);
                self.with(id, host, controller, |connection, context| {
                    connection.on_completion(completion, context);
                });
            }
        }
    }

    /// A client has connected: the engine with the fewest connections serves it.
    fn accept(&mut self, socket: SocketId, host: &mut Host, controller: ControllerId) {
        match self.common.spread.choose().filter(|_| self.listener.is_some()) {
            Some(engine) if engine == self.engine => self.connect(socket, host, controller),
            Some(engine) => {
                let socket = host.reactor().detach_socket(socket);
                self.common.spread.hand_over(engine, socket);
            }
            None => {
                tracing::warn!("a client was refused: there are as many as allowed");
                host.reactor().close_socket(socket);
            }
        }
    }

    /// Takes the connections that the engine which listens has given to this one.
    fn take_sockets(&mut self, host: &mut Host, controller: ControllerId) {
        while let Some(socket) = self.sockets.try_receive() {
            match host.reactor().attach_socket(socket) {
                Ok(socket) => self.connect(socket, host, controller),
                Err(error) => {
                    tracing::warn!(%error, "a client was refused");
                    self.common.spread.release(self.engine);
                }
            }
        }
    }

    /// Takes what other threads have done.
    fn take_chores(&mut self) {
        while let Some(Done { connection, slot, result }) = self.chores_done.try_receive() {
            // Its connection waits for it.
            if let Some((found, waiting)) = self.connections.of_slot(connection.index.into())
                && found.generation_low() == connection.generation
            {
                waiting.on_chore_done(slot, result);
            }
        }
    }

    /// Says which claimed blocks are written by no command of the connections any more.
    fn report_writes(&self) {
        self.writer.report(|nsid, blocks| {
            self.connections.values().any(|connection| connection.writes(&self.exports, nsid, blocks))
        });
    }

    /// Serves a connection that is counted here.
    fn connect(&mut self, socket: SocketId, host: &mut Host, controller: ControllerId) {
        let is_full = self.connections.is_full(self.common.spread.per_engine_max() as u32);
        if is_full || self.shutdown != Shutdown::None {
            host.reactor().close_socket(socket);
            return self.common.spread.release(self.engine);
        }
        let mut context = context(host, controller, &self.exports, &self.writer, &mut self.chores);
        self.connections.insert_with(|id| Connection::new(socket, id.into(), &mut context));
    }

    /// Lets every connection go on: a buffer or a place for a command may have come free.
    fn pump(&mut self, host: &mut Host, controller: ControllerId) {
        let mut context = context(host, controller, &self.exports, &self.writer, &mut self.chores);
        for index in 0..self.connections.slot_count() {
            let Some((id, connection)) = self.connections.of_slot(index) else { continue };
            connection.pump(&mut context);
            if connection.is_gone() {
                self.connections.remove(id);
                self.common.spread.release(self.engine);
            }
        }
    }

    /// Has a connection do something, if it is still there.
    fn with(
        &mut self,
        id: ConnectionId,
        host: &mut Host,
        controller: ControllerId,
        act: impl FnOnce(&mut Connection, &mut ServerContext<'_>),
    ) {
        let Some((found, connection)) = self.connections.of_slot(id.index.into()) else { return };
        if found.generation_low() == id.generation {
            act(connection, &mut context(host, controller, &self.exports, &self.writer, &mut self.chores));
        }
    }

    /// Namespaces may have come, gone or changed their size.
    fn refresh(&mut self, host: &Host, controller: ControllerId) {
        let in_use = |export| self.connections.values().any(|connection| connection.uses(export));
        let new = |namespace: &Namespace| self.settings.of_new(namespace);
        refresh(&mut self.exports, host.namespaces(controller), in_use, new);
    }

    /// Accepts nothing more, answers what was asked.
    fn begin_shutdown(&mut self, host: &mut Host, controller: ControllerId) {
        self.shutdown = Shutdown::Draining;
        self.stop_listening(host);
        let at = host.reactor().clock() + SHUTDOWN;
        host.reactor().set_timer(at, token(kind::SHUTDOWN, 0, 0));
        let mut context = context(host, controller, &self.exports, &self.writer, &mut self.chores);
        for connection in self.connections.values_mut() {
            connection.drain(&mut context);
        }
        self.pump(host, controller);
    }

    /// Says how it has ended.
    fn end(&mut self, host: &mut Host) {
        self.stop_listening(host);
        if !self.connections.is_empty() {
            self.common.spread.leave_requests();
        }
        // Whoever started it waits for it.
        let _gone = self.common.result.send(self.error.take().map_or(Ok(()), Err));
    }

    fn stop_listening(&mut self, host: &mut Host) {
        if let Some(listener) = self.listener.take() {
            host.reactor().close_listener(listener);
        }
    }
}

impl EngineClient for Server {
    fn turn(&mut self, host: &mut Host, controller: ControllerId) -> io::Result<Turn> {
        self.take_sockets(host, controller);
        self.take_chores();
        self.report_writes();
        self.pump(host, controller);
        let must_end = self.common.interrupt.is_interrupted() || self.error.is_some();
        if must_end && self.shutdown == Shutdown::None {
            self.begin_shutdown(host, controller);
        }
        let is_over = match self.shutdown {
            Shutdown::None => false,
            Shutdown::Draining => self.connections.is_empty(),
            Shutdown::TimedOut => true,
        };
        if is_over {
            self.end(host);
            return Ok(Turn::Over);
        }
        Ok(Turn::Idle)
    }

    fn on_event(&mut self, event: &mut HostEvent, host: &mut Host, controller: ControllerId) {
        match event {
            HostEvent::IoDone(done) => {
                let id = ConnectionId::of_tag(done.tag);
                self.with(id, host, controller, |connection, context| connection.on_done(done, context));
            }
            HostEvent::Foreign(completion) => {
                let payload = mem::replace(&mut completion.payload, Payload::None);
                let result = mem::replace(&mut completion.result, Ok(0));
                let completion = Completion { token: completion.token, result, payload };
                self.on_completion(completion, host, controller);
            }
            HostEvent::Ready { .. } | HostEvent::NamespacesChanged { .. } => self.refresh(host, controller),
            HostEvent::Failed { error, .. } => {
                self.error =
                    Some(anyhow::Error::new(Advised(error.clone())).context("the target is given up"));
            }
            _ => {}
        }
    }
}

fn context<'a>(
    host: &'a mut Host,
    controller: ControllerId,
    exports: &'a [Export],
    writer: &'a BlockWriter,
    chores: &'a mut Chores,
) -> ServerContext<'a> {
    ServerContext { host, controller, exports, writer, chores, patience: PATIENCE }
}
