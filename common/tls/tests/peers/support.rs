//! An end of ours on a socket, and a program that is the other end.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use ringfab_auth::{CipherSuite, Secret, system_random};
use ringfab_tls::{
    Alert, ContentType, Handshake, Opened, Opener, PLAINTEXT_BYTES_MAX, Psk, PskStore, Role, SEALED_OVERHEAD,
    Sealer, Session, TlsError,
};

/// No step of a test takes longer.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

pub(crate) const IDENTITY: &str =
    "NVMe0R01 nqn.2014-08.org.nvmexpress:uuid:7c6c3f5e nqn.2026-11.example:storage";

pub(crate) const SUITES: [CipherSuite; 2] = [CipherSuite::Aes128GcmSha256, CipherSuite::Aes256GcmSha384];

/// A key of these bytes.
pub(crate) fn psk(byte: u8, suite: CipherSuite) -> Psk {
    named(IDENTITY, byte, suite)
}

pub(crate) fn named(identity: &str, byte: u8, suite: CipherSuite) -> Psk {
    let secret = Secret::copy_of(&vec![byte; suite.hash().length()]);
    Psk { identity: identity.into(), secret, suite }
}

/// As programs take it.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[derive(Debug)]
struct Store(HashMap<Vec<u8>, (Secret, CipherSuite)>);

impl PskStore for Store {
    fn find(&self, identity: &[u8]) -> Result<Vec<(Secret, CipherSuite)>, String> {
        self.0.get(identity).map(|key| vec![key.clone()]).ok_or_else(|| "nobody has it".to_owned())
    }
}

/// Whether a program is there. If not, the test could not run, which is said; where tools are required, that fails.
pub(crate) fn have(program: &str) -> bool {
    let found = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(program).exists()));
    if !found {
        not_run(program);
    }
    found
}

#[expect(clippy::print_stderr, reason = "whoever runs the tests must see what did not run")]
fn not_run(program: &str) {
    static SAID: OnceLock<()> = OnceLock::new();
    let why = format!("TLS with another implementation: {program} is not installed");
    assert!(std::env::var_os("RINGFAB_REQUIRE_TOOLS").is_none(), "NOT RUN: {why}");
    eprintln!("NOT RUN: {why}");
    let (Some(path), Ok(())) = (std::env::var_os("RINGFAB_NOT_RUN"), SAID.set(())) else { return };
    let mut file = std::fs::OpenOptions::new().append(true).create(true).open(path).expect("the file");
    writeln!(file, "{why}").expect("it can be written");
}

/// Our end of a connection.
pub(crate) struct End {
    stream: TcpStream,
    pub(crate) session: Session,
    sealer: Sealer,
    opener: Opener,
    /// Data that came.
    pub(crate) received: Vec<u8>,
    pub(crate) updates: usize,
    pub(crate) closed: bool,
}

/// One record of a stream.
fn read_record(stream: &mut TcpStream, wanted: impl Fn(&[u8]) -> usize) -> std::io::Result<Vec<u8>> {
    let mut record = Vec::new();
    loop {
        let count = wanted(&record);
        if count == 0 {
            return Ok(record);
        }
        let at = record.len();
        record.resize(at + count, 0);
        stream.read_exact(&mut record[at..])?;
    }
}

/// Which end has failed how, for tests of failures.
pub(crate) type Shaken = Result<End, TlsError>;

fn shake(mut handshake: Handshake, mut stream: TcpStream) -> Shaken {
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.set_write_timeout(Some(LIMIT)).unwrap();
    let role = handshake.role();
    loop {
        if let Some(bytes) = handshake.take_outgoing() {
            stream.write_all(&bytes).expect("the peer reads");
        }
        if handshake.is_complete() {
            break;
        }
        let mut record = match read_record(&mut stream, |unread| handshake.wanted(unread)) {
            Ok(record) => record,
            Err(error) => panic!("while {} is awaited: {error}", handshake.awaited()),
        };
        if let Err(error) = handshake.receive(&mut record) {
            if let Some(alert) = handshake.take_outgoing() {
                stream.write_all(&alert).expect("the peer reads");
            }
            return Err(error);
        }
    }
    let session = handshake.finish().unwrap();
    let (sealer, opener) = (Sealer::new(session.send.clone()), Opener::new(session.receive.clone(), role));
    Ok(End { stream, session, sealer, opener, received: Vec::new(), updates: 0, closed: false })
}

pub(crate) fn connect(port: u16, psks: &[Psk]) -> Shaken {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let began = Instant::now();
    let stream = loop {
        match TcpStream::connect_timeout(&address, LIMIT) {
            Ok(stream) => break stream,
            Err(error) if began.elapsed() > LIMIT => panic!("the peer does not listen: {error}"),
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    };
    shake(Handshake::client(psks.to_vec(), &mut system_random()).unwrap(), stream)
}

pub(crate) fn listen() -> (TcpListener, u16) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

pub(crate) fn accept(listener: &TcpListener, psks: &[Psk]) -> Shaken {
    listener.set_nonblocking(true).unwrap();
    let began = Instant::now();
    let stream = loop {
        match listener.accept() {
            Ok((stream, _)) => break stream,
            Err(error) if error.kind() == ErrorKind::WouldBlock && began.elapsed() < LIMIT => {
                thread::sleep(Duration::from_millis(5));
            }
            Err(error) => panic!("no peer connects: {error}"),
        }
    };
    stream.set_nonblocking(false).unwrap();
    let entry = |psk: &Psk| (psk.identity.clone(), (psk.secret.clone(), psk.suite));
    let store = Arc::new(Store(psks.iter().map(entry).collect()));
    shake(Handshake::server(store, &mut system_random()), stream)
}

impl End {
    pub(crate) fn send(&mut self, data: &[u8]) {
        let mut record = vec![0; PLAINTEXT_BYTES_MAX + SEALED_OVERHEAD];
        for part in data.chunks(PLAINTEXT_BYTES_MAX) {
            let length = self.sealer.seal(ContentType::ApplicationData, &[part], &mut record).unwrap();
            self.stream.write_all(&record[..length]).expect("the peer reads");
        }
    }

    /// Reads one record.
    pub(crate) fn receive(&mut self) -> Result<(), TlsError> {
        let mut record = read_record(&mut self.stream, Opener::wanted).expect("the peer sends");
        let before = self.opener.keys().key().to_vec();
        match self.opener.open(&mut record)? {
            Opened::Data(range) => self.received.extend_from_slice(&record[range]),
            Opened::Closed => self.closed = true,
            Opened::Nothing if self.opener.keys().key() != before => self.updates += 1,
            Opened::Nothing => {}
            Opened::UpdateRequested => {
                self.updates += 1;
                let mut answer = [0; 64];
                let length = self.sealer.update(&mut answer).unwrap();
                self.stream.write_all(&answer[..length]).expect("the peer reads");
            }
        }
        Ok(())
    }

    /// Until the peer has sent this, which is taken with all before it.
    pub(crate) fn expect(&mut self, data: &[u8]) {
        loop {
            if let Some(at) = self.received.windows(data.len()).position(|window| window == data) {
                self.received.drain(..at + data.len());
                return;
            }
            assert!(!self.closed, "the peer has closed the connection");
            self.receive().unwrap();
        }
    }

    /// Until the peer has updated its keys so often.
    pub(crate) fn expect_updates(&mut self, count: usize) {
        while self.updates < count {
            self.receive().unwrap();
        }
    }

    /// Until the peer has sent so many bytes.
    pub(crate) fn expect_bytes(&mut self, count: usize) {
        while self.received.len() < count {
            assert!(!self.closed, "the peer has closed the connection after {} bytes", self.received.len());
            self.receive().unwrap();
        }
    }

    /// Says that nothing more comes.
    pub(crate) fn close(&mut self) {
        let mut record = [0; 64];
        let length = self.sealer.alert(Alert::CLOSE_NOTIFY, &mut record).unwrap();
        self.stream.write_all(&record[..length]).expect("the peer reads");
    }

    /// Until the peer says that nothing more comes.
    pub(crate) fn expect_close(&mut self) {
        while !self.closed {
            self.receive().unwrap();
        }
    }

    /// The socket, for what a test does beside TLS; and this end goes on with it.
    pub(crate) fn stream(&mut self) -> &mut TcpStream {
        &mut self.stream
    }
}

/// A program that is the other end. It ends with this.
pub(crate) struct Program {
    child: Child,
    input: Option<ChildStdin>,
    parts: Receiver<Vec<u8>>,
    said: Vec<u8>,
}

impl Program {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it is installed");
        let (sender, parts) = channel();
        let outputs: [Box<dyn Read + Send>; 2] =
            [Box::new(child.stdout.take().unwrap()), Box::new(child.stderr.take().unwrap())];
        for mut output in outputs {
            let sender = sender.clone();
            thread::spawn(move || {
                let mut part = vec![0; 64 << 10];
                while let Ok(count @ 1..) = output.read(&mut part) {
                    if sender.send(part[..count].to_vec()).is_err() {
                        break;
                    }
                }
            });
        }
        let input = child.stdin.take();
        Self { child, input, parts, said: Vec::new() }
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        let input = self.input.as_mut().expect("it is open");
        input.write_all(bytes).and_then(|()| input.flush()).expect("the program reads");
    }

    /// Until it has said this. Returns what it said before and since.
    pub(crate) fn expect(&mut self, text: &str) -> String {
        self.until(&format!("say {text:?}"), |said| String::from_utf8_lossy(said).contains(text))
    }

    /// Until it has said one of these. Returns what it said before and since.
    pub(crate) fn expect_any(&mut self, texts: &[&str]) -> String {
        self.until(&format!("say one of {texts:?}"), |said| {
            let said = String::from_utf8_lossy(said);
            texts.iter().any(|text| said.contains(text))
        })
    }

    /// Until it has said this so often.
    pub(crate) fn expect_times(&mut self, text: &str, count: usize) {
        self.until(&format!("say {text:?} {count} times"), |said| {
            String::from_utf8_lossy(said).matches(text).count() >= count
        });
    }

    /// Until it has said so many bytes like this one.
    pub(crate) fn expect_count(&mut self, byte: u8, count: usize) {
        self.until("say enough", |said| said.iter().filter(|&&one| one == byte).count() >= count);
    }

    fn until(&mut self, what: &str, done: impl Fn(&[u8]) -> bool) -> String {
        let end = Instant::now() + LIMIT;
        // One part may be one byte.
        self.said.extend(self.parts.try_iter().flatten());
        while !done(&self.said) {
            match self.parts.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(part) => {
                    self.said.extend(part);
                    self.said.extend(self.parts.try_iter().flatten());
                }
                Err(error) => {
                    let ended = matches!(error, RecvTimeoutError::Disconnected);
                    let said = String::from_utf8_lossy(&self.said);
                    panic!("the program does not {what} (ended: {ended}), but:\n{said}");
                }
            }
        }
        String::from_utf8_lossy(&self.said).into_owned()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Both ends agree on the suite, and on who the peer is.
pub(crate) fn check(end: &End, suite: CipherSuite) {
    assert_eq!(end.session.suite, suite);
    assert_eq!(end.session.identity, IDENTITY.as_bytes());
}

/// The end is the one that a test thinks.
pub(crate) fn assert_alert(error: &TlsError, peer: Role, alerts: &[Alert]) {
    match error {
        TlsError::PeerAlert { peer: who, alert, .. } if *who == peer && alerts.contains(alert) => {}
        other => panic!("{other}"),
    }
}
