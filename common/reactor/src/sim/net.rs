//! Links between hosts, and the wire: segments on their way, in order, late, cut, or stalled.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::HostId;
use super::core::{Event, EventKey};
use super::machines::{EndKey, Machines, PortKey};
use crate::{ReceiveOp, SendBatch, SocketId, Time, Token};

/// How a link between two hosts (or within one) behaves. The default is a quick link without faults.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkFaults {
    /// The shortest time that a segment is on its way.
    pub delay_min: Duration,
    /// The longest.
    pub delay_max: Duration,
    /// Sends are cut into segments of one to this many bytes, and a receive may get less than what is there.
    /// `usize::MAX` cuts nothing.
    pub chunk_max: usize,
    /// How probable it is, for each segment, that the connection is reset instead of carrying it.
    pub cut_probability: f64,
    /// How probable it is that a connection is refused although somebody listens.
    pub refuse_probability: f64,
    /// How probable it is that a datagram is lost.
    pub loss_probability: f64,
    /// How probable it is that one comes twice. Each is on its way by itself, so that one may overtake another.
    pub duplicate_probability: f64,
    /// Bytes that may be on their way to an end and wait there; a send completes when its last byte is within.
    pub buffer_bytes: usize,
    /// How much later, at most, an end learns that the other one, or the network, has given the connection up. It takes
    /// the connection for a living one until then, while the other end may long have made another one.
    pub late_max: Duration,
    /// Whether what is on its way then arrives as late. Otherwise it is lost, if news of the end are late.
    pub late_data: bool,
}

impl Default for LinkFaults {
    fn default() -> Self {
        Self {
            delay_min: Duration::from_micros(5),
            delay_max: Duration::from_micros(5),
            chunk_max: usize::MAX,
            cut_probability: 0.0,
            refuse_probability: 0.0,
            loss_probability: 0.0,
            duplicate_probability: 0.0,
            buffer_bytes: 256 * 1024,
            late_max: Duration::ZERO,
            late_data: false,
        }
    }
}

/// A socket between two ports. Dropping it closes it, as soon as the world next looks.
#[derive(Debug)]
pub(crate) struct SocketHandle {
    end: EndKey,
    adopted: bool,
    orphans: Orphans,
}

impl Drop for SocketHandle {
    fn drop(&mut self) {
        if !self.adopted {
            self.orphans.lock().unwrap_or_else(PoisonError::into_inner).push(self.end);
        }
    }
}

/// Ends whose handle was dropped outside of the world.
type Orphans = Arc<Mutex<Vec<EndKey>>>;

/// All links and connections.
#[derive(Default)]
pub(super) struct Net {
    pub(super) default_link: LinkFaults,
    pub(super) links: BTreeMap<(HostId, HostId), Link>,
    pub(super) connections: BTreeMap<u64, Connection>,
    pub(super) orphans: Orphans,
}

#[derive(Default)]
pub(super) struct Link {
    pub(super) faults: Option<LinkFaults>,
    /// What the first of the two hosts sends does not arrive, and what the second does.
    partitioned: [bool; 2],
}

/// A link, as one of its hosts uses it.
#[derive(Clone, Copy)]
pub(super) struct Direction {
    pub(super) from: HostId,
    pub(super) to: HostId,
}

impl Direction {
    fn index(self) -> usize {
        usize::from(self.from > self.to)
    }
}

pub(super) struct Connection {
    pub(super) ends: [End; 2],
    /// The network has given this connection up; both ends are about to learn of it.
    pub(super) cut: bool,
}

/// Who holds an end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Owner {
    /// Nobody yet: its SYN has not arrived.
    Unborn,
    /// A socket of a port.
    Socket(PortKey, SocketId),
    /// A handle on its way from one port to another.
    Detached,
    /// Nobody any more.
    Closed,
}

pub(super) struct End {
    pub(super) host: HostId,
    pub(super) address: SocketAddr,
    pub(super) owner: Owner,
    /// Segments on their way to this end.
    pub(super) wire: Wire,
    /// Bytes that have arrived and that nobody has received yet.
    pub(super) arrived: VecDeque<u8>,
    /// The handshake is over.
    pub(super) established: bool,
    /// The peer's end of stream has arrived.
    pub(super) finished: bool,
    /// A reset has arrived, or the own kernel has given the connection up.
    pub(super) reset: bool,
    /// It was the own kernel.
    pub(super) timed_out: bool,
    /// The own end of stream was asked for; it follows the send in flight.
    pub(super) shut: bool,
    pub(super) connecting: Option<Token>,
    pub(super) receives: VecDeque<(Box<ReceiveOp>, Token)>,
    pub(super) sending: Option<(Box<SendBatch>, Token)>,
}

#[derive(Default)]
pub(super) struct Wire {
    pub(super) segments: VecDeque<(Time, Segment)>,
    pub(super) bytes: usize,
    pub(super) scheduled: Option<EventKey>,
}

pub(super) enum Segment {
    Connect,
    Accept,
    /// The handshake failed, with this error number.
    Refuse(i32),
    Data(Vec<u8>),
    Finish,
    Reset,
}

impl End {
    pub(super) fn new(host: HostId, address: SocketAddr, owner: Owner) -> Self {
        Self {
            host,
            address,
            owner,
            wire: Wire::default(),
            arrived: VecDeque::new(),
            established: false,
            finished: false,
            reset: false,
            timed_out: false,
            shut: false,
            connecting: None,
            receives: VecDeque::new(),
            sending: None,
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.connecting.is_none() && self.receives.is_empty() && self.sending.is_none()
    }
}

impl Net {
    pub(super) fn link(&mut self, a: HostId, b: HostId) -> &mut Link {
        self.links.entry((a.min(b), a.max(b))).or_default()
    }

    pub(super) fn faults(&self, a: HostId, b: HostId) -> &LinkFaults {
        let link = self.links.get(&(a.min(b), a.max(b)));
        link.and_then(|link| link.faults.as_ref()).unwrap_or(&self.default_link)
    }

    pub(super) fn is_partitioned(&self, direction: Direction) -> bool {
        let Direction { from, to } = direction;
        let link = self.links.get(&(from.min(to), from.max(to)));
        link.is_some_and(|link| link.partitioned[direction.index()])
    }

    pub(super) fn end(&mut self, key: EndKey) -> Option<&mut End> {
        self.connections.get_mut(&key.connection).map(|connection| &mut connection.ends[key.side])
    }

    /// The ends of connections between two hosts, in order.
    fn ends_between(&self, a: HostId, b: HostId) -> Vec<EndKey> {
        let wanted = (a.min(b), a.max(b));
        let found = self.connections.iter().filter(|(_, connection)| {
            let [one, two] = [connection.ends[0].host, connection.ends[1].host];
            (one.min(two), one.max(two)) == wanted
        });
        found.flat_map(|(key, _)| [0, 1].map(|side| EndKey { connection: *key, side })).collect()
    }

    pub(super) fn handle(&self, end: EndKey) -> SocketHandle {
        SocketHandle { end, adopted: false, orphans: Arc::clone(&self.orphans) }
    }
}

impl SocketHandle {
    /// The end behind the handle, which from now on is somebody's socket.
    pub(super) fn adopt(mut self) -> EndKey {
        self.adopted = true;
        self.end
    }

    pub(super) fn end(&self) -> EndKey {
        self.end
    }

    pub(super) fn is_of(&self, net: &Net) -> bool {
        Arc::ptr_eq(&self.orphans, &net.orphans)
    }
}

impl Net {
    /// Puts a segment on the wire towards `to`, behind everything that is already there.
    pub(super) fn push_segment(&mut self, machines: &mut Machines, to: EndKey, segment: Segment) {
        let Some(connection) = self.connections.get(&to.connection) else { return };
        let hosts = connection.ends.each_ref().map(|end| end.host);
        let faults = self.faults(hosts[0], hosts[1]);
        let (delay_min, delay_max) = (faults.delay_min, faults.delay_max);
        let arrival = machines.core.after(delay_min, delay_max);
        let wire = &mut self.end(to).expect("looked up above").wire;
        let arrival = wire.segments.back().map_or(arrival, |(last, _)| arrival.max(*last));
        if let Segment::Data(bytes) = &segment {
            wire.bytes += bytes.len();
        }
        wire.segments.push_back((arrival, segment));
        self.schedule_wire(machines, to);
    }

    /// Sees to it that the first segment on a wire has an event, unless the link is partitioned.
    fn schedule_wire(&mut self, machines: &mut Machines, to: EndKey) {
        let Some(connection) = self.connections.get(&to.connection) else { return };
        let hosts = connection.ends.each_ref().map(|end| end.host);
        let stalled = self.is_partitioned(Direction { from: hosts[1 - to.side], to: hosts[to.side] });
        let wire = &mut self.end(to).expect("looked up above").wire;
        if stalled || wire.scheduled.is_some() {
            return;
        }
        if let Some((arrival, _)) = wire.segments.front() {
            let event = Event::Wire { connection: to.connection, side: to.side };
            wire.scheduled = Some(machines.core.schedule(*arrival, event));
        }
    }

    /// Delivers what has arrived on a wire.
    pub(super) fn wire_due(&mut self, machines: &mut Machines, connection: u64, side: usize) {
        let to = EndKey { connection, side };
        if let Some(end) = self.end(to) {
            end.wire.scheduled = None;
        }
        while let Some(segment) = self.pop_arrived(machines, to) {
            self.deliver(machines, to, segment);
        }
        self.schedule_wire(machines, to);
    }

    fn pop_arrived(&mut self, machines: &mut Machines, to: EndKey) -> Option<Segment> {
        let now = machines.core.now;
        let wire = &mut self.end(to)?.wire;
        wire.segments.front().filter(|(arrival, _)| *arrival <= now)?;
        let (_, segment) = wire.segments.pop_front()?;
        if let Segment::Data(bytes) = &segment {
            wire.bytes -= bytes.len();
        }
        Some(segment)
    }

    /// Loses everything that is on its way to an end.
    pub(super) fn clear_wire(&mut self, machines: &mut Machines, to: EndKey) {
        let Some(end) = self.end(to) else { return };
        let wire = std::mem::take(&mut end.wire);
        if let Some(event) = wire.scheduled {
            machines.core.unschedule(event);
        }
    }

    /// The network gives a connection up. What was sent before may or may not arrive; then both ends are reset.
    pub(super) fn cut(&mut self, machines: &mut Machines, key: u64) {
        let Some(connection) = self.connections.get_mut(&key) else { return };
        if std::mem::replace(&mut connection.cut, true) {
            return;
        }
        machines.core.record(&[key]);
        for to in [0, 1].map(|side| EndKey { connection: key, side }) {
            if machines.core.chance(0.5) {
                self.clear_wire(machines, to);
            }
            self.push_reset(machines, to);
        }
    }

    /// A connection is given up: an end will learn of it, which may take its time.
    pub(super) fn push_reset(&mut self, machines: &mut Machines, to: EndKey) {
        let Some(connection) = self.connections.get(&to.connection) else { return };
        let hosts = connection.ends.each_ref().map(|end| end.host);
        let LinkFaults { late_max, late_data, .. } = *self.faults(hosts[0], hosts[1]);
        if late_max.is_zero() {
            return self.push_segment(machines, to, Segment::Reset);
        }
        if !late_data {
            self.clear_wire(machines, to);
        }
        let first = machines.core.after(Duration::ZERO, late_max);
        self.push_segment(machines, to, Segment::Reset);
        let wire = &mut self.end(to).expect("looked up above").wire;
        if let Some(event) = wire.scheduled.take() {
            machines.core.unschedule(event);
        }
        wire.not_before(first);
        self.schedule_wire(machines, to);
    }

    /// Cuts every connection between two hosts.
    pub(super) fn cut_links(&mut self, machines: &mut Machines, a: HostId, b: HostId) {
        for end in self.ends_between(a, b) {
            self.cut(machines, end.connection);
        }
    }

    /// One host gives up every connection to another.
    pub(super) fn time_out_links(&mut self, machines: &mut Machines, from: HostId, to: HostId) {
        let ends = self.ends_between(from, to);
        for key in ends {
            if self.end(key).is_some_and(|end| end.host == from && end.established && !end.reset) {
                self.time_out(machines, key);
            }
        }
    }

    fn time_out(&mut self, machines: &mut Machines, key: EndKey) {
        let Some(connection) = self.connections.get_mut(&key.connection) else { return };
        if std::mem::replace(&mut connection.cut, true) {
            return;
        }
        machines.core.record(&[key.connection]);
        let end = &mut connection.ends[key.side];
        (end.reset, end.timed_out) = (true, true);
        let owner = end.owner;
        self.clear_wire(machines, key);
        if let Owner::Socket(port, _) = owner {
            self.end_operations(machines, key, port, libc::ETIMEDOUT);
        }
        self.push_reset(machines, key.peer());
    }

    /// Stalls what one host sends to another, or lets what was stalled arrive after a new delay.
    pub(super) fn partition(&mut self, machines: &mut Machines, direction: Direction, partitioned: bool) {
        let Direction { from: a, to: b } = direction;
        self.link(a, b).partitioned[direction.index()] = partitioned;
        for to in self.ends_between(a, b) {
            if self.end(to).is_none_or(|end| end.host != b) {
                continue;
            }
            let wire = &mut self.end(to).expect("just listed").wire;
            if let Some(event) = wire.scheduled.take() {
                machines.core.unschedule(event);
            }
            if !partitioned {
                self.redate_wire(machines, to, a, b);
                self.schedule_wire(machines, to);
            }
        }
    }

    fn redate_wire(&mut self, machines: &mut Machines, to: EndKey, a: HostId, b: HostId) {
        let faults = self.faults(a, b);
        let (delay_min, delay_max) = (faults.delay_min, faults.delay_max);
        let first = machines.core.after(delay_min, delay_max);
        self.end(to).expect("just listed").wire.not_before(first);
    }
}

impl Wire {
    /// Nothing of what is on it arrives before this.
    fn not_before(&mut self, first: Time) {
        for (arrival, _) in &mut self.segments {
            *arrival = (*arrival).max(first);
        }
    }
}
