//! The one owner of everything in a world.

use super::HostId;
use super::core::Event;
use super::datagrams::Datagrams;
use super::disk_ops::Disks;
use super::machines::{Machines, PortKey};
use super::net::Net;
use crate::Time;

/// Everything in a world. One event at a time changes it, and nothing else does.
pub(super) struct State {
    pub(super) machines: Machines,
    pub(super) net: Net,
    pub(super) datagrams: Datagrams,
    pub(super) disks: Disks,
}

impl State {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            machines: Machines::new(seed),
            net: Net::default(),
            datagrams: Datagrams::default(),
            disks: Disks::default(),
        }
    }

    /// Handles every event whose time has come.
    pub(super) fn run_due(&mut self) {
        let Self { machines, net, datagrams, disks } = self;
        net.close_orphans(machines);
        machines.collect_mail();
        while let Some(event) = machines.core.pop_due() {
            match event {
                Event::Wire { connection, side } => net.wire_due(machines, connection, side),
                Event::DiskPart { operation } => disks.disk_part_due(machines, operation),
                Event::DiskDone { operation } => disks.disk_done_due(machines, operation),
                Event::Datagram { datagram } => datagrams.arrive(machines, datagram),
                Event::Letter { letter } => machines.letter_due(letter),
            }
        }
    }

    /// Moves the clock to the next event or timer, but not beyond `limit`, and handles what is due then. Returns
    /// whether there was anything within the limit.
    pub(super) fn advance(&mut self, limit: Time) -> bool {
        self.machines.collect_mail();
        let Some(next) = self.machines.next_time().filter(|next| *next <= limit) else {
            return self.machines.has_ready();
        };
        self.machines.core.now = self.machines.core.now.max(next);
        self.run_due();
        true
    }

    /// The end of a process: its sockets close, its operations on disks go on without it.
    pub(super) fn end_port(&mut self, key: PortKey) {
        let port = &mut self.machines.ports[key];
        if !port.alive {
            return;
        }
        for end in port.silence() {
            self.net.close_end(&mut self.machines, end);
        }
        self.datagrams.end_port(key);
    }

    /// The end of a host: nobody says goodbye, and the disks forget.
    pub(super) fn crash(&mut self, host: HostId) {
        let Self { machines, net, datagrams, disks } = self;
        machines.core.record(&[u64::from(host.0)]);
        net.close_orphans(machines);
        for (key, port) in machines.ports.iter_mut().enumerate().filter(|(_, port)| port.host == host) {
            port.silence();
            datagrams.end_port(key);
        }
        net.crash_ends(machines, host);
        disks.crash_disks(machines, host);
    }
}
