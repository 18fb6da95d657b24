//! What an operation costs: two threads on a core each, where one sends a 64-byte capsule and the other answers with an
//! RDMA WRITE and a 16-byte SEND, as a read of a disk does. Run it with `--release`; arguments: bytes written
//! back (4096), seconds for each depth (2), and `nocrc` to switch checksums off.
#![allow(clippy::print_stdout, reason = "it prints its figures")]

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use ringfab_fabric::rdma::{
    Access, ConnectParameters, Inline, ListenParameters, ProviderChoice, QueuePairAttributes, QueuePairId,
    RemoteBuffer, Rnic, RnicConfig, RnicEvent, SendRequest, Slice, Work,
};
use ringfab_memory::{ClassLayout, Pool, SharedBuffer};
use ringfab_reactor::{Reactor, ReactorConfig, SocketOptions, Wait, pin_current_thread};

const DEPTHS: [usize; 3] = [1, 16, 128];
const DEPTH_MAX: usize = 128;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize, default: usize| {
        arguments.get(index).and_then(|argument| argument.parse().ok()).unwrap_or(default)
    };
    let (bytes, seconds) = (number(0, 4096), number(1, 2));
    let crc = !arguments.iter().any(|argument| argument == "nocrc");
    let (sender, address) = channel();
    let (quit, quitting) = channel();
    let serving = std::thread::spawn(move || serve(&sender, &quitting, bytes, crc));
    let address = address.recv().expect("the server's address");
    println!("SEND 64 B -> WRITE {bytes} B + SEND 16 B, CRC {}", if crc { "on" } else { "off" });
    std::thread::spawn(move || measure(address, bytes, Duration::from_secs(seconds as u64), crc))
        .join()
        .expect("the client");
    drop(quit);
    serving.join().expect("the server");
}

/// Loopback needs no pacing, which the system's default congestion control may do.
fn socket_options() -> SocketOptions {
    SocketOptions { congestion: Some("cubic".to_owned()), ..SocketOptions::default() }
}

struct Core {
    reactor: Reactor,
    rnic: Rnic,
    pool: Pool,
}

impl Core {
    fn new(core: usize, bytes: usize, crc: bool) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        pin_current_thread(core % cores).expect("a core");
        let config = ReactorConfig { entries: 256, spin: Duration::from_micros(100), descriptors_max: 64 };
        let rnic = RnicConfig { crc, ..RnicConfig::new(1, [core as u8; 32]) };
        let layout = [ClassLayout { buffer_bytes: bytes.max(8192), count: DEPTH_MAX + 8 }];
        Self {
            reactor: Reactor::new(&config).expect("a ring"),
            rnic: Rnic::new(rnic).expect("an RNIC"),
            pool: Pool::new(&layout).expect("a pool"),
        }
    }

    fn attributes(&mut self) -> QueuePairAttributes {
        QueuePairAttributes {
            domain: self.rnic.allocate_domain(),
            send_depth: 2 * DEPTH_MAX as u32,
            receive_depth: DEPTH_MAX as u32,
            receive_bytes_max: 64 + 8192,
            pool: self.pool.clone(),
            initiator_depth: 16,
            responder_resources: 16,
        }
    }

    fn turn(&mut self) {
        self.rnic.turn(&mut self.reactor, Wait::Event).expect("a turn");
    }

    fn post(&mut self, queue_pair: QueuePairId, work: Work) {
        self.rnic.post_send(queue_pair, SendRequest { id: 0, work, signaled: false }).expect("posted");
    }
}

fn send(head: &[u8]) -> Work {
    Work::Send { head: Inline::new(head), data: None, invalidate: None, solicited: false }
}

fn serve(address: &Sender<SocketAddr>, quitting: &Receiver<()>, bytes: usize, crc: bool) {
    let mut core = Core::new(1, bytes, crc);
    let source = core.pool.take(bytes).expect("a buffer").share();
    let socket = socket_options();
    let parameters = ListenParameters { crc, socket, ..ListenParameters::new(([127, 0, 0, 1], 0).into()) };
    let (_, bound) = core.rnic.listen(&mut core.reactor, &parameters).expect("listening");
    address.send(bound).expect("the client waits");
    let waker = core.reactor.waker();
    while !matches!(quitting.try_recv(), Err(std::sync::mpsc::TryRecvError::Disconnected)) {
        core.turn();
        let mut gone = false;
        while let Some(event) = core.rnic.next_event() {
            match event {
                RnicEvent::ConnectRequest(request) => {
                    let attributes = core.attributes();
                    let accepted = core.rnic.accept(&mut core.reactor, request, &attributes, b"");
                    accepted.expect("accepted");
                }
                RnicEvent::Received { queue_pair, head, .. } => {
                    core.rnic.post_receive(queue_pair, 1);
                    answer(&mut core, queue_pair, head.as_slice(), &source);
                }
                RnicEvent::Disconnected { .. } => gone = true,
                _ => {}
            }
        }
        if gone {
            return waker.wake();
        }
    }
}

/// Writes to where the capsule says, then answers with its number.
fn answer(core: &mut Core, queue_pair: QueuePairId, capsule: &[u8], source: &SharedBuffer) {
    let word = |at: usize| u32::from_le_bytes(capsule[at..at + 4].try_into().expect("four bytes"));
    let address = u64::from_le_bytes(capsule[8..16].try_into().expect("eight bytes"));
    let source = Slice { shared_buffer: source.clone(), offset: 0, length: source.len() as u32 };
    core.post(queue_pair, Work::Write { source, remote_key: word(4), remote_address: address });
    let mut response = [0; 16];
    response[..4].copy_from_slice(&capsule[..4]);
    core.post(queue_pair, send(&response));
}

fn measure(address: SocketAddr, bytes: usize, time: Duration, crc: bool) {
    let mut core = Core::new(0, bytes, crc);
    let attributes = core.attributes();
    let domain = attributes.domain;
    let timeout = Duration::from_secs(5);
    let parameters = ConnectParameters {
        address,
        provider: ProviderChoice::Iwarp,
        attributes,
        private_data: b"",
        timeout,
        socket: socket_options(),
    };
    let queue_pair = core.rnic.connect(&mut core.reactor, &parameters).expect("connecting");
    while !matches!(core.rnic.next_event(), Some(RnicEvent::Established { .. })) {
        core.turn();
    }
    let places: Vec<RemoteBuffer> = (0..DEPTH_MAX)
        .map(|_| {
            let shared_buffer = core.pool.take(bytes).expect("a buffer").share();
            core.rnic.expose(domain, shared_buffer, 0, bytes as u32, Access::RemoteWrite).expect("room")
        })
        .collect();
    for depth in DEPTHS {
        run(&mut core, queue_pair, &places[..depth], time / 4);
        let (histogram, took) = run(&mut core, queue_pair, &places[..depth], time);
        let rate = histogram.len() as f64 / took.as_secs_f64();
        println!(
            "depth {depth:>3}: {rate:>9.0} op/s, {:>8.1} MiB/s, median {:>6.2} us, p99 {:>6.2} us",
            rate * bytes as f64 / f64::from(1 << 20),
            histogram.value_at_quantile(0.5) as f64 / 1000.0,
            histogram.value_at_quantile(0.99) as f64 / 1000.0,
        );
    }
    println!("{:?}", core.rnic.counters());
    println!("{:?}", core.reactor.counters());
    core.rnic.disconnect(&mut core.reactor, queue_pair);
    while !matches!(core.rnic.next_event(), Some(RnicEvent::Disconnected { .. })) {
        core.turn();
    }
}

/// Keeps one operation per place outstanding for `time`.
fn run(
    core: &mut Core,
    queue_pair: QueuePairId,
    places: &[RemoteBuffer],
    time: Duration,
) -> (Histogram<u64>, Duration) {
    let mut histogram = Histogram::new_with_max(10_000_000_000, 3).expect("a histogram");
    let begun = Instant::now();
    let mut started = vec![begun; places.len()];
    for (index, place) in places.iter().enumerate() {
        core.post(queue_pair, send(&capsule(index, place)));
    }
    let mut outstanding = places.len();
    while outstanding > 0 {
        core.turn();
        let now = Instant::now();
        while let Some(event) = core.rnic.next_event() {
            let RnicEvent::Received { head, .. } = event else { continue };
            let index = u32::from_le_bytes(head.bytes[..4].try_into().expect("four bytes")) as usize;
            core.rnic.post_receive(queue_pair, 1);
            histogram.saturating_record((now - started[index]).as_nanos() as u64);
            if now - begun < time {
                started[index] = now;
                core.post(queue_pair, send(&capsule(index, &places[index])));
            } else {
                outstanding -= 1;
            }
        }
    }
    (histogram, begun.elapsed())
}

fn capsule(index: usize, place: &RemoteBuffer) -> [u8; 64] {
    let mut capsule = [0; 64];
    capsule[..4].copy_from_slice(&(index as u32).to_le_bytes());
    capsule[4..8].copy_from_slice(&place.key.to_le_bytes());
    capsule[8..16].copy_from_slice(&place.address.to_le_bytes());
    capsule
}
