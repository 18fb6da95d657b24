//! The loop of an engine: one ring, its part of one controller, many clients.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use ringfab_initiator::{ControllerId, Host, HostEvent};
use ringfab_reactor::{
    Completion, DetachedSocket, ListenAddr, ListenerId, MailboxReceiver, Payload, SocketId, SocketOptions,
    Wait,
};
use serde_json::json;

use super::connection::{Connection, Shared, connection_of, kind, token};
use super::export::Export;
use super::renew::renew;
use super::share::Shares;
use crate::engine::{Engine, Engines};
use crate::interrupt::Interrupt;
use crate::output;
use crate::ready::Ready;

/// How long a handshake, and the end of a connection, may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long clients have to take their replies after a signal. What is not answered by then was not promised.
const SHUTDOWN: Duration = Duration::from_millis(700);
/// Idle time after which a TCP client is asked whether it is still there.
const KEEP_ALIVE: Duration = Duration::from_secs(60);

/// How to serve.
pub(crate) struct Plan {
    pub(crate) address: ListenAddr,
    pub(crate) ready_file: Option<PathBuf>,
    pub(crate) json: bool,
}

/// Serves until a signal comes or the controller is given up.
pub(crate) fn serve(
    mut engines: Engines<()>,
    exports: Vec<Export>,
    plan: &Plan,
    shares: &Shares,
    interrupt: &Interrupt,
) -> Result<()> {
    let options = SocketOptions { keep_alive: Some(KEEP_ALIVE), ..SocketOptions::default() };
    let leader = &mut engines.leader;
    let bind = leader.host.reactor().listen(&plan.address, &options, token(kind::ACCEPT, 0, 0));
    let bind = bind.with_context(|| format!("listen on {}", place(&plan.address)))?;
    let uri = uri(&bind.address);
    let ready = Ready::announce(plan.ready_file.as_deref(), &uri)?;
    announce(plan.json, &uri, &exports);
    let mut server = Server::new(leader, exports, shares);
    server.listener = Some(bind.listener);
    let served = server.serve(interrupt);
    drop(ready);
    served?;
    engines.wait()?;
    if shares.has_left_waiting() {
        // Their commands can only end by cancelling: the target is away.
        tracing::warn!("ended while requests were waiting for the target");
        return engines.cancel().map(drop);
    }
    let (detached, others) = engines.detach(interrupt, None);
    detached.and(others.map(drop))
}

/// Serves the connections that the engine which listens gives to this one.
pub(crate) fn serve_share(
    engine: &mut Engine,
    exports: Vec<Export>,
    shares: &Shares,
    interrupt: &Interrupt,
) -> Result<()> {
    Server::new(engine, exports, shares).serve(interrupt)
}

struct Server<'a> {
    controller: ControllerId,
    host: &'a mut Host,
    exports: Vec<Export>,
    /// Number of this engine.
    number: usize,
    shares: &'a Shares,
    /// Connections from the engine that listens.
    sockets: MailboxReceiver<DetachedSocket>,
    slots: Vec<Slot>,
    /// Of the engine that listens, while it does.
    listener: Option<ListenerId>,
    failed: Option<anyhow::Error>,
    /// Whether the end has begun.
    ending: bool,
    /// Whether the end takes longer than it may.
    late: bool,
}

struct Slot {
    generation: u16,
    connection: Option<Connection>,
}

impl<'a> Server<'a> {
    fn new(engine: &'a mut Engine, exports: Vec<Export>, shares: &'a Shares) -> Self {
        Self {
            controller: engine.controller,
            exports,
            number: engine.number,
            shares,
            sockets: shares.begin(engine.number, engine.host.reactor()),
            slots: (0..shares.each_max()).map(|_| Slot { generation: 0, connection: None }).collect(),
            listener: None,
            failed: None,
            ending: false,
            late: false,
            host: &mut engine.host,
        }
    }

    /// Serves to the end.
    fn serve(mut self, interrupt: &Interrupt) -> Result<()> {
        let result = self.run(interrupt);
        self.stop_listening();
        if self.is_in_use() {
            self.shares.leave_waiting();
        }
        result?;
        self.failed.take().map_or(Ok(()), |error| Err(error).context("the target is given up"))
    }

    fn run(&mut self, interrupt: &Interrupt) -> Result<()> {
        loop {
            if (interrupt.came() || self.failed.is_some()) && !self.ending {
                self.begin_end();
            }
            if self.ending && (self.late || !self.is_in_use()) {
                return Ok(());
            }
            self.host.turn(Wait::Event).context("the ring")?;
            while let Some(event) = self.host.next_event() {
                self.on_event(event);
            }
            while let Some(socket) = self.sockets.try_receive() {
                match self.host.reactor().attach_socket(socket) {
                    Ok(socket) => self.connect(socket),
                    Err(error) => {
                        tracing::warn!(%error, "a client was refused");
                        self.shares.release(self.number);
                    }
                }
            }
            self.pump();
        }
    }

    fn is_in_use(&self) -> bool {
        self.slots.iter().any(|slot| slot.connection.is_some())
    }

    fn on_event(&mut self, event: HostEvent) {
        match event {
            HostEvent::IoDone(done) => {
                let (index, generation) = connection_of(done.tag);
                self.with(u32::from(index), generation, |connection, shared| {
                    connection.on_done(done, shared);
                });
            }
            HostEvent::Foreign(completion) => self.on_completion(completion),
            HostEvent::Lost { error, .. } => tracing::debug!(%error, "requests wait"),
            HostEvent::Reconnecting { attempt, .. } => tracing::info!(attempt, "reconnecting"),
            HostEvent::Ready { .. } | HostEvent::NamespacesChanged { .. } => self.refresh(),
            HostEvent::Failed { error, .. } => self.failed = Some(error.into()),
            HostEvent::Detached { .. } | HostEvent::AdminDone(_) => {}
        }
    }

    fn on_completion(&mut self, completion: Completion) {
        match (completion.token.kind, completion.payload) {
            (kind::ACCEPT, Payload::Accepted(socket, _)) => self.accept(socket),
            (kind::ACCEPT, _) => {
                if let Err(error) = completion.result {
                    self.failed = Some(anyhow::Error::new(error).context("accept connections"));
                }
            }
            (kind::DEADLINE, _) => self.late = true,
            (_, payload) => {
                let completion = Completion { payload, ..completion };
                let (index, generation) = (completion.token.index, completion.token.generation);
                self.with(index, generation, |connection, shared| {
                    connection.on_completion(completion, shared);
                });
            }
        }
    }

    /// A client has connected: the engine with the fewest connections serves it.
    fn accept(&mut self, socket: SocketId) {
        match self.shares.take().filter(|_| self.listener.is_some()) {
            Some(engine) if engine == self.number => self.connect(socket),
            Some(engine) => {
                let socket = self.host.reactor().detach_socket(socket);
                self.shares.give(engine, socket);
            }
            None => {
                tracing::warn!("a client was refused: there are as many as allowed");
                self.host.reactor().close_socket(socket);
            }
        }
    }

    /// Serves a connection that is counted here.
    fn connect(&mut self, socket: SocketId) {
        let free = self.slots.iter().position(|slot| slot.connection.is_none());
        let Some(index) = free.filter(|_| !self.ending) else {
            self.host.reactor().close_socket(socket);
            return self.shares.release(self.number);
        };
        let slot = &mut self.slots[index];
        let mut shared = shared(self.host, self.controller, &self.exports);
        slot.connection = Some(Connection::new(socket, index as u16, slot.generation, &mut shared));
    }

    /// Lets every connection go on: a buffer or a slot may have come free.
    fn pump(&mut self) {
        let mut shared = shared(self.host, self.controller, &self.exports);
        for slot in &mut self.slots {
            let Some(connection) = &mut slot.connection else { continue };
            connection.pump(&mut shared);
            if connection.is_gone() {
                slot.connection = None;
                self.shares.release(self.number);
                slot.generation = slot.generation.wrapping_add(1);
            }
        }
    }

    fn with(&mut self, index: u32, generation: u16, act: impl FnOnce(&mut Connection, &mut Shared<'_>)) {
        let Some(slot) = self.slots.get_mut(index as usize) else { return };
        if let Some(connection) = slot.connection.as_mut().filter(|_| slot.generation == generation) {
            act(connection, &mut shared(self.host, self.controller, &self.exports));
        }
    }

    /// Namespaces may have come, gone or changed their size.
    fn refresh(&mut self) {
        let slots = &self.slots;
        let in_use =
            |export| slots.iter().filter_map(|slot| slot.connection.as_ref()).any(|one| one.uses(export));
        renew(&mut self.exports, self.host.namespaces(self.controller), in_use);
    }

    /// Accepts nothing more, answers what was asked.
    fn begin_end(&mut self) {
        self.ending = true;
        self.stop_listening();
        let at = self.host.reactor().clock() + SHUTDOWN;
        self.host.reactor().set_timer(at, token(kind::DEADLINE, 0, 0));
        let mut shared = shared(self.host, self.controller, &self.exports);
        for connection in self.slots.iter_mut().filter_map(|slot| slot.connection.as_mut()) {
            connection.drain(&mut shared);
        }
        self.pump();
    }

    fn stop_listening(&mut self) {
        if let Some(listener) = self.listener.take() {
            self.host.reactor().close_listener(listener);
        }
    }
}

fn shared<'a>(host: &'a mut Host, controller: ControllerId, exports: &'a [Export]) -> Shared<'a> {
    Shared { host, controller, exports, patience: PATIENCE }
}

fn announce(as_json: bool, uri: &str, exports: &[Export]) {
    let entry = |export: &Export| {
        let (name, bytes, read_only) = (&export.name, export.bytes(), export.is_read_only());
        json!({ "name": name, "bytes": bytes, "read_only": read_only })
    };
    output::announce(
        as_json,
        || json!({ "uri": uri, "exports": exports.iter().map(entry).collect::<Vec<_>>() }),
        || {
            let names: Vec<&str> = exports.iter().map(|export| export.name.as_str()).collect();
            format!("serving {} at {uri}", names.join(", "))
        },
    );
}

/// The address as clients take it (the NBD URI specification).
fn uri(address: &ListenAddr) -> String {
    match address {
        ListenAddr::Tcp(address) => format!("nbd://{}", address.to_string().replace('%', "%25")),
        ListenAddr::Unix(path) => format!("nbd+unix:///?socket={}", path.display()),
    }
}

fn place(address: &ListenAddr) -> String {
    match address {
        ListenAddr::Tcp(address) => address.to_string(),
        ListenAddr::Unix(path) => path.display().to_string(),
    }
}
