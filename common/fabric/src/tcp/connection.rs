//! What NVMe/TCP adds to a stream.

use std::ops::Range;

use ringfab_memory::{Pool, SharedBuffer};
use ringfab_proto::tcp::{ControllerConfig, Digests, Engine, EngineError, Negotiated, crc};
use ringfab_reactor::Reactor;
use ringfab_spec::tcp::CapsuleCmd;
use ringfab_spec::{FabricsType, FromBytes};

use super::inbound::{Capsule, Transfers};
use super::{AcceptParameters, ConnectError, ConnectionId, DisconnectReason, Incoming, TcpEvent};
use crate::stream::{End, Fault, Gather, Offered, Protocol, ReceiveTarget, Shared, Step};
use crate::table::Key;

/// The most data of an H2CData PDU: as much as a large buffer of a pool has most often.
const H2C_BYTES_MAX: u32 = 128 << 10;

/// Data that miss at least this many bytes are received straight into their final place. Smaller ones are copied: a
/// receive that ends with one PDU would make a system call for each, when many are waiting.
pub(super) const DIRECT_BYTES_MIN: u32 = 16 << 10;

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) id: ConnectionId,
    pub(super) engine: Engine<SharedBuffer>,
    /// Whether it is a listener's: it takes ICReq, answers it, and waits for the header of the first capsule, which
    /// says to which core it should go.
    pub(super) arriving: bool,
    /// Memory for in-capsule data; a host needs none.
    pub(super) pool: Option<Pool>,
    /// The capsule that is being received.
    pub(super) capsule: Option<Capsule>,
    pub(super) transfers: Transfers,
}

impl Connection {
    pub(super) fn new(key: Key, engine: Engine<SharedBuffer>) -> Self {
        Self {
            id: key.into(),
            engine,
            arriving: false,
            pool: None,
            capsule: None,
            transfers: Transfers::new(0),
        }
    }

    /// One that came from a listener.
    pub(super) fn adopted(key: Key, negotiated: Negotiated, parameters: &AcceptParameters) -> Self {
        let config = controller_config(negotiated.digests, Some(parameters));
        Self {
            pool: Some(parameters.pool.clone()),
            transfers: Transfers::new(parameters.commands_max),
            ..Self::new(key, Engine::resume(config, negotiated))
        }
    }
}

/// What a controller's end brings to a connection. Before it is adopted it takes no commands.
fn controller_config(digests: Digests, adopted: Option<&AcceptParameters>) -> ControllerConfig {
    ControllerConfig {
        digests,
        alignment_dwords: 1,
        capsule_bytes_max: adopted.map_or(0, |parameters| parameters.capsule_bytes_max),
        h2c_bytes_max: H2C_BYTES_MAX,
        transfers_max: adopted.map_or(0, |parameters| parameters.commands_max),
        direct_bytes_min: DIRECT_BYTES_MIN,
    }
}

impl Protocol for Connection {
    type Core = ();
    type Event = TcpEvent;
    type Terms = Digests;

    /// Small PDUs are received many at a time.
    const STAGING_BYTES: usize = 256 * 1024;

    fn accepted(key: Key, digests: Digests) -> Self {
        let engine = Engine::controller(controller_config(digests, None));
        Self { arriving: true, ..Self::new(key, engine) }
    }

    #[inline]
    fn is_established(&self) -> bool {
        !self.arriving && self.engine.negotiated().is_some()
    }

    fn is_adoptable(&self, unread: &[u8]) -> bool {
        self.engine.negotiated().is_some() && unread.len() >= first_bytes(unread)
    }

    fn offer(self, offered: Offered<'_>) -> Option<TcpEvent> {
        let Offered { listener, socket, addresses: (local, peer), unread, tls } = offered;
        let (negotiated, bytes) = (self.engine.negotiated()?, unread.to_vec());
        let (header, _) = CapsuleCmd::read_from_prefix(&bytes).ok()?;
        let controller_id = first_controller_id(&bytes);
        let first = header.sqe;
        let security = tls.as_ref().map(|tls| tls.security.clone());
        let incoming = Incoming {
            listener,
            local,
            peer,
            first,
            controller_id,
            security,
            socket,
            negotiated,
            bytes,
            tls,
        };
        // Rare, and larger than everything that is not.
        Some(TcpEvent::Incoming(Box::new(incoming)))
    }

    #[inline]
    fn receive(
        &mut self,
        shared: &mut Shared<Self>,
        staging: &[u8],
        unread: &mut Range<usize>,
    ) -> Result<ReceiveTarget, Fault> {
        let wanted = self.feed(shared, staging, unread);
        shared.copies.make(staging);
        wanted
    }

    fn placed(&mut self, shared_buffer: &SharedBuffer, range: Range<usize>) {
        let length = range.len();
        let checksum = |state| shared_buffer.with_bytes(range, |bytes| crc::update(state, bytes));
        self.engine.direct_received(length, checksum);
    }

    #[inline]
    fn wants_transmit(&self) -> bool {
        self.engine.wants_transmit()
    }

    #[inline]
    fn transmit(&mut self, _: &mut Shared<Self>, _: &Reactor, gather: &mut Gather<'_>) -> usize {
        self.engine.transmit(gather);
        0
    }

    #[inline]
    fn transmitted(&mut self, shared: &mut Shared<Self>, _: usize) {
        let connection = self.id;
        let count = self.engine.transmitted();
        if count > 0 {
            shared.events.push_with(|| TcpEvent::Sent { connection, count });
        }
    }

    fn has_owner(&self) -> bool {
        !self.arriving
    }

    fn finish(&mut self, shared: &mut Shared<Self>, _: &Reactor, end: End) {
        self.engine.close();
        self.capsule = None;
        // Of one that nobody has adopted, nobody has heard.
        if self.arriving {
            return;
        }
        let connection = self.id;
        for (id, _) in self.transfers.end_all() {
            shared.events.push_with(|| TcpEvent::Data { connection, id, sink: None, intact: false });
        }
        shared.events.push_with(|| last_event(connection, end));
    }
}

fn last_event(connection: ConnectionId, end: End) -> TcpEvent {
    let error = match end {
        End::Disconnected(reason) => return TcpEvent::Disconnected { connection, reason },
        End::Refused(error) => ConnectError::Connect(error),
        End::TimedOut { step, limit } => {
            let step = match step {
                Step::Connect => "connect",
                Step::Secure => "TLS handshake",
                Step::Open => "ICReq",
            };
            ConnectError::TimedOut { step, seconds: limit.as_secs() }
        }
        End::Unsecured(what) => ConnectError::Tls(what),
        End::Unopened(reason @ (DisconnectReason::PeerClosed | DisconnectReason::Broken(_))) => {
            ConnectError::InitializeEnded(reason.into_detail())
        }
        End::Unopened(reason) => ConnectError::Initialize(reason.into_detail()),
    };
    TcpEvent::ConnectFailed { connection, error }
}

/// Bytes of the first capsule that say where a connection belongs: its header, and of a Connect the controller
/// identifier, where its data are in the capsule.
pub(super) fn first_bytes(unread: &[u8]) -> usize {
    let Ok((header, _)) = CapsuleCmd::read_from_prefix(unread) else { return CapsuleCmd::SIZE };
    let connects = header.sqe.is_fabrics() && header.sqe.fabrics_type() == FabricsType::CONNECT;
    let wanted = usize::from(header.ch.pdo) + CONTROLLER_ID_END;
    let has_it = connects && header.ch.pdo > 0 && wanted <= header.ch.plen.get() as usize;
    if has_it { wanted } else { CapsuleCmd::SIZE }
}

/// The controller identifier that the first capsule of a connection names, if it does.
pub(super) fn first_controller_id(bytes: &[u8]) -> Option<u16> {
    let end = first_bytes(bytes);
    if end == CapsuleCmd::SIZE {
        return None;
    }
    bytes.get(end - 2..end).map(|id| u16::from_le_bytes([id[0], id[1]]))
}

/// Where the controller identifier ends in the data of a Connect.
const CONTROLLER_ID_END: usize = 18;

/// What the engine's error means for the stream.
#[cold]
pub(super) fn fault(error: EngineError) -> Fault {
    match error {
        EngineError::Violation(violation) => Fault::Violation(violation.to_string()),
        EngineError::Terminated(termination) => {
            Fault::Ended(DisconnectReason::PeerTerminated(termination.to_string()))
        }
        EngineError::Ended => Fault::Ended(DisconnectReason::Broken("it had ended before".to_owned())),
    }
}
