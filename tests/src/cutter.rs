//! A proxy of bytes, whose connections can be cut.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// The proxy. Dropping it ends it, and its connections.
#[derive(Debug)]
pub struct Cutter {
    /// Where to connect instead.
    pub address: SocketAddr,
    /// Both ends of each connection, in the order in which they were made since the last cut.
    streams: Arc<Mutex<Vec<[TcpStream; 2]>>>,
    refuses: Arc<AtomicBool>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Cutter {
    /// Takes connections for the target at `target`.
    pub fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let mut this = Self {
            address,
            streams: Arc::default(),
            refuses: Arc::default(),
            ended: Arc::default(),
            thread: None,
        };
        let (streams, refuses, ended) = (this.streams.clone(), this.refuses.clone(), this.ended.clone());
        this.thread = Some(std::thread::spawn(move || {
            for host in listener.incoming() {
                let host = host.expect("a host");
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                if !refuses.load(Ordering::Relaxed) {
                    pass(host, TcpStream::connect(target).expect("it listens"), &streams);
                }
            }
        }));
        this
    }

    /// Cuts one of the connections that there are.
    pub fn cut(&self, number: usize) {
        let mut streams = self.streams.lock().expect("a list");
        assert!(number < streams.len(), "there are {} connections", streams.len());
        for stream in &streams[number] {
            // One that has ended already is as good.
            let _ended = stream.shutdown(Shutdown::Both);
        }
        streams.clear();
    }

    /// Cuts all, and takes no more.
    pub fn refuse(&self) {
        self.refuses.store(true, Ordering::Relaxed);
        for stream in self.streams.lock().expect("a list").drain(..).flatten() {
            let _ended = stream.shutdown(Shutdown::Both);
        }
    }
}

fn pass(host: TcpStream, target: TcpStream, streams: &Mutex<Vec<[TcpStream; 2]>>) {
    for stream in [&host, &target] {
        stream.set_nodelay(true).expect("an option");
    }
    for (from, to) in [(&host, &target), (&target, &host)] {
        let (from, to) = (from.try_clone().expect("a clone"), to.try_clone().expect("a clone"));
        std::thread::spawn(move || pump(from, to));
    }
    streams.lock().expect("a list").push([host, target]);
}

fn pump(mut from: TcpStream, mut to: TcpStream) {
    let mut bytes = vec![0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ended = (from.shutdown(Shutdown::Read), to.shutdown(Shutdown::Write));
}

impl Drop for Cutter {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        drop(TcpStream::connect(self.address));
        let joined = self.thread.take().map(JoinHandle::join);
        assert!(joined.is_none_or(|joined| joined.is_ok()) || std::thread::panicking(), "the proxy ran");
        self.refuse();
    }
}
