//! A client of a cluster: its connection to the monitors and the storage daemons.

use std::ffi::{CStr, CString, c_char};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::library::{Errno, Library, RawCluster, check, count_client};

/// The most bytes of an option's value.
const VALUE_BYTES_MAX: usize = 4096;

/// Bytes of a cluster's identifier as text, with the zero at its end.
const FSID_BYTES: usize = 37;

/// How a client is set up.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionOptions {
    /// The cluster's name, which the configuration may refer to (`$cluster`).
    pub(crate) cluster: CString,
    /// The user with its type: `client.admin`.
    pub(crate) user: CString,
    /// The configuration file.
    pub(crate) conf: CString,
    /// Options and their values, which nothing in the file or the cluster's own configuration overrides.
    pub(crate) settings: Vec<(&'static CStr, CString)>,
}

/// At which step a client could not be set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectError {
    /// There is no memory for it, or the user's name is none.
    Create(Errno),
    /// The configuration file.
    Configuration(Errno),
    /// The configuration names no monitor, and none was found in another way.
    NoMonitorNamed,
    /// An option.
    Setting(&'static CStr, Errno),
    /// The cluster does not answer, or refuses.
    Connect(Errno),
}

/// A client that is connected. It is shut down when nobody has it any more.
pub(crate) struct Connection {
    library: &'static Library,
    raw: RawCluster,
    fsid: String,
    client: u64,
    /// The cluster does nothing for it any more.
    blocklisted: AtomicBool,
    /// For as long as the library works for it.
    live: LiveConnection,
}

// SAFETY: a handle of a cluster belongs to no thread, and librados locks what several of them use.
unsafe impl Send for Connection {}
// SAFETY: as above.
unsafe impl Sync for Connection {}

impl Connection {
    /// Sets up a client and connects it. This waits for the cluster as long as its options say.
    ///
    /// # Errors
    /// Which step has failed, and how.
    pub(crate) fn open(
        library: &'static Library,
        options: &ConnectionOptions,
        live: &LiveConnections,
    ) -> Result<Self, ConnectError> {
        let client = Client::new(library, options).map_err(ConnectError::Create)?;
        client.configure(options)?;
        client.connect()?;
        let (raw, fsid) = (client.0.raw, client.fsid().map_err(ConnectError::Connect)?);
        // SAFETY: the client is connected, which is what this function needs.
        let id = unsafe { (library.rados.rados_get_instance_id)(raw) };
        // From here on, the connection shuts it down, and counts it.
        std::mem::forget(client);
        let live = live.add();
        Ok(Self { library, raw, fsid, client: id, blocklisted: AtomicBool::new(false), live })
    }

    pub(crate) fn library(&self) -> &'static Library {
        self.library
    }

    pub(super) fn raw(&self) -> RawCluster {
        self.raw
    }

    /// The cluster's identifier.
    pub(crate) fn fsid(&self) -> &str {
        &self.fsid
    }

    /// The number by which the cluster knows this client.
    pub(crate) fn client(&self) -> u64 {
        self.client
    }

    /// The cluster has said that it does nothing for this client any more.
    pub(crate) fn note_blocklisted(&self) {
        self.blocklisted.store(true, Ordering::Relaxed);
    }

    /// Whether it has.
    pub(crate) fn is_blocklisted(&self) -> bool {
        self.blocklisted.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("fsid", &self.fsid)
            .field("client", &self.client)
            .finish_non_exhaustive()
    }
}

/// Shutting down waits for threads of the library, and the last one who had the connection may be a core, or a thread
/// that would wait for itself. So a thread of its own does it.
impl Drop for Connection {
    fn drop(&mut self) {
        let (client, live) = (Handle { library: self.library, raw: self.raw }, self.live.clone());
        let shut_down = move || {
            // The whole handle, which may go to another thread, and not its parts.
            let client: Handle = client;
            // SAFETY: nobody has the connection any more, so nothing of it is in use: pools and images hold it.
            unsafe { (client.library.rados.rados_shutdown)(client.raw) };
            drop(live);
        };
        // Without a thread for it, the client stays until the process ends.
        if let Err(error) = thread::Builder::new().name("rbd-shutdown".to_owned()).spawn(shut_down) {
            tracing::warn!(%error, "a client of a Ceph cluster cannot be shut down");
        }
    }
}

/// A handle that goes from thread to thread.
struct Handle {
    library: &'static Library,
    raw: RawCluster,
}

// SAFETY: as for `Connection`, of which it is a part.
unsafe impl Send for Handle {}

/// A client that is not connected yet; without a connection, it is shut down at once.
struct Client(Handle);

impl Drop for Client {
    fn drop(&mut self) {
        // SAFETY: the handle was made by `new`, and nobody else has it.
        unsafe { (self.0.library.rados.rados_shutdown)(self.0.raw) };
        count_client(false);
    }
}

impl Client {
    fn new(library: &'static Library, options: &ConnectionOptions) -> Result<Self, Errno> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the handle is written to `raw`, and the names are C strings that are copied.
        let answer = unsafe {
            (library.rados.rados_create2)(&raw mut raw, options.cluster.as_ptr(), options.user.as_ptr(), 0)
        };
        check(answer)?;
        count_client(true);
        Ok(Self(Handle { library, raw }))
    }

    fn configure(&self, options: &ConnectionOptions) -> Result<(), ConnectError> {
        let Handle { library, raw } = self.0;
        // SAFETY: the handle is not connected yet, as this needs; the path is a C string.
        let answer = unsafe { (library.rados.rados_conf_read_file)(raw, options.conf.as_ptr()) };
        check(answer).map_err(ConnectError::Configuration)?;
        for (option, value) in &options.settings {
            // SAFETY: as above; both are C strings that are copied.
            let answer = unsafe { (library.rados.rados_conf_set)(raw, option.as_ptr(), value.as_ptr()) };
            check(answer).map_err(|errno| ConnectError::Setting(option, errno))?;
        }
        Ok(())
    }

    /// A missing key and missing monitors are one error to the library.
    fn connect(&self) -> Result<(), ConnectError> {
        let Handle { library, raw } = self.0;
        // SAFETY: the handle is not connected yet.
        match check(unsafe { (library.rados.rados_connect)(raw) }) {
            Ok(_) => Ok(()),
            Err(Errno(libc::ENOENT)) if self.names_no_monitor() => Err(ConnectError::NoMonitorNamed),
            Err(errno) => Err(ConnectError::Connect(errno)),
        }
    }

    fn names_no_monitor(&self) -> bool {
        option(self.0.library, self.0.raw, c"mon_host").is_some_and(|hosts| hosts.trim().is_empty())
    }

    fn fsid(&self) -> Result<String, Errno> {
        let mut text = [0_u8; FSID_BYTES];
        // SAFETY: it is connected, and writes no more bytes than it is told, with a zero at the end.
        let answer = unsafe {
            (self.0.library.rados.rados_cluster_fsid)(
                self.0.raw,
                text.as_mut_ptr().cast::<c_char>(),
                text.len(),
            )
        };
        check(answer)?;
        Ok(text_of(&text))
    }
}

/// The value of an option, unless there is none of that name or it is very long.
fn option(library: &Library, raw: RawCluster, name: &CStr) -> Option<String> {
    let mut value = vec![0_u8; VALUE_BYTES_MAX];
    // SAFETY: it writes no more bytes than it is told, with a zero at the end; the name is a C string.
    let answer = unsafe {
        (library.rados.rados_conf_get)(raw, name.as_ptr(), value.as_mut_ptr().cast::<c_char>(), value.len())
    };
    check(answer).ok().map(|_| text_of(&value))
}

/// The text up to the first zero.
pub(super) fn text_of(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// How many connections there are, so that the end of a process can wait for them.
#[derive(Clone, Debug, Default)]
pub(crate) struct LiveConnections(Arc<(Mutex<usize>, Condvar)>);

impl LiveConnections {
    fn add(&self) -> LiveConnection {
        *self.count() += 1;
        LiveConnection(Arc::new(Counted(self.clone())))
    }

    /// Waits until there are none, and no longer than `limit`. Returns whether there are none.
    pub(crate) fn wait_for_none(&self, limit: Duration) -> bool {
        let count = self.count();
        let waited = self.0.1.wait_timeout_while(count, limit, |count| *count > 0);
        *waited.unwrap_or_else(PoisonError::into_inner).0 == 0
    }

    fn count(&self) -> MutexGuard<'_, usize> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One of them. The clone that ends last says so.
#[derive(Clone)]
struct LiveConnection(#[expect(dead_code, reason = "it counts for as long as it is there")] Arc<Counted>);

struct Counted(LiveConnections);

impl Drop for Counted {
    fn drop(&mut self) {
        count_client(false);
        *self.0.count() -= 1;
        self.0.0.1.notify_all();
    }
}
