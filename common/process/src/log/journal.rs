//! The socket of the journal, which takes a record in each datagram.

use std::env;
use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use nix::errno::Errno;

use super::output::Output;

/// Where it is.
const SOCKET: &str = "/run/systemd/journal/socket";

/// Whether there is one.
pub(super) fn is_there() -> bool {
    Path::new(SOCKET).exists()
}

/// The name of this program.
pub(super) fn program() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| {
        let name = env::current_exe().ok().and_then(|path| Some(path.file_name()?.to_str()?.to_owned()));
        name.unwrap_or_else(|| "ringfab".to_owned())
    })
}

/// Sends records to the journal. It is found again after a restart, because each datagram names its path.
pub(super) struct Journal {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Journal {
    /// The journal of this machine.
    pub(super) fn of_system() -> io::Result<Self> {
        Self::at(SOCKET.into())
    }

    pub(super) fn at(path: PathBuf) -> io::Result<Self> {
        Ok(Self { socket: UnixDatagram::unbound()?, path })
    }
}

impl Output for Journal {
    /// A record, whole: it is far shorter than a datagram may be.
    fn write(&mut self, record: &[u8]) -> Result<usize, Errno> {
        loop {
            match self.socket.send_to(record, &self.path) {
                Ok(_) => return Ok(record.len()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Errno::from_raw(error.raw_os_error().unwrap_or(0))),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;
    use crate::log::Parts;
    use crate::log::layer::LogLayer;
    use crate::log::sink::Sink;
    use crate::log::style::{Style, Written};

    /// A journal of the test's own.
    fn journal() -> (tempfile::TempDir, UnixDatagram, Sink, Style) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let socket = UnixDatagram::bind(&path).expect("a socket");
        socket.set_read_timeout(Some(Duration::from_secs(10))).expect("a limit");
        let style = Style { written: Written::JournalRecord, parts: Parts::Named };
        let sink = Sink::with_output(style, Journal::at(path).expect("a socket")).expect("a thread");
        (folder, socket, sink, style)
    }

    fn record(socket: &UnixDatagram) -> Vec<String> {
        let mut bytes = [0; 65536];
        let length = socket.recv(&mut bytes).expect("a record");
        let text = std::str::from_utf8(&bytes[..length]).expect("text");
        assert!(text.ends_with('\n'), "{text}");
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn an_event_is_a_record_with_its_priority_and_its_fields() {
        let (_folder, socket, sink, style) = journal();
        let subscriber = tracing_subscriber::registry().with(LogLayer::new(style, sink.clone()));
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(
                peer = "192.0.2.1:4",
                subsystem = "nqn.x\nPRIORITY=0",
                nsid = 3,
                "Connect refused"
            );
        });
        sink.flush();
        let record = record(&socket);
        for line in [
            "PRIORITY=4",
            "RINGFAB_PEER=192.0.2.1:4",
            "RINGFAB_SUBSYSTEM=nqn.x\\nPRIORITY=0",
            "RINGFAB_NSID=3",
            "RINGFAB_PART=ringfab_process::log::journal::tests",
        ] {
            assert!(record.iter().any(|one| one == line), "{line} in {record:?}");
        }
        let message = record.iter().find(|line| line.starts_with("MESSAGE=")).expect("a message");
        assert!(message.starts_with("MESSAGE=Connect refused peer="), "{message}");
        assert!(record.iter().any(|line| line.starts_with("CODE_LINE=")), "{record:?}");
        assert_eq!(record.iter().filter(|line| line.starts_with("PRIORITY=")).count(), 1);
    }

    #[test]
    fn records_that_no_journal_takes_are_counted_and_told_to_the_next() {
        let (folder, socket, sink, _) = journal();
        let path = folder.path().join("socket");
        drop(socket);
        std::fs::remove_file(&path).expect("it is there");
        for _ in 0..3 {
            sink.push("MESSAGE=lost\n".to_owned());
        }
        sink.flush();
        let again = UnixDatagram::bind(&path).expect("a socket");
        again.set_read_timeout(Some(Duration::from_secs(10))).expect("a limit");
        sink.push("MESSAGE=there\n".to_owned());
        let told = record(&again);
        assert!(told.iter().any(|line| line.starts_with("MESSAGE=3 lines of the log were lost")), "{told:?}");
        assert_eq!(record(&again), ["MESSAGE=there"]);
    }
}
