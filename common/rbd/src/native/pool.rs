//! A pool and a namespace in it, where images are looked up.

use std::ffi::{CStr, CString, c_char};
use std::fmt;
use std::sync::Arc;

use super::connection::Connection;
use super::library::{Errno, RawPool, check};

/// The most bytes of an image's identifier. librbd makes them of 64 bits and some random ones.
const ID_BYTES_MAX: usize = 256;

/// A user of a pool. It holds its connection.
pub(crate) struct Pool {
    connection: Arc<Connection>,
    raw: RawPool,
    id: i64,
}

// SAFETY: librados locks what several threads use of a pool. What is not locked, its namespace, is set before anybody
// else has it.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

impl Pool {
    /// The pool with this name, and the namespace in it that all images are looked up in. This waits for a monitor if
    /// the client does not know the pool yet.
    ///
    /// # Errors
    /// `ENOENT` when there is no such pool.
    pub(crate) fn open(
        connection: &Arc<Connection>,
        name: &CStr,
        namespace: Option<&CStr>,
    ) -> Result<Self, Errno> {
        let (rados, mut raw) = (&connection.library().rados, std::ptr::null_mut());
        // SAFETY: the connection is there, and the handle is written to `raw`.
        check(unsafe { (rados.rados_ioctx_create)(connection.raw(), name.as_ptr(), &raw mut raw) })?;
        // SAFETY: the pool is there, and its connection is held below.
        let id = unsafe { (rados.rados_ioctx_get_id)(raw) };
        let pool = Self { connection: Arc::clone(connection), raw, id };
        if let Some(namespace) = namespace {
            // SAFETY: as above; the name is copied.
            unsafe { (rados.rados_ioctx_set_namespace)(raw, namespace.as_ptr()) };
        }
        // A write that finds no space waits until there is some, unless it may fail. Who waits for ever is of no use
        // to a host, which would rather hear of it. SAFETY: as above.
        unsafe { (rados.rados_set_pool_full_try)(raw) };
        Ok(pool)
    }

    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    pub(super) fn raw(&self) -> RawPool {
        self.raw
    }

    /// The pool's number in the cluster.
    pub(crate) fn id(&self) -> i64 {
        self.id
    }

    /// Whether the pool has a namespace. This waits for the storage daemons as long as they like.
    ///
    /// # Errors
    /// What they answer.
    pub(crate) fn has_namespace(&self, name: &CStr) -> Result<bool, Errno> {
        let (rbd, mut exists) = (&self.connection.library().rbd, false);
        // SAFETY: the pool is there; the answer is written to `exists`, as 0 or 1.
        check(unsafe { (rbd.rbd_namespace_exists)(self.raw, name.as_ptr(), &raw mut exists) })?;
        Ok(exists)
    }

    /// The identifier of the image that has this name now: one read of one small object, by the method that every
    /// client of RBD uses for it. This waits for the storage daemons as long as they like.
    ///
    /// # Errors
    /// `ENOENT` when there is no such image; what they answer.
    pub(crate) fn image_id(&self, image: &str) -> Result<String, Errno> {
        let object = CString::new(format!("rbd_id.{image}")).map_err(|_| Errno(libc::EINVAL))?;
        let mut answer = vec![0_u8; ID_BYTES_MAX];
        // SAFETY: the pool is there, the names are C strings, there is no input, and no more bytes are written than
        // the answer has room for.
        let bytes = check(unsafe {
            (self.connection.library().rados.rados_exec)(
                self.raw,
                object.as_ptr(),
                c"rbd".as_ptr(),
                c"get_id".as_ptr(),
                std::ptr::null(),
                0,
                answer.as_mut_ptr().cast::<c_char>(),
                answer.len(),
            )
        })?;
        string_of(answer.get(..bytes as usize).unwrap_or_default()).ok_or(Errno(libc::EIO))
    }
}

/// A string in Ceph's encoding: its length in four bytes, the lowest first, and its bytes.
fn string_of(encoded: &[u8]) -> Option<String> {
    let (length, rest) = encoded.split_first_chunk::<4>()?;
    let bytes = rest.get(..u32::from_le_bytes(*length) as usize)?;
    let text = std::str::from_utf8(bytes).ok()?;
    (!text.is_empty()).then(|| text.to_owned())
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("id", &self.id).finish_non_exhaustive()
    }
}

/// It waits for nothing: what is still in flight keeps what it needs.
impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: nobody has the pool any more; open images have it for as long as they are open.
        unsafe { (self.connection.library().rados.rados_ioctx_destroy)(self.raw) };
    }
}

#[cfg(test)]
mod tests {
    use super::string_of;

    #[test]
    fn an_identifier_is_read_with_its_length_and_nothing_beyond_the_answer_is() {
        assert_eq!(string_of(b"\x04\0\0\0abcd").as_deref(), Some("abcd"));
        assert_eq!(string_of(b"\x02\0\0\0abcd").as_deref(), Some("ab"));
        for cut in
            [&b""[..], b"\x04\0\0", b"\x04\0\0\0abc", b"\xff\xff\xff\xffabcd", b"\0\0\0\0", b"\x01\0\0\0\xff"]
        {
            assert_eq!(string_of(cut), None, "{cut:?}");
        }
    }
}
