//! A disk that is a library: asynchronous calls, a thread of the library's own, and an eventfd that says when some of
//! them have been answered, as librbd does it.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use nix::sys::eventfd::{EfdFlags, EventFd};
use ringfab_base::{SlotId, Slots};
use ringfab_block::{
    BlockDevice, BlockError, DeviceIdentity, DiskProperties, DiskTokens, Driver, Finished, OpenError,
    Operation, Seen, Started, Tag,
};
use ringfab_reactor::{Completion, Reactor};

/// How long the library gathers calls before it answers all of them, the last one first.
const GATHER: Duration = Duration::from_micros(200);

/// The library's image, which all of its handles share, and what a test wants to know.
#[derive(Debug, Default)]
pub struct Image {
    bytes: Mutex<Vec<u8>>,
    /// The most operations that one poll has finished.
    answers_max: AtomicUsize,
    /// Handles that were opened and not closed.
    handles: AtomicUsize,
    /// How often a handle was opened anew.
    reopened: AtomicUsize,
    /// Who has this keeps all calls from being done.
    hold: Mutex<()>,
    /// Calls that have come.
    calls: AtomicUsize,
    /// What it knows itself by.
    identity: Mutex<Option<DeviceIdentity>>,
}

impl Image {
    /// An image of zeroes.
    pub fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self { bytes: Mutex::new(vec![0; bytes]), ..Self::default() })
    }

    /// Keeps calls from being done until this is dropped.
    pub fn hold(&self) -> MutexGuard<'_, ()> {
        self.hold.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls that have come, done or not.
    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::Acquire)
    }

    /// The most operations that one poll has finished.
    pub fn answers_max(&self) -> usize {
        self.answers_max.load(Ordering::Relaxed)
    }

    /// Handles that were opened and not closed.
    pub fn handles(&self) -> usize {
        self.handles.load(Ordering::Relaxed)
    }

    /// How often a handle was opened anew.
    pub fn reopened(&self) -> usize {
        self.reopened.load(Ordering::Relaxed)
    }

    /// It knows itself by this from now on.
    pub fn set_identity(&self, identity: &str) {
        let identity = Some(DeviceIdentity::new(identity));
        *self.identity.lock().unwrap_or_else(PoisonError::into_inner) = identity;
    }

    fn seen(&self) -> Seen {
        let seen = Seen::default().with_bytes(self.bytes().len() as u64);
        let identity = self.identity.lock().unwrap_or_else(PoisonError::into_inner).clone();
        identity.into_iter().fold(seen, Seen::with_identity)
    }

    /// Its bytes.
    pub fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the library is asked for; it copies what it needs.
#[derive(Debug)]
enum Call {
    Read { offset: usize, length: usize },
    Write { offset: usize, bytes: Vec<u8> },
    Zero { offset: usize, length: usize },
    Flush,
}

/// An answer with the number of its call; a read has bytes.
#[derive(Debug)]
struct Answer {
    call: SlotId,
    bytes: Vec<u8>,
}

/// A handle of the library. Its thread ends with it.
#[derive(Debug)]
struct Library {
    calls: mpsc::Sender<(SlotId, Call)>,
    answers: Arc<Mutex<Vec<Answer>>>,
    eventfd: Arc<EventFd>,
}

impl Library {
    fn open(image: Arc<Image>) -> nix::Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let eventfd = Arc::new(EventFd::from_value_and_flags(0, flags)?);
        let (calls, inbox) = mpsc::channel();
        let answers = Arc::<Mutex<Vec<Answer>>>::default();
        let (outbox, bell) = (Arc::clone(&answers), Arc::clone(&eventfd));
        thread::spawn(move || serve(&image, &inbox, &outbox, &bell));
        Ok(Self { calls, answers, eventfd })
    }

    fn take_answers(&self) -> Vec<Answer> {
        std::mem::take(&mut *self.answers.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The library's thread: gathers calls, does them, and answers them backwards with one signal.
fn serve(
    image: &Image,
    calls: &mpsc::Receiver<(SlotId, Call)>,
    answers: &Mutex<Vec<Answer>>,
    bell: &EventFd,
) {
    while let Ok(first) = calls.recv() {
        thread::sleep(GATHER);
        let batch: Vec<(SlotId, Call)> = std::iter::once(first).chain(calls.try_iter()).collect();
        image.calls.fetch_add(batch.len(), Ordering::Release);
        drop(image.hold());
        let mut done: Vec<Answer> =
            batch.into_iter().map(|(call, what)| Answer { call, bytes: run(image, what) }).collect();
        done.reverse();
        answers.lock().unwrap_or_else(PoisonError::into_inner).append(&mut done);
        bell.write(1).expect("an eventfd takes a signal");
    }
}

fn run(image: &Image, call: Call) -> Vec<u8> {
    let mut image = image.bytes();
    match call {
        Call::Read { offset, length } => return image[offset..offset + length].to_vec(),
        Call::Write { offset, bytes } => image[offset..offset + bytes.len()].copy_from_slice(&bytes),
        Call::Zero { offset, length } => image[offset..offset + length].fill(0),
        Call::Flush => {}
    }
    Vec::new()
}

/// Opens an image of the library on each core.
#[derive(Debug)]
pub struct LibraryDriver(pub Arc<Image>);

impl Driver for LibraryDriver {
    fn name(&self) -> String {
        "library".to_owned()
    }

    fn open(&self, reactor: &mut Reactor, tokens: DiskTokens) -> Result<Box<dyn BlockDevice>, OpenError> {
        let library = Library::open(Arc::clone(&self.0))
            .map_err(|error| OpenError::Device { name: self.name(), reason: error.to_string() })?;
        self.0.handles.fetch_add(1, Ordering::Relaxed);
        let device = LibraryDevice {
            image: Arc::clone(&self.0),
            library,
            tokens,
            in_flight: Slots::new(),
            finished: VecDeque::new(),
        };
        device.poll(reactor);
        Ok(Box::new(device))
    }
}

/// A core's handle of the image.
#[derive(Debug)]
struct LibraryDevice {
    image: Arc<Image>,
    library: Library,
    tokens: DiskTokens,
    in_flight: Slots<(Operation, Tag)>,
    finished: VecDeque<Finished>,
}

/// The only reactor operation: a poll of the eventfd.
const POLL: u8 = 0;

impl LibraryDevice {
    fn poll(&self, reactor: &mut Reactor) {
        reactor.poll_readable(self.library.eventfd.as_raw_fd(), self.tokens.token_of_kind(POLL));
    }

    fn finish(&mut self, answer: &Answer) {
        let (mut operation, tag) = self.in_flight.remove(answer.call).expect("an answer to a call");
        if let Operation::Read { buffer, .. } = &mut operation {
            buffer.copy_from_slice(&answer.bytes);
        }
        self.finished.push_back(operation.finish(tag, Ok(())));
    }
}

/// The call for an operation; none for what the library does not have.
fn call_of(operation: &Operation) -> Option<Call> {
    Some(match *operation {
        Operation::Read { offset, ref buffer, .. } => {
            Call::Read { offset: offset as usize, length: buffer.len() }
        }
        Operation::Write { offset, ref source, at, length, .. } => {
            let mut bytes = vec![0; length as usize];
            source.read_at(at as usize, &mut bytes);
            Call::Write { offset: offset as usize, bytes }
        }
        Operation::WriteZeroes { offset, length, .. } | Operation::Discard { offset, length } => {
            Call::Zero { offset: offset as usize, length: length as usize }
        }
        Operation::Flush => Call::Flush,
        _ => return None,
    })
}

impl BlockDevice for LibraryDevice {
    fn properties(&self) -> DiskProperties {
        DiskProperties::new(self.image.bytes().len() as u64).with_offset_align(512)
    }

    fn start(&mut self, _: &mut Reactor, operation: Operation, tag: Tag) -> Started {
        let Some(call) = call_of(&operation) else {
            return Started::Finished(operation.finish(tag, Err(BlockError::NotSupported)));
        };
        let id = self.in_flight.insert((operation, tag));
        if self.library.calls.send((id, call)).is_err() {
            let (operation, tag) = self.in_flight.remove(id).expect("it was just put there");
            return Started::Finished(operation.finish(tag, Err(BlockError::Removed)));
        }
        Started::Pending
    }

    fn on_completion(&mut self, reactor: &mut Reactor, _: Completion) -> Option<Finished> {
        // It fails when somebody has taken the signal before: never, or there is nothing to take.
        if self.library.eventfd.read().is_ok() {
            let answers = self.library.take_answers();
            self.image.answers_max.fetch_max(answers.len(), Ordering::Relaxed);
            answers.iter().for_each(|answer| self.finish(answer));
        }
        self.poll(reactor);
        self.finished.pop_front()
    }

    fn next_finished(&mut self, _: &mut Reactor) -> Option<Finished> {
        self.finished.pop_front()
    }

    /// Every call finds the image that is there: there is nothing to be opened.
    fn reopen(&mut self, _: &mut Reactor) -> Result<(), OpenError> {
        self.image.reopened.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn close(&mut self, reactor: &mut Reactor) {
        reactor.stop_polling(self.library.eventfd.as_raw_fd());
        self.image.handles.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The same, behind something that one has to log in to first: it is not there, or does not answer, until a test says
/// so.
#[derive(Clone, Debug)]
pub struct RemoteDriver {
    library: Arc<Image>,
    state: Arc<Mutex<Remote>>,
    changed: Arc<Condvar>,
}

/// How a remote image is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remote {
    /// Nobody answers a look.
    Silent,
    /// It is refused.
    Absent,
    /// It is there.
    Present,
}

impl RemoteDriver {
    /// A driver of an image.
    pub fn new(library: Arc<Image>, state: Remote) -> Self {
        Self { library, state: Arc::new(Mutex::new(state)), changed: Arc::default() }
    }

    /// The image is so from now on.
    pub fn set(&self, state: Remote) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
        self.changed.notify_all();
    }
}

impl Driver for RemoteDriver {
    fn name(&self) -> String {
        "remote".to_owned()
    }

    fn look(&self) -> io::Result<Seen> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = self.changed.wait_while(state, |state| *state == Remote::Silent);
        match *state.unwrap_or_else(PoisonError::into_inner) {
            Remote::Present => Ok(self.library.seen()),
            _ => Err(io::Error::other("no such image")),
        }
    }

    fn open(&self, reactor: &mut Reactor, tokens: DiskTokens) -> Result<Box<dyn BlockDevice>, OpenError> {
        LibraryDriver(Arc::clone(&self.library)).open(reactor, tokens)
    }
}
