//! A host: it attaches, works on its own part of a namespace, and leaves, in order or in the middle.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use ringfab_initiator::{
    ConnectOptions, ControllerId, Host, HostEvent, HostIdentity, IoDone, IoError, IoOperation, IoRequest,
    SubmitError,
};
use ringfab_spec::Status;
use ringfab_tests::NQN;
use ringfab_tests::world::checker::{Checker, Outcome};
use ringfab_tests::world::content::{Random, SECTOR_BYTES, fill};

use super::Addresses;
use super::crew::Did;

/// I/O queues of a host, and the depth of each.
const QUEUES: u16 = 4;
const DEPTH: u16 = 8;

/// Sectors of each host's own part.
const SECTORS: u64 = 512;

/// Namespaces that stay; what has a larger number comes and goes.
const LASTING: u32 = 2;

/// Commands in flight of a host.
const IN_FLIGHT_MAX: usize = 12;

/// A host and what it knows.
pub(crate) struct Guest {
    number: u64,
    options: ConnectOptions,
    nsid: u32,
    state: State,
    checker: Checker,
    pending: BTreeMap<u64, Kind>,
    random: Random,
    tag: u64,
    /// What it still has to read before it trusts what it finds.
    unseen: Range<u64>,
    /// It reads its last.
    last_look: bool,
}

/// Where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Away {
        until: Instant,
    },
    Attaching(ControllerId),
    Working {
        controller: ControllerId,
        commands: u64,
    },
    /// In order, or not.
    Leaving {
        controller: ControllerId,
        politely: bool,
    },
    /// For good.
    Gone,
}

/// A command in flight.
#[derive(Debug)]
enum Kind {
    Write,
    Flush,
    Read(Range<u64>),
    /// On a namespace that may go at any time.
    Visit,
}

impl std::fmt::Debug for Guest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "host {} {:?} {:?}", self.number, self.state, self.pending)
    }
}

impl Guest {
    pub(crate) fn new(addresses: Addresses, seed: u64, number: u64) -> Self {
        let mut random = Random::new(seed, number);
        let first = number * SECTORS;
        let pause = Duration::from_millis(random.below(300));
        Self {
            number,
            options: options(addresses, number),
            // Both transports on both namespaces.
            nsid: 1 + (number / 2 % u64::from(LASTING)) as u32,
            state: State::Away { until: Instant::now() + pause },
            checker: Checker::new(first..first + SECTORS),
            pending: BTreeMap::new(),
            random,
            tag: (number + 1) << 40,
            unseen: 0..0,
            last_look: false,
        }
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.state == State::Gone
    }

    /// Whether a controller is this host's.
    pub(crate) fn has(&self, controller: ControllerId) -> bool {
        match self.state {
            State::Away { .. } | State::Gone => false,
            State::Attaching(own)
            | State::Working { controller: own, .. }
            | State::Leaving { controller: own, .. } => own == controller,
        }
    }

    /// Does the next thing, if it is time for it. Once it is `late`, it looks at everything that it has written and
    /// leaves.
    pub(crate) fn act(&mut self, engine: &mut Host, now: Instant, late: bool, did: &mut Did) {
        match self.state {
            State::Away { until } if now >= until => {
                self.state = State::Attaching(engine.attach(self.options.clone()));
            }
            State::Working { controller, commands: 0 } if self.unseen.is_empty() && !late => {
                self.leave(engine, controller, did);
            }
            State::Working { controller, .. } if late => self.finish(engine, controller),
            State::Working { controller, .. } => self.submit_next(engine, controller, did),
            _ => {}
        }
    }

    /// When what is in flight has ended, it reads everything once more, and leaves.
    fn finish(&mut self, engine: &mut Host, controller: ControllerId) {
        while !self.unseen.is_empty() && self.pending.len() < IN_FLIGHT_MAX {
            if !self.look_on(engine, controller) {
                return;
            }
        }
        if !self.pending.is_empty() {
            return;
        }
        if self.last_look {
            self.state = State::Leaving { controller, politely: true };
            engine.detach(controller);
        } else {
            (self.last_look, self.unseen) = (true, self.checker.range());
        }
    }

    fn leave(&mut self, engine: &mut Host, controller: ControllerId, did: &mut Did) {
        let politely = self.random.below(2) == 0;
        self.state = State::Leaving { controller, politely };
        if politely {
            engine.detach(controller);
        } else {
            did.cut_short += self.pending.len() as u64;
            engine.cancel(controller);
        }
    }

    fn submit_next(&mut self, engine: &mut Host, controller: ControllerId, did: &mut Did) {
        while self.pending.len() < IN_FLIGHT_MAX {
            let State::Working { commands, .. } = self.state else { return };
            let submitted = if !self.unseen.is_empty() {
                self.look_on(engine, controller)
            } else if commands > 0 {
                self.state = State::Working { controller, commands: commands - 1 };
                self.submit_any(engine, controller, did)
            } else {
                false
            };
            if !submitted {
                return;
            }
        }
    }

    fn look_on(&mut self, engine: &mut Host, controller: ControllerId) -> bool {
        let Range { start, end } = self.unseen;
        let next = start + 128;
        let submitted = self.read(engine, controller, start..next.min(end));
        if submitted {
            self.unseen = next.min(end)..end;
        }
        submitted
    }

    fn submit_any(&mut self, engine: &mut Host, controller: ControllerId, did: &mut Did) -> bool {
        match self.random.below(16) {
            0..8 => self.write(engine, controller, did),
            8..13 => {
                let range = self.any_range();
                self.read(engine, controller, range)
            }
            13 => {
                self.tag += 1;
                self.checker.begin_flush(self.tag);
                self.submit(engine, controller, self.nsid, Kind::Flush, IoOperation::Flush);
                true
            }
            _ => self.visit(engine, controller),
        }
    }

    fn write(&mut self, engine: &mut Host, controller: ControllerId, did: &mut Did) -> bool {
        let range = self.any_range();
        let length = bytes_of(&range);
        if self.checker.is_writing(&range) || self.is_reading(&range) {
            return false;
        }
        let Some(mut buffer) = engine.pool().take(length) else { return false };
        buffer.set_len(length);
        self.tag += 1;
        for (bytes, sector) in buffer.chunks_exact_mut(SECTOR_BYTES).zip(range.clone()) {
            fill(bytes, self.tag, sector);
        }
        let fua = self.random.one_in(4);
        self.checker.begin_write(self.tag, range.clone(), self.tag, fua);
        did.written_bytes += length as u64;
        let (lba, nlb) = (range.start, (range.end - range.start) as u32);
        let operation = IoOperation::Write { lba, nlb, source: buffer.share(), offset: 0, fua };
        self.submit(engine, controller, self.nsid, Kind::Write, operation);
        true
    }

    /// Not what is being written: a reader may see a part of that.
    fn read(&mut self, engine: &mut Host, controller: ControllerId, range: Range<u64>) -> bool {
        if self.checker.is_writing(&range) {
            return false;
        }
        let Some(mut buffer) = engine.pool().take(bytes_of(&range)) else { return false };
        buffer.set_len(bytes_of(&range));
        // What a read leaves untouched must not look like an answer.
        buffer.fill(0xee);
        self.tag += 1;
        let (lba, nlb) = (range.start, (range.end - range.start) as u32);
        self.checker.begin_look(self.tag, range.clone(), Vec::new());
        self.submit(engine, controller, self.nsid, Kind::Read(range), IoOperation::Read { lba, nlb, buffer });
        true
    }

    fn is_reading(&self, range: &Range<u64>) -> bool {
        self.pending.values().any(|kind| match kind {
            Kind::Read(other) => range.start < other.end && other.start < range.end,
            _ => false,
        })
    }

    /// Writes to a namespace that comes and goes, if there is one.
    fn visit(&mut self, engine: &mut Host, controller: ControllerId) -> bool {
        let coming = engine.namespaces(controller).iter().filter(|one| one.nsid > LASTING);
        let coming: Vec<_> = coming.map(|one| (one.nsid, one.blocks, one.block_bytes)).collect();
        if coming.is_empty() {
            return true;
        }
        let (nsid, blocks, block_bytes) = self.random.pick(&coming);
        let Some(mut buffer) = engine.pool().take(block_bytes as usize) else { return false };
        buffer.set_len(block_bytes as usize);
        buffer.fill(self.number as u8);
        self.tag += 1;
        let lba = self.random.below(blocks);
        let operation = IoOperation::Write { lba, nlb: 1, source: buffer.share(), offset: 0, fua: false };
        self.submit(engine, controller, nsid, Kind::Visit, operation);
        true
    }

    fn submit(
        &mut self,
        engine: &mut Host,
        controller: ControllerId,
        nsid: u32,
        kind: Kind,
        operation: IoOperation,
    ) {
        self.pending.insert(self.tag, kind);
        if let Err(refused) = engine.submit(controller, IoRequest { nsid, tag: self.tag, operation }) {
            panic!("host {}: {} was refused: {}", self.number, self.tag, refused.reason);
        }
    }

    /// Something has happened to its controller.
    pub(crate) fn on_event(&mut self, engine: &Host, event: HostEvent, did: &mut Did) {
        match (event, self.state) {
            (HostEvent::IoDone(done), _) => self.ended(done, did),
            (HostEvent::NamespacesChanged { .. }, _) => {}
            (HostEvent::Ready { reconnected: false, .. }, State::Attaching(controller)) => {
                let queues = engine.info(controller).map(|info| info.queues);
                assert_eq!(queues, Some(QUEUES), "host {}", self.number);
                did.attached += 1;
                self.unseen = self.checker.range();
                let commands = self.random.below(400);
                self.state = State::Working { controller, commands };
            }
            (HostEvent::Detached { trouble, .. }, State::Leaving { politely, .. }) => {
                assert!(trouble.is_none(), "host {} left with {trouble:?}", self.number);
                assert!(self.pending.is_empty(), "host {}: {:?}", self.number, self.pending);
                *(if politely { &mut did.detached } else { &mut did.dropped }) += 1;
                let until = Instant::now() + Duration::from_millis(self.random.below(200));
                self.state = if self.last_look { State::Gone } else { State::Away { until } };
            }
            (event, state) => panic!("host {} did not expect {event:?} while {state:?}", self.number),
        }
    }

    fn ended(&mut self, done: IoDone, did: &mut Did) {
        let IoDone { tag, result, buffer, .. } = done;
        let kind = self.pending.remove(&tag).expect("a command ends once");
        let cancelled = matches!(self.state, State::Leaving { politely: false, .. })
            && matches!(result, Err(IoError::Cancelled | IoError::NoPath));
        let missing = matches!(kind, Kind::Visit) && result.is_err_and(is_of_another_namespace);
        assert!(result.is_ok() || cancelled || missing, "host {}: {kind:?} {result:?}", self.number);
        match kind {
            Kind::Write | Kind::Flush => {
                self.checker.end(tag, if result.is_ok() { Outcome::Done } else { Outcome::Unknown });
            }
            Kind::Read(_) => {
                let bytes = buffer.as_deref().filter(|_| result.is_ok());
                did.compared_bytes += bytes.map_or(0, <[u8]>::len) as u64;
                let judged = self.checker.end_read(tag, bytes);
                assert_eq!(judged, Ok(()), "host {}, namespace {}", self.number, self.nsid);
            }
            Kind::Visit => *(if result.is_ok() { &mut did.visits } else { &mut did.missed }) += 1,
        }
    }

    fn any_range(&mut self) -> Range<u64> {
        let length = self.random.pick(&[1, 1, 8, 8, 16, 64, 128, 512]);
        let first = self.checker.range().start + self.random.below(SECTORS - length + 1);
        first..first + length
    }
}

/// There is none of that number any more, or another one, which is shorter.
fn is_of_another_namespace(error: IoError) -> bool {
    match error {
        IoError::Status(status) | IoError::Exhausted { status, .. } => {
            [Status::INVALID_NAMESPACE, Status::LBA_OUT_OF_RANGE].contains(&status.code())
        }
        IoError::Refused(reason) => matches!(reason, SubmitError::NoNamespace(_) | SubmitError::Range),
        _ => false,
    }
}

fn bytes_of(range: &Range<u64>) -> usize {
    (range.end - range.start) as usize * SECTOR_BYTES
}

fn options(addresses: Addresses, number: u64) -> ConnectOptions {
    let url = if number.is_multiple_of(2) {
        let digests = ["", "&hdgst=on", "&ddgst=on", "&hdgst=on&ddgst=on"][(number / 4 % 4) as usize];
        format!("nvme+tcp://{}/{NQN}?queues={QUEUES}&depth={DEPTH}{digests}", addresses.tcp)
    } else {
        format!("nvme+rdma://{}/{NQN}?provider=iwarp&queues={QUEUES}&depth={DEPTH}", addresses.rdma)
    };
    let id = format!("00000000-0000-4000-8000-{number:012}");
    let nqn = format!("nqn.2014-08.org.nvmexpress:uuid:{id}");
    ConnectOptions::new(url.parse().expect("a URL"), HostIdentity { nqn, id: id.parse().expect("a UUID") })
}
