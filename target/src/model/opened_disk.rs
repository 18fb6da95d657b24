//! What the cores have of a namespace's disk: who opens it says so, and the control side and admin commands ask. The
//! data path does not.

use std::fs::File;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use ringfab_block::{DeviceIdentity, DiskProperties};

/// What the cores have of a disk.
#[derive(Debug, Default)]
pub(crate) struct OpenedDisk(Mutex<Parts>);

#[derive(Debug, Default)]
struct Parts {
    /// Its file, as long as it is open.
    file: Weak<File>,
    identity: Option<DeviceIdentity>,
    properties: Option<DiskProperties>,
}

impl OpenedDisk {
    /// The file, where it is one that is served.
    pub(crate) fn file(&self) -> Option<Arc<File>> {
        self.parts().file.upgrade()
    }

    /// It is this file from now on.
    pub(crate) fn set_file(&self, file: &Arc<File>) {
        self.parts().file = Arc::downgrade(file);
    }

    /// What the device knew itself by when the cores got it, or were about to; none if it did not tell.
    pub(crate) fn identity(&self) -> Option<DeviceIdentity> {
        self.parts().identity.clone()
    }

    /// The cores get a device that knows itself by this.
    pub(crate) fn set_identity(&self, identity: Option<DeviceIdentity>) {
        self.parts().identity = identity;
    }

    /// What it can do and what it likes, once a core has opened it.
    pub(crate) fn properties(&self) -> Option<DiskProperties> {
        self.parts().properties
    }

    /// A core has opened a disk that can do this. What the size is by now, the namespace knows.
    pub(crate) fn set_properties(&self, properties: DiskProperties) {
        self.parts().properties = Some(properties);
    }

    fn parts(&self) -> MutexGuard<'_, Parts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
