//! A target of NVMe/TCP that answers as SPDK's does, where that differs from ours: no package has SPDK.
//!
//! - Every connection must authenticate, I/O queues as well as the admin queue (AUTHREQ in each Connect). Before that,
//!   other commands get Authentication Required.
//! - It takes the strongest hash function that both have, and no secure channel concatenation.
//! - An Authentication Receive is answered with as many bytes as the message has, not with as many as there is room
//!   for. The length that the command names must be that of its SGL.
//! - With the last data of a command comes SUCCESS, and no response, if there is nothing more to say.
//! - A connection authenticates once: another message gets Command Sequence Error, and the connection goes on.
//! - Over TLS it knows identities of version 0 alone.
//! - It is of version 1.3, has the NVM Command Set, and says nothing of limits.

mod queue;

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringfab_auth::{
    ConfiguredPsk, Derivation, DhchapKey, IdentityVersion, Names, Parties, SequenceNumbers, system_random,
};
use ringfab_spec::nqn::Nqn;

use crate::NQN;
use crate::tls_stream::TlsStream;
use queue::Queue;

/// Bytes of the disk.
const DISK_BYTES: usize = 1 << 20;

/// Who may come, and with which keys.
#[derive(Debug)]
pub struct SpdkKeys {
    /// The one host.
    pub host: String,
    /// Its key.
    pub dhchap: DhchapKey,
    /// The key that the controller has for this host.
    pub controller: Option<DhchapKey>,
    /// The key for TLS, which is required if there is one.
    pub psk: Option<ConfiguredPsk>,
}

/// What it has seen.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Identifiers of the queues that have authenticated, in order.
    pub authenticated: Vec<u16>,
    /// Bytes of each message that was sent to a host.
    pub message_bytes: Vec<usize>,
    /// Authentications that were begun on a connection that had had one.
    pub refused_again: usize,
    /// Identities of the keys for TLS of the connections.
    pub identities: Vec<String>,
    /// Requests for data (R2T).
    pub r2ts: usize,
}

/// The target. Dropping it ends its connections.
#[derive(Debug)]
pub struct SpdkTarget {
    /// Where it listens.
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    keys: SpdkKeys,
    parties: Arc<Parties>,
    sequence: SequenceNumbers,
    seen: Mutex<Seen>,
    disk: Mutex<Vec<u8>>,
    streams: Mutex<Vec<TcpStream>>,
    ended: Mutex<bool>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SpdkTarget {
    /// Starts one on a free port of the loopback interface.
    ///
    /// # Panics
    /// When there is none, or the host's name is none.
    pub fn start(keys: SpdkKeys) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        let names = (Nqn::new(&keys.host).expect("a name"), Nqn::new(NQN).expect("a name"));
        let parties = Parties::new(names.0, names.1, &keys.dhchap, keys.controller.as_ref());
        let shared = Arc::new(Shared {
            keys,
            parties,
            sequence: SequenceNumbers::new(&mut system_random()),
            seen: Mutex::default(),
            disk: Mutex::new(vec![0; DISK_BYTES]),
            streams: Mutex::default(),
            ended: Mutex::new(false),
        });
        let serving = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if *locked(&serving.ended) {
                    return;
                }
                stream.set_nodelay(true).expect("a socket");
                locked(&serving.streams).push(stream.try_clone().expect("a descriptor"));
                let shared = Arc::clone(&serving);
                std::thread::spawn(move || {
                    let copy = stream.try_clone().expect("a descriptor");
                    // Its end is the connection's end.
                    let _ended = serve(&shared, stream);
                    let _closed = copy.shutdown(Shutdown::Both);
                });
            }
        });
        Self { address, shared }
    }

    /// What it has seen so far.
    pub fn seen(&self) -> Seen {
        locked(&self.shared.seen).clone()
    }
}

impl Drop for SpdkTarget {
    fn drop(&mut self) {
        *locked(&self.shared.ended) = true;
        for stream in locked(&self.shared.streams).drain(..) {
            // It may have ended already.
            let _ended = stream.shutdown(Shutdown::Both);
        }
        // The listener wakes by one more connection, and ends.
        drop(TcpStream::connect(self.address));
    }
}

/// What a connection is over.
trait Wire: Read + Write {}

impl<T: Read + Write> Wire for T {}

fn serve(shared: &Shared, stream: TcpStream) -> io::Result<()> {
    let wire: Box<dyn Wire> = match &shared.keys.psk {
        None => Box::new(stream),
        Some(psk) => {
            let host = Nqn::new(&shared.keys.host).map_err(io::Error::other)?;
            let names = Names { host, subsystem: Nqn::new(NQN).map_err(io::Error::other)? };
            let retained = psk.retained(names.host, Derivation::Specified);
            let key = retained.tls(IdentityVersion::Zero, psk.suite(), names, Derivation::Specified);
            let wire = TlsStream::accept(stream, key.map_err(io::Error::other)?)?;
            let identity = String::from_utf8_lossy(wire.identity()).into_owned();
            locked(&shared.seen).identities.push(identity);
            Box::new(wire)
        }
    };
    Queue::new(shared, wire).serve()
}
