//! Open devices: what they can do, and what they report of their own accord.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};

use rdma_sys as ffi;

use super::{check, check_code, set_nonblocking};

/// Linux's driver for iWARP in software, which differs from cards in three ways. The sink of its READs needs no remote
/// right; its library has no SEND with Invalidate; and memory of a request whose completion is not asked for stays with
/// the network stack even when a later request has completed.
const SIW_VENDOR: u32 = 0x0062_6d74;
/// Linux's driver for RoCE in software, which looks at a window's key and rights, but not at where it ends.
const RXE_VENDOR: u32 = 0x00ff_ffff;
/// `device_cap_flags`: memory windows of type 2A and 2B, which a work request binds and a peer can invalidate.
const MEMORY_WINDOW_TYPE_2: u32 = 1 << 23 | 1 << 24;

/// An open device. librdmacm opened it and keeps it open while an identifier is bound to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Context(pub(super) NonNull<ffi::ibv_context>);

// SAFETY: libibverbs is thread-safe; this is only the device's name.
unsafe impl Send for Context {}

/// Makes librdmacm close removed devices that nothing uses any more. It keeps a device open that was ever used, and
/// looks for removed ones only when it is asked for all devices.
pub(crate) fn close_removed_devices() {
    let mut count = 0;
    // SAFETY: the count is written; the list is given back below, and nothing of it is used.
    let list = unsafe { ffi::rdma_get_devices(&raw mut count) };
    if !list.is_null() {
        // SAFETY: the list is the one that was got, given back once.
        unsafe { ffi::rdma_free_devices(list) };
    }
}

/// What a device can do.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DeviceLimits {
    pub(crate) send_requests: u32,
    pub(crate) completions: u32,
    /// Receives of a shared receive queue; zero when there is none.
    pub(crate) shared_receives: u32,
    /// READs of a peer outstanding at us.
    pub(crate) responder_resources: u8,
    /// READs of ours outstanding at a peer.
    pub(crate) initiator_depth: u8,
    /// Whether there are memory windows of type 2.
    pub(crate) windows: bool,
    /// Whether an access through a window is kept to the window's bounds.
    pub(crate) bounded_windows: bool,
    /// Whether it speaks iWARP: no receiver-not-ready, and a READ's sink is written as by a peer.
    pub(crate) iwarp: bool,
    /// Whether the sink of a READ must allow remote writes.
    pub(crate) writable_sinks: bool,
    /// Whether a SEND can invalidate a key of the peer's.
    pub(crate) sends_invalidate: bool,
    /// Whether the memory of a request is free only with its own completion.
    pub(crate) own_completions: bool,
}

impl Context {
    pub(crate) fn limits(self) -> io::Result<DeviceLimits> {
        // SAFETY: all zeroes is a valid value; the context is open.
        let mut attributes: ffi::ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: as above; the call fills the structure.
        check_code(unsafe { ffi::ibv_query_device(self.0.as_ptr(), &raw mut attributes) })?;
        let byte = |count: i32| count.clamp(0, 255) as u8;
        let count = |count: i32| u32::try_from(count).unwrap_or(0);
        // SAFETY: the device of an open context lives.
        let transport = unsafe { (*self.0.as_ref().device).transport_type };
        let iwarp = transport == ffi::ibv_transport_type::IBV_TRANSPORT_IWARP;
        let windows = attributes.device_cap_flags & MEMORY_WINDOW_TYPE_2 != 0 && attributes.max_mw > 0;
        Ok(DeviceLimits {
            send_requests: count(attributes.max_qp_wr),
            completions: count(attributes.max_cqe),
            shared_receives: if attributes.max_srq > 0 { count(attributes.max_srq_wr) } else { 0 },
            responder_resources: byte(attributes.max_qp_rd_atom),
            initiator_depth: byte(attributes.max_qp_init_rd_atom),
            windows,
            bounded_windows: attributes.vendor_id != RXE_VENDOR,
            iwarp,
            writable_sinks: iwarp && attributes.vendor_id != SIW_VENDOR,
            sends_invalidate: attributes.vendor_id != SIW_VENDOR,
            own_completions: attributes.vendor_id == SIW_VENDOR,
        })
    }

    pub(crate) fn name(self) -> String {
        // SAFETY: the device of an open context lives, and its name is a constant string.
        unsafe { CStr::from_ptr(ffi::ibv_get_device_name(self.0.as_ref().device)) }
            .to_string_lossy()
            .into_owned()
    }

    /// Readable when the device itself has an event.
    pub(crate) fn events<'a>(self) -> BorrowedFd<'a> {
        // SAFETY: whoever looks at it keeps the device open meanwhile.
        unsafe { BorrowedFd::borrow_raw(self.0.as_ref().async_fd) }
    }

    /// Makes [`Context::next_async_event`] return at once when there is none.
    pub(crate) fn make_events_nonblocking(self) -> io::Result<()> {
        set_nonblocking(self.events().as_raw_fd())
    }

    /// The next event of the device itself.
    pub(crate) fn next_async_event(self) -> io::Result<AsyncEvent> {
        // The library's structure holds an enumeration; a newer kernel's event would be none of its values, so it is
        // read into one of the same layout with a plain number.
        #[repr(C)]
        struct Raw {
            element: *mut libc::c_void,
            kind: u32,
        }
        const { assert!(size_of::<Raw>() == size_of::<ffi::ibv_async_event>()) };
        let mut raw = Raw { element: ptr::null_mut(), kind: 0 };
        // SAFETY: the context is open, and the structure has the library's layout.
        check(unsafe { ffi::ibv_get_async_event(self.0.as_ptr(), (&raw mut raw).cast()) })?;
        let kind = AsyncEventKind::from_raw(raw.kind);
        let queue_pair = (kind == AsyncEventKind::QueuePair).then(|| {
            // SAFETY: an event of this kind names a queue pair, which lives until the event is acknowledged.
            unsafe { (*raw.element.cast::<ffi::ibv_qp>()).qp_num }
        });
        // SAFETY: the event is the one that was read, acknowledged once.
        unsafe { ffi::ibv_ack_async_event((&raw mut raw).cast()) };
        Ok(AsyncEvent { kind, number: raw.kind, queue_pair })
    }
}

/// What a device reports of its own accord.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AsyncEvent {
    pub(crate) kind: AsyncEventKind,
    /// The library's number of it, for the log.
    pub(crate) number: u32,
    pub(crate) queue_pair: Option<u32>,
}

/// The kinds that are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AsyncEventKind {
    /// A queue pair has failed, or its peer reached for what it may not.
    QueuePair,
    /// A completion queue has overrun, or the device has died: nothing on it works any more.
    Device,
    PortDown,
    PortUp,
    Other,
}

impl AsyncEventKind {
    fn from_raw(number: u32) -> Self {
        use ffi::ibv_event_type as event;
        const CQ_ERR: u32 = event::IBV_EVENT_CQ_ERR as u32;
        const QP_FATAL: u32 = event::IBV_EVENT_QP_FATAL as u32;
        const QP_REQ_ERR: u32 = event::IBV_EVENT_QP_REQ_ERR as u32;
        const QP_ACCESS_ERR: u32 = event::IBV_EVENT_QP_ACCESS_ERR as u32;
        const DEVICE_FATAL: u32 = event::IBV_EVENT_DEVICE_FATAL as u32;
        const PORT_ACTIVE: u32 = event::IBV_EVENT_PORT_ACTIVE as u32;
        const PORT_ERR: u32 = event::IBV_EVENT_PORT_ERR as u32;
        match number {
            QP_FATAL | QP_REQ_ERR | QP_ACCESS_ERR => Self::QueuePair,
            CQ_ERR | DEVICE_FATAL => Self::Device,
            PORT_ERR => Self::PortDown,
            PORT_ACTIVE => Self::PortUp,
            _ => Self::Other,
        }
    }
}
