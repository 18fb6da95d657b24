//! `ringfab nbd`: serves namespaces as a network block device.
//!
//! Clients' sockets, the controller's queues and all buffers live on one ring and one thread. The payload of a write
//! is received straight into the buffer from which the target fetches it, and the data of a read are sent from the
//! buffer into which the target wrote them. The data path allocates nothing.
//!
//! | module | what it does |
//! | --- | --- |
//! | [`wire`] | the bytes of the protocol |
//! | [`export`] | a namespace as clients see it; which requests are valid |
//! | [`renew`] | exports after the namespaces have changed |
//! | [`negotiation`] | the handshake |
//! | [`connection`] | one client: its requests, what it sends and what it is sent |
//! | [`place`] | what is already at the socket's path |
//! | [`share`] | how engines share the connections |
//! | [`server`] | the loop |

mod connection;
mod export;
mod negotiation;
mod place;
mod renew;
mod server;
mod share;
mod wire;

use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Result, ensure};
use clap::Args;
use ringfab_initiator::{Namespace, ZonedIp};
use ringfab_memory::ClassLayout;
use ringfab_reactor::ListenAddr;

use crate::context::Context;
use crate::engine::{Engine, EngineSetup, Engines};
use crate::namespaces::only_namespace;
use crate::options::ConnectArgs;
use crate::quantity::cores;
use connection::{COMMANDS_MAX, LARGE_BUFFERS, LARGE_BYTES, SMALL_BUFFERS, SMALL_BYTES};
use export::Export;
use share::Shares;

/// The options of `ringfab nbd`.
#[derive(Args)]
pub struct NbdArgs {
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    place: Place,
    /// Refuse writes
    #[arg(long)]
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
}

#[derive(Args)]
#[group(required = true, multiple = false)]
struct Place {
    /// Listen on a Unix socket
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Listen on a TCP address; port 0 picks a free one
    #[arg(long, value_name = "ADDR:PORT", value_parser = ZonedIp::parse_with_port)]
    listen: Option<SocketAddr>,
}

/// The longest name of an export (a string of the protocol).
const NAME_BYTES_MAX: usize = 4096;

/// Serves until a signal comes.
pub fn run(args: &NbdArgs, context: &Context) -> Result<()> {
    let mut options = args.connect.connect_options()?;
    let connections = usize::from(args.connections_max.div_ceil(args.cores.get()));
    options.waiting_max = options.waiting_max.max(connections * COMMANDS_MAX);
    let mut setup = EngineSetup::new(&args.connect, buffers(connections));
    // Before anything is attached: this is looked at again when it is listened on.
    if let Some(path) = &args.place.socket {
        place::prepare(path)?;
    }
    // One more than are served, to turn a client away.
    setup.descriptors = u32::from(args.connections_max) + 8;
    let settings = Settings::new(args);
    let shares = Arc::new(Shares::new(usize::from(args.cores.get()), usize::from(args.connections_max)));
    let work = {
        let (settings, shares, interrupt) = (settings.clone(), shares.clone(), context.interrupt.clone());
        move |engine: &mut Engine| {
            let exports = settings.exports(engine.host.namespaces(engine.controller))?;
            server::serve_share(engine, exports, &shares, &interrupt)
        }
    };
    let engines = Engines::attach(options, &setup, args.cores, &context.interrupt, work)?;
    context.interrupt.serve();
    let leader = &engines.leader;
    let exports = settings.exports(leader.host.namespaces(leader.controller))?;
    let address = match (&args.place.socket, args.place.listen) {
        (Some(path), _) => ListenAddr::Unix(path.clone()),
        (None, Some(address)) => ListenAddr::Tcp(address),
        (None, None) => unreachable!("clap asks for one of them"),
    };
    let plan = server::Plan { address, ready_file: args.ready_file.clone(), json: context.json };
    server::serve(engines, exports, &plan, &shares, &context.interrupt)
}

/// The buffers of all connections, each with its own share.
fn buffers(connections: usize) -> Vec<ClassLayout> {
    vec![
        ClassLayout { buffer_bytes: SMALL_BYTES as usize, count: connections * SMALL_BUFFERS },
        ClassLayout { buffer_bytes: LARGE_BYTES as usize, count: connections * LARGE_BUFFERS },
    ]
}

/// How namespaces are exported.
#[derive(Clone)]
struct Settings {
    name: Option<String>,
    read_only: bool,
    peer: String,
}

impl Settings {
    fn new(args: &NbdArgs) -> Self {
        Self { name: args.export.clone(), read_only: args.read_only, peer: args.connect.url.peer() }
    }

    /// The exports of namespaces.
    fn exports(&self, namespaces: &[Namespace]) -> Result<Vec<Export>> {
        if self.name.is_some() {
            only_namespace(namespaces)?;
        }
        ensure!(!namespaces.is_empty(), "the subsystem has no namespace; see the target's configuration");
        let exports = namespaces.iter().map(|namespace| {
            let name = self.name.clone().unwrap_or_else(|| format!("ns{}", namespace.nsid));
            ensure!(name.len() <= NAME_BYTES_MAX, "the name of an export has {NAME_BYTES_MAX} bytes at most");
            Ok(Export {
                name,
                description: format!("namespace {} of {}", namespace.nsid, self.peer),
                read_only: self.read_only,
                namespace: namespace.clone(),
                removed: false,
            })
        });
        exports.collect()
    }
}
