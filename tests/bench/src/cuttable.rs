//! A way to a target through this process, which can be lost.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result};

/// The way. Its connections end with it.
pub(crate) struct Cuttable {
    /// Where it begins.
    pub(crate) address: SocketAddr,
    streams: Arc<Mutex<Vec<[TcpStream; 2]>>>,
    /// Nothing is carried any more, and nobody is told.
    silent: Arc<AtomicBool>,
    /// Whoever connects is sent away.
    closed: Arc<AtomicBool>,
}

impl Cuttable {
    /// A way to an address.
    pub(crate) fn to(target: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").context("a port")?;
        let address = listener.local_addr().context("an address")?;
        let this = Self { address, streams: Arc::default(), silent: Arc::default(), closed: Arc::default() };
        let (streams, silent, closed) = (this.streams.clone(), this.silent.clone(), this.closed.clone());
        thread::spawn(move || {
            while let Ok((host, _)) = listener.accept() {
                if closed.load(Ordering::Acquire) {
                    // Nobody listens any more.
                    return;
                }
                let Ok(far) = TcpStream::connect(target) else { continue };
                if carry(&host, &far, &silent).is_ok() {
                    streams.lock().unwrap_or_else(PoisonError::into_inner).push([host, far]);
                }
            }
        });
        Ok(this)
    }

    /// Each connection ends, and nobody listens any more.
    pub(crate) fn end(&self) {
        self.close();
        for [host, _] in self.streams.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let _ended = host.shutdown(Shutdown::Both);
        }
    }

    /// Nothing arrives any more, in either direction.
    pub(crate) fn fall_silent(&self) {
        self.silent.store(true, Ordering::Release);
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Release);
        // Wakes the thread that accepts.
        drop(TcpStream::connect(self.address));
    }
}

impl Drop for Cuttable {
    fn drop(&mut self) {
        self.close();
        for stream in self.streams.lock().unwrap_or_else(PoisonError::into_inner).drain(..).flatten() {
            let _ended = stream.shutdown(Shutdown::Both);
        }
    }
}

/// Carries bytes in both directions.
fn carry(host: &TcpStream, far: &TcpStream, silent: &Arc<AtomicBool>) -> std::io::Result<()> {
    for (from, to) in [(host, far), (far, host)] {
        to.set_nodelay(true)?;
        let (from, to, silent) = (from.try_clone()?, to.try_clone()?, Arc::clone(silent));
        thread::spawn(move || pass(from, to, &silent));
    }
    Ok(())
}

fn pass(mut from: TcpStream, mut to: TcpStream, silent: &AtomicBool) {
    let mut bytes = vec![0; 256 << 10];
    loop {
        match from.read(&mut bytes) {
            Ok(0) | Err(_) => break,
            // It stays in here, and so does all that comes later.
            Ok(_) if silent.load(Ordering::Acquire) => {}
            Ok(count) if to.write_all(&bytes[..count]).is_ok() => {}
            Ok(_) => break,
        }
    }
    let _ended = to.shutdown(Shutdown::Write);
}
