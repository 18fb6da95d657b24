//! Thousands of commands in flight from one thread, with the engine: it says what has ended, and nothing waits for one
//! command. Data lies in the engine's buffers, so that nothing is copied on the way to the transport.
//!
//! `cargo run -p ringfab-initiator --example many_commands -- nvme+tcp://192.0.2.1/nqn.2026-01.org.example:disk`

use std::error::Error;
use std::time::Duration;

use ringfab_initiator::{
    Buffer, ClassLayout, ConnectOptions, ControllerId, Host, HostConfig, HostEvent, HostIdentity,
    IoOperation, IoRequest, Reactor, ReactorConfig, RnicConfig, Url, Wait,
};

/// Commands in flight.
const IN_FLIGHT: usize = 4000;
/// Commands altogether.
const COMMANDS: u64 = 20_000;
/// Bytes that each reads, a multiple of the disk's blocks.
const BYTES: usize = 4096;

fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).ok_or("usage: many_commands URL")?;
    let reads = run(&url)?;
    assert_eq!(reads.commands, COMMANDS);
    Ok(())
}

/// What was read.
#[derive(Debug, Default)]
pub(crate) struct Reads {
    /// Commands that have ended.
    pub(crate) commands: u64,
    /// Bytes of all.
    pub(crate) bytes: u64,
    /// The most commands that the controller had at once.
    pub(crate) in_flight_max: usize,
}

/// Reads the first namespace from its start to its end, over and over.
pub(crate) fn run(url: &str) -> Result<Reads, Box<dyn Error>> {
    let mut host = new_host()?;
    let url: Url = url.parse()?;
    let identity = HostIdentity::for_url(&url)?;
    let mut options = ConnectOptions::new(url, identity);
    // What the queues take is sent at once; only what exceeds it would wait here.
    (options.queues, options.depth) = (8, 512);
    let controller = host.attach(options);
    match next_event(&mut host)? {
        HostEvent::Ready { .. } => {}
        HostEvent::Failed { error, .. } => return Err(error.into()),
        other => return Err(format!("unexpected: {other:?}").into()),
    }
    let reads = read(&mut host, controller)?;
    host.detach(controller);
    match next_event(&mut host)? {
        HostEvent::Detached { trouble: None, .. } => Ok(reads),
        HostEvent::Detached { trouble: Some(error), .. } => Err(error.into()),
        other => Err(format!("unexpected: {other:?}").into()),
    }
}

/// An engine on this thread: a ring, a transport, and all the memory that a peer ever reaches.
fn new_host() -> Result<Host, Box<dyn Error>> {
    let reactor = ReactorConfig { entries: 256, spin: Duration::ZERO, descriptors_max: 256 };
    // A program takes these seeds from the system's random numbers: keys of registered memory come from the first.
    let seed = std::array::from_fn(|index| index as u8);
    let pool = vec![ClassLayout { buffer_bytes: BYTES, count: IN_FLIGHT + 64 }];
    let config = HostConfig::new(pool, RnicConfig::new(0, seed), 1);
    Ok(Host::new(Reactor::new(&reactor)?, config)?)
}

/// Keeps [`IN_FLIGHT`] commands in flight until all have ended.
fn read(host: &mut Host, controller: ControllerId) -> Result<Reads, Box<dyn Error>> {
    let namespace = host.namespaces(controller).first().ok_or("the controller has no namespace")?;
    let (nsid, nlb) = (namespace.nsid, BYTES as u32 / namespace.block_bytes);
    let places = namespace.bytes() / BYTES as u64;
    let mut free: Vec<Buffer> = (0..IN_FLIGHT).filter_map(|_| host.pool().take(BYTES)).collect();
    let (mut reads, mut submitted) = (Reads::default(), 0);
    while reads.commands < COMMANDS {
        while submitted < COMMANDS {
            let Some(buffer) = free.pop() else { break };
            let operation = IoOperation::Read { lba: submitted % places * u64::from(nlb), nlb, buffer };
            // The tag comes back with the end of the command, in whatever order they end.
            let request = IoRequest { nsid, tag: submitted, operation };
            host.submit(controller, request).map_err(|refused| refused.reason)?;
            submitted += 1;
        }
        reads.in_flight_max = reads.in_flight_max.max(host.outstanding(controller));
        match next_event(host)? {
            HostEvent::IoDone(done) => {
                done.result?;
                let buffer = done.buffer.ok_or("a read gives its buffer back")?;
                reads.bytes += buffer.len() as u64;
                reads.commands += 1;
                free.push(buffer);
            }
            HostEvent::Failed { error, .. } => return Err(error.into()),
            // A lost connection is made again, and what was in flight is sent again.
            _ => {}
        }
    }
    Ok(reads)
}

/// The only place that waits.
fn next_event(host: &mut Host) -> Result<HostEvent, Box<dyn Error>> {
    loop {
        if let Some(event) = host.next_event() {
            return Ok(event);
        }
        host.turn(Wait::Event)?;
    }
}
