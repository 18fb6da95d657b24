//! Moves data between this process and another one by SEND, RDMA WRITE and RDMA READ, and compares every byte.
//!
//!     rdma_exchange serve ADDRESS:PORT [PROVIDER]
//!     rdma_exchange connect ADDRESS:PORT [PROVIDER]
//!     rdma_exchange rping-serve ADDRESS:PORT PROVIDER COUNT
//!     rdma_exchange rping-connect ADDRESS:PORT PROVIDER COUNT BYTES
//!
//! PROVIDER is `verbs` (the default) or `iwarp`; the two ends may differ. `connect` is the peer of `serve`, and says
//! how fast each kind of transfer was at each size. The other two are one side of what the program `rping` of librdmacm
//! does, and have that as their peer. Each ends by itself, with 1 when something was not as it should be, and says what
//! on its standard error.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "what it finds is its output")]

mod node;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use node::{Failure, Layout, Node};
use ringfab_fabric::rdma::{
    Access, ConnectParameters, Inline, ListenParameters, ProviderChoice, QueuePairId, RnicEvent, Slice, Work,
};
use ringfab_memory::{Buffer, SharedBuffer};
use ringfab_reactor::SocketOptions;

/// The largest transfer.
const BYTES_MAX: usize = 1 << 20;
/// The largest message, without its head.
const MESSAGE_BYTES_MAX: usize = 8192;
/// Transfers outstanding at once.
const WINDOW: usize = 4;
const LAYOUT: Layout = Layout {
    buffer_bytes: BYTES_MAX,
    count: 48,
    depth: 16,
    receive_bytes_max: 64 + MESSAGE_BYTES_MAX as u32,
};

/// A connected end.
struct End {
    node: Node,
    queue_pair: QueuePairId,
}

/// Where memory of the other end is, for one-sided work.
#[derive(Clone, Copy, Default)]
struct Place {
    address: u64,
    key: u32,
}

/// Heads of the messages between `serve` and `connect`: what it is, and for some a byte, a size, or a place.
mod word {
    pub(crate) const HELLO: u8 = b'h';
    pub(crate) const PLACES: u8 = b'p';
    pub(crate) const DATA: u8 = b'd';
    pub(crate) const CHECK: u8 = b'c';
    pub(crate) const GOOD: u8 = b'g';
    pub(crate) const BAD: u8 = b'b';
    pub(crate) const BYE: u8 = b'q';
}

impl End {
    fn connect(address: SocketAddr, provider: ProviderChoice) -> Result<Self, Failure> {
        let mut node = Node::new(1, LAYOUT).map_err(|error| error.to_string())?;
        let attributes = node.attributes(node.domain);
        let (private_data, timeout) = (&b""[..], Duration::from_secs(10));
        let parameters = ConnectParameters {
            address,
            provider,
            attributes,
            private_data,
            timeout,
            socket: SocketOptions::default(),
        };
        let connecting = node.rnic.connect(&mut node.reactor, &parameters);
        let queue_pair = connecting.map_err(|error| error.to_string())?;
        node.until("a connection", |event| matches!(event, RnicEvent::Established { .. }).then_some(()))?;
        Ok(Self { node, queue_pair })
    }

    fn accept(address: SocketAddr, provider: ProviderChoice) -> Result<Self, Failure> {
        let mut node = Node::new(2, LAYOUT).map_err(|error| error.to_string())?;
        let parameters = ListenParameters { provider, ..ListenParameters::new(address) };
        node.listen(&parameters)?;
        println!("listening on {address}");
        let request = node.until("a connection request", |event| match event {
            RnicEvent::ConnectRequest(request) => Some(request),
            _ => None,
        })?;
        let attributes = node.attributes(node.domain);
        let accepted = node.rnic.accept(&mut node.reactor, request, &attributes, b"");
        let queue_pair = accepted.map_err(|error| error.to_string())?;
        node.until("a connection", |event| matches!(event, RnicEvent::Established { .. }).then_some(()))?;
        Ok(Self { node, queue_pair })
    }

    /// Exposes a whole buffer to the peer.
    fn expose(
        &mut self,
        shared_buffer: &SharedBuffer,
        bytes: usize,
        access: Access,
    ) -> Result<Place, Failure> {
        let exposed = self.node.rnic.expose(self.queue_pair, shared_buffer.clone(), 0, bytes as u32, access);
        let exposed = exposed.ok_or("nothing can be exposed")?;
        Ok(Place { address: exposed.address, key: exposed.key })
    }

    fn say(&mut self, head: &[u8], data: Option<Slice>) -> Result<(), Failure> {
        let head = Inline::new(head);
        let work = Work::Send { head, data, invalidate: None, solicited: false };
        self.node.post(self.queue_pair, 0, work)
    }

    /// The next message.
    fn hear(&mut self, what: &str) -> Result<(Vec<u8>, Option<Buffer>), Failure> {
        let heard = self.node.until(what, |event| match event {
            RnicEvent::Received { head, data, .. } => Some((head.as_slice().to_vec(), data)),
            _ => None,
        })?;
        self.node.rnic.post_receive(self.queue_pair, 1);
        Ok(heard)
    }

    fn read(&mut self, from: Place, bytes: usize) -> Result<Buffer, Failure> {
        let Place { address: remote_address, key: remote_key } = from;
        let sink = self.node.filled(bytes, 0);
        let work = Work::Read { sink, length: bytes as u32, remote_key, remote_address };
        self.node.post(self.queue_pair, 1, work)?;
        self.node.until("a read", |event| match event {
            RnicEvent::Read { sink, .. } => Some(sink),
            _ => None,
        })
    }

    fn write(&mut self, to: Place, source: Slice) -> Result<(), Failure> {
        let work = Work::Write { source, remote_key: to.key, remote_address: to.address };
        self.node.post(self.queue_pair, 1, work)
    }

    /// An orderly end, whoever begins it.
    fn leave(&mut self) {
        self.node.rnic.disconnect(&mut self.node.reactor, self.queue_pair);
        // How it ends is of no interest any more.
        let _ended = self.node.until("the end", |_| None::<()>);
    }
}

/// What is at a place of the memory that the serving side lets read.
fn pattern(at: usize) -> u8 {
    (at * 7 + at / 251) as u8
}

// --- Between two of this program ------------------------------------------------------------------------------------

fn serve(address: SocketAddr, provider: ProviderChoice) -> Result<(), Failure> {
    let mut end = End::accept(address, provider)?;
    let readable = {
        let mut buffer = end.node.filled(BYTES_MAX, 0);
        buffer.iter_mut().enumerate().for_each(|(at, byte)| *byte = pattern(at));
        buffer.share()
    };
    let writable = end.node.filled(BYTES_MAX, 0).share();
    loop {
        let (head, data) = end.hear("a message")?;
        match head[0] {
            word::HELLO => {
                let (from, to) = (
                    end.expose(&readable, BYTES_MAX, Access::RemoteRead)?,
                    end.expose(&writable, BYTES_MAX, Access::RemoteWrite)?,
                );
                end.say(&places(from, to), None)?;
            }
            word::DATA | word::CHECK => {
                let (wanted, bytes) = (head[1], u32_at(&head, 4)? as usize);
                let good = match data {
                    Some(data) => bytes <= data.len() && data[..bytes].iter().all(|byte| *byte == wanted),
                    None => writable.with_bytes(0..bytes, |all| all.iter().all(|byte| *byte == wanted)),
                };
                end.say(&[if good { word::GOOD } else { word::BAD }], None)?;
            }
            word::BYE => break,
            other => return Err(format!("message {other} is unknown")),
        }
    }
    end.leave();
    println!("served");
    Ok(())
}

fn connect(address: SocketAddr, provider: ProviderChoice) -> Result<(), Failure> {
    let mut end = End::connect(address, provider)?;
    end.say(&[word::HELLO], None)?;
    let (head, _) = end.hear("the places")?;
    if head.first() != Some(&word::PLACES) {
        return Err("the other side speaks something else".to_owned());
    }
    let from = Place { address: u64_at(&head, 8)?, key: u32_at(&head, 4)? };
    let to = Place { address: u64_at(&head, 24)?, key: u32_at(&head, 20)? };
    for (bytes, count) in [(1, 64), (512, 64), (4096, 64), (65_536, 32), (BYTES_MAX, 8)] {
        rate("WRITE", bytes, count, || writes(&mut end, to, bytes, count))?;
        rate("READ", bytes, count, || reads(&mut end, from, bytes, count))?;
        if bytes <= MESSAGE_BYTES_MAX {
            rate("SEND", bytes, count, || sends(&mut end, bytes, count))?;
        }
    }
    end.say(&[word::BYE], None)?;
    end.leave();
    Ok(())
}

/// Does it, and says how fast it was.
fn rate(
    what: &str,
    bytes: usize,
    count: usize,
    run: impl FnOnce() -> Result<(), Failure>,
) -> Result<(), Failure> {
    let started = Instant::now();
    run().map_err(|error| format!("{what} of {bytes} bytes: {error}"))?;
    let mib = (bytes * count) as f64 / f64::from(1 << 20) / started.elapsed().as_secs_f64();
    println!("{what:<5} {bytes:>8} B x {count:<3} {mib:>9.2} MiB/s");
    Ok(())
}

/// Writes one after the other to the same place, some outstanding at a time; the last one must be there.
fn writes(end: &mut End, to: Place, bytes: usize, count: usize) -> Result<(), Failure> {
    let mut outstanding = 0;
    for number in 0..count {
        if outstanding == WINDOW {
            end.node
                .until("a write", |event| matches!(event, RnicEvent::Sent { id: 1, .. }).then_some(()))?;
            outstanding -= 1;
        }
        let shared_buffer = end.node.filled(bytes, number as u8).share();
        end.write(to, Slice { shared_buffer, offset: 0, length: bytes as u32 })?;
        outstanding += 1;
    }
    end.say(&message(word::CHECK, (count - 1) as u8, bytes), None)?;
    good(end)
}

fn reads(end: &mut End, from: Place, bytes: usize, count: usize) -> Result<(), Failure> {
    for number in 0..count {
        let skip = number * 13 % (BYTES_MAX - bytes + 1);
        let sink = end.read(Place { address: from.address + skip as u64, ..from }, bytes)?;
        if let Some(at) = sink[..bytes].iter().enumerate().position(|(at, byte)| *byte != pattern(skip + at))
        {
            return Err(format!("byte {at} of read {number} is wrong"));
        }
    }
    Ok(())
}

fn sends(end: &mut End, bytes: usize, count: usize) -> Result<(), Failure> {
    for number in 0..count {
        let shared_buffer = end.node.filled(bytes, number as u8).share();
        // The head is as long as a capsule's, so that the data follow it.
        let mut head = [0; 64];
        head[..8].copy_from_slice(&message(word::DATA, number as u8, bytes));
        end.say(&head, Some(Slice { shared_buffer, offset: 0, length: bytes as u32 }))?;
        good(end)?;
    }
    Ok(())
}

fn good(end: &mut End) -> Result<(), Failure> {
    let (head, _) = end.hear("the verdict")?;
    if head.first() == Some(&word::GOOD) { Ok(()) } else { Err("other bytes arrived".to_owned()) }
}

fn message(what: u8, byte: u8, bytes: usize) -> [u8; 8] {
    let [a, b, c, d] = (bytes as u32).to_be_bytes();
    [what, byte, 0, 0, a, b, c, d]
}

fn places(from: Place, to: Place) -> [u8; 40] {
    let mut head = [0; 40];
    head[0] = word::PLACES;
    for (at, Place { address, key }) in [(4, from), (20, to)] {
        head[at..at + 4].copy_from_slice(&key.to_be_bytes());
        head[at + 4..at + 12].copy_from_slice(&address.to_be_bytes());
    }
    head
}

fn u32_at(bytes: &[u8], at: usize) -> Result<u32, Failure> {
    let found = bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
    found.map(u32::from_be_bytes).ok_or_else(|| "a message is too short".to_owned())
}

fn u64_at(bytes: &[u8], at: usize) -> Result<u64, Failure> {
    Ok(u64::from(u32_at(bytes, at)?) << 32 | u64::from(u32_at(bytes, at + 4)?))
}

// --- With rping -----------------------------------------------------------------------------------------------------

/// What rping's sides tell each other: an address, a key and a size, in network order.
fn advert(place: Place, bytes: usize) -> [u8; 16] {
    let mut advert = [0; 16];
    advert[..8].copy_from_slice(&place.address.to_be_bytes());
    advert[8..12].copy_from_slice(&place.key.to_be_bytes());
    advert[12..].copy_from_slice(&(bytes as u32).to_be_bytes());
    advert
}

fn advertised(end: &mut End) -> Result<(Place, usize), Failure> {
    let (head, _) = end.hear("an advert")?;
    let place = Place { address: u64_at(&head, 0)?, key: u32_at(&head, 8)? };
    Ok((place, u32_at(&head, 12)? as usize))
}

/// The serving side: fetches what the client shows, and writes it to where the client wants it.
fn rping_serve(address: SocketAddr, provider: ProviderChoice, count: usize) -> Result<(), Failure> {
    let mut end = End::accept(address, provider)?;
    for _ in 0..count {
        let (from, bytes) = advertised(&mut end)?;
        let fetched = end.read(from, bytes.min(BYTES_MAX))?;
        end.say(&advert(Place::default(), 0), None)?;
        let (to, room) = advertised(&mut end)?;
        end.write(to, Slice { shared_buffer: fetched.share(), offset: 0, length: bytes.min(room) as u32 })?;
        end.say(&advert(Place::default(), 0), None)?;
    }
    // The client hangs up; it alone knows whether what came back is what it sent.
    let _gone = end.hear("no message any more");
    println!("{count} pings served");
    Ok(())
}

/// The asking side: shows a buffer, takes it back elsewhere, and compares.
fn rping_connect(
    address: SocketAddr,
    provider: ProviderChoice,
    count: usize,
    bytes: usize,
) -> Result<(), Failure> {
    let mut end = End::connect(address, provider)?;
    for number in 0..count {
        // The other side returns everything up to the first zero.
        let mut ping = vec![b'A' + (number % 26) as u8; bytes];
        ping[bytes - 1] = 0;
        let mut shown = end.node.filled(bytes, 0);
        shown[..bytes].copy_from_slice(&ping);
        let place = end.expose(&shown.share(), bytes, Access::RemoteRead)?;
        end.say(&advert(place, bytes), None)?;
        end.hear("that it was read")?;
        let taken = end.node.filled(bytes, 0xff).share();
        let place = end.expose(&taken, bytes, Access::RemoteWrite)?;
        end.say(&advert(place, bytes), None)?;
        end.hear("that it was written")?;
        if !taken.with_bytes(0..bytes, |back| back == ping) {
            return Err(format!("ping {number} came back as something else"));
        }
    }
    end.leave();
    println!("{count} pings came back");
    Ok(())
}

fn run(arguments: &[&str]) -> Option<Result<(), Failure>> {
    let address = arguments.get(1)?.parse().ok()?;
    let provider = arguments.get(2).map_or(Some(ProviderChoice::Verbs), |text| text.parse().ok())?;
    let number = |index: usize| arguments.get(index).and_then(|text| text.parse::<usize>().ok());
    Some(match *arguments.first()? {
        "serve" => serve(address, provider),
        "connect" => connect(address, provider),
        "rping-serve" => rping_serve(address, provider, number(3)?),
        "rping-connect" => rping_connect(address, provider, number(3)?, number(4)?.clamp(1, BYTES_MAX)),
        _ => return None,
    })
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&arguments) {
        Some(Ok(())) => ExitCode::SUCCESS,
        Some(Err(why)) => {
            eprintln!("failed: {why}");
            ExitCode::FAILURE
        }
        None => {
            eprintln!(
                "usage: rdma_exchange serve|connect|rping-serve|rping-connect ADDRESS:PORT [PROVIDER [COUNT [BYTES]]]"
            );
            ExitCode::from(2)
        }
    }
}
