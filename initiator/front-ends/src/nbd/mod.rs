//! `ringfab nbd`: serves namespaces as a network block device.
//!
//! Clients' sockets, the controller's queues and all buffers live on one ring and one thread. The payload of a write
//! is received straight into the buffer from which the target fetches it, and the data of a read are sent from the
//! buffer into which the target wrote them. The data path allocates nothing. The bytes of the protocol are in
//! [`ringfab_proto::nbd`].
//!
//! | module | what it does |
//! | --- | --- |
//! | [`export`] | a namespace as clients see it; which requests are valid |
//! | [`chores`] | what takes several commands or an admin command, on threads of its own |
//! | [`refresh`] | exports after the namespaces have changed |
//! | [`negotiation`] | the handshake |
//! | [`connection`] | one client: its requests, what it sends and what it is sent |
//! | [`socket_path`] | what is already at the socket's path |
//! | [`uri`] | the address as clients take it |
//! | [`spread`] | how connections spread over engines |
//! | [`server`] | the server on an engine's thread |

mod chores;
mod connection;
mod export;
mod negotiation;
mod refresh;
mod server;
mod settings;
mod socket_path;
mod spread;
pub(crate) mod uri;

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow};
use clap::Args;
use ringfab_base::shell_word;
use ringfab_initiator::ZonedIp;
use ringfab_initiator::blocking::{CancelToken, Controller, EngineClient};
use ringfab_memory::ClassLayout;
use ringfab_reactor::ListenAddr;
use serde_json::json;

use crate::advice::Advised;
use crate::context::Context;
use crate::engine::attach_service;
use crate::failures;
use crate::interrupt::Interrupt;
use crate::made_directories::MadeDirectories;
use crate::options::ConnectArgs;
use crate::output;
use crate::quantity::cores;
use crate::ready::Ready;
use crate::registry;
use connection::{COMMANDS_MAX, LARGE_BUFFERS, LARGE_BYTES, SMALL_BUFFERS, SMALL_BYTES};
use export::Export;
use server::{Common, SHUTDOWN, Server};
use settings::ExportSettings;
use spread::Spread;

/// The options of `ringfab nbd`.
#[derive(Args)]
pub struct NbdArgs {
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    listen: ListenArgs,
    /// Refuse writes
    #[arg(long, short)]
    read_only: bool,
    /// Name of the export, when there is one namespace; otherwise the names are ns1, ns2 and so on
    #[arg(long, value_name = "NAME")]
    export: Option<String>,
    /// The most connections at once; further ones are closed
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    connections_max: u16,
    /// Engine threads. Each has its own I/O queues of the controller, and serves a part of the connections. With
    /// --core, the threads are pinned to that core and the cores that follow
    #[arg(long, value_name = "N", default_value = "1", value_parser = cores)]
    cores: NonZeroU16,
    /// Create this file, with the address in it, when connections are accepted, and remove it at the end
    #[arg(long, value_name = "FILE")]
    ready_file: Option<PathBuf>,
    /// Whether to serve also a subsystem that has no namespace so far
    #[arg(skip)]
    may_be_none: bool,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
struct ListenArgs {
    /// Listen on a Unix socket
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Listen on a TCP address; port 0 picks a free one
    #[arg(long, value_name = "ADDR:PORT", value_parser = ZonedIp::parse_with_port)]
    listen: Option<SocketAddr>,
}

impl NbdArgs {
    /// The defaults, at a Unix socket; also for a subsystem that has no namespace so far.
    pub(crate) fn at(connect: ConnectArgs, socket: PathBuf, read_only: bool) -> Self {
        Self {
            connect,
            listen: ListenArgs { socket: Some(socket), listen: None },
            read_only,
            export: None,
            connections_max: 16,
            cores: NonZeroU16::MIN,
            ready_file: None,
            may_be_none: true,
        }
    }

    /// Has `ringfab list` show it as long as what is returned lives.
    pub(crate) fn register(&self, controller: &Controller, uri: &str) -> Option<registry::Entry> {
        let mut facts = registry::facts(registry::Kind::Nbd, &self.connect, controller);
        facts.uri = Some(uri.to_owned());
        facts.read_only = self.read_only;
        registry::announce(&facts, controller)
    }
}

/// Serves until a signal comes or the controller is given up.
pub fn run(args: &NbdArgs, context: &Context) -> Result<()> {
    serve_until(args, &context.interrupt, |controller, uri, exports| {
        // Who is told that it is ready finds it in the list.
        let entry = args.register(controller, uri);
        let ready = Ready::announce(args.ready_file.as_deref(), uri)?;
        announce(context.json, uri, exports);
        Ok((ready, entry))
    })
}

/// Serves until the interrupt ends it or the controller is given up. When clients can connect, `ready` is told the
/// controller and where; what it returns is dropped when they cannot any more.
pub(crate) fn serve_until<R>(
    args: &NbdArgs,
    interrupt: &Interrupt,
    ready: impl FnOnce(&Controller, &str, &[Export]) -> Result<R>,
) -> Result<()> {
    let _told = failures::ToldAtEnd;
    let mut options = args.connect.connect_options()?;
    let connections = usize::from(args.connections_max.div_ceil(args.cores.get()));
    options.waiting_max = options.waiting_max.max(connections * COMMANDS_MAX);
    // Before anything is attached: this is looked at again when it is listened on. What is made here goes last.
    let _made = args.listen.socket.as_deref().map(prepared).transpose()?;
    let mut engine = args.connect.engine_options(CancelToken::new());
    engine.threads = args.cores.get();
    engine.client_buffers = buffers(connections);
    // One more than are served, to turn a client away.
    engine.client_descriptors = u32::from(args.connections_max) + 8;
    let controller = attach_service(options, engine, interrupt)?;
    interrupt.serve();
    let spread = Arc::new(Spread::new(controller.threads(), usize::from(args.connections_max)));
    let served = serve(args, interrupt, &controller, &spread, ready);
    if spread.requests_were_left() {
        // Their commands can only end by cancelling: the target is away.
        tracing::warn!("ended while requests were waiting for the target");
        return served.and(controller.cancel().map_err(Advised).context("detach"));
    }
    let detached = controller.detach().map_err(Advised).context("detach");
    served.and(detached)
}

/// Starts a server on each engine, and waits for their ends.
fn serve<R>(
    args: &NbdArgs,
    interrupt: &Interrupt,
    controller: &Controller,
    spread: &Arc<Spread>,
    ready: impl FnOnce(&Controller, &str, &[Export]) -> Result<R>,
) -> Result<()> {
    let settings = ExportSettings {
        name: args.export.clone(),
        read_only: args.read_only,
        peer: args.connect.url.peer(),
        may_be_none: args.may_be_none,
    };
    let exports = settings.exports(&controller.namespaces())?;
    let (result, results) = channel();
    let common = Common {
        spread: spread.clone(),
        controller: controller.clone(),
        interrupt: interrupt.clone(),
        result,
    };
    // The one that listens comes last, when the others can take connections.
    for engine in 1..controller.threads() {
        start_server(controller, engine, settings.clone(), common.clone(), None)?;
    }
    let address = start_server(controller, 0, settings, common, Some(args.listen.address()))?;
    let uri = address.map(|address| uri::of(&address, args.export.as_deref())).unwrap_or_default();
    let ready = ready(controller, &uri, &exports)?;
    let first = results.recv().unwrap_or_else(|_| Err(anyhow!("the engine has ended")));
    drop(ready);
    first.and(wait_for_others(&results))
}

/// When one server has ended, the others do so, too: for the same reason, unless it was the listener's.
fn wait_for_others(results: &Receiver<Result<()>>) -> Result<()> {
    let end = Instant::now() + 2 * SHUTDOWN;
    loop {
        match results.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(result) => result?,
            Err(RecvTimeoutError::Disconnected | RecvTimeoutError::Timeout) => return Ok(()),
        }
    }
}

/// Starts the server of an engine, and says where it listens if it is to.
fn start_server(
    controller: &Controller,
    engine: usize,
    settings: ExportSettings,
    common: Common,
    listen: Option<ListenAddr>,
) -> Result<Option<ListenAddr>> {
    let started = controller.start_client(engine, move |host, controller| {
        let exports = settings.exports(host.namespaces(controller)).map_err(io::Error::other)?;
        let mut server = Server::new(host, engine, settings, exports, common);
        let address = listen.map(|address| server.listen(host, &address)).transpose();
        let address = address.map_err(io::Error::other)?;
        Ok((Box::new(server) as Box<dyn EngineClient>, address))
    });
    Ok(started?)
}

/// The folder of a socket, if it was not there, and nothing in the place of the socket.
fn prepared(socket: &Path) -> Result<MadeDirectories> {
    let made = MadeDirectories::of_file(socket)?;
    socket_path::prepare(socket)?;
    Ok(made)
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
            format!("serving {} at {}", names.join(", "), shell_word(uri))
        },
    );
}

impl ListenArgs {
    fn address(&self) -> ListenAddr {
        match (&self.socket, self.listen) {
            (Some(path), _) => ListenAddr::Unix(path.clone()),
            (None, Some(address)) => ListenAddr::Tcp(address),
            (None, None) => unreachable!("clap asks for one of them"),
        }
    }
}

/// The buffers of all connections, each with its own share.
fn buffers(connections: usize) -> Vec<ClassLayout> {
    vec![
        ClassLayout { buffer_bytes: SMALL_BYTES as usize, count: connections * SMALL_BUFFERS },
        ClassLayout { buffer_bytes: LARGE_BYTES as usize, count: connections * LARGE_BUFFERS },
    ]
}
