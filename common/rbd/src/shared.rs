//! What the thread that looks at an image and the cores that serve it tell each other.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringfab_block::Detail;

use crate::native::Image;

/// One image's state. Its locks are held for a moment only, so that cores may open the image, and people be shown it.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// The image that the last look has found.
    latest: Mutex<Option<Arc<Image>>>,
    /// What the last look has found of it.
    found: Mutex<Vec<Detail>>,
    /// Why the last look has failed, if it has.
    fault: Mutex<Option<String>>,
    /// The last error of an operation; 0 before the first.
    last_errno: AtomicI32,
    /// Whether cores have an image of a client that the cluster does nothing for any more.
    is_fenced: AtomicBool,
}

impl Shared {
    /// The image that cores open now.
    pub(crate) fn latest(&self) -> Option<Arc<Image>> {
        lock(&self.latest).clone()
    }

    /// A look has found this image. Cores that have another one keep it until they reopen it.
    pub(crate) fn set_latest(&self, image: &Arc<Image>) {
        let before = lock(&self.latest).replace(Arc::clone(image));
        // Outside of the lock: this may be its end.
        drop(before);
    }

    /// Nobody opens the image any more.
    pub(crate) fn forget_latest(&self) {
        let before = lock(&self.latest).take();
        drop(before);
    }

    /// What the last look has found.
    pub(crate) fn set_found(&self, found: Vec<Detail>) {
        *lock(&self.found) = found;
    }

    /// An operation has failed.
    pub(crate) fn note_error(&self, image: &Image, errno: i32) {
        self.last_errno.store(errno, Ordering::Relaxed);
        if errno == libc::ESHUTDOWN {
            image.connection().note_blocklisted();
            self.note_fenced();
        }
    }

    /// The cluster does nothing any more for the client of an image that cores may have.
    pub(crate) fn note_fenced(&self) {
        self.is_fenced.store(true, Ordering::Relaxed);
    }

    /// A core goes on with the image that was found last.
    pub(crate) fn note_reopened(&self, image: &Image) {
        self.is_fenced.store(image.connection().is_blocklisted(), Ordering::Relaxed);
    }

    /// How the last look has ended.
    pub(crate) fn note_look(&self, error: Option<String>) {
        *lock(&self.fault) = error;
    }

    /// Why the image cannot be reached.
    pub(crate) fn fault(&self) -> Option<String> {
        let fenced = self.is_fenced.load(Ordering::Relaxed).then(|| crate::RbdError::Blocklisted.to_string());
        fenced.or_else(|| lock(&self.fault).clone())
    }

    /// What people are shown.
    pub(crate) fn details(&self) -> Vec<Detail> {
        let mut details = lock(&self.found).clone();
        if self.is_fenced.load(Ordering::Relaxed) {
            details.push(Detail::new("fenced", crate::RbdError::Blocklisted.to_string()));
        }
        let errno = self.last_errno.load(Ordering::Relaxed);
        if errno != 0 {
            details.push(Detail::new("last error", io::Error::from_raw_os_error(errno).to_string()));
        }
        details
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
