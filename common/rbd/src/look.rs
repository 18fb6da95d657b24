//! One look at an image: connects, finds the image that has the name now, opens it if it is another one than before,
//! and says what it is. All of this may wait, and is done by one thread at a time.

use std::ffi::CString;
use std::sync::Arc;

use ringfab_base::visible;
use ringfab_block::{Detail, DeviceIdentity, Seen};

use crate::native::{Closer, Connection, Errno, Image, ImageName, LockOwner, Pool};
use crate::shared::Shared;
use crate::{Cluster, ImageSpec, RbdError};

/// The features by their bits, as `rbd info` has them.
const FEATURES: [&str; 12] = [
    "layering",
    "striping",
    "exclusive-lock",
    "object-map",
    "fast-diff",
    "deep-flatten",
    "journaling",
    "data-pool",
    "operations",
    "migrating",
    "non-primary",
    "dirty-cache",
];

/// The bit of the exclusive lock.
const EXCLUSIVE_LOCK: u64 = 1 << 2;

/// Who looks at one image, and what the last look has left.
pub(crate) struct Looker {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) spec: ImageSpec,
    pub(crate) read_only: bool,
    pub(crate) shared: Arc<Shared>,
    pub(crate) closer: Closer,
    pub(crate) pool: Option<Arc<Pool>>,
    pub(crate) image: Option<Arc<Image>>,
}

impl Looker {
    /// Looks at the image.
    pub(crate) fn look(&mut self) -> Result<Seen, RbdError> {
        let seen = self.find();
        if matches!(seen, Err(RbdError::Blocklisted)) {
            self.forget_client();
        }
        // What was looked up by a name may have another one by now, or none: all is looked up anew.
        if seen.is_err() {
            self.pool = None;
        }
        seen
    }

    fn find(&mut self) -> Result<Seen, RbdError> {
        let connection = match &self.image {
            // Another image of the same client may have found out.
            Some(image) if image.connection().is_blocklisted() => return Err(RbdError::Blocklisted),
            Some(image) => Arc::clone(image.connection()),
            None => self.cluster.connect()?,
        };
        let pool = self.pool(&connection)?;
        let name = self.name(&pool)?;
        let image = self.image(&pool, &name)?;
        let bytes = image.bytes().map_err(|errno| self.explain(errno))?;
        if bytes == 0 {
            return Err(RbdError::Empty { image: self.spec.path() });
        }
        self.shared.set_found(self.details(&image));
        Ok(Seen::default().with_bytes(bytes).with_identity(self.identity(&image)))
    }

    /// The next look connects as another client. The cores keep the image of this one until somebody reopens it:
    /// whoever has blocklisted this client may serve the image now.
    fn forget_client(&mut self) {
        self.shared.note_fenced();
        if let Some(image) = self.image.take() {
            image.connection().note_blocklisted();
            self.cluster.forget(image.connection());
        } else if let Some(pool) = &self.pool {
            pool.connection().note_blocklisted();
            self.cluster.forget(pool.connection());
        }
    }

    fn pool(&mut self, connection: &Arc<Connection>) -> Result<Arc<Pool>, RbdError> {
        if let Some(pool) = self.pool.as_ref().filter(|pool| Arc::ptr_eq(pool.connection(), connection)) {
            return Ok(Arc::clone(pool));
        }
        let namespace = self.spec.namespace().map(c_string);
        let pool = Pool::open(connection, &c_string(self.spec.pool()), namespace.as_deref());
        let pool = Arc::new(pool.map_err(|errno| match errno {
            Errno(libc::ENOENT) => RbdError::MissingPool { pool: self.spec.pool().to_owned() },
            errno => self.explain(errno),
        })?);
        Ok(Arc::clone(self.pool.insert(pool)))
    }

    /// The identifier of the image that has the name now.
    fn name(&self, pool: &Pool) -> Result<ImageName, RbdError> {
        match pool.image_id(self.spec.image()) {
            Ok(id) => Ok(ImageName { id, snapshot: self.spec.snapshot().map(c_string) }),
            Err(Errno(libc::ENOENT)) => Err(self.missing_image(pool)),
            Err(errno) => Err(self.explain(errno)),
        }
    }

    fn missing_image(&self, pool: &Pool) -> RbdError {
        match self.spec.namespace() {
            Some(namespace) if pool.has_namespace(&c_string(namespace)) == Ok(false) => {
                RbdError::MissingNamespace {
                    pool: self.spec.pool().to_owned(),
                    namespace: namespace.to_owned(),
                }
            }
            _ => RbdError::MissingImage { image: self.spec.path() },
        }
    }

    /// The image of a name, which is opened unless it is open.
    fn image(&mut self, pool: &Arc<Pool>, name: &ImageName) -> Result<Arc<Image>, RbdError> {
        if let Some(image) = &self.image
            && self.is_still(image, name)?
        {
            return Ok(Arc::clone(image));
        }
        let image = Arc::new(self.open(pool, name)?);
        self.shared.set_latest(&image);
        Ok(Arc::clone(self.image.insert(image)))
    }

    /// Whether an open image is what has the name now, and tells what changes of it.
    fn is_still(&self, image: &Image, name: &ImageName) -> Result<bool, RbdError> {
        let facts = image.facts();
        if facts.id != name.id || !facts.watched {
            // What has no watch is opened anew for each look: it does not hear of anything.
            return Ok(false);
        }
        let Some(snapshot) = &name.snapshot else { return Ok(true) };
        match image.snapshot_id(snapshot) {
            Ok(id) => Ok(Some(id) == facts.snapshot),
            Err(Errno(libc::ENOENT)) => Err(self.missing_snapshot()),
            Err(errno) => Err(self.explain(errno)),
        }
    }

    /// With a watch, so that the library hears of changes, if the user may have one: that is a write. Without, an
    /// image that is only read can still be.
    fn open(&self, pool: &Arc<Pool>, name: &ImageName) -> Result<Image, RbdError> {
        let reads = self.read_only || name.snapshot.is_some();
        let image = match Image::open(pool, name, true, &self.closer) {
            Err(Errno(libc::EPERM | libc::EACCES | libc::EROFS)) if reads => {
                Image::open(pool, name, false, &self.closer)
            }
            opened => opened,
        };
        image.map_err(|errno| match errno {
            Errno(libc::ENOENT) if name.snapshot.is_some() => self.missing_snapshot(),
            errno => self.explain(errno),
        })
    }

    fn missing_snapshot(&self) -> RbdError {
        let snapshot = self.spec.snapshot().unwrap_or_default().to_owned();
        RbdError::MissingSnapshot { image: self.spec.path(), snapshot }
    }

    /// What has gone wrong with the image.
    fn explain(&self, Errno(errno): Errno) -> RbdError {
        let image = self.spec.path();
        match errno {
            libc::ENOENT => RbdError::MissingImage { image },
            libc::EPERM | libc::EACCES => {
                RbdError::NotAllowed { user: self.cluster.config().user_name(), what: format!("rbd:{image}") }
            }
            libc::ENOSYS | libc::EOPNOTSUPP => RbdError::UnsupportedFeature { image },
            libc::ESHUTDOWN => RbdError::Blocklisted,
            errno => RbdError::failed(format!("looking at {}", visible(&image)), errno),
        }
    }

    /// What it knows itself by: the cluster, the pool, the namespace, the image, and when that was made.
    fn identity(&self, image: &Image) -> DeviceIdentity {
        let (facts, pool) = (image.facts(), image.pool());
        let mut words = vec!["rbd".to_owned(), image.connection().fsid().to_owned(), pool.id().to_string()];
        words.extend(self.spec.namespace().map(|namespace| format!("[{namespace}]")));
        words.push(facts.id.clone());
        words.extend(facts.snapshot.map(|snapshot| format!("@{snapshot}")));
        let (seconds, nanoseconds) = facts.created;
        words.push(format!("{seconds}.{nanoseconds:09}"));
        DeviceIdentity::new(words.join(" "))
    }

    /// What people are shown of it. What the cluster does not say is left out.
    fn details(&self, image: &Image) -> Vec<Detail> {
        let (facts, connection) = (image.facts(), image.connection());
        let conf = self.cluster.config().conf_path();
        let mut details = vec![
            Detail::new("cluster", format!("{} ({})", connection.fsid(), visible(conf.display()))),
            Detail::new(
                "client",
                format!("{} as {}", connection.client(), self.cluster.config().user_name()),
            ),
            Detail::new("image", facts.id.clone()),
            Detail::new("features", features(facts.features)),
            Detail::new("object size", facts.object_bytes.to_string()),
        ];
        if facts.stripe_count > 1 {
            let stripes = format!("{} bytes over {} objects", facts.stripe_unit, facts.stripe_count);
            details.push(Detail::new("stripes", stripes));
        }
        if let (Some(name), Some(id)) = (self.spec.snapshot(), facts.snapshot) {
            details.push(Detail::new("snapshot", format!("{} ({id})", visible(name))));
        }
        let of_parent = image.bytes_of_parent().ok();
        details.extend(of_parent.map(|bytes| Detail::new("clone", clone_text(bytes))));
        if facts.features & EXCLUSIVE_LOCK != 0 {
            details.extend(image.lock_owner().ok().map(|owner| Detail::new("lock", lock_text(&owner))));
        }
        if facts.cached {
            let text = "rbd_cache is set for the image or its pool: writes are safe only after a flush";
            details.push(Detail::new("cache", text));
        }
        if !facts.watched {
            details.push(Detail::new("watch", "none: the key may only read"));
        }
        details
    }
}

fn clone_text(bytes_of_parent: u64) -> String {
    match bytes_of_parent {
        0 => "no".to_owned(),
        bytes => format!("yes: up to {bytes} bytes are its parent's"),
    }
}

fn lock_text(owner: &LockOwner) -> String {
    match owner {
        LockOwner::Nobody => "nobody".to_owned(),
        LockOwner::Own => "this target".to_owned(),
        LockOwner::Other(owner) => visible(owner).to_string(),
    }
}

/// The names of features; the numbers of those that are newer than this list.
fn features(bits: u64) -> String {
    let names =
        (0..u64::BITS as usize).filter(|bit| bits >> bit & 1 != 0).map(|bit| match FEATURES.get(bit) {
            Some(name) => (*name).to_owned(),
            None => format!("feature {bit}"),
        });
    let names: Vec<String> = names.collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// A part of an image's name, which has no zero: it was parsed.
fn c_string(name: &str) -> CString {
    CString::new(name).expect("names are parsed, and have no control characters")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_shown_by_their_names_and_newer_ones_by_their_bits() {
        assert_eq!(features(0), "none");
        assert_eq!(features(0b101), "layering, exclusive-lock");
        assert_eq!(features(1 << 11 | 1 << 12), "dirty-cache, feature 12");
    }

    #[test]
    fn who_has_the_lock_and_whether_there_is_a_parent_is_said_in_words() {
        assert_eq!(lock_text(&LockOwner::Own), "this target");
        assert_eq!(lock_text(&LockOwner::Other("client.4151\n".to_owned())), "client.4151\\n");
        assert_eq!(
            (clone_text(0), clone_text(512)),
            ("no".to_owned(), "yes: up to 512 bytes are its parent's".to_owned())
        );
    }
}
