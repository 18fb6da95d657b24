//! NVMe/TCP, the controller's side (NVM Express TCP Transport 1.0): the connection carries capsules and data itself.
//! Data from the host are asked for with one R2T for the command, data to the host go out in C2HData.

use ringfab_fabric::rdma::Slice;
use ringfab_fabric::tcp::{C2hData, ConnectionId, TcpEvent, TcpStack};
use ringfab_memory::{Buffer, SharedBuffer};
use ringfab_spec::{CompletionEntry, Status};

use super::{
    CommandData, Disconnection, Endpoint, FetchId, IncomingConnection, LinkError, Piece, TransportHandler,
};

/// Tells what NVMe/TCP has reported. What comes for each command is looked at where it lies.
#[inline]
pub(crate) fn report(event: &mut Option<TcpEvent>, handler: &mut impl TransportHandler) {
    match event {
        Some(TcpEvent::Command { connection, sqe, data, intact }) => {
            handler.on_capsule(Endpoint::Tcp(*connection), Some(sqe), data.take(), *intact);
        }
        Some(TcpEvent::Sent { connection, count }) => handler.on_sent(Endpoint::Tcp(*connection), *count),
        _ => event.take().into_iter().for_each(|event| report_rest(event, handler)),
    }
}

fn report_rest(event: TcpEvent, handler: &mut impl TransportHandler) {
    match event {
        TcpEvent::Data { connection, id, sink, intact } => {
            handler.on_fetched(Endpoint::Tcp(connection), FetchId::from_bits(id), sink, intact);
        }
        TcpEvent::Incoming(incoming) => handler.on_incoming(IncomingConnection::Tcp(incoming)),
        TcpEvent::ConnectFailed { connection, error } => {
            handler.on_disconnected(
                Endpoint::Tcp(connection),
                Disconnection::before_established(&error.to_string()),
            );
        }
        TcpEvent::Disconnected { connection, reason } => {
            Disconnection::report(&reason, Endpoint::Tcp(connection), handler);
        }
        // Those are for hosts.
        TcpEvent::Established { .. } | TcpEvent::Response { .. } => {}
        TcpEvent::Command { .. } | TcpEvent::Sent { .. } => unreachable!("they are told where they lie"),
    }
}

/// One R2T for all pieces: however few a host allows for a command, it is enough.
pub(super) fn fetch(
    tcp: &mut TcpStack,
    connection: ConnectionId,
    command: &CommandData,
    sinks: impl Iterator<Item = Piece<Buffer>>,
) -> (u16, Result<(), LinkError>) {
    let mut count = 0;
    let pieces = sinks.map(|Piece { index, memory, .. }| {
        count += 1;
        (command.fetch_id(index), memory)
    });
    match tcp.request_data(connection, command.cid, command.length.0, pieces) {
        Ok(()) => (count, Ok(())),
        Err(_) => (0, Err(LinkError::Ended)),
    }
}

/// C2HData for each piece, and the response; or SUCCESS with the last piece in its place, where it would say nothing.
/// Whether there is a response.
pub(super) fn answer(
    tcp: &mut TcpStack,
    connection: ConnectionId,
    command: &CommandData,
    count: usize,
    data: impl Iterator<Item = Piece<SharedBuffer>>,
    entry: &CompletionEntry,
) -> Result<bool, LinkError> {
    let says_nothing = *entry == CompletionEntry::new(entry.cid.get(), NO_HEAD, Status::SUCCESS);
    for Piece { index, offset, length, memory: shared_buffer } in data {
        let last = usize::from(index) + 1 == count;
        let success = last && says_nothing;
        let slice = Slice { shared_buffer, offset: 0, length };
        let data = C2hData { cid: command.cid, offset, slice, last, success };
        tcp.send_data(connection, data).map_err(|_| LinkError::Ended)?;
    }
    if says_nothing && count > 0 {
        return Ok(false);
    }
    tcp.respond(connection, *entry).map_err(|_| LinkError::Ended)?;
    Ok(true)
}

/// SQHD of a queue without flow control: only there may a response be left out.
const NO_HEAD: u16 = u16::MAX;
