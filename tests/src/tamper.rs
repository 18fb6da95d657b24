//! A proxy between a host and a target of NVMe/TCP that sees every PDU and passes it on as a test likes.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use ringfab_spec::FromBytes;
use ringfab_spec::tcp::{CommonHeader, FatalError, PduType, TermReq};

use crate::recording::From;

/// A PDU on its way.
#[derive(Clone, Debug)]
pub struct Passing {
    /// Who sent it.
    pub from: From,
    /// On which connection, in the order in which they were made.
    pub connection: usize,
    /// All of it.
    pub bytes: Vec<u8>,
}

impl Passing {
    /// Its type.
    pub fn pdu_type(&self) -> PduType {
        PduType(self.bytes[0])
    }
}

/// Passes a PDU on; an error ends that direction of the connection.
type Pass = dyn Fn(Passing, &mut TcpStream) -> io::Result<()> + Send + Sync;

/// The proxy. Dropping it stops it; connections end with their ends.
#[derive(Debug)]
pub struct Tamper {
    /// Where to connect instead.
    pub address: SocketAddr,
    terminations: Arc<Mutex<Vec<(FatalError, u32)>>>,
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Tamper {
    /// Takes connections for the target at `target`.
    ///
    /// # Panics
    /// When there is no port.
    pub fn start(
        target: SocketAddr,
        pass: impl Fn(Passing, &mut TcpStream) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let (terminations, stopped) = (Arc::default(), Arc::new(AtomicBool::new(false)));
        let (heard, told, pass): (_, _, Arc<Pass>) =
            (Arc::clone(&terminations), Arc::clone(&stopped), Arc::new(pass));
        let thread = std::thread::spawn(move || {
            for (connection, host) in listener.incoming().enumerate() {
                if told.load(Ordering::Relaxed) {
                    return;
                }
                let (host, target) = (host.expect("a host"), TcpStream::connect(target).expect("it listens"));
                for stream in [&host, &target] {
                    stream.set_nodelay(true).expect("an option");
                }
                for (from, source, sink) in [(From::Host, &host, &target), (From::Target, &target, &host)] {
                    let (source, sink) =
                        (source.try_clone().expect("a clone"), sink.try_clone().expect("a clone"));
                    let (pass, heard) = (Arc::clone(&pass), Arc::clone(&heard));
                    std::thread::spawn(move || {
                        pump(source, sink, |bytes, sink| {
                            note(&heard, from, &bytes);
                            pass(Passing { from, connection, bytes }, sink)
                        });
                    });
                }
            }
        });
        Self { address, terminations, stopped, thread: Some(thread) }
    }

    /// Why hosts have ended connections, as far as they said so.
    ///
    /// # Panics
    /// Never: nobody panics with it.
    pub fn terminations(&self) -> Vec<(FatalError, u32)> {
        self.terminations.lock().expect("a list").clone()
    }
}

impl Drop for Tamper {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        drop(TcpStream::connect(self.address));
        let joined = self.thread.take().map(JoinHandle::join);
        assert!(joined.is_none_or(|joined| joined.is_ok()) || std::thread::panicking(), "the proxy ran");
    }
}

fn note(heard: &Mutex<Vec<(FatalError, u32)>>, from: From, bytes: &[u8]) {
    if let Ok((request, _)) = TermReq::read_from_prefix(bytes)
        && from == From::Host
        && request.ch.pdu_type == PduType::H2C_TERM_REQ
    {
        heard.lock().expect("a list").push((request.fatal_error(), request.fei.get()));
    }
}

fn pump(
    mut source: TcpStream,
    mut sink: TcpStream,
    pass: impl Fn(Vec<u8>, &mut TcpStream) -> io::Result<()>,
) {
    while let Ok(bytes) = read_pdu(&mut source) {
        if pass(bytes, &mut sink).is_err() {
            break;
        }
    }
    let _gone = sink.shutdown(Shutdown::Write);
}

fn read_pdu(source: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; CommonHeader::SIZE];
    source.read_exact(&mut bytes)?;
    let plen = CommonHeader::read_from_bytes(&bytes).map_or(0, |ch| ch.plen.get() as usize);
    bytes.resize(plen.max(CommonHeader::SIZE), 0);
    source.read_exact(&mut bytes[CommonHeader::SIZE..])?;
    Ok(bytes)
}

/// Passes a PDU on as it is.
///
/// # Errors
/// When the other end has gone.
pub fn unchanged(pdu: &Passing, sink: &mut TcpStream) -> io::Result<()> {
    sink.write_all(&pdu.bytes)
}
