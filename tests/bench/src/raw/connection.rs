//! One end of a loopback connection.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};

use anyhow::{Context, Result};
use socket2::SockRef;

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
}

impl Connection {
    /// Two connected ends, with the named congestion control or the system's.
    pub(super) fn pair(congestion: Option<&str>) -> Result<(Self, Self)> {
        let listener = TcpListener::bind("127.0.0.1:0").context("a listener on loopback")?;
        let near = TcpStream::connect(listener.local_addr()?).context("connect over loopback")?;
        let (far, _) = listener.accept()?;
        Ok((Self::new(near, congestion)?, Self::new(far, congestion)?))
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
        Ok(Self { stream, incoming, outgoing, unsent: 0 })
    }

    /// Bytes of one receive, zero when there is nothing now; `None` when the other end has closed.
    pub(super) fn receive(&mut self) -> Result<Option<usize>> {
        match self.stream.read(&mut self.incoming) {
            Ok(0) => Ok(None),
            Ok(count) => Ok(Some(count)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(Some(0)),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(None),
            Err(error) => Err(error).context("receive"),
        }
    }

    /// Has so many more bytes sent, as far as one send goes. Gives how many went.
    pub(super) fn send(&mut self, more: usize) -> Result<usize> {
        self.unsent += more;
        if self.unsent == 0 {
            return Ok(0);
        }
        match self.stream.write(&self.outgoing[..self.unsent.min(SEND_BYTES)]) {
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
        self.unsent > 0
    }
}
