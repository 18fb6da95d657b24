//! The target's end of TLS on a plain socket, for targets that wait for each message.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use ringfab_auth::{CipherSuite, Secret, TlsPsk, system_random};
use ringfab_tls::{
    ContentType, Handshake, Opened, Opener, PLAINTEXT_BYTES_MAX, PskStore, SEALED_OVERHEAD, Sealer,
};

/// A connection that is protected.
#[derive(Debug)]
pub struct TlsStream {
    stream: TcpStream,
    sealer: Sealer,
    opener: Opener,
    /// What was opened and not read.
    unread: Vec<u8>,
    identity: Vec<u8>,
}

/// The one key that is known.
#[derive(Debug)]
struct Only(TlsPsk);

impl PskStore for Only {
    fn find(&self, identity: &[u8]) -> Result<(Secret, CipherSuite), String> {
        if self.0.is_known_by(identity) {
            return Ok((self.0.secret().clone(), self.0.suite()));
        }
        Err("only one identity is known".to_owned())
    }
}

impl TlsStream {
    /// Takes a handshake with this key, by its one identity.
    ///
    /// # Errors
    /// What the socket, or the handshake, says instead.
    pub fn accept(mut stream: TcpStream, psk: TlsPsk) -> io::Result<Self> {
        let mut handshake = Handshake::server(Arc::new(Only(psk)), &mut system_random());
        loop {
            if let Some(bytes) = handshake.take_outgoing() {
                stream.write_all(&bytes)?;
            }
            if handshake.is_complete() {
                break;
            }
            let mut record = read_record(&mut stream, |unread| handshake.wanted(unread))?;
            if let Err(error) = handshake.receive(&mut record) {
                if let Some(alert) = handshake.take_outgoing() {
                    stream.write_all(&alert)?;
                }
                return Err(io::Error::other(error));
            }
        }
        let (role, identity) = (handshake.role(), handshake.offered().unwrap_or_default().to_vec());
        let session = handshake.finish().map_err(io::Error::other)?;
        let (sealer, opener) = (Sealer::new(session.send), Opener::new(session.receive, role));
        Ok(Self { stream, sealer, opener, unread: Vec::new(), identity })
    }

    /// The identity of the key that the host and this end have in common.
    pub fn identity(&self) -> &[u8] {
        &self.identity
    }
}

/// One record of a stream.
fn read_record(stream: &mut TcpStream, wanted: impl Fn(&[u8]) -> usize) -> io::Result<Vec<u8>> {
    let mut record = Vec::new();
    loop {
        let (at, more) = (record.len(), wanted(&record));
        if more == 0 {
            return Ok(record);
        }
        record.resize(at + more, 0);
        stream.read_exact(&mut record[at..])?;
    }
}

impl Read for TlsStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.unread.is_empty() {
            let mut record = read_record(&mut self.stream, Opener::wanted)?;
            match self.opener.open(&mut record).map_err(io::Error::other)? {
                Opened::Data(range) => self.unread.extend_from_slice(&record[range]),
                Opened::Closed => return Ok(0),
                Opened::Nothing | Opened::UpdateRequested => {}
            }
        }
        let length = buffer.len().min(self.unread.len());
        buffer[..length].copy_from_slice(&self.unread[..length]);
        self.unread.drain(..length);
        Ok(length)
    }
}

impl Write for TlsStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let part = &bytes[..bytes.len().min(PLAINTEXT_BYTES_MAX)];
        let mut record = vec![0; part.len() + SEALED_OVERHEAD];
        let sealed = self.sealer.seal(ContentType::ApplicationData, &[part], &mut record);
        let length = sealed.map_err(io::Error::other)?;
        self.stream.write_all(&record[..length])?;
        Ok(part.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}
