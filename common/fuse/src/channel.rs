//! Entries, and the ring that they go over.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use io_uring::squeue::Entry128;
use io_uring::types::Fd;
use io_uring::{IoUring, cqueue, opcode};
use ringfab_memory::{Mapping, MemoryError, PostedBuffer, SharedBuffer};
use zerocopy::{FromBytes, IntoBytes};

use crate::abi::{IN_OUT_BYTES, InHeader, OP_IN_BYTES, OutHeader, RingCmdReq, RingEntInOut, ring_cmd};

/// Where the parts of an entry's headers lie (`fuse_uring_req_header`).
const OP_IN_OFFSET: usize = IN_OUT_BYTES;
const ENT_IN_OUT_OFFSET: usize = OP_IN_OFFSET + OP_IN_BYTES;
const HEADERS_BYTES: usize = ENT_IN_OUT_OFFSET + size_of::<RingEntInOut>();
/// Behind them, the two vectors by which an entry is registered: headers and payload.
const VECTORS_OFFSET: usize = HEADERS_BYTES;
const VECTORS: u32 = 2;
/// From one entry's headers to the next one's.
const STRIDE: usize = 512;
/// Where `len` stands in a submission queue entry (`include/uapi/linux/io_uring.h`).
const SQE_LEN_OFFSET: usize = 24;

const _: () = assert!(VECTORS_OFFSET + VECTORS as usize * size_of::<libc::iovec>() <= STRIDE);

/// One entry of a [`Channel`]: a place for one request at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EntryId(u32);

impl EntryId {
    /// Its number, counted from zero.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// What has happened to an entry.
#[derive(Debug)]
pub enum Event {
    /// The kernel asks for something; [`Channel::answer`] answers.
    Request(Request),
    /// The entry will have no request any more: the file system is not mounted any more, or the kernel refuses it.
    Ended {
        /// Which one.
        entry: EntryId,
        /// What the kernel says.
        error: io::Error,
    },
}

/// A request of the kernel. Arguments behind the first, and data, are in the entry's payload.
#[derive(Clone, Debug)]
pub struct Request {
    /// Where it lies.
    pub entry: EntryId,
    /// What every request begins with.
    pub header: InHeader,
    /// Bytes in the payload.
    pub payload_bytes: u32,
    first: [u8; OP_IN_BYTES],
}

impl Request {
    /// The first argument, which the opcode tells the type of.
    pub fn argument<T: FromBytes>(&self) -> T {
        const { assert!(size_of::<T>() <= OP_IN_BYTES) };
        T::read_from_prefix(&self.first).expect("as large as all arguments are").0
    }
}

/// The requests of one mounted file system. Its thread alone uses it: the kernel fills entries in that thread's name.
pub struct Channel {
    // These are leaked when the kernel does not give everything back.
    ring: ManuallyDrop<IoUring<Entry128>>,
    headers: ManuallyDrop<Mapping>,
    entries: Vec<ManuallyDrop<Entry>>,
    device: Option<OwnedFd>,
    queues: Queues,
    unsubmitted: bool,
}

/// Which of the kernel's queues a channel serves. There is one for each possible processor, and each must be served by
/// some channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queues {
    /// The first one.
    pub first: u16,
    /// From one to the next.
    pub step: u16,
    /// How many.
    pub count: u16,
}

/// An entry and who has it.
struct Entry {
    /// Its payload while it is not lent for a request: the kernel writes it whenever it likes.
    payload: Option<PostedBuffer>,
    /// First byte of the payload: the kernel learns it once.
    base: *const u8,
    place: Place,
    /// The request that is answered next.
    unique: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// The kernel does not know of it yet.
    New,
    /// The kernel may write to it.
    Kernel,
    /// A request in it waits for its answer.
    Ours,
    /// The kernel will not touch it any more.
    Ended,
}

impl Channel {
    /// A channel whose entries have these payloads, the same number for each of `queues`. Nothing is registered yet.
    ///
    /// # Errors
    /// When the kernel makes no such ring, or has no memory.
    pub fn new(queues: Queues, payloads: Vec<SharedBuffer>) -> io::Result<Self> {
        let count = payloads.len();
        assert!(
            queues.count > 0 && count > 0 && count.is_multiple_of(usize::from(queues.count)),
            "as many for each queue"
        );
        let size = u32::try_from(count.next_power_of_two()).map_err(io::Error::other)?;
        let ring = IoUring::builder().dontfork().setup_submit_all().build(size)?;
        let headers = Mapping::new(count * STRIDE).map_err(|error: MemoryError| io::Error::other(error))?;
        let entries = payloads.into_iter().map(|payload| {
            let base = payload.io_pointer(0, payload.len()).cast_const();
            ManuallyDrop::new(Entry { payload: Some(payload.post()), base, place: Place::New, unique: 0 })
        });
        Ok(Self {
            ring: ManuallyDrop::new(ring),
            headers: ManuallyDrop::new(headers),
            entries: entries.collect(),
            device: None,
            queues,
            unsubmitted: false,
        })
    }

    /// Registers all entries with a mounted file system, whose handshake agreed on the channel. `device` is its
    /// `/dev/fuse`. If the kernel refuses, each entry ends, and requests go by `/dev/fuse`.
    ///
    /// # Errors
    /// When the ring is broken.
    pub fn register(&mut self, device: OwnedFd) -> io::Result<()> {
        assert!(self.device.is_none(), "a channel serves one file system");
        let device = self.device.insert(device).as_raw_fd();
        for index in 0..self.entries.len() {
            let entry = &mut self.entries[index];
            let payload = entry.payload.as_ref().expect("not lent yet");
            let headers = slot(&self.headers, index);
            let vectors = [
                libc::iovec { iov_base: headers.cast(), iov_len: HEADERS_BYTES },
                libc::iovec { iov_base: entry.base.cast_mut().cast(), iov_len: payload.len() },
            ];
            // SAFETY: the vectors' place is within this entry's part of the mapping, aligned, and the kernel has none
            // of it.
            let place = unsafe {
                let place = headers.add(VECTORS_OFFSET);
                place.cast::<[libc::iovec; VECTORS as usize]>().write(vectors);
                place
            };
            entry.place = Place::Kernel;
            let request = RingCmdReq { qid: self.queue_of(index), ..RingCmdReq::default() };
            self.push(device, index, ring_cmd::REGISTER, request, Some(place as u64));
        }
        self.submit()
    }

    /// The descriptor that becomes readable when [`Channel::next_event`] has something.
    pub fn descriptor(&self) -> RawFd {
        self.ring.as_raw_fd()
    }

    /// Whether no entry will have a request any more.
    pub fn is_over(&self) -> bool {
        self.entries.iter().all(|entry| entry.place == Place::Ended)
    }

    /// An entry by its number.
    pub fn entry(&self, index: usize) -> EntryId {
        assert!(index < self.entries.len(), "an entry of this channel");
        EntryId(index as u32)
    }

    /// What has happened, one thing at a time; it makes no system call.
    pub fn next_event(&mut self) -> Option<Event> {
        let completion: cqueue::Entry = self.ring.completion().next()?;
        let index = completion.user_data() as usize;
        let entry = &mut self.entries[index];
        let id = EntryId(index as u32);
        if completion.result() < 0 {
            entry.place = Place::Ended;
            return Some(Event::Ended {
                entry: id,
                error: io::Error::from_raw_os_error(-completion.result()),
            });
        }
        entry.place = Place::Ours;
        let headers = slot(&self.headers, index);
        // SAFETY: each of the three lies within this entry's part of the mapping, and has no invalid values. The kernel
        // has filled them and does not write here again before the answer is submitted.
        let (header, first, used) = unsafe {
            (
                headers.cast::<InHeader>().read(),
                headers.add(OP_IN_OFFSET).cast::<[u8; OP_IN_BYTES]>().read(),
                headers.add(ENT_IN_OUT_OFFSET).cast::<RingEntInOut>().read(),
            )
        };
        entry.unique = used.commit_id;
        Some(Event::Request(Request { entry: id, header, payload_bytes: used.payload_sz, first }))
    }

    /// The payload of an entry whose request waits for its answer, until [`Channel::answer`] takes it back.
    pub fn take_payload(&mut self, entry: EntryId) -> SharedBuffer {
        let entry = &mut self.entries[entry.index()];
        assert_eq!(entry.place, Place::Ours, "the kernel has it");
        entry.payload.take().expect("lent once for each request").take_back()
    }

    /// Answers the request of an entry, with zero or an error number, and asks for the next one. `payload` is what was
    /// lent, and its first `bytes` are the answer. It is sent with [`Channel::submit`].
    pub fn answer(&mut self, id: EntryId, payload: SharedBuffer, errno: i32, bytes: u32) {
        let index = id.index();
        let entry = &mut self.entries[index];
        assert_eq!(entry.place, Place::Ours, "answered once");
        assert!(entry.base == payload.io_pointer(0, payload.len()).cast_const(), "another entry's payload");
        entry.payload = Some(payload.post());
        entry.place = Place::Kernel;
        let unique = entry.unique;
        let bytes = if errno == 0 { bytes } else { 0 };
        let header = OutHeader { len: size_of::<OutHeader>() as u32 + bytes, error: -errno, unique };
        let used = RingEntInOut { commit_id: unique, payload_sz: bytes, ..RingEntInOut::default() };
        let headers = slot(&self.headers, index);
        // SAFETY: both lie within this entry's part of the mapping, which the kernel reads when the answer is submitted
        // and not before.
        unsafe {
            headers.cast::<OutHeader>().write(header);
            headers.add(ENT_IN_OUT_OFFSET).cast::<RingEntInOut>().write(used);
        }
        let Some(device) = self.device.as_ref().map(AsRawFd::as_raw_fd) else { return };
        let request = RingCmdReq { qid: self.queue_of(index), commit_id: unique, ..RingCmdReq::default() };
        self.push(device, index, ring_cmd::COMMIT_AND_FETCH, request, None);
    }

    /// Sends what was answered.
    ///
    /// # Errors
    /// When the ring is broken; a kernel that is short of memory is asked again with the next call.
    pub fn submit(&mut self) -> io::Result<()> {
        if !self.unsubmitted {
            return Ok(());
        }
        match self.ring.submit() {
            Ok(_) => {}
            Err(error) if is_ordinary(&error) => {}
            Err(error) => return Err(error),
        }
        self.unsubmitted = !self.ring.submission().is_empty();
        Ok(())
    }

    /// Whether something is still to be sent.
    pub fn has_unsubmitted(&self) -> bool {
        self.unsubmitted
    }

    /// Entries are numbered queue by queue.
    fn queue_of(&self, index: usize) -> u16 {
        let Queues { first, step, count } = self.queues;
        first + step * (index / (self.entries.len() / usize::from(count))) as u16
    }

    fn push(&mut self, device: RawFd, index: usize, command: u32, request: RingCmdReq, vectors: Option<u64>) {
        let mut area = [0; 80];
        area[..size_of::<RingCmdReq>()].copy_from_slice(request.as_bytes());
        let built = opcode::UringCmd80::new(Fd(device), command).cmd(area).addr(vectors);
        let mut entry = built.build().user_data(index as u64);
        if vectors.is_some() {
            set_len(&mut entry, VECTORS);
        }
        // SAFETY: what the kernel is told of are this entry's headers and payload. Both stay where they are until the
        // command has ended: the payload is in `self.entries`, and when the kernel does not end it, `Drop` leaks both.
        // Nobody else is shown the payload as a slice, since it is posted.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        assert!(pushed.is_ok(), "the queue has room for one command of each entry");
        self.unsubmitted = true;
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        let held = self.entries.iter().any(|entry| entry.place == Place::Kernel);
        // SAFETY: dropped once, here. Closing the ring cancels the commands, but the kernel does that later.
        unsafe { ManuallyDrop::drop(&mut self.ring) };
        if held {
            return;
        }
        // SAFETY: each is dropped once, here, and no command is with the kernel that could write there.
        unsafe {
            self.entries.iter_mut().for_each(|entry| ManuallyDrop::drop(entry));
            ManuallyDrop::drop(&mut self.headers);
        }
    }
}

/// The part of the headers' mapping that belongs to an entry.
fn slot(headers: &Mapping, index: usize) -> *mut u8 {
    let offset = index * STRIDE;
    assert!(offset + STRIDE <= headers.bytes(), "an entry of this channel");
    // SAFETY: the offset lies within the mapping.
    unsafe { headers.base().as_ptr().add(offset) }
}

/// The entry's `len`, which the library has no setter for.
fn set_len(entry: &mut Entry128, len: u32) {
    const { assert!(size_of::<Entry128>() == 128) };
    // SAFETY: an entry is the kernel's structure of 128 bytes and nothing else, of which `len` are the four bytes at
    // this offset, aligned; any value is valid.
    unsafe { std::ptr::from_mut(entry).cast::<u8>().add(SQE_LEN_OFFSET).cast::<u32>().write(len) };
}

fn is_ordinary(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfab_memory::{ClassLayout, Pool};
    use std::time::{Duration, Instant};

    const COUNT: usize = 6;

    fn channel(pool: &Pool, queues: u16) -> Channel {
        let payloads = (0..COUNT).map(|_| pool.take(4096).expect("a buffer").share()).collect();
        Channel::new(Queues { first: 0, step: 1, count: queues }, payloads).expect("a ring")
    }

    fn pool() -> Pool {
        Pool::new(&[ClassLayout { buffer_bytes: 4096, count: COUNT }]).expect("memory")
    }

    #[test]
    fn a_channel_that_was_never_registered_gives_its_memory_back() {
        let pool = pool();
        let channel = channel(&pool, 2);
        assert!(!channel.is_over() && pool.usage().taken == COUNT);
        drop(channel);
        assert_eq!(pool.usage().taken, 0);
    }

    #[test]
    fn what_is_no_fuse_device_ends_each_entry_once_and_all_memory_comes_back() {
        let pool = pool();
        let mut channel = channel(&pool, 3);
        let device = std::fs::File::open(std::env::current_exe().expect("this program")).expect("a file");
        channel.register(device.into()).expect("submitted");
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut ended = Vec::new();
        while !channel.is_over() {
            assert!(Instant::now() < deadline, "only {ended:?}");
            match channel.next_event() {
                Some(Event::Ended { entry, error }) => {
                    assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP));
                    ended.push(entry.index());
                }
                Some(Event::Request(request)) => panic!("{request:?}"),
                None => std::thread::yield_now(),
            }
        }
        ended.sort_unstable();
        assert_eq!(ended, (0..COUNT).collect::<Vec<_>>());
        assert!(channel.next_event().is_none());
        drop(channel);
        assert_eq!(pool.usage().taken, 0);
    }

    #[test]
    fn entries_belong_to_queues_in_turn() {
        let channel = channel(&pool(), 3);
        let queues: Vec<u16> = (0..COUNT).map(|index| channel.queue_of(index)).collect();
        assert_eq!(queues, [0, 0, 1, 1, 2, 2]);
        let mut part = channel;
        part.queues = Queues { first: 1, step: 3, count: 3 };
        let queues: Vec<u16> = (0..COUNT).map(|index| part.queue_of(index)).collect();
        assert_eq!(queues, [1, 1, 4, 4, 7, 7]);
    }

    #[test]
    fn only_the_length_of_a_command_is_set_behind_the_librarys_back() {
        let command =
            || opcode::UringCmd80::new(Fd(3), 1).cmd([7; 80]).addr(Some(0x1234)).build().user_data(5);
        let (plain, mut set) = (command(), command());
        set_len(&mut set, 0x0102_0304);
        // SAFETY: an entry is 128 bytes without padding.
        let [plain, set] =
            [plain, set].map(|entry| unsafe { std::mem::transmute::<Entry128, [u8; 128]>(entry) });
        assert_eq!(set[24..28], 0x0102_0304_u32.to_ne_bytes());
        assert!(plain[..24] == set[..24] && plain[28..] == set[28..] && plain[24..28] == [0; 4]);
    }
}
