//! Hosts that hold what they can of a target, and go on.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use ringfab_proto::iwarp::mpa::{Initiator, MpaConfig};
use ringfab_spec::sqe::PropertySize;
use ringfab_spec::tcp::{CapsuleResp, Digests, IcResp};
use ringfab_spec::{FromBytes, IntoBytes, SubmissionEntry, rdma_cm};
use ringfab_tests::raw_tcp::{capsule, connect_as, ic_req, stream_from};
use ringfab_tests::{NQN, PATIENCE, raw_tcp};

use crate::target::{ELSEWHERE, FRIEND, Over};

const DISCOVERY: &str = "nqn.2014-08.org.nvmexpress.discovery";

/// Somebody who is never allowed.
const STRANGER: &str = raw_tcp::HOST_NQN;

/// What is done with every connection of an attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// Nothing.
    Silent,
    /// ICReq or the MPA request begins, and does not go on.
    HalfGreeting,
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
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Attack {
    pub(crate) name: &'static str,
    pub(crate) over: Over,
    pub(crate) from: IpAddr,
    pub(crate) act: Act,
    /// Connections that it holds, or controllers.
    pub(crate) count: usize,
}

impl Attack {
    pub(crate) const fn elsewhere(name: &'static str, over: Over, act: Act, count: usize) -> Self {
        Self { name, over, from: ELSEWHERE, act, count }
    }
}

/// What holds an attack's connections and makes new ones for those that it lost, until it is dropped.
pub(crate) struct Going {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Going {
    /// Returns when it has all its connections, as far as it gets them.
    pub(crate) fn start(attack: Attack, address: SocketAddr) -> Self {
        let mut held = VecDeque::new();
        for _ in 0..attack.count {
            held.extend(attempt(&attack, address));
        }
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                held.extend(attempt(&attack, address));
                held.pop_front();
                // The processor is not what it is after.
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        Self { stop, thread: Some(thread) }
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

/// The connections of one act, as many as it gets.
fn attempt(attack: &Attack, address: SocketAddr) -> Option<Vec<TcpStream>> {
    if attack.act == Act::Queues {
        return Some(queues(attack.from, address));
    }
    let mut stream = stream_from(attack.from, address).ok()?;
    // The target may have closed it already.
    let _closed = stream.write_all(&said(attack));
    Some(vec![stream])
}

fn said(attack: &Attack) -> Vec<u8> {
    let none = Digests::default();
    let greeted = |capsule: Vec<u8>| [ic_req(none), capsule].concat();
    let connect = |subsystem, host| connect_as(none, (0, 32, 0xffff), subsystem, host);
    match (attack.act, attack.over) {
        (Act::Silent, _) => Vec::new(),
        (Act::HalfGreeting, Over::Tcp) => ic_req(none)[..60].to_vec(),
        (Act::HalfGreeting, Over::Rdma) => mpa_request()[..15].to_vec(),
        (Act::QueuePair, _) => mpa_request(),
        (Act::Greeting, _) => ic_req(none),
        (Act::HalfConnect, _) => greeted(connect(NQN, FRIEND)[..600].to_vec()),
        (Act::Refused, _) => greeted(connect(NQN, STRANGER)),
        (Act::Discovery, _) => greeted(connect(DISCOVERY, STRANGER)),
        (Act::Impostor | Act::Queues, _) => greeted(connect(NQN, FRIEND)),
    }
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
    let queue = |qid| {
        let mut stream = stream_from(from, address).ok()?;
        let said = [ic_req(none), connect_as(none, (qid, 1024, controller), NQN, FRIEND)].concat();
        stream.write_all(&said).ok()?;
        Some(stream)
    };
    std::iter::once(admin).chain((1..=128).filter_map(queue)).collect()
}

/// The admin queue of an enabled controller, and its identifier.
fn controller(from: IpAddr, address: SocketAddr) -> io::Result<(TcpStream, u16)> {
    let none = Digests::default();
    let mut stream = stream_from(from, address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(&[ic_req(none), connect_as(none, (0, 32, 0xffff), NQN, FRIEND)].concat())?;
    stream.read_exact(&mut [0; IcResp::SIZE])?;
    let mut answer = [0; CapsuleResp::SIZE];
    stream.read_exact(&mut answer)?;
    let connected = CapsuleResp::read_from_bytes(&answer).expect("as long as one").cqe;
    let enable = SubmissionEntry::property_set(1, 0x14, PropertySize::Four, 0x0046_0001);
    stream.write_all(&capsule(none, enable, &[]))?;
    stream.read_exact(&mut answer)?;
    Ok((stream, connected.connect_cntlid()))
}
