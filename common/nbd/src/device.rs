//! A core's handle of an export: its operations, and what becomes of them when the connection ends.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use ringfab_base::{SlotId, Slots};
use ringfab_block::{
    BlockDevice, BlockError, DiskProperties, DiskTokens, Finished, OpenError, Operation, Started, Tag,
};
use ringfab_memory::{ClassLayout, Pool, SharedBuffer};
use ringfab_proto::nbd::{Command, ExportInfo, REQUEST_BYTES, ReplyHead, Request, export};
use ringfab_reactor::{Completion, Payload as Returned, Reactor, SendBatch};

use crate::durability::Flushed;
use crate::inbound::{Arrived, Data};
use crate::link::{End, Link, News, kind};
use crate::request::{Failure, InFlight, Next, Work};
use crate::session::Session;

/// `EIO`, for a flush that could not make safe what is gone.
const EIO: i32 = 5;

/// `ESHUTDOWN`: the server is about to end.
const SERVER_ENDS: u32 = 108;

/// Bytes of zeroes for a server that cannot make them itself.
const ZEROES_BYTES: usize = 64 << 10;

/// A core's handle of an export.
#[derive(Debug)]
pub(crate) struct NbdDevice {
    link: Link,
    properties: DiskProperties,
    in_flight: Slots<InFlight>,
    /// Requests that are still to be sent, in order.
    unsent: VecDeque<SlotId>,
    /// Requests that were answered before their send was known to be over.
    answered_early: Vec<SlotId>,
    /// Flushes that have succeeded, and that wait for what other cores hear of the server.
    doubtful: Vec<(SlotId, Flushed)>,
    finished: VecDeque<Finished>,
    /// Whether a flush of our own is on its way.
    is_flushing: bool,
    /// Bytes that were copied to where they belong.
    copied: u64,
    zeroes: Option<SharedBuffer>,
    /// The export is smaller than the disk: nothing works before it was opened anew.
    is_shrunk: bool,
}

impl NbdDevice {
    /// Opens the export on a core. Operations wait until it is connected.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub(crate) fn open(mut link: Link, info: &ExportInfo, reactor: &mut Reactor) -> io::Result<Self> {
        let zeroes = if info.has(export::SEND_WRITE_ZEROES) { None } else { Some(zeroes()?) };
        link.begin(reactor);
        Ok(Self {
            properties: link.session.properties(info),
            link,
            in_flight: Slots::new(),
            unsent: VecDeque::new(),
            answered_early: Vec::new(),
            doubtful: Vec::new(),
            finished: VecDeque::new(),
            is_flushing: false,
            copied: 0,
            zeroes,
            is_shrunk: false,
        })
    }

    fn session(&self) -> &Session {
        &self.link.session
    }

    /// Sends as many requests as fit, unless a send is in flight.
    fn send(&mut self, reactor: &mut Reactor) {
        if self.unsent.is_empty() {
            return;
        }
        let Some(info) = self.link.open().map(|open| open.info) else { return };
        let Some(mut batch) = self.link.batch.take() else { return };
        while batch.has_room(REQUEST_BYTES, 2)
            && let Some(id) = self.unsent.pop_front()
        {
            self.push(&mut batch, id, &info);
        }
        self.link.send(reactor, batch);
    }

    fn push(&mut self, batch: &mut SendBatch, id: SlotId, info: &ExportInfo) {
        let through = self.session().options.write_through;
        let sent = self.session().durability.sent();
        let zeroes_max = self.zeroes.as_ref().map_or(0, SharedBuffer::len);
        let in_flight = self.in_flight.get_mut(id).expect("a request that was not sent has no answer");
        let request = in_flight.request(info, through, zeroes_max, cookie_of(id));
        (in_flight.batch, in_flight.sent) = (self.link.batches, sent);
        batch.push_bytes(&request.to_bytes());
        if request.command == Command::Write {
            let payload = in_flight.payload(self.zeroes.as_ref());
            batch.push_shared(payload.source, payload.at, payload.length);
        }
    }

    /// Takes all that has come.
    fn take_replies(&mut self, reactor: &mut Reactor) {
        loop {
            let Some((open, staging)) = self.link.open_and_staging() else { return };
            let next = open.inbound.next(staging);
            self.copied += open.inbound.take_copied();
            let taken = match next {
                Ok(Some(arrived)) => self.take(&arrived),
                Ok(None) => return self.link.receive_more(reactor),
                Err(violation) => Err(End::by_us(&violation)),
            };
            if let Err(end) = taken {
                let news = self.link.end(reactor, end);
                return self.hear(reactor, news);
            }
        }
    }

    /// Takes the head of a reply, or bytes that were read.
    fn take(&mut self, arrived: &Arrived) -> Result<(), End> {
        match *arrived {
            Arrived::Data { cookie, length, done } => {
                let (id, in_flight) = self.asked(cookie)?;
                in_flight.received += length;
                if done { self.answered(id) } else { Ok(()) }
            }
            Arrived::Head(head) => self.take_head(head),
        }
    }

    fn take_head(&mut self, head: ReplyHead) -> Result<(), End> {
        let structured = self.link.open().is_some_and(|open| open.info.structured);
        let (id, in_flight) = self.asked(head.cookie())?;
        match head {
            ReplyHead::Error { errno: SERVER_ENDS, .. } | ReplyHead::Simple { errno: SERVER_ENDS, .. } => {
                Err(End { reason: "the server is about to end".to_owned(), server_knows: false })
            }
            ReplyHead::Simple { errno: 0, cookie } if matches!(in_flight.work, Work::Read { .. }) => {
                if structured {
                    return Err(End::by_us(&"a read is answered without structure"));
                }
                let (at, length) = (in_flight.disk_offset(), in_flight.asked);
                self.expect(Range { cookie, offset: at, length }, true)
            }
            ReplyHead::Simple { errno, .. } => {
                if errno != 0 {
                    in_flight.failure = Some(Failure::of(errno, &in_flight.work));
                }
                self.answered(id)
            }
            ReplyHead::Nothing { done, .. } => {
                if done {
                    self.answered(id)
                } else {
                    Ok(())
                }
            }
            ReplyHead::Data { cookie, done, offset, length } => {
                self.expect(Range { cookie, offset, length }, done)
            }
            ReplyHead::Hole { done, offset, length, .. } => {
                let placed = in_flight.place(offset, length).ok_or_else(unasked)?;
                in_flight.note_order(&placed);
                placed.fill_with_zeroes(length as usize);
                in_flight.received += length;
                if done { self.answered(id) } else { Ok(()) }
            }
            ReplyHead::Error { done, errno, .. } => {
                in_flight.failure = Some(Failure::of(errno, &in_flight.work));
                if done { self.answered(id) } else { Ok(()) }
            }
        }
    }

    /// Bytes of a read follow.
    fn expect(&mut self, range: Range, done: bool) -> Result<(), End> {
        let Range { cookie, offset, length } = range;
        let (_, in_flight) = self.asked(cookie)?;
        let placed = in_flight.place(offset, length).ok_or_else(unasked)?;
        in_flight.note_order(&placed);
        let open = self.link.open().expect("bytes come over a connection");
        let left = length as usize;
        open.inbound.expect(Data { cookie, buffer: placed.buffer, at: placed.at, left, length, done });
        Ok(())
    }

    /// The request that a reply belongs to.
    fn asked(&mut self, cookie: u64) -> Result<(SlotId, &mut InFlight), End> {
        let id = id_of(cookie);
        match self.in_flight.get_mut(id) {
            Some(in_flight) if in_flight.batch != 0 && !in_flight.is_answered => Ok((id, in_flight)),
            _ => Err(End::by_us(&"a reply to no request")),
        }
    }

    /// A request has been answered as a whole. What its send may still read is given back when that is over.
    fn answered(&mut self, id: SlotId) -> Result<(), End> {
        let in_flight = self.in_flight.get_mut(id).expect("a request that is answered");
        if in_flight.is_incomplete() {
            return Err(End::by_us(&"a read is answered without all of its bytes"));
        }
        in_flight.is_answered = true;
        if self.link.is_sending(in_flight.batch) {
            self.answered_early.push(id);
        } else {
            self.complete(id);
        }
        Ok(())
    }

    /// A request is over, and so is its send.
    fn complete(&mut self, id: SlotId) {
        let session = Arc::clone(&self.link.session);
        let Some(open) = self.link.open() else { return };
        let info = open.info;
        let in_flight = self.in_flight.get_mut(id).expect("a request that is answered");
        let lives = open.account.answered(in_flight.sent);
        in_flight.batch = 0;
        if in_flight.failure.is_none() && in_flight.is_flush() {
            let flushed = open.account.flushed(&session.durability, in_flight.sent);
            self.doubtful.push((id, flushed));
            session.durability.begin_to_wait();
            self.settle_flushes();
        } else {
            if in_flight.failure.is_none() && in_flight.is_volatile(&info, session.options.write_through) {
                open.account.wrote(&session.durability);
            }
            match in_flight.answered(&info) {
                Next::Ask => self.unsent.push_back(id),
                Next::Finish => self.finish(id),
            }
        }
        if lives && session.durability.is_waited_for() {
            session.ring_bells();
        }
    }

    /// An operation is over, as it has failed or not: whoever waits for it is told.
    fn finish(&mut self, id: SlotId) {
        let in_flight = self.in_flight.remove(id).expect("it was there until now");
        self.is_flushing &= !in_flight.is_our_own();
        self.finished.extend(in_flight.finish());
    }

    /// Finishes the flushes that have succeeded, as far as they cover what others have written, or are known not to.
    fn settle_flushes(&mut self) {
        let session = Arc::clone(&self.link.session);
        for (id, flushed) in std::mem::take(&mut self.doubtful) {
            let in_flight = self.in_flight.get_mut(id).expect("a flush that waits");
            let covers_all = session.durability.cover(flushed);
            // In this order: what another core has lost is known before its account is gone.
            if session.durability.is_lost() {
                in_flight.failure = Some(LOST);
            } else if !covers_all && in_flight.is_about_all() {
                self.doubtful.push((id, flushed));
                continue;
            }
            session.durability.end_to_wait();
            self.finish(id);
        }
    }

    /// A send is over: what was answered meanwhile is, too.
    fn sent(&mut self, reactor: &mut Reactor) {
        for id in std::mem::take(&mut self.answered_early) {
            self.complete(id);
        }
        self.send(reactor);
    }

    fn begin(&mut self, reactor: &mut Reactor, id: SlotId) -> Started {
        self.unsent.push_back(id);
        self.send(reactor);
        Started::Pending
    }

    /// Flushes without being asked: what the process before this one has written, which hosts rely on us for, or what
    /// this core has, so that a flush of another one is not in doubt.
    fn flush_by_ourselves(&mut self) {
        if self.is_flushing {
            return;
        }
        if let Ok(id) = self.in_flight.try_insert(InFlight::flush_of_our_own(), DiskTokens::SLOTS) {
            self.is_flushing = true;
            self.unsent.push_front(id);
        }
    }

    /// Another core has news: it has lost its connection, or has a new one, or has heard of the server.
    fn hear_bell(&mut self, reactor: &mut Reactor) {
        self.settle_flushes();
        if self.link.is_in_doubt() {
            self.flush_by_ourselves();
            self.send(reactor);
        }
    }

    /// What has become of the connection.
    fn hear(&mut self, reactor: &mut Reactor, news: News) {
        match news {
            News::None => {}
            News::Up => {
                if let Some(info) = self.link.open().map(|open| open.info) {
                    self.properties = self.session().properties(&info);
                }
                if self.link.inherit() {
                    self.flush_by_ourselves();
                }
                self.send(reactor);
            }
            News::Received => {
                self.take_replies(reactor);
                self.send(reactor);
            }
            News::Sent => self.sent(reactor),
            News::Lost(end) => {
                let unanswered = self.in_flight.values().any(|one| one.batch != 0 && one.changes());
                if unanswered && !end.server_knows {
                    self.link.hold_back(reactor.now());
                }
                let news = self.link.settle(reactor);
                self.hear(reactor, news);
            }
            News::Ended => self.ask_again(),
            News::Impatient => self.give_up_waiting(BlockError::Removed),
            News::Shrunk => {
                self.is_shrunk = true;
                let _settled = self.link.settle(reactor);
                self.ask_again();
                self.give_up_waiting(BlockError::Shrunk);
            }
        }
        if self.link.is_out_of_patience(reactor.now()) && self.link.is_settled() {
            self.give_up_waiting(BlockError::Removed);
        }
    }

    /// The connection is gone, and nothing holds buffers for it: what it has not answered is to be asked for again, in
    /// the order in which it was asked for first. A flush cannot make safe any more what is gone.
    fn ask_again(&mut self) {
        self.answered_early.clear();
        let lost = self.session().durability.is_lost();
        let mut asked: Vec<(u64, SlotId)> = Vec::new();
        let mut failed = Vec::new();
        for (id, in_flight) in self.in_flight.iter().filter(|(_, one)| one.batch != 0) {
            if lost && in_flight.is_flush() {
                failed.push(id);
            } else {
                asked.push((in_flight.batch, id));
            }
        }
        asked.sort_unstable_by_key(|(batch, _)| *batch);
        for (_, id) in asked.into_iter().rev() {
            self.in_flight.get_mut(id).expect("it was just there").batch = 0;
            self.unsent.push_front(id);
        }
        for id in failed {
            self.in_flight.get_mut(id).expect("it was just there").failure = Some(LOST);
            self.finish(id);
        }
    }

    /// Ends what waits for a connection.
    fn give_up_waiting(&mut self, error: BlockError) {
        for id in std::mem::take(&mut self.unsent) {
            let in_flight = self.in_flight.get_mut(id).expect("a request that was not sent has no answer");
            in_flight.failure = Some(Failure { error, errno: None });
            self.finish(id);
        }
    }

    /// Why an operation cannot begin, or that it is over already.
    fn outcome_at_once(&self, reactor: &Reactor, in_flight: &InFlight) -> Option<Result<(), Failure>> {
        if self.is_shrunk {
            return Some(Err(Failure { error: BlockError::Shrunk, errno: None }));
        }
        if in_flight.is_flush() && self.session().durability.is_lost() {
            return Some(Err(LOST));
        }
        if self.link.is_out_of_patience(reactor.now()) {
            return Some(Err(Failure { error: BlockError::Removed, errno: None }));
        }
        let info = self.session().info()?;
        in_flight.is_idle(&info).then_some(Ok(()))
    }
}

/// What was written may be gone: no flush can make it safe.
const LOST: Failure = Failure { error: BlockError::Write, errno: Some(EIO) };

fn unasked() -> End {
    End::by_us(&"bytes that were not asked for")
}

/// Bytes of the disk that belong to a request.
#[derive(Clone, Copy)]
struct Range {
    cookie: u64,
    offset: u64,
    length: u32,
}

fn cookie_of(id: SlotId) -> u64 {
    u64::from(id.generation) << 32 | u64::from(id.index)
}

fn id_of(cookie: u64) -> SlotId {
    SlotId { index: cookie as u32, generation: (cookie >> 32) as u32 }
}

fn zeroes() -> io::Result<SharedBuffer> {
    let pool = Pool::new(&[ClassLayout { buffer_bytes: ZEROES_BYTES, count: 1 }]);
    let pool = pool.map_err(|error| io::Error::new(io::ErrorKind::OutOfMemory, error))?;
    let mut buffer = pool.take(ZEROES_BYTES).expect("a pool of one buffer has one");
    buffer.fill(0);
    Ok(buffer.share())
}

impl BlockDevice for NbdDevice {
    fn properties(&self) -> DiskProperties {
        self.properties
    }

    fn start(&mut self, reactor: &mut Reactor, operation: Operation, tag: Tag) -> Started {
        let in_flight = match InFlight::new(operation, tag) {
            Ok(in_flight) => in_flight,
            Err(operation) => {
                return Started::Finished(operation.finish(tag, Err(BlockError::NotSupported)));
            }
        };
        let outcome = match self.outcome_at_once(reactor, &in_flight) {
            None => match self.in_flight.try_insert(in_flight, DiskTokens::SLOTS) {
                Ok(id) => return self.begin(reactor, id),
                Err(in_flight) => in_flight.end(Err(BlockError::Busy), None),
            },
            Some(Ok(())) => in_flight.end(Ok(()), None),
            Some(Err(Failure { error, errno })) => in_flight.end(Err(error), errno),
        };
        Started::Finished(outcome.expect("somebody waits for what is started"))
    }

    fn on_completion(&mut self, reactor: &mut Reactor, completion: Completion) -> Option<Finished> {
        let Completion { token, result, payload, .. } = completion;
        let news = match (DiskTokens::kind_of(token), payload) {
            (kind::BELL, _) => {
                self.hear_bell(reactor);
                News::None
            }
            (kind::CONNECT, _) => self.link.connected(reactor, token, &result),
            (_, Returned::Send(batch)) => self.link.sent(reactor, token, &result, batch),
            (_, Returned::Receive(receive)) => self.link.received(reactor, token, result, receive),
            (timer, _) => self.link.timer(reactor, timer),
        };
        self.hear(reactor, news);
        self.finished.pop_front()
    }

    fn next_finished(&mut self, _: &mut Reactor) -> Option<Finished> {
        self.finished.pop_front()
    }

    fn copied_bytes(&self) -> u64 {
        self.copied
    }

    fn resize(&mut self, bytes: u64) {
        self.properties.bytes = bytes;
    }

    /// The export as it is now, and what was lost is accepted.
    fn reopen(&mut self, reactor: &mut Reactor) -> Result<(), OpenError> {
        self.session().durability.forgive();
        self.session().accept();
        self.is_shrunk = false;
        if let Some(info) = self.session().info() {
            self.properties = self.session().properties(&info);
        }
        if self.link.inherit() {
            self.flush_by_ourselves();
            self.send(reactor);
        }
        self.link.connect(reactor);
        Ok(())
    }

    fn close(&mut self, reactor: &mut Reactor) {
        if self.link.open().is_some()
            && let Some(mut batch) = self.link.batch.take()
        {
            let request = Request { flags: 0, command: Command::Disconnect, cookie: 0, offset: 0, length: 0 };
            batch.push_bytes(&request.to_bytes());
            self.link.send(reactor, batch);
        }
        self.link.close(reactor);
    }
}
