//! An open image. Opening it and asking about it may wait as long as the cluster likes, so that is for a thread that
//! may wait; its end is handed to such a thread.

use std::ffi::{CStr, CString, c_char, c_void};
use std::fmt;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::connection::Connection;
use super::library::{Errno, Library, RawCompletion, RawImage, RawInfo, RawOption, Rbd, check};
use super::pool::Pool;

/// Options of an image that are asked for at once; Ceph 16 has 64 of them, Ceph 20 some more.
const OPTIONS_MAX: usize = 512;

/// Owners of a lock that are asked for at once. An exclusive lock has one.
const OWNERS_MAX: usize = 8;

/// The most bytes that are looked at of a text that the library gives.
const TEXT_BYTES_MAX: usize = 256;

/// An image by its identifier, so that another one of the same name is not taken for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ImageName {
    /// The identifier, which is in the names of its objects.
    pub(crate) id: String,
    /// The snapshot's name.
    pub(crate) snapshot: Option<CString>,
}

/// What does not change while an image is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ImageFacts {
    /// The identifier.
    pub(crate) id: String,
    /// The snapshot's number.
    pub(crate) snapshot: Option<u64>,
    /// When it was made: seconds and nanoseconds since 1970.
    pub(crate) created: (i64, i64),
    /// The features, a bit each.
    pub(crate) features: u64,
    /// Size of an object in bytes.
    pub(crate) object_bytes: u64,
    /// How many bytes come after each other in one object.
    pub(crate) stripe_unit: u64,
    /// Over how many objects they are spread in turn.
    pub(crate) stripe_count: u64,
    /// Whether somebody has set that librbd keeps written data in memory, for this image or its pool. That is stronger
    /// than what the client was told.
    pub(crate) cached: bool,
    /// Whether the library hears of changes of size, snapshots and parents. A key that may only read gets no such
    /// watch.
    pub(crate) watched: bool,
}

/// Who holds the exclusive lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LockOwner {
    /// Nobody does.
    Nobody,
    /// This very handle.
    Own,
    /// Another client, as the library names it.
    Other(String),
}

/// Gets the end of an image, when nobody has it any more, and takes it to a thread that may wait.
pub(crate) type Closer = Arc<dyn Fn(Closing) + Send + Sync>;

/// An open image, or a snapshot of one. All cores use the same: several handles with the exclusive-lock feature would
/// take the lock from each other.
pub(crate) struct Image {
    handle: Handle,
    facts: ImageFacts,
    bytes_seen: AtomicU64,
    closer: Closer,
}

/// The library's handle with the pool that it uses.
struct Handle {
    raw: RawImage,
    pool: Arc<Pool>,
}

// SAFETY: an image belongs to no thread, and librbd locks what several of them use.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Image {
    /// Opens an image. `watched` is what [`ImageFacts::watched`] will say; an image without a watch cannot be written.
    ///
    /// # Errors
    /// `ENOENT` when there is no such image or no such snapshot; what the storage daemons answer.
    pub(crate) fn open(
        pool: &Arc<Pool>,
        name: &ImageName,
        watched: bool,
        closer: &Closer,
    ) -> Result<Self, Errno> {
        let handle = Handle::open(pool, name, watched)?;
        match handle.facts(name, watched).and_then(|facts| Ok((facts, handle.bytes()?))) {
            Ok((facts, bytes)) => {
                Ok(Self { handle, facts, bytes_seen: AtomicU64::new(bytes), closer: Arc::clone(closer) })
            }
            Err(errno) => {
                closer(Closing(handle));
                Err(errno)
            }
        }
    }

    pub(crate) fn facts(&self) -> &ImageFacts {
        &self.facts
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.handle.pool
    }

    pub(crate) fn connection(&self) -> &Arc<Connection> {
        self.handle.pool.connection()
    }

    pub(super) fn raw(&self) -> RawImage {
        self.handle.raw
    }

    pub(super) fn library(&self) -> &'static Library {
        self.handle.library()
    }

    /// Its size in bytes now. Without a watch, that is as it was when the image was opened.
    ///
    /// # Errors
    /// What the storage daemons answer.
    pub(crate) fn bytes(&self) -> Result<u64, Errno> {
        let bytes = self.handle.bytes()?;
        self.bytes_seen.store(bytes, Ordering::Relaxed);
        Ok(bytes)
    }

    /// Its size in bytes when somebody asked last. This does not wait.
    pub(crate) fn bytes_seen(&self) -> u64 {
        self.bytes_seen.load(Ordering::Relaxed)
    }

    /// How many of its bytes are still those of the image that it is a clone of; none if it is none.
    ///
    /// # Errors
    /// What the storage daemons answer.
    pub(crate) fn bytes_of_parent(&self) -> Result<u64, Errno> {
        // SAFETY: the image is open; the number is written where `number` says.
        self.handle.number(|rbd, raw, bytes| unsafe { (rbd.rbd_get_overlap)(raw, bytes) })
    }

    /// The number of the snapshot that has this name now.
    ///
    /// # Errors
    /// `ENOENT` when there is none; what the storage daemons answer.
    pub(crate) fn snapshot_id(&self, name: &CStr) -> Result<u64, Errno> {
        self.handle.snapshot_id(name)
    }

    /// Who holds the exclusive lock. Only images with that feature have one.
    ///
    /// # Errors
    /// What the storage daemons answer.
    pub(crate) fn lock_owner(&self) -> Result<LockOwner, Errno> {
        let (rbd, mut own) = (&self.library().rbd, 0);
        // SAFETY: the image is open; the answer is written to `own`.
        check(unsafe { (rbd.rbd_is_exclusive_lock_owner)(self.raw(), &raw mut own) })?;
        if own != 0 {
            return Ok(LockOwner::Own);
        }
        let (mut mode, mut owners, mut count) = (0, [std::ptr::null_mut(); OWNERS_MAX], OWNERS_MAX);
        // SAFETY: as above; no more owners are written than `count` says there is room for, and then it says how many.
        let answer = unsafe {
            (rbd.rbd_lock_get_owners)(self.raw(), &raw mut mode, owners.as_mut_ptr(), &raw mut count)
        };
        match check(answer) {
            Ok(_) => {}
            Err(Errno(libc::ENOENT)) => return Ok(LockOwner::Nobody),
            Err(errno) => return Err(errno),
        }
        // SAFETY: the first `count` are texts of the library, which it keeps until they are cleaned up below.
        let first = (count > 0).then(|| unsafe { text_at(owners[0]) });
        // SAFETY: as above, and they are not used any more.
        unsafe { (rbd.rbd_lock_get_owners_cleanup)(owners.as_mut_ptr(), count) };
        Ok(first.map_or(LockOwner::Nobody, LockOwner::Other))
    }
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Image").field("facts", &self.facts).finish_non_exhaustive()
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let handle = Handle { raw: self.handle.raw, pool: Arc::clone(&self.handle.pool) };
        (self.closer)(Closing(handle));
    }
}

impl Handle {
    fn open(pool: &Arc<Pool>, name: &ImageName, watched: bool) -> Result<Self, Errno> {
        let id = CString::new(name.id.as_str()).map_err(|_| Errno(libc::EINVAL))?;
        let snapshot = name.snapshot.as_ref().map_or(std::ptr::null(), |snapshot| snapshot.as_ptr());
        let (rbd, mut raw) = (&pool.connection().library().rbd, std::ptr::null_mut());
        let open = if watched { rbd.rbd_open_by_id } else { rbd.rbd_open_by_id_read_only };
        // SAFETY: the pool is there, and is held for as long as the image is open; the names are C strings, and no
        // snapshot is a null pointer; the handle is written to `raw`.
        check(unsafe { open(pool.raw(), id.as_ptr(), &raw mut raw, snapshot) })?;
        Ok(Self { raw, pool: Arc::clone(pool) })
    }

    fn library(&self) -> &'static Library {
        self.pool.connection().library()
    }

    /// What a function tells by writing one number.
    fn number(&self, ask: impl Fn(&Rbd, RawImage, *mut u64) -> i32) -> Result<u64, Errno> {
        let mut number = 0;
        check(ask(&self.library().rbd, self.raw, &raw mut number))?;
        Ok(number)
    }

    fn bytes(&self) -> Result<u64, Errno> {
        // SAFETY: the image is open; the number is written where `number` says.
        self.number(|rbd, raw, bytes| unsafe { (rbd.rbd_get_size)(raw, bytes) })
    }

    fn facts(&self, name: &ImageName, watched: bool) -> Result<ImageFacts, Errno> {
        let snapshot = name.snapshot.as_ref().map(|snapshot| self.snapshot_id(snapshot)).transpose()?;
        Ok(ImageFacts {
            id: name.id.clone(),
            snapshot,
            created: self.created()?,
            // SAFETY: the image is open; the number is written where `number` says. So for all three.
            features: self.number(|rbd, raw, at| unsafe { (rbd.rbd_get_features)(raw, at) })?,
            object_bytes: self.object_bytes()?,
            // SAFETY: as above.
            stripe_unit: self.number(|rbd, raw, at| unsafe { (rbd.rbd_get_stripe_unit)(raw, at) })?,
            // SAFETY: as above.
            stripe_count: self.number(|rbd, raw, at| unsafe { (rbd.rbd_get_stripe_count)(raw, at) })?,
            cached: self.option("rbd_cache")?.as_deref() == Some("true"),
            watched,
        })
    }

    fn snapshot_id(&self, name: &CStr) -> Result<u64, Errno> {
        // SAFETY: the image is open; the name is a C string, and the number is written where `number` says.
        self.number(|rbd, raw, id| unsafe { (rbd.rbd_snap_get_id)(raw, name.as_ptr(), id) })
    }

    fn created(&self) -> Result<(i64, i64), Errno> {
        let mut created = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the image is open; the time is written to `created`.
        check(unsafe { (self.library().rbd.rbd_get_create_timestamp)(self.raw, &raw mut created) })?;
        Ok((created.tv_sec, created.tv_nsec))
    }

    fn object_bytes(&self) -> Result<u64, Errno> {
        let mut info = MaybeUninit::<RawInfo>::zeroed();
        // SAFETY: the image is open; no more bytes are written than the size of the structure, which is passed on.
        check(unsafe { (self.library().rbd.rbd_stat)(self.raw, info.as_mut_ptr(), size_of::<RawInfo>()) })?;
        // SAFETY: all zeroes are a value of it, and so is what the library has written.
        Ok(unsafe { info.assume_init() }.object_bytes)
    }

    /// The value of an option of the image, from wherever it comes.
    fn option(&self, name: &str) -> Result<Option<String>, Errno> {
        let rbd = &self.library().rbd;
        let nothing = RawOption { name: std::ptr::null_mut(), value: std::ptr::null_mut(), source: 0 };
        let (mut options, mut count) = (vec![nothing; OPTIONS_MAX], OPTIONS_MAX as i32);
        // SAFETY: the image is open; no more options are written than there is room for, and `count` says how many.
        check(unsafe { (rbd.rbd_config_image_list)(self.raw, options.as_mut_ptr(), &raw mut count) })?;
        let listed = &options[..usize::try_from(count).unwrap_or(0).min(OPTIONS_MAX)];
        let found = listed.iter().find_map(|option| {
            // SAFETY: those that are listed have texts of the library, which stay until they are cleaned up below.
            let (key, value) = unsafe { (text_at(option.name), text_at(option.value)) };
            (key == name).then_some(value)
        });
        // SAFETY: as above, and they are not used any more.
        unsafe { (rbd.rbd_config_image_list_cleanup)(options.as_mut_ptr(), count) };
        Ok(found)
    }
}

/// A copy of a text of the library; nothing where there is none.
///
/// # Safety
/// The pointer is null, or to bytes that end with a zero and that nobody changes meanwhile.
unsafe fn text_at(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: by the contract of this function.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    text.chars().take(TEXT_BYTES_MAX).collect()
}

/// An image that nobody has any more, and that is still open.
pub(crate) struct Closing(Handle);

impl Closing {
    /// Has the library close it, which takes until all that is in flight has ended. Nobody waits for that. This is not
    /// for cores: who knows what the library does at once.
    pub(crate) fn begin(self) {
        let (library, raw) = (self.0.library(), self.0.raw);
        let argument = Box::into_raw(Box::new(self)).cast::<c_void>();
        let mut completion = std::ptr::null_mut();
        // SAFETY: the completion is written to `completion`, and calls `closed` once, with the argument that it owns.
        let made = unsafe { (library.rbd.rbd_aio_create_completion)(argument, closed, &raw mut completion) };
        if check(made).is_err() {
            // There is no memory. The image stays open, with what it uses, until the process ends.
            return;
        }
        // SAFETY: the image is open, and nobody has it any more but calls in flight, for which closing waits. The
        // library answers through the completion, whatever happens: it refuses nothing.
        unsafe { (library.rbd.rbd_aio_close)(raw, completion) };
    }
}

/// The library has closed an image, and calls this on a thread of its own.
extern "C" fn closed(completion: RawCompletion, argument: *mut c_void) {
    // SAFETY: it is the box that `begin` has given away, and this is called once for it.
    let closing = unsafe { Box::from_raw(argument.cast::<Closing>()) };
    // SAFETY: the completion has completed, and nobody else has it.
    unsafe { (closing.0.library().rbd.rbd_aio_release)(completion) };
    // Now nothing of the library uses the pool for this image. Its end waits for nothing, and neither does that of the
    // connection.
    drop(closing);
}
