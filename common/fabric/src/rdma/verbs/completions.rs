//! What devices say of requests and receives that are over.

use ringfab_reactor::Reactor;

use super::connection::{Connection, End, Phase};
use super::domain::{Domain, ReceiveId};
use super::exposure::Exposures;
use super::posted::Outstanding;
use super::queue_pairs::QueuePairs;
use super::send_queue::send_of;
use super::sys::{self, WorkCompletion};
use crate::events::Events;
use crate::rdma::{DisconnectReason, RnicEvent};

impl QueuePairs {
    /// Takes what has completed; whether there was anything.
    pub(super) fn take_completions(&mut self, reactor: &mut Reactor) -> bool {
        let mut total = 0;
        let Self { adapters, connections, domains, exposures, events, by_number, .. } = self;
        let mut completed = Outstanding::default();
        let mut troubled = Vec::new();
        let mut drained = Vec::new();
        for (index, adapter) in adapters.iter_mut() {
            total += adapter.poll(|completion| match ReceiveId::from_bits(completion.id) {
                Some(receive) => {
                    let key = by_number.get(&(index, completion.queue_pair)).copied();
                    let connection = key.and_then(|key| connections.get_mut(key));
                    let Some(domain) = domains.get_mut(usize::from(receive.domain)).and_then(Option::as_mut)
                    else {
                        return;
                    };
                    if let Some(end) = received(domain, connection, receive, completion, exposures, events) {
                        troubled.extend(key.map(|key| (key, end)));
                    }
                }
                None => {
                    let (slot, generation, count) = send_of(completion.id);
                    let Some(key) = by_number.get(&(index, completion.queue_pair)).copied() else { return };
                    if key.index != slot || key.generation & 0x3ff != generation {
                        return;
                    }
                    let Some(connection) = connections.get_mut(key) else { return };
                    completed.add(connection.sends.completed(count, completion, events));
                    if completion.status != 0 && completion.status != sys::STATUS_FLUSHED {
                        let why = format!("a work request failed: {}", sys::status_text(completion.status));
                        troubled.push((key, End::Disconnected(DisconnectReason::Broken(why))));
                    } else if connection.phase == Phase::Draining {
                        drained.push(key);
                    }
                }
            });
            adapter.outstanding.subtract(std::mem::take(&mut completed));
        }
        for (key, end) in troubled {
            self.violations += 1;
            self.finish_soon(key, end);
        }
        for key in drained {
            self.disconnect_when_drained(reactor, key);
        }
        total > 0
    }
}

/// A receive has completed. Returns why its queue pair must end, if it must.
fn received(
    domain: &mut Domain,
    connection: Option<&mut Box<Connection>>,
    receive: ReceiveId,
    completion: &WorkCompletion,
    exposures: &mut Exposures,
    events: &mut Events<RnicEvent>,
) -> Option<End> {
    let queue = usize::from(receive.queue);
    let Some(connection) = connection.filter(|_| completion.status == 0) else {
        domain.recycle(queue, receive.number);
        let why = match completion.status {
            0 | sys::STATUS_FLUSHED => return None,
            sys::STATUS_LENGTH => {
                return Some(violation("a message longer than the receive for it"));
            }
            status => format!("a receive failed: {}", sys::status_text(status)),
        };
        return Some(End::Disconnected(DisconnectReason::Broken(why)));
    };
    let Some(credits) = connection.credits.checked_sub(1) else {
        domain.recycle(queue, receive.number);
        return Some(violation("a message without a receive credit"));
    };
    connection.credits = credits;
    domain.unreserve_receives(queue, 1);
    let (head, data) = domain.received(queue, receive.number, completion.bytes as usize);
    let queue_pair = connection.id();
    if connection.phase == Phase::Accepting {
        // The peer's confirmation is still on its way; that it speaks says as much.
        connection.phase = Phase::Established;
        let private_data = std::mem::take(&mut connection.private_data);
        events.push_with(|| RnicEvent::Established { queue_pair, private_data });
    }
    if let Some(key) = completion.invalidated {
        exposures.invalidated(connection.key, key);
    }
    events.push_with(|| RnicEvent::Received { queue_pair, head, data, invalidated: completion.invalidated });
    None
}

fn violation(what: &str) -> End {
    End::Disconnected(DisconnectReason::Violation(what.to_owned()))
}
