//! A server that does what a test says, for what servers of other people do not.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread;

use ringfab_nbd::{NbdDriver, NbdOptions};
use ringfab_proto::nbd::{
    CHUNK_HEAD_BYTES, Errno, IHAVEOPT, NBDMAGIC, OPTION_REPLY_MAGIC, REQUEST_BYTES, Request,
    STRUCTURED_REPLY_MAGIC, chunk, export, handshake, info, option, reply, simple_reply,
};

/// The size of what it exports.
pub(crate) const BYTES: u64 = 16 << 20;

pub(crate) struct Scripted {
    folder: tempfile::TempDir,
    asked: Arc<Mutex<Vec<Request>>>,
}

/// A client that uses the export.
pub(crate) struct Client {
    stream: UnixStream,
    asked: Arc<Mutex<Vec<Request>>>,
    /// Where others connect.
    socket: PathBuf,
}

impl Scripted {
    /// Exports something that has `flags`. `script` is called for each client that uses it, with its number from zero,
    /// and the connection ends when it returns.
    pub(crate) fn start(
        flags: u16,
        mut script: impl FnMut(u32, &mut Client) -> io::Result<()> + Send + 'static,
    ) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let listener = UnixListener::bind(folder.path().join("s")).expect("a socket");
        let asked = Arc::new(Mutex::default());
        let (theirs, socket) = (Arc::clone(&asked), folder.path().join("s"));
        // It ends with the process: it waits for one more client.
        thread::spawn(move || {
            let mut number = 0;
            for stream in listener.incoming().map_while(Result::ok) {
                let mut client = Client { stream, asked: Arc::clone(&theirs), socket: socket.clone() };
                if client.shake_hands(flags).unwrap_or_default() {
                    let _gone = script(number, &mut client);
                    number += 1;
                }
            }
        });
        Self { folder, asked }
    }

    pub(crate) fn driver(&self, options: NbdOptions) -> NbdDriver {
        let address = format!("nbd+unix:///?socket={}", self.folder.path().join("s").display());
        NbdDriver::new(address.parse().expect("an address"), options)
    }

    /// What it was asked for since this was called last.
    pub(crate) fn take_asked(&self) -> Vec<Request> {
        std::mem::take(&mut self.asked.lock().expect("a server that goes on"))
    }
}

impl Client {
    /// Whether it wants to use the export, and not only to know what it is.
    fn shake_hands(&mut self, flags: u16) -> io::Result<bool> {
        self.send(&NBDMAGIC.to_be_bytes())?;
        self.send(&IHAVEOPT.to_be_bytes())?;
        self.send(&(handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES).to_be_bytes())?;
        self.take::<4>()?;
        loop {
            self.take::<8>()?;
            let [asked, length] = [self.take()?, self.take()?].map(u32::from_be_bytes);
            self.take_bytes(length as usize)?;
            match asked {
                option::STRUCTURED_REPLY => self.reply(asked, reply::ACK, &[])?,
                option::GO | option::INFO => {
                    let bytes = [
                        &info::EXPORT.to_be_bytes()[..],
                        &BYTES.to_be_bytes(),
                        &(export::HAS_FLAGS | flags).to_be_bytes(),
                    ];
                    self.reply(asked, reply::INFO, &bytes.concat())?;
                    self.reply(asked, reply::ACK, &[])?;
                    if asked == option::GO {
                        return Ok(true);
                    }
                }
                option::ABORT => return Ok(false),
                _ => self.reply(asked, reply::ERR_UNSUP, &[])?,
            }
        }
    }

    fn reply(&mut self, to: u32, kind: u32, bytes: &[u8]) -> io::Result<()> {
        self.send(&OPTION_REPLY_MAGIC.to_be_bytes())?;
        for number in [to, kind, bytes.len() as u32] {
            self.send(&number.to_be_bytes())?;
        }
        self.send(bytes)
    }

    /// The next request, without what it carries.
    pub(crate) fn request(&mut self) -> io::Result<Request> {
        let request = Request::parse(&self.take::<REQUEST_BYTES>()?).expect("a request");
        self.asked.lock().expect("a test that goes on").push(request);
        Ok(request)
    }

    /// The next request, and what it carries.
    pub(crate) fn whole_request(&mut self) -> io::Result<(Request, Vec<u8>)> {
        let request = self.request()?;
        let payload = self.take_bytes(request.payload_bytes() as usize)?;
        Ok((request, payload))
    }

    /// The next request is done, or not.
    pub(crate) fn answer_next(&mut self, error: Option<Errno>) -> io::Result<()> {
        let (request, _) = self.whole_request()?;
        self.send(&simple_reply(error, request.cookie))
    }

    /// Answers all that comes.
    pub(crate) fn acknowledge_all(&mut self) -> io::Result<()> {
        loop {
            self.answer_next(None)?;
        }
    }

    /// Bytes of a read, as a part of its answer.
    pub(crate) fn send_data(&mut self, cookie: u64, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.send_chunk(cookie, chunk::OFFSET_DATA, &[&offset.to_be_bytes()[..], bytes].concat())
    }

    /// A part of an answer that is not the last one.
    pub(crate) fn send_chunk(&mut self, cookie: u64, kind: u16, bytes: &[u8]) -> io::Result<()> {
        let mut sent = Vec::with_capacity(CHUNK_HEAD_BYTES + bytes.len());
        sent.extend(STRUCTURED_REPLY_MAGIC.to_be_bytes());
        sent.extend(0_u16.to_be_bytes());
        sent.extend(kind.to_be_bytes());
        sent.extend(cookie.to_be_bytes());
        sent.extend((bytes.len() as u32).to_be_bytes());
        sent.extend(bytes);
        self.send(&sent)
    }

    /// Ends the stream to the client. Nobody can connect any more.
    pub(crate) fn end_for_good(&mut self) -> io::Result<()> {
        fs::remove_file(&self.socket)?;
        self.stream.shutdown(Shutdown::Write)?;
        loop {
            thread::park();
        }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    fn take<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    pub(crate) fn take_bytes(&mut self, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}
