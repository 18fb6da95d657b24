//! A TCP proxy that keeps what passes, and the bytes it kept.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use ringfab_proto::iwarp::crc;

/// Who sent bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// The end that connected.
    Host,
    /// The end that listened.
    Target,
}

/// One connection: what was sent, in the order in which it passed.
pub type Recording = Vec<(From, Vec<u8>)>;

/// Forwards connections to a target until it is told to stop.
#[derive(Debug)]
pub struct Recorder {
    /// Where to connect instead.
    pub address: SocketAddr,
    recordings: Arc<Mutex<Vec<Recording>>>,
    thread: JoinHandle<()>,
}

impl Recorder {
    /// Takes exactly `connections` connections for the target at `target`.
    ///
    /// # Panics
    /// When there is no port.
    pub fn start(target: SocketAddr, connections: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let recordings = Arc::new(Mutex::new(vec![Recording::new(); connections]));
        let kept = Arc::clone(&recordings);
        let thread = std::thread::spawn(move || {
            let pumps: Vec<_> =
                (0..connections).flat_map(|index| proxy(&listener, target, &kept, index)).collect();
            for pump in pumps {
                pump.join().expect("a pump ends");
            }
        });
        Self { address, recordings, thread }
    }

    /// What passed, by connection, once all of them have ended.
    ///
    /// # Panics
    /// When a connection failed.
    pub fn finish(self) -> Vec<Recording> {
        self.thread.join().expect("the proxy ends");
        self.recordings.lock().expect("nobody else").clone()
    }
}

fn proxy(
    listener: &TcpListener,
    target: SocketAddr,
    kept: &Arc<Mutex<Vec<Recording>>>,
    index: usize,
) -> [JoinHandle<()>; 2] {
    let (host, _) = listener.accept().expect("a host");
    let target = TcpStream::connect(target).expect("a target");
    for stream in [&host, &target] {
        stream.set_nodelay(true).expect("an option");
    }
    let pump = |from: From, source: &TcpStream, sink: &TcpStream| {
        let (mut source, mut sink) =
            (source.try_clone().expect("a clone"), sink.try_clone().expect("a clone"));
        let kept = Arc::clone(kept);
        std::thread::spawn(move || {
            let mut buffer = vec![0; 1 << 16];
            while let Ok(count @ 1..) = source.read(&mut buffer) {
                kept.lock().expect("a recording")[index].push((from, buffer[..count].to_vec()));
                if sink.write_all(&buffer[..count]).is_err() {
                    break;
                }
            }
            let _gone = sink.shutdown(Shutdown::Write);
        })
    };
    [pump(From::Host, &host, &target), pump(From::Target, &target, &host)]
}

/// Where in everything that one side sent its MPA frame ends.
///
/// # Panics
/// When that is no MPA frame.
pub fn mpa_bytes(stream: &[u8]) -> usize {
    assert!(stream.starts_with(b"MPA ID Re"), "an MPA frame");
    20 + usize::from(u16::from_be_bytes([stream[18], stream[19]]))
}

/// The FPDUs of one side: where each begins, and the length of its ULPDU.
pub fn fpdus(stream: &[u8]) -> Vec<(usize, usize)> {
    let mut at = mpa_bytes(stream);
    let mut found = Vec::new();
    while let Some(&[high, low]) = stream.get(at..at + 2) {
        let length = usize::from(u16::from_be_bytes([high, low]));
        found.push((at, length));
        at += fpdu_bytes(length);
    }
    found
}

/// Makes the CRC of the FPDU at `at` right again, after a change that a careless sender could have made itself.
pub fn sign(stream: &mut [u8], at: usize, length: usize) {
    let end = at + fpdu_bytes(length) - 4;
    let sum = crc::of(&stream[at..end]);
    stream[end..end + 4].copy_from_slice(&sum);
}

/// Length field, ULPDU, padding to four bytes, CRC.
fn fpdu_bytes(ulpdu: usize) -> usize {
    (2 + ulpdu).next_multiple_of(4) + 4
}
