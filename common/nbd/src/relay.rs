//! One connection to the server for several cores, where an export allows no more.
//!
//! Each core has a socket to a thread here, over which it speaks the same protocol. The thread passes requests on, with
//! numbers of the relay's own; another thread brings the replies to the cores. So a flush of any core covers what all
//! of them have written. When the server goes, all of these sockets end.

use std::collections::HashMap;
use std::io::{self, BufRead as _, BufReader, BufWriter, Read as _, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use ringfab_proto::nbd::{Command, REQUEST_BYTES, ReplyHead, Request, SIMPLE_REPLY_BYTES, Wanted};

use crate::session::Session;
use crate::stream::Stream;

/// What a core is told when its requests can come.
pub(crate) const READY: u8 = 1;

/// How much is read or written at once.
const BUFFER_BYTES: usize = 256 << 10;

/// What is passed on at once, so that no core holds the server up.
const PIECE_BYTES: usize = 64 << 10;

/// How often a core that goes is looked for while the next connection has to wait.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// The relay of an export.
#[derive(Debug, Default)]
pub(crate) struct Relay {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    upstream: Weak<Upstream>,
    /// No connection is made before this: something of the last one may still be on its way to the server.
    not_before: Option<Instant>,
}

/// A connection to the server.
#[derive(Debug)]
struct Upstream {
    stream: Stream,
    cores: Mutex<Vec<Weak<UnixStream>>>,
    /// For whoever writes a request.
    writer: Mutex<BufWriter<StreamWriter>>,
    asked: Mutex<HashMap<u64, Asked>>,
    next: AtomicU64,
    /// Changes of the disk that were not answered.
    changes: AtomicU64,
}

/// Writes to a handle of its own.
#[derive(Debug)]
struct StreamWriter(Stream);

impl Write for StreamWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&self.0).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A request that the server has.
#[derive(Debug)]
struct Asked {
    core: Arc<UnixStream>,
    request: Request,
}

impl Relay {
    /// A socket for a core. It says [`READY`] when the server is connected, and ends if it cannot be.
    ///
    /// # Errors
    /// When there are no sockets or threads.
    pub(crate) fn connect(self: &Arc<Self>, session: &Arc<Session>) -> io::Result<UnixStream> {
        let (core, here) = UnixStream::pair()?;
        let (this, session) = (Arc::clone(self), Arc::clone(session));
        let serve = move || {
            if let Err(error) = this.serve(&session, &Arc::new(here)) {
                session.note_fault(&error.to_string());
            }
        };
        thread::Builder::new().name("nbd-requests".to_owned()).spawn(serve)?;
        Ok(core)
    }

    /// Passes the requests of a core on, until it or the server goes.
    fn serve(self: &Arc<Self>, session: &Arc<Session>, core: &Arc<UnixStream>) -> io::Result<()> {
        let upstream = self.upstream(session, core)?;
        upstream.cores().push(Arc::downgrade(core));
        (&**core).write_all(&[READY])?;
        let outcome = upstream.pass_on(core);
        // The core is not to wait for the rest. What it has asked for may still be answered, to nobody.
        let _gone_already = core.shutdown(Shutdown::Both);
        if outcome.is_err() {
            upstream.stream.shut_down();
        }
        Ok(())
    }

    /// The connection to the server, which the first core makes.
    fn upstream(self: &Arc<Self>, session: &Arc<Session>, core: &UnixStream) -> io::Result<Arc<Upstream>> {
        let mut state = self.state();
        while let Some(at) = state.not_before.filter(|at| *at > Instant::now()) {
            drop(state);
            thread::sleep(LOOK_INTERVAL.min(at.saturating_duration_since(Instant::now())));
            if has_gone(core) {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            state = self.state();
        }
        if let Some(upstream) = state.upstream.upgrade() {
            return Ok(upstream);
        }
        let upstream = Arc::new(Upstream::connect(session)?);
        state.upstream = Arc::downgrade(&upstream);
        let (this, session, weak) = (Arc::clone(self), Arc::clone(session), Arc::downgrade(&upstream));
        let reader = upstream.stream.try_clone()?;
        let bring = move || this.bring_replies(&session, &reader, &weak);
        thread::Builder::new().name("nbd-replies".to_owned()).spawn(bring)?;
        Ok(upstream)
    }

    /// Brings replies to the cores, until the server or the last core goes.
    fn bring_replies(&self, session: &Session, stream: &Stream, upstream: &Weak<Upstream>) {
        let mut reader = BufReader::with_capacity(BUFFER_BYTES, stream);
        let mut outcome = Ok(());
        while outcome.is_ok() {
            outcome = bring_one(&mut reader, upstream);
        }
        let mut state = self.state();
        state.upstream = Weak::new();
        stream.shut_down();
        let Some(upstream) = upstream.upgrade() else { return };
        let server_knows = matches!(&outcome, Err(error) if is_known_to_server(error));
        if !server_knows && upstream.changes.load(Ordering::SeqCst) > 0 {
            state.not_before = Some(Instant::now() + session.options.replay_delay);
        }
        for core in upstream.cores().iter().filter_map(Weak::upgrade) {
            let _gone_already = core.shutdown(Shutdown::Both);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the server has ended the connection.
fn is_known_to_server(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

/// Whether a core has closed its socket.
fn has_gone(core: &UnixStream) -> bool {
    let _as_before = core.set_nonblocking(true);
    let gone = matches!((&mut &*core).read(&mut [0]), Ok(0));
    let _as_before = core.set_nonblocking(false);
    gone
}

impl Upstream {
    fn connect(session: &Session) -> io::Result<Self> {
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for target in session.resolve()? {
            match Stream::connect(&target, session.address.export(), Wanted::Use) {
                Ok((stream, info)) => {
                    session.admit(info).map_err(|refusal| io::Error::other(refusal.to_string()))?;
                    return Self::of(stream);
                }
                Err(error) => last = io::Error::new(error.kind(), format!("{target}: {error}")),
            }
        }
        Err(last)
    }

    fn of(stream: Stream) -> io::Result<Self> {
        let writer = BufWriter::with_capacity(BUFFER_BYTES, StreamWriter(stream.try_clone()?));
        Ok(Self {
            stream,
            cores: Mutex::default(),
            writer: Mutex::new(writer),
            asked: Mutex::default(),
            next: AtomicU64::new(1),
            changes: AtomicU64::new(0),
        })
    }

    fn cores(&self) -> MutexGuard<'_, Vec<Weak<UnixStream>>> {
        self.cores.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn asked(&self) -> MutexGuard<'_, HashMap<u64, Asked>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes the requests of a core on.
    ///
    /// # Errors
    /// When the server takes no more; not when the core goes.
    fn pass_on(&self, core: &Arc<UnixStream>) -> io::Result<()> {
        let mut reader = BufReader::with_capacity(BUFFER_BYTES, &**core);
        let (mut head, mut piece) = ([0; REQUEST_BYTES], vec![0; PIECE_BYTES]);
        while reader.read_exact(&mut head).is_ok() {
            let Some(request) = Request::parse(&head) else { return Ok(()) };
            if request.command == Command::Disconnect {
                return Ok(());
            }
            let cookie = self.next.fetch_add(1, Ordering::Relaxed);
            self.changes.fetch_add(u64::from(changes(&request)), Ordering::SeqCst);
            self.asked().insert(cookie, Asked { core: Arc::clone(core), request });
            let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
            writer.write_all(&Request { cookie, ..request }.to_bytes())?;
            let mut left = request.payload_bytes() as usize;
            while left > 0 {
                let bytes = &mut piece[..left.min(PIECE_BYTES)];
                // A core that goes in the middle of a request leaves a connection that nobody can use any more.
                reader.read_exact(bytes)?;
                writer.write_all(bytes)?;
                left -= bytes.len();
            }
            if reader.buffer().len() < REQUEST_BYTES {
                writer.flush()?;
            }
        }
        Ok(())
    }
}

impl Drop for Upstream {
    /// The server is told, and whoever waits for it waits no longer.
    fn drop(&mut self) {
        let writer = self.writer.get_mut().unwrap_or_else(PoisonError::into_inner);
        let goodbye = Request { flags: 0, command: Command::Disconnect, cookie: 0, offset: 0, length: 0 };
        let _gone_already = writer.write_all(&goodbye.to_bytes()).and_then(|()| writer.flush());
        self.stream.shut_down();
    }
}

const fn changes(request: &Request) -> bool {
    matches!(request.command, Command::Write | Command::WriteZeroes | Command::Trim)
}

/// Brings the next reply, or a part of one, to its core.
fn bring_one(reader: &mut BufReader<&Stream>, upstream: &Weak<Upstream>) -> io::Result<()> {
    let mut bytes = [0; ReplyHead::BYTES_MAX];
    reader.read_exact(&mut bytes[..SIMPLE_REPLY_BYTES])?;
    let mut length = SIMPLE_REPLY_BYTES;
    let head = loop {
        match ReplyHead::parse(&bytes[..length]).map_err(io::Error::other)? {
            Some((head, _)) => break head,
            None => {
                // The next step of a head is four bytes at least.
                reader.read_exact(&mut bytes[length..length + 4])?;
                length += 4;
            }
        }
    };
    let upstream = upstream.upgrade().ok_or(io::ErrorKind::UnexpectedEof)?;
    let mut asked = upstream.asked();
    let of = asked.get(&head.cookie()).ok_or_else(|| io::Error::other("a reply to no request"))?;
    let (core, request) = (Arc::clone(&of.core), of.request);
    if is_last(&head) {
        asked.remove(&head.cookie());
        upstream.changes.fetch_sub(u64::from(changes(&request)), Ordering::SeqCst);
    }
    drop(asked);
    let rest = match head {
        ReplyHead::Simple { errno: 0, .. } if request.command == Command::Read => request.length,
        ReplyHead::Data { length, .. } => length,
        ReplyHead::Error { rest, .. } => rest,
        _ => 0,
    };
    bytes[8..16].copy_from_slice(&request.cookie.to_be_bytes());
    let mut writer = BufWriter::with_capacity(PIECE_BYTES, &*core);
    // Who has gone gets nothing; what belongs to it is taken all the same.
    let mut there = writer.write_all(&bytes[..length]).is_ok();
    let mut left = rest as usize;
    while left > 0 {
        let bytes = reader.fill_buf()?;
        let count = bytes.len().min(left);
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        there = there && writer.write_all(&bytes[..count]).is_ok();
        reader.consume(count);
        left -= count;
    }
    if there {
        let _gone_meanwhile = writer.flush();
    }
    Ok(())
}

/// Whether a request is answered with this.
const fn is_last(head: &ReplyHead) -> bool {
    match head {
        ReplyHead::Simple { .. } => true,
        ReplyHead::Nothing { done, .. }
        | ReplyHead::Data { done, .. }
        | ReplyHead::Hole { done, .. }
        | ReplyHead::Error { done, .. } => *done,
    }
}
