//! What a round trip costs: two threads on a core each bounce a message over loopback TCP, once through the
//! reactor and once with plain non-blocking system calls in a spin. Run it with `--release`.
#![allow(clippy::print_stdout, reason = "it prints its figures")]

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use ringfab_reactor::{
    ListenAddr, Payload, Reactor, ReactorConfig, ReceiveOp, SendBatch, SocketId, SocketOptions, Token, Wait,
    pin_current_thread,
};

const WARM_UP: usize = 5_000;
const ROUNDS: usize = 50_000;

fn main() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    println!("{ROUNDS} round trips at depth 1 between cores 0 and {}", 1.min(cores - 1));
    for (request, response) in [(72, 72), (72, 4136), (4136, 4136)] {
        let raw = measure(request, response, raw_server, raw_client);
        let ring = measure(request, response, ring_server, ring_client);
        println!("{request:>5} B -> {response:>5} B   raw {raw}   reactor {ring}");
    }
}

type Server = fn(&Sender<SocketAddr>, usize, usize);
type Client = fn(SocketAddr, usize, usize) -> Vec<Duration>;

fn measure(request: usize, response: usize, server: Server, client: Client) -> String {
    let (sender, address) = std::sync::mpsc::channel();
    let serving = std::thread::spawn(move || {
        pin_current_thread(1).or_else(|_| pin_current_thread(0)).expect("a core");
        server(&sender, request, response);
    });
    let address = address.recv().expect("the server's address");
    let measuring = std::thread::spawn(move || {
        pin_current_thread(0).expect("a core");
        client(address, request, response)
    });
    let mut times = measuring.join().expect("the client");
    serving.join().expect("the server");
    times.drain(..WARM_UP);
    times.sort_unstable();
    let at = |permille: usize| times[(times.len() - 1) * permille / 1000].as_nanos() as f64 / 1000.0;
    format!("median {:6.2} us, p99 {:6.2} us", at(500), at(990))
}

fn raw_server(address: &Sender<SocketAddr>, request: usize, response: usize) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    address.send(listener.local_addr().expect("an address")).expect("the client waits");
    let (mut stream, _) = listener.accept().expect("the client");
    prepare(&stream);
    let (mut bytes, answer) = (vec![0; request], vec![1; response]);
    while spin_read(&mut stream, &mut bytes) {
        stream.write_all(&answer).expect("written");
    }
}

fn raw_client(address: SocketAddr, request: usize, response: usize) -> Vec<Duration> {
    let mut stream = TcpStream::connect(address).expect("connected");
    prepare(&stream);
    let (question, mut bytes) = (vec![1; request], vec![0; response]);
    let mut times = Vec::with_capacity(WARM_UP + ROUNDS);
    for _ in 0..WARM_UP + ROUNDS {
        let start = Instant::now();
        stream.write_all(&question).expect("written");
        assert!(spin_read(&mut stream, &mut bytes));
        times.push(start.elapsed());
    }
    times
}

fn prepare(stream: &TcpStream) {
    stream.set_nodelay(true).expect("an option");
    stream.set_nonblocking(true).expect("an option");
}

fn spin_read(stream: &mut TcpStream, bytes: &mut [u8]) -> bool {
    let mut read = 0;
    while read < bytes.len() {
        match stream.read(&mut bytes[read..]) {
            Ok(0) => return false,
            Ok(count) => read += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) => panic!("{error}"),
        }
    }
    true
}

/// One end of a connection through the reactor.
struct Peer {
    reactor: Reactor,
    socket: SocketId,
    batch: Option<Box<SendBatch>>,
    received: usize,
}

const SENT: Token = Token::new(0, 0, 0, 0);
const RECEIVED: Token = Token::new(0, 1, 0, 0);
const ACCEPTED: Token = Token::new(0, 2, 0, 0);

fn reactor() -> Reactor {
    let spin = Duration::from_secs(1);
    Reactor::new(&ReactorConfig { entries: 256, spin, descriptors_max: 64 }).expect("a ring")
}

impl Peer {
    fn new(mut reactor: Reactor, socket: SocketId) -> Self {
        let mut receive = ReceiveOp::new(16384);
        receive.set_target(None, 0, 16384);
        reactor.receive(socket, receive, RECEIVED);
        Self { reactor, socket, batch: Some(SendBatch::new(8192, 4)), received: 0 }
    }

    fn send(&mut self, length: usize) {
        while self.batch.is_none() {
            assert!(self.step(), "the peer is there");
        }
        let mut batch = self.batch.take().expect("it came back");
        batch.clear();
        batch.push_room(length).fill(1);
        self.reactor.send(self.socket, batch, SENT);
    }

    /// Waits for a message of `length` bytes; `false` at the end of the stream.
    fn receive(&mut self, length: usize) -> bool {
        while self.received < length {
            if !self.step() {
                return false;
            }
        }
        self.received -= length;
        true
    }

    fn step(&mut self) -> bool {
        let Some(completion) = self.reactor.next_completion() else {
            self.reactor.turn(Wait::Event).expect("a turn");
            return true;
        };
        match (completion.payload, completion.result) {
            (Payload::Send(batch), Ok(_)) => self.batch = Some(batch),
            (Payload::Receive(mut operation), Ok(bytes)) if bytes > 0 => {
                self.received += bytes as usize;
                operation.set_target(None, 0, 16384);
                self.reactor.receive(self.socket, operation, RECEIVED);
            }
            _ => return false,
        }
        true
    }
}

fn ring_server(address: &Sender<SocketAddr>, request: usize, response: usize) {
    let mut reactor = reactor();
    let any = ListenAddr::Tcp("127.0.0.1:0".parse().expect("an address"));
    let bind = reactor.listen(&any, &SocketOptions::default(), ACCEPTED).expect("a listener");
    let ListenAddr::Tcp(bound) = bind.address else { unreachable!("it was TCP") };
    address.send(bound).expect("the client waits");
    let socket = loop {
        reactor.turn(Wait::Event).expect("a turn");
        if let Some(Payload::Accepted(socket, _)) = reactor.next_completion().map(|done| done.payload) {
            break socket;
        }
    };
    let mut peer = Peer::new(reactor, socket);
    while peer.receive(request) {
        peer.send(response);
    }
    report("server", &peer);
}

fn ring_client(address: SocketAddr, request: usize, response: usize) -> Vec<Duration> {
    let mut reactor = reactor();
    let socket = reactor.connect(address, &SocketOptions::default(), ACCEPTED).expect("a socket");
    while reactor.next_completion().is_none() {
        reactor.turn(Wait::Event).expect("a turn");
    }
    let mut peer = Peer::new(reactor, socket);
    let mut times = Vec::with_capacity(WARM_UP + ROUNDS);
    for _ in 0..WARM_UP + ROUNDS {
        let start = Instant::now();
        peer.send(request);
        assert!(peer.receive(response), "the server stays");
        times.push(start.elapsed());
    }
    report("client", &peer);
    times
}

fn report(name: &str, peer: &Peer) {
    if std::env::args().any(|argument| argument == "--counters") {
        let counters = peer.reactor.counters();
        let per_round = |count: u64| count as f64 / (WARM_UP + ROUNDS) as f64;
        println!(
            "  {name}: {:.2} turns, {:.2} enters, {:.2} operations a round, {} sleeps",
            per_round(counters.turns),
            per_round(counters.enters),
            per_round(counters.submitted),
            counters.sleeps
        );
    }
}
