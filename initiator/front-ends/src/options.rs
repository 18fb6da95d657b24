//! Options that all commands share.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{ArgMatches, Args, Command, FromArgMatches};
use ringfab_initiator::blocking::{CancelToken, EngineOptions};
use ringfab_initiator::{ConnectOptions, HostIdentity, Provider, ReconnectPolicy, Timeouts, Transport, Url};
use uuid::Uuid;

use crate::authentication::AuthenticationArgs;
use crate::quantity::{Limit, Span};
use crate::tls::TlsArgs;

/// Where the controller is, and how to attach it.
#[derive(Args, Clone, Debug)]
pub struct ConnectArgs {
    /// nvme+rdma://HOST[:PORT]/[NQN][?OPTIONS&provider=NAME&crc=on|off], or
    /// nvme+tcp://HOST[:PORT]/[NQN][?OPTIONS&hdgst=on|off&ddgst=on|off&tls=on|off&tls_key=file:PATH
    /// &concat=on|off], where OPTIONS are
    /// ns=N&queues=N&depth=N&hostnqn=NQN&hostid=UUID&keepalive=S&congestion=NAME&dscp=N&usertimeout=S&tcpkeepalive=S&
    /// dhchap_key=file:PATH&dhchap_controller_key=file:PATH
    pub url: Url,
    /// The namespace to use, instead of all; ?ns=N in the address says the same
    #[arg(long, alias = "namespace-id", value_name = "NSID", value_parser = clap::value_parser!(u32).range(1..))]
    pub nsid: Option<u32>,
    #[command(flatten)]
    /// How to attach it.
    pub tuning: Tuning,
}

/// Everything but the address. Options in the address override these.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Connection")]
pub struct Tuning {
    /// Host NQN; by default that of /etc/nvme/hostnqn, or one made from the host identifier
    #[arg(long, value_name = "NQN")]
    hostnqn: Option<String>,
    /// Host identifier; by default that of /etc/nvme/hostid, or one made from the machine's identifier
    #[arg(long, value_name = "UUID", value_parser = uuid)]
    hostid: Option<Uuid>,
    /// I/O queues to ask for
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=128))]
    queues: u16,
    /// Commands outstanding in each I/O queue
    #[arg(long, visible_alias = "iodepth", value_name = "N", default_value_t = 128,
        value_parser = clap::value_parser!(u16).range(1..=1024))]
    depth: u16,
    /// Keep-alive timeout, 0 for off
    #[arg(long, value_name = "TIME", default_value = "10s")]
    keep_alive: Span,
    /// Abort an I/O command that takes longer than this
    #[arg(long, value_name = "TIME", default_value = "30s")]
    io_timeout: Span,
    /// Give up an attempt to connect after this time
    #[arg(long, value_name = "TIME", default_value = "5s")]
    connect_timeout: Span,
    /// Delay before the first attempt to reconnect; it doubles up to 10 s
    #[arg(long, value_name = "TIME", default_value = "500ms")]
    reconnect_delay: Span,
    /// Give up the controller this long after a loss, or `never`. A loss is over when a command succeeds, not when a
    /// connection is made
    #[arg(long, value_name = "TIME", default_value = "600s", allow_hyphen_values = true)]
    ctrl_loss_timeout: Limit,
    /// Fail waiting I/O this long after a loss, or `never`. I/O for a namespace that is not accessible (ANA) waits as
    /// long
    #[arg(long, value_name = "TIME", default_value = "never", allow_hyphen_values = true)]
    fast_io_fail_timeout: Limit,
    /// How often to try a command again that fails without Do Not Retry
    #[arg(long, value_name = "N", default_value_t = 5)]
    retries: u8,
    /// Which RNIC to use: iwarp, the software RNIC; verbs, an RDMA device; auto, an RDMA device if one reaches the
    /// target
    #[arg(long, value_name = "NAME")]
    provider: Option<Provider>,
    /// Ask for MPA CRCs (the default)
    #[arg(long, overrides_with = "no_crc")]
    crc: bool,
    /// Do not ask for MPA CRCs; they are still used if the target asks for them
    #[arg(long)]
    no_crc: bool,
    /// Run the engine on this core only
    #[arg(long, value_name = "CORE")]
    pub core: Option<usize>,
    /// How long the engine spins before it sleeps; twenty times as long while commands are outstanding
    #[arg(long, value_name = "TIME", default_value = "100us")]
    spin: Span,
    /// Write a capture of the software RNIC's traffic to this file
    #[arg(long, value_name = "FILE")]
    capture: Option<PathBuf>,
    #[command(flatten)]
    authentication: AuthenticationArgs,
    #[command(flatten)]
    tls: TlsArgs,
    #[command(flatten)]
    _end: EndOfHeadings,
}

/// Ends the heading in the help: a command's own options, which follow, are none of TLS.
#[derive(Clone, Debug)]
struct EndOfHeadings;

impl Args for EndOfHeadings {
    fn augment_args(command: Command) -> Command {
        command.next_help_heading(None)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for EndOfHeadings {
    fn from_arg_matches(_: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self)
    }

    fn update_from_arg_matches(&mut self, _: &ArgMatches) -> Result<(), clap::Error> {
        Ok(())
    }
}

impl ConnectArgs {
    /// All namespaces at an address, or the one that it names.
    pub fn new(url: Url, tuning: Tuning) -> Self {
        Self { url, nsid: None, tuning }
    }

    /// What the library needs to attach the controller.
    pub fn connect_options(&self) -> Result<ConnectOptions> {
        let tuning = &self.tuning;
        ensure!(
            tuning.capture.is_none() || self.url.transport == Transport::Rdma,
            "--capture is for the software RNIC (nvme+rdma://); for NVMe/TCP, use tcpdump or dumpcap"
        );
        let mut url = self.url.clone();
        url.namespace = url.namespace.or(self.nsid);
        let nqn = url.host_nqn.clone().or_else(|| tuning.hostnqn.clone());
        let id = url.host_id.or(tuning.hostid);
        let host = HostIdentity::load(nqn, id, std::path::Path::new("/etc")).context("who this host is")?;
        // An address that is shown has what its transport has, so that it can be given to another command.
        if url.transport == Transport::Rdma {
            url.provider = tuning.provider.unwrap_or(url.provider);
            url.crc = Some(self.crc());
        }
        if let Some(option) = tuning.tls.asked_for() {
            ensure!(
                url.transport == Transport::Tcp,
                "{option} is for NVMe/TCP (nvme+tcp://); NVMe/RDMA has no TLS"
            );
        }
        if tuning.tls.is_asked_for() {
            url.tls = Some(url.tls.unwrap_or(true));
        }
        let mut options = ConnectOptions::new(url, host);
        options.authentication = tuning.authentication.authentication(&options.url)?;
        tuning.tls.apply(&mut options)?;
        options.queues = tuning.queues;
        options.depth = tuning.depth;
        options.keep_alive = tuning.keep_alive.0;
        options.timeouts = Timeouts {
            connect: at_least_a_millisecond(tuning.connect_timeout),
            io: at_least_a_millisecond(tuning.io_timeout),
            ..Timeouts::default()
        };
        options.reconnect = ReconnectPolicy {
            delay: tuning.reconnect_delay.0,
            controller_loss_timeout: tuning.ctrl_loss_timeout.0,
            fast_io_fail_timeout: tuning.fast_io_fail_timeout.0,
            retries: tuning.retries,
            ..ReconnectPolicy::default()
        };
        Ok(options)
    }

    /// What the blocking handle's thread is like.
    pub fn engine_options(&self, cancel: CancelToken) -> EngineOptions {
        let tuning = &self.tuning;
        EngineOptions {
            threads: 1,
            core: tuning.core,
            spin: tuning.spin.0,
            capture: tuning.capture.clone(),
            cancel,
            client_buffers: Vec::new(),
            client_descriptors: 0,
        }
    }

    /// Whether we ask for MPA CRCs.
    pub fn crc(&self) -> bool {
        self.url.crc.unwrap_or(!self.tuning.no_crc)
    }

    /// Where to write a capture.
    pub fn capture(&self) -> Option<PathBuf> {
        self.tuning.capture.clone()
    }

    /// How long the engine spins before it sleeps.
    pub fn spin(&self) -> Duration {
        self.tuning.spin.0
    }
}

fn uuid(text: &str) -> Result<Uuid, String> {
    let example = "f81d4fae-7dec-11d0-a765-00a0c91e6bf6";
    Uuid::parse_str(text).map_err(|_| format!("it is not a UUID such as {example}"))
}

/// A timeout of nothing would fail everything.
fn at_least_a_millisecond(span: Span) -> Duration {
    span.0.max(Duration::from_millis(1))
}
