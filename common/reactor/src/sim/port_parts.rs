//! Files and datagrams of a simulated core.

use std::io;
use std::net::SocketAddr;
use std::path::Path;

use ringfab_memory::{Buffer, SharedBuffer};

use super::datagrams::Asker;
use super::disk_ops::Kind;
use super::port::Port;
use super::state::State;
use crate::{
    Allocate, Datagram, DatagramSocketId, FileId, FileInfo, FileOptions, FileRange, OnClose, SocketOptions,
    Token,
};

/// The part of a port that is about files.
pub(crate) struct PortFiles<'a>(&'a mut Port);

/// The part of a port that is about datagrams.
pub(crate) struct PortDatagrams<'a>(&'a mut Port);

impl Port {
    pub(crate) fn files(&mut self) -> PortFiles<'_> {
        PortFiles(self)
    }

    pub(crate) fn datagrams(&mut self) -> PortDatagrams<'_> {
        PortDatagrams(self)
    }
}

impl PortFiles<'_> {
    /// Opens a disk of this host by its path, as a block device.
    ///
    /// # Errors
    /// `ENOENT` when the host has no disk there.
    pub(crate) fn open(&mut self, path: &Path, options: FileOptions) -> io::Result<(FileId, FileInfo)> {
        let state = &mut *self.0.living()?;
        state.disks.open_file(&mut state.machines, self.0.key, path, options)
    }

    pub(crate) fn bytes(&mut self, file: FileId, token: Token) {
        let Some(mut state) = self.0.submit() else { return };
        let state = &mut *state;
        state.disks.complete_file_bytes(&mut state.machines, self.0.key, file, token);
    }

    /// What is in flight ends by itself, whatever the caller says.
    pub(crate) fn close(&mut self, file: FileId, _in_flight: OnClose) {
        self.0.state.borrow_mut().machines.ports[self.0.key].files.remove(file.0);
    }

    pub(crate) fn read(&mut self, file: FileId, range: FileRange, buffer: Buffer, token: Token) {
        let FileRange { offset, at, length } = range;
        self.start(file, Kind::Read { offset, buffer, at, length }, token);
    }

    pub(crate) fn write(
        &mut self,
        file: FileId,
        range: FileRange,
        source: SharedBuffer,
        durable: bool,
        token: Token,
    ) {
        let FileRange { offset, at, length } = range;
        self.start(file, Kind::Write { offset, source, at, length, durable }, token);
    }

    pub(crate) fn sync(&mut self, file: FileId, token: Token) {
        self.start(file, Kind::Sync, token);
    }

    /// Both kinds read as zeroes afterwards and
    /// are volatile until a sync, like a write.
    pub(crate) fn allocate(&mut self, file: FileId, what: Allocate, offset: u64, length: u64, token: Token) {
        let (Allocate::PunchHole | Allocate::ZeroRange) = what;
        self.start(file, Kind::Zero { offset, length }, token);
    }

    fn start(&mut self, file: FileId, kind: Kind, token: Token) {
        if let Some(mut state) = self.0.submit() {
            let state = &mut *state;
            state.disks.start_on_disk(&mut state.machines, self.0.key, file, kind, token);
        }
    }
}

impl PortDatagrams<'_> {
    pub(crate) fn bind(
        &mut self,
        address: SocketAddr,
        _options: &SocketOptions,
    ) -> io::Result<(DatagramSocketId, SocketAddr)> {
        let State { machines, datagrams, .. } = &mut *self.0.living()?;
        datagrams.bind(machines, self.0.key, address)
    }

    pub(crate) fn send(&mut self, socket: DatagramSocketId, datagram: Box<Datagram>, token: Token) {
        let Some(mut state) = self.0.submit() else { return };
        let State { machines, net, datagrams, .. } = &mut *state;
        datagrams.send(machines, net, socket, datagram, Asker { port: self.0.key, token });
    }

    pub(crate) fn receive(&mut self, socket: DatagramSocketId, room: Box<Datagram>, token: Token) {
        let Some(mut state) = self.0.submit() else { return };
        let State { machines, datagrams, .. } = &mut *state;
        datagrams.receive(machines, socket, room, Asker { port: self.0.key, token });
    }

    pub(crate) fn close(&mut self, socket: DatagramSocketId) {
        let State { machines, datagrams, .. } = &mut *self.0.state.borrow_mut();
        datagrams.close(machines, socket);
    }
}
