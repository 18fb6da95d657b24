//! NVMe/TCP, the host's end of one queue (TCP Transport 1.0). A capsule has a command, followed by the data of a short
//! write. Longer data is sent when the controller asks for it (R2T). Data of a read comes without a request.

use std::io;

use ringfab_fabric::rdma::Slice;
use ringfab_fabric::tcp::{
    ConnectError, ConnectParameters, ConnectionId, Digests, SubmitData, TcpEvent, TcpStack,
};
use ringfab_reactor::Reactor;
use ringfab_spec::tcp::ADMIN_IN_CAPSULE_BYTES;
use ringfab_spec::{CompletionEntry, Status};

use super::{Arrival, Connect, ConnectionEvent, Endpoint, NotSent, TransportHandler};
use crate::command::{Command, Direction};
use crate::error::{Cause, Step};
use crate::tls::TlsFailure;
use crate::wire;

/// The connection of an NVMe queue.
#[derive(Debug)]
pub(crate) struct TcpQueue {
    connection: ConnectionId,
    /// Data of a command that travel in its capsule, in bytes at most.
    in_capsule_bytes_max: u32,
}

/// Reports what NVMe/TCP has reported. A response is looked at where it lies.
#[inline]
pub(crate) fn report(event: &mut Option<TcpEvent>, to: &mut impl TransportHandler) {
    match event {
        Some(TcpEvent::Response { connection, cqe, intact, received }) => {
            let arrival = Arrival { invalidated: None, received: Some(*received) };
            if *intact {
                to.on_response(Endpoint::Tcp(*connection), Some(cqe), arrival);
            } else {
                to.on_response(Endpoint::Tcp(*connection), Some(&damaged(cqe)), arrival);
            }
        }
        _ => event.take().into_iter().for_each(|event| report_rest(event, to)),
    }
}

fn report_rest(event: TcpEvent, to: &mut impl TransportHandler) {
    match event {
        // Flow control is all there is.
        TcpEvent::Established { connection } => {
            to.on_event(Endpoint::Tcp(connection), ConnectionEvent::Established { credits: Some(u16::MAX) });
        }
        TcpEvent::ConnectFailed { connection, error } => {
            to.on_event(Endpoint::Tcp(connection), failed(&error));
        }
        TcpEvent::Disconnected { connection, reason } => {
            to.on_event(Endpoint::Tcp(connection), ConnectionEvent::Disconnected(reason));
        }
        // Responses are told where they lie, and the others are for controllers.
        TcpEvent::Response { .. }
        | TcpEvent::Incoming(_)
        | TcpEvent::Command { .. }
        | TcpEvent::Data { .. }
        | TcpEvent::Sent { .. } => {}
    }
}

/// The answer to a command whose data are not what the controller sent: another try may help.
fn damaged(cqe: &CompletionEntry) -> CompletionEntry {
    if !cqe.status().is_success() {
        return *cqe;
    }
    CompletionEntry::new(cqe.cid.get(), cqe.sqhd.get(), Status::TRANSIENT_TRANSPORT_ERROR)
}

fn failed(error: &ConnectError) -> ConnectionEvent {
    let step = match error {
        ConnectError::Tls(why) => {
            let cause = Cause::Tls(TlsFailure::Handshake(why.clone()));
            return ConnectionEvent::ConnectFailed { step: Step::Tls, cause };
        }
        ConnectError::Connect(_) | ConnectError::TimedOut { step: "connect", .. } => Step::Connect,
        ConnectError::TimedOut { step: "TLS handshake", .. } => Step::Tls,
        _ => Step::Initialize,
    };
    if let ConnectError::InitializeEnded(what) = error {
        return ConnectionEvent::ConnectFailed { step, cause: Cause::Unanswered(what.clone()) };
    }
    // The step is shown anyway, so its name in front of the text is cut.
    let text = error.to_string();
    let cut = ["connect: ", "ICReq: ", "TLS handshake: "].iter().find_map(|name| text.strip_prefix(name));
    ConnectionEvent::ConnectFailed { step, cause: Cause::Fabric(cut.unwrap_or(&text).to_owned()) }
}

impl TcpQueue {
    /// Starts to connect.
    ///
    /// # Errors
    /// When there is no connection left or the system has no socket.
    pub(super) fn connect(tcp: &mut TcpStack, reactor: &mut Reactor, to: &Connect<'_>) -> io::Result<Self> {
        let digests = to.url.digests;
        let parameters = ConnectParameters {
            address: to.address,
            digests: Digests::default().with_header(digests.header).with_data(digests.data),
            tls: to.tls.cloned(),
            commands_max: to.size - 1,
            socket: to.socket_options(),
            timeout: to.timeout,
        };
        let connection = tcp.connect(reactor, &parameters)?;
        let in_capsule_bytes_max = if to.qid == 0 { ADMIN_IN_CAPSULE_BYTES } else { 0 };
        Ok(Self { connection, in_capsule_bytes_max })
    }

    /// Its connection.
    pub(super) fn connection(&self) -> ConnectionId {
        self.connection
    }

    /// Lets short writes travel in the capsule.
    pub(super) fn set_in_capsule(&mut self, bytes_max: u32) {
        self.in_capsule_bytes_max = bytes_max;
    }

    /// Sends a command under an identifier.
    pub(super) fn send(&self, tcp: &mut TcpStack, command: &mut Command, cid: u16) -> Result<(), NotSent> {
        wire::set_identifier(&mut command.entry, cid);
        let data = self.attach_data(command);
        tcp.submit(self.connection, command.entry, data).map_err(|_| NotSent::Ended)
    }

    /// Fills in the data pointer, and says how the data travel.
    fn attach_data(&self, command: &mut Command) -> SubmitData {
        let (offset, length) = (command.offset, command.length);
        let Some(shared_buffer) = &command.memory else {
            wire::set_transport_data(&mut command.entry, 0);
            return SubmitData::None;
        };
        let slice = Slice { shared_buffer: shared_buffer.clone(), offset, length };
        // A Connect has its data in the capsule on every queue.
        let in_capsule =
            if command.entry.is_fabrics() { ADMIN_IN_CAPSULE_BYTES } else { self.in_capsule_bytes_max };
        if command.direction == Direction::ToController && length <= in_capsule {
            wire::set_in_capsule_data(&mut command.entry, length);
            return SubmitData::Capsule(slice);
        }
        wire::set_transport_data(&mut command.entry, length);
        match command.direction {
            Direction::ToHost => SubmitData::ToHost(slice),
            Direction::AllocatedToHost => SubmitData::AllocatedToHost(slice),
            _ => SubmitData::ToController(slice),
        }
    }
}
