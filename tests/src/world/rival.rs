//! A host that changes blocks which it shares with others, by Compare and Write, and aborts what it has sent, on queues
//! of several cores. It has no engine of the initiator, which sends no fused pairs. When a connection is lost, it ends
//! all of them, and comes back.

mod connections;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use ringfab_fabric::rdma::Slice;
use ringfab_fabric::tcp::SubmitData;
use ringfab_memory::SharedBuffer;
use ringfab_reactor::Time;
use ringfab_reactor::sim::{HostId, LinkFaults, World};
use ringfab_spec::{CompletionEntry, SglDescriptor, Status, SubmissionEntry};

use super::content::{Random, SECTOR_BYTES, fill};
use super::register::{Content, End, Register};
use super::scenario::Scenario;
use super::server::Server;
use super::trace::Trace;
use connections::{Connections, Happened};

/// The one namespace.
const NSID: u32 = 1;

/// Operations that it has in flight.
const IN_FLIGHT_MAX: usize = 6;

/// A host of the world.
#[derive(Debug)]
pub struct Rival {
    /// Its host.
    pub host: HostId,
    connections: Connections,
    world: World,
    name: String,
    random: Random,
    block_sectors: u64,
    /// What it has last seen of each register.
    seen: Vec<Option<Content>>,
    next_tag: u64,
    remaining: u64,
    operations: BTreeMap<u64, Operation>,
    /// Which operation a command belongs to, by queue and identifier, and which half of it the command is.
    commands: BTreeMap<CommandName, (u64, usize)>,
    /// Commands that it wants aborted, and what has become of that.
    aborts: BTreeMap<CommandName, Aborted>,
    counts: Counts,
    /// Queues of which commands were aborted.
    aborted_on: BTreeSet<u16>,
    /// What its queues have said about a namespace.
    probed: Vec<Status>,
}

/// A queue and the identifier of a command there.
type CommandName = (u16, u16);

/// What a rival has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Pairs that were made.
    pub pairs: u64,
    /// Pairs that had compared what was not there any more.
    pub unequal: u64,
    /// Commands that were aborted.
    pub aborted: u64,
}

impl std::iter::Sum for Counts {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            pairs: sum.pairs + one.pairs,
            unequal: sum.unequal + one.unequal,
            aborted: sum.aborted + one.aborted,
        })
    }
}

/// An operation in flight.
#[derive(Debug)]
struct Operation {
    kind: Kind,
    /// Of its commands, as far as they have ended.
    statuses: Vec<Option<Status>>,
}

#[derive(Debug)]
enum Kind {
    Look { register: usize, memory: SharedBuffer },
    Write { register: usize },
    Pair { register: usize },
    Abort { command: CommandName },
    Probe,
}

/// What is known of a command that is to be aborted.
#[derive(Clone, Copy, Debug, Default)]
struct Aborted {
    /// The target has said that it is.
    told: bool,
    /// How it has ended.
    ended: Option<Status>,
}

impl Rival {
    /// The rival with this number; it is not attached yet.
    pub fn new(world: &World, server: &Server, scenario: &Scenario, number: u64) -> Self {
        let name = format!("rival{number}");
        let host = world.add_host(&name);
        // It does not have its old controllers reset, so that nothing may come late.
        world.set_link(host, server.host, LinkFaults { late_data: false, ..scenario.link.clone() });
        let connections = Connections::new(world, host, server, &name, scenario.machines.cores as u16 + 1);
        Self {
            host,
            connections,
            world: world.clone(),
            name,
            random: Random::new(scenario.seed, 100 + number),
            block_sectors: u64::from(scenario.block_bytes) / SECTOR_BYTES as u64,
            seen: vec![None; scenario.registers().len()],
            // Stamps are tags, and differ between hosts.
            next_tag: (number + 100) << 40,
            remaining: scenario.commands / 2,
            operations: BTreeMap::new(),
            commands: BTreeMap::new(),
            aborts: BTreeMap::new(),
            counts: Counts::default(),
            aborted_on: BTreeSet::new(),
            probed: Vec::new(),
        }
    }

    /// Whether it has done all that it wants.
    pub fn is_finished(&self) -> bool {
        self.remaining == 0 && self.operations.is_empty()
    }

    /// Whether nothing is in flight.
    pub fn is_idle(&self) -> bool {
        self.operations.is_empty()
    }

    /// Whether it can submit.
    pub fn is_connected(&self) -> bool {
        self.connections.is_ready()
    }

    /// Whether it has left.
    pub fn is_gone(&self) -> bool {
        self.connections.are_gone()
    }

    /// Leaves, and does not come back.
    pub fn leave(&mut self) {
        self.connections.leave();
    }

    /// What it has done.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Its I/O queues.
    pub fn io_queues(&self) -> BTreeSet<u16> {
        self.connections.io_queues().collect()
    }

    /// Those of which commands were aborted.
    pub fn queues_with_aborted(&self) -> BTreeSet<u16> {
        self.aborted_on.clone()
    }

    /// Sends some writes on each of its queues.
    pub fn write_on_each(&mut self, count: usize, registers: &mut [Register], trace: &mut Trace) {
        for queue in self.connections.io_queues() {
            (0..count).for_each(|_| self.write(0, Some(queue), registers, trace));
        }
        self.connections.flush();
    }

    /// Has all that it has sent aborted.
    pub fn abort_all(&mut self, trace: &mut Trace) {
        let commands: Vec<CommandName> = self.commands.keys().copied().collect();
        commands.into_iter().for_each(|command| self.abort(command, trace));
        self.connections.flush();
    }

    /// Asks each of its queues for a block of a namespace.
    pub fn probe(&mut self, nsid: u32, trace: &mut Trace) {
        for queue in self.connections.io_queues() {
            let length = self.block_sectors as usize * SECTOR_BYTES;
            let memory = self.connections.memory(&vec![0xee; length]).expect("memory");
            let entry =
                SubmissionEntry::read(0, nsid, 0, 1).with_sgl(SglDescriptor::transport(length as u32));
            let data = SubmitData::ToHost(Slice { shared_buffer: memory, offset: 0, length: length as u32 });
            let (tag, what) = (self.tag(), format!("probe of namespace {nsid}"));
            self.start(tag, Kind::Probe, vec![(entry, data)], Some(queue), &what, trace);
        }
        self.connections.flush();
    }

    /// What they have said, and forgets it.
    pub fn take_probed(&mut self) -> Vec<Status> {
        std::mem::take(&mut self.probed)
    }

    /// When it acts by itself, beside what its reactor waits for.
    pub fn due(&self) -> Time {
        self.connections.due(!self.commands.is_empty())
    }

    /// One turn: connects, takes answers, submits. Whether anything was done.
    pub fn turn(&mut self, registers: &mut [Register], trace: &mut Trace) -> bool {
        let mut active = self.connections.turn(!self.commands.is_empty());
        while let Some(happened) = self.connections.next() {
            active = true;
            match happened {
                Happened::Answer { queue, entry } => {
                    self.answered((queue, entry.cid.get()), &entry, registers, trace);
                }
                Happened::Lost => self.lost(registers, trace),
            }
        }
        while self.remaining > 0 && self.is_connected() && self.operations.len() < IN_FLIGHT_MAX {
            self.remaining -= 1;
            active = true;
            self.submit(registers, trace);
        }
        self.connections.flush();
        active
    }

    fn submit(&mut self, registers: &mut [Register], trace: &mut Trace) {
        let register = self.random.below(registers.len() as u64) as usize;
        let single = registers[register].range().count() == 1;
        match self.random.below(100) {
            0..55 if self.seen[register].is_some() => self.pair(register, registers, trace),
            55..63 if single => self.write(register, None, registers, trace),
            63..80 if !self.commands.is_empty() => self.abort_some(trace),
            _ => self.look(register, registers, trace),
        }
    }

    fn look(&mut self, register: usize, registers: &mut [Register], trace: &mut Trace) {
        let range = registers[register].range();
        let length = range.clone().count() * SECTOR_BYTES;
        let Some(memory) = self.connections.memory(&vec![0xee; length]) else { return };
        let tag = self.tag();
        registers[register].begin_look(tag);
        let (lba, nlb) = self.blocks(&range);
        let entry =
            SubmissionEntry::read(0, NSID, lba, nlb).with_sgl(SglDescriptor::transport(length as u32));
        let slice = Slice { shared_buffer: memory.clone(), offset: 0, length: length as u32 };
        let kind = Kind::Look { register, memory };
        self.start(
            tag,
            kind,
            vec![(entry, SubmitData::ToHost(slice))],
            None,
            &format!("look at {range:?}"),
            trace,
        );
    }

    fn write(&mut self, register: usize, queue: Option<u16>, registers: &mut [Register], trace: &mut Trace) {
        let range = registers[register].range();
        let tag = self.tag();
        let content = vec![tag; range.clone().count()];
        let (lba, nlb) = self.blocks(&range);
        let Some(data) = self.data(SubmissionEntry::write(0, NSID, lba, nlb, false), &range, &content) else {
            return;
        };
        registers[register].begin_write(tag, tag);
        self.start(tag, Kind::Write { register }, vec![data], queue, &format!("write {range:?}"), trace);
    }

    /// Compares with what it has last seen, and writes something else.
    fn pair(&mut self, register: usize, registers: &mut [Register], trace: &mut Trace) {
        let Some(old) = self.seen[register].clone() else { return };
        let range = registers[register].range();
        let tag = self.tag();
        let (lba, nlb) = self.blocks(&range);
        let compare = SubmissionEntry::compare(0, NSID, lba, nlb).with_fuse(SubmissionEntry::FUSE_FIRST);
        let write = SubmissionEntry::write(0, NSID, lba, nlb, false).with_fuse(SubmissionEntry::FUSE_SECOND);
        let new = vec![tag; old.len()];
        let (Some(compare), Some(write)) = (self.data(compare, &range, &old), self.data(write, &range, &new))
        else {
            return;
        };
        let what = format!("pair {range:?}: {:x} or so becomes {tag:x}", old[0]);
        registers[register].begin_pair(tag, old, tag);
        self.start(tag, Kind::Pair { register }, vec![compare, write], None, &what, trace);
    }

    /// Has some command aborted, which is on another queue and perhaps on another core.
    fn abort_some(&mut self, trace: &mut Trace) {
        let index = self.random.below(self.commands.len() as u64) as usize;
        let command = *self.commands.keys().nth(index).expect("there are so many");
        if command.0 != 0 {
            self.abort(command, trace);
        }
    }

    fn abort(&mut self, command: CommandName, trace: &mut Trace) {
        self.aborts.entry(command).or_default();
        let entry = SubmissionEntry::abort(0, command.0, command.1);
        let (tag, what) = (self.tag(), format!("abort {command:?}"));
        let data = vec![(entry, SubmitData::None)];
        self.start(tag, Kind::Abort { command }, data, Some(0), &what, trace);
    }

    /// A command with data of this content, in its capsule or asked for.
    fn data(
        &mut self,
        entry: SubmissionEntry,
        range: &Range<u64>,
        content: &Content,
    ) -> Option<(SubmissionEntry, SubmitData)> {
        let mut bytes = vec![0; content.len() * SECTOR_BYTES];
        for ((sector, stamp), number) in bytes.chunks_exact_mut(SECTOR_BYTES).zip(content).zip(range.clone())
        {
            fill(sector, *stamp, number);
        }
        let length = bytes.len() as u32;
        let slice = Slice { shared_buffer: self.connections.memory(&bytes)?, offset: 0, length };
        if length <= 8192 && self.random.one_in(2) {
            return Some((entry.with_sgl(SglDescriptor::in_capsule(0, length)), SubmitData::Capsule(slice)));
        }
        Some((entry.with_sgl(SglDescriptor::transport(length)), SubmitData::ToController(slice)))
    }

    /// Sends the commands of an operation on one queue.
    fn start(
        &mut self,
        tag: u64,
        kind: Kind,
        commands: Vec<(SubmissionEntry, SubmitData)>,
        queue: Option<u16>,
        what: &str,
        trace: &mut Trace,
    ) {
        let queue = queue.unwrap_or_else(|| self.connections.pick_io(&mut self.random));
        self.operations.insert(tag, Operation { kind, statuses: vec![None; commands.len()] });
        for (half, (entry, data)) in commands.into_iter().enumerate() {
            let cid = self.connections.submit(queue, entry, data);
            self.commands.insert((queue, cid), (tag, half));
            // Some thousand commands before, another one had the name.
            self.aborts.remove(&(queue, cid));
            trace.tell(self.world.now(), &format!("{} {tag:x} {what}: queue {queue}, {cid:x}", self.name));
        }
    }

    fn answered(
        &mut self,
        command: CommandName,
        entry: &CompletionEntry,
        registers: &mut [Register],
        trace: &mut Trace,
    ) {
        let (tag, half) = self.commands.remove(&command).expect("a command ends once");
        let status = entry.status().code();
        trace.tell(self.world.now(), &format!("{} {tag:x} {command:?} ends: {status}", self.name));
        self.check_aborted(command, status);
        let operation = self.operations.get_mut(&tag).expect("it has a command");
        operation.statuses[half] = Some(status);
        if let Kind::Abort { command } = operation.kind
            && status == Status::SUCCESS
            && entry.result() & 1 == 0
        {
            self.told_aborted(command);
        }
        let Some(statuses) = self.operations[&tag].statuses.iter().copied().collect::<Option<Vec<Status>>>()
        else {
            return;
        };
        let operation = self.operations.remove(&tag).expect("it has just ended");
        self.ended(tag, operation.kind, &statuses, registers);
    }

    /// A command ends as one that was aborted only if that was asked for, and also if the target has said so.
    fn check_aborted(&mut self, command: CommandName, status: Status) {
        let is_aborted = status == Status::ABORT_REQUESTED;
        let Some(abort) = self.aborts.get_mut(&command) else {
            assert!(!is_aborted, "{}: nobody has asked for the abort of {command:?}", self.name);
            return;
        };
        abort.ended = Some(status);
        if is_aborted {
            self.counts.aborted += 1;
            self.aborted_on.insert(command.0);
        }
        assert!(is_aborted || !abort.told, "{}: {command:?} was aborted, and yet: {status}", self.name);
    }

    fn told_aborted(&mut self, command: CommandName) {
        let Some(abort) = self.aborts.get_mut(&command) else { return };
        abort.told = true;
        let wrong = abort.ended.filter(|status| *status != Status::ABORT_REQUESTED);
        assert!(wrong.is_none(), "{}: {command:?} is said to be aborted, and yet: {wrong:?}", self.name);
    }

    /// All commands of an operation have ended: the model judges.
    fn ended(&mut self, tag: u64, kind: Kind, statuses: &[Status], registers: &mut [Register]) {
        let done = statuses.iter().all(|status| *status == Status::SUCCESS);
        let judged = match kind {
            Kind::Abort { .. } => Ok(()),
            Kind::Probe => {
                self.probed.extend(statuses);
                Ok(())
            }
            Kind::Look { register, memory } => {
                let bytes = done.then(|| memory.with_bytes(0..memory.len(), <[u8]>::to_vec));
                let shown = registers[register].end_look(tag, bytes.as_deref());
                shown.map(|content| self.seen[register] = content.or(self.seen[register].take()))
            }
            Kind::Write { register } => {
                registers[register].end(tag, if done { End::Done } else { End::Unknown })
            }
            Kind::Pair { register } => {
                let unequal = *statuses == [Status::COMPARE_FAILURE, Status::ABORTED_FAILED_FUSED];
                self.counts.pairs += u64::from(done);
                self.counts.unequal += u64::from(unequal);
                let sectors = registers[register].range().count();
                // What is not there any more is no use to compare with.
                self.seen[register] = done.then(|| vec![tag; sectors]);
                let otherwise = if unequal { End::Unequal } else { End::Unknown };
                registers[register].end(tag, if done { End::Done } else { otherwise })
            }
        };
        if let Err(wrong) = judged {
            panic!("{} {tag:x}: {wrong}", self.name);
        }
    }

    /// The connections are gone, and with them the answers to all that was sent.
    fn lost(&mut self, registers: &mut [Register], trace: &mut Trace) {
        trace.tell(self.world.now(), &format!("{} has lost its connections", self.name));
        self.commands.clear();
        self.aborts.clear();
        for (tag, operation) in std::mem::take(&mut self.operations) {
            let judged = match operation.kind {
                Kind::Abort { .. } | Kind::Probe => Ok(()),
                Kind::Look { register, .. } => registers[register].end_look(tag, None).map(drop),
                Kind::Write { register } | Kind::Pair { register } => {
                    registers[register].end(tag, End::Unknown)
                }
            };
            judged.expect("what is not known is not wrong");
        }
    }

    fn tag(&mut self) -> u64 {
        self.next_tag += 1;
        self.next_tag
    }

    /// First block and number of blocks.
    fn blocks(&self, range: &Range<u64>) -> (u64, u32) {
        let nlb = (range.end - range.start) / self.block_sectors;
        (range.start / self.block_sectors, nlb as u32)
    }
}
