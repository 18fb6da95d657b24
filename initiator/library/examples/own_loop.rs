//! Engines in a loop that is the program's own: one thread waits with poll(2) for two engines and for a socket, and
//! nothing else waits. Another thread sends bytes over the socket. The loop writes each of them to the disk with one
//! engine, reads it back with the other, and answers with what it has read. It writes to the disk!
//!
//! `cargo run -p ringfab-initiator --example own_loop -- nvme+tcp://192.0.2.1/nqn.2026-01.org.example:disk`

use std::error::Error;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use ringfab_initiator::{
    ClassLayout, ConnectOptions, ControllerId, Host, HostConfig, HostEvent, HostIdentity, IoDone,
    IoOperation, IoRequest, Reactor, ReactorConfig, RnicConfig, Url, Wait,
};

/// Bytes that are sent over the socket.
const BYTES: u8 = 200;
/// The most bytes of a block.
const BLOCK_BYTES_MAX: usize = 65_536;

fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).ok_or("usage: own_loop URL")?;
    assert_eq!(run(&url)?, usize::from(BYTES));
    Ok(())
}

/// Runs the loop until the other thread has all answers; how many these were.
pub(crate) fn run(url: &str) -> Result<usize, Box<dyn Error>> {
    let (socket, theirs) = UnixStream::pair()?;
    socket.set_nonblocking(true)?;
    let other = thread::spawn(move || ask(theirs));
    Loop { writer: Engine::attach(url)?, reader: Engine::attach(url)?, socket, state: State::Attaching }
        .run()?;
    Ok(other.join().expect("a thread that does not panic")?)
}

/// Sends a byte after the other, and waits for each to come back.
fn ask(mut socket: UnixStream) -> io::Result<usize> {
    for byte in 0..BYTES {
        let mut answer = [0];
        socket.write_all(&[byte])?;
        socket.read_exact(&mut answer)?;
        assert_eq!(answer, [byte], "another one writes to this disk");
    }
    Ok(BYTES.into())
}

/// An engine and its controller.
struct Engine {
    host: Host,
    controller: ControllerId,
    /// The namespace that is used, once the controller is ready: its identifier and the bytes of a block.
    disk: Option<(u32, usize)>,
    detached: bool,
}

impl Engine {
    fn attach(url: &str) -> Result<Self, Box<dyn Error>> {
        let url: Url = url.parse()?;
        let identity = HostIdentity::for_url(&url)?;
        let reactor = ReactorConfig { entries: 64, spin: Duration::ZERO, descriptors_max: 64 };
        // A program takes these seeds from the system's random numbers: keys of registered memory come from the first.
        let seed = std::array::from_fn(|index| index as u8);
        let pool = vec![ClassLayout { buffer_bytes: BLOCK_BYTES_MAX, count: 16 }];
        let config = HostConfig::new(pool, RnicConfig::new(0, seed), 1);
        let mut host = Host::new(Reactor::new(&reactor)?, config)?;
        let controller = host.attach(ConnectOptions::new(url, identity));
        Ok(Self { host, controller, disk: None, detached: false })
    }

    /// Goes on without waiting. Returns the commands that have ended.
    fn turn(&mut self) -> Result<Vec<IoDone>, Box<dyn Error>> {
        self.host.turn(Wait::No)?;
        let mut ended = Vec::new();
        while let Some(event) = self.host.next_event() {
            match event {
                HostEvent::Ready { .. } => {
                    let namespace = self.host.namespaces(self.controller).first();
                    let namespace = namespace.ok_or("the controller has no namespace")?;
                    self.disk = Some((namespace.nsid, namespace.block_bytes as usize));
                }
                HostEvent::IoDone(done) => ended.push(done),
                HostEvent::Failed { error, .. } => return Err(error.into()),
                HostEvent::Detached { .. } => self.detached = true,
                _ => {}
            }
        }
        Ok(ended)
    }

    fn submit(&mut self, nsid: u32, operation: IoOperation) -> Result<(), Box<dyn Error>> {
        let request = IoRequest { nsid, tag: 0, operation };
        Ok(self.host.submit(self.controller, request).map_err(|refused| refused.reason)?)
    }
}

/// What the loop waits for, but for its end.
enum State {
    Attaching,
    Request,
    Written,
    Read,
    Detaching,
}

struct Loop {
    writer: Engine,
    reader: Engine,
    socket: UnixStream,
    state: State,
}

impl Loop {
    fn run(mut self) -> Result<(), Box<dyn Error>> {
        while !(self.writer.detached && self.reader.detached) {
            self.wait()?;
            for done in self.writer.turn()?.into_iter().chain(self.reader.turn()?) {
                self.on_done(done)?;
            }
            match self.state {
                State::Attaching if self.writer.disk.is_some() && self.reader.disk.is_some() => {
                    self.state = State::Request;
                }
                State::Request => self.take_request()?,
                _ => {}
            }
        }
        Ok(())
    }

    /// The only place that waits. Nobody must be waited for who has something to do already.
    fn wait(&mut self) -> Result<(), Box<dyn Error>> {
        let quiet = [self.writer.host.prepare_to_wait()?, self.reader.host.prepare_to_wait()?];
        let timeout = if quiet == [true; 2] { PollTimeout::NONE } else { PollTimeout::ZERO };
        let descriptors =
            [self.writer.host.descriptor()?, self.reader.host.descriptor()?, self.socket.as_fd()];
        let mut watched = descriptors.map(|descriptor| PollFd::new(descriptor, PollFlags::POLLIN));
        // A byte that comes before its turn waits in the socket.
        let count = if matches!(self.state, State::Request) { 3 } else { 2 };
        poll(&mut watched[..count], timeout)?;
        Ok(())
    }

    /// Writes the byte that has come, if one has.
    fn take_request(&mut self) -> Result<(), Box<dyn Error>> {
        let mut byte = [0];
        match self.socket.read(&mut byte) {
            Ok(0) => {
                self.writer.host.detach(self.writer.controller);
                self.reader.host.detach(self.reader.controller);
                self.state = State::Detaching;
            }
            Ok(_) => {
                let (nsid, block_bytes) = self.writer.disk.ok_or("it is not attached")?;
                let mut buffer = self.writer.host.pool().take(block_bytes).ok_or("no buffer")?;
                buffer[..block_bytes].fill(byte[0]);
                let source = buffer.share();
                let lba = byte[0].into();
                self.writer
                    .submit(nsid, IoOperation::Write { lba, nlb: 1, source, offset: 0, fua: false })?;
                self.state = State::Written;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Reads what was written, or answers with what was read.
    fn on_done(&mut self, done: IoDone) -> Result<(), Box<dyn Error>> {
        done.result?;
        match self.state {
            State::Written => {
                let written = done.source.ok_or("a write gives its memory back")?;
                let lba = written.with_bytes(0..1, |bytes| bytes[0]).into();
                let (nsid, block_bytes) = self.reader.disk.ok_or("it is not attached")?;
                let buffer = self.reader.host.pool().take(block_bytes).ok_or("no buffer")?;
                self.reader.submit(nsid, IoOperation::Read { lba, nlb: 1, buffer })?;
                self.state = State::Read;
            }
            _ => {
                let read = done.buffer.ok_or("a read gives its buffer back")?;
                self.socket.write_all(&read[..1])?;
                self.state = State::Request;
            }
        }
        Ok(())
    }
}
