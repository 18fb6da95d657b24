//! A way to a target through this process, which can be lost.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use socket2::SockRef;

/// How often whoever carries looks whether the way is over.
const LOOK: Duration = Duration::from_millis(5);

/// The way. Its connections end with it.
pub(crate) struct Cuttable {
    /// Where it begins.
    pub(crate) address: SocketAddr,
    fate: Arc<Fate>,
}

/// What becomes of it.
#[derive(Default)]
struct Fate {
    /// Nothing is carried any more, and nobody is told.
    silent: AtomicBool,
    /// Its connections are reset, and nobody listens any more.
    over: AtomicBool,
}

impl Cuttable {
    /// A way to an address.
    pub(crate) fn to(target: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").context("a port")?;
        let this = Self { address: listener.local_addr().context("an address")?, fate: Arc::default() };
        let fate = Arc::clone(&this.fate);
        thread::spawn(move || {
            while let Ok((host, _)) = listener.accept() {
                if fate.over.load(Ordering::Acquire) {
                    return;
                }
                let Ok(far) = TcpStream::connect(target) else { continue };
                let _lost = carry(host, far, &fate);
            }
        });
        Ok(this)
    }

    /// Each connection is reset, and nobody listens any more.
    pub(crate) fn reset(&self) {
        self.fate.over.store(true, Ordering::Release);
        // Wakes the thread that accepts.
        drop(TcpStream::connect(self.address));
    }

    /// Nothing arrives any more, in either direction.
    pub(crate) fn fall_silent(&self) {
        self.fate.silent.store(true, Ordering::Release);
    }
}

impl Drop for Cuttable {
    fn drop(&mut self) {
        self.reset();
    }
}

/// Carries bytes in both directions, by two threads. The one that ends last closes both sockets.
fn carry(host: TcpStream, far: TcpStream, fate: &Arc<Fate>) -> std::io::Result<()> {
    for stream in [&host, &far] {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(LOOK))?;
        // Closed is reset: whoever ends in order has said so with a shutdown before.
        SockRef::from(stream).set_linger(Some(Duration::ZERO))?;
    }
    let ends = Arc::new([host, far]);
    for from in 0..2 {
        let (ends, fate) = (Arc::clone(&ends), Arc::clone(fate));
        thread::spawn(move || pass(&ends[from], &ends[1 - from], &fate));
    }
    Ok(())
}

fn pass(mut from: &TcpStream, mut to: &TcpStream, fate: &Fate) {
    let mut bytes = vec![0; 256 << 10];
    while !fate.over.load(Ordering::Acquire) {
        match from.read(&mut bytes) {
            Ok(0) => {
                let _ended = to.shutdown(Shutdown::Write);
                return;
            }
            // It stays in here, and so does all that comes later.
            Ok(_) if fate.silent.load(Ordering::Acquire) => {}
            Ok(count) if to.write_all(&bytes[..count]).is_ok() => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Ok(_) | Err(_) => return,
        }
    }
}
