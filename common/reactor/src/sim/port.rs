//! The simulated backend of one core: the methods of [`Reactor`](crate::Reactor) over a [`World`](super::World).

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::HostId;
use super::machines::{EndKey, PortKey, errno};
use super::net::{Owner, SocketHandle};
use super::state::State;
use crate::mailbox::Wake;
use crate::monitor::Watch;
use crate::{
    Bind, Completion, ListenAddr, ListenerId, Monitor, Payload, ReactorCounters, ReceiveOp, SendBatch,
    SocketId, SocketOptions, Time, TimerId, Token, Wait, Waker,
};

/// When simulated worlds are said to happen: the first second of 2025.
const WALL_CLOCK_START: Duration = Duration::from_secs(1_735_689_600);

/// One core of a simulated host. Every method is that of [`Reactor`](crate::Reactor); the kernel behind it is
/// the world. Dropping it is the end of its process: sockets close, operations on disks go on without it.
/// After a crash of its host a turn fails and operations vanish with what they hold.
pub(crate) struct Port {
    pub(super) state: Rc<RefCell<State>>,
    pub(super) key: PortKey,
    now: Time,
    collected: VecDeque<Completion>,
}

impl Port {
    pub(super) fn new(state: Rc<RefCell<State>>, host: HostId) -> Self {
        let key = state.borrow_mut().machines.add_port(host);
        let now = state.borrow().machines.core.now;
        Self { state, key, now, collected: VecDeque::new() }
    }

    pub(crate) fn now(&self) -> Time {
        self.now
    }

    pub(crate) fn clock(&self) -> Time {
        self.state.borrow().machines.core.now
    }

    pub(crate) fn wall_clock(&self) -> Duration {
        WALL_CLOCK_START + self.clock().since(Time::ZERO)
    }

    /// Collects what has happened up to the world's time. It never waits: [`World::advance`](super::World::advance)
    /// moves the clock.
    ///
    /// # Errors
    /// When the host has crashed.
    pub(crate) fn turn(&mut self, _wait: Wait) -> io::Result<()> {
        let mut state = self.state.borrow_mut();
        state.run_due();
        state.machines.office.begin_turn(self.key);
        state.machines.collect_timers(self.key);
        self.now = state.machines.core.now;
        let port = &mut state.machines.ports[self.key];
        if !port.alive {
            self.collected.clear();
            return Err(io::Error::other("the simulated host has crashed"));
        }
        port.wake.take();
        port.counters.turns += 1;
        port.wake.set_turns(port.counters.turns);
        self.collected.append(&mut port.ready);
        Ok(())
    }

    pub(crate) fn next_completion(&mut self) -> Option<Completion> {
        let completion = self.collected.pop_front()?;
        let port = &mut self.state.borrow_mut().machines.ports[self.key];
        port.counters.completed += 1;
        port.alive.then_some(completion)
    }

    pub(crate) fn waker(&self) -> Waker {
        let wake: Arc<dyn Wake> = Arc::clone(&self.state.borrow().machines.ports[self.key].wake) as _;
        Waker(wake)
    }

    pub(crate) fn monitor(&self) -> Monitor {
        let watch: Arc<dyn Watch> = Arc::clone(&self.state.borrow().machines.ports[self.key].wake) as _;
        Monitor::new(watch)
    }

    /// There are no system calls, no spinning and no sleeps to count.
    pub(crate) fn counters(&self) -> ReactorCounters {
        self.state.borrow().machines.ports[self.key].counters
    }

    pub(crate) fn set_timer(&mut self, at: Time, token: Token) -> TimerId {
        let mut state = self.state.borrow_mut();
        let id = state.machines.set_timer(self.key, at, token);
        TimerId(id)
    }

    pub(crate) fn cancel_timer(&mut self, timer: TimerId) {
        let port = &mut self.state.borrow_mut().machines.ports[self.key];
        if let Some(key) = port.timers.remove(timer.0) {
            port.timer_queue.remove(&key);
        }
    }

    pub(crate) fn listen(
        &mut self,
        address: &ListenAddr,
        _options: &SocketOptions,
        token: Token,
    ) -> io::Result<Bind> {
        let ListenAddr::Tcp(address) = address else { return Err(errno(libc::EOPNOTSUPP)) };
        let mut state = self.living()?;
        let (listener, address) = state.machines.listen(self.key, *address, token)?;
        Ok(Bind { listener, address: ListenAddr::Tcp(address) })
    }

    pub(crate) fn close_listener(&mut self, listener: ListenerId) {
        let port = &mut self.state.borrow_mut().machines.ports[self.key];
        port.listeners.remove(listener.0);
    }

    pub(crate) fn connect(
        &mut self,
        address: SocketAddr,
        _options: &SocketOptions,
        token: Token,
    ) -> io::Result<SocketId> {
        let state = &mut *self.living()?;
        state.machines.ports[self.key].counters.submitted += 1;
        state.net.connect(&mut state.machines, self.key, address, token)
    }

    pub(crate) fn socket_addresses(&self, socket: SocketId) -> io::Result<(SocketAddr, SocketAddr)> {
        let end = self.end(socket).ok_or_else(|| errno(libc::EBADF))?;
        let state = self.state.borrow();
        let ends = &state.net.connections[&end.connection].ends;
        if !ends[end.side].established {
            return Err(errno(libc::ENOTCONN));
        }
        Ok((ends[end.side].address, ends[1 - end.side].address))
    }

    pub(crate) fn receive(&mut self, socket: SocketId, operation: Box<ReceiveOp>, token: Token) {
        let end = self.end(socket);
        let Some(mut state) = self.submit() else { return };
        let state = &mut *state;
        match end {
            Some(end) => state.net.receive(&mut state.machines, end, operation, token),
            None => {
                state.machines.complete(
                    self.key,
                    token,
                    Err(errno(libc::ECANCELED)),
                    Payload::Receive(operation),
                );
            }
        }
    }

    pub(crate) fn send(&mut self, socket: SocketId, batch: Box<SendBatch>, token: Token) {
        let end = self.end(socket);
        let Some(mut state) = self.submit() else { return };
        let state = &mut *state;
        match end {
            Some(end) => state.net.send(&mut state.machines, end, batch, token),
            None => {
                state.machines.complete(self.key, token, Err(errno(libc::ECANCELED)), Payload::Send(batch));
            }
        }
    }

    pub(crate) fn shutdown_write(&mut self, socket: SocketId) {
        if let Some(end) = self.end(socket) {
            let state = &mut *self.state.borrow_mut();
            state.net.shutdown_write(&mut state.machines, end);
        }
    }

    pub(crate) fn close_socket(&mut self, socket: SocketId) {
        let state = &mut *self.state.borrow_mut();
        if let Some(end) = state.machines.ports[self.key].sockets.remove(socket.0) {
            state.net.close_end(&mut state.machines, end);
        }
    }

    pub(crate) fn abort_socket(&mut self, socket: SocketId) {
        let state = &mut *self.state.borrow_mut();
        if let Some(end) = state.machines.ports[self.key].sockets.remove(socket.0) {
            state.net.abort_end(&mut state.machines, end);
        }
    }

    /// A dead handle, or one with something in
    /// flight, is a caller's error and panics.
    pub(crate) fn detach_socket(&mut self, socket: SocketId) -> SocketHandle {
        let mut state = self.state.borrow_mut();
        let removed = state.machines.ports[self.key].sockets.remove(socket.0);
        let key = removed.expect("a socket of this reactor");
        let end = state.net.end(key).expect("a socket's end lives as long as the socket");
        assert!(end.is_idle(), "nothing is in flight on a socket that is detached");
        end.owner = Owner::Detached;
        state.net.handle(key)
    }

    pub(crate) fn attach_socket(&mut self, handle: SocketHandle) -> io::Result<SocketId> {
        let mut state = self.living()?;
        let (key, host) = (handle.end(), state.machines.ports[self.key].host);
        if !handle.is_of(&state.net) {
            return Err(errno(libc::EINVAL));
        }
        match state.net.end(key).map(|end| (end.owner, end.host)) {
            Some((Owner::Detached, at)) if state.machines.machine_of(at) == host => {}
            Some((Owner::Detached, _)) => return Err(errno(libc::EINVAL)),
            _ => return Err(errno(libc::EBADF)),
        }
        let id = state.machines.ports[self.key].sockets.insert(handle.adopt());
        let id = SocketId(id);
        state.net.end(key).expect("looked up above").owner = Owner::Socket(self.key, id);
        Ok(id)
    }

    /// Completes with `EOPNOTSUPP`: a simulated host has no descriptors.
    pub(crate) fn poll_readable(&mut self, _descriptor: RawFd, token: Token) {
        if let Some(mut state) = self.submit() {
            state.machines.complete(self.key, token, Err(errno(libc::EOPNOTSUPP)), Payload::None);
        }
    }

    fn end(&self, socket: SocketId) -> Option<EndKey> {
        let state = self.state.borrow();
        state.machines.ports[self.key].sockets.get(socket.0).copied()
    }

    /// The world, for one more operation, unless the host has crashed.
    pub(super) fn submit(&self) -> Option<std::cell::RefMut<'_, State>> {
        let mut state = self.living().ok()?;
        state.machines.ports[self.key].counters.submitted += 1;
        Some(state)
    }

    pub(super) fn living(&self) -> io::Result<std::cell::RefMut<'_, State>> {
        let state = self.state.borrow_mut();
        if state.machines.ports[self.key].alive { Ok(state) } else { Err(errno(libc::EIO)) }
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.state.borrow_mut().end_port(self.key);
    }
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Port").field("key", &self.key).field("now", &self.now).finish_non_exhaustive()
    }
}
