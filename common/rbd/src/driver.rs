//! The driver of one image: what the target looks at, shows and opens.

use std::io;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use ringfab_base::visible;
use ringfab_block::{BlockDevice, Detail, DiskTokens, Driver, OpenError, Seen};
use ringfab_reactor::Reactor;

use crate::cluster::User;
use crate::device::RbdDevice;
use crate::keeper::Keeper;
use crate::look::Looker;
use crate::shared::Shared;
use crate::{Cluster, ImageSpec, RbdError};

/// Serves an image of a cluster, or a snapshot of one.
///
/// All cores use one handle of the image, so an image with the exclusive-lock feature can be served by several cores.
/// An image that several targets serve at once should not have that feature: its lock would go to and fro.
///
/// # What it tells
/// [`look`](Driver::look) connects to the cluster, and tells the size and which image it is: by the cluster, the pool,
/// the image's identifier and when it was made. If the cluster does not answer, it ends with an error after 9 s.
/// Operations wait as long as the cluster takes: what a client gives up may still be done later.
///
/// # Blocklisted
/// If somebody blocklists this client, operations end with [`Removed`](ringfab_block::BlockError::Removed), and the
/// next look fails and says so. The looks after it connect as another client. Cores go on with that when the image is
/// reopened, and not before: whoever has blocklisted this client may be serving the image.
#[derive(Debug)]
pub struct RbdDriver {
    cluster: Arc<Cluster>,
    spec: ImageSpec,
    read_only: bool,
    shared: Arc<Shared>,
    /// Started with the first look.
    keeper: Mutex<Option<Arc<Keeper>>>,
}

impl RbdDriver {
    /// A driver of an image. Nothing is done before the first [`look`](Driver::look). A snapshot is read only in any
    /// case.
    pub fn new(cluster: Arc<Cluster>, spec: ImageSpec, read_only: bool) -> Self {
        Self { cluster, spec, read_only, shared: Arc::default(), keeper: Mutex::default() }
    }

    /// Which image it serves.
    pub fn spec(&self) -> &ImageSpec {
        &self.spec
    }

    /// The same as [`look`](Driver::look), with an error of this crate.
    ///
    /// # Errors
    /// Why the image cannot be served now.
    pub fn try_look(&self) -> Result<Seen, RbdError> {
        self.keeper()?.look()
    }

    fn keeper(&self) -> Result<Arc<Keeper>, RbdError> {
        let mut keeper = self.keeper.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(keeper) = &*keeper {
            return Ok(Arc::clone(keeper));
        }
        let started = Keeper::start(|closer| Looker {
            cluster: Arc::clone(&self.cluster),
            spec: self.spec.clone(),
            read_only: self.read_only,
            shared: Arc::clone(&self.shared),
            closer,
            pool: None,
            image: None,
        });
        let started = started.map_err(|error| {
            RbdError::failed("starting a thread for an image", error.raw_os_error().unwrap_or(libc::EAGAIN))
        })?;
        let started = Arc::clone(keeper.insert(Arc::new(started)));
        let user: Weak<dyn User> = Arc::<Keeper>::downgrade(&started);
        self.cluster.add_user(user);
        Ok(started)
    }
}

impl Driver for RbdDriver {
    fn name(&self) -> String {
        format!("rbd:{}", self.spec)
    }

    fn look(&self) -> io::Result<Seen> {
        let seen = self.try_look();
        self.shared.note_look(seen.as_ref().err().map(RbdError::to_string));
        Ok(seen?)
    }

    fn fault(&self) -> Option<String> {
        self.shared.fault()
    }

    fn details(&self) -> Vec<Detail> {
        self.shared.details()
    }

    fn open(&self, reactor: &mut Reactor, tokens: DiskTokens) -> Result<Box<dyn BlockDevice>, OpenError> {
        let read_only = self.read_only || self.spec.snapshot().is_some();
        let device = RbdDevice::open(&self.shared, read_only, reactor, tokens);
        let device = device.map_err(|reason| OpenError::Device { name: self.name(), reason })?;
        Ok(Box::new(device))
    }
}

/// Looks at an image once, for whoever checks a configuration, and says in a sentence what is there. It waits as long
/// as a look may take, and leaves nothing open: what it closes goes on in the background.
///
/// # Errors
/// Why the image cannot be served now, as a sentence.
pub fn check(cluster: &Arc<Cluster>, spec: &ImageSpec, read_only: bool) -> Result<String, RbdError> {
    let driver = RbdDriver::new(Arc::clone(cluster), spec.clone(), read_only);
    let seen = driver.try_look()?;
    let details = driver.details();
    let detail = |name: &str| {
        let found = details.iter().find(|detail| detail.name == name);
        found.map_or_else(|| "unknown".to_owned(), |detail| detail.text.clone())
    };
    Ok(format!(
        "rbd:{} is image {} of cluster {}: {} bytes, features {}",
        visible(spec),
        detail("image"),
        detail("cluster"),
        seen.bytes.unwrap_or_default(),
        detail("features"),
    ))
}
