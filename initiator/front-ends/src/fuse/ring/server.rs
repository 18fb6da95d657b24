//! The server: what each entry is at.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::ops::Range;
use std::sync::Arc;

use fuser::{Errno, INodeNo, OpenFlags};
use nix::libc;
use ringfab_fuse::abi::{FallocateIn, ReadIn, WRITE_CACHE, WriteIn, WriteOut, opcode};
use ringfab_fuse::{Channel, EntryId, Event, Request};
use ringfab_initiator::blocking::{EngineClient, Turn};
use ringfab_initiator::bytes::BlockWriter;
use ringfab_initiator::{
    BlockRange, ControllerId, Host, HostEvent, IoError, IoOperation, IoRequest, Namespace, NamespaceIdentity,
    SubmitError,
};
use ringfab_memory::SharedBuffer;
use ringfab_reactor::{MailboxReceiver, MailboxSender, Token, mailbox};
use zerocopy::IntoBytes;

use super::answer::{answer, answer_slowly, takes_time};
use super::helpers::Helpers;
use super::{EngineQueues, PAYLOAD_BYTES, ServerMessage};
use crate::failures;
use crate::fuse::files::{Files, OpenFile, blocks_of_one_command, errno, is_durable};

/// The reactor's watch over the channel.
const WATCH: Token = Token::new(Host::OWNER_FOREIGN_FIRST, 0, 0, 0);

/// Serves a channel.
pub(super) struct Server {
    files: Arc<Files>,
    channel: Channel,
    /// For the writes of whole blocks.
    writer: BlockWriter,
    /// What each entry is at, by its number.
    tasks: Vec<Task>,
    /// Commands that the host had no place for.
    backlog: VecDeque<(NamespaceIdentity, IoRequest)>,
    messages: MailboxReceiver<ServerMessage>,
    helpers: Helpers,
    state: State,
    /// Whether the reactor watches the channel.
    watched: bool,
    /// Whether it was told that the kernel refused an entry.
    refused: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing is registered.
    New,
    Serving,
    Dismissed,
}

/// What an entry is at.
#[derive(Default)]
enum Task {
    /// It waits for a request.
    #[default]
    None,
    /// A Read of so many bytes; not into the payload when something else still had a handle of it.
    Read { length: u32, payload: Option<SharedBuffer> },
    /// A Write of whole blocks.
    Write(Written),
    /// A Flush.
    Flush(SharedBuffer),
    /// A helper does what it asks for.
    Helper(SharedBuffer),
}

/// What a Write writes.
struct Written {
    ino: INodeNo,
    nsid: u32,
    blocks: BlockRange,
    /// The same in bytes.
    range: Range<u64>,
}

/// Submits commands.
struct Submitter<'a> {
    host: &'a mut Host,
    controller: ControllerId,
}

impl Server {
    pub(super) fn new(
        host: &mut Host,
        files: Arc<Files>,
        queues: EngineQueues,
        helpers_max: usize,
    ) -> io::Result<(Self, MailboxSender<ServerMessage>)> {
        let take = || host.pool().take(PAYLOAD_BYTES).map(|buffer| buffer.share());
        let payloads = (0..queues.entries()).map(|_| take()).collect::<Option<Vec<SharedBuffer>>>();
        let payloads = payloads.ok_or_else(|| io::Error::other("too few buffers for the channel"))?;
        let channel = Channel::new(queues.numbers, payloads)?;
        let (sender, messages) = mailbox(host.reactor().waker());
        let server = Self {
            helpers: Helpers::new(files.clone(), helpers_max, sender.clone()),
            writer: files.block_writer(host),
            files,
            channel,
            tasks: (0..queues.entries()).map(|_| Task::None).collect(),
            backlog: VecDeque::new(),
            messages,
            state: State::New,
            watched: false,
            refused: false,
        };
        Ok((server, sender))
    }

    fn take_messages(&mut self) -> io::Result<()> {
        while let Some(message) = self.messages.try_receive() {
            match message {
                ServerMessage::Serve(device) => {
                    self.state = State::Serving;
                    self.channel.register(device)?;
                }
                ServerMessage::Dismiss => self.state = State::Dismissed,
                ServerMessage::Finished(entry, answer) => match mem::take(&mut self.tasks[entry.index()]) {
                    Task::Helper(payload) => self.finish(entry, payload, answer),
                    _ => unreachable!("an entry has one request at a time"),
                },
            }
        }
        Ok(())
    }

    fn on_event(&mut self, event: Event, submitter: &mut Submitter<'_>) {
        match event {
            Event::Request(request) => self.on_request(&request, submitter),
            Event::Ended { error, .. } => {
                let unmounted = [libc::ENOTCONN, libc::ECONNABORTED, libc::ENODEV];
                let unmounted = error.raw_os_error().is_some_and(|code| unmounted.contains(&code));
                if !unmounted && !mem::replace(&mut self.refused, true) {
                    tracing::warn!(%error, "the kernel refuses the io_uring channel; requests go by /dev/fuse");
                }
            }
        }
    }

    fn on_request(&mut self, request: &Request, submitter: &mut Submitter<'_>) {
        let entry = request.entry;
        let payload = self.channel.take_payload(entry);
        let ino = INodeNo(request.header.nodeid);
        match request.header.opcode {
            opcode::READ => self.read(entry, ino, request.argument(), payload, submitter),
            opcode::WRITE => {
                let what = WriteIn { size: request.payload_bytes, ..request.argument() };
                self.write(entry, ino, what, payload, submitter);
            }
            opcode::FSYNC => match self.files.namespace(ino) {
                Ok(namespace) => {
                    self.tasks[entry.index()] = Task::Flush(payload);
                    self.submit(entry, &namespace, IoOperation::Flush, submitter);
                }
                Err(error) => self.fail(entry, payload, error),
            },
            opcode::FALLOCATE => {
                let what: FallocateIn = request.argument();
                self.help(entry, payload, move |files| {
                    let file = OpenFile { ino, handle: what.fh };
                    files.allocate(file, what.offset, what.length, what.mode as i32).map(|()| Vec::new())
                });
            }
            _ if takes_time(request) => {
                let request = request.clone();
                self.help(entry, payload, move |files| answer_slowly(files, &request));
            }
            _ => {
                let answer = answer(&self.files, request, &payload);
                self.finish(entry, payload, answer);
            }
        }
    }

    fn read(
        &mut self,
        entry: EntryId,
        ino: INodeNo,
        what: ReadIn,
        payload: SharedBuffer,
        submitter: &mut Submitter<'_>,
    ) {
        let namespace = match self.files.namespace(ino) {
            Ok(namespace) => namespace,
            Err(error) => return self.fail(entry, payload, error),
        };
        let rest = namespace.bytes().saturating_sub(what.offset);
        let length = rest.min(u64::from(what.size)).min(payload.len() as u64) as usize;
        if length == 0 {
            return self.channel.answer(entry, payload, 0, 0);
        }
        let help = |server: &mut Self, payload| {
            server.help(entry, payload, move |files| {
                let mut bytes = Vec::new();
                files.read_into(ino, what.offset, length as u32, &mut bytes).map(|()| bytes)
            });
        };
        let Some(BlockRange { lba, nlb }) = blocks_of_one_command(&namespace, what.offset, length) else {
            return help(self, payload);
        };
        let (buffer, payload) = match payload.into_unique() {
            Ok(buffer) => (buffer, None),
            // The send of a write's data may not have been reported yet, though the target has them.
            Err(payload) => match submitter.host.pool().take(length) {
                Some(buffer) => (buffer, Some(payload)),
                None => return help(self, payload),
            },
        };
        self.tasks[entry.index()] = Task::Read { length: length as u32, payload };
        self.submit(entry, &namespace, IoOperation::Read { lba, nlb, buffer }, submitter);
    }

    fn write(
        &mut self,
        entry: EntryId,
        ino: INodeNo,
        what: WriteIn,
        payload: SharedBuffer,
        submitter: &mut Submitter<'_>,
    ) {
        let flags = OpenFlags(what.flags as i32);
        let asked = (what.size as usize).min(payload.len());
        let found = self.files.namespace(ino).and_then(|namespace| {
            let length = self.files.writable(&namespace, ino, what.offset, asked)?;
            Ok((namespace, length))
        });
        let (namespace, length) = match found {
            Ok(found) => found,
            Err(error) => return self.fail(entry, payload, error),
        };
        if length == 0 {
            return self.give(entry, payload, written(0).as_bytes());
        }
        // Pages that a program has changed in a mapping come from nobody's handle.
        let handle = (what.write_flags & WRITE_CACHE == 0).then_some(what.fh);
        let skips = handle.is_some_and(|handle| self.files.is_truncated(handle));
        let plain = if skips { None } else { self.unclaimed(&namespace, what.offset, length) };
        let Some(blocks) = plain else {
            let mut data = vec![0; length];
            payload.read_at(0, &mut data);
            return self.help(entry, payload, move |files| {
                let length = files.write_from(ino, handle, what.offset, &data, flags)?;
                Ok(written(length).as_bytes().to_vec())
            });
        };
        let range = what.offset..what.offset + length as u64;
        self.tasks[entry.index()] = Task::Write(Written { ino, nsid: namespace.nsid, blocks, range });
        let BlockRange { lba, nlb } = blocks;
        let operation = IoOperation::Write { lba, nlb, source: payload, offset: 0, fua: is_durable(flags) };
        self.submit(entry, &namespace, operation, submitter);
    }

    /// The blocks of a write that one command can do now: nobody has claimed any of them.
    fn unclaimed(&self, namespace: &Namespace, offset: u64, length: usize) -> Option<BlockRange> {
        let blocks = blocks_of_one_command(namespace, offset, length)?;
        (!self.writer.must_wait(namespace.nsid, &blocks.blocks())).then_some(blocks)
    }

    /// Says which claimed blocks are written by no entry any more.
    fn report_writes(&self) {
        self.writer.report(|nsid, blocks| {
            self.tasks.iter().any(|task| match task {
                Task::Write(written) => written.nsid == nsid && written.has_any_of(blocks),
                _ => false,
            })
        });
    }

    /// Starts the command of an entry.
    fn submit(
        &mut self,
        entry: EntryId,
        namespace: &Namespace,
        operation: IoOperation,
        submitter: &mut Submitter<'_>,
    ) {
        let tag = entry.index() as u64;
        let request = IoRequest { nsid: namespace.nsid, tag, operation };
        if let Some(request) = self.try_submit(&namespace.identity, request, submitter) {
            self.backlog.push_back((namespace.identity, request));
        }
    }

    /// The same; gives the command back when the host has no place for it now.
    fn try_submit(
        &mut self,
        disk: &NamespaceIdentity,
        request: IoRequest,
        submitter: &mut Submitter<'_>,
    ) -> Option<IoRequest> {
        let refused = submitter.host.submit_to(submitter.controller, disk, request).err()?;
        if refused.reason == SubmitError::Full {
            return Some(refused.request);
        }
        let IoRequest { tag, operation, .. } = refused.request;
        let payload = match operation {
            IoOperation::Read { buffer, .. } => Some(buffer.share()),
            IoOperation::Write { source, .. } => Some(source),
            _ => None,
        };
        self.complete(tag, Err(refused.reason.into()), payload);
        None
    }

    /// Answers the request of a command that has ended. `memory` is what the command had.
    fn complete(&mut self, tag: u64, result: Result<(), IoError>, memory: Option<SharedBuffer>) {
        let entry = self.channel.entry(tag as usize);
        let result = result.map_err(errno);
        match (mem::take(&mut self.tasks[entry.index()]), memory) {
            (Task::Read { length, payload: None }, Some(payload)) => match result {
                Ok(()) => self.channel.answer(entry, payload, 0, length),
                Err(error) => self.fail(entry, payload, error),
            },
            (Task::Read { length, payload: Some(payload) }, Some(read)) => {
                let bytes = result.map(|()| read.with_bytes(0..length as usize, <[u8]>::to_vec));
                self.finish(entry, payload, bytes);
            }
            (Task::Write(Written { ino, range, .. }), Some(payload)) => match result {
                Ok(()) => {
                    self.files.written(ino, &range);
                    let length = (range.end - range.start) as u32;
                    self.give(entry, payload, written(length).as_bytes());
                }
                Err(error) => self.fail(entry, payload, error),
            },
            (Task::Flush(payload), _) => self.finish(entry, payload, result.map(|()| Vec::new())),
            _ => unreachable!("a command ends once, and gives back what it had"),
        }
    }

    /// Has a helper do what takes several commands.
    fn help(
        &mut self,
        entry: EntryId,
        payload: SharedBuffer,
        work: impl FnOnce(&Files) -> Result<Vec<u8>, Errno> + Send + 'static,
    ) {
        match self.helpers.start(entry, Box::new(work)) {
            Ok(()) => self.tasks[entry.index()] = Task::Helper(payload),
            Err(error) => {
                failures::note_reason(&format_args!("there is no thread for it: {error}"));
                self.fail(entry, payload, Errno::EAGAIN);
            }
        }
    }

    /// Answers with some bytes or an error.
    fn finish(&mut self, entry: EntryId, payload: SharedBuffer, answer: Result<Vec<u8>, Errno>) {
        match answer {
            Ok(bytes) => self.give(entry, payload, &bytes),
            Err(error) => self.fail(entry, payload, error),
        }
    }

    fn give(&mut self, entry: EntryId, payload: SharedBuffer, bytes: &[u8]) {
        payload.write_at(0, bytes);
        self.channel.answer(entry, payload, 0, bytes.len() as u32);
    }

    fn fail(&mut self, entry: EntryId, payload: SharedBuffer, error: Errno) {
        self.channel.answer(entry, payload, error.code(), 0);
    }
}

impl Written {
    fn has_any_of(&self, blocks: &Range<u64>) -> bool {
        let own = self.blocks.blocks();
        own.start < blocks.end && blocks.start < own.end
    }
}

impl EngineClient for Server {
    fn turn(&mut self, host: &mut Host, controller: ControllerId) -> io::Result<Turn> {
        self.take_messages()?;
        self.report_writes();
        let submitter = &mut Submitter { host, controller };
        while let Some((disk, request)) = self.backlog.pop_front() {
            if let Some(request) = self.try_submit(&disk, request, submitter) {
                self.backlog.push_front((disk, request));
                break;
            }
        }
        let mut busy = false;
        while let Some(event) = self.channel.next_event() {
            busy = true;
            self.on_event(event, submitter);
        }
        busy |= self.channel.has_unsubmitted();
        self.channel.submit()?;
        let descriptor = self.channel.descriptor();
        if self.state == State::Dismissed || self.state == State::Serving && self.channel.is_over() {
            if self.watched {
                submitter.host.reactor().stop_polling(descriptor);
            }
            return Ok(Turn::Over);
        }
        if busy {
            return Ok(Turn::Busy);
        }
        if self.state == State::Serving && !self.watched {
            submitter.host.reactor().poll_readable(descriptor, WATCH);
            self.watched = true;
        }
        Ok(Turn::Idle)
    }

    fn on_event(&mut self, event: &mut HostEvent, _host: &mut Host, _controller: ControllerId) {
        match event {
            HostEvent::IoDone(done) => {
                let memory = done.buffer.take().map(|buffer| buffer.share()).or_else(|| done.source.take());
                self.complete(done.tag, done.result, memory);
            }
            HostEvent::Foreign(completion) if completion.token == WATCH => self.watched = false,
            _ => {}
        }
    }
}

/// The answer to a write of so many bytes.
fn written(length: u32) -> WriteOut {
    WriteOut { size: length, padding: 0 }
}
