//! A host of NVMe/TCP on a plain socket, for tests that say what no ordinary host says.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use ringfab_proto::crc;
use ringfab_spec::sqe::{ConnectData, PropertySize};
use ringfab_spec::tcp::{
    CapsuleCmd, CapsuleResp, CommonHeader, DataHeader, Digests, FatalError, IcReq, IcResp, PduFlags, PduType,
    ReadyToTransfer, TermReq,
};
use ringfab_spec::{CompletionEntry, FromBytes, IntoBytes, Nqn, SglDescriptor, SubmissionEntry};
use socket2::{Domain, Socket, Type};

use crate::{NQN, PATIENCE};

/// The name of the host.
pub const HOST_NQN: &str = "nqn.2014-08.org.nvmexpress:uuid:5be1fa8e-4a3b-44f5-9d9a-6ab4d7e2a001";

/// A connection.
#[derive(Debug)]
pub struct RawTcp {
    /// Its socket.
    pub stream: TcpStream,
    digests: Digests,
}

/// A PDU as it came: its header without digest, and its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pdu {
    /// The header.
    pub header: Vec<u8>,
    /// What followed.
    pub data: Vec<u8>,
}

/// A request to initialize a connection.
pub fn ic_req(digests: Digests) -> Vec<u8> {
    IcReq::new(1, digests, 1).as_bytes().to_vec()
}

/// A PDU of a header that names everything but its digests and lengths, and its data.
pub fn pdu(digests: Digests, header: &[u8], data: &[u8]) -> Vec<u8> {
    let (mut ch, rest) = CommonHeader::read_from_prefix(header).expect("a common header");
    let front = header.len() + if digests.header() { 4 } else { 0 };
    let data_digest = digests.data() && !data.is_empty();
    ch.flags = ch.flags.with_hdgst(digests.header()).with_ddgst(data_digest);
    ch.hlen = header.len() as u8;
    ch.pdo = if data.is_empty() { 0 } else { front as u8 };
    ch.plen.set((front + data.len() + if data_digest { 4 } else { 0 }) as u32);
    let mut all = [ch.as_bytes(), rest].concat();
    if digests.header() {
        let digest = crc::of(&all);
        all.extend(digest);
    }
    all.extend(data);
    if data_digest {
        all.extend(crc::of(data));
    }
    all
}

/// A command capsule.
pub fn capsule(digests: Digests, sqe: SubmissionEntry, data: &[u8]) -> Vec<u8> {
    let ch = CommonHeader::new(PduType::CAPSULE_CMD, PduFlags::default(), 0, 0, 0);
    let sgl = if data.is_empty() { sqe.sgl } else { SglDescriptor::in_capsule(0, data.len() as u32) };
    pdu(digests, CapsuleCmd { ch, sqe: sqe.with_sgl(sgl) }.as_bytes(), data)
}

/// Data that were asked for.
pub fn h2c_data(digests: Digests, cid: u16, tag: u16, offset: u32, data: &[u8], last: bool) -> Vec<u8> {
    let ch = CommonHeader::new(PduType::H2C_DATA, PduFlags::default().with_last(last), 0, 0, 0);
    let header = DataHeader::new(ch, cid, tag, offset, data.len() as u32);
    pdu(digests, header.as_bytes(), data)
}

/// The capsule that connects a queue of 32 entries; `controller` is FFFFh for an admin queue.
///
/// # Panics
/// Never: the names are valid.
pub fn connect(digests: Digests, qid: u16, controller: u16) -> Vec<u8> {
    connect_as(digests, qid, 32, controller, NQN, HOST_NQN)
}

/// The capsule that connects a queue of so many entries to any subsystem, as any host.
///
/// # Panics
/// When a name is none.
pub fn connect_as(
    digests: Digests,
    qid: u16,
    entries: u32,
    controller: u16,
    subsystem: &str,
    host: &str,
) -> Vec<u8> {
    let (subsystem, host) = (Nqn::new(subsystem).expect("a name"), Nqn::new(host).expect("a name"));
    let data = ConnectData::new([9; 16], controller, subsystem, host);
    capsule(digests, SubmissionEntry::connect(0, qid, entries, 0, false), data.as_bytes())
}

/// A TCP connection from an address of ours, which is made in time.
///
/// # Errors
/// What the system says instead.
pub fn stream_from(source: IpAddr, address: SocketAddr, limit: Duration) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.bind(&SocketAddr::new(source, 0).into())?;
    socket.connect_timeout(&address.into(), limit)?;
    Ok(socket.into())
}

impl RawTcp {
    /// A TCP connection, and nothing more.
    ///
    /// # Panics
    /// When there is none.
    pub fn open(address: SocketAddr) -> Self {
        Self::over(TcpStream::connect(address).expect("connected"))
    }

    /// A connection after ICReq and ICResp.
    ///
    /// # Panics
    /// When the other end does not answer.
    pub fn initialize(address: SocketAddr, digests: Digests) -> Self {
        Self::open(address).greet(digests)
    }

    /// The same with a TCP connection that is there.
    ///
    /// # Panics
    /// When it cannot be told how long to wait.
    pub fn over(stream: TcpStream) -> Self {
        stream.set_nodelay(true).expect("an option");
        stream.set_read_timeout(Some(PATIENCE)).expect("an option");
        Self { stream, digests: Digests::default() }
    }

    /// Says ICReq and hears ICResp.
    ///
    /// # Panics
    /// When the other end does not answer.
    #[must_use]
    pub fn greet(mut self, digests: Digests) -> Self {
        let this = &mut self;
        this.say(&ic_req(digests));
        let mut response = [0; IcResp::SIZE];
        this.stream.read_exact(&mut response).expect("ICResp");
        let response = IcResp::read_from_bytes(&response).expect("as long as one");
        assert_eq!((response.ch.pdu_type, response.dgst), (PduType::IC_RESP, digests));
        this.digests = digests;
        self
    }

    /// An admin queue with an enabled controller, and its identifier.
    ///
    /// # Panics
    /// When the target refuses.
    pub fn attach(address: SocketAddr, digests: Digests) -> (Self, u16) {
        let mut this = Self::initialize(address, digests);
        this.say(&connect(digests, 0, 0xffff));
        let controller = this.enable();
        (this, controller)
    }

    /// Hears the answer to the Connect of an admin queue, and enables its controller. Its identifier.
    ///
    /// # Panics
    /// When the target refuses.
    pub fn enable(&mut self) -> u16 {
        let this = self;
        let controller = this.response().connect_cntlid();
        let enable = SubmissionEntry::property_set(1, 0x14, PropertySize::Four, 0x0046_0001);
        assert!(this.command(enable).status().is_success());
        while this.command(SubmissionEntry::property_get(2, 0x1c, PropertySize::Four)).result() & 1 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        controller
    }

    /// An I/O queue of a controller.
    ///
    /// # Panics
    /// When the target refuses.
    pub fn attach_io(address: SocketAddr, digests: Digests, qid: u16, controller: u16) -> Self {
        let mut this = Self::initialize(address, digests);
        this.say(&connect(digests, qid, controller));
        assert!(this.response().status().is_success());
        this
    }

    /// Sends bytes.
    ///
    /// # Panics
    /// When the connection has ended.
    pub fn say(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the connection is there");
    }

    /// A command without data, and its answer.
    ///
    /// # Panics
    /// When none comes.
    pub fn command(&mut self, sqe: SubmissionEntry) -> CompletionEntry {
        self.say(&capsule(self.digests, sqe.with_sgl(SglDescriptor::transport(0)), &[]));
        self.response()
    }

    /// The next PDU.
    ///
    /// # Panics
    /// When none comes, or its digests are wrong.
    pub fn hear(&mut self) -> Pdu {
        let mut common = [0; CommonHeader::SIZE];
        self.stream.read_exact(&mut common).expect("a PDU");
        let ch = CommonHeader::read_from_bytes(&common).expect("as long as one");
        let mut all = common.to_vec();
        all.resize(ch.plen.get() as usize, 0);
        self.stream.read_exact(&mut all[CommonHeader::SIZE..]).expect("all of the PDU");
        let hlen = usize::from(ch.hlen);
        if ch.flags.hdgst() {
            assert_eq!(all[hlen..hlen + 4], crc::of(&all[..hlen]), "a header digest");
        }
        let terminates = ch.pdu_type == PduType::C2H_TERM_REQ;
        let start = if terminates { hlen } else { usize::from(ch.pdo) };
        let end = all.len() - if ch.flags.ddgst() { 4 } else { 0 };
        let data = if start == 0 { Vec::new() } else { all[start..end].to_vec() };
        if ch.flags.ddgst() {
            assert_eq!(all[end..], crc::of(&data), "a data digest");
        }
        Pdu { header: all[..hlen].to_vec(), data }
    }

    /// The next PDU, which is a response.
    ///
    /// # Panics
    /// When it is none.
    pub fn response(&mut self) -> CompletionEntry {
        let pdu = self.hear();
        assert_eq!(pdu.header[0], PduType::CAPSULE_RESP.0, "{pdu:x?}");
        CapsuleResp::read_from_bytes(&pdu.header).expect("as long as one").cqe
    }

    /// The next PDU, which is an R2T.
    ///
    /// # Panics
    /// When it is none.
    pub fn r2t(&mut self) -> ReadyToTransfer {
        let pdu = self.hear();
        assert_eq!(pdu.header[0], PduType::R2T.0, "{pdu:x?}");
        ReadyToTransfer::read_from_bytes(&pdu.header).expect("as long as one")
    }

    /// The other end's last word, which is a termination request, and the end.
    ///
    /// # Panics
    /// When it is none, or something follows.
    pub fn termination(&mut self) -> (FatalError, u32) {
        let pdu = self.hear();
        assert_eq!(pdu.header[0], PduType::C2H_TERM_REQ.0, "{pdu:x?}");
        let request = TermReq::read_from_bytes(&pdu.header).expect("as long as one");
        assert!(self.ends(), "it is the last word");
        (request.fatal_error(), request.fei.get())
    }

    /// Ends our side of the stream.
    pub fn finish(&self) {
        // It may have ended already.
        let _ended = self.stream.shutdown(Shutdown::Write);
    }

    /// Whether the other side ends, in time and whatever it still says.
    pub fn ends(&mut self) -> bool {
        let mut buffer = [0; 16_384];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => {
                    use std::io::ErrorKind::{TimedOut, WouldBlock};
                    return !matches!(error.kind(), TimedOut | WouldBlock);
                }
            }
        }
    }
}
