//! A cluster: where it is, as whom it is used, and the one connection that all of its images share.

use std::ffi::{CStr, CString};
use std::fmt;
use std::fs::File;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use ringfab_base::VisiblePath as _;

use crate::RbdError;
use crate::native::{ConnectError, Connection, ConnectionOptions, Errno, Library, LiveConnections};

/// How long a monitor may take to answer. It is less than what a person waits for, who asks for a look at an image, so
/// that they hear who has not answered.
const MONITOR_LIMIT: Duration = Duration::from_secs(8);

/// Where Ceph's own programs have the configurations of clusters.
const CONF_FOLDER: &str = "/etc/ceph";

/// The user if none is named, as for Ceph's own programs.
const DEFAULT_USER: &str = "admin";

/// What has to be known of a cluster to use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterConfig {
    /// Its name: `ceph`, if it has no other. `$cluster` in its configuration file is this.
    pub name: String,
    /// Its configuration file; `/etc/ceph/NAME.conf` if none is named.
    pub conf: Option<PathBuf>,
    /// The user, with or without `client.` before the name; `admin` if none is named.
    pub user: Option<String>,
    /// A file with the user's key; those that the configuration file names, or Ceph's own places, if none is named.
    pub keyring: Option<PathBuf>,
}

/// The cluster `ceph` with all of Ceph's defaults.
impl Default for ClusterConfig {
    fn default() -> Self {
        Self { name: "ceph".to_owned(), conf: None, user: None, keyring: None }
    }
}

impl ClusterConfig {
    /// Its configuration file, named or not.
    pub fn conf_path(&self) -> PathBuf {
        self.conf.clone().unwrap_or_else(|| Path::new(CONF_FOLDER).join(format!("{}.conf", self.name)))
    }

    /// The user with its type: `client.admin`.
    pub fn user_name(&self) -> String {
        let user = self.user.as_deref().unwrap_or(DEFAULT_USER);
        format!("client.{}", user.strip_prefix("client.").unwrap_or(user))
    }

    /// What the library is told. The cluster's own configuration and the file have no say in the settings.
    fn options(&self) -> Result<ConnectionOptions, RbdError> {
        let c_string = |text: &[u8]| {
            CString::new(text)
                .map_err(|_| RbdError::failed(format!("using cluster {}", self.name), libc::EINVAL))
        };
        let seconds = c_string(MONITOR_LIMIT.as_secs().to_string().as_bytes())?;
        let mut settings: Vec<(&'static CStr, CString)> = vec![
            // Completed writes are safe then, on as many storage daemons as the pool asks for.
            (c"rbd_cache", c"false".to_owned()),
            // Operations are queued for a thread of the library: a core does not wait for a lock of it.
            (c"rbd_non_blocking_aio", c"true".to_owned()),
            // librbd 16 copies what is written, which takes a core some 30 µs for 128 KiB. Without that, a write of a
            // client that was blocklisted was seen never to be answered.
            (c"rbd_disable_zero_copy_writes", c"true".to_owned()),
            (c"client_mount_timeout", seconds.clone()),
            (c"rados_mon_op_timeout", seconds),
            // What a client gives up after a while, a storage daemon may still do later, over what was written since.
            // So operations wait as long as it takes, whatever the configuration says.
            (c"rados_osd_op_timeout", c"0".to_owned()),
        ];
        if let Some(keyring) = &self.keyring {
            settings.push((c"keyring", c_string(keyring.as_os_str().as_bytes())?));
        }
        Ok(ConnectionOptions {
            cluster: c_string(self.name.as_bytes())?,
            user: c_string(self.user_name().as_bytes())?,
            conf: c_string(self.conf_path().as_os_str().as_bytes())?,
            settings,
        })
    }

    /// The files that were named are there, and may be read: the library says only that something is not.
    fn check_files(&self) -> Result<(), RbdError> {
        for path in [Some(&self.conf_path()), self.keyring.as_ref()].into_iter().flatten() {
            File::open(path).map_err(|error| RbdError::Unreadable {
                path: path.visible().to_string(),
                reason: error.to_string(),
            })?;
        }
        Ok(())
    }

    /// What has gone wrong, for whoever reads it.
    fn explain(&self, error: ConnectError) -> RbdError {
        let (cluster, user, conf) = (&self.name, self.user_name(), self.conf_path().visible().to_string());
        match error {
            ConnectError::Configuration(Errno(errno)) => RbdError::Unreadable {
                path: conf,
                reason: std::io::Error::from_raw_os_error(errno).to_string(),
            },
            ConnectError::NoMonitorNamed => RbdError::NoMonitorNamed { conf },
            ConnectError::Connect(Errno(libc::ETIMEDOUT)) => {
                RbdError::NoMonitorAnswers { cluster: cluster.clone(), limit: MONITOR_LIMIT }
            }
            ConnectError::Connect(Errno(libc::ENOENT)) => RbdError::NoKey { user },
            ConnectError::Connect(Errno(libc::EACCES | libc::EPERM)) => {
                RbdError::NotAccepted { cluster: cluster.clone(), user }
            }
            ConnectError::Setting(option, Errno(errno)) => {
                RbdError::failed(format!("setting {} for cluster {cluster}", option.to_string_lossy()), errno)
            }
            ConnectError::Create(Errno(errno)) | ConnectError::Connect(Errno(errno)) => {
                RbdError::failed(format!("connecting to cluster {cluster}"), errno)
            }
        }
    }
}

/// A cluster that images are used of. It connects when the first image is looked at.
///
/// The library has its own threads for a connection, so all images of a cluster should share one `Cluster`.
#[derive(Debug)]
pub struct Cluster {
    config: ClusterConfig,
    state: Mutex<State>,
    users: Mutex<Vec<Weak<dyn User>>>,
    live: LiveConnections,
}

/// Who has images of a cluster open, and lets them go when the cluster is closed.
pub(crate) trait User: fmt::Debug + Send + Sync {
    /// The cluster is closed: what this one has of it is to be given up soon.
    fn let_go(&self);
}

#[derive(Debug, Default)]
struct State {
    connection: Option<Arc<Connection>>,
    /// When the last attempt to connect ended, if it failed, and how.
    failed: Option<(Instant, RbdError)>,
}

impl Cluster {
    /// A cluster, without a connection yet.
    pub fn new(config: ClusterConfig) -> Self {
        let (state, users) = (Mutex::default(), Mutex::default());
        Self { config, state, users, live: LiveConnections::default() }
    }

    /// How it is used.
    pub fn config(&self) -> &ClusterConfig {
        &self.config
    }

    /// Loads Ceph's libraries, which otherwise happens with the first look at an image: for a program that gives up
    /// the right to read files later.
    ///
    /// # Errors
    /// Which library is missing, and what to install.
    pub fn load_library() -> Result<(), RbdError> {
        Library::load().map(drop)
    }

    /// Gives up the connection and what drivers have of it, and waits until all images are closed, no longer than
    /// `limit`: then their locks are released, and others need not wait until the cluster takes this client for dead.
    /// For the end of a process, on a thread that may wait, when cores have closed their disks. Drivers may still be
    /// there; their looks fail from now on. Returns whether everything was closed in time.
    pub fn close(&self, limit: Duration) -> bool {
        let users = std::mem::take(&mut *self.users());
        users.iter().filter_map(Weak::upgrade).for_each(|user| user.let_go());
        self.state().connection = None;
        self.live.wait_for_none(limit)
    }

    /// This one is told when the cluster is closed.
    pub(crate) fn add_user(&self, user: Weak<dyn User>) {
        let mut users = self.users();
        users.retain(|user| user.strong_count() > 0);
        users.push(user);
    }

    fn users(&self) -> MutexGuard<'_, Vec<Weak<dyn User>>> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection, which is made first if there is none. It may wait as long as [`MONITOR_LIMIT`], and as long
    /// again for somebody else who tries at the same time.
    pub(crate) fn connect(&self) -> Result<Arc<Connection>, RbdError> {
        let asked = Instant::now();
        let mut state = self.state();
        if let Some(connection) = &state.connection {
            return Ok(Arc::clone(connection));
        }
        // Others may have waited for the same attempt. They need not wait for one each.
        if let Some((_, error)) = state.failed.as_ref().filter(|(ended, _)| *ended > asked) {
            return Err(error.clone());
        }
        match self.open() {
            Ok(connection) => {
                state.failed = None;
                Ok(Arc::clone(state.connection.insert(Arc::new(connection))))
            }
            Err(error) => {
                state.failed = Some((Instant::now(), error.clone()));
                Err(error)
            }
        }
    }

    fn open(&self) -> Result<Connection, RbdError> {
        let library = Library::load()?;
        self.config.check_files()?;
        let options = self.config.options()?;
        let connection = Connection::open(library, &options, &self.live);
        connection.map_err(|error| self.config.explain(error))
    }

    /// The next one who connects gets another connection than this one, which the cluster does nothing for any more.
    pub(crate) fn forget(&self, blocklisted: &Arc<Connection>) {
        let mut state = self.state();
        if state.connection.as_ref().is_some_and(|connection| Arc::ptr_eq(connection, blocklisted)) {
            state.connection = None;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_named_is_as_with_cephs_own_programs() {
        let config = ClusterConfig::default();
        assert_eq!(config.conf_path(), Path::new("/etc/ceph/ceph.conf"));
        assert_eq!(config.user_name(), "client.admin");
        let other =
            ClusterConfig { name: "backup".to_owned(), user: Some("client.disks".to_owned()), ..config };
        assert_eq!(other.conf_path(), Path::new("/etc/ceph/backup.conf"));
        assert_eq!(other.user_name(), "client.disks");
        assert_eq!(ClusterConfig { user: Some("disks".to_owned()), ..other }.user_name(), "client.disks");
    }

    #[test]
    fn nothing_is_given_up_by_time_but_looks() {
        let options = ClusterConfig::default().options().expect("options");
        let value = |name: &CStr| {
            let found = options.settings.iter().find(|(option, _)| *option == name);
            found.map(|(_, value)| value.to_str().expect("text"))
        };
        assert_eq!(value(c"rados_osd_op_timeout"), Some("0"));
        assert_eq!(value(c"client_mount_timeout"), Some("8"));
        assert_eq!((value(c"rbd_cache"), value(c"keyring")), (Some("false"), None));
    }

    #[test]
    fn each_way_to_fail_to_connect_has_its_own_sentence() {
        let config = ClusterConfig { user: Some("disks".to_owned()), ..ClusterConfig::default() };
        for (errno, sentence) in [
            (libc::ETIMEDOUT, "no monitor of cluster ceph has answered within 8 s"),
            (libc::ENOENT, "no keyring has a key of client.disks: name one that has (keyring)"),
            (
                libc::EACCES,
                "cluster ceph does not accept client.disks: there is no such user, or the keyring has no key or \
                 another one",
            ),
            (libc::EIO, "connecting to cluster ceph: Input/output error (os error 5)"),
        ] {
            assert_eq!(config.explain(ConnectError::Connect(Errno(errno))).to_string(), sentence);
        }
        let no_monitor = config.explain(ConnectError::NoMonitorNamed).to_string();
        assert_eq!(no_monitor, "/etc/ceph/ceph.conf names no monitor (mon_host)");
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let conf = Some(PathBuf::from("/nonexistent/ceph.conf"));
        let config = ClusterConfig { conf, ..ClusterConfig::default() };
        let error = config.check_files().expect_err("it is not there").to_string();
        assert!(error.starts_with("/nonexistent/ceph.conf cannot be read: No such file"), "{error}");
    }
}
