//! librados and librbd, loaded when they are first needed, so that a program starts on a machine without them.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use libc::{size_t, ssize_t, timespec};

use crate::RbdError;

/// A handle of a cluster (`rados_t`).
pub(super) type RawCluster = *mut c_void;
/// A pool as a user of it sees it (`rados_ioctx_t`).
pub(super) type RawPool = *mut c_void;
/// An open image (`rbd_image_t`).
pub(super) type RawImage = *mut c_void;
/// What says that a call is done (`rbd_completion_t`).
pub(super) type RawCompletion = *mut c_void;
/// What a completion calls, on a thread of the library, with the argument that it was made with.
pub(super) type Callback = extern "C" fn(RawCompletion, *mut c_void);

/// An option of an image and where its value comes from (`rbd_config_option_t`).
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct RawOption {
    pub(super) name: *mut c_char,
    pub(super) value: *mut c_char,
    pub(super) source: c_int,
}

/// What librbd tells of an image (`rbd_image_info_t`).
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct RawInfo {
    pub(super) size: u64,
    pub(super) object_bytes: u64,
    pub(super) objects: u64,
    pub(super) order: c_int,
    pub(super) block_name_prefix: [c_char; 24],
    pub(super) parent_pool: i64,
    pub(super) parent_name: [c_char; 96],
}

/// A negative answer of a library, as the positive number of the system's error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) i32);

/// What a library answers, where only negative values are errors.
pub(super) fn check(answer: c_int) -> Result<c_int, Errno> {
    if answer < 0 { Err(Errno(-answer)) } else { Ok(answer) }
}

const RADOS: &CStr = c"librados.so.2";
const RBD: &CStr = c"librbd.so.1";

/// Defines a table of functions, and how it is filled from a library.
macro_rules! functions {
    ($(#[$doc:meta])* $table:ident from $library:expr; $($name:ident($($argument:ty),*) $(-> $result:ty)?;)*) => {
        $(#[$doc])*
        pub(super) struct $table {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl $table {
            fn load() -> Result<Self, RbdError> {
                let library = Loaded::load($library)?;
                Ok(Self {
                    $($name: {
                        let symbol = library.symbol(stringify!($name))?;
                        // SAFETY: the symbol is the function of this name, which stays as long as the process, since
                        // nobody unloads the library. Its signature is that of the library's header, whose functions
                        // do not change within a version of the file's name (`.so.1`).
                        unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) $(-> $result)?>(
                                symbol,
                            )
                        }
                    },)*
                })
            }
        }
    };
}

functions! {
    /// Of `rados/librados.h`.
    Rados from RADOS;
    rados_create2(*mut RawCluster, *const c_char, *const c_char, u64) -> c_int;
    rados_conf_read_file(RawCluster, *const c_char) -> c_int;
    rados_conf_set(RawCluster, *const c_char, *const c_char) -> c_int;
    rados_conf_get(RawCluster, *const c_char, *mut c_char, size_t) -> c_int;
    rados_connect(RawCluster) -> c_int;
    rados_shutdown(RawCluster);
    rados_cluster_fsid(RawCluster, *mut c_char, size_t) -> c_int;
    rados_get_instance_id(RawCluster) -> u64;
    rados_ioctx_create(RawCluster, *const c_char, *mut RawPool) -> c_int;
    rados_ioctx_destroy(RawPool);
    rados_ioctx_set_namespace(RawPool, *const c_char);
    rados_ioctx_get_id(RawPool) -> i64;
    rados_set_pool_full_try(RawPool);
    rados_exec(
        RawPool, *const c_char, *const c_char, *const c_char, *const c_char, size_t, *mut c_char, size_t
    ) -> c_int;
}

functions! {
    /// Of `rbd/librbd.h`.
    Rbd from RBD;
    rbd_namespace_exists(RawPool, *const c_char, *mut bool) -> c_int;
    rbd_open_by_id(RawPool, *const c_char, *mut RawImage, *const c_char) -> c_int;
    rbd_open_by_id_read_only(RawPool, *const c_char, *mut RawImage, *const c_char) -> c_int;
    rbd_aio_close(RawImage, RawCompletion) -> c_int;
    rbd_stat(RawImage, *mut RawInfo, size_t) -> c_int;
    rbd_get_size(RawImage, *mut u64) -> c_int;
    rbd_get_features(RawImage, *mut u64) -> c_int;
    rbd_get_stripe_unit(RawImage, *mut u64) -> c_int;
    rbd_get_stripe_count(RawImage, *mut u64) -> c_int;
    rbd_get_create_timestamp(RawImage, *mut timespec) -> c_int;
    rbd_get_overlap(RawImage, *mut u64) -> c_int;
    rbd_snap_get_id(RawImage, *const c_char, *mut u64) -> c_int;
    rbd_is_exclusive_lock_owner(RawImage, *mut c_int) -> c_int;
    rbd_lock_get_owners(RawImage, *mut c_int, *mut *mut c_char, *mut size_t) -> c_int;
    rbd_lock_get_owners_cleanup(*mut *mut c_char, size_t);
    rbd_config_image_list(RawImage, *mut RawOption, *mut c_int) -> c_int;
    rbd_config_image_list_cleanup(*mut RawOption, c_int);
    rbd_aio_create_completion(*mut c_void, Callback, *mut RawCompletion) -> c_int;
    rbd_aio_get_return_value(RawCompletion) -> ssize_t;
    rbd_aio_release(RawCompletion);
    rbd_aio_read(RawImage, u64, size_t, *mut c_char, RawCompletion) -> c_int;
    rbd_aio_write2(RawImage, u64, size_t, *const c_char, RawCompletion, c_int) -> c_int;
    rbd_aio_flush(RawImage, RawCompletion) -> c_int;
    rbd_aio_discard(RawImage, u64, u64, RawCompletion) -> c_int;
    rbd_aio_write_zeroes(RawImage, u64, size_t, RawCompletion, c_int, c_int) -> c_int;
    rbd_aio_compare_and_write(
        RawImage, u64, size_t, *const c_char, *const c_char, RawCompletion, *mut u64, c_int
    ) -> ssize_t;
}

/// The functions of both libraries.
pub(crate) struct Library {
    pub(super) rados: Rados,
    pub(super) rbd: Rbd,
    /// Whether it compares and writes more than a sector at once.
    compares_stripes: bool,
}

static LIBRARY: Mutex<Option<&'static Library>> = Mutex::new(None);

impl Library {
    /// Loads the libraries, unless they are. They stay until the process ends: threads of theirs may run as long. What
    /// was missing is looked for again at the next call.
    ///
    /// # Errors
    /// Which file, or which function of it, is missing.
    pub(crate) fn load() -> Result<&'static Self, RbdError> {
        let mut library = LIBRARY.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(library) = *library {
            return Ok(library);
        }
        // The larger one first: it brings the other with it, in the version that it was built for.
        let rbd = Rbd::load()?;
        let rados = Rados::load()?;
        end_without_destructors();
        // Its limit went away shortly before this function came, in Ceph 18. No version number says so.
        let compares_stripes = Loaded::load(RBD)?.symbol("rbd_aio_compare_and_writev").is_ok();
        Ok(library.insert(Box::leak(Box::new(Self { rados, rbd, compares_stripes }))))
    }

    /// Whether it compares and writes what lies in one stripe unit, and not only in one sector of 512 bytes.
    pub(crate) fn compares_stripes(&self) -> bool {
        self.compares_stripes
    }
}

/// Clients that the library works for.
static CLIENTS: AtomicUsize = AtomicUsize::new(0);

/// The library has threads for one more client, or for one less.
pub(super) fn count_client(is_there: bool) {
    if is_there {
        CLIENTS.fetch_add(1, Ordering::Relaxed);
    } else {
        CLIENTS.fetch_sub(1, Ordering::Relaxed);
    }
}

unsafe extern "C" {
    /// Of glibc, which the libraries are built for: as `atexit`, with the status of the process.
    fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

/// A process that ends while the library has threads would crash now and then: they use what the library's destructors
/// take away. So they do not run then. This is registered after the library was loaded, and therefore runs before
/// them.
fn end_without_destructors() {
    // SAFETY: the function is there until the end of the process, and needs no argument.
    let registered = unsafe { on_exit(end_now, std::ptr::null_mut()) };
    if registered != 0 {
        tracing::debug!("the end of the process runs the destructors of librados in any case");
    }
}

extern "C" fn end_now(status: c_int, _: *mut c_void) {
    if CLIENTS.load(Ordering::Relaxed) > 0 {
        // SAFETY: it ends the process, as was asked for. Rust has flushed its streams before.
        unsafe { libc::_exit(status) };
    }
}

/// A library that stays loaded.
struct Loaded {
    file: &'static CStr,
    handle: *mut c_void,
}

impl Loaded {
    fn load(file: &'static CStr) -> Result<Self, RbdError> {
        // SAFETY: the name is a C string. What the library does when it is loaded is what it does in every program
        // that is linked with it; no lock is held that it could need.
        let handle = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(RbdError::LibraryMissing { library: text(file), reason: loader_says() });
        }
        Ok(Self { file, handle })
    }

    fn symbol(&self, name: &str) -> Result<*mut c_void, RbdError> {
        let function = CString::new(name).expect("an identifier has no zero byte");
        // SAFETY: the handle is of a library that is never unloaded, and the name is a C string.
        let symbol = unsafe { libc::dlsym(self.handle, function.as_ptr()) };
        if symbol.is_null() {
            return Err(RbdError::LibraryTooOld { library: text(self.file), function: name.to_owned() });
        }
        Ok(symbol)
    }
}

fn text(file: &'static CStr) -> &'static str {
    file.to_str().expect("the names above are ASCII")
}

/// What the loader had to say last, on this thread.
fn loader_says() -> String {
    // SAFETY: it takes nothing, and gives a C string that stays until this thread calls the loader again.
    let message = unsafe { libc::dlerror() };
    if message.is_null() {
        return "the loader gives no reason".to_owned();
    }
    // SAFETY: as above; it is copied before anything else happens on this thread.
    unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_named_with_the_package_that_has_it() {
        let Err(error) = Loaded::load(c"librbd.so.999") else { panic!("there is no such version") };
        let text = error.to_string();
        assert!(text.starts_with("librbd.so.999 cannot be loaded (librbd.so.999: cannot open"), "{text}");
        assert!(text.ends_with("install it, on Debian with the package librbd1"), "{text}");
    }

    #[test]
    fn a_function_that_is_not_there_is_named() {
        let library = Loaded::load(c"libc.so.6").expect("every process has it");
        let error = library.symbol("rbd_from_the_future").expect_err("it has no such function");
        let text = error.to_string();
        assert_eq!(text, "libc.so.6 is too old: it has no rbd_from_the_future; Ceph 16 or later is needed");
    }
}
