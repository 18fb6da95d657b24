//! Hosts that hold what they can of a target, and go on.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ringfab_auth::{Group, Hash, Message, Negotiate, Proposal, Reply};
use ringfab_proto::iwarp::mpa::{Initiator, MpaConfig};
use ringfab_spec::auth::SecureChannel;
use ringfab_spec::sqe::{AuthenticationCommand, PropertySize};
use ringfab_spec::tcp::{CapsuleResp, DataHeader, Digests, IcResp};
use ringfab_spec::{FromBytes, IntoBytes, SglDescriptor, SubmissionEntry, rdma_cm};
use ringfab_tests::raw_tcp::{capsule, connect_as, ic_req, stream_from};
use ringfab_tests::{NQN, raw_tcp};

use crate::target::{FRIEND, Over};

const DISCOVERY: &str = "nqn.2014-08.org.nvmexpress.discovery";

/// Somebody who is never allowed.
const STRANGER: &str = raw_tcp::HOST_NQN;

/// How long an attacker waits to be connected or answered by a target that may have better things to do, and for all
/// its connections in the beginning: what it has not got then is not to be had.
const ANSWER_PATIENCE: Duration = Duration::from_secs(1);
const START_PATIENCE: Duration = Duration::from_secs(8);

/// The same for one that makes thousands of queues. None of them is left waiting: who is one too many is ended.
const QUEUES_PATIENCE: Duration = Duration::from_secs(30);

/// How long it looks on before it makes anew what it has lost, and lets others come.
const SETTLE: Duration = Duration::from_millis(150);

/// What an attacker leaves between two attempts.
const PAUSE: Duration = Duration::from_millis(1);

/// How often one that trickles says a byte more on each of its connections.
const DRIP: Duration = Duration::from_millis(200);

/// What is done with every connection of an attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// Nothing.
    Silent,
    /// ICReq or the MPA request begins, and does not go on.
    HalfGreeting,
    /// ICReq or the MPA request, a byte at a time.
    Trickle,
    /// ICReq, and nothing more.
    Greeting,
    /// The MPA exchange of a queue, and no Connect.
    QueuePair,
    /// The header of a Connect, and no data.
    HalfConnect,
    /// A Connect that is refused.
    Refused,
    /// A discovery controller without a keep-alive timeout.
    Discovery,
    /// A controller, under the name of a host that may connect.
    Impostor,
    /// A controller under that name with as many I/O queues as it can have.
    Queues,
    /// The same as an impostor, where the host has a key.
    Unproved,
    /// An I/O queue of the controller of the host that was there first, where that has a key.
    UnprovedQueue,
    /// It begins to authenticate, with the group that takes longest, and does not ask for the challenge.
    Negotiate,
    /// It asks for the challenge, too, and does not reply.
    Challenge,
    /// It replies, with a value that takes as long, and a wrong response.
    Reply,
    /// It begins to send a message, and does not end.
    HalfMessage,
}

impl Act {
    /// Whether it is one where the host that may connect has a key.
    pub(crate) fn is_about_authentication(self) -> bool {
        matches!(
            self,
            Self::Unproved
                | Self::UnprovedQueue
                | Self::Negotiate
                | Self::Challenge
                | Self::Reply
                | Self::HalfMessage
        )
    }
}

/// Where an attack comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The address of the host that may connect.
    Same,
    /// So many other addresses, in turn.
    Others(u16),
}

impl Origin {
    fn address(self, number: usize) -> IpAddr {
        match self {
            Self::Same => Ipv4Addr::LOCALHOST.into(),
            Self::Others(count) => {
                let [high, low] = ((number % usize::from(count)) as u16 + 2).to_be_bytes();
                Ipv4Addr::new(127, 0, high, low).into()
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Attack {
    pub(crate) over: Over,
    pub(crate) act: Act,
    pub(crate) from: Origin,
    /// Connections that it holds, or controllers.
    pub(crate) count: usize,
}

impl Attack {
    fn wants_controllers(&self) -> bool {
        matches!(self.act, Act::Discovery | Act::Impostor)
    }
}

/// What holds an attack's connections and makes new ones for those that it lost, until it is dropped.
pub(crate) struct Going {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// A connection of an attack.
struct Held {
    stream: TcpStream,
    /// How many bytes it has said.
    said: usize,
    /// What the target has answered.
    answers: Vec<u8>,
    is_closed: bool,
}

impl Going {
    /// Returns when it has all its connections, as far as it gets them.
    pub(crate) fn start(attack: Attack, address: SocketAddr) -> Self {
        let begun = Instant::now();
        let patience = if attack.act == Act::Queues { QUEUES_PATIENCE } else { START_PATIENCE };
        let is_early = |_: &usize| begun.elapsed() < patience;
        let numbers = (0..attack.count).take_while(is_early);
        let held: Vec<Vec<Held>> = numbers.map(|number| attempt(&attack, number, address)).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        // The target is busy with what has come so far.
        std::thread::sleep(SETTLE);
        let thread = std::thread::spawn(move || go_on(&attack, address, held, &stopped));
        Self { stop, thread: Some(thread) }
    }
}

/// Makes connections anew that are lost, over and over. Those that are there stay: each that left would be a place for
/// somebody else.
fn go_on(attack: &Attack, address: SocketAddr, mut held: Vec<Vec<Held>>, stop: &AtomicBool) {
    let mut dripped = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        attempt_again(attack, address, &mut held, stop);
        let none_is_lost = |held: &mut [Vec<Held>]| !held.iter_mut().flatten().any(Held::is_closed);
        if attack.act == Act::Queues && held.len() < 2 * attack.count && none_is_lost(&mut held) {
            // A slow machine has made too few until now.
            held.push(attempt(attack, held.len(), address));
        }
        if attack.act == Act::Trickle && dripped.elapsed() > DRIP {
            held.iter_mut().flatten().for_each(|one| one.drip(attack.over));
            dripped = Instant::now();
        }
        if attack.act == Act::Reply {
            held.iter_mut().flatten().for_each(Held::reply);
        }
        std::thread::sleep(PAUSE);
    }
}

/// Makes connections anew that are lost, each once.
fn attempt_again(attack: &Attack, address: SocketAddr, held: &mut [Vec<Held>], stop: &AtomicBool) {
    let is_lost = |first: &mut Held| first.is_closed() || attack.wants_controllers() && first.is_refused();
    for (number, one) in held.iter_mut().enumerate() {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        if one.first_mut().is_none_or(is_lost) {
            *one = attempt(attack, number, address);
            // The processor is not what it is after.
            std::thread::sleep(PAUSE);
        }
    }
}

impl Drop for Going {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("an attack that does not panic");
        }
    }
}

impl Held {
    /// Takes in what the target has said. A connection that was closed may have been answered before.
    fn listen(&mut self) {
        let mut bytes = [0; 256];
        while !self.is_closed {
            match self.stream.read(&mut bytes) {
                Ok(0) => self.is_closed = true,
                Ok(length) => self.answers.extend_from_slice(&bytes[..length]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => self.is_closed = true,
            }
        }
    }

    fn is_closed(&mut self) -> bool {
        self.listen();
        self.is_closed
    }

    /// Whether the target has refused what a Connect asked for.
    fn is_refused(&mut self) -> bool {
        self.listen();
        let answer = self.answers.get(IcResp::SIZE..IcResp::SIZE + CapsuleResp::SIZE);
        let answer = answer.map(|bytes| CapsuleResp::read_from_bytes(bytes).expect("as long as one"));
        answer.is_some_and(|answer| !answer.cqe.status().is_success())
    }

    /// Replies, once the challenge is here.
    fn reply(&mut self) {
        self.listen();
        let challenge = IcResp::SIZE + 2 * CapsuleResp::SIZE + challenge_bytes();
        if self.answers.len() >= challenge && std::mem::take(&mut self.said) != 0 {
            let _closed = self.stream.write_all(&[wrong_reply(), receive(4)].concat());
        }
    }

    fn drip(&mut self, over: Over) {
        let all = greeting(over);
        if let Some(byte) = all.get(self.said) {
            // The target may have closed it already.
            let _closed = self.stream.write_all(&[*byte]);
            self.said += 1;
        }
    }
}

/// The connections of one act, as many as it gets.
fn attempt(attack: &Attack, number: usize, address: SocketAddr) -> Vec<Held> {
    let from = attack.from.address(number);
    let streams = if attack.act == Act::Queues {
        queues(from, address)
    } else {
        let connected = stream_from(from, address, ANSWER_PATIENCE).and_then(|mut stream| {
            stream.write_all(&said(attack, number))?;
            Ok(stream)
        });
        connected.into_iter().collect()
    };
    let hold = |stream: TcpStream| {
        stream.set_nonblocking(true).ok()?;
        Some(Held { stream, said: said(attack, number).len(), answers: Vec::new(), is_closed: false })
    };
    streams.into_iter().filter_map(hold).collect()
}

fn greeting(over: Over) -> Vec<u8> {
    if over == Over::Tcp { ic_req(Digests::default()) } else { mpa_request() }
}

/// The controller of the host that was there first, and the I/O queues that it may have.
const FIRST: u16 = 1;
const FIRSTS_QUEUES: usize = 128;

fn said(attack: &Attack, number: usize) -> Vec<u8> {
    let none = Digests::default();
    let greeted = |capsule: Vec<u8>| [ic_req(none), capsule].concat();
    let connect = |subsystem, host| connect_as(none, 0, 32, 0xffff, subsystem, host);
    match (attack.act, attack.over) {
        (Act::Silent, _) => Vec::new(),
        (Act::Trickle, over) => greeting(over)[..1].to_vec(),
        (Act::HalfGreeting, over) => {
            let all = greeting(over);
            all[..all.len() * 3 / 4].to_vec()
        }
        (Act::QueuePair, _) => mpa_request(),
        (Act::Greeting, _) => ic_req(none),
        (Act::HalfConnect, _) => greeted(connect(NQN, FRIEND)[..600].to_vec()),
        (Act::Refused, _) => greeted(connect(NQN, STRANGER)),
        (Act::Discovery, _) => greeted(connect(DISCOVERY, STRANGER)),
        (Act::Impostor | Act::Queues | Act::Unproved, _) => greeted(connect(NQN, FRIEND)),
        (Act::UnprovedQueue, _) => {
            let queue = (number % FIRSTS_QUEUES + 1) as u16;
            greeted(connect_as(none, queue, 32, FIRST, NQN, FRIEND))
        }
        (Act::Negotiate, _) => [greeted(connect(NQN, FRIEND)), negotiate()].concat(),
        (Act::Challenge | Act::Reply, _) => [greeted(connect(NQN, FRIEND)), negotiate(), receive(2)].concat(),
        (Act::HalfMessage, _) => {
            let message = negotiate();
            [greeted(connect(NQN, FRIEND)), message[..message.len() - 1].to_vec()].concat()
        }
    }
}

/// The hash function and the group of an attacker.
const HASH: Hash = Hash::Sha512;
const GROUP: Group = Group::Ffdhe8192;

/// Bytes of the PDU with a challenge: its header, and the buffer of the Receive.
fn challenge_bytes() -> usize {
    DataHeader::SIZE + RECEIVED as usize
}

/// The buffer of a Receive.
const RECEIVED: u32 = 2048;

fn message(cid: u16, message: &Message<'_>) -> Vec<u8> {
    let bytes = message.to_bytes();
    let entry = AuthenticationCommand::send(cid, bytes.len() as u32);
    capsule(Digests::default(), entry, &bytes)
}

fn negotiate() -> Vec<u8> {
    let offer = Some(Proposal { hashes: vec![HASH.id()], groups: vec![GROUP.id()] });
    message(1, &Message::Negotiate(Negotiate { t_id: 7, secure_channel: SecureChannel::NONE, offer }))
}

fn receive(cid: u16) -> Vec<u8> {
    let entry = AuthenticationCommand::receive(cid, RECEIVED).with_sgl(SglDescriptor::transport(RECEIVED));
    capsule(Digests::default(), entry, &[])
}

fn wrong_reply() -> Vec<u8> {
    let (response, value) = (vec![7; HASH.length()], vec![7; GROUP.answer_length()]);
    message(
        3,
        &Message::Reply(Reply {
            t_id: 7,
            seqnum: 0,
            challenge_valid: false,
            response: &response,
            challenge: &vec![0; HASH.length()],
            value: &value,
        }),
    )
}

fn mpa_request() -> Vec<u8> {
    let queue = rdma_cm::Request::new(0, 1024, 1024, 0);
    let initiator = Initiator::new(MpaConfig::default(), queue.as_bytes()).expect("a request");
    initiator.request().to_vec()
}

/// A controller with 128 I/O queues, as far as it gets them.
fn queues(from: IpAddr, address: SocketAddr) -> Vec<TcpStream> {
    let Ok((admin, controller)) = controller(from, address) else { return Vec::new() };
    let none = Digests::default();
    let begun = Instant::now();
    let queue = |qid| {
        let left = QUEUES_PATIENCE.checked_sub(begun.elapsed()).filter(|left| !left.is_zero())?;
        let mut stream = stream_from(from, address, left.min(ANSWER_PATIENCE)).ok()?;
        let said = [ic_req(none), connect_as(none, qid, 1024, controller, NQN, FRIEND)].concat();
        stream.write_all(&said).ok()?;
        Some(stream)
    };
    // What the target does not take now it does not take a moment later either.
    std::iter::once(admin).chain((1..=128).map_while(queue)).collect()
}

/// The admin queue of an enabled controller, and its identifier.
fn controller(from: IpAddr, address: SocketAddr) -> io::Result<(TcpStream, u16)> {
    let none = Digests::default();
    let mut stream = stream_from(from, address, ANSWER_PATIENCE)?;
    stream.set_read_timeout(Some(ANSWER_PATIENCE))?;
    stream.write_all(&[ic_req(none), connect_as(none, 0, 32, 0xffff, NQN, FRIEND)].concat())?;
    stream.read_exact(&mut [0; IcResp::SIZE])?;
    let mut answer = [0; CapsuleResp::SIZE];
    stream.read_exact(&mut answer)?;
    let connected = CapsuleResp::read_from_bytes(&answer).expect("as long as one").cqe;
    if !connected.status().is_success() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let enable = SubmissionEntry::property_set(1, 0x14, PropertySize::Four, 0x0046_0001);
    stream.write_all(&capsule(none, enable, &[]))?;
    stream.read_exact(&mut answer)?;
    Ok((stream, connected.connect_cntlid()))
}
