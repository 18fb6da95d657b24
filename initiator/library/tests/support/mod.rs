//! The other end of these tests: a controller of a few lines over the same RNIC, which misbehaves when it is told to.

pub(crate) mod announced;
mod faults;
pub(crate) mod host;
pub(crate) mod resets;

use std::collections::HashMap;
use std::net::SocketAddr;

use ringfab_fabric::rdma::{
    ConnectRequest, Inline, ListenParameters, QueuePairAttributes, QueuePairId, Rnic, RnicConfig, RnicEvent,
    SendRequest, Slice, Work,
};
use ringfab_memory::{Buffer, ClassLayout, Pool};
use ringfab_reactor::{Reactor, ReactorConfig, Wait};
use ringfab_spec::log::{AnaGroupDescriptor, AnaLogHeader, AnaState, AsyncEvent, LogId};
use ringfab_spec::rdma_cm::{Accept, Reject, RejectStatus, Request};
use ringfab_spec::{CompletionEntry, FabricsType, FromBytes, IntoBytes, Sgl, Status, SubmissionEntry};

use announced::{Announced, list};
pub(crate) use faults::{Disconnects, Faults};
use resets::{LostPaths, Reset};

pub(crate) const BLOCK: usize = 4096;
pub(crate) const BLOCKS: usize = 256;
pub(crate) const NQN: &str = "nqn.2026-01.org.example:disk";

fn reactor() -> Reactor {
    let config = ReactorConfig { entries: 64, spin: std::time::Duration::ZERO, descriptors_max: 64 };
    Reactor::new(&config).expect("a ring")
}

fn pool_layout() -> Vec<ClassLayout> {
    vec![ClassLayout { buffer_bytes: 4096, count: 128 }, ClassLayout { buffer_bytes: 65_536, count: 32 }]
}

pub(crate) struct Peer {
    reactor: Reactor,
    rnic: Rnic,
    pool: Pool,
    pub(crate) address: SocketAddr,
    pub(crate) faults: Faults,
    pub(crate) memory: Vec<u8>,
    /// Opcodes of the I/O commands that it executed, in order.
    pub(crate) executed: Vec<u8>,
    pub(crate) shut_down: bool,
    /// The namespaces that were flushed before the shutdown, in order.
    pub(crate) flushed: Vec<u32>,
    pub(crate) disconnects: Disconnects,
    /// The I/O queues that were disconnected, in order.
    pub(crate) disconnected: Vec<u16>,
    /// Whether any command counts as a sign of life.
    pub(crate) traffic_based_keep_alive: bool,
    /// Keep Alive commands so far.
    pub(crate) keep_alives: u32,
    /// What it can do.
    pub(crate) announced: Announced,
    /// Its namespaces as it lists them; all have the same blocks.
    pub(crate) nsids: Vec<u32>,
    /// Its Changed Namespace List.
    pub(crate) changed: Vec<u32>,
    /// Blocks of its namespace.
    pub(crate) blocks: u64,
    /// The access states that it tells (ANA), if it does: its namespaces are in group 1.
    pub(crate) access: Option<Vec<(u32, AnaState)>>,
    /// How often it was asked for them.
    pub(crate) access_told: u32,
    /// What it answers to I/O commands instead of executing them.
    pub(crate) refuses_io: Option<Status>,
    /// Identify commands so far, by what they asked for.
    pub(crate) identified: Vec<u8>,
    /// The Asynchronous Event Request that waits for an event.
    pub(crate) event_request: Option<(QueuePairId, SubmissionEntry)>,
    /// I/O commands that it did not answer.
    pub(crate) withheld: Vec<(QueuePairId, SubmissionEntry)>,
    /// Queue and command that it was last asked to abort.
    pub(crate) abort_asked: Option<(u16, u16)>,
    /// Aborts that it did not answer.
    pub(crate) aborts_withheld: Vec<(QueuePairId, SubmissionEntry)>,
    /// What it tells of lost paths.
    pub(crate) lost_paths: LostPaths,
    /// The Cross-Controller Resets that it has not answered.
    pub(crate) resets_withheld: Vec<(QueuePairId, SubmissionEntry)>,
    /// Whether it aborts what it is asked to.
    pub(crate) aborts: bool,
    /// Messages of authentication that it was sent.
    pub(crate) messages: Vec<Vec<u8>>,
    /// What it answers to Authentication Receive; none leaves it without an answer.
    pub(crate) message: Option<Vec<u8>>,
    /// Of the answers to admin commands with this opcode and this low byte of dword 10, it writes only so many bytes.
    pub(crate) cuts: Vec<(u8, u8, usize)>,
    queues: HashMap<QueuePairId, PeerQueue>,
    reads: HashMap<u64, (QueuePairId, SubmissionEntry, bool)>,
    next_id: u64,
    cc: u64,
}

#[derive(Clone, Copy)]
struct PeerQueue {
    qid: u16,
    size: u32,
    head: u32,
}

impl Peer {
    pub(crate) fn new() -> Self {
        let mut reactor = reactor();
        let mut rnic = Rnic::new(RnicConfig::new(1, [9; 32])).expect("an RNIC");
        let listen = ListenParameters::new("127.0.0.1:0".parse().expect("valid"));
        let (_, address) = rnic.listen(&mut reactor, &listen).expect("a listener");
        Self {
            reactor,
            rnic,
            pool: Pool::new(&pool_layout()).expect("a pool"),
            address,
            faults: Faults::default(),
            memory: vec![0; BLOCK * BLOCKS],
            executed: Vec::new(),
            shut_down: false,
            flushed: Vec::new(),
            nsids: vec![1],
            changed: Vec::new(),
            announced: Announced::default(),
            disconnects: Disconnects::default(),
            disconnected: Vec::new(),
            traffic_based_keep_alive: false,
            keep_alives: 0,
            blocks: BLOCKS as u64,
            access: None,
            access_told: 0,
            refuses_io: None,
            identified: Vec::new(),
            event_request: None,
            withheld: Vec::new(),
            abort_asked: None,
            aborts_withheld: Vec::new(),
            lost_paths: LostPaths::default(),
            resets_withheld: Vec::new(),
            aborts: false,
            messages: Vec::new(),
            message: None,
            cuts: Vec::new(),
            queues: HashMap::new(),
            reads: HashMap::new(),
            next_id: 0,
            cc: 0,
        }
    }

    pub(crate) fn turn(&mut self) {
        self.rnic.turn(&mut self.reactor, Wait::No).expect("a turn");
        while let Some(event) = self.rnic.next_event() {
            self.on_event(event);
        }
    }

    fn on_event(&mut self, event: RnicEvent) {
        match event {
            RnicEvent::ConnectRequest(request) => self.on_connect(request),
            RnicEvent::Received { queue_pair, head, data, .. } => {
                let entry = SubmissionEntry::read_from_bytes(head.as_slice()).expect("a capsule");
                self.rnic.post_receive(queue_pair, 1);
                let queue = self.queues.get_mut(&queue_pair).expect("a queue");
                queue.head = (queue.head + 1) % queue.size;
                self.on_command(queue_pair, entry, data);
            }
            RnicEvent::Read { queue_pair, id, sink } => {
                let (_, entry, is_io) = self.reads.remove(&id).expect("a read of ours");
                self.with_data(queue_pair, entry, &sink, is_io);
            }
            RnicEvent::Disconnected { queue_pair, .. } => {
                self.queues.remove(&queue_pair);
            }
            _ => {}
        }
    }

    fn on_connect(&mut self, request: ConnectRequest) {
        let said = Request::parse(&request.private_data).expect("the private data of NVMe/RDMA");
        if self.faults.reject {
            let reject = Reject::new(RejectStatus::NO_RESOURCES);
            return self.rnic.reject(&mut self.reactor, request, reject.as_bytes());
        }
        let attributes = QueuePairAttributes {
            domain: self.rnic.allocate_domain(),
            send_depth: said.entries() * 3,
            receive_depth: said.entries(),
            receive_bytes_max: 64 + 8192,
            pool: self.pool.clone(),
            initiator_depth: 16,
            responder_resources: 0,
        };
        let accept = Accept::new(said.entries() as u16);
        let queue_pair =
            self.rnic.accept(&mut self.reactor, request, &attributes, accept.as_bytes()).expect("room");
        self.queues.insert(queue_pair, PeerQueue { qid: said.qid.get(), size: said.entries(), head: 0 });
    }

    fn on_command(&mut self, queue_pair: QueuePairId, entry: SubmissionEntry, data: Option<Buffer>) {
        let is_io = self.queues[&queue_pair].qid != 0 && !entry.is_fabrics();
        if is_io && self.faults.mute {
            return self.withheld.push((queue_pair, entry));
        }
        if is_io && let Some(left) = self.faults.cut_after.as_mut() {
            if *left == 0 {
                let queue_pairs: Vec<_> = self.queues.keys().copied().collect();
                for queue_pair in queue_pairs {
                    self.rnic.disconnect(&mut self.reactor, queue_pair);
                }
                self.faults.cut_after = None;
                self.faults.mute = true;
                return;
            }
            *left -= 1;
        }
        if is_io && let Some(status) = self.refuses_io {
            return self.respond(queue_pair, entry, status, 0);
        }
        assert_eq!(entry.fuse(), 0, "no half of a fused command is ever sent");
        let from_host = if is_io {
            matches!(entry.opcode, 1 | 5 | 9)
        } else {
            let types = [FabricsType::CONNECT, FabricsType::AUTHENTICATION_SEND];
            entry.is_fabrics() && types.contains(&entry.fabrics_type())
        };
        match entry.sgl.parse() {
            Ok(Sgl::DataBlockOffset { .. }) if from_host => {
                self.with_data(queue_pair, entry, &data.expect("in-capsule data"), is_io);
            }
            Ok(Sgl::KeyedDataBlock { address, length, key, .. }) if from_host => {
                let id = self.next_id;
                self.next_id += 1;
                self.reads.insert(id, (queue_pair, entry, is_io));
                let sink = self.pool.take(length as usize).expect("a buffer");
                let work = Work::Read { sink, length, remote_key: key, remote_address: address };
                self.rnic.post_send(queue_pair, SendRequest { id, work, signaled: true }).expect("posted");
            }
            _ if is_io => self.without_data(queue_pair, entry),
            _ => self.admin(queue_pair, entry),
        }
    }

    fn with_data(&mut self, queue_pair: QueuePairId, entry: SubmissionEntry, data: &[u8], is_io: bool) {
        if entry.is_fabrics() && entry.fabrics_type() == FabricsType::AUTHENTICATION_SEND {
            self.messages.push(data.to_vec());
            return self.respond(queue_pair, entry, Status::SUCCESS, 0);
        }
        if !is_io {
            let qid = self.queues[&queue_pair].qid;
            let answer = self.faults.connect.filter(|(refused, ..)| *refused == qid);
            let (_, status, result) = answer.unwrap_or((qid, Status::SUCCESS, 1));
            self.shut_down &= qid != 0;
            return self.respond(queue_pair, entry, status, result);
        }
        self.executed.push(entry.opcode);
        if let Some(status) = self.announced.refuses(&entry, data) {
            return self.respond(queue_pair, entry, status, 0);
        }
        let start = entry.slba() as usize * BLOCK;
        let mut status = Status::SUCCESS;
        match entry.opcode {
            1 => self.memory[start..start + data.len()].copy_from_slice(data),
            5 if self.memory[start..start + data.len()] != *data => status = Status::COMPARE_FAILURE,
            9 => {
                for range in data.chunks_exact(16) {
                    let nlb = u32::from_le_bytes(range[4..8].try_into().expect("4 bytes")) as usize;
                    let lba = u64::from_le_bytes(range[8..].try_into().expect("8 bytes")) as usize;
                    self.memory[lba * BLOCK..(lba + nlb) * BLOCK].fill(0);
                }
            }
            _ => {}
        }
        self.respond(queue_pair, entry, status, 0);
    }

    fn without_data(&mut self, queue_pair: QueuePairId, entry: SubmissionEntry) {
        self.executed.push(entry.opcode);
        if let Some(status) = self.announced.refuses(&entry, &[]) {
            return self.respond(queue_pair, entry, status, 0);
        }
        let (start, length) = (entry.slba() as usize * BLOCK, entry.nlb() as usize * BLOCK);
        let mut status = Status::SUCCESS;
        match entry.opcode {
            0 if self.faults.namespace_removed => status = Status::INVALID_NAMESPACE.with_dnr(),
            0 => {
                assert!(!self.shut_down, "a Flush after the shutdown");
                self.flushed.push(entry.nsid.get());
            }
            2 => {
                let data = self.memory[start..start + length].to_vec();
                self.write_data(queue_pair, entry, &data);
            }
            8 => self.memory[start..start + length].fill(0),
            12 => {}
            opcode => panic!("opcode {opcode}"),
        }
        self.respond(queue_pair, entry, status, 0);
    }

    fn admin(&mut self, queue_pair: QueuePairId, entry: SubmissionEntry) {
        let mut result = 0;
        match entry.opcode {
            0x7f if entry.fabrics_type().0 == 0 => {
                self.cc = entry.property_value();
                if self.cc >> 14 & 3 == 1 {
                    self.shut_down = true;
                    self.close_io_queues();
                }
            }
            0x7f if entry.fabrics_type() == FabricsType::DISCONNECT => {
                return self.disconnect(queue_pair, entry);
            }
            0x7f if entry.fabrics_type() == FabricsType::AUTHENTICATION_RECEIVE => {
                let Some(message) = self.message.clone() else { return };
                self.write_data(queue_pair, entry, &message);
            }
            0x7f => result = self.property(entry.property_offset()),
            0x06 => {
                self.identified.push(entry.cns());
                if !self.announced.knows(entry.cns()) {
                    return self.respond(queue_pair, entry, Status::INVALID_FIELD.with_dnr(), 0);
                }
                let data = self.identify(entry.cns());
                self.write_data(queue_pair, entry, &data);
            }
            0x02 if self.faults.mute_log => return self.withheld.push((queue_pair, entry)),
            0x02 => self.log_page(queue_pair, entry),
            0x38 => return self.cross_controller_reset(queue_pair, entry),
            0x09 if entry.fid() == 7 => result = entry.cdw11.get().into(),
            0x0a => self.write_data(queue_pair, entry, &[0x0a; 4096]),
            0x0c => return self.event_request = Some((queue_pair, entry)),
            0x08 if self.faults.mute_abort => return self.aborts_withheld.push((queue_pair, entry)),
            0x08 => result = u64::from(!self.abort(entry)),
            0x18 => {
                self.keep_alives += 1;
                if self.faults.mute_keep_alive {
                    return;
                }
            }
            _ => {}
        }
        self.respond(queue_pair, entry, Status::SUCCESS, result);
    }

    fn log_page(&mut self, queue_pair: QueuePairId, entry: SubmissionEntry) {
        let length = entry.log_length() as usize;
        let page = if entry.lid() == LogId::ANA.0 {
            self.access_told += 1;
            let page = self.access_page();
            let from = (entry.lpo() as usize).min(page.len());
            page[from..].iter().copied().take(length).collect()
        } else {
            self.lost_paths.page(&entry).unwrap_or_else(|| list(&self.changed)[..length].to_vec())
        };
        self.write_data(queue_pair, entry, &page);
    }

    fn cross_controller_reset(&mut self, queue_pair: QueuePairId, entry: SubmissionEntry) {
        self.lost_paths.asked.push(entry.impacted_controller());
        match self.lost_paths.reset {
            Reset::AtOnce => self.respond(queue_pair, entry, Status::SUCCESS, 1),
            Reset::Begun => self.respond(queue_pair, entry, Status::SUCCESS, 0),
            Reset::Withheld => self.resets_withheld.push((queue_pair, entry)),
            Reset::Refused(status) => self.respond(queue_pair, entry, status, 0),
        }
    }

    /// Answers the resets that were withheld: they are done.
    pub(crate) fn finish_resets(&mut self) {
        for (queue_pair, entry) in std::mem::take(&mut self.resets_withheld) {
            self.respond(queue_pair, entry, Status::SUCCESS, 1);
        }
    }

    fn disconnect(&mut self, queue_pair: QueuePairId, entry: SubmissionEntry) {
        self.disconnected.push(self.queues[&queue_pair].qid);
        let status = match self.disconnects {
            Disconnects::Answer(status) => status,
            _ => Status::SUCCESS,
        };
        if self.disconnects != Disconnects::Close {
            self.respond(queue_pair, entry, status, 0);
        }
        if status.is_success() {
            self.rnic.disconnect(&mut self.reactor, queue_pair);
        }
    }

    /// Answers the Asynchronous Event Request.
    pub(crate) fn notify(&mut self, event: AsyncEvent) {
        let (queue_pair, entry) = self.event_request.take().expect("a request that waits");
        self.respond(queue_pair, entry, Status::SUCCESS, event.bits().into());
    }

    /// Answers the I/O commands that were withheld.
    pub(crate) fn release(&mut self, status: Status) {
        for (queue_pair, entry) in std::mem::take(&mut self.withheld) {
            self.respond(queue_pair, entry, status, 0);
        }
    }

    pub(crate) fn answer_aborts(&mut self) {
        self.faults.mute_abort = false;
        for (queue_pair, entry) in std::mem::take(&mut self.aborts_withheld) {
            self.admin(queue_pair, entry);
        }
    }

    /// How many of the I/O commands that were withheld came by a queue.
    pub(crate) fn withheld_by(&self, qid: u16) -> usize {
        self.withheld.iter().filter(|(queue_pair, _)| self.queues[queue_pair].qid == qid).count()
    }

    fn abort(&mut self, entry: SubmissionEntry) -> bool {
        self.abort_asked = Some((entry.abort_sqid(), entry.abort_cid()));
        if self.aborts {
            self.release(Status::ABORT_REQUESTED);
        }
        self.aborts
    }

    /// As a controller may that shuts down.
    fn close_io_queues(&mut self) {
        let io_queues: Vec<_> =
            self.queues.iter().filter(|(_, queue)| queue.qid != 0).map(|(id, _)| *id).collect();
        for queue_pair in io_queues {
            self.rnic.disconnect(&mut self.reactor, queue_pair);
        }
    }

    /// The log page of access states, of groups only.
    fn access_page(&self) -> Vec<u8> {
        let groups = self.access.as_deref().unwrap_or_default();
        let mut page = AnaLogHeader::new(1, groups.len() as u16).as_bytes().to_vec();
        for (group, state) in groups {
            page.extend(AnaGroupDescriptor::new(*group, *state, 1, 0).as_bytes());
        }
        page
    }

    fn property(&self, offset: u32) -> u64 {
        let ready = self.cc & 1 != 0 && !self.faults.never_ready;
        match offset {
            0 => 127 | 1 << 24 | 1 << 37,
            8 => u64::from(self.announced.version),
            _ if self.shut_down => 1 | 2 << 2,
            _ => u64::from(ready),
        }
    }

    fn identify(&self, cns: u8) -> Vec<u8> {
        let mut data = vec![0; 4096];
        match cns {
            0 => {
                data[..8].copy_from_slice(&self.blocks.to_le_bytes());
                data[33] = self.announced.dlfeat;
                data[92] = u8::from(self.access.is_some());
                data[104..120].fill(if self.faults.other_nguid { 2 } else { 1 });
                data[128..130].copy_from_slice(&self.announced.metadata_bytes.to_le_bytes());
                data[130] = 12;
            }
            1 => {
                data[4..8].copy_from_slice(b"S123");
                data[77] = 4;
                data[258] = self.announced.acl;
                if let Some(groups) = &self.access {
                    (data[76], data[93], data[342]) = (1 << 3, 1 << 3, 2);
                    data[344] = 200;
                    data[348] = groups.len().max(1) as u8;
                }
                data[96] = u8::from(self.traffic_based_keep_alive) << 6;
                data[320] = 1;
                data[520..522].copy_from_slice(&self.announced.oncs.to_le_bytes());
                data[525] = 1;
                data[536..540].copy_from_slice(&(1_u32 | 1 << 2 | 1 << 20).to_le_bytes());
                data[1792..1796].copy_from_slice(&516_u32.to_le_bytes());
                self.lost_paths.fill(&mut data);
                data[1804] = u8::from(self.disconnects != Disconnects::Unknown);
            }
            2 => data = list(&self.nsids),
            6 => self.announced.fill_limits(&mut data),
            _ => {}
        }
        data
    }

    fn write_data(&mut self, queue_pair: QueuePairId, entry: SubmissionEntry, data: &[u8]) {
        let Ok(Sgl::KeyedDataBlock { address, key, .. }) = entry.sgl.parse() else {
            panic!("{:?}", entry.sgl)
        };
        let is_io = self.queues[&queue_pair].qid != 0;
        let which = |(opcode, select, _): &&(u8, u8, usize)| {
            !is_io && (*opcode, *select) == (entry.opcode, entry.cdw10.get() as u8)
        };
        let data = &data[..self.cuts.iter().find(which).map_or(data.len(), |(.., bytes)| *bytes)];
        if data.is_empty() {
            return;
        }
        let mut buffer = self.pool.take(data.len()).expect("a buffer");
        buffer.copy_from_slice(data);
        let source = Slice { shared_buffer: buffer.share(), offset: 0, length: data.len() as u32 };
        let work = Work::Write { source, remote_key: key, remote_address: address };
        self.rnic.post_send(queue_pair, SendRequest { id: 0, work, signaled: false }).expect("posted");
    }

    fn respond(&mut self, queue_pair: QueuePairId, entry: SubmissionEntry, status: Status, result: u64) {
        let Some(queue) = self.queues.get(&queue_pair).copied() else { return };
        let answer = CompletionEntry::new(entry.cid.get(), queue.head as u16, status).with_result(result);
        let invalidate = match entry.sgl.parse() {
            Ok(Sgl::KeyedDataBlock { key, length, invalidate: true, .. }) if length > 0 => Some(key),
            _ => None,
        };
        let times = if self.faults.answer_twice && queue.qid != 0 && !entry.is_fabrics() { 2 } else { 1 };
        for time in 0..times {
            let invalidate = invalidate.filter(|_| time == 0);
            let work =
                Work::Send { head: Inline::new(answer.as_bytes()), data: None, invalidate, solicited: false };
            self.rnic.post_send(queue_pair, SendRequest { id: 0, work, signaled: false }).expect("posted");
        }
    }
}
