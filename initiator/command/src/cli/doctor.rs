//! `ringfab doctor`: walks from the name to a first read, and says what to do where that ends.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use ringfab_base::{shell_quoted, shell_word, visible};
use ringfab_initiator::blocking::{Controller, EngineOptions};
use ringfab_initiator::discovery::{DiscoveryLog, discover};
use ringfab_initiator::{Cause, ConnectError, ConnectOptions, HostName, Provider, Step, Transport, Url};
use serde_json::json;

use ringfab_front_ends::advice::advice;
use ringfab_front_ends::context::Context;
use ringfab_front_ends::options::ConnectArgs;
use ringfab_front_ends::output;
use ringfab_process::terminal::{self, Paint, Stream};

/// How long a name, and a TCP connection, are waited for.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Args)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Some step failed, and what was to be said is said.
#[derive(Debug, thiserror::Error)]
#[error("the walk ended at the step \"{0}\"")]
struct Ended(&'static str);

/// Why a step failed, and what to do.
#[derive(Debug)]
struct Failure {
    why: String,
    advice: String,
    /// The step of attaching that fails for the same reason.
    at: Option<Step>,
}

/// Something that was tried.
#[derive(Debug)]
struct Tried {
    name: &'static str,
    /// Whether attaching does without it: it was only looked at.
    is_look: bool,
    time: Duration,
    outcome: Result<String, Failure>,
}

/// What has been tried.
struct Walk<'a> {
    context: &'a Context,
    tried: Vec<Tried>,
    /// What to add for a walk to the end, if this one ends before for want of that.
    next: Option<String>,
}

impl Failure {
    fn new(why: impl fmt::Display, advice: impl Into<String>) -> Self {
        Self { why: why.to_string(), advice: advice.into(), at: None }
    }

    fn at(self, step: Step) -> Self {
        Self { at: Some(step), ..self }
    }
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Self {
        let why = format!("{}: {}", error.step, error.cause);
        let advice = advice(&error).unwrap_or("see the target's log, which names the reason".into());
        Self::new(why, advice).at(error.step)
    }
}

impl Walk<'_> {
    /// Tries a step of attaching. Its value, or the end of the walk.
    fn step<T>(
        &mut self,
        name: &'static str,
        step: impl FnOnce() -> Result<(T, String), Failure>,
    ) -> Result<T> {
        let value = self.attempt(name, false, step)?;
        value.ok_or_else(|| Ended(self.reason()).into())
    }

    /// Looks at something that attaching does not need, or does in its own way: the walk goes on whatever is found.
    fn look<T>(
        &mut self,
        name: &'static str,
        look: impl FnOnce() -> Result<(T, String), Failure>,
    ) -> Result<Option<T>> {
        self.attempt(name, true, look)
    }

    fn attempt<T>(
        &mut self,
        name: &'static str,
        is_look: bool,
        step: impl FnOnce() -> Result<(T, String), Failure>,
    ) -> Result<Option<T>> {
        let begun = Instant::now();
        let (value, outcome) = match step() {
            Ok((value, text)) => (Some(value), Ok(text)),
            Err(failure) => (None, Err(failure)),
        };
        self.context.interrupt.check()?;
        self.tried.push(Tried { name, is_look, time: begun.elapsed(), outcome });
        Ok(value)
    }

    /// What to name as the reason: the first look that found why attaching fails, or else the step that failed.
    fn reason(&self) -> &'static str {
        let mut failed = self.tried.iter().filter(|one| is_failure(&self.tried, one));
        failed.next().map_or("", |one| one.name)
    }
}

/// Whether something that was tried is a reason why attaching fails: a step that failed, or a look that found the same.
fn is_failure(all: &[Tried], one: &Tried) -> bool {
    let Err(failure) = &one.outcome else { return false };
    let step = all.iter().find(|one| !one.is_look && one.outcome.is_err());
    let at = step.and_then(|step| step.outcome.as_ref().err()?.at);
    !one.is_look || at.is_some() && failure.at == at
}

/// Walks a connection step by step.
pub(crate) fn run(args: &DoctorArgs, context: &Context) -> Result<()> {
    let mut options = args.connect.connect_options()?;
    options.reconnect.controller_loss_timeout = Some(Duration::ZERO);
    let engine = args.connect.engine_options(context.interrupt.token());
    let mut walk = Walk { context, tried: Vec::new(), next: None };
    let outcome = all_steps(&mut walk, &options, &engine);
    context.interrupt.check()?;
    output::either(
        context.json,
        || document(&walk.tried, walk.next.as_deref()),
        || lines(&walk.tried, walk.next.as_deref()),
    )?;
    outcome
}

fn all_steps(walk: &mut Walk<'_>, options: &ConnectOptions, engine: &EngineOptions) -> Result<()> {
    let url = &options.url;
    let is_worth_asking = is_worth_asking(walk, url)?;
    if url.is_discovery() {
        let log = walk.step("who listens", || listener(options, engine))?;
        walk.step("subsystems", || subsystems(&log, options))?;
        walk.next = Some(with_subsystem(&log, url));
        return Ok(());
    }
    // Attaching a subsystem by its address asks no discovery controller.
    if is_worth_asking && let Some(log) = walk.look("who listens", || listener(options, engine))? {
        walk.look("subsystems", || subsystems(&log, options))?;
    }
    let controller = walk.step("Connect", || connect(options, engine))?;
    walk.step("queues", || Ok(((), queues(&controller, options))))?;
    let namespaces = walk.step("namespaces", || namespaces(&controller, url))?;
    first_reads(walk, &controller, &namespaces)?;
    walk.look("end", || {
        controller.detach().map(|()| ((), "detached in order".to_owned())).map_err(Failure::from)
    })?;
    Ok(())
}

/// The command that walks on, for an address without a subsystem.
fn with_subsystem(log: &DiscoveryLog, url: &Url) -> String {
    let first = log.entries.iter().find(|entry| entry.is_subsystem());
    let url = Url { subsystem: first.map(|entry| entry.subsystem.clone()), ..url.clone() };
    format!("ringfab doctor {}", shell_quoted(&url.to_string()))
}

/// Looks at the way to the target. Whether somebody may be there to ask.
fn is_worth_asking(walk: &mut Walk<'_>, url: &Url) -> Result<bool> {
    let Some(addresses) = walk.look("name", || resolve(url))? else { return Ok(false) };
    if walk.look("route", || first_of(&addresses, route))?.is_none() {
        return Ok(false);
    }
    // RDMA devices have ports of their own, which the kernel's TCP does not know.
    let has_port = url.transport == Transport::Tcp || url.rdma.provider == Provider::Iwarp;
    let listens =
        url.rdma.provider == Provider::Verbs || walk.look("port", || first_of(&addresses, port))?.is_some();
    Ok(listens || !has_port)
}

/// Reads of all namespaces, or of the one that is named. Which of several is used is not known, so one is enough.
fn first_reads(walk: &mut Walk<'_>, controller: &Controller, namespaces: &[u32]) -> Result<()> {
    let (last, others) = namespaces.split_last().expect("without one the walk has ended");
    let mut was_read = false;
    for nsid in others {
        was_read |= walk.look("first read", || first_read(controller, *nsid))?.is_some();
    }
    if was_read {
        walk.look("first read", || first_read(controller, *last))?;
        return Ok(());
    }
    walk.step("first read", || first_read(controller, *last))
}

/// Attaching tries one address after the other, too. What is said of the last one, if none will do.
fn first_of(
    addresses: &[SocketAddr],
    look: impl Fn(SocketAddr) -> Result<((), String), Failure>,
) -> Result<((), String), Failure> {
    let mut last = Err(Failure::new("the name has no address", ""));
    for address in addresses {
        last = look(*address);
        if last.is_ok() {
            break;
        }
    }
    last
}

fn resolve(url: &Url) -> Result<(Vec<SocketAddr>, String), Failure> {
    look_up(url).map_err(|failure| failure.at(Step::Resolve))
}

fn look_up(url: &Url) -> Result<(Vec<SocketAddr>, String), Failure> {
    let name = match &url.host {
        HostName::Address(address) => {
            let found = address.socket_address(url.port);
            let found = found.map_err(|error| Failure::new(error, "`ip address` lists the interfaces"))?;
            return Ok((vec![found], format!("{} is an address", url.host)));
        }
        HostName::Name(name) => name.clone(),
    };
    // The system's resolver cannot be interrupted; the thread may outlive the question.
    let (sender, answers) = channel();
    let (asked, port) = (name.clone(), url.port);
    std::thread::spawn(move || {
        let found = (asked.as_str(), port).to_socket_addrs();
        // Nobody may be waiting any more.
        let _late = sender.send(found.map(Iterator::collect::<Vec<_>>));
    });
    let advice = "check the host name (`getent hosts NAME`), or give the address as a number";
    let found = answers.recv_timeout(PATIENCE).map_err(|_| Failure::new("no answer within 5 s", advice))?;
    let found = found.map_err(|error| Failure::new(format!("{name} has no address: {error}"), advice))?;
    if found.is_empty() {
        return Err(Failure::new(format!("{name} has no address"), advice));
    }
    let all: Vec<String> = found.iter().map(|address| address.ip().to_string()).collect();
    let text = format!("{name} is {}", all.join(", "));
    Ok((found, text))
}

/// Connecting a datagram socket sends nothing and looks at routes.
fn route(address: SocketAddr) -> Result<((), String), Failure> {
    let from = || -> io::Result<SocketAddr> {
        let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = UdpSocket::bind(any)?;
        socket.connect(address)?;
        socket.local_addr()
    };
    let advice = "see `ip route get`: a network is missing or an interface is down";
    let from = from().map_err(|error| {
        Failure::new(format!("no route to {}: {error}", address.ip()), advice).at(Step::Connect)
    })?;
    Ok(((), format!("from {} to {}", from.ip(), address.ip())))
}

fn port(address: SocketAddr) -> Result<((), String), Failure> {
    let advice = |error: &io::Error| match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            "start the target there, or correct the port: `ringfab-target status` shows its listeners"
        }
        io::ErrorKind::TimedOut => "a firewall may be in between, or the machine is down",
        _ => "see whether the machine is up and reachable",
    };
    let connected = TcpStream::connect_timeout(&address, PATIENCE);
    connected.map_err(|error| {
        Failure::new(format!("port {}: {error}", address.port()), advice(&error)).at(Step::Connect)
    })?;
    Ok(((), format!("something listens at {address}")))
}

/// The discovery controller behind the port, asked in the transport's first words.
fn listener(options: &ConnectOptions, engine: &EngineOptions) -> Result<(DiscoveryLog, String), Failure> {
    let words = match options.url.transport {
        Transport::Rdma => "NVMe/RDMA (MPA, or a device's connection manager)",
        // With concatenation, a discovery controller is asked in clear text unless it demands more.
        Transport::Tcp if options.uses_tls() && !options.concatenates() => "NVMe/TCP over TLS (TLS, ICReq)",
        Transport::Tcp => "NVMe/TCP (ICReq)",
    };
    let error = match discover_over(options, engine, options.url.transport) {
        Ok(log) => return Ok((log, format!("a target, by {words}"))),
        Err(error) => error,
    };
    if !matches!(error.step, Step::Mpa | Step::Initialize | Step::Connect)
        || matches!(error.cause, Cause::Cancelled)
    {
        return Err(error.into());
    }
    let (other, scheme) = match options.url.transport {
        Transport::Rdma => (Transport::Tcp, "nvme+tcp://"),
        Transport::Tcp => (Transport::Rdma, "nvme+rdma://"),
    };
    if discover_over(options, engine, other).is_ok() {
        let why = format!("it does not speak {words}, but {scheme}");
        return Err(Failure::new(why, format!("write {scheme} in the address")).at(error.step));
    }
    Err(error.into())
}

fn discover_over(
    options: &ConnectOptions,
    engine: &EngineOptions,
    transport: Transport,
) -> Result<DiscoveryLog, ConnectError> {
    let mut options = options.clone();
    options.url = options.url.with_transport(transport);
    (options.url.subsystem, options.url.namespace) = (None, None);
    discover(options, engine.clone())
}

fn subsystems(log: &DiscoveryLog, options: &ConnectOptions) -> Result<((), String), Failure> {
    let entries = log.entries.iter().filter(|entry| entry.is_subsystem());
    let mut names: Vec<&str> = entries.map(|entry| entry.subsystem.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let (host, wanted) = (&options.host.nqn, options.url.subsystem_nqn());
    let allow = match options.url.is_discovery() {
        true => format!(
            "allow this host there, in all or in one of its subsystems: `ringfab-target host allow {}`",
            shell_word(host)
        ),
        false => format!(
            "allow this host there: `ringfab-target host allow {} --subsystem {}`",
            shell_word(host),
            shell_word(wanted)
        ),
    };
    if names.is_empty() {
        return Err(Failure::new(format!("the host {host} may use none"), allow).at(Step::FabricsConnect));
    }
    let shown = format!("the host {host} may use {}", names.join(", "));
    if options.url.is_discovery() || names.contains(&wanted) {
        return Ok(((), shown));
    }
    let why = format!("{wanted} is not among them: {shown}");
    let advice = format!("correct the subsystem in the address, or {allow}");
    Err(Failure::new(why, advice).at(Step::FabricsConnect))
}

fn connect(options: &ConnectOptions, engine: &EngineOptions) -> Result<(Controller, String), Failure> {
    // Whether the namespace is there is a step of its own.
    let mut options = options.clone();
    options.url.namespace = None;
    let tls = if options.uses_tls() { ", over TLS" } else { "" };
    let controller = Controller::connect(options, engine.clone()).map_err(Failure::from)?;
    let info = controller.info();
    let (id, subsystem, model) = (info.cntlid, &info.subsystem, &info.model);
    let text = format!("controller {id} of {subsystem}, {model} {}{tls}", info.firmware);
    Ok((controller, text))
}

fn queues(controller: &Controller, options: &ConnectOptions) -> String {
    let (info, wanted) = (controller.info(), options.url.queues.unwrap_or(options.queues));
    let entries = info.queue_size;
    let mut text = format!("{} of {wanted} I/O queues with {entries} entries", info.queues);
    // A controller without a queue is none, which Connect said. With fewer than asked for it works.
    if info.queues < wanted {
        text.push_str("; the target gives no more: see io_queues_max of its listener");
    }
    text
}

fn namespaces(controller: &Controller, url: &Url) -> Result<(Vec<u32>, String), Failure> {
    let all: Vec<u32> = controller.namespaces().iter().map(|one| one.nsid).collect();
    let names: Vec<String> = all.iter().map(u32::to_string).collect();
    let names = names.join(", ");
    match url.namespace {
        Some(nsid) if !all.contains(&nsid) => Err(Failure::new(
            format!("there is no namespace {nsid}; there are: {names}"),
            "see `ringfab-target namespace list`: it may be missing, or not ready",
        )),
        None if all.is_empty() => Err(Failure::new(
            "there is none",
            "add one: `ringfab-target namespace add PATH`, or see why none is ready: `ringfab-target status`",
        )),
        Some(nsid) => Ok((vec![nsid], format!("{nsid} is there, of {names}"))),
        None => Ok((all, format!("there are {names}"))),
    }
}

fn first_read(controller: &Controller, nsid: u32) -> Result<((), String), Failure> {
    let advice = "see `ringfab-target status` and the target's log: its disk fails or hangs";
    let namespace =
        controller.namespace(nsid).ok_or_else(|| Failure::new("the namespace has gone", advice))?;
    if namespace.blocks == 0 {
        return Err(Failure::new(format!("namespace {nsid} is not ready"), advice));
    }
    let mut block = vec![0; namespace.block_bytes as usize];
    let read = controller.read_at(nsid, 0, &mut block);
    read.map_err(|error| Failure::new(format!("block 0 of namespace {nsid}: {error}"), advice))?;
    Ok(((), format!("block 0 of namespace {nsid}, {} bytes", block.len())))
}

fn document(tried: &[Tried], next: Option<&str>) -> serde_json::Value {
    let steps = tried.iter().map(|one| {
        let time_us = u64::try_from(one.time.as_micros()).unwrap_or(u64::MAX);
        let (found, error, advice) = match &one.outcome {
            Ok(found) => (Some(found), None, None),
            Err(Failure { why, advice, .. }) => (None, Some(why), Some(advice)),
        };
        json!({
            "step": one.name, "look": one.is_look, "time_us": time_us, "found": found, "error": error, "advice": advice,
        })
    });
    json!({ "steps": steps.collect::<Vec<_>>(), "next": next })
}

/// A line for each step, and at the end what to do.
fn lines(tried: &[Tried], next: Option<&str>) -> String {
    let mut text = String::new();
    for one in tried {
        let (paint, sign, found) = match &one.outcome {
            Ok(found) => (Paint::Good, "ok    ", found),
            Err(failure) if is_failure(tried, one) => (Paint::Bad, "FAILED", &failure.why),
            Err(failure) => (Paint::Care, "note  ", &failure.why),
        };
        let sign = terminal::painted(Stream::Out, paint, sign);
        let millis = one.time.as_secs_f64() * 1e3;
        text.push_str(&format!("{sign}  {:<11}  {millis:>9.3} ms  {}\n", one.name, visible(found)));
    }
    text + &conclusion(tried, next)
}

/// What to do, or that nothing is to be done.
fn conclusion(tried: &[Tried], next: Option<&str>) -> String {
    let failed = tried.iter().find(|one| is_failure(tried, one));
    if let Some(failure) = failed.and_then(|one| one.outcome.as_ref().err()) {
        return format!("What to do: {}.", visible(&failure.advice));
    }
    if let Some(next) = next {
        return format!(
            "Discovery works. Nothing was attached or read: the address names no subsystem. `{}` tries all of it.",
            visible(next)
        );
    }
    let notes: Vec<&str> = tried.iter().filter(|one| one.outcome.is_err()).map(|one| one.name).collect();
    match notes.as_slice() {
        [] => "All is well.".to_owned(),
        notes => format!("Attaching works. It does without: {}.", notes.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_to_do_is_told_apart_from_why() {
        let cause = Cause::Fabric("Connection refused".to_owned());
        let failure = Failure::from(ConnectError::new("there".to_owned(), Step::Connect, cause));
        assert_eq!(failure.why, "connect: Connection refused");
        assert_eq!(failure.advice, "check that a target listens there and that no firewall is in between");
    }

    #[test]
    fn each_step_is_a_line_and_the_end_says_what_to_do() {
        let time = Duration::from_micros(1500);
        let tried = |name, is_look, outcome| Tried { name, is_look, time, outcome };
        let ok = || tried("name", true, Ok("it is an address".to_owned()));
        let port = || tried("port", true, Err(Failure::new("refused", "start it").at(Step::Connect)));
        let connect = |step| tried("Connect", false, Err(Failure::new("no way", "go on").at(step)));
        assert_eq!(
            lines(&[ok(), port(), connect(Step::Connect)], None),
            "ok      name             1.500 ms  it is an address\nFAILED  port             1.500 ms  refused\n\
             FAILED  Connect          1.500 ms  no way\nWhat to do: start it."
        );
        let other = lines(&[port(), connect(Step::Authenticate)], None);
        assert!(other.starts_with("note    port ") && other.ends_with("What to do: go on."), "{other}");
        let works = lines(&[ok(), port(), tried("Connect", false, Ok(String::new()))], None);
        assert!(works.contains("note    port ") && works.ends_with("It does without: port."), "{works}");
        assert!(lines(&[], None).ends_with("All is well."));
        let discovery = lines(&[ok()], Some("ringfab doctor URL/NQN"));
        assert!(
            !discovery.contains("All is well") && discovery.contains("`ringfab doctor URL/NQN`"),
            "{discovery}"
        );
    }
}
