//! A connection to a server for threads, which wait.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use ringfab_proto::nbd::{ClientHandshake, ExportInfo, Wanted};
use socket2::{SockRef, TcpKeepalive};

use crate::options::NETWORK_LIMIT;
use crate::session::Target;

/// How long a server may take for a step of the handshake.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);

/// A connection.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// Connects to a server, and shakes hands with it.
    ///
    /// # Errors
    /// What the system or the server refuses, or that it takes too long.
    pub(crate) fn connect(target: &Target, export: &str, wanted: Wanted) -> io::Result<(Self, ExportInfo)> {
        let stream = Self::open(target)?;
        stream.set_limit(Some(HANDSHAKE_LIMIT))?;
        let info = shake_hands(&stream, export, wanted)?;
        stream.set_limit(None)?;
        Ok((stream, info))
    }

    fn open(target: &Target) -> io::Result<Self> {
        Ok(match target {
            Target::Tcp(address) => {
                let stream = TcpStream::connect_timeout(address, HANDSHAKE_LIMIT)?;
                stream.set_nodelay(true)?;
                let socket = SockRef::from(&stream);
                let idle = NETWORK_LIMIT / 2;
                socket.set_tcp_user_timeout(Some(NETWORK_LIMIT))?;
                // As for the sockets of cores: what a killed process has sent is not to be done later.
                socket.set_linger(Some(Duration::ZERO))?;
                socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(idle).with_interval(idle))?;
                Self::Tcp(stream)
            }
            Target::Unix(path) => Self::Unix(UnixStream::connect(path)?),
            Target::Relay => return Err(io::ErrorKind::Unsupported.into()),
        })
    }

    fn set_limit(&self, limit: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => {
                stream.set_read_timeout(limit).and_then(|()| stream.set_write_timeout(limit))
            }
            Self::Unix(stream) => {
                stream.set_read_timeout(limit).and_then(|()| stream.set_write_timeout(limit))
            }
        }
    }

    /// Another handle of the same connection.
    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Tcp(stream) => Self::Tcp(stream.try_clone()?),
            Self::Unix(stream) => Self::Unix(stream.try_clone()?),
        })
    }

    /// Ends the connection for all of its handles: whoever waits for it waits no longer.
    pub(crate) fn shut_down(&self) {
        let _ended_already = match self {
            Self::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Self::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
    }
}

impl Read for &Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => (&mut &*stream).read(bytes),
            Stream::Unix(stream) => (&mut &*stream).read(bytes),
        }
    }
}

impl Write for &Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => (&mut &*stream).write(bytes),
            Stream::Unix(stream) => (&mut &*stream).write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn shake_hands(mut stream: &Stream, export: &str, wanted: Wanted) -> io::Result<ExportInfo> {
    let begun = Instant::now();
    let mut handshake = ClientHandshake::new(export, wanted);
    let mut bytes = [0; 4096];
    loop {
        let count = match stream.read(&mut bytes) {
            Ok(0) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "closes the connection")),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(silent()),
            // A ring of this process may interrupt whoever waits with a limit.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let info = handshake.receive(&bytes[..count]).map_err(io::Error::other)?;
        let output = handshake.take_output();
        match info {
            Some(info) => {
                // It may have gone already, which is all the same to whoever leaves.
                let _goodbye = stream.write_all(&output);
                return Ok(info);
            }
            None => stream.write_all(&output)?,
        }
        if begun.elapsed() >= HANDSHAKE_LIMIT {
            return Err(silent());
        }
    }
}

fn silent() -> io::Error {
    let why = "does not answer: it may serve somebody else, and only one client at a time";
    io::Error::new(io::ErrorKind::TimedOut, why)
}
