//! A controller of NVMe/TCP on plain sockets that does what no good one does: it falls silent, drips, resets, or comes
//! back as another one. Each connection has a thread, which ends with it.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ringfab_spec::log::LogId;
use ringfab_spec::tcp::{
    CapsuleCmd, CapsuleResp, CommonHeader, DataHeader, Digests, IcResp, PduFlags, PduType,
};
use ringfab_spec::{CompletionEntry, FabricsType, FromBytes, IntoBytes, Sgl, Status, SubmissionEntry};

use crate::fake_disk::Disk;
use crate::raw_tcp::pdu;

/// What it does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// It accepts connections and says nothing.
    Silent,
    /// It accepts connections and closes them.
    Closes,
    /// It says a byte a second.
    Drips,
    /// It answers ICReq and nothing else.
    OnlyInitializes,
    /// It answers everything but I/O commands.
    MuteIo,
    /// It closes the connection of each I/O command.
    ResetsIo,
    /// It does so once, and whoever comes back finds another namespace.
    Changes,
    /// It does not answer Keep Alive.
    MuteKeepAlive,
    /// It answers everything until an I/O command came, and then nothing at all, not even connections.
    Dies,
}

/// The controller. Dropping it ends its connections.
#[derive(Debug)]
pub struct FakeTarget {
    /// Where it listens.
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    fault: Fault,
    script: Mutex<Script>,
    streams: Mutex<Vec<TcpStream>>,
    accepted: AtomicU32,
    attached: AtomicU32,
    io_commands: AtomicU32,
    dead: AtomicBool,
}

/// What it answers, and what it says of itself.
#[derive(Debug, Default)]
pub struct Script {
    /// Statuses of the next I/O commands; then success.
    pub statuses: VecDeque<Status>,
    /// Answers every I/O command with this one instead, while it is set.
    pub always: Option<Status>,
    /// Command Retry Delay Times, in units of 100 ms.
    pub crdt: [u16; 3],
    /// ANA Transition Time in seconds.
    pub anatt: u8,
    /// Whether a host said that it honours retry delays.
    pub acre: bool,
    /// What keeps what is written; without one, everything reads as the same byte.
    pub disk: Option<Disk>,
    /// Whether the controller fails once it is to shut down (CSTS.CFS).
    pub fails_to_shut_down: bool,
    /// Of the answers to admin commands with this opcode and this low byte of dword 10, it sends only so many bytes.
    pub cuts: Vec<(u8, u8, usize)>,
    /// Whether SUCCESS with the last data of an admin command stands for its response.
    pub success: bool,
}

/// Bytes of a block.
pub const BLOCK: usize = 4096;
const BLOCKS: u64 = 4096;

impl FakeTarget {
    /// Starts one on a free port of the loopback interface.
    ///
    /// # Panics
    /// When there is none.
    pub fn start(fault: Fault) -> Self {
        Self::with_script(fault, Script::default())
    }

    /// The same with a script.
    ///
    /// # Panics
    /// When there is no port.
    pub fn with_script(fault: Fault, script: Script) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        let shared = Arc::new(Shared {
            fault,
            script: Mutex::new(script),
            streams: Mutex::default(),
            accepted: AtomicU32::new(0),
            attached: AtomicU32::new(0),
            io_commands: AtomicU32::new(0),
            dead: AtomicBool::new(false),
        });
        let serving = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if serving.dead.load(Ordering::Acquire) {
                    return;
                }
                serving.accepted.fetch_add(1, Ordering::AcqRel);
                stream.set_nodelay(true).expect("a socket");
                let copy = stream.try_clone().expect("a descriptor");
                serving.streams().push(copy);
                let shared = serving.clone();
                std::thread::spawn(move || {
                    // Its end is the connection's end.
                    let _ended = Connection { shared: &shared, stream: &stream, cc: 0, qid: 0 }.serve();
                    let _closed = stream.shutdown(Shutdown::Both);
                });
            }
        });
        Self { address, shared }
    }

    /// Connections so far.
    pub fn accepted(&self) -> u32 {
        self.shared.accepted.load(Ordering::Acquire)
    }

    /// I/O commands that came so far.
    pub fn io_commands(&self) -> u32 {
        self.shared.io_commands.load(Ordering::Acquire)
    }

    /// Changes what it answers, or looks at it.
    pub fn script<R>(&self, look: impl FnOnce(&mut Script) -> R) -> R {
        look(&mut self.shared.script.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for FakeTarget {
    fn drop(&mut self) {
        self.shared.die();
        // The listener wakes by one more connection, and ends.
        drop(TcpStream::connect(self.address));
    }
}

impl Shared {
    fn streams(&self) -> MutexGuard<'_, Vec<TcpStream>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn die(&self) {
        self.dead.store(true, Ordering::Release);
        self.reset_all();
    }

    fn reset_all(&self) {
        for stream in self.streams().drain(..) {
            // It may have ended already.
            let _ended = stream.shutdown(Shutdown::Both);
        }
    }
}

/// One connection. `None` ends it.
struct Connection<'a> {
    shared: &'a Shared,
    stream: &'a TcpStream,
    cc: u64,
    qid: u16,
}

impl Connection<'_> {
    fn serve(&mut self) -> Option<()> {
        match self.shared.fault {
            Fault::Closes => return None,
            Fault::Silent => return self.swallow(),
            _ => {}
        }
        self.hear()?;
        let response = IcResp::new(1, Digests::default(), 1 << 20);
        if self.shared.fault == Fault::Drips {
            for byte in response.as_bytes() {
                self.say(&[*byte])?;
                // Its fault is to be slow.
                std::thread::sleep(Duration::from_secs(1));
            }
        }
        self.say(response.as_bytes())?;
        if self.shared.fault == Fault::OnlyInitializes {
            return self.swallow();
        }
        loop {
            let (header, data) = self.hear()?;
            if header[0] == PduType::CAPSULE_CMD.0 {
                let command = CapsuleCmd::read_from_bytes(&header).ok()?;
                self.command(command.sqe, &data)?;
            }
        }
    }

    /// Takes what comes and says nothing.
    fn swallow(&mut self) -> Option<()> {
        let mut buffer = [0; 4096];
        while self.stream.read(&mut buffer).ok()? > 0 {}
        None
    }

    fn command(&mut self, sqe: SubmissionEntry, data: &[u8]) -> Option<()> {
        let cid = sqe.cid.get();
        let good = CompletionEntry::success(cid, 0);
        if sqe.is_fabrics() {
            return self.fabrics(sqe, data);
        }
        if self.qid != 0 {
            return self.io(sqe, data);
        }
        match sqe.opcode {
            0x06 => match self.identify(sqe.cns()) {
                Some(page) => return self.answer(sqe, &page),
                None => return self.respond(CompletionEntry::new(cid, 0, Status::INVALID_FIELD.with_dnr())),
            },
            0x02 => return self.answer(sqe, &log_page(&sqe)),
            // Get Features, Directive Receive, Get LBA Status.
            0x0a | 0x1a | 0x86 if room(&sqe) > 0 => return self.answer(sqe, &vec![sqe.opcode; room(&sqe)]),
            0x09 if sqe.fid() == 7 => return self.respond(good.with_dw0(sqe.cdw11.get())),
            0x09 if sqe.fid() == 0x16 => self.script().acre = data.first() == Some(&1),
            0x0c => return Some(()),
            0x18 if self.shared.fault == Fault::MuteKeepAlive => return Some(()),
            _ => {}
        }
        self.respond(good)
    }

    fn fabrics(&mut self, sqe: SubmissionEntry, data: &[u8]) -> Option<()> {
        let cid = sqe.cid.get();
        let good = CompletionEntry::success(cid, 0);
        match sqe.fabrics_type() {
            FabricsType::CONNECT => {
                self.qid = (sqe.cdw10.get() >> 16) as u16;
                if self.qid == 0 {
                    self.shared.attached.fetch_add(1, Ordering::AcqRel);
                }
                debug_assert!(data.len() == 1024, "its data are in the capsule");
                self.respond(CompletionEntry::connected(cid, 0, 1))
            }
            FabricsType::PROPERTY_SET => {
                self.cc = sqe.property_value();
                self.respond(good)
            }
            FabricsType::PROPERTY_GET => {
                let value = match sqe.property_offset() {
                    0 => 127 | 1 << 24 | 1 << 37,
                    8 => 0x0002_0000,
                    _ if self.cc >> 14 & 3 != 0 && self.script().fails_to_shut_down => 1 | 1 << 1 | 1 << 2,
                    _ if self.cc >> 14 & 3 != 0 => 1 | 2 << 2,
                    _ => self.cc & 1,
                };
                self.respond(good.with_result(value))
            }
            _ => self.respond(CompletionEntry::new(cid, 0, Status::INVALID_OPCODE.with_dnr())),
        }
    }

    fn io(&mut self, sqe: SubmissionEntry, data: &[u8]) -> Option<()> {
        self.shared.io_commands.fetch_add(1, Ordering::AcqRel);
        match self.shared.fault {
            Fault::MuteIo => return Some(()),
            Fault::ResetsIo => return None,
            Fault::Changes if self.shared.attached.load(Ordering::Acquire) == 1 => {
                self.shared.reset_all();
                return None;
            }
            Fault::Dies => {
                self.shared.die();
                return None;
            }
            _ => {}
        }
        let read = {
            let mut script = self.script();
            let told = script.always.or_else(|| script.statuses.pop_front()).unwrap_or(Status::SUCCESS);
            match &mut script.disk {
                _ if !told.is_success() => Err(told),
                Some(disk) => disk.execute(&sqe, data),
                None if sqe.opcode == 2 => Ok(vec![0x5a; sqe.nlb() as usize * BLOCK]),
                None => Ok(Vec::new()),
            }
        };
        let cid = sqe.cid.get();
        if let Some(bytes) = read.as_ref().ok().filter(|bytes| !bytes.is_empty()) {
            self.data(cid, bytes, false)?;
        }
        self.respond(CompletionEntry::new(cid, 0, read.err().unwrap_or(Status::SUCCESS)))
    }

    fn identify(&self, cns: u8) -> Option<Vec<u8>> {
        let mut data = vec![0; 4096];
        match cns {
            0 => {
                for place in [0, 8, 16] {
                    data[place..place + 8].copy_from_slice(&BLOCKS.to_le_bytes());
                }
                let again = self.shared.attached.load(Ordering::Acquire) > 1;
                data[104..120].fill(if again && self.shared.fault == Fault::Changes { 2 } else { 1 });
                data[130] = 12;
                if let Some(disk) = &self.script().disk {
                    disk.fill_namespace(&mut data);
                }
            }
            1 => {
                let script = self.script();
                data[4..8].copy_from_slice(b"S123");
                data[77] = 8;
                data[111] = 1;
                for (place, units) in data[128..134].chunks_exact_mut(2).zip(script.crdt) {
                    place.copy_from_slice(&units.to_le_bytes());
                }
                data[320] = 1;
                data[342] = script.anatt;
                data[525] = 1;
                data[536..540].copy_from_slice(&(1_u32 | 1 << 20).to_le_bytes());
                data[1792..1796].copy_from_slice(&516_u32.to_le_bytes());
                if let Some(disk) = &script.disk {
                    disk.fill_controller(&mut data);
                }
            }
            2 => data[0] = 1,
            _ => return None,
        }
        Some(data)
    }

    fn script(&self) -> MutexGuard<'_, Script> {
        self.shared.script.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers an admin command with data, of which it may send a part.
    fn answer(&mut self, sqe: SubmissionEntry, data: &[u8]) -> Option<()> {
        let cid = sqe.cid.get();
        let (bytes, success) = {
            let script = self.script();
            let which = |(opcode, select, _): &&(u8, u8, usize)| {
                (*opcode, *select) == (sqe.opcode, sqe.cdw10.get() as u8)
            };
            let cut = script.cuts.iter().find(which);
            (cut.map_or(data.len(), |(.., bytes)| data.len().min(*bytes)), script.success)
        };
        if bytes > 0 {
            self.data(cid, &data[..bytes], success)?;
        }
        if bytes > 0 && success { Some(()) } else { self.respond(CompletionEntry::success(cid, 0)) }
    }

    fn data(&mut self, cid: u16, data: &[u8], success: bool) -> Option<()> {
        let flags = PduFlags::default().with_last(true).with_success(success);
        let ch = CommonHeader::new(PduType::C2H_DATA, flags, 0, 0, 0);
        let header = DataHeader::new(ch, cid, 0, 0, data.len() as u32);
        self.say(&pdu(Digests::default(), header.as_bytes(), data))
    }

    fn respond(&mut self, cqe: CompletionEntry) -> Option<()> {
        let ch = CommonHeader::new(PduType::CAPSULE_RESP, PduFlags::default(), 0, 0, 0);
        self.say(&pdu(Digests::default(), CapsuleResp { ch, cqe }.as_bytes(), &[]))
    }

    fn say(&mut self, bytes: &[u8]) -> Option<()> {
        self.stream.write_all(bytes).ok()
    }

    /// The next PDU: its header and its data.
    fn hear(&mut self) -> Option<(Vec<u8>, Vec<u8>)> {
        let mut all = vec![0; CommonHeader::SIZE];
        self.stream.read_exact(&mut all).ok()?;
        let ch = CommonHeader::read_from_bytes(&all).ok()?;
        all.resize((ch.plen.get() as usize).clamp(CommonHeader::SIZE, 1 << 21), 0);
        self.stream.read_exact(&mut all[CommonHeader::SIZE..]).ok()?;
        let (hlen, pdo) = (usize::from(ch.hlen), usize::from(ch.pdo));
        let data = if pdo == 0 { Vec::new() } else { all.get(pdo..)?.to_vec() };
        Some((all.get(..hlen)?.to_vec(), data))
    }
}

/// Bytes of data that a command has room for.
fn room(sqe: &SubmissionEntry) -> usize {
    match sqe.sgl.parse() {
        Ok(Sgl::TransportDataBlock { length }) => length as usize,
        _ => 0,
    }
}

/// A log page as long as was asked for. That of discovery controllers has one entry, which says nothing.
fn log_page(sqe: &SubmissionEntry) -> Vec<u8> {
    let mut page = vec![0; room(sqe)];
    let is_start = sqe.cdw12.get() == 0;
    if sqe.cdw10.get() as u8 == LogId::DISCOVERY.0 && is_start && page.len() >= 16 {
        (page[0], page[8]) = (1, 1);
    }
    page
}
