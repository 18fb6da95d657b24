//! What changes the configuration of a target that runs: `subsystem`, `host`, `listener`, `log`, `reload`.

use std::io::Write;
use std::net::SocketAddr;

use clap::{ArgGroup, Args, Subcommand};
use ringfab_base::counted;
use serde_json::{Map, Value};

use super::changes::change_lines;
use super::keys::{self, AddArguments, RekeyArguments};
use super::limits::LimitArguments;
use super::{Place, examples, text};
use crate::control::client::AskError;
use crate::control::request::Request;

/// What to do with subsystems.
#[derive(Debug, Subcommand)]
pub enum SubsystemCommand {
    /// Serve one more subsystem, at first without namespaces.
    #[command(after_help = examples::SUBSYSTEM_ADD)]
    #[command(group(ArgGroup::new("access").args(["host", "allow_any_host"]).required(true)))]
    Add {
        /// Its NQN.
        nqn: String,
        /// Let every host use it.
        #[arg(long)]
        allow_any_host: bool,
        /// NQN of a host that may use it; may be given several times.
        #[arg(long, value_name = "NQN")]
        host: Vec<String>,
        /// Its serial number, instead of one made from its NQN.
        #[arg(long)]
        serial: Option<String>,
        /// Its model number.
        #[arg(long)]
        model: Option<String>,
        /// Whether its hosts must authenticate.
        #[arg(long, value_name = "WHETHER", value_parser = ["required", "optional"])]
        authentication: Option<String>,
        /// Whether its hosts must use TLS.
        #[arg(long, value_name = "WHETHER", value_parser = ["required", "optional"])]
        tls: Option<String>,
    },
    /// Serve a subsystem no longer: its hosts are disconnected. Commands that have begun go on.
    #[command(after_help = examples::SUBSYSTEM_REMOVE)]
    Remove {
        /// Its NQN.
        nqn: String,
    },
}

/// What to do with hosts.
#[derive(Debug, Subcommand)]
pub enum HostCommand {
    /// Let a host use a subsystem, with new keys, and keep that in the configuration file. It prints what to do at the
    /// host.
    #[command(after_help = examples::HOST_ADD)]
    Add(AddArguments),
    /// Let one more host use a subsystem.
    #[command(after_help = examples::HOST_ALLOW)]
    Allow(HostArguments),
    /// Let a host use a subsystem no longer: it is disconnected from it.
    #[command(after_help = examples::HOST_DENY)]
    Deny(HostArguments),
    /// Disconnect a host. It may come back at once.
    #[command(after_help = examples::HOST_KICK)]
    Kick(HostArguments),
    /// Give a host new keys, and keep that in the configuration file. Its old ones count until `host revoke`.
    #[command(after_help = examples::HOST_REKEY)]
    Rekey(RekeyArguments),
    /// Take away the key that a host had before: connections that use it end.
    #[command(after_help = examples::HOST_REVOKE)]
    Revoke {
        /// NQN of the host.
        host: String,
    },
    /// Give a host shares and limits. Whatever is not named has its default again.
    #[command(after_help = examples::HOST_SET)]
    Set {
        /// NQN of the host.
        host: String,
        /// How much it gets in relation to other hosts where several wait for the same; 100 by default.
        #[arg(long, value_name = "N")]
        shares: Option<u32>,
        /// What it may do on all namespaces together.
        #[command(flatten)]
        limits: LimitArguments,
    },
}

/// Which host, and where.
#[derive(Debug, Args)]
pub struct HostArguments {
    /// NQN of the host.
    host: String,
    /// NQN of the subsystem; not needed when there is only one. `kick` without it means all.
    #[arg(long, value_name = "NQN")]
    subsystem: Option<String>,
}

/// What to do with listeners.
#[derive(Debug, Subcommand)]
pub enum ListenerCommand {
    /// Let hosts connect at one more address.
    #[command(after_help = examples::LISTENER_ADD)]
    Add {
        /// The address, for instance 192.0.2.1 or [::].
        address: String,
        /// The port.
        #[arg(long, default_value_t = 4420)]
        port: u16,
        /// How hosts talk to it: rdma or tcp.
        #[arg(long, default_value = "rdma")]
        transport: String,
        /// Who does RDMA: auto, iwarp or verbs.
        #[arg(long)]
        provider: Option<String>,
        /// Whether connections have TLS, of transport tcp.
        #[arg(long, value_name = "WHETHER", value_parser = ["required", "allowed", "off"])]
        tls: Option<String>,
        /// Only discovery is served there.
        #[arg(long)]
        discovery_only: bool,
    },
    /// Let hosts connect at an address no longer: those that came there are disconnected.
    #[command(after_help = examples::LISTENER_REMOVE)]
    Remove {
        /// The address with its port, as `status` shows it.
        address: SocketAddr,
    },
    /// Take a listener out of use: hosts that can go elsewhere are asked to, and then it is removed.
    #[command(after_help = examples::LISTENER_DRAIN)]
    Drain {
        /// The address with its port, as `status` shows it.
        address: SocketAddr,
    },
}

/// What to log.
#[derive(Debug, Args)]
pub struct LogArguments {
    /// A level (error, warn, info, debug, trace, off), or a filter such as `info,ringfab_target=debug`.
    filter: String,
}

/// How to read the configuration file again.
#[derive(Debug, Args)]
pub struct ReloadArguments {
    /// Only show what is different, and whether it needs a restart.
    #[arg(long)]
    dry_run: bool,
}

/// The keys that are given.
fn named<const N: usize>(texts: [(&str, Option<String>); N]) -> impl Iterator<Item = (String, Value)> {
    texts.into_iter().filter_map(|(key, text)| Some((key.to_owned(), Value::from(text?))))
}

/// Adds or removes a subsystem.
///
/// # Errors
/// When the target cannot be asked or refuses.
pub fn subsystem(place: &Place, command: SubsystemCommand, output: &mut impl Write) -> Result<(), AskError> {
    let request = match command {
        SubsystemCommand::Remove { nqn } => Request::SubsystemRemove { subsystem: nqn },
        SubsystemCommand::Add { nqn, allow_any_host, host, serial, model, authentication, tls } => {
            let mut table = Map::from_iter([("nqn".to_owned(), Value::from(nqn))]);
            if allow_any_host {
                table.insert("allow_any_host".to_owned(), Value::from(true));
            } else {
                table.insert("allowed_hosts".to_owned(), Value::from(host));
            }
            let texts =
                [("serial", serial), ("model", model), ("authentication", authentication), ("tls", tls)];
            table.extend(named(texts));
            table.insert("namespace".to_owned(), Value::Array(Vec::new()));
            Request::SubsystemAdd { subsystem: table }
        }
    };
    place.show(&request, output, change_lines)
}

/// Adds, allows, denies, disconnects or limits a host.
///
/// # Errors
/// When the target cannot be asked or refuses.
pub fn host(place: &Place, command: HostCommand, output: &mut impl Write) -> Result<(), AskError> {
    let request = match command {
        HostCommand::Add(arguments) => return keys::add(place, &arguments, output),
        HostCommand::Rekey(arguments) => return keys::rekey(place, &arguments, output),
        HostCommand::Allow(HostArguments { host, subsystem }) => Request::HostAllow { subsystem, host },
        HostCommand::Deny(HostArguments { host, subsystem }) => Request::HostDeny { subsystem, host },
        HostCommand::Revoke { host } => Request::HostRevoke { host },
        HostCommand::Set { host, shares, limits } => {
            let mut table = Map::from_iter([("nqn".to_owned(), Value::from(host))]);
            table.extend(shares.map(|shares| ("shares".to_owned(), Value::from(shares))));
            let limits = limits.into_table();
            if !limits.is_empty() {
                table.insert("limits".to_owned(), Value::from(limits));
            }
            Request::HostSet { host: table }
        }
        HostCommand::Kick(HostArguments { host, subsystem }) => {
            let request = Request::HostKick { subsystem, host };
            return place.show(&request, output, |answer| {
                counted(text(answer, "controllers"), "controller") + " ended\n"
            });
        }
    };
    place.show(&request, output, change_lines)
}

/// Adds, drains or removes a listener.
///
/// # Errors
/// When the target cannot be asked or refuses.
pub fn listener(place: &Place, command: ListenerCommand, output: &mut impl Write) -> Result<(), AskError> {
    let (request, what) = match command {
        ListenerCommand::Remove { address } => (Request::ListenerRemove { address }, "removed"),
        ListenerCommand::Drain { address } => (Request::ListenerDrain { address }, "drained and removed"),
        ListenerCommand::Add { address, port, transport, provider, tls, discovery_only } => {
            let address = address.trim_start_matches('[').trim_end_matches(']');
            let mut table = Map::from_iter([
                ("address".to_owned(), Value::from(address)),
                ("port".to_owned(), Value::from(port)),
                ("transport".to_owned(), Value::from(transport)),
            ]);
            table.extend(named([("provider", provider), ("tls", tls)]));
            if discovery_only {
                table.insert("discovery_only".to_owned(), Value::from(true));
            }
            (Request::ListenerAdd { listener: table }, "added")
        }
    };
    place.show(&request, output, |answer| format!("listener {} {what}\n", text(answer, "address")))
}

/// Changes what is logged.
///
/// # Errors
/// When the target cannot be asked or refuses.
pub fn log(place: &Place, arguments: LogArguments, output: &mut impl Write) -> Result<(), AskError> {
    place.show(&Request::Log { filter: arguments.filter }, output, change_lines)
}

/// Has the configuration file read again.
///
/// # Errors
/// When the target cannot be asked or refuses.
pub fn reload(place: &Place, arguments: &ReloadArguments, output: &mut impl Write) -> Result<(), AskError> {
    let mut refused = None;
    place.show(&Request::Reload { dry_run: arguments.dry_run }, output, |answer| {
        refused = answer["refused"].as_str().map(str::to_owned);
        change_lines(answer)
    })?;
    refused.map_or(Ok(()), |why| Err(AskError::Refused(format!("a reload would be refused: {why}"))))
}
