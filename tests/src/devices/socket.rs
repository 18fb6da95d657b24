//! A disk behind a socket: the transmission phase of NBD with simple replies, and a server for it that answers in
//! another order than it is asked.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use ringfab_base::{SlotId, Slots};
use ringfab_block::{
    BlockDevice, BlockError, DiskProperties, DiskTokens, Driver, Finished, OpenError, Operation, Started, Tag,
};
use ringfab_reactor::{Completion, Payload, Reactor, ReceiveOp, SendBatch, SocketId, SocketOptions};

const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
const REQUEST_BYTES: usize = 28;
const REPLY_BYTES: usize = 16;

/// Commands of NBD.
mod command {
    pub(super) const READ: u16 = 0;
    pub(super) const WRITE: u16 = 1;
    pub(super) const FLUSH: u16 = 3;
    pub(super) const WRITE_ZEROES: u16 = 6;
}

/// Connects a core to a server of so many bytes.
#[derive(Debug)]
pub struct SocketDriver {
    /// Where the server is.
    pub address: SocketAddr,
    /// Size of its disk.
    pub bytes: u64,
}

impl Driver for SocketDriver {
    fn name(&self) -> String {
        format!("nbd://{}", self.address)
    }

    /// It waits for nothing: operations that come before the connection is up are sent when it is.
    fn open(&self, reactor: &mut Reactor, tokens: DiskTokens) -> Result<Box<dyn BlockDevice>, OpenError> {
        let socket =
            reactor.connect(self.address, &SocketOptions::default(), tokens.token_of_kind(kind::CONNECT));
        let socket =
            socket.map_err(|error| OpenError::Device { name: self.name(), reason: error.to_string() })?;
        Ok(Box::new(SocketDevice {
            bytes: self.bytes,
            tokens,
            socket,
            state: State::Connecting,
            requests: Slots::new(),
            unsent: VecDeque::new(),
            batch: Some(SendBatch::new(64 * REQUEST_BYTES, 128)),
            input: Vec::new(),
            finished: VecDeque::new(),
        }))
    }
}

/// Kinds of reactor operations.
mod kind {
    pub(super) const CONNECT: u8 = 0;
    pub(super) const SEND: u8 = 1;
    pub(super) const RECEIVE: u8 = 2;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Connecting,
    Connected,
    /// The server has gone: nothing works any more.
    Broken,
}

/// A core's connection.
#[derive(Debug)]
struct SocketDevice {
    bytes: u64,
    tokens: DiskTokens,
    socket: SocketId,
    state: State,
    requests: Slots<(Operation, Tag)>,
    /// Requests that are still to be sent, in order.
    unsent: VecDeque<SlotId>,
    /// What the next send is made in; none while one is in flight.
    batch: Option<Box<SendBatch>>,
    /// What has arrived and is not a whole reply yet.
    input: Vec<u8>,
    finished: VecDeque<Finished>,
}

impl SocketDevice {
    /// Sends as many requests as fit, unless a send is in flight.
    fn send(&mut self, reactor: &mut Reactor) {
        if self.state != State::Connected || self.unsent.is_empty() {
            return;
        }
        let Some(mut batch) = self.batch.take() else { return };
        while let Some(id) = self.unsent.front().copied().filter(|_| batch.has_room(REQUEST_BYTES, 2)) {
            self.unsent.pop_front();
            let (operation, _) = self.requests.get(id).expect("a request that was not sent has no answer");
            batch.push_bytes(&request(id, operation));
            if let Operation::Write { source, at, length, .. } = operation {
                batch.push_shared(source.clone(), *at as usize, *length as usize);
            }
        }
        reactor.send(self.socket, batch, self.tokens.token_of_kind(kind::SEND));
    }

    fn receive(&self, reactor: &mut Reactor, mut operation: Box<ReceiveOp>) {
        operation.set_target(None, 0, operation.staging().len());
        reactor.receive(self.socket, operation, self.tokens.token_of_kind(kind::RECEIVE));
    }

    /// Takes every whole reply of what has arrived.
    fn take_replies(&mut self) -> Result<(), BlockError> {
        let mut taken = 0;
        while let Some(head) = self.input.get(taken..taken + REPLY_BYTES) {
            let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().expect("four bytes"));
            let id = SlotId { generation: word(8), index: word(12) };
            let known = self.requests.get(id).filter(|_| word(0) == REPLY_MAGIC);
            let (operation, _) = known.ok_or(BlockError::Removed)?;
            let result = if word(4) == 0 { Ok(()) } else { Err(BlockError::Write) };
            let length = match operation {
                Operation::Read { buffer, .. } if result.is_ok() => buffer.len(),
                _ => 0,
            };
            let start = taken + REPLY_BYTES;
            let Some(bytes) = self.input.get(start..start + length) else { break };
            let (mut operation, tag) = self.requests.remove(id).expect("it was just there");
            if let (Operation::Read { buffer, .. }, Ok(())) = (&mut operation, result) {
                buffer.copy_from_slice(bytes);
            }
            self.finished.push_back(operation.finish(tag, result));
            taken = start + length;
        }
        self.input.drain(..taken);
        Ok(())
    }

    /// Nothing is sent any more. What the kernel may still read is given back when its send has ended.
    fn fail(&mut self, reactor: &mut Reactor) {
        if self.state != State::Broken {
            self.state = State::Broken;
            reactor.close_socket(self.socket);
        }
        if self.batch.is_some() {
            let ids: Vec<SlotId> = self.requests.iter().map(|(id, _)| id).collect();
            for (operation, tag) in ids.into_iter().filter_map(|id| self.requests.remove(id)) {
                self.finished.push_back(operation.finish(tag, Err(BlockError::Removed)));
            }
            self.unsent.clear();
        }
    }
}

/// The command for an operation; none for what this protocol does not have.
fn command_of(operation: &Operation) -> Option<u16> {
    Some(match operation {
        Operation::Read { .. } => command::READ,
        Operation::Write { .. } => command::WRITE,
        Operation::Flush => command::FLUSH,
        Operation::WriteZeroes { .. } | Operation::Discard { .. } => command::WRITE_ZEROES,
        _ => return None,
    })
}

fn request(id: SlotId, operation: &Operation) -> [u8; REQUEST_BYTES] {
    let command = command_of(operation).expect("others were refused");
    let (offset, length) = operation.range().unwrap_or_default();
    let mut bytes = [0; REQUEST_BYTES];
    bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
    bytes[6..8].copy_from_slice(&command.to_be_bytes());
    bytes[8..12].copy_from_slice(&id.generation.to_be_bytes());
    bytes[12..16].copy_from_slice(&id.index.to_be_bytes());
    bytes[16..24].copy_from_slice(&offset.to_be_bytes());
    bytes[24..].copy_from_slice(&(length as u32).to_be_bytes());
    bytes
}

impl BlockDevice for SocketDevice {
    fn properties(&self) -> DiskProperties {
        DiskProperties::new(self.bytes).with_volatile_cache(true)
    }

    fn start(&mut self, reactor: &mut Reactor, operation: Operation, tag: Tag) -> Started {
        if self.state == State::Broken {
            return Started::Finished(operation.finish(tag, Err(BlockError::Removed)));
        }
        if command_of(&operation).is_none() {
            return Started::Finished(operation.finish(tag, Err(BlockError::NotSupported)));
        }
        let id = self.requests.insert((operation, tag));
        self.unsent.push_back(id);
        self.send(reactor);
        Started::Pending
    }

    fn on_completion(&mut self, reactor: &mut Reactor, completion: Completion) -> Option<Finished> {
        let moved = completion.result.unwrap_or(0);
        match (DiskTokens::kind_of(completion.token), completion.payload) {
            (kind::CONNECT, _) if self.state == State::Connecting => {
                self.state = State::Connected;
                self.receive(reactor, ReceiveOp::new(64 << 10));
            }
            (_, Payload::Send(mut batch)) => {
                batch.clear();
                self.batch = Some(batch);
            }
            (_, Payload::Receive(operation)) if moved > 0 => {
                self.input.extend_from_slice(&operation.staging()[..moved as usize]);
                match self.take_replies() {
                    Ok(()) => self.receive(reactor, operation),
                    Err(_) => self.fail(reactor),
                }
            }
            _ => self.fail(reactor),
        }
        if self.state == State::Broken {
            self.fail(reactor);
        }
        self.send(reactor);
        self.finished.pop_front()
    }

    fn next_finished(&mut self, _: &mut Reactor) -> Option<Finished> {
        self.finished.pop_front()
    }

    fn close(&mut self, reactor: &mut Reactor) {
        if self.state != State::Broken {
            reactor.close_socket(self.socket);
        }
    }
}

/// A server of a disk in memory. Its threads end when it is stopped.
#[derive(Debug)]
pub struct SocketServer {
    address: SocketAddr,
    connections: Arc<Mutex<Vec<TcpStream>>>,
}

impl SocketServer {
    /// Serves `bytes` zeroes on a free port.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn start(bytes: usize) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let connections = Arc::<Mutex<Vec<TcpStream>>>::default();
        let (image, known) = (Arc::new(Mutex::new(vec![0; bytes])), Arc::clone(&connections));
        thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let Ok(copy) = stream.try_clone() else { return };
                let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
                known.push(copy);
                let image = Arc::clone(&image);
                thread::spawn(move || serve(stream, &image));
            }
        });
        Ok(Self { address, connections })
    }

    /// A driver for its disk.
    pub fn driver(&self, bytes: u64) -> SocketDriver {
        SocketDriver { address: self.address, bytes }
    }

    /// Cuts every connection.
    pub fn cut(&self) {
        for connection in self.connections.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            // It may have ended by itself.
            let _ended = connection.shutdown(std::net::Shutdown::Both);
        }
    }
}

/// Reads what requests there are, does them, and answers them backwards.
fn serve(mut stream: TcpStream, image: &Mutex<Vec<u8>>) -> io::Result<()> {
    let mut replies: Vec<Vec<u8>> = Vec::new();
    loop {
        // Without more requests for a moment, those that there are get their answers.
        stream.set_read_timeout((!replies.is_empty()).then_some(Duration::from_micros(200)))?;
        let mut first = [0];
        match stream.read(&mut first) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                for reply in replies.drain(..).rev() {
                    stream.write_all(&reply)?;
                }
                continue;
            }
            Err(error) => return Err(error),
        }
        stream.set_read_timeout(None)?;
        let mut request = [first[0]; REQUEST_BYTES];
        stream.read_exact(&mut request[1..])?;
        let number = |range: std::ops::Range<usize>| {
            request[range].iter().fold(0_usize, |number, byte| number << 8 | usize::from(*byte))
        };
        let (what, offset, length) = (number(6..8) as u16, number(16..24), number(24..28));
        let mut reply = REPLY_MAGIC.to_be_bytes().to_vec();
        reply.extend_from_slice(&[0; 4]);
        reply.extend_from_slice(&request[8..16]);
        let mut written = vec![0; if what == command::WRITE { length } else { 0 }];
        stream.read_exact(&mut written)?;
        let mut image = image.lock().unwrap_or_else(PoisonError::into_inner);
        match what {
            command::READ => reply.extend_from_slice(&image[offset..offset + length]),
            command::WRITE => image[offset..offset + length].copy_from_slice(&written),
            command::WRITE_ZEROES => image[offset..offset + length].fill(0),
            _ => {}
        }
        replies.push(reply);
    }
}
