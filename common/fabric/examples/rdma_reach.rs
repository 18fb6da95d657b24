//! Tries to reach memory that it may not, through an RDMA device, and says what came of it.
//!
//!     rdma_reach ADDRESS[:PORT] [PROVIDER] [loose]
//!
//! ADDRESS belongs to the device; PROVIDER is `verbs` (the default) or `iwarp`; `loose` says that the device's driver
//! is known not to keep a peer within a window, but within the buffer that it is bound to. Both ends run in this
//! process: a victim that exposes memory, and an attacker that is connected to it. Every attempt must end the
//! attacker's connection and leave the memory as it was, and what is allowed must work. Exits with 1 when an attempt
//! succeeds.
#![allow(clippy::print_stdout, reason = "what it finds is its output")]

mod node;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use node::{Failure, Layout, Node};
use ringfab_fabric::rdma::{
    Access, ConnectParameters, Inline, ListenParameters, ProtectionDomain, ProviderChoice, QueuePairId,
    RemoteBuffer, RnicEvent, Slice, Work,
};
use ringfab_memory::SharedBuffer;
use ringfab_reactor::SocketOptions;

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// What the victim's memory holds.
const UNTOUCHED: u8 = 0x5a;
/// What the attacker writes.
const WRITTEN: u8 = 0xa5;
/// Bytes of the victim's buffer, and the exposed part in its middle.
const BUFFER_BYTES: usize = 16 * 1024;
const OFFSET: u32 = 4096;
const EXPOSED: u32 = 4096;
const LAYOUT: Layout = Layout { buffer_bytes: BUFFER_BYTES, count: 64, depth: 16, receive_bytes_max: 64 };

/// The two ends and the way between them.
struct Pair {
    attacker: Node,
    victim: Node,
    listening: SocketAddr,
    provider: ProviderChoice,
    /// Whether windows have no bounds of their own.
    loose: bool,
}

/// A connection: the attacker's queue pair and the victim's.
type Ends = (QueuePairId, QueuePairId);

impl Pair {
    fn new(address: SocketAddr, provider: ProviderChoice) -> std::io::Result<Self> {
        let (attacker, mut victim) = (Node::new(1, LAYOUT)?, Node::new(2, LAYOUT)?);
        let parameters = ListenParameters { provider, ..ListenParameters::new(address) };
        let (_, listening) = victim.rnic.listen(&mut victim.reactor, &parameters)?;
        Ok(Self { attacker, victim, listening, provider, loose: false })
    }

    /// Turns both loops until `done` finds something.
    fn until<R>(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> Option<R>) -> Result<R, Failure> {
        let started = Instant::now();
        while started.elapsed() < PATIENCE {
            self.attacker.step()?;
            self.victim.step()?;
            if let Some(found) = done(self) {
                return Ok(found);
            }
        }
        Err(format!("never: {what}; {:?} {:?}", self.attacker.events, self.victim.events))
    }

    /// Connects, the victim's end in a domain of its choice.
    fn connect(&mut self, domain: ProtectionDomain) -> Result<Ends, Failure> {
        let attributes = self.attacker.attributes(self.attacker.domain);
        let parameters = ConnectParameters {
            address: self.listening,
            provider: self.provider,
            attributes,
            private_data: b"reach",
            timeout: Duration::from_secs(5),
            socket: SocketOptions::default(),
        };
        let Node { rnic, reactor, .. } = &mut self.attacker;
        let here = rnic.connect(reactor, &parameters).map_err(|error| error.to_string())?;
        let request = self.until("a connection request", |pair| match pair.victim.events.pop_front()? {
            RnicEvent::ConnectRequest(request) => Some(request),
            _ => None,
        })?;
        let attributes = self.victim.attributes(domain);
        let Node { rnic, reactor, .. } = &mut self.victim;
        let there = rnic.accept(reactor, request, &attributes, b"").map_err(|error| error.to_string())?;
        self.until("a connection", |pair| match pair.attacker.events.pop_front()? {
            RnicEvent::Established { queue_pair, .. } if queue_pair == here => Some(()),
            _ => None,
        })?;
        // Over iWARP the accepting side may speak only after it has heard something.
        self.say(here)?;
        self.heard(there)?;
        Ok((here, there))
    }

    fn say(&mut self, here: QueuePairId) -> Result<(), Failure> {
        let head = Inline::new(b"hello");
        self.attacker.post(here, 1, Work::Send { head, data: None, invalidate: None, solicited: false })
    }

    fn heard(&mut self, there: QueuePairId) -> Result<(), Failure> {
        self.until("a message", |pair| match pair.victim.events.pop_front()? {
            RnicEvent::Received { queue_pair, .. } if queue_pair == there => Some(()),
            _ => None,
        })?;
        self.victim.rnic.post_receive(there, 1);
        Ok(())
    }

    /// Exposes the middle of a buffer to the peer of a queue pair, and tells the peer, as a command would.
    fn expose(&mut self, ends: Ends, access: Access) -> Result<(RemoteBuffer, SharedBuffer), Failure> {
        let (here, there) = ends;
        let shared_buffer = self.victim.filled(BUFFER_BYTES, UNTOUCHED).share();
        let exposed = self.victim.rnic.expose(there, shared_buffer.clone(), OFFSET, EXPOSED, access);
        let exposed = exposed.ok_or("nothing can be exposed")?;
        let head = Inline::new(b"take it");
        self.victim.post(there, 1, Work::Send { head, data: None, invalidate: None, solicited: false })?;
        self.until("the word of it", |pair| match pair.attacker.events.pop_front()? {
            RnicEvent::Received { queue_pair, .. } if queue_pair == here => Some(()),
            _ => None,
        })?;
        self.attacker.rnic.post_receive(here, 1);
        Ok((exposed, shared_buffer))
    }

    fn write(&mut self, here: QueuePairId, key: u32, address: u64, length: u32) -> Result<(), Failure> {
        let shared_buffer = self.attacker.filled(length as usize, WRITTEN).share();
        let source = Slice { shared_buffer, offset: 0, length };
        self.attacker.post(here, 1, Work::Write { source, remote_key: key, remote_address: address })
    }

    fn read(&mut self, here: QueuePairId, key: u32, address: u64, length: u32) -> Result<(), Failure> {
        let sink = self.attacker.filled(length as usize, 0);
        self.attacker.post(here, 1, Work::Read { sink, length, remote_key: key, remote_address: address })
    }

    /// Waits for the end of the attacker's connection; what it read meanwhile is a failure.
    fn ends(&mut self, here: QueuePairId) -> Result<String, Failure> {
        let reason =
            self.until("the end of the connection", |pair| match pair.attacker.events.pop_front()? {
                RnicEvent::Disconnected { queue_pair, reason } if queue_pair == here => {
                    Some(Ok(reason.to_string()))
                }
                RnicEvent::Read { .. } => Some(Err("it was read".to_owned())),
                _ => None,
            })??;
        Ok(reason)
    }
}

/// Fails when a byte of the buffer is not what it was.
fn untouched(shared_buffer: &SharedBuffer) -> Result<(), Failure> {
    shared_buffer.with_bytes(0..BUFFER_BYTES, |bytes| {
        match bytes.iter().position(|byte| *byte != UNTOUCHED) {
            Some(at) => Err(format!("byte {at} was written")),
            None => Ok(()),
        }
    })
}

/// What is tried. Each gets a connection of its own.
type Attempt = fn(&mut Pair, Ends) -> Result<String, Failure>;

const ATTEMPTS: [(&str, Attempt); 13] = [
    ("what is allowed: a write and a read of all that is exposed", allowed),
    ("a key that differs in its last bit", |pair, ends| beyond(pair, ends, 1, 0, 16)),
    ("a key of another window", |pair, ends| beyond(pair, ends, 0x100, 0, 16)),
    ("one byte past the end", |pair, ends| bounds(pair, ends, i64::from(EXPOSED) - 15)),
    ("one byte before the start", |pair, ends| bounds(pair, ends, -1)),
    ("past the end of the buffer", |pair, ends| {
        beyond(pair, ends, 0, BUFFER_BYTES as i64 - i64::from(OFFSET) - 15, 16)
    }),
    ("before the start of the buffer", |pair, ends| beyond(pair, ends, 0, -i64::from(OFFSET) - 1, 16)),
    ("a write to what is exposed for reading", write_to_readable),
    ("a read of what is exposed for writing", read_of_writable),
    ("what is exposed to another connection", of_another_connection),
    ("memory of another protection domain", of_another_domain),
    ("after it was invalidated", after_invalidation),
    ("after it was taken back, and after the connection", after_revocation),
];

fn allowed(pair: &mut Pair, ends: Ends) -> Result<String, Failure> {
    let (readable, _) = pair.expose(ends, Access::RemoteRead)?;
    pair.read(ends.0, readable.key, readable.address, EXPOSED)?;
    let sink = pair.until("the read", |pair| match pair.attacker.events.pop_front()? {
        RnicEvent::Read { sink, .. } => Some(sink),
        _ => None,
    })?;
    if sink.iter().any(|byte| *byte != UNTOUCHED) {
        return Err("something else was read".to_owned());
    }
    let (writable, shared_buffer) = pair.expose(ends, Access::RemoteWrite)?;
    pair.write(ends.0, writable.key, writable.address, EXPOSED)?;
    pair.say(ends.0)?;
    pair.heard(ends.1)?;
    shared_buffer.with_bytes(0..BUFFER_BYTES, |bytes| {
        let inside = OFFSET as usize..(OFFSET + EXPOSED) as usize;
        let right =
            |(at, byte): (usize, &u8)| *byte == if inside.contains(&at) { WRITTEN } else { UNTOUCHED };
        if bytes.iter().enumerate().all(right) {
            Ok("it works".to_owned())
        } else {
            Err("it is wrong".to_owned())
        }
    })
}

/// A write across the bounds of what is exposed, within the buffer.
fn bounds(pair: &mut Pair, ends: Ends, offset: i64) -> Result<String, Failure> {
    if !pair.loose {
        return beyond(pair, ends, 0, offset, 16);
    }
    let (exposed, _shared_buffer) = pair.expose(ends, Access::RemoteWrite)?;
    pair.write(ends.0, exposed.key, exposed.address.wrapping_add_signed(offset), 16)?;
    pair.say(ends.0)?;
    pair.heard(ends.1).map(|()| "it is possible, as is known of this driver".to_owned())
}

/// A write with another key or to another place than was exposed.
fn beyond(pair: &mut Pair, ends: Ends, key: u32, offset: i64, length: u32) -> Result<String, Failure> {
    let (exposed, shared_buffer) = pair.expose(ends, Access::RemoteWrite)?;
    pair.write(ends.0, exposed.key ^ key, exposed.address.wrapping_add_signed(offset), length)?;
    let said = pair.ends(ends.0)?;
    untouched(&shared_buffer).map(|()| said)
}

fn write_to_readable(pair: &mut Pair, ends: Ends) -> Result<String, Failure> {
    let (exposed, shared_buffer) = pair.expose(ends, Access::RemoteRead)?;
    pair.write(ends.0, exposed.key, exposed.address, 16)?;
    let said = pair.ends(ends.0)?;
    untouched(&shared_buffer).map(|()| said)
}

fn read_of_writable(pair: &mut Pair, ends: Ends) -> Result<String, Failure> {
    let (exposed, _shared_buffer) = pair.expose(ends, Access::RemoteWrite)?;
    pair.read(ends.0, exposed.key, exposed.address, 16)?;
    pair.ends(ends.0)
}

/// The software RNIC opens memory to a domain, which is one peer; a window is for one queue pair.
fn of_another_connection(pair: &mut Pair, ends: Ends) -> Result<String, Failure> {
    let domain = if pair.provider == ProviderChoice::Verbs {
        pair.victim.domain
    } else {
        pair.victim.rnic.allocate_domain()
    };
    let other = pair.connect(domain)?;
    let (exposed, shared_buffer) = pair.expose(other, Access::RemoteWrite)?;
    pair.write(ends.0, exposed.key, exposed.address, 16)?;
    let said = pair.ends(ends.0)?;
    // The other connection is as it was.
    pair.say(other.0)?;
    pair.heard(other.1)?;
    untouched(&shared_buffer).map(|()| said)
}

fn of_another_domain(pair: &mut Pair, ends: Ends) -> Result<String, Failure> {
    let domain = pair.victim.rnic.allocate_domain();
    let other = pair.connect(domain)?;
    let (exposed, shared_buffer) = pair.expose(other, Access::RemoteWrite)?;
    pair.write(ends.0, exposed.key, exposed.address, 16)?;
    let said = pair.ends(ends.0)?;
    untouched(&shared_buffer).map(|()| said)
}

fn after_invalidation(pair: &mut Pair, ends: Ends) -> Result<String, Failure> {
    let (exposed, shared_buffer) = pair.expose(ends, Access::RemoteWrite)?;
    let head = Inline::new(b"done");
    let invalidate = Some(exposed.key);
    pair.attacker.post(ends.0, 1, Work::Send { head, data: None, invalidate, solicited: false })?;
    pair.heard(ends.1)?;
    pair.write(ends.0, exposed.key, exposed.address, 16)?;
    let said = pair.ends(ends.0)?;
    untouched(&shared_buffer).map(|()| said)
}

fn after_revocation(pair: &mut Pair, ends: Ends) -> Result<String, Failure> {
    let (exposed, shared_buffer) = pair.expose(ends, Access::RemoteWrite)?;
    if pair.victim.rnic.revoke(exposed.region).is_none() {
        return Err("it cannot be taken back".to_owned());
    }
    pair.write(ends.0, exposed.key, exposed.address, 16)?;
    pair.ends(ends.0)?;
    untouched(&shared_buffer)?;
    let before = pair.connect(pair.victim.domain)?;
    let (exposed, shared_buffer) = pair.expose(before, Access::RemoteWrite)?;
    pair.victim.rnic.disconnect(&mut pair.victim.reactor, before.1);
    pair.ends(before.0)?;
    if pair.victim.rnic.revoke(exposed.region).is_none() {
        return Err("it cannot be taken back after the connection".to_owned());
    }
    let again = pair.connect(pair.victim.domain)?;
    pair.write(again.0, exposed.key, exposed.address, 16)?;
    let said = pair.ends(again.0)?;
    untouched(&shared_buffer).map(|()| said)
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_default();
    let address = address.parse().or_else(|_| format!("{address}:0").parse::<SocketAddr>());
    let provider = arguments.next().map_or(Ok(ProviderChoice::Verbs), |text| text.parse());
    let loose = arguments.next().is_some_and(|word| word == "loose");
    let (Ok(address), Ok(provider)) = (address, provider) else {
        println!("usage: rdma_reach ADDRESS[:PORT] [verbs|iwarp] [loose]");
        return ExitCode::from(2);
    };
    let mut failed = 0;
    for (what, attempt) in ATTEMPTS {
        let outcome = Pair::new(address, provider).map_err(|error| error.to_string()).and_then(|mut pair| {
            pair.loose = loose;
            let ends = pair.connect(pair.victim.domain)?;
            attempt(&mut pair, ends)
        });
        match outcome {
            Ok(said) => println!("PASS  {what}: {said}"),
            Err(why) => {
                failed += 1;
                println!("FAIL  {what}: {why}");
            }
        }
    }
    println!("{} of {} as they should be", ATTEMPTS.len() - failed, ATTEMPTS.len());
    ExitCode::from(u8::from(failed > 0))
}
