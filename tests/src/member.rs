//! A host that authenticates over NVMe/TCP, message by message. What it is not answered is an error, and no panic.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use ringfab_auth::{DhchapKey, HostStep, HostTransaction, Parties, Policy, SequenceNumbers, system_random};
use ringfab_spec::auth::SecureChannel;
use ringfab_spec::nqn::Nqn;
use ringfab_spec::sqe::{AuthenticationCommand, PropertySize};
use ringfab_spec::tcp::{CapsuleResp, CommonHeader, Digests, IcResp, PduType};
use ringfab_spec::{CompletionEntry, FromBytes, SglDescriptor, Status, SubmissionEntry};

use crate::NQN;
use crate::raw_tcp::{capsule, connect_as, ic_req, stream_from};

/// Bytes of the buffer for a message.
const BUFFER: u32 = 4096;

/// The name of a host, and its key.
#[derive(Clone, Debug)]
pub struct Credentials {
    name: String,
    parties: Arc<Parties>,
    policy: Arc<Policy>,
}

/// A host with an admin queue and an I/O queue, both authenticated.
#[derive(Debug)]
pub struct Member {
    admin: Wire,
    io: Wire,
    controller: u16,
}

/// A connection, on which a queue is connected.
#[derive(Debug)]
pub struct Wire {
    stream: TcpStream,
    cid: u16,
}

impl Credentials {
    /// A host that authenticates with what it is told to accept.
    ///
    /// # Panics
    /// When the name is none.
    pub fn new(name: &str, key: &DhchapKey, policy: Policy) -> Self {
        Self::both_ways(name, key, None, policy)
    }

    /// One that authenticates the target, too, if it has a key for that.
    ///
    /// # Panics
    /// When the name is none.
    pub fn both_ways(
        name: &str,
        key: &DhchapKey,
        controller_key: Option<&DhchapKey>,
        policy: Policy,
    ) -> Self {
        let (host, subsystem) = (Nqn::new(name).expect("a name"), Nqn::new(NQN).expect("a name"));
        let parties = Parties::new(host, subsystem, key, controller_key);
        Self { name: name.to_owned(), parties, policy: Arc::new(policy) }
    }
}

impl Member {
    /// Attaches from this address, waiting so long for each answer.
    ///
    /// # Errors
    /// What did not come or was refused.
    pub fn attach(
        from: IpAddr,
        address: SocketAddr,
        credentials: &Credentials,
        patience: Duration,
    ) -> io::Result<Self> {
        let (admin, controller) = Wire::attach_admin(from, address, credentials, patience)?;
        let (mut io, _) = Wire::connect(from, address, 1, controller, &credentials.name, patience)?;
        io.authenticate(credentials)?;
        Ok(Self { admin, io, controller })
    }

    /// The identifier of its controller.
    pub fn controller(&self) -> u16 {
        self.controller
    }

    /// Its admin queue.
    pub fn admin(&mut self) -> &mut Wire {
        &mut self.admin
    }

    /// Reads the first blocks of the first namespace.
    ///
    /// # Errors
    /// What did not come or was refused.
    pub fn read(&mut self) -> io::Result<Vec<u8>> {
        self.io.read()
    }
}

impl Wire {
    /// Connects a queue, and returns the completion of its Connect.
    ///
    /// # Errors
    /// What did not come or was refused.
    pub fn connect(
        from: IpAddr,
        address: SocketAddr,
        queue: u16,
        controller: u16,
        name: &str,
        patience: Duration,
    ) -> io::Result<(Self, CompletionEntry)> {
        let stream = stream_from(from, address, patience)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(patience))?;
        let mut this = Self { stream, cid: 0 };
        this.stream.write_all(&ic_req(Digests::default()))?;
        this.stream.read_exact(&mut [0; IcResp::SIZE])?;
        this.stream.write_all(&connect_as(Digests::default(), queue, 128, controller, NQN, name))?;
        let completion = this.completion()?;
        Ok((this, completion))
    }

    /// The admin queue of a controller that it has enabled, authenticated, and the identifier of that controller.
    ///
    /// # Errors
    /// What did not come or was refused.
    pub fn attach_admin(
        from: IpAddr,
        address: SocketAddr,
        credentials: &Credentials,
        patience: Duration,
    ) -> io::Result<(Self, u16)> {
        let (mut admin, connected) = Self::connect(from, address, 0, 0xffff, &credentials.name, patience)?;
        admin.authenticate(credentials)?;
        admin.command(SubmissionEntry::property_set(0, 0x14, PropertySize::Four, 0x0046_0001))?;
        while admin.command(SubmissionEntry::property_get(0, 0x1c, PropertySize::Four))?.result() & 1 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok((admin, connected.connect_cntlid()))
    }

    /// Reads the first blocks of the first namespace.
    ///
    /// # Errors
    /// What did not come or was refused.
    pub fn read(&mut self) -> io::Result<Vec<u8>> {
        self.fetch(SubmissionEntry::read(0, 1, 0, 8), 4096)
    }

    /// Says who it is.
    ///
    /// # Errors
    /// What did not come or was refused.
    pub fn authenticate(&mut self, credentials: &Credentials) -> io::Result<()> {
        self.authenticate_with(credentials, |_| ()).map(drop)
    }

    /// The same, with each message changed as somebody wants. Returns what was sent.
    ///
    /// # Errors
    /// What did not come or was refused.
    pub fn authenticate_with(
        &mut self,
        credentials: &Credentials,
        mut change: impl FnMut(&mut Vec<u8>),
    ) -> io::Result<Vec<Vec<u8>>> {
        let mut sent = Vec::new();
        let mut random = system_random();
        let numbers = SequenceNumbers::new(&mut random);
        let Credentials { parties, policy, .. } = credentials.clone();
        let started = HostTransaction::start(parties, policy, SecureChannel::NONE, 1);
        let (mut transaction, mut message) = started.map_err(io::Error::other)?;
        loop {
            change(&mut message);
            self.send(&message)?;
            sent.push(message);
            let received = self.receive()?;
            let mut step = transaction.on_message(&received, &numbers, &mut random);
            while let HostStep::Compute(computation) = step {
                step = transaction.on_computed(computation.run());
            }
            match step {
                HostStep::Exchange(next) => message = next,
                HostStep::SendLast(last) => {
                    self.send(&last)?;
                    sent.push(last);
                    break;
                }
                HostStep::Nothing | HostStep::Compute(_) => break,
            }
        }
        let refused = |why: ringfab_auth::Refusal| io::Error::other(why.to_string());
        let outcome = transaction.outcome().ok_or(io::ErrorKind::UnexpectedEof)?;
        outcome.map(|_| sent).map_err(refused)
    }

    /// What becomes of a command without data.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn status_of(&mut self, entry: SubmissionEntry) -> io::Result<Status> {
        let mut entry = entry.with_sgl(SglDescriptor::transport(0));
        entry.cid.set(self.next());
        self.stream.write_all(&capsule(Digests::default(), entry, &[]))?;
        let (header, _) = self.pdu()?;
        let response = CapsuleResp::read_from_bytes(&header).map_err(|_| io::ErrorKind::InvalidData)?;
        Ok(response.cqe.status())
    }

    /// Says anything.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn say(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Whether the target ends the connection, whatever it still says.
    pub fn ends(&mut self) -> bool {
        let mut bytes = [0; 4096];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return error.kind() == io::ErrorKind::ConnectionReset,
            }
        }
    }

    /// A message of authentication.
    ///
    /// # Errors
    /// What did not come or was refused.
    pub fn send(&mut self, message: &[u8]) -> io::Result<()> {
        let entry = AuthenticationCommand::send(self.next(), message.len() as u32);
        self.stream.write_all(&capsule(Digests::default(), entry, message))?;
        self.completion().map(drop)
    }

    /// The target's message.
    ///
    /// # Errors
    /// What did not come or was refused.
    pub fn receive(&mut self) -> io::Result<Vec<u8>> {
        let entry = AuthenticationCommand::receive(self.next(), BUFFER);
        self.fetch_as(entry, BUFFER)
    }

    /// Asks for the target's message, and does not wait for it.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn ask(&mut self) -> io::Result<()> {
        let entry = AuthenticationCommand::receive(self.next(), BUFFER);
        self.begin_fetch(entry, BUFFER)
    }

    /// A command without data.
    ///
    /// # Errors
    /// What did not come or was refused.
    pub fn command(&mut self, entry: SubmissionEntry) -> io::Result<CompletionEntry> {
        let mut entry = entry.with_sgl(SglDescriptor::transport(0));
        entry.cid.set(self.next());
        self.stream.write_all(&capsule(Digests::default(), entry, &[]))?;
        self.completion()
    }

    /// A command that brings data.
    ///
    /// # Errors
    /// What did not come or was refused.
    pub fn fetch(&mut self, mut entry: SubmissionEntry, length: u32) -> io::Result<Vec<u8>> {
        entry.cid.set(self.next());
        self.fetch_as(entry, length)
    }

    fn begin_fetch(&mut self, entry: SubmissionEntry, length: u32) -> io::Result<()> {
        let entry = entry.with_sgl(SglDescriptor::transport(length));
        self.say(&capsule(Digests::default(), entry, &[]))
    }

    fn fetch_as(&mut self, entry: SubmissionEntry, length: u32) -> io::Result<Vec<u8>> {
        self.begin_fetch(entry, length)?;
        let mut all = Vec::new();
        loop {
            let (header, data) = self.pdu()?;
            match PduType(header[0]) {
                PduType::C2H_DATA => all.extend(data),
                _ => return success(&header).map(|_| all),
            }
        }
    }

    fn completion(&mut self) -> io::Result<CompletionEntry> {
        let (header, _) = self.pdu()?;
        success(&header)
    }

    /// The next PDU: its header, and its data.
    fn pdu(&mut self) -> io::Result<(Vec<u8>, Vec<u8>)> {
        let mut common = [0; CommonHeader::SIZE];
        self.stream.read_exact(&mut common)?;
        let header = CommonHeader::read_from_bytes(&common).expect("as long as one");
        let mut all = common.to_vec();
        all.resize((header.plen.get() as usize).max(CommonHeader::SIZE), 0);
        self.stream.read_exact(&mut all[CommonHeader::SIZE..])?;
        let data = all.split_off(usize::from(header.hlen).min(all.len()));
        Ok((all, data))
    }

    fn next(&mut self) -> u16 {
        self.cid = (self.cid + 1) % 100;
        self.cid
    }
}

fn success(header: &[u8]) -> io::Result<CompletionEntry> {
    let response = CapsuleResp::read_from_bytes(header).map_err(|_| io::ErrorKind::InvalidData)?;
    let status = response.cqe.status();
    if status.is_success() { Ok(response.cqe) } else { Err(io::Error::other(status.to_string())) }
}
