//! Options that all commands share.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{ArgMatches, Args, Command, FromArgMatches};
use ringfab_base::shell_word;
use ringfab_initiator::blocking::{CancelToken, EngineOptions};
use ringfab_initiator::{ConnectOptions, HostIdentity, Provider, Transport, Url};
use ringfab_spec::Nqn;
use uuid::Uuid;

use crate::authentication::AuthenticationArgs;
use crate::keys::KeysOfHost;
use crate::paths::PathArgs;
use crate::precedence::{Given, Twin};
use crate::quantity::{Limit, Span};
use crate::tls::TlsArgs;

/// Where the controller is, and how to attach it.
#[derive(Args, Clone, Debug)]
pub struct ConnectArgs {
    /// nvme+rdma://HOST[:PORT]/[NQN][?OPTIONS&provider=NAME&crc=on|off], or
    /// nvme+tcp://HOST[:PORT]/[NQN][?OPTIONS&hdgst=on|off&ddgst=on|off&tls=on|off&tls_key=file:PATH
    /// &concat=on|off], where OPTIONS are
    /// ns=N&queues=N&depth=N&hostnqn=NQN&hostid=UUID&keepalive=S&congestion=NAME&dscp=N&usertimeout=S&tcpkeepalive=S&
    /// keys=PATH&dhchap_key=file:PATH&dhchap_controller_key=file:PATH
    pub url: Url,
    /// The namespace to use, instead of all; ?ns=N in the address says the same
    #[arg(long, alias = "namespace-id", value_name = "NSID", value_parser = clap::value_parser!(u32).range(1..))]
    pub nsid: Option<u32>,
    #[command(flatten)]
    /// How to attach it.
    pub tuning: Tuning,
}

/// Everything but the address. What is given here goes before what the address says.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Connection")]
pub struct Tuning {
    #[command(flatten)]
    given: Given,
    /// Host NQN; by default that of /etc/nvme/hostnqn, or one made from the host identifier
    #[arg(long, value_name = "NQN", value_parser = host_nqn)]
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
    #[command(flatten)]
    reconnect: ReconnectArgs,
    /// Which RNIC to use: iwarp, the software RNIC; verbs, an RDMA device; auto, an RDMA device if one reaches the
    /// target
    #[arg(long, value_name = "NAME")]
    provider: Option<Provider>,
    #[command(flatten)]
    crc: CrcArgs,
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
    paths: PathArgs,
    #[command(flatten)]
    authentication: AuthenticationArgs,
    #[command(flatten)]
    tls: TlsArgs,
    #[command(flatten)]
    _end: EndOfHeadings,
}

/// What to do when a connection is lost.
#[derive(Args, Clone, Debug)]
struct ReconnectArgs {
    /// Delay before the first attempt to reconnect; it doubles up to 10 s
    #[arg(long, value_name = "TIME", default_value = "500ms")]
    reconnect_delay: Span,
    /// How long after a loss the controller is given up, or `never`. A loss is over when a command succeeds, not when a
    /// connection is made
    #[arg(long, value_name = "TIME", default_value = "600s", allow_hyphen_values = true)]
    ctrl_loss_timeout: Limit,
    /// How long after a loss waiting I/O fails, or `never`. I/O for a namespace that is not accessible (ANA) waits as
    /// long
    #[arg(long, value_name = "TIME", default_value = "never", allow_hyphen_values = true)]
    fast_io_fail_timeout: Limit,
    /// How long writes wait after a loss, where the target cannot say (Cross-Controller Reset) that older ones are
    /// over. By default as long as it may still act on them: twice its keep-alive timeout, and its Command Quiesce
    /// Time. A shorter time risks that an old write undoes a newer one
    #[arg(long, value_name = "TIME")]
    replay_delay: Option<Span>,
    /// How often to try a command again that fails without Do Not Retry
    #[arg(long, value_name = "N", default_value_t = 5)]
    retries: u8,
}

impl ReconnectArgs {
    fn apply(&self, options: &mut ConnectOptions) {
        options.reconnect.delay = self.reconnect_delay.0;
        options.reconnect.controller_loss_timeout = self.ctrl_loss_timeout.0;
        options.reconnect.fast_io_fail_timeout = self.fast_io_fail_timeout.0;
        options.reconnect.retries = self.retries;
        options.replay_delay = self.replay_delay.map(|time| time.0);
    }
}

/// Whether to ask for MPA CRCs.
#[derive(Args, Clone, Copy, Debug)]
struct CrcArgs {
    /// Ask for MPA CRCs (the default)
    #[arg(long, overrides_with = "no_crc")]
    crc: bool,
    /// Do not ask for MPA CRCs; they are still used if the target asks for them
    #[arg(long)]
    no_crc: bool,
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

impl Tuning {
    /// The same with these addresses of the same subsystem as further paths.
    pub(crate) fn beside(&self, further: &[Url]) -> Self {
        let mut tuning = self.clone();
        tuning.paths.path.extend_from_slice(further);
        tuning
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
        if let Some(option) = tuning.tls.asked_for() {
            ensure!(
                self.url.transport == Transport::Tcp,
                "{option} is for NVMe/TCP (nvme+tcp://); NVMe/RDMA has no TLS"
            );
        }
        tuning.authentication.place_of_keys(&self.url)?;
        let url = self.address();
        let file = KeysOfHost::read(&url)?;
        let host = HostIdentity::for_url(&url).context("who this host is")?;
        let mut options = ConnectOptions::new(url, host);
        options.authentication = tuning.authentication.authentication(&options.url, file.as_ref())?;
        tuning.tls.apply(&mut options, file.as_ref())?;
        options.queues = tuning.queues;
        options.depth = tuning.depth;
        options.keep_alive = tuning.keep_alive.0;
        options.timeouts.connect = at_least_a_millisecond(tuning.connect_timeout);
        options.timeouts.io = at_least_a_millisecond(tuning.io_timeout);
        tuning.reconnect.apply(&mut options);
        tuning.paths.apply(&mut options);
        options.further_urls = self.further_addresses(&options.url)?;
        Ok(options)
    }

    /// The other paths, as [`ConnectArgs::address`] has the first one. Who this host is, is said once.
    fn further_addresses(&self, first: &Url) -> Result<Vec<Url>> {
        let mut further = Vec::new();
        for url in self.tuning.paths.addresses(&self.url)? {
            let is_same = |one: &Url| one.host_nqn.is_none() || one.host_nqn == first.host_nqn;
            ensure!(
                is_same(&url) && (url.host_id.is_none() || url.host_id == first.host_id),
                "{} is for another host than {}; all paths are of one host",
                shell_word(&url),
                shell_word(first)
            );
            further.push(Self { url, ..self.clone() }.address());
        }
        Ok(further)
    }

    /// The address with what the command line says otherwise. An option that [`ConnectOptions`] has beside the address
    /// is not in it where the command line has it.
    pub fn address(&self) -> Url {
        let (tuning, given) = (&self.tuning, &self.tuning.given);
        let mut url = self.url.clone();
        let number = |option, name, given: Option<u16>, field: &mut Option<u16>| {
            let settled = Twin::new(option, name).settle(given, *field, u16::to_string);
            *field = settled.filter(|_| given.is_none());
        };
        number("queues", "queues", given.only("queues", tuning.queues), &mut url.queues);
        number("depth", "depth", given.only("depth", tuning.depth), &mut url.depth);
        let keep_alive = given.only("keep_alive", tuning.keep_alive.0);
        let seconds = url.keep_alive_s.map(|seconds| Duration::from_secs(seconds.into()));
        let shown = |time: &Duration| time.as_secs_f64().to_string();
        Twin::new("keep-alive", "keepalive").settle(keep_alive, seconds, shown);
        url.keep_alive_s = url.keep_alive_s.filter(|_| keep_alive.is_none());
        let replay_delay = tuning.reconnect.replay_delay.map(|time| time.0);
        let milliseconds = url.replay_delay_ms.map(|ms| Duration::from_millis(ms.into()));
        Twin::new("replay-delay", "replaydelay").settle(replay_delay, milliseconds, shown);
        url.replay_delay_ms = url.replay_delay_ms.filter(|_| replay_delay.is_none());
        url.namespace = Twin::new("nsid", "ns").settle(self.nsid, url.namespace, u32::to_string);
        let nqn = url.host_nqn.take();
        url.host_nqn = Twin::new("hostnqn", "hostnqn").settle(tuning.hostnqn.clone(), nqn, String::clone);
        url.host_id = Twin::new("hostid", "hostid").settle(tuning.hostid, url.host_id, Uuid::to_string);
        // An address that is shown has what its transport has, so that it can be given to another command.
        if url.transport == Transport::Rdma {
            let in_address = Some(url.rdma.provider).filter(|provider| *provider != Provider::Auto);
            let provider =
                Twin::new("provider", "provider").settle(tuning.provider, in_address, Provider::to_string);
            url.rdma.provider = provider.unwrap_or(url.rdma.provider);
            url.rdma.crc = Some(self.crc());
        }
        // What is wrong with a place is told by whoever connects.
        url.keys = tuning.authentication.place_of_keys(&url).ok().flatten();
        tuning.tls.settle(&mut url);
        url
    }

    /// What the blocking handle's thread is like.
    pub fn engine_options(&self, cancel: CancelToken) -> EngineOptions {
        let tuning = &self.tuning;
        let mut options = EngineOptions::with_cancel(cancel);
        options.core = tuning.core;
        options.spin = tuning.spin.0;
        options.capture.clone_from(&tuning.capture);
        options
    }

    /// Whether we ask for MPA CRCs.
    pub fn crc(&self) -> bool {
        let CrcArgs { crc, no_crc } = self.tuning.crc;
        let given = (crc || no_crc).then_some(!no_crc);
        let shown = |crc: &bool| if *crc { "on" } else { "off" }.to_owned();
        Twin::new("crc", "crc").settle(given, self.url.rdma.crc, shown).unwrap_or(true)
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

fn host_nqn(text: &str) -> Result<String, String> {
    Nqn::with_form(text).map(|nqn| nqn.as_str().to_owned()).map_err(|error| error.to_string())
}

fn uuid(text: &str) -> Result<Uuid, String> {
    let example = "f81d4fae-7dec-11d0-a765-00a0c91e6bf6";
    Uuid::parse_str(text).map_err(|_| format!("it is not a UUID such as {example}"))
}

/// A timeout of nothing would fail everything.
fn at_least_a_millisecond(span: Span) -> Duration {
    span.0.max(Duration::from_millis(1))
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use ringfab_initiator::{Key, TlsKey};

    use super::*;

    #[derive(Parser, Debug)]
    struct Cli {
        #[command(flatten)]
        connect: ConnectArgs,
    }

    const NAME: &str = "nqn.2026-01.org.example";

    fn options(transport: &str, in_address: &str, arguments: &[&str]) -> ConnectOptions {
        let url = format!("nvme+{transport}://192.0.2.1/nqn.2026-01.org.example:a?{in_address}");
        let cli = Cli::try_parse_from([&["test", &url], arguments].concat()).expect("valid options");
        cli.connect.connect_options().expect("what it needs")
    }

    /// An option of the address and its twin: what both say, and how to see which one holds.
    struct Row {
        name: &'static str,
        transport: &'static str,
        in_address: String,
        arguments: Vec<String>,
        /// What holds, with both, and without the option of the command line.
        held: fn(&ConnectOptions) -> String,
        given: String,
        otherwise: String,
    }

    /// The option in the address, and its twin.
    #[derive(Clone, Copy)]
    struct Said<'a> {
        in_address: &'a str,
        argument: &'a str,
    }

    /// What holds with both, and without the twin.
    #[derive(Clone, Copy)]
    struct Holds<'a> {
        given: &'a str,
        otherwise: &'a str,
    }

    fn row(
        name: &'static str,
        transport: &'static str,
        said: Said<'_>,
        held: fn(&ConnectOptions) -> String,
        holds: Holds<'_>,
    ) -> Row {
        Row {
            name,
            transport,
            in_address: said.in_address.to_owned(),
            arguments: said.argument.split(' ').map(str::to_owned).collect(),
            held,
            given: holds.given.to_owned(),
            otherwise: holds.otherwise.to_owned(),
        }
    }

    fn place(key: Option<&Key>) -> String {
        match key {
            Some(Key::At(source)) => source.to_string(),
            _ => "another".to_owned(),
        }
    }

    const DHCHAP: &str = "DHHC-1:00:ycnJycnJycnJycnJycnJycnJycnJycnJycnJycnJyclx132H:";
    const TLS: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";

    fn file(folder: &std::path::Path, name: &str, text: &str) -> String {
        let path = folder.join(name);
        std::fs::write(&path, text).expect("a key");
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600))
            .expect("for few eyes");
        format!("file:{}", path.display())
    }

    /// The file that has the name of the host, its key for authentication and its key for TLS.
    fn all_keys(folder: &std::path::Path) -> Row {
        let all = format!("host = \"{NAME}:me\"\ndhchap_key = \"{DHCHAP}\"\ntls_key = \"{TLS}\"\n");
        let [near, far] = ["all", "far-all"].map(|name| file(folder, name, &all));
        let held: fn(&ConnectOptions) -> String = |options| {
            assert_eq!(options.host.nqn, format!("{NAME}:me"));
            let key = place(options.authentication.as_ref().map(|it| &it.keys.host));
            assert_eq!(
                options.tls.as_ref().map(|tls| &tls.key),
                options.url.keys.clone().map(TlsKey::At).as_ref()
            );
            key
        };
        row(
            "keys",
            "tcp",
            Said { in_address: &format!("keys={far}"), argument: &format!("--keys={near}") },
            held,
            Holds { given: &near, otherwise: &far },
        )
    }

    fn keys(folder: &std::path::Path) -> Vec<Row> {
        let [near, far, tls, far_tls] = [("near", DHCHAP), ("far", DHCHAP), ("tls", TLS), ("far-tls", TLS)]
            .map(|(name, text)| file(folder, name, text));
        let host: fn(&ConnectOptions) -> String =
            |options| place(options.authentication.as_ref().map(|it| &it.keys.host));
        let controller: fn(&ConnectOptions) -> String =
            |options| place(options.authentication.as_ref().and_then(|it| it.keys.controller.as_ref()));
        let of_tls: fn(&ConnectOptions) -> String = |options| match options.tls.as_ref().map(|tls| &tls.key) {
            Some(TlsKey::At(source)) => source.to_string(),
            _ => "another".to_owned(),
        };
        let both = format!("dhchap_key={far}&dhchap_controller_key={far}");
        vec![
            all_keys(folder),
            row(
                "dhchap_key",
                "tcp",
                Said { in_address: &format!("dhchap_key={far}"), argument: &format!("--dhchap-key={near}") },
                host,
                Holds { given: &near, otherwise: &far },
            ),
            row(
                "dhchap_controller_key",
                "tcp",
                Said { in_address: &both, argument: &format!("--dhchap-controller-key={near}") },
                controller,
                Holds { given: &near, otherwise: &far },
            ),
            row(
                "tls_key",
                "tcp",
                Said { in_address: &format!("tls_key={far_tls}"), argument: &format!("--tls-key={tls}") },
                of_tls,
                Holds { given: &tls, otherwise: &far_tls },
            ),
        ]
    }

    #[expect(clippy::too_many_lines, reason = "a row for each option")]
    fn rows() -> Vec<Row> {
        let me = format!("{NAME}:me");
        let you = format!("{NAME}:you");
        let [id, other_id] = ["01234567-89ab-4def-8123-456789abcdef", "f81d4fae-7dec-41d0-a765-00a0c91e6bf6"];
        vec![
            row(
                "ns",
                "tcp",
                Said { in_address: "ns=7", argument: "--nsid=1" },
                |it| format!("{:?}", it.url.namespace),
                Holds { given: "Some(1)", otherwise: "Some(7)" },
            ),
            row(
                "hostnqn",
                "tcp",
                Said { in_address: &format!("hostnqn={you}"), argument: &format!("--hostnqn={me}") },
                |it| it.host.nqn.clone(),
                Holds { given: &me, otherwise: &you },
            ),
            row(
                "hostid",
                "tcp",
                Said { in_address: &format!("hostid={other_id}"), argument: &format!("--hostid={id}") },
                |it| it.host.id.to_string(),
                Holds { given: id, otherwise: other_id },
            ),
            row(
                "queues",
                "tcp",
                Said { in_address: "queues=8", argument: "--queues=1" },
                |it| it.url.queues.unwrap_or(it.queues).to_string(),
                Holds { given: "1", otherwise: "8" },
            ),
            row(
                "depth",
                "tcp",
                Said { in_address: "depth=256", argument: "--depth=128" },
                |it| it.url.depth.unwrap_or(it.depth).to_string(),
                Holds { given: "128", otherwise: "256" },
            ),
            row(
                "keepalive",
                "tcp",
                Said { in_address: "keepalive=60", argument: "--keep-alive=10s" },
                |it| it.url.keep_alive_s.map_or(it.keep_alive.as_secs(), u64::from).to_string(),
                Holds { given: "10", otherwise: "60" },
            ),
            row(
                "replaydelay",
                "tcp",
                Said { in_address: "replaydelay=7000", argument: "--replay-delay=500ms" },
                |it| {
                    let chosen = it.replay_delay.map(|time| time.as_millis());
                    it.url.replay_delay_ms.map(u128::from).or(chosen).unwrap_or_default().to_string()
                },
                Holds { given: "500", otherwise: "7000" },
            ),
            row(
                "provider",
                "rdma",
                Said { in_address: "provider=verbs", argument: "--provider=iwarp" },
                |it| it.url.rdma.provider.to_string(),
                Holds { given: "iwarp", otherwise: "verbs" },
            ),
            row(
                "crc",
                "rdma",
                Said { in_address: "crc=on", argument: "--no-crc" },
                |it| format!("{:?}", it.url.rdma.crc),
                Holds { given: "Some(false)", otherwise: "Some(true)" },
            ),
            row(
                "tls",
                "tcp",
                Said { in_address: "tls=off", argument: "--tls" },
                |it| format!("{:?}", it.url.tls),
                Holds { given: "Some(true)", otherwise: "Some(false)" },
            ),
            row(
                "concat",
                "tcp",
                Said {
                    in_address: "concat=off&dhchap_key=keyring:none",
                    argument: "--concat --dhchap-key=DHHC-1:00:ycnJycnJycnJycnJycnJycnJycnJycnJycnJycnJyclx132H:",
                },
                |it| it.concatenates().to_string(),
                Holds { given: "true", otherwise: "false" },
            ),
        ]
    }

    /// The options of the address that no command has.
    const WITHOUT_TWIN: [&str; 6] = ["congestion", "dscp", "usertimeout", "tcpkeepalive", "hdgst", "ddgst"];

    #[test]
    fn what_the_command_line_says_goes_before_the_address_for_every_option_that_both_have() {
        let folder = tempfile::tempdir().expect("a folder");
        let rows: Vec<Row> = rows().into_iter().chain(keys(folder.path())).collect();
        let known = [Transport::Rdma, Transport::Tcp].into_iter().flat_map(Url::option_names);
        for name in known.filter(|name| !WITHOUT_TWIN.contains(name)) {
            assert!(rows.iter().any(|row| row.name == name), "{name} has a row");
        }
        let command = Tuning::augment_args(Command::new("test"));
        for argument in command.get_arguments().filter_map(clap::Arg::get_long) {
            assert!(!WITHOUT_TWIN.contains(&argument.replace('-', "").as_str()), "{argument} has a twin");
        }
        for row in rows {
            let arguments: Vec<&str> = row.arguments.iter().map(String::as_str).collect();
            let both = options(row.transport, &row.in_address, &arguments);
            assert_eq!((row.held)(&both), row.given, "{}: the command line goes first", row.name);
            if row.name != "concat" {
                let alone = options(row.transport, &row.in_address, &[]);
                assert_eq!((row.held)(&alone), row.otherwise, "{}: then the address", row.name);
            }
        }
    }
}
