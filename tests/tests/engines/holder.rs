//! A proxy of bytes that keeps what hosts send, cuts them off, lets them come back, and sends on what it has kept.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use ringfab_tests::wait_until;

/// The proxy. Dropping it ends it, and its connections.
pub(crate) struct Holder {
    /// Where to connect instead.
    pub(crate) address: SocketAddr,
    connections: Arc<Mutex<Vec<Arc<Held>>>>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// A connection. What the target answers passes always.
pub(crate) struct Held {
    host: TcpStream,
    target: TcpStream,
    /// What the host has sent since it is kept; `None` while it passes.
    kept: Mutex<Option<Vec<u8>>>,
    /// The target has ended it.
    over: AtomicBool,
}

impl Holder {
    /// Takes connections for the target at `target`.
    pub(crate) fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let (connections, ended) = (Arc::<Mutex<Vec<Arc<Held>>>>::default(), Arc::<AtomicBool>::default());
        let (list, end) = (Arc::clone(&connections), Arc::clone(&ended));
        let thread = std::thread::spawn(move || {
            for host in listener.incoming() {
                if end.load(Ordering::Acquire) {
                    return;
                }
                let target = TcpStream::connect(target).expect("it listens");
                let connection = Held::start(host.expect("a host"), target);
                list.lock().expect("a list").push(connection);
            }
        });
        Self { address, connections, ended, thread: Some(thread) }
    }

    /// From now on it keeps what hosts send on the connections that there are. Returns these.
    pub(crate) fn keep(&self) -> Vec<Arc<Held>> {
        let mut connections = self.connections.lock().expect("a list");
        connections.retain(|one| !one.over.load(Ordering::Acquire));
        for one in connections.iter() {
            one.kept.lock().expect("bytes").get_or_insert_default();
        }
        connections.clone()
    }
}

impl Held {
    fn start(host: TcpStream, target: TcpStream) -> Arc<Self> {
        for stream in [&host, &target] {
            stream.set_nodelay(true).expect("an option");
        }
        let this = Arc::new(Self { host, target, kept: Mutex::default(), over: AtomicBool::default() });
        let (up, down) = (Arc::clone(&this), Arc::clone(&this));
        std::thread::spawn(move || up.pass_up());
        std::thread::spawn(move || down.pass_down());
        this
    }

    fn pass_up(&self) {
        let mut bytes = vec![0; 1 << 16];
        while let Ok(count @ 1..) = (&self.host).read(&mut bytes) {
            let mut kept = self.kept.lock().expect("bytes");
            match &mut *kept {
                Some(kept) => kept.extend_from_slice(&bytes[..count]),
                None if (&self.target).write_all(&bytes[..count]).is_ok() => {}
                None => return,
            }
        }
        // The target learns nothing of the end of a host whose bytes are kept.
        if self.kept.lock().expect("bytes").is_none() {
            let _ended = self.target.shutdown(Shutdown::Write);
        }
    }

    fn pass_down(&self) {
        let mut bytes = vec![0; 1 << 16];
        while let Ok(count @ 1..) = (&self.target).read(&mut bytes) {
            // The host may have been cut off.
            let _unheard = (&self.host).write_all(&bytes[..count]);
        }
        self.over.store(true, Ordering::Release);
        let _ended = self.host.shutdown(Shutdown::Both);
    }

    /// How many bytes are kept.
    pub(crate) fn kept(&self) -> usize {
        self.kept.lock().expect("bytes").as_ref().map_or(0, Vec::len)
    }

    /// The host loses the connection.
    pub(crate) fn cut(&self) {
        let _ended = self.host.shutdown(Shutdown::Both);
    }

    /// What is kept goes on, and what follows passes.
    pub(crate) fn pass(&self) {
        let mut kept = self.kept.lock().expect("bytes");
        let bytes = kept.take().unwrap_or_default();
        let _refused = (&self.target).write_all(&bytes);
    }

    /// What is kept arrives late, and then the end; returns when the target has done with both.
    pub(crate) fn release(&self) {
        self.pass();
        let _ended = self.target.shutdown(Shutdown::Write);
        wait_until("the target has ended the connection", || self.over.load(Ordering::Acquire));
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
        drop(TcpStream::connect(self.address));
        let joined = self.thread.take().map(JoinHandle::join);
        assert!(joined.is_none_or(|joined| joined.is_ok()) || std::thread::panicking(), "the proxy ran");
        for one in self.connections.lock().expect("a list").drain(..) {
            let _ended = (one.host.shutdown(Shutdown::Both), one.target.shutdown(Shutdown::Both));
        }
    }
}
