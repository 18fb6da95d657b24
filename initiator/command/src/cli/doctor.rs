//! `ringfab doctor`: walks from the name to a first read, and says what to do where that ends.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use ringfab_initiator::blocking::{Controller, EngineOptions};
use ringfab_initiator::discovery::{DiscoveryLog, discover};
use ringfab_initiator::{Cause, ConnectError, ConnectOptions, HostName, Provider, Step, Transport, Url};
use serde_json::json;

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
}

/// A step that was tried.
#[derive(Debug)]
struct Tried {
    name: &'static str,
    time: Duration,
    outcome: Result<String, Failure>,
}

/// What has been tried.
struct Walk<'a> {
    context: &'a Context,
    tried: Vec<Tried>,
}

impl Failure {
    fn new(why: impl fmt::Display, advice: impl Into<String>) -> Self {
        Self { why: why.to_string(), advice: advice.into() }
    }
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Self {
        let why = format!("{}: {}", error.step, error.cause);
        Self::new(why, error.advice().unwrap_or("see the target's log, which names the reason"))
    }
}

impl Walk<'_> {
    /// Tries a step. Its value, or the end of the walk.
    fn step<T>(
        &mut self,
        name: &'static str,
        step: impl FnOnce() -> Result<(T, String), Failure>,
    ) -> Result<T> {
        let begun = Instant::now();
        let (value, outcome) = match step() {
            Ok((value, text)) => (Some(value), Ok(text)),
            Err(failure) => (None, Err(failure)),
        };
        self.context.interrupt.check()?;
        self.tried.push(Tried { name, time: begun.elapsed(), outcome });
        value.ok_or_else(|| Ended(name).into())
    }
}

/// Walks a connection step by step.
pub(crate) fn run(args: &DoctorArgs, context: &Context) -> Result<()> {
    let mut options = args.connect.connect_options()?;
    options.reconnect.controller_loss_timeout = Some(Duration::ZERO);
    let engine = args.connect.engine_options(context.interrupt.token());
    let mut walk = Walk { context, tried: Vec::new() };
    let outcome = all_steps(&mut walk, &options, &engine);
    context.interrupt.check()?;
    output::either(context.json, || document(&walk.tried), || lines(&walk.tried))?;
    outcome
}

fn all_steps(walk: &mut Walk<'_>, options: &ConnectOptions, engine: &EngineOptions) -> Result<()> {
    let url = &options.url;
    let address = walk.step("name", || resolve(url))?;
    walk.step("route", || route(address))?;
    // RDMA devices have ports of their own, which the kernel's TCP does not know.
    if !(url.transport == Transport::Rdma && url.provider == Provider::Verbs) {
        walk.step("port", || port(address))?;
    }
    let log = walk.step("who listens", || listener(options, engine))?;
    walk.step("subsystems", || subsystems(&log, options))?;
    if url.is_discovery() {
        return Ok(());
    }
    let controller = walk.step("Connect", || connect(options, engine))?;
    walk.step("queues", || Ok(((), queues(&controller, options))))?;
    let namespaces = walk.step("namespaces", || namespaces(&controller, url))?;
    for nsid in namespaces {
        walk.step("first read", || first_read(&controller, nsid))?;
    }
    walk.step("end", || {
        controller.detach().map(|()| ((), "detached in order".to_owned())).map_err(Failure::from)
    })
}

fn resolve(url: &Url) -> Result<(SocketAddr, String), Failure> {
    let name = match &url.host {
        HostName::Address(address) => {
            let found = address.socket_address(url.port);
            let found = found.map_err(|error| Failure::new(error, "`ip address` lists the interfaces"))?;
            return Ok((found, format!("{} is an address", url.host)));
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
    let first = *found.first().ok_or_else(|| Failure::new(format!("{name} has no address"), advice))?;
    let all: Vec<String> = found.iter().map(|address| address.ip().to_string()).collect();
    Ok((first, format!("{name} is {}", all.join(", "))))
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
    let from =
        from().map_err(|error| Failure::new(format!("no route to {}: {error}", address.ip()), advice))?;
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
    connected.map_err(|error| Failure::new(format!("port {}: {error}", address.port()), advice(&error)))?;
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
        return Err(Failure::new(why, format!("write {scheme} in the address")));
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
    let allow = format!("allow this host there: `ringfab-target host allow {host} --subsystem NQN`");
    if names.is_empty() {
        return Err(Failure::new(format!("the host {host} may use none"), allow));
    }
    let shown = format!("the host {host} may use {}", names.join(", "));
    if options.url.is_discovery() || names.contains(&wanted) {
        return Ok(((), shown));
    }
    let why = format!("{wanted} is not among them: {shown}");
    Err(Failure::new(why, format!("correct the subsystem in the address, or {allow}")))
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

fn document(tried: &[Tried]) -> serde_json::Value {
    let steps = tried.iter().map(|one| {
        let time_us = u64::try_from(one.time.as_micros()).unwrap_or(u64::MAX);
        let (found, error, advice) = match &one.outcome {
            Ok(found) => (Some(found), None, None),
            Err(Failure { why, advice }) => (None, Some(why), Some(advice)),
        };
        json!({ "step": one.name, "time_us": time_us, "found": found, "error": error, "advice": advice })
    });
    json!({ "steps": steps.collect::<Vec<_>>() })
}

/// A line for each step, and at the end what to do.
fn lines(tried: &[Tried]) -> String {
    let mut text = String::new();
    for Tried { name, time, outcome } in tried {
        let (paint, sign, found) = match outcome {
            Ok(found) => (Paint::Good, "ok    ", found),
            Err(failure) => (Paint::Bad, "FAILED", &failure.why),
        };
        let sign = terminal::painted(Stream::Out, paint, sign);
        let millis = time.as_secs_f64() * 1e3;
        text.push_str(&format!("{sign}  {name:<11}  {millis:>9.3} ms  {found}\n"));
    }
    let failure = tried.iter().find_map(|one| one.outcome.as_ref().err());
    text + &failure
        .map_or_else(|| "All is well.".to_owned(), |failure| format!("What to do: {}.", failure.advice))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_to_do_is_told_apart_from_why() {
        let cause = Cause::Fabric("Connection refused".to_owned());
        let failure = Failure::from(ConnectError { peer: "there".to_owned(), step: Step::Connect, cause });
        assert_eq!(failure.why, "connect: Connection refused");
        assert_eq!(failure.advice, "check that a target listens there and that no firewall is in between");
    }

    #[test]
    fn each_step_is_a_line_and_the_end_says_what_to_do() {
        let time = Duration::from_micros(1500);
        let ok = Tried { name: "name", time, outcome: Ok("it is an address".to_owned()) };
        let failed = Tried { name: "port", time, outcome: Err(Failure::new("refused", "start it")) };
        assert_eq!(
            lines(&[ok, failed]),
            "ok      name             1.500 ms  it is an address\nFAILED  port             1.500 ms  refused\n\
             What to do: start it."
        );
        assert!(lines(&[]).ends_with("All is well."));
    }
}
