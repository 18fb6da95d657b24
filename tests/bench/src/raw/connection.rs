//! One end of a loopback connection.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};

use anyhow::{Context, Result};
use socket2::SockRef;

use super::protection::{Protection, protect};

/// What one receive takes at most: more than all that is outstanding in any shape, little enough for the cache.
const RECEIVE_BYTES: usize = 1 << 20;
/// What one send offers at most.
const SEND_BYTES: usize = 1 << 20;

/// A socket, what it receives into, and what it has still to send. What the bytes are does not matter.
pub(super) struct Connection {
    stream: TcpStream,
    incoming: Box<[u8]>,
    outgoing: Box<[u8]>,
    unsent: usize,
    /// Of a connection whose TLS the kernel does not do.
    protection: Option<Protection>,
}

impl Connection {
    /// Two connected ends, with the named congestion control or the system's, over TLS or not.
    pub(super) fn pair(congestion: Option<&str>, tls: bool) -> Result<(Self, Self)> {
        let listener = TcpListener::bind("127.0.0.1:0").context("a listener on loopback")?;
        let near = TcpStream::connect(listener.local_addr()?).context("connect over loopback")?;
        let (far, _) = listener.accept()?;
        let (near, far) = (Self::new(near, congestion)?, Self::new(far, congestion)?);
        let protection = if tls { protect(&near.stream, &far.stream)? } else { None };
        let (of_near, of_far) = protection.unzip();
        Ok((Self { protection: of_near, ..near }, Self { protection: of_far, ..far }))
    }

    fn new(stream: TcpStream, congestion: Option<&str>) -> Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        if let Some(name) = congestion {
            SockRef::from(&stream)
                .set_tcp_congestion(name.as_bytes())
                .with_context(|| format!("congestion control {name}"))?;
        }
        let (incoming, outgoing) = (vec![0; RECEIVE_BYTES].into(), vec![1; SEND_BYTES].into());
        Ok(Self { stream, incoming, outgoing, unsent: 0, protection: None })
    }

    /// Bytes of one receive, zero when there is nothing now; `None` when the other end has closed.
    pub(super) fn receive(&mut self) -> Result<Option<usize>> {
        let received = match &mut self.protection {
            Some(protection) => protection.receive(&mut self.stream),
            None => self.stream.read(&mut self.incoming).map(|count| (count > 0).then_some(count)),
        };
        match received {
            Ok(received) => Ok(received),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(Some(0)),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(None),
            Err(error) => Err(error).context("receive"),
        }
    }

    /// Has so many more bytes sent, as far as one send goes. Gives how many went.
    pub(super) fn send(&mut self, more: usize) -> Result<usize> {
        self.unsent += more;
        if !self.has_unsent() {
            return Ok(0);
        }
        let data = &self.outgoing[..self.unsent.min(SEND_BYTES)];
        let sent = match &mut self.protection {
            Some(protection) => protection.send(&mut self.stream, data),
            None => self.stream.write(data),
        };
        match sent {
            Ok(sent) => {
                self.unsent -= sent;
                Ok(sent)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
            // The near end goes when it has measured enough; the next receive tells.
            Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => Ok(0),
            Err(error) => Err(error).context("send"),
        }
    }

    /// Whether something waits for the other end to make room.
    pub(super) fn has_unsent(&self) -> bool {
        self.unsent > 0 || self.protection.as_ref().is_some_and(Protection::has_unsent)
    }
}
