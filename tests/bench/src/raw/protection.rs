//! TLS of the raw bound: by the kernel where it can, else in this process with the library that Ringfab uses.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::sync::Arc;

use anyhow::{Context, Result};
use nix::libc::{TLS_1_3_VERSION, TLS_CIPHER_AES_GCM_128, tls_crypto_info, tls12_crypto_info_aes_gcm_128};
use nix::sys::socket::{setsockopt, sockopt};
use ringfab_auth::{CipherSuite, Secret, system_random};
use ringfab_tls::{
    ContentType, Handshake, Opened, Opener, PLAINTEXT_BYTES_MAX, Psk, PskStore, Role, SEALED_OVERHEAD,
    Sealer, Session, TrafficKeys,
};

/// Room for what one receive takes.
const SEALED_BYTES: usize = 256 << 10;

/// What is sealed for one send: little enough for the cache.
const BATCH_RECORDS: usize = 8;

/// How bytes of a connection are protected in this process.
pub(super) struct Protection {
    opener: Opener,
    sealer: Sealer,
    /// What has come, as far as it is no complete record.
    incoming: Box<[u8]>,
    unread: Range<usize>,
    /// What is sealed and not sent.
    outgoing: Box<[u8]>,
    unsent: Range<usize>,
}

impl Protection {
    fn new(session: Session, role: Role) -> Self {
        let outgoing = BATCH_RECORDS * (PLAINTEXT_BYTES_MAX + SEALED_OVERHEAD);
        Self {
            opener: Opener::new(session.receive, role),
            sealer: Sealer::new(session.send),
            incoming: vec![0; SEALED_BYTES].into(),
            unread: 0..0,
            outgoing: vec![0; outgoing].into(),
            unsent: 0..0,
        }
    }

    /// Receives once, and opens what is complete. Bytes of data; `None` when the other end has closed.
    pub(super) fn receive(&mut self, stream: &mut TcpStream) -> io::Result<Option<usize>> {
        self.incoming.copy_within(self.unread.clone(), 0);
        self.unread = 0..self.unread.len();
        let count = stream.read(&mut self.incoming[self.unread.end..])?;
        if count == 0 {
            return Ok(None);
        }
        self.unread.end += count;
        let mut bytes = 0;
        loop {
            let record = &mut self.incoming[self.unread.clone()];
            if record.len() < SEALED_OVERHEAD {
                break;
            }
            let length = 5 + usize::from(u16::from_be_bytes([record[3], record[4]]));
            let Some(record) = record.get_mut(..length) else { break };
            match self.opener.open(record).map_err(io::Error::other)? {
                Opened::Data(range) => bytes += range.len(),
                other => return Err(io::Error::other(format!("no data: {other:?}"))),
            }
            self.unread.start += length;
        }
        Ok(Some(bytes))
    }

    /// Sends what is sealed already, else so many bytes of `data` as one send has. Gives how many were sealed.
    pub(super) fn send(&mut self, stream: &mut TcpStream, data: &[u8]) -> io::Result<usize> {
        let mut sealed = 0;
        if self.unsent.is_empty() {
            self.unsent = 0..0;
            for piece in data.chunks(PLAINTEXT_BYTES_MAX).take(BATCH_RECORDS) {
                let room = &mut self.outgoing[self.unsent.end..];
                let length = self.sealer.seal(ContentType::ApplicationData, &[piece], room);
                self.unsent.end += length.map_err(io::Error::other)?;
                sealed += piece.len();
            }
        }
        match stream.write(&self.outgoing[self.unsent.clone()]) {
            Ok(sent) => self.unsent.start += sent,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        Ok(sealed)
    }

    /// Whether something waits for the other end to make room.
    pub(super) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }
}

/// Protects two connected ends. Where the kernel does it, there is nothing more to do for either.
pub(super) fn protect(near: &TcpStream, far: &TcpStream) -> Result<Option<(Protection, Protection)>> {
    let (client, server) = agree()?;
    if setsockopt(near, sockopt::TcpUlp::default(), b"tls").is_err() {
        return Ok(Some((Protection::new(client, Role::Client), Protection::new(server, Role::Server))));
    }
    setsockopt(far, sockopt::TcpUlp::default(), b"tls").context("TLS by the kernel")?;
    for (stream, session) in [(near, &client), (far, &server)] {
        setsockopt(stream, sockopt::TcpTlsTx, &for_kernel(&session.send)).context("keys for the kernel")?;
        setsockopt(stream, sockopt::TcpTlsRx, &for_kernel(&session.receive))
            .context("keys for the kernel")?;
    }
    Ok(None)
}

fn for_kernel(keys: &TrafficKeys) -> sockopt::TlsCryptoInfo {
    let info = tls_crypto_info { version: TLS_1_3_VERSION, cipher_type: TLS_CIPHER_AES_GCM_128 };
    let key = keys.key().try_into().expect("a key of AES-128");
    let (iv, salt, rec_seq) = (*keys.iv(), *keys.salt(), keys.sequence());
    sockopt::TlsCryptoInfo::Aes128Gcm(tls12_crypto_info_aes_gcm_128 { info, iv, key, salt, rec_seq })
}

/// A handshake of two ends in this process.
fn agree() -> Result<(Session, Session)> {
    let secret = Secret::random(32, &mut system_random());
    let suite = CipherSuite::Aes128GcmSha256;
    let psk = Psk { identity: b"bench".to_vec(), secret: secret.clone(), suite };
    let mut client = Handshake::client(vec![psk], &mut system_random())?;
    let mut server = Handshake::server(Arc::new(OneKey(secret, suite)), &mut system_random());
    while !(client.is_complete() && server.is_complete()) {
        pass(&mut client, &mut server)?;
        pass(&mut server, &mut client)?;
    }
    Ok((client.finish()?, server.finish()?))
}

/// Hands what one end has to say to the other, record by record.
fn pass(from: &mut Handshake, to: &mut Handshake) -> Result<()> {
    let mut rest = from.take_outgoing().unwrap_or_default();
    while !rest.is_empty() {
        let mut length = 0;
        loop {
            match to.wanted(&rest[..length]) {
                0 => break,
                more => length += more,
            }
        }
        to.receive(&mut rest[..length])?;
        rest.drain(..length);
    }
    Ok(())
}

#[derive(Debug)]
struct OneKey(Secret, CipherSuite);

impl PskStore for OneKey {
    fn find(&self, _identity: &[u8]) -> Result<Vec<(Secret, CipherSuite)>, String> {
        Ok(vec![(self.0.clone(), self.1)])
    }
}
