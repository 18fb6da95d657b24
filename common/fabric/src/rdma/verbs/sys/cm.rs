//! Connection management: identifiers and their events.

use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rdma_sys as ffi;
use socket2::{SockAddr, SockAddrStorage};

use super::{CompletionQueue, Context, Domain, QueuePair, SharedReceiveQueue, check, made, set_nonblocking};

/// Where the events of connection identifiers arrive.
#[derive(Debug)]
pub(crate) struct EventChannel(NonNull<ffi::rdma_event_channel>);

// SAFETY: librdmacm locks its channels; events are read by the owning core alone, and other threads only create,
// move and destroy identifiers on it.
unsafe impl Send for EventChannel {}
// SAFETY: as above.
unsafe impl Sync for EventChannel {}

impl EventChannel {
    /// A channel that never blocks.
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        // SAFETY: no arguments; the result is checked.
        let channel = Self(made(unsafe { ffi::rdma_create_event_channel() })?);
        set_nonblocking(channel.descriptor())?;
        Ok(Arc::new(channel))
    }

    /// Readable when there is an event.
    pub(crate) fn descriptor(&self) -> RawFd {
        // SAFETY: the channel lives as long as `self`.
        unsafe { self.0.as_ref().fd }
    }

    /// The next event, copied and acknowledged.
    pub(crate) fn next(self: &Arc<Self>) -> io::Result<Option<CmEvent>> {
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
pub(crate) enum CmEventKind {
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
pub(crate) struct CmEvent {
    pub(crate) kind: CmEventKind,
    /// A negative error number, or the reject reason of the InfiniBand CM.
    pub(crate) status: i32,
    /// The identifier itself, to compare with.
    of: *const ffi::rdma_cm_id,
    /// What [`CmId::set_context`] left on the identifier, or on its listener.
    pub(crate) context: u64,
    /// The new identifier of a request.
    pub(crate) request: Option<CmId>,
    pub(crate) private_data: Bytes,
    /// READs that we may have outstanding.
    pub(crate) initiator_depth: u8,
}

impl CmEvent {
    /// Whether it is of this identifier.
    pub(crate) fn names(&self, id: &CmId) -> bool {
        std::ptr::eq(self.of, id.raw.as_ptr())
    }

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
            of: event.id,
            status: event.status,
            context,
            request,
            private_data,
            initiator_depth: parameters.map_or(0, |parameters| parameters.initiator_depth),
        }
    }
}

/// What a queue pair is made with.
pub(crate) struct QueuePairLimits {
    pub(crate) send_requests: u32,
    pub(crate) inline_bytes: u32,
}

/// What the two sides tell each other when they connect.
pub(crate) struct ConnectionParameters<'a> {
    pub(crate) private_data: &'a [u8],
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
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
pub(crate) struct CmId {
    raw: NonNull<ffi::rdma_cm_id>,
    channel: Arc<EventChannel>,
}

// SAFETY: librdmacm locks; an identifier is used by one thread at a time, the one that owns this value.
unsafe impl Send for CmId {}

impl CmId {
    /// A new identifier whose events arrive on `channel`.
    pub(crate) fn new(channel: &Arc<EventChannel>) -> io::Result<Self> {
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
    pub(crate) fn set_context(&mut self, context: u64) {
        // SAFETY: the identifier lives as long as `self`; the library only hands the value back.
        unsafe { self.raw.as_mut().context = context as *mut libc::c_void };
    }

    /// Binds to a local address; with that of a device, to the device.
    pub(crate) fn bind(&self, address: SocketAddr) -> io::Result<()> {
        let address = SockAddr::from(address);
        // SAFETY: both live during the call; the library only reads the address.
        check(unsafe { ffi::rdma_bind_addr(self.raw.as_ptr(), address.as_ptr().cast_mut().cast()) })
    }

    pub(crate) fn listen(&self, backlog: i32) -> io::Result<()> {
        // SAFETY: the identifier lives.
        check(unsafe { ffi::rdma_listen(self.raw.as_ptr(), backlog) })
    }

    pub(crate) fn resolve_address(&self, to: SocketAddr, timeout: Duration) -> io::Result<()> {
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

    pub(crate) fn resolve_route(&self, timeout: Duration) -> io::Result<()> {
        let milliseconds = timeout.as_millis().min(60_000) as i32;
        // SAFETY: the identifier lives.
        check(unsafe { ffi::rdma_resolve_route(self.raw.as_ptr(), milliseconds) })
    }

    pub(crate) fn connect(&self, parameters: &ConnectionParameters<'_>) -> io::Result<()> {
        let mut raw = parameters.raw();
        // SAFETY: the identifier lives, and the parameters during the call, which copies them.
        check(unsafe { ffi::rdma_connect(self.raw.as_ptr(), &raw mut raw) })
    }

    pub(crate) fn accept(&self, parameters: &ConnectionParameters<'_>) -> io::Result<()> {
        let mut raw = parameters.raw();
        // SAFETY: as for `connect`.
        check(unsafe { ffi::rdma_accept(self.raw.as_ptr(), &raw mut raw) })
    }

    pub(crate) fn reject(&self, private_data: &[u8]) -> io::Result<()> {
        let length = private_data.len().min(255) as u8;
        // SAFETY: the identifier lives, and the data during the call.
        check(unsafe { ffi::rdma_reject(self.raw.as_ptr(), private_data.as_ptr().cast(), length) })
    }

    /// Ends the connection; what is posted and not yet done is flushed.
    pub(crate) fn disconnect(&self) -> io::Result<()> {
        // SAFETY: the identifier lives.
        check(unsafe { ffi::rdma_disconnect(self.raw.as_ptr()) })
    }

    /// Lets the identifier's events arrive on another channel.
    pub(crate) fn migrate(&mut self, channel: &Arc<EventChannel>) -> io::Result<()> {
        // SAFETY: both live, and no event of the identifier is unacknowledged: `EventChannel::next` leaves none.
        check(unsafe { ffi::rdma_migrate_id(self.raw.as_ptr(), channel.0.as_ptr()) })?;
        self.channel = Arc::clone(channel);
        Ok(())
    }

    /// The device that it is bound to.
    pub(crate) fn context(&self) -> Option<Context> {
        // SAFETY: the identifier lives as long as `self`.
        NonNull::new(unsafe { self.raw.as_ref().verbs }).map(Context)
    }

    /// The port of the device that it is bound to.
    pub(crate) fn port(&self) -> u8 {
        // SAFETY: the identifier lives as long as `self`.
        unsafe { self.raw.as_ref().port_num }
    }

    /// Our end and the peer's.
    pub(crate) fn addresses(&self) -> Option<(SocketAddr, SocketAddr)> {
        // SAFETY: the identifier lives; both addresses are storage of the largest kind inside it.
        let (local, peer) = unsafe {
            let address = &self.raw.as_ref().route.addr;
            (&raw const address.src_addr_union, &raw const address.dst_addr_union)
        };
        // SAFETY: each union begins with a socket address whose family says how long it is.
        unsafe { Some((socket_address(local.cast())?, socket_address(peer.cast())?)) }
    }

    /// Our end.
    pub(crate) fn local_address(&self) -> Option<SocketAddr> {
        // SAFETY: as for `addresses`.
        unsafe { socket_address((&raw const self.raw.as_ref().route.addr.src_addr_union).cast()) }
    }

    /// Makes the queue pair, which reports to the first of the queues what it was asked to do, and to the other what
    /// came.
    pub(crate) fn create_queue_pair(
        &mut self,
        domain: &Domain,
        completions: (&CompletionQueue, &CompletionQueue),
        receives: &SharedReceiveQueue,
        limits: &QueuePairLimits,
    ) -> io::Result<QueuePair> {
        // SAFETY: all zeroes is a valid value of this structure of integers and pointers.
        let mut attributes: ffi::ibv_qp_init_attr = unsafe { std::mem::zeroed() };
        attributes.send_cq = completions.0.raw.as_ptr();
        attributes.recv_cq = completions.1.raw.as_ptr();
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
    pub(crate) fn destroy_queue_pair(&mut self) {
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
