//! A host that speaks TLS on a plain socket, and may say what no ordinary host says.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng;
use ringfab_fabric::tcp::{Digests, Psk};
use ringfab_spec::tcp::{CapsuleCmd, CommonHeader, IcReq, IcResp, PduFlags, PduType};
use ringfab_spec::{IntoBytes, SubmissionEntry};
use ringfab_tls::{ContentType, HEADER_BYTES, Handshake, Opened, Opener, SEALED_OVERHEAD, Sealer, TlsError};

use crate::support::{PATIENCE, Pair};

/// The host.
pub(crate) struct RawHost {
    pub(crate) stream: TcpStream,
    unread: Vec<u8>,
}

/// What it has after the handshake.
pub(crate) struct Secured {
    pub(crate) host: RawHost,
    pub(crate) sealer: Sealer,
    pub(crate) opener: Opener,
}

impl RawHost {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("somebody listens");
        stream.set_nodelay(true).expect("an option");
        stream.set_nonblocking(true).expect("an option");
        Self { stream, unread: Vec::new() }
    }

    pub(crate) fn send(&mut self, pair: &mut Pair, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match self.stream.write(bytes) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => pair.step(),
                // The peer has left.
                Err(_) => return,
            }
        }
    }

    pub(crate) fn end(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// The next record, or none when the peer has ended.
    pub(crate) fn record(&mut self, pair: &mut Pair) -> Option<Vec<u8>> {
        let begun = Instant::now();
        loop {
            let length =
                self.unread.get(3..HEADER_BYTES).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]));
            let end = length.map(|length| HEADER_BYTES + usize::from(length));
            if let Some(end) = end.filter(|end| self.unread.len() >= *end) {
                return Some(self.unread.drain(..end).collect());
            }
            pair.step();
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes) {
                Ok(0) => return None,
                Ok(count) => self.unread.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
                Err(_) => return None,
            }
            assert!(begun.elapsed() < PATIENCE, "neither a record nor an end");
        }
    }

    /// Makes a handshake, with what `tamper` makes of each flight. It says whether the handshake goes on.
    pub(crate) fn secure(
        mut self,
        pair: &mut Pair,
        psk: &Psk,
        mut tamper: impl FnMut(usize, &mut Vec<u8>) -> bool,
    ) -> Result<Secured, (Self, Option<TlsError>)> {
        let mut random = ChaCha20Rng::from_seed([3; 32]);
        let mut handshake = Handshake::client(vec![psk.clone()], &mut random).expect("a key to offer");
        let mut flight = 0;
        loop {
            if let Some(mut bytes) = handshake.take_outgoing() {
                let goes_on = tamper(flight, &mut bytes);
                flight += 1;
                self.send(pair, &bytes);
                if !goes_on {
                    return Err((self, None));
                }
            }
            if handshake.is_complete() {
                break;
            }
            let Some(mut record) = self.record(pair) else { return Err((self, None)) };
            if let Err(error) = handshake.receive(&mut record) {
                return Err((self, Some(error)));
            }
        }
        let session = handshake.finish().expect("it is complete");
        let role = ringfab_tls::Role::Client;
        let (sealer, opener) = (Sealer::new(session.send), Opener::new(session.receive, role));
        Ok(Secured { host: self, sealer, opener })
    }
}

impl Secured {
    /// A host that has made the handshake.
    pub(crate) fn with(pair: &mut Pair, psk: &Psk) -> Self {
        let made = RawHost::connect(pair.listening).secure(pair, psk, |_, _| true);
        made.map_err(|(_, error)| error).expect("a handshake")
    }

    pub(crate) fn seal(&mut self, content: ContentType, bytes: &[u8]) -> Vec<u8> {
        let mut record = vec![0; bytes.len() + SEALED_OVERHEAD];
        self.sealer.seal(content, &[bytes], &mut record).expect("sealed");
        record
    }

    pub(crate) fn send(&mut self, pair: &mut Pair, content: ContentType, bytes: &[u8]) {
        let record = self.seal(content, bytes);
        self.host.send(pair, &record);
    }

    /// What the next record says; none when the stream has ended.
    pub(crate) fn receive(&mut self, pair: &mut Pair) -> Option<Result<(Opened, Vec<u8>), TlsError>> {
        let mut record = self.host.record(pair)?;
        Some(self.opener.open(&mut record).map(|opened| {
            let bytes = match &opened {
                Opened::Data(range) => record[range.clone()].to_vec(),
                _ => Vec::new(),
            };
            (opened, bytes)
        }))
    }

    /// So many bytes of data.
    pub(crate) fn receive_data(&mut self, pair: &mut Pair, length: usize) -> Vec<u8> {
        let mut all = Vec::new();
        while all.len() < length {
            let (opened, bytes) = self.receive(pair).expect("more data").expect("a good record");
            if opened == Opened::UpdateRequested {
                panic!("nobody asks for new keys");
            }
            all.extend(bytes);
        }
        all
    }

    /// Gets the target to adopt the connection: ICReq, and a command, which is answered.
    pub(crate) fn adopted(pair: &mut Pair, psk: &Psk) -> Self {
        let mut host = Self::with(pair, psk);
        host.send(pair, ContentType::ApplicationData, &ic_req());
        host.receive_data(pair, IcResp::SIZE);
        host.send(pair, ContentType::ApplicationData, &command(1));
        host.receive_data(pair, RESPONSE_BYTES);
        host
    }
}

/// Bytes of a response capsule.
pub(crate) const RESPONSE_BYTES: usize = 24;

/// A request to initialize a connection.
pub(crate) fn ic_req() -> Vec<u8> {
    IcReq::new(1, Digests::default(), 1).as_bytes().to_vec()
}

/// A capsule with a command without data.
pub(crate) fn command(cid: u16) -> Vec<u8> {
    let bytes = CapsuleCmd::SIZE as u32;
    let ch = CommonHeader::new(PduType::CAPSULE_CMD, PduFlags::default(), bytes as u8, 0, bytes);
    CapsuleCmd { ch, sqe: SubmissionEntry::new(0, cid, 1) }.as_bytes().to_vec()
}

/// Lets loops turn for some time.
pub(crate) fn run_for(pair: &mut Pair, time: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < time {
        pair.step();
        std::thread::yield_now();
    }
}
