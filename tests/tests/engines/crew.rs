//! Threads with an engine each that share a controller.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ringfab_fabric::rdma::RnicConfig;
use ringfab_initiator::{
    ConnectError, ConnectOptions, ControllerId, Host, HostConfig, HostEvent, HostIdentity, IoDone, IoError,
    IoOperation, IoRequest, PathId, SharedController, Url,
};
use ringfab_memory::ClassLayout;
use ringfab_reactor::{MailboxReceiver, MailboxSender, Reactor, ReactorConfig, Wait, mailbox};
use ringfab_tests::{PATIENCE, TestTarget};

const BLOCK: usize = 4096;
/// Commands that the load of an engine keeps outstanding: more than its queues take, so that some wait.
const OUTSTANDING: u64 = 40;
/// Blocks of the load of an engine.
const BLOCKS: u64 = 256;
/// Tags of the load.
const LOAD: u64 = 1 << 20;

/// Options for the target behind an address.
pub(crate) fn options(target: &TestTarget, address: SocketAddr) -> ConnectOptions {
    let mut url = target.url("");
    url.port = address.port();
    let host = HostIdentity::for_url(&url).expect("an identity");
    let mut options = ConnectOptions::new(url, host);
    options.depth = 8;
    options.reconnect.delay = Duration::from_millis(20);
    options
}

/// What an engine is asked to do.
enum Order {
    Run(Block, u64),
    Detach,
    Reset,
    AddPath(Box<Url>),
    RemovePath(PathId),
    End,
    HasAdmin,
}

/// A command on one block.
#[derive(Clone, Copy)]
enum Block {
    Read,
    Write(u8),
}

/// A step in the life of the controller.
#[derive(Debug)]
pub(crate) enum Life {
    Ready { reconnected: bool },
    Lost,
    Reconnecting,
    Added(PathId),
    Removed(PathId),
    Failed(ConnectError),
    Detached(Option<ConnectError>),
}

/// What an engine says.
#[derive(Debug)]
enum Word {
    Life(Life),
    Done(Result<u8, IoError>),
    Admin(bool),
}

/// What the threads of a load share.
#[derive(Default)]
struct Load {
    running: AtomicBool,
    answers: AtomicU64,
    /// Engines whose load has come to its end.
    finished: AtomicU64,
}

struct Member {
    orders: MailboxSender<Order>,
    words: Receiver<Word>,
    thread: JoinHandle<()>,
}

/// Engines with one controller.
pub(crate) struct Crew {
    members: Vec<Option<Member>>,
    load: Arc<Load>,
}

enum Seat {
    Leader(Box<ConnectOptions>, u16, Sender<Vec<SharedController>>),
    Follower(SharedController),
}

impl Crew {
    /// Starts to attach: so many engines, and so many I/O queues in all.
    pub(crate) fn attach(mut options: ConnectOptions, engines: u16, queues: u16) -> Self {
        options.queues = queues;
        let load = Arc::new(Load::default());
        let (seats, shared) = channel();
        let leader = Seat::Leader(Box::new(options), engines - 1, seats);
        let mut members = vec![Some(start(0, leader, &load))];
        for (shared, number) in shared.recv().expect("shared").into_iter().zip(1..) {
            members.push(Some(start(number, Seat::Follower(shared), &load)));
        }
        Self { members, load }
    }

    fn member(&self, engine: u64) -> &Member {
        self.members[engine as usize].as_ref().expect("it has not ended")
    }

    fn order(&self, engine: u64, order: Order) {
        assert!(self.member(engine).orders.send(order).is_ok(), "engine {engine} runs");
    }

    /// Waits until every engine has had such an event.
    pub(crate) fn expect(&mut self, what: &str, is_meant: impl Fn(&Life) -> bool) {
        let end = Instant::now() + PATIENCE;
        for (number, member) in self.members.iter().enumerate() {
            let Some(member) = member else { continue };
            loop {
                let left = end.saturating_duration_since(Instant::now());
                let word = member.words.recv_timeout(left);
                match word.unwrap_or_else(|error| panic!("engine {number}: {what}: {error}")) {
                    Word::Life(life) if is_meant(&life) => break,
                    Word::Life(life @ Life::Failed(_)) => panic!("{what}: {life:?}"),
                    _ => {}
                }
            }
        }
    }

    fn answer(&self, engine: u64) -> Result<u8, IoError> {
        loop {
            if let Word::Done(result) = self.member(engine).words.recv_timeout(PATIENCE).expect("an answer") {
                return result;
            }
        }
    }

    /// Writes a block.
    pub(crate) fn write(&self, engine: u64, lba: u64, byte: u8) {
        self.try_write(engine, lba, byte).expect("written");
    }

    /// The same, if it can.
    pub(crate) fn try_write(&self, engine: u64, lba: u64, byte: u8) -> Result<(), IoError> {
        self.order(engine, Order::Run(Block::Write(byte), lba));
        self.answer(engine).map(drop)
    }

    /// Reads a block, all of whose bytes are the same.
    pub(crate) fn read(&self, engine: u64, lba: u64) -> u8 {
        self.order(engine, Order::Run(Block::Read, lba));
        self.answer(engine).expect("read")
    }

    /// Whether an engine takes admin commands.
    pub(crate) fn has_admin(&self, engine: u64) -> bool {
        self.order(engine, Order::HasAdmin);
        loop {
            if let Word::Admin(has) = self.member(engine).words.recv_timeout(PATIENCE).expect("an answer") {
                return has;
            }
        }
    }

    /// Has one engine detach the controller.
    pub(crate) fn detach(&self, engine: u64) {
        self.order(engine, Order::Detach);
    }

    /// Has one engine reset the controller.
    pub(crate) fn reset(&self, engine: u64) {
        self.order(engine, Order::Reset);
    }

    /// Has the engine that leads add a path.
    pub(crate) fn add_path(&self, url: Url) {
        self.order(0, Order::AddPath(Box::new(url)));
    }

    /// Has the engine that leads remove a path.
    pub(crate) fn remove_path(&self, path: PathId) {
        self.order(0, Order::RemovePath(path));
    }

    /// Ends the thread of an engine.
    pub(crate) fn end(&mut self, engine: u64) {
        self.order(engine, Order::End);
        let member = self.members[engine as usize].take().expect("it runs");
        member.thread.join().expect("it ended in order");
    }

    /// Every engine writes and reads blocks of its own.
    pub(crate) fn start_load(&self) {
        self.load.running.store(true, Ordering::Release);
        for member in self.members.iter().flatten() {
            assert!(member.orders.send(Order::HasAdmin).is_ok(), "it wakes up");
        }
    }

    /// Waits until so many more commands were answered.
    pub(crate) fn wait_for_answers(&self, count: u64) {
        let (before, end) = (self.load.answers.load(Ordering::Relaxed), Instant::now() + PATIENCE);
        while self.load.answers.load(Ordering::Relaxed) < before + count {
            assert!(Instant::now() < end, "the load goes on");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Ends it, once each command has its answer.
    pub(crate) fn stop_load(&self) {
        self.load.running.store(false, Ordering::Release);
        let end = Instant::now() + PATIENCE;
        while self.load.finished.load(Ordering::Acquire) < self.members.iter().flatten().count() as u64 {
            assert!(Instant::now() < end, "each command is answered");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for member in self.members.iter_mut().filter_map(Option::take) {
            let _ended = member.orders.send(Order::End);
            assert!(member.thread.join().is_ok() || std::thread::panicking(), "it ended in order");
        }
    }
}

fn start(number: u64, seat: Seat, load: &Arc<Load>) -> Member {
    let (words, heard) = channel();
    let (told, orders) = channel();
    let load = Arc::clone(load);
    let thread = std::thread::spawn(move || {
        let mut host = engine(number);
        let (sender, orders) = mailbox(host.reactor().waker());
        told.send(sender).expect("somebody waits");
        let controller = match seat {
            Seat::Leader(options, others, seats) => {
                let (controller, shared) = host.attach_shared(*options, others);
                seats.send(shared).expect("somebody waits");
                controller
            }
            Seat::Follower(shared) => host.join(shared),
        };
        Engine {
            number,
            host,
            controller,
            orders,
            words,
            load,
            slots: Vec::new(),
            outstanding: 0,
            began: false,
        }
        .run();
    });
    Member { orders: orders.recv().expect("it starts"), words: heard, thread }
}

fn engine(number: u64) -> Host {
    let config = ReactorConfig { entries: 128, spin: Duration::ZERO, descriptors_max: 64 };
    let reactor = Reactor::new(&config).expect("a ring");
    let pool = vec![
        ClassLayout { buffer_bytes: BLOCK, count: 4 * OUTSTANDING as usize },
        ClassLayout { buffer_bytes: 1 << 16, count: 4 },
    ];
    let rnic = RnicConfig::new(0, [number as u8 + 1; 32]);
    Host::new(reactor, HostConfig::new(pool, rnic, number)).expect("an engine")
}

/// A command of the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    Idle,
    Writing(u8),
    Reading(u8),
}

struct Engine {
    number: u64,
    host: Host,
    controller: ControllerId,
    orders: MailboxReceiver<Order>,
    words: Sender<Word>,
    load: Arc<Load>,
    /// Of the load: each has a block of its own, which it writes and then reads.
    slots: Vec<(Slot, u8)>,
    outstanding: u64,
    began: bool,
}

impl Engine {
    fn run(mut self) {
        loop {
            while let Some(order) = self.orders.try_receive() {
                match order {
                    Order::Run(operation, lba) => self.submit(lba, operation, lba),
                    Order::Detach => self.host.detach(self.controller),
                    Order::AddPath(url) => {
                        self.host.add_path(self.controller, *url).expect("it is taken");
                    }
                    Order::RemovePath(path) => {
                        self.host.remove_path(self.controller, path).expect("it is there");
                    }
                    Order::Reset => {
                        let leads = self.host.reset(self.controller).is_ok();
                        assert_eq!(leads, self.number == 0, "the first one leads");
                    }
                    Order::End => return,
                    Order::HasAdmin => self.say_admin(),
                }
            }
            self.go_on_with_load();
            self.host.turn(Wait::Event).expect("a turn");
            while let Some(event) = self.host.next_event() {
                match event {
                    HostEvent::IoDone(done) if done.tag >= LOAD => self.load_done(&done),
                    HostEvent::IoDone(done) => self.say(Word::Done(outcome(&done))),
                    HostEvent::Ready { reconnected, .. } => self.say(Word::Life(Life::Ready { reconnected })),
                    HostEvent::Lost { .. } => self.say(Word::Life(Life::Lost)),
                    HostEvent::PathAdded { path, .. } => self.say(Word::Life(Life::Added(path))),
                    HostEvent::PathRemoved { path, error: None, .. } => {
                        self.say(Word::Life(Life::Removed(path)));
                    }
                    HostEvent::Reconnecting { .. } => self.say(Word::Life(Life::Reconnecting)),
                    HostEvent::Failed { error, .. } => self.say(Word::Life(Life::Failed(error))),
                    HostEvent::Detached { trouble, .. } => self.say(Word::Life(Life::Detached(trouble))),
                    _ => {}
                }
            }
        }
    }

    fn say(&self, word: Word) {
        // At the end nobody listens any more.
        let _unheard = self.words.send(word);
    }

    fn say_admin(&mut self) {
        let entry = ringfab_spec::SubmissionEntry::keep_alive(0);
        let request =
            ringfab_initiator::AdminRequest { entry, data: ringfab_initiator::AdminData::None, tag: 0 };
        let taken = self.host.admin(self.controller, request).is_ok();
        self.say(Word::Admin(taken));
    }

    fn submit(&mut self, tag: u64, operation: Block, lba: u64) {
        let mut buffer = self.host.pool().take(BLOCK).expect("a buffer");
        let operation = match operation {
            Block::Read => IoOperation::Read { lba, nlb: 1, buffer },
            Block::Write(byte) => {
                buffer.fill(byte);
                IoOperation::Write { lba, nlb: 1, source: buffer.share(), offset: 0, fua: true }
            }
        };
        let request = IoRequest { nsid: 1, tag, operation };
        if let Err(refused) = self.host.submit(self.controller, request) {
            self.say(Word::Done(Err(refused.reason.into())));
        }
    }

    fn go_on_with_load(&mut self) {
        if !self.load.running.load(Ordering::Acquire) {
            if self.began && self.outstanding == 0 {
                self.began = false;
                self.load.finished.fetch_add(1, Ordering::AcqRel);
            }
            return;
        }
        if !std::mem::replace(&mut self.began, true) {
            self.slots = vec![(Slot::Idle, 0); OUTSTANDING as usize];
        }
        for index in 0..self.slots.len() {
            let (slot, last) = self.slots[index];
            if slot != Slot::Idle {
                continue;
            }
            // Odd numbers are written, and read back next.
            let next = last.wrapping_add(1);
            let (slot, operation) = if next % 2 == 1 {
                (Slot::Writing(next), Block::Write(next))
            } else {
                (Slot::Reading(last), Block::Read)
            };
            self.slots[index] = (slot, next);
            self.outstanding += 1;
            let lba = (self.number + 1) * BLOCKS + index as u64;
            self.submit(LOAD + index as u64, operation, lba);
        }
    }

    fn load_done(&mut self, done: &IoDone) {
        let index = (done.tag - LOAD) as usize;
        let found = outcome(done);
        match std::mem::replace(&mut self.slots[index].0, Slot::Idle) {
            Slot::Idle => panic!("engine {}: a command was answered twice", self.number),
            Slot::Writing(_) => assert!(found.is_ok(), "engine {}: {found:?}", self.number),
            Slot::Reading(byte) => assert_eq!(found, Ok(byte), "engine {}", self.number),
        }
        self.outstanding -= 1;
        self.load.answers.fetch_add(1, Ordering::Relaxed);
    }
}

/// The byte that a block was read as; zero for a write.
fn outcome(done: &IoDone) -> Result<u8, IoError> {
    done.result?;
    let Some(buffer) = &done.buffer else { return Ok(0) };
    assert!(buffer.iter().take(BLOCK).all(|byte| *byte == buffer[0]), "one write, all of it");
    Ok(buffer[0])
}
