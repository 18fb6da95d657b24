//! The hosts of a world with what their processes have open, and the clock that all of them share.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ringfab_base::{SlotId, Slots};

use super::HostId;
pub(super) use super::core::PortKey;
use super::core::{Core, Event, EventKey};
use super::post::{Letter, LetterBox, PostOffice};
use crate::mailbox::{Gate, Wake};
use crate::monitor::Watch;
use crate::{Completion, ListenerId, Payload, ReactorCounters, Time, Token};

/// The first of the ports that are given to whoever asks for none; IANA keeps 49152 and above for this.
const EPHEMERAL_FIRST: u16 = 49152;

/// Every host and every port, and the clock, the chance and the events of the world.
pub(super) struct Machines {
    pub(super) core: Core,
    pub(super) hosts: Vec<Host>,
    pub(super) ports: Vec<PortState>,
    pub(super) office: Arc<PostOffice>,
    /// Messages on their way.
    letters: BTreeMap<u64, Letter>,
}

pub(super) struct Host {
    pub(super) name: String,
    pub(super) address: IpAddr,
    /// Whose address it is: its own, or that of the host which it is one more way to.
    pub(super) machine: HostId,
    pub(super) ephemeral_port: u16,
    /// How long a message to one of its cores is on its way, at least and at most.
    pub(super) mailbox_delay: (Duration, Duration),
}

/// What the world knows of one port.
pub(super) struct PortState {
    pub(super) host: HostId,
    pub(super) alive: bool,
    pub(super) sockets: Slots<EndKey>,
    pub(super) listeners: Slots<Listener>,
    pub(super) files: Slots<OpenFile>,
    pub(super) timers: Slots<EventKey>,
    /// Timers stay here until a turn collects them, so that cancelling one that is due still works.
    pub(super) timer_queue: BTreeMap<EventKey, (SlotId, Token)>,
    pub(super) ready: VecDeque<Completion>,
    pub(super) wake: Arc<SimulatedWake>,
    pub(super) counters: ReactorCounters,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct OpenFile {
    pub(super) disk: usize,
    pub(super) direct: bool,
    pub(super) read_only: bool,
    /// Failures of write-back that it has told of, or that were told before it was opened.
    pub(super) failures_told: u64,
}

/// A flag that the next turn takes down, and how many turns there were.
#[derive(Debug)]
pub(super) struct SimulatedWake {
    port: PortKey,
    set: Arc<AtomicBool>,
    turns: AtomicU64,
    office: Arc<PostOffice>,
}

impl Wake for SimulatedWake {
    fn wake(&self) {
        self.set.store(true, Ordering::Release);
    }

    fn mailbox(&self) -> Option<(Arc<dyn Wake>, Arc<Gate>)> {
        Some(LetterBox::open(self.port, &self.set, &self.office))
    }
}

/// A simulated loop takes no time at all, so that it neither spins nor sleeps.
impl Watch for SimulatedWake {
    fn turns(&self) -> u64 {
        self.turns.load(Ordering::Relaxed)
    }

    fn is_sleeping(&self) -> bool {
        false
    }

    fn spun(&self) -> Duration {
        Duration::ZERO
    }

    fn slept(&self) -> Duration {
        Duration::ZERO
    }
}

impl SimulatedWake {
    fn new(port: PortKey, office: &Arc<PostOffice>) -> Arc<Self> {
        let (set, office) = (Arc::default(), Arc::clone(office));
        Arc::new(Self { port, set, turns: AtomicU64::new(0), office })
    }

    pub(super) fn is_set(&self) -> bool {
        self.set.load(Ordering::Acquire)
    }

    pub(super) fn take(&self) -> bool {
        self.set.swap(false, Ordering::AcqRel)
    }

    pub(super) fn set_turns(&self, turns: u64) {
        self.turns.store(turns, Ordering::Relaxed);
    }
}

/// One end of a connection: side zero connected, side one accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct EndKey {
    pub(super) connection: u64,
    pub(super) side: usize,
}

impl EndKey {
    pub(super) fn peer(self) -> Self {
        Self { connection: self.connection, side: 1 - self.side }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Listener {
    pub(super) address: SocketAddr,
    pub(super) token: Token,
}

impl Machines {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            core: Core::new(seed),
            hosts: Vec::new(),
            ports: Vec::new(),
            office: Arc::default(),
            letters: BTreeMap::new(),
        }
    }

    pub(super) fn add_host(&mut self, name: &str) -> HostId {
        self.add(name, HostId(self.hosts.len() as u32))
    }

    /// One more address of a host, with links of its own.
    pub(super) fn add_way(&mut self, host: HostId, name: &str) -> HostId {
        assert_eq!(self.machine_of(host), host, "ways lead to hosts");
        self.add(name, host)
    }

    /// The host that an address is one of.
    pub(super) fn machine_of(&self, host: HostId) -> HostId {
        self.hosts[host.0 as usize].machine
    }

    fn add(&mut self, name: &str, machine: HostId) -> HostId {
        let number = self.hosts.len() as u32 + 1;
        let address = IpAddr::V4(Ipv4Addr::from_bits(Ipv4Addr::new(10, 0, 0, 0).to_bits() + number));
        // The first of the range that IANA set aside for this.
        let mailbox_delay = (Duration::ZERO, Duration::ZERO);
        self.hosts.push(Host {
            name: name.to_owned(),
            address,
            machine,
            ephemeral_port: 49152,
            mailbox_delay,
        });
        HostId(number - 1)
    }

    pub(super) fn add_port(&mut self, host: HostId) -> PortKey {
        assert!((host.0 as usize) < self.hosts.len(), "a host of another world");
        assert_eq!(self.machine_of(host), host, "ports are a host's, not an address's");
        self.ports.push(PortState {
            host,
            alive: true,
            sockets: Slots::new(),
            listeners: Slots::new(),
            files: Slots::new(),
            timers: Slots::new(),
            timer_queue: BTreeMap::new(),
            ready: VecDeque::new(),
            wake: SimulatedWake::new(self.ports.len(), &self.office),
            counters: ReactorCounters::default(),
        });
        self.ports.len() - 1
    }

    /// The next time at which something happens. Timers that are due wait for a turn and move no clock.
    pub(super) fn next_time(&self) -> Option<Time> {
        let timers = self.ports.iter().filter(|port| port.alive).filter_map(|port| {
            let later = port.timer_queue.range((self.core.now, u64::MAX)..).next();
            later.map(|(key, _)| key.0)
        });
        timers.chain(self.core.next_event_time()).min()
    }

    /// Whether some port has something to collect now.
    pub(super) fn has_ready(&self) -> bool {
        self.office.has_mail() || self.ports.iter().any(|port| port.is_ready(self.core.now))
    }

    /// What was sent between cores since the last look gets on its way.
    pub(super) fn collect_mail(&mut self) {
        for letter in self.office.collect() {
            let host = self.ports[letter.letter_box.port].host;
            let (delay_min, delay_max) = self.hosts[host.0 as usize].mailbox_delay;
            let at = letter.behind_others(self.core.after(delay_min, delay_max));
            let number = self.core.next_sequence();
            self.letters.insert(number, letter);
            self.core.schedule(at, Event::Letter { letter: number });
        }
    }

    /// A message has arrived.
    pub(super) fn letter_due(&mut self, number: u64) {
        let Some(letter) = self.letters.remove(&number) else { return };
        self.core.record(&[letter.letter_box.port as u64]);
        letter.arrive();
    }

    /// Hands a completion to the port, or drops it (and what it holds) when the port is gone.
    pub(super) fn complete(
        &mut self,
        port: PortKey,
        token: Token,
        result: io::Result<u32>,
        payload: Payload,
    ) {
        let state = &mut self.ports[port];
        if !state.alive {
            return;
        }
        let outcome = match &result {
            Ok(bytes) => u64::from(*bytes),
            Err(error) => u64::MAX - error.raw_os_error().unwrap_or(0) as u64,
        };
        self.core.record(&[port as u64, token_bits(token), outcome]);
        state.ready.push_back(Completion { token, result, payload });
    }

    pub(super) fn set_timer(&mut self, port: PortKey, at: Time, token: Token) -> SlotId {
        let key = (at, self.core.next_sequence());
        let port = &mut self.ports[port];
        let id = port.timers.insert(key);
        if port.alive {
            port.timer_queue.insert(key, (id, token));
        }
        id
    }

    /// Completes the timers of a port that are due.
    pub(super) fn collect_timers(&mut self, key: PortKey) {
        let now = self.core.now;
        while let Some(entry) = self.ports[key].timer_queue.first_entry()
            && entry.key().0 <= now
        {
            let (id, token) = entry.remove();
            self.ports[key].timers.remove(id);
            self.complete(key, token, Ok(0), Payload::None);
        }
    }

    pub(super) fn listen(
        &mut self,
        port: PortKey,
        address: SocketAddr,
        token: Token,
    ) -> io::Result<(ListenerId, SocketAddr)> {
        let host = self.ports[port].host;
        if !self.is_local(host, address.ip()) {
            return Err(errno(libc::EADDRNOTAVAIL));
        }
        let mut address = address;
        if address.port() == 0 {
            address.set_port(self.pick_port(host)?);
        } else if self.is_taken(host, address) {
            return Err(errno(libc::EADDRINUSE));
        }
        let id = self.ports[port].listeners.insert(Listener { address, token });
        Ok((ListenerId(id), address))
    }

    pub(super) fn listener_at(&self, at: HostId, address: SocketAddr) -> Option<(PortKey, Token)> {
        let host = self.machine_of(at);
        let ports = self.ports.iter().enumerate().filter(|(_, port)| port.host == host);
        let mut listeners =
            ports.flat_map(|(key, port)| port.listeners.values().map(move |listener| (key, listener)));
        let found = listeners.find(|(_, listener)| {
            let bound = listener.address;
            bound.port() == address.port() && (bound.ip().is_unspecified() || bound.ip() == address.ip())
        });
        found.map(|(key, listener)| (key, listener.token))
    }

    fn is_taken(&self, host: HostId, address: SocketAddr) -> bool {
        let ports = self.ports.iter().filter(|port| port.host == host);
        ports.flat_map(|port| port.listeners.values()).any(|listener| {
            let (bound, wanted) = (listener.address, address);
            let overlaps =
                bound.ip() == wanted.ip() || bound.ip().is_unspecified() || wanted.ip().is_unspecified();
            bound.port() == wanted.port() && overlaps
        })
    }

    /// A port of `host` that nobody listens on.
    pub(super) fn pick_port(&mut self, host: HostId) -> io::Result<u16> {
        for _ in EPHEMERAL_FIRST..=u16::MAX {
            let next = &mut self.hosts[host.0 as usize].ephemeral_port;
            let picked = *next;
            *next = picked.checked_add(1).unwrap_or(EPHEMERAL_FIRST);
            if !self.is_taken(host, SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), picked)) {
                return Ok(picked);
            }
        }
        Err(errno(libc::EADDRNOTAVAIL))
    }

    pub(super) fn is_local(&self, host: HostId, ip: IpAddr) -> bool {
        let is_own = |one: &Host| one.machine == host && one.address == ip;
        ip.is_unspecified() || ip.is_loopback() || self.hosts.iter().any(is_own)
    }

    /// The host that has an address, or the way to it, seen from `host`.
    pub(super) fn host_of(&self, host: HostId, ip: IpAddr) -> Option<HostId> {
        let own = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)].contains(&ip);
        if own || ip.is_loopback() {
            return Some(host);
        }
        let index = self.hosts.iter().position(|candidate| candidate.address == ip)?;
        Some(HostId(index as u32))
    }
}

impl PortState {
    pub(super) fn is_ready(&self, now: Time) -> bool {
        let timer_due = || self.timer_queue.first_key_value().is_some_and(|(key, _)| key.0 <= now);
        self.alive && (!self.ready.is_empty() || self.wake.is_set() || timer_due())
    }

    /// Kills the port: everything it holds is dropped. Returns its sockets, which are still open.
    pub(super) fn silence(&mut self) -> Vec<EndKey> {
        self.alive = false;
        self.listeners.drain();
        self.files.drain();
        self.timers.drain();
        self.timer_queue.clear();
        self.ready.clear();
        self.sockets.drain()
    }
}

/// An error that the kernel would give.
pub(super) fn errno(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

fn token_bits(token: Token) -> u64 {
    u64::from(token.owner) << 56
        | u64::from(token.kind) << 48
        | u64::from(token.generation) << 32
        | u64::from(token.index)
}
