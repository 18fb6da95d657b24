//! The one owner of everything in a world.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::HostId;
use super::core::{Core, Event, EventKey};
use super::disk_ops::Disks;
use super::net::{EndKey, Listener, Net};
use crate::mailbox::Wake;
use crate::monitor::Watch;
use crate::{Completion, Payload, ReactorCounters, Time, Token};
use ringfab_base::{SlotId, Slots};

/// Number of a port in its world; never used again.
pub(super) type PortKey = usize;

/// Everything in a world. One event at a time changes it, and nothing else does.
pub(super) struct State {
    pub(super) core: Core,
    pub(super) hosts: Vec<Host>,
    pub(super) ports: Vec<PortState>,
    pub(super) net: Net,
    pub(super) disks: Disks,
}

pub(super) struct Host {
    pub(super) name: String,
    pub(super) address: IpAddr,
    pub(super) ephemeral_port: u16,
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
#[derive(Debug, Default)]
pub(super) struct SimulatedWake {
    set: AtomicBool,
    turns: AtomicU64,
}

impl Wake for SimulatedWake {
    fn wake(&self) {
        self.set.store(true, Ordering::Release);
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

impl State {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            core: Core::new(seed),
            hosts: Vec::new(),
            ports: Vec::new(),
            net: Net::default(),
            disks: Disks::default(),
        }
    }

    pub(super) fn add_host(&mut self, name: &str) -> HostId {
        let number = self.hosts.len() as u32 + 1;
        let address = IpAddr::V4(Ipv4Addr::from_bits(Ipv4Addr::new(10, 0, 0, 0).to_bits() + number));
        // The first of the range that IANA set aside for this.
        self.hosts.push(Host { name: name.to_owned(), address, ephemeral_port: 49152 });
        HostId(number - 1)
    }

    pub(super) fn add_port(&mut self, host: HostId) -> PortKey {
        assert!((host.0 as usize) < self.hosts.len(), "a host of another world");
        self.ports.push(PortState {
            host,
            alive: true,
            sockets: Slots::new(),
            listeners: Slots::new(),
            files: Slots::new(),
            timers: Slots::new(),
            timer_queue: BTreeMap::new(),
            ready: VecDeque::new(),
            wake: Arc::default(),
            counters: ReactorCounters::default(),
        });
        self.ports.len() - 1
    }

    /// Handles every event whose time has come.
    pub(super) fn run_due(&mut self) {
        self.close_orphans();
        while let Some(event) = self.core.pop_due() {
            match event {
                Event::Wire { connection, side } => self.wire_due(connection, side),
                Event::DiskPart { operation } => self.disk_part_due(operation),
                Event::DiskDone { operation } => self.disk_done_due(operation),
            }
        }
    }

    /// Moves the clock to the next event or timer, but not beyond `limit`, and handles what is due then. Returns
    /// whether there was anything within the limit.
    pub(super) fn advance(&mut self, limit: Time) -> bool {
        let Some(next) = self.next_time().filter(|next| *next <= limit) else {
            return self.has_ready();
        };
        self.core.now = self.core.now.max(next);
        self.run_due();
        true
    }

    /// The next time at which something happens. Timers that are due wait for a turn and move no clock.
    fn next_time(&self) -> Option<Time> {
        let timers = self.ports.iter().filter(|port| port.alive).filter_map(|port| {
            let later = port.timer_queue.range((self.core.now, u64::MAX)..).next();
            later.map(|(key, _)| key.0)
        });
        timers.chain(self.core.next_event_time()).min()
    }

    /// Whether some port has something to collect now.
    pub(super) fn has_ready(&self) -> bool {
        self.ports.iter().any(|port| port.is_ready(self.core.now))
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

    /// The end of a process: its sockets close, its operations on disks go on without it.
    pub(super) fn end_port(&mut self, key: PortKey) {
        let port = &mut self.ports[key];
        if !port.alive {
            return;
        }
        let sockets = port.silence();
        for end in sockets {
            self.close_end(end);
        }
    }

    /// The end of a host: nobody says goodbye, and the disks forget.
    pub(super) fn crash(&mut self, host: HostId) {
        self.core.record(&[u64::from(host.0)]);
        self.close_orphans();
        for port in self.ports.iter_mut().filter(|port| port.host == host) {
            port.silence();
        }
        self.crash_ends(host);
        self.crash_disks(host);
    }
}

impl PortState {
    pub(super) fn is_ready(&self, now: Time) -> bool {
        let timer_due = || self.timer_queue.first_key_value().is_some_and(|(key, _)| key.0 <= now);
        self.alive && (!self.ready.is_empty() || self.wake.is_set() || timer_due())
    }

    /// Kills the port: everything it holds is dropped. Returns its sockets, which are still open.
    fn silence(&mut self) -> Vec<EndKey> {
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
