//! libibverbs and librdmacm as far as they are used here, behind types that own what they name.
//!
//! Everything that talks to the two libraries is in this file. What they hand out is freed by the `Drop` of its
//! type; the order in which things must be freed (queue pairs before queues before domains) is kept by their owner,
//! [`super::Device`]. The libraries are thread-safe; what is `Send` here says why.

use std::ffi::CStr;
use std::io;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rdma_sys as ffi;
use ringfab_memory::Pool;
use socket2::{SockAddr, SockAddrStorage};

/// Linux's driver for iWARP in software, which differs from cards in three ways. The sink of its READs needs no remote
/// right; its library has no SEND with Invalidate; and memory of a request whose completion is not asked for stays with
/// the network stack even when a later request has completed.
const SIW_VENDOR: u32 = 0x0062_6d74;
/// `device_cap_flags`: memory windows of type 2A and 2B, which a work request binds and a peer can invalidate.
const MEMORY_WINDOW_TYPE_2: u32 = 1 << 23 | 1 << 24;

/// What librdmacm returned, with the reason in `errno`.
fn check(result: i32) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// What libibverbs returned: the reason itself, or with some drivers only that it is in `errno`.
fn check_code(code: i32) -> io::Result<()> {
    match code {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        code => Err(io::Error::from_raw_os_error(code.abs())),
    }
}

/// A pointer that libibverbs made, or the reason in `errno`.
fn made<T>(pointer: *mut T) -> io::Result<NonNull<T>> {
    NonNull::new(pointer).ok_or_else(io::Error::last_os_error)
}

fn set_nonblocking(descriptor: RawFd) -> io::Result<()> {
    // SAFETY: plain calls on a descriptor that the caller owns.
    let flags = unsafe { libc::fcntl(descriptor, libc::F_GETFL) };
    if flags < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above.
    if unsafe { libc::fcntl(descriptor, libc::F_SETFL, flags | libc::O_NONBLOCK) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

// --- connection management -----------------------------------------------------------------------------------------

/// Where the events of connection identifiers arrive.
#[derive(Debug)]
pub(super) struct EventChannel(NonNull<ffi::rdma_event_channel>);

// SAFETY: librdmacm locks its channels; events are read by the owning core alone, and other threads only create,
// move and destroy identifiers on it.
unsafe impl Send for EventChannel {}
// SAFETY: as above.
unsafe impl Sync for EventChannel {}

impl EventChannel {
    /// A channel that never blocks.
    pub(super) fn new() -> io::Result<Arc<Self>> {
        // SAFETY: no arguments; the result is checked.
        let channel = Self(made(unsafe { ffi::rdma_create_event_channel() })?);
        set_nonblocking(channel.descriptor())?;
        Ok(Arc::new(channel))
    }

    /// Readable when there is an event.
    pub(super) fn descriptor(&self) -> RawFd {
        // SAFETY: the channel lives as long as `self`.
        unsafe { self.0.as_ref().fd }
    }

    /// The next event, copied and acknowledged.
    pub(super) fn next(self: &Arc<Self>) -> io::Result<Option<CmEvent>> {
        let mut event = ptr::null_mut();
        // SAFETY: the channel lives; `event` is written on success only.
        if unsafe { ffi::rdma_get_cm_event(self.0.as_ptr(), &raw mut event) } != 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(error) };
        }
        // SAFETY: the event stays valid until it is acknowledged below; identifiers of ours that it names live,
        // since destroying one discards its events.
        let copied = unsafe { CmEvent::copy(self, &*event) };
        // SAFETY: each event is acknowledged once; what it pointed to was copied.
        check(unsafe { ffi::rdma_ack_cm_event(event) })?;
        Ok(Some(copied))
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        // SAFETY: every identifier holds a reference to its channel, so none is left.
        unsafe { ffi::rdma_destroy_event_channel(self.0.as_ptr()) };
    }
}

/// What has happened to a connection identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CmEventKind {
    AddressResolved,
    RouteResolved,
    /// No device reaches the address, or nothing answers there.
    Unresolved,
    Request,
    Established,
    Rejected,
    /// The connection could not be made for another reason.
    Failed,
    Disconnected,
    DeviceRemoved,
    /// Nothing that matters here.
    Other,
}

/// An event with everything that it said.
#[derive(Debug)]
pub(super) struct CmEvent {
    pub(super) kind: CmEventKind,
    /// A negative error number, or the reject reason of the InfiniBand CM.
    pub(super) status: i32,
    /// What [`CmId::set_context`] left on the identifier, or on its listener.
    pub(super) context: u64,
    /// The new identifier of a request.
    pub(super) request: Option<CmId>,
    pub(super) private_data: Bytes,
    /// READs that we may have outstanding.
    pub(super) initiator_depth: u8,
}

impl CmEvent {
    /// # Safety
    /// `event` must not have been acknowledged.
    unsafe fn copy(channel: &Arc<EventChannel>, event: &ffi::rdma_cm_event) -> Self {
        use ffi::rdma_cm_event_type as kind;
        let what = match event.event {
            kind::RDMA_CM_EVENT_ADDR_RESOLVED => CmEventKind::AddressResolved,
            kind::RDMA_CM_EVENT_ROUTE_RESOLVED => CmEventKind::RouteResolved,
            kind::RDMA_CM_EVENT_ADDR_ERROR | kind::RDMA_CM_EVENT_ROUTE_ERROR => CmEventKind::Unresolved,
            kind::RDMA_CM_EVENT_CONNECT_REQUEST => CmEventKind::Request,
            kind::RDMA_CM_EVENT_ESTABLISHED => CmEventKind::Established,
            kind::RDMA_CM_EVENT_REJECTED => CmEventKind::Rejected,
            kind::RDMA_CM_EVENT_CONNECT_ERROR | kind::RDMA_CM_EVENT_UNREACHABLE => CmEventKind::Failed,
            kind::RDMA_CM_EVENT_DISCONNECTED => CmEventKind::Disconnected,
            kind::RDMA_CM_EVENT_DEVICE_REMOVAL => CmEventKind::DeviceRemoved,
            _ => CmEventKind::Other,
        };
        let speaks = matches!(what, CmEventKind::Request | CmEventKind::Established | CmEventKind::Rejected);
        let parameters = if speaks {
            // SAFETY: events of these kinds on a connection of type TCP carry connection parameters.
            Some(unsafe { event.param.conn })
        } else {
            None
        };
        let private_data = parameters.map_or_else(Bytes::new, |parameters| {
            let (data, length) = (parameters.private_data.cast::<u8>(), parameters.private_data_len);
            if data.is_null() {
                return Bytes::new();
            }
            // SAFETY: the library says that so many bytes are there, until the event is acknowledged.
            Bytes::copy_from_slice(unsafe { std::slice::from_raw_parts(data, usize::from(length)) })
        });
        // SAFETY: the identifier of an event lives until the event is acknowledged.
        let context = unsafe { (*event.id).context } as u64;
        let request = (what == CmEventKind::Request)
            .then(|| NonNull::new(event.id))
            .flatten()
            .map(|raw| CmId { raw, channel: Arc::clone(channel) });
        Self {
            kind: what,
            status: event.status,
            context,
            request,
            private_data,
            initiator_depth: parameters.map_or(0, |parameters| parameters.initiator_depth),
        }
    }
}

/// What a queue pair is made with.
pub(super) struct QueuePairLimits {
    pub(super) send_requests: u32,
    pub(super) inline_bytes: u32,
}

/// What the two sides tell each other when they connect.
pub(super) struct ConnectionParameters<'a> {
    pub(super) private_data: &'a [u8],
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
}

impl ConnectionParameters<'_> {
    fn raw(&self) -> ffi::rdma_conn_param {
        ffi::rdma_conn_param {
            private_data: self.private_data.as_ptr().cast(),
            private_data_len: self.private_data.len().min(255) as u8,
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            flow_control: 1,
            retry_count: 7,
            // Seven means for ever: a peer that is short of receives waits, and the command timeout decides.
            rnr_retry_count: 7,
            srq: 1,
            qp_num: 0,
        }
    }
}

/// A connection, or a listener, with its queue pair if it has one.
#[derive(Debug)]
pub(super) struct CmId {
    raw: NonNull<ffi::rdma_cm_id>,
    channel: Arc<EventChannel>,
}

// SAFETY: librdmacm locks; an identifier is used by one thread at a time, the one that owns this value.
unsafe impl Send for CmId {}

impl CmId {
    /// A new identifier whose events arrive on `channel`.
    pub(super) fn new(channel: &Arc<EventChannel>) -> io::Result<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: the channel lives; `raw` is written on success.
        let result = unsafe {
            ffi::rdma_create_id(
                channel.0.as_ptr(),
                &raw mut raw,
                ptr::null_mut(),
                ffi::rdma_port_space::RDMA_PS_TCP,
            )
        };
        check(result)?;
        Ok(Self { raw: made(raw)?, channel: Arc::clone(channel) })
    }

    /// What the identifier's events bear.
    pub(super) fn set_context(&mut self, context: u64) {
        // SAFETY: the identifier lives as long as `self`; the library only hands the value back.
        unsafe { self.raw.as_mut().context = context as *mut libc::c_void };
    }

    /// Binds to a local address; with that of a device, to the device.
    pub(super) fn bind(&self, address: SocketAddr) -> io::Result<()> {
        let address = SockAddr::from(address);
        // SAFETY: both live during the call; the library only reads the address.
        check(unsafe { ffi::rdma_bind_addr(self.raw.as_ptr(), address.as_ptr().cast_mut().cast()) })
    }

    pub(super) fn listen(&self, backlog: i32) -> io::Result<()> {
        // SAFETY: the identifier lives.
        check(unsafe { ffi::rdma_listen(self.raw.as_ptr(), backlog) })
    }

    pub(super) fn resolve_address(&self, to: SocketAddr, timeout: Duration) -> io::Result<()> {
        let to = SockAddr::from(to);
        let milliseconds = timeout.as_millis().min(60_000) as i32;
        // SAFETY: as for `bind`.
        check(unsafe {
            ffi::rdma_resolve_addr(
                self.raw.as_ptr(),
                ptr::null_mut(),
                to.as_ptr().cast_mut().cast(),
                milliseconds,
            )
        })
    }

    pub(super) fn resolve_route(&self, timeout: Duration) -> io::Result<()> {
        let milliseconds = timeout.as_millis().min(60_000) as i32;
        // SAFETY: the identifier lives.
        check(unsafe { ffi::rdma_resolve_route(self.raw.as_ptr(), milliseconds) })
    }

    pub(super) fn connect(&self, parameters: &ConnectionParameters<'_>) -> io::Result<()> {
        let mut raw = parameters.raw();
        // SAFETY: the identifier lives, and the parameters during the call, which copies them.
        check(unsafe { ffi::rdma_connect(self.raw.as_ptr(), &raw mut raw) })
    }

    pub(super) fn accept(&self, parameters: &ConnectionParameters<'_>) -> io::Result<()> {
        let mut raw = parameters.raw();
        // SAFETY: as for `connect`.
        check(unsafe { ffi::rdma_accept(self.raw.as_ptr(), &raw mut raw) })
    }

    pub(super) fn reject(&self, private_data: &[u8]) -> io::Result<()> {
        let length = private_data.len().min(255) as u8;
        // SAFETY: the identifier lives, and the data during the call.
        check(unsafe { ffi::rdma_reject(self.raw.as_ptr(), private_data.as_ptr().cast(), length) })
    }

    /// Ends the connection; what is posted and not yet done is flushed.
    pub(super) fn disconnect(&self) -> io::Result<()> {
        // SAFETY: the identifier lives.
        check(unsafe { ffi::rdma_disconnect(self.raw.as_ptr()) })
    }

    /// Lets the identifier's events arrive on another channel.
    pub(super) fn migrate(&mut self, channel: &Arc<EventChannel>) -> io::Result<()> {
        // SAFETY: both live, and no event of the identifier is unacknowledged: `EventChannel::next` leaves none.
        check(unsafe { ffi::rdma_migrate_id(self.raw.as_ptr(), channel.0.as_ptr()) })?;
        self.channel = Arc::clone(channel);
        Ok(())
    }

    /// The device that it is bound to.
    pub(super) fn context(&self) -> Option<Context> {
        // SAFETY: the identifier lives as long as `self`.
        NonNull::new(unsafe { self.raw.as_ref().verbs }).map(Context)
    }

    /// Our end and the peer's.
    pub(super) fn addresses(&self) -> Option<(SocketAddr, SocketAddr)> {
        // SAFETY: the identifier lives; both addresses are storage of the largest kind inside it.
        let (local, peer) = unsafe {
            let address = &self.raw.as_ref().route.addr;
            (&raw const address.src_addr_union, &raw const address.dst_addr_union)
        };
        // SAFETY: each union begins with a socket address whose family says how long it is.
        unsafe { Some((socket_address(local.cast())?, socket_address(peer.cast())?)) }
    }

    /// Our end.
    pub(super) fn local_address(&self) -> Option<SocketAddr> {
        // SAFETY: as for `addresses`.
        unsafe { socket_address((&raw const self.raw.as_ref().route.addr.src_addr_union).cast()) }
    }

    /// Makes the queue pair.
    pub(super) fn create_queue_pair(
        &mut self,
        domain: &Domain,
        completions: &CompletionQueue,
        receives: &SharedReceiveQueue,
        limits: &QueuePairLimits,
    ) -> io::Result<QueuePair> {
        // SAFETY: all zeroes is a valid value of this structure of integers and pointers.
        let mut attributes: ffi::ibv_qp_init_attr = unsafe { std::mem::zeroed() };
        attributes.send_cq = completions.raw.as_ptr();
        attributes.recv_cq = completions.raw.as_ptr();
        attributes.srq = receives.0.as_ptr();
        attributes.qp_type = ffi::ibv_qp_type::IBV_QPT_RC;
        attributes.cap.max_send_wr = limits.send_requests;
        attributes.cap.max_send_sge = 2;
        attributes.cap.max_inline_data = limits.inline_bytes;
        // SAFETY: everything named lives during the call; that it outlives the queue pair is the owner's order.
        check(unsafe { ffi::rdma_create_qp(self.raw.as_ptr(), domain.0.as_ptr(), &raw mut attributes) })?;
        // SAFETY: the call has succeeded, so the queue pair is there and says its number.
        let raw = made(unsafe { self.raw.as_ref().qp })?;
        // SAFETY: as above.
        let number = unsafe { raw.as_ref().qp_num };
        Ok(QueuePair { raw, number, inline_bytes: attributes.cap.max_inline_data })
    }

    /// Destroys the queue pair: when this returns, the device touches no memory of its requests any more.
    pub(super) fn destroy_queue_pair(&mut self) {
        // SAFETY: the identifier lives; the library clears the pointer, so that it happens once. Whoever calls this
        // drops the `QueuePair` too.
        unsafe {
            if !self.raw.as_ref().qp.is_null() {
                ffi::rdma_destroy_qp(self.raw.as_ptr());
            }
        }
    }
}

impl Drop for CmId {
    fn drop(&mut self) {
        self.destroy_queue_pair();
        // SAFETY: it is ours alone, without queue pair and without unacknowledged events.
        if let Err(error) = check(unsafe { ffi::rdma_destroy_id(self.raw.as_ptr()) }) {
            tracing::debug!(%error, "a connection identifier stays");
        }
    }
}

/// # Safety
/// `address` must point to a socket address of its family's length.
unsafe fn socket_address(address: *const libc::sockaddr) -> Option<SocketAddr> {
    // SAFETY: the caller's promise.
    let length = match i32::from(unsafe { (*address).sa_family }) {
        libc::AF_INET => size_of::<libc::sockaddr_in>(),
        libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
        _ => return None,
    };
    let mut storage = SockAddrStorage::zeroed();
    // SAFETY: the storage is large enough for any address, and the source is as long as its family says.
    let address = unsafe {
        ptr::copy_nonoverlapping(address.cast::<u8>(), (&raw mut storage).cast::<u8>(), length);
        SockAddr::new(storage, length as libc::socklen_t)
    };
    address.as_socket()
}

// --- devices -------------------------------------------------------------------------------------------------------

/// An open device. librdmacm opened it and keeps it open while an identifier is bound to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Context(NonNull<ffi::ibv_context>);

// SAFETY: libibverbs is thread-safe; this is only the device's name.
unsafe impl Send for Context {}

/// What a device can do.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DeviceLimits {
    pub(super) send_requests: u32,
    pub(super) completions: u32,
    /// Receives of a shared receive queue; zero when there is none.
    pub(super) shared_receives: u32,
    /// READs of a peer outstanding at us.
    pub(super) responder_resources: u8,
    /// READs of ours outstanding at a peer.
    pub(super) initiator_depth: u8,
    /// Whether there are memory windows of type 2.
    pub(super) windows: bool,
    /// Whether it speaks iWARP: no receiver-not-ready, and a READ's sink is written as by a peer.
    pub(super) iwarp: bool,
    /// Whether the sink of a READ must allow remote writes.
    pub(super) writable_sinks: bool,
    /// Whether a SEND can invalidate a key of the peer's.
    pub(super) sends_invalidate: bool,
    /// Whether the memory of a request is free only with its own completion.
    pub(super) own_completions: bool,
}

impl Context {
    pub(super) fn limits(self) -> io::Result<DeviceLimits> {
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
            iwarp,
            writable_sinks: iwarp && attributes.vendor_id != SIW_VENDOR,
            sends_invalidate: attributes.vendor_id != SIW_VENDOR,
            own_completions: attributes.vendor_id == SIW_VENDOR,
        })
    }

    pub(super) fn name(self) -> String {
        // SAFETY: the device of an open context lives, and its name is a constant string.
        unsafe { CStr::from_ptr(ffi::ibv_get_device_name(self.0.as_ref().device)) }
            .to_string_lossy()
            .into_owned()
    }

    /// Waits for the next event of the device itself.
    pub(super) fn wait_async_event(self) -> io::Result<AsyncEvent> {
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
pub(super) struct AsyncEvent {
    pub(super) kind: AsyncEventKind,
    /// The library's number of it, for the log.
    pub(super) number: u32,
    pub(super) queue_pair: Option<u32>,
}

/// The kinds that are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AsyncEventKind {
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

// --- memory --------------------------------------------------------------------------------------------------------

/// A protection domain.
#[derive(Debug)]
pub(super) struct Domain(NonNull<ffi::ibv_pd>);

impl Domain {
    pub(super) fn new(context: Context) -> io::Result<Self> {
        // SAFETY: the context is open.
        Ok(Self(made(unsafe { ffi::ibv_alloc_pd(context.0.as_ptr()) })?))
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: it is ours; whoever owns it drops what is in it first. If something is left the call fails and the
        // domain stays, which does no harm.
        unsafe { ffi::ibv_dealloc_pd(self.0.as_ptr()) };
    }
}

/// Rights on registered memory.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rights {
    pub(super) remote_read: bool,
    pub(super) remote_write: bool,
    /// Windows may be bound to it.
    pub(super) windows: bool,
}

impl Rights {
    fn raw(self) -> u32 {
        use ffi::ibv_access_flags as flag;
        let mut raw = flag::IBV_ACCESS_LOCAL_WRITE.0;
        for (wanted, bit) in [
            (self.remote_read, flag::IBV_ACCESS_REMOTE_READ.0),
            (self.remote_write, flag::IBV_ACCESS_REMOTE_WRITE.0),
            (self.windows, flag::IBV_ACCESS_MW_BIND.0),
        ] {
            raw |= if wanted { bit } else { 0 };
        }
        raw
    }
}

/// A registered pool, which it keeps mapped.
#[derive(Debug)]
pub(super) struct Region {
    raw: NonNull<ffi::ibv_mr>,
    pub(super) pool: Pool,
}

impl Region {
    pub(super) fn new(domain: &Domain, pool: &Pool, rights: Rights) -> io::Result<Self> {
        let (base, bytes) = pool.extent();
        // SAFETY: the mapping is `bytes` long and lives as long as the pool, of which a handle is kept until the
        // region is gone.
        let raw =
            unsafe { ffi::ibv_reg_mr(domain.0.as_ptr(), base.as_ptr().cast(), bytes, rights.raw() as i32) };
        let raw = made(raw).map_err(|error| {
            let why =
                format!("cannot register {bytes} bytes of memory (see the limit of locked memory): {error}");
            io::Error::new(error.kind(), why)
        })?;
        Ok(Self { raw, pool: pool.clone() })
    }

    /// The key for our own requests.
    pub(super) fn local_key(&self) -> u32 {
        // SAFETY: the region lives as long as `self`.
        unsafe { self.raw.as_ref().lkey }
    }

    /// The key for the peer's.
    pub(super) fn remote_key(&self) -> u32 {
        // SAFETY: as above.
        unsafe { self.raw.as_ref().rkey }
    }

    /// Whether the bytes at an address are in it.
    pub(super) fn holds(&self, address: u64, length: u32) -> bool {
        let (base, bytes) = self.pool.extent();
        let first = base.as_ptr() as u64;
        address >= first && address + u64::from(length) <= first + bytes as u64
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: it is ours; no queue pair that uses it is left, by the owner's order.
        let code = unsafe { ffi::ibv_dereg_mr(self.raw.as_ptr()) };
        if code != 0 {
            // What the device may still write must never be used for anything else.
            tracing::error!(code, "a memory region stays registered; its memory is not freed");
            std::mem::forget(self.pool.clone());
        }
    }
}

/// A memory window of type 2: it opens a part of a region to one queue pair's peer.
#[derive(Debug)]
pub(super) struct Window {
    raw: NonNull<ffi::ibv_mw>,
    /// The key of its present or last binding.
    pub(super) key: u32,
}

impl Window {
    pub(super) fn new(domain: &Domain) -> io::Result<Self> {
        // SAFETY: the domain lives.
        let raw = unsafe { ffi::ibv_alloc_mw(domain.0.as_ptr(), ffi::ibv_mw_type::IBV_MW_TYPE_2) };
        let raw = made(raw.unwrap_or(ptr::null_mut()))?;
        // SAFETY: it was just made.
        let key = unsafe { raw.as_ref().rkey };
        Ok(Self { raw, key })
    }

    /// The key of its next binding: the same window, another last byte.
    pub(super) fn advance(&mut self) -> u32 {
        self.key = (self.key & !0xff) | (self.key.wrapping_add(1) & 0xff);
        self.key
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: it is ours. When this returns, no peer reaches anything through it.
        let code = unsafe { ffi::ibv_dealloc_mw(self.raw.as_ptr()) };
        if code != 0 {
            tracing::error!(code, "a memory window stays open");
        }
    }
}

// --- queues --------------------------------------------------------------------------------------------------------

/// What wakes a core that waits for completions.
#[derive(Debug)]
pub(super) struct CompletionChannel(NonNull<ffi::ibv_comp_channel>);

impl CompletionChannel {
    pub(super) fn new(context: Context) -> io::Result<Self> {
        // SAFETY: the context is open.
        let channel = Self(made(unsafe { ffi::ibv_create_comp_channel(context.0.as_ptr()) })?);
        set_nonblocking(channel.descriptor())?;
        Ok(channel)
    }

    /// Readable when a queue that was armed has a completion.
    pub(super) fn descriptor(&self) -> RawFd {
        // SAFETY: the channel lives.
        unsafe { self.0.as_ref().fd }
    }

    /// Takes all notifications.
    pub(super) fn drain(&self) {
        loop {
            let (mut queue, mut context) = (ptr::null_mut(), ptr::null_mut());
            // SAFETY: the channel lives; the results are written on success.
            if unsafe { ffi::ibv_get_cq_event(self.0.as_ptr(), &raw mut queue, &raw mut context) } != 0 {
                return;
            }
            // SAFETY: the event is of a queue that lives, since destroying one waits for this acknowledgement.
            unsafe { ffi::ibv_ack_cq_events(queue, 1) };
        }
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        // SAFETY: it is ours, and its queues are gone by the owner's order.
        unsafe { ffi::ibv_destroy_comp_channel(self.0.as_ptr()) };
    }
}

/// A completion queue.
#[derive(Debug)]
pub(super) struct CompletionQueue {
    raw: NonNull<ffi::ibv_cq>,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WorkCompletion {
    /// The request's number.
    pub(super) id: u64,
    /// Zero is success; see [`status_text`].
    pub(super) status: u32,
    /// Bytes of a received message.
    pub(super) bytes: u32,
    pub(super) queue_pair: u32,
    /// The key that a received message invalidated.
    pub(super) invalidated: Option<u32>,
}

/// The status of requests that ended because their queue pair did.
pub(super) const STATUS_FLUSHED: u32 = ffi::ibv_wc_status::IBV_WC_WR_FLUSH_ERR;
/// The status of a message that was longer than the receive for it.
pub(super) const STATUS_LENGTH: u32 = ffi::ibv_wc_status::IBV_WC_LOC_LEN_ERR;

/// What a status means.
pub(super) fn status_text(status: u32) -> String {
    // SAFETY: the function takes any number and returns a constant string.
    unsafe { CStr::from_ptr(ffi::ibv_wc_status_str(status)) }.to_string_lossy().into_owned()
}

impl CompletionQueue {
    /// Completions taken at once.
    pub(super) const BATCH: usize = 32;

    pub(super) fn new(context: Context, entries: u32, channel: &CompletionChannel) -> io::Result<Self> {
        let entries = i32::try_from(entries).unwrap_or(i32::MAX);
        // SAFETY: both live during the call; the channel outlives the queue by the owner's order.
        let raw = unsafe {
            ffi::ibv_create_cq(context.0.as_ptr(), entries, ptr::null_mut(), channel.0.as_ptr(), 0)
        };
        Ok(Self { raw: made(raw)? })
    }

    /// Takes completions, oldest first.
    pub(super) fn poll(&self, batch: &mut [WorkCompletion; Self::BATCH]) -> io::Result<usize> {
        // SAFETY: all zeroes is a valid value of this structure of integers.
        let mut raw: [ffi::ibv_wc; Self::BATCH] = unsafe { std::mem::zeroed() };
        // SAFETY: the queue lives and there is room for as many as are asked for.
        let count = unsafe { ffi::ibv_poll_cq(self.raw.as_ptr(), Self::BATCH as i32, raw.as_mut_ptr()) };
        let count = usize::try_from(count).map_err(|_| io::Error::other("the completion queue is broken"))?;
        for (raw, to) in raw[..count].iter().zip(batch.iter_mut()) {
            let invalidates = raw.wc_flags & ffi::ibv_wc_flags::IBV_WC_WITH_INV.0 != 0;
            // SAFETY: both members of the union are plain numbers of the same size.
            let key = unsafe { raw.imm_data_invalidated_rkey_union.invalidated_rkey };
            *to = WorkCompletion {
                id: raw.wr_id,
                status: raw.status,
                bytes: raw.byte_len,
                queue_pair: raw.qp_num,
                invalidated: Some(key).filter(|_| raw.status == 0 && invalidates),
            };
        }
        Ok(count)
    }

    /// Makes the next completion notify the channel.
    pub(super) fn arm(&self) -> io::Result<()> {
        // SAFETY: the queue lives.
        check_code(unsafe { ffi::ibv_req_notify_cq(self.raw.as_ptr(), 0) })
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: it is ours, and what reports to it is gone by the owner's order.
        unsafe { ffi::ibv_destroy_cq(self.raw.as_ptr()) };
    }
}

/// A piece of registered memory.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Piece {
    pub(super) address: u64,
    pub(super) length: u32,
    pub(super) key: u32,
}

const _: () = assert!(size_of::<Piece>() == size_of::<ffi::ibv_sge>());
const _: () = assert!(std::mem::offset_of!(ffi::ibv_sge, lkey) == 12);

/// Receives that several queue pairs take from.
#[derive(Debug)]
pub(super) struct SharedReceiveQueue(NonNull<ffi::ibv_srq>);

impl SharedReceiveQueue {
    pub(super) fn new(domain: &Domain, receives: u32) -> io::Result<Self> {
        let attr = ffi::ibv_srq_attr { max_wr: receives, max_sge: 2, srq_limit: 0 };
        let mut attributes = ffi::ibv_srq_init_attr { srq_context: ptr::null_mut(), attr };
        // SAFETY: the domain lives; the structure is read.
        let raw = unsafe { ffi::ibv_create_srq(domain.0.as_ptr(), &raw mut attributes) };
        Ok(Self(made(raw)?))
    }

    /// Posts one receive into one or two pieces.
    ///
    /// # Safety
    /// The pieces' memory belongs to this receive until its completion, or until the queue is gone.
    pub(super) unsafe fn post(&self, id: u64, pieces: &[Piece]) -> io::Result<()> {
        let mut request = ffi::ibv_recv_wr {
            wr_id: id,
            next: ptr::null_mut(),
            sg_list: pieces.as_ptr().cast_mut().cast(),
            num_sge: pieces.len() as i32,
        };
        let mut bad = ptr::null_mut();
        // SAFETY: the queue lives; the request and its list are read during the call; the memory is the caller's
        // promise.
        check_code(unsafe { ffi::ibv_post_srq_recv(self.0.as_ptr(), &raw mut request, &raw mut bad) })
    }
}

impl Drop for SharedReceiveQueue {
    fn drop(&mut self) {
        // SAFETY: it is ours, and its queue pairs are gone by the owner's order.
        unsafe { ffi::ibv_destroy_srq(self.0.as_ptr()) };
    }
}

/// What a request does.
#[derive(Clone, Copy, Debug)]
pub(super) enum Operation {
    Send,
    /// SEND that invalidates this key of the peer's.
    SendInvalidate(u32),
    Write {
        address: u64,
        key: u32,
    },
    Read {
        address: u64,
        key: u32,
    },
    /// Opens a window on a part of a region.
    Bind {
        window: NonNull<ffi::ibv_mw>,
        region: NonNull<ffi::ibv_mr>,
        key: u32,
        address: u64,
        length: u32,
        write: bool,
    },
}

impl Operation {
    /// Opens `window` under its present key on `length` bytes at `address` of `region`, for reading or for writing.
    pub(super) fn bind(window: &Window, region: &Region, address: u64, length: u32, write: bool) -> Self {
        Self::Bind { window: window.raw, region: region.raw, key: window.key, address, length, write }
    }
}

/// A request of a send queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct WorkRequest {
    pub(super) id: u64,
    pub(super) operation: Operation,
    pub(super) pieces: [Piece; 2],
    pub(super) piece_count: u8,
    pub(super) signaled: bool,
    /// The bytes are copied into the request.
    pub(super) inline: bool,
    pub(super) solicited: bool,
}

/// Room for a chain of requests in the library's form, reused from doorbell to doorbell.
#[derive(Default)]
pub(super) struct Chain {
    requests: Vec<ffi::ibv_send_wr>,
    pieces: Vec<[Piece; 2]>,
}

impl std::fmt::Debug for Chain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Chain").field("capacity", &self.requests.capacity()).finish()
    }
}

/// The queue pair of a [`CmId`], which destroys it.
#[derive(Debug)]
pub(super) struct QueuePair {
    raw: NonNull<ffi::ibv_qp>,
    pub(super) number: u32,
    /// Bytes that fit into a request.
    pub(super) inline_bytes: u32,
}

impl QueuePair {
    /// Posts requests with one doorbell. On an error none after the failing one was taken.
    ///
    /// # Safety
    /// The memory of the pieces, but of those that are inline, is left alone until the completion of its request or of
    /// a later one of this queue pair, or until the queue pair is gone; windows and regions that are named live.
    pub(super) unsafe fn post(&self, chain: &mut Chain, requests: &[WorkRequest]) -> io::Result<()> {
        if requests.is_empty() {
            return Ok(());
        }
        chain.requests.clear();
        chain.pieces.clear();
        chain.pieces.extend(requests.iter().map(|request| request.pieces));
        for (request, pieces) in requests.iter().zip(&mut chain.pieces) {
            chain.requests.push(raw_request(request, pieces));
        }
        for index in 1..chain.requests.len() {
            let next = &raw mut chain.requests[index];
            chain.requests[index - 1].next = next;
        }
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair lives as long as its identifier, which owns `self`'s owner; the chain is linked within
        // vectors that are not touched during the call; the rest is the caller's promise.
        check_code(unsafe {
            ffi::ibv_post_send(self.raw.as_ptr(), chain.requests.as_mut_ptr(), &raw mut bad)
        })
    }
}

fn raw_request(request: &WorkRequest, pieces: &mut [Piece; 2]) -> ffi::ibv_send_wr {
    use ffi::{ibv_send_flags as flag, ibv_wr_opcode as opcode};
    // SAFETY: all zeroes is a valid value of this structure of integers and pointers.
    let mut raw: ffi::ibv_send_wr = unsafe { std::mem::zeroed() };
    raw.wr_id = request.id;
    raw.sg_list = pieces.as_mut_ptr().cast();
    raw.num_sge = i32::from(request.piece_count);
    for (wanted, bit) in [
        (request.signaled, flag::IBV_SEND_SIGNALED.0),
        (request.inline, flag::IBV_SEND_INLINE.0),
        (request.solicited, flag::IBV_SEND_SOLICITED.0),
    ] {
        raw.send_flags |= if wanted { bit } else { 0 };
    }
    match request.operation {
        Operation::Send => raw.opcode = opcode::IBV_WR_SEND,
        Operation::SendInvalidate(key) => {
            raw.opcode = opcode::IBV_WR_SEND_WITH_INV;
            raw.imm_data_invalidated_rkey_union.invalidated_rkey = key;
        }
        Operation::Write { address, key } => {
            raw.opcode = opcode::IBV_WR_RDMA_WRITE;
            raw.wr.rdma = ffi::rdma_t { remote_addr: address, rkey: key };
        }
        Operation::Read { address, key } => {
            raw.opcode = opcode::IBV_WR_RDMA_READ;
            raw.wr.rdma = ffi::rdma_t { remote_addr: address, rkey: key };
        }
        Operation::Bind { window, region, key, address, length, write } => {
            let rights = if write {
                ffi::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0
            } else {
                ffi::ibv_access_flags::IBV_ACCESS_REMOTE_READ.0
            };
            raw.opcode = opcode::IBV_WR_BIND_MW;
            raw.bind_mw_tso_union.bind_mw = ffi::bind_mw_t {
                mw: window.as_ptr(),
                rkey: key,
                bind_info: ffi::ibv_mw_bind_info {
                    mr: region.as_ptr(),
                    addr: address,
                    length: u64::from(length),
                    mw_access_flags: rights,
                },
            };
        }
    }
    raw
}

/// A list of the devices of this machine, for [`super::devices`].
pub(super) struct DeviceList {
    list: NonNull<*mut ffi::ibv_device>,
    count: usize,
}

impl DeviceList {
    pub(super) fn new() -> io::Result<Self> {
        let mut count = 0;
        // SAFETY: the list is written on success, and freed by `Drop`.
        let list = made(unsafe { ffi::ibv_get_device_list(&raw mut count) })?;
        Ok(Self { list, count: usize::try_from(count).unwrap_or(0) })
    }

    /// Every device: its name, and whether it could be opened.
    pub(super) fn iter(&self) -> impl Iterator<Item = (String, io::Result<OpenDevice<'_>>)> {
        (0..self.count).map(|index| {
            // SAFETY: the list has so many entries and lives as long as `self`.
            let device = unsafe { *self.list.as_ptr().add(index) };
            // SAFETY: the device lives with the list; its name is a string inside it.
            let name = unsafe { CStr::from_ptr(ffi::ibv_get_device_name(device)) };
            // SAFETY: as above.
            let opened = made(unsafe { ffi::ibv_open_device(device) });
            (name.to_string_lossy().into_owned(), opened.map(|raw| OpenDevice(Context(raw), PhantomData)))
        })
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: it is the list that the library made; what was opened from it is closed before, as it borrows it.
        unsafe { ffi::ibv_free_device_list(self.list.as_ptr()) };
    }
}

/// A device that was opened to look at it.
pub(super) struct OpenDevice<'a>(Context, PhantomData<&'a DeviceList>);

/// What a port says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Port {
    pub(super) active: bool,
    pub(super) ethernet: bool,
    pub(super) gids: i32,
    /// Bytes of payload of a packet.
    pub(super) mtu: u32,
}

impl OpenDevice<'_> {
    pub(super) fn limits(&self) -> io::Result<DeviceLimits> {
        self.0.limits()
    }

    /// How many ports it has, numbered from one.
    pub(super) fn ports(&self) -> io::Result<u8> {
        // SAFETY: all zeroes is a valid value; the context is open.
        let mut attributes: ffi::ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        check_code(unsafe { ffi::ibv_query_device(self.0.0.as_ptr(), &raw mut attributes) })?;
        Ok(attributes.phys_port_cnt)
    }

    pub(super) fn port(&self, number: u8) -> io::Result<Port> {
        // SAFETY: all zeroes is a valid value; the context is open.
        let mut attributes: ffi::ibv_port_attr = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        check_code(unsafe { ffi::___ibv_query_port(self.0.0.as_ptr(), number, &raw mut attributes) })?;
        Ok(Port {
            active: attributes.state == ffi::ibv_port_state::IBV_PORT_ACTIVE,
            ethernet: attributes.link_layer == 2,
            gids: attributes.gid_tbl_len,
            mtu: 128 << attributes.active_mtu.min(5),
        })
    }

    /// An entry of a port's table of addresses; `None` where it is empty.
    pub(super) fn gid(&self, port: u8, index: i32) -> Option<[u8; 16]> {
        let mut gid = ffi::ibv_gid { raw: [0; 16] };
        // SAFETY: the context is open; the address is written on success.
        let result = unsafe { ffi::ibv_query_gid(self.0.0.as_ptr(), port, index, &raw mut gid) };
        // SAFETY: any bytes are valid.
        let raw = unsafe { gid.raw };
        (result == 0 && raw != [0; 16]).then_some(raw)
    }
}

impl Drop for OpenDevice<'_> {
    fn drop(&mut self) {
        // SAFETY: it was opened by `DeviceList::iter` and is used by nobody else.
        unsafe { ffi::ibv_close_device(self.0.0.as_ptr()) };
    }
}
