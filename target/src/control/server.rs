//! The thread that serves the control socket, one connection after the other.

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use super::request::{REQUEST_BYTES_MAX, answer};
use super::{ControlSocket, Manager};
use crate::config::ControlConfig;

/// How long a client may take for a request, and for taking its answer.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(5);

/// How often files and devices are looked at.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// Why there is no control socket.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on the control socket {}: {source}", path.display())]
pub struct ControlError {
    /// Where it should be.
    path: PathBuf,
    /// The system's answer.
    source: io::Error,
}

/// Starts the thread. Without a table `[control]` a socket that cannot be had is no error: its folder is the service
/// manager's to make.
///
/// # Errors
/// When the socket that the configuration asks for cannot be bound.
pub fn start(
    config: Option<&ControlConfig>,
    manager: Manager,
) -> Result<Option<ControlSocket>, ControlError> {
    let (asked, config) = (config.is_some(), config.cloned().unwrap_or_default());
    let bound = if config.enabled { ControlSocket::bind(&config, POLL_INTERVAL).map(Some) } else { Ok(None) };
    let (socket, listener) = match bound {
        Ok(bound) => bound.unzip(),
        Err(source) if asked => return Err(ControlError { path: config.socket, source }),
        Err(error) => {
            tracing::info!(path = %config.socket.display(), %error, "no control socket");
            (None, None)
        }
    };
    let path = config.socket;
    let run = move || Server { listener, manager, polled: Instant::now() }.run();
    let spawned = thread::Builder::new().name("control".to_owned()).spawn(run);
    spawned.map_err(|source| ControlError { path, source })?;
    Ok(socket)
}

struct Server {
    /// Without one, only files and devices are looked at.
    listener: Option<UnixListener>,
    manager: Manager,
    polled: Instant,
}

impl Server {
    fn run(mut self) {
        loop {
            match self.listener.as_ref().map(UnixListener::accept) {
                Some(Ok((stream, _))) => {
                    if let Err(error) = self.serve(stream) {
                        tracing::debug!(%error, "a control connection has ended");
                    }
                }
                Some(Err(error))
                    if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Some(Err(error)) => {
                    tracing::warn!(%error, "no control connection");
                    thread::sleep(POLL_INTERVAL);
                }
                None => thread::sleep(POLL_INTERVAL),
            }
            if self.polled.elapsed() >= POLL_INTERVAL {
                self.manager.poll();
                self.polled = Instant::now();
            }
        }
    }

    /// Answers requests until the client ends, or takes too long.
    fn serve(&mut self, mut stream: UnixStream) -> io::Result<()> {
        stream.set_write_timeout(Some(CLIENT_TIMEOUT))?;
        let mut pending = Vec::new();
        while let Some(line) = next_line(&mut stream, &mut pending)? {
            stream.write_all(answer(&line, &mut self.manager).as_bytes())?;
            if line.len() > REQUEST_BYTES_MAX {
                // Where the next request would begin, nobody knows.
                return Ok(());
            }
        }
        Ok(())
    }
}

/// The next line, or what there is of one that is too long. None at the end; what follows the last newline is no request.
fn next_line(stream: &mut UnixStream, pending: &mut Vec<u8>) -> io::Result<Option<Vec<u8>>> {
    let deadline = Instant::now() + CLIENT_TIMEOUT;
    let mut chunk = [0; 4096];
    loop {
        if let Some(end) = pending.iter().position(|byte| *byte == b'\n') {
            return Ok(Some(pending.drain(..=end).collect()));
        }
        if pending.len() > REQUEST_BYTES_MAX {
            return Ok(Some(std::mem::take(pending)));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut chunk)? {
            0 => return Ok(None),
            length => pending.extend_from_slice(&chunk[..length]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(sent: &[u8]) -> Vec<Vec<u8>> {
        let (mut client, mut server) = UnixStream::pair().expect("a pair");
        let sent = sent.to_vec();
        let writer = thread::spawn(move || {
            for piece in sent.chunks(7) {
                // A server that has had enough does not read the rest.
                let _unread = client.write_all(piece);
            }
        });
        let (mut pending, mut all) = (Vec::new(), Vec::new());
        while let Some(line) = next_line(&mut server, &mut pending).expect("no error") {
            let end = line.len() > REQUEST_BYTES_MAX;
            all.push(line);
            if end {
                break;
            }
        }
        drop(server);
        writer.join().expect("the writer");
        all
    }

    #[test]
    fn lines_come_whole_however_they_are_cut() {
        assert_eq!(lines(b"one\ntwo\n\nrest"), [b"one\n".to_vec(), b"two\n".to_vec(), b"\n".to_vec()]);
        assert_eq!(lines(b""), Vec::<Vec<u8>>::new());
    }

    #[test]
    fn a_line_without_an_end_is_bounded() {
        let all = lines(&vec![b'x'; 3 * REQUEST_BYTES_MAX]);
        assert_eq!(all.len(), 1);
        assert!(all[0].len() > REQUEST_BYTES_MAX && all[0].len() <= REQUEST_BYTES_MAX + 4096);
    }
}
