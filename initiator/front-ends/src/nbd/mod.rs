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
//! | [`place`] | what is at the socket's path before |
//! | [`server`] | the loop |

mod connection;
mod export;
mod negotiation;
mod place;
mod renew;
mod server;
mod wire;

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::Args;
use ringfab_initiator::{Namespace, ZonedIp};
use ringfab_memory::ClassLayout;
use ringfab_reactor::ListenAddr;

use crate::context::Context;
use crate::engine::{Engine, EngineSetup};
use crate::namespaces::only_namespace;
use crate::options::ConnectArgs;
use connection::{COMMANDS_MAX, LARGE_BUFFERS, LARGE_BYTES, SMALL_BUFFERS, SMALL_BYTES};
use export::Export;

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
    /// Connections at once; more are closed
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    connections_max: u16,
    /// Create this file when connections are accepted; it holds the address and goes away at the end
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
    let connections = usize::from(args.connections_max);
    options.waiting_max = options.waiting_max.max(connections * COMMANDS_MAX);
    let mut setup = EngineSetup::new(&args.connect, buffers(connections));
    // Before anything is attached: this is looked at again when it is listened on.
    if let Some(path) = &args.place.socket {
        place::prepare(path)?;
    }
    // One more than are served, to turn a client away.
    setup.descriptors = u32::from(args.connections_max) + 8;
    let engine = Engine::attach(options, setup, &context.interrupt)?;
    context.interrupt.serve();
    let exports = exports(args, engine.host.namespaces(engine.controller))?;
    let address = match (&args.place.socket, args.place.listen) {
        (Some(path), _) => ListenAddr::Unix(path.clone()),
        (None, Some(address)) => ListenAddr::Tcp(address),
        (None, None) => unreachable!("clap asks for one of them"),
    };
    let plan = server::Plan { address, connections, ready_file: args.ready_file.clone(), json: context.json };
    server::serve(engine, exports, &plan, &context.interrupt)
}

/// The buffers of all connections, each with its own share.
fn buffers(connections: usize) -> Vec<ClassLayout> {
    vec![
        ClassLayout { buffer_bytes: SMALL_BYTES as usize, count: connections * SMALL_BUFFERS },
        ClassLayout { buffer_bytes: LARGE_BYTES as usize, count: connections * LARGE_BUFFERS },
    ]
}

fn exports(args: &NbdArgs, namespaces: &[Namespace]) -> Result<Vec<Export>> {
    if args.export.is_some() {
        only_namespace(namespaces)?;
    }
    ensure!(!namespaces.is_empty(), "the subsystem has no namespace; see the target's configuration");
    let exports = namespaces.iter().map(|namespace| {
        let name = args.export.clone().unwrap_or_else(|| format!("ns{}", namespace.nsid));
        ensure!(name.len() <= NAME_BYTES_MAX, "the name of an export has {NAME_BYTES_MAX} bytes at most");
        let peer = args.connect.url.peer();
        Ok(Export {
            name,
            description: format!("namespace {} of {peer}", namespace.nsid),
            read_only: args.read_only,
            namespace: namespace.clone(),
            removed: false,
        })
    });
    exports.collect()
}
