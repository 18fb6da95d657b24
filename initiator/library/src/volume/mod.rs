//! Volumes: the namespaces of one subsystem as a program sees them, whichever path leads there.
//!
//! Volumes own the commands that are on no path. Those that wait for a path are in a line for each access group
//! ([`lines`]). Those that a path has answered with "try again" wait for that. Those that a lost path has not answered
//! are [`held`] until its controller executes none of them any more, and then go on by the next open path. A new
//! command that changes the same blocks waits with them; any other overtakes them.
//!
//! What a path tells concerns that path. [`subsystem`] says what it means for all I/O.

mod extents;
mod held;
mod lines;
mod records;
mod replaced;
mod retries;
mod subsystem;
mod waiting;
mod ways;
mod written;

use std::sync::Arc;
use std::time::Duration;

use ringfab_reactor::Time;

use crate::allowed;
use crate::chooser::Chooser;
use crate::command::{BoxedCommand, Command, Owner};
use crate::error::{IoError, SubmitError};
use crate::namespace::{self, Namespace, NamespaceIdentity};
use crate::options::ConnectOptions;
use crate::path::{IoQueues, Path, SLOW_IO};
use crate::request::{ControllerId, IoOperation, IoRequest, PathId, Refused};
use crate::resources::Resources;
use crate::transport::NotSent;
use records::{Failover, Record};
pub(crate) use replaced::Identified;
pub(crate) use subsystem::State;
use subsystem::Subsystem;
use waiting::Waiting;
use written::WrittenNamespaces;

/// The namespaces of a subsystem, and the I/O for them that no path has.
pub(crate) struct Volumes {
    id: ControllerId,
    options: Arc<ConnectOptions>,
    subsystem: Subsystem,
    waiting: Waiting,
    /// What has happened to the paths, by their slots.
    records: Vec<Record>,
    /// The loss of a path that had I/O, until the next answer.
    failover: Option<Failover>,
    /// Whether each answer is to be looked at.
    attentive: bool,
    /// Submissions so far: the order of a replay.
    order: u64,
    /// What was written to since it was attached.
    written: WrittenNamespaces,
    /// When commands that wait for another try may be logged again.
    delayed_logged: Time,
}

/// A path, and by which name it is known.
pub(crate) struct NamedPath<'a> {
    pub(crate) id: PathId,
    pub(crate) path: &'a mut Path,
}

impl Volumes {
    /// Those of a subsystem without paths: see [`Volumes::expect_path`].
    pub(crate) fn new(id: ControllerId, options: Arc<ConnectOptions>, capacity: usize) -> Self {
        Self {
            id,
            options,
            subsystem: Subsystem::new(),
            waiting: Waiting::new(capacity),
            records: Vec::new(),
            failover: None,
            attentive: false,
            order: 0,
            written: WrittenNamespaces::default(),
            delayed_logged: Time::ZERO,
        }
    }

    /// The namespaces in use.
    pub(crate) fn namespaces(&self) -> &[Namespace] {
        self.subsystem.namespaces()
    }

    /// Commands that no path has.
    pub(crate) fn waiting(&self) -> &Waiting {
        &self.waiting
    }

    /// What is done with new I/O.
    #[inline]
    pub(crate) fn state(&self) -> State {
        self.subsystem.state()
    }

    /// Starts an I/O command, or lets it wait. Where a disk is named, its namespace has to be that one.
    pub(crate) fn submit(
        &mut self,
        resources: &mut Resources,
        paths: &mut [Path],
        disk: Option<&NamespaceIdentity>,
        mut request: IoRequest,
    ) -> Result<bool, Refused<IoRequest>> {
        let (block_bytes, group) = match self.check(paths, disk, &mut request) {
            Ok(found) => found,
            Err(reason) => return Err(Refused { reason, request }),
        };
        if let IoOperation::Write { .. } | IoOperation::WriteZeroes { .. } | IoOperation::Discard { .. } =
            request.operation
        {
            self.written.note(request.nsid);
        }
        let mut command = Command::from_io(request, block_bytes, &mut resources.commands);
        command.order = self.order;
        self.order += 1;
        resources.io_outstanding += 1;
        if self.subsystem.is_failing() {
            resources.done(self.id, command, Err(IoError::NoPath));
            return Ok(false);
        }
        let line = self.waiting.lines.of_group(group);
        if !self.waiting.lines.is_empty() || self.subsystem.is_watchful() {
            return Ok(self.submit_watchfully(resources, paths, line, command));
        }
        // There is nothing that it would overtake.
        match self.send_at_once(resources, paths, line, command) {
            Ok(sooner) => Ok(sooner),
            Err(command) => Ok(self.wait_for_path(resources, line, command)),
        }
    }

    /// A command of a line cannot be sent now. Says whether it is the first one to wait until a time.
    #[inline(never)]
    fn wait_for_path(&mut self, resources: &mut Resources, line: usize, command: BoxedCommand) -> bool {
        if self.waiting.lines.has_waited(line, resources.now()) {
            resources.done(self.id, command, Err(IoError::NoPath));
            return false;
        }
        self.waiting.lines.push(line, command);
        self.waiting.lines.closed_until() < Time::MAX
    }

    /// Lets a command wait, or sends it, while others wait or blocks may still be changed by what is held.
    fn submit_watchfully(
        &mut self,
        resources: &mut Resources,
        paths: &mut [Path],
        line: usize,
        command: Box<Command>,
    ) -> bool {
        if self.waiting.held.overlap(&command) {
            self.waiting.behind.push(command);
            return false;
        }
        self.waiting.lines.push(line, command);
        self.dispatch(resources, paths)
    }

    /// Whether a request can be a command, which it is made to fit; returns the bytes of a block, and the access group.
    fn check(
        &self,
        paths: &[Path],
        disk: Option<&NamespaceIdentity>,
        request: &mut IoRequest,
    ) -> Result<(u32, u32), SubmitError> {
        match self.subsystem.state() {
            State::New => return Err(SubmitError::NotReady),
            State::Usable => {}
            State::Leaving => return Err(SubmitError::Gone),
        }
        if self.waiting.len() >= self.options.waiting_max {
            let mut open = paths.iter().filter_map(Path::io);
            let none_waits = self.waiting.lines.is_empty() && !self.subsystem.is_rescanning();
            if !none_waits || !open.any(|io| io.queue_with_room().is_some()) {
                return Err(SubmitError::Full);
            }
        }
        let nsid = request.nsid;
        let namespace = namespace::find(self.namespaces(), nsid);
        let meant = namespace.filter(|found| disk.is_none_or(|disk| disk.agrees_with(&found.identity)));
        let namespace = meant.ok_or(SubmitError::NoNamespace(nsid))?;
        allowed::fit(namespace, &mut request.operation)?;
        Ok((namespace.block_bytes, namespace.ana_group))
    }

    /// Sends a command of a line in which nothing waits. Says whether its path has to look for overdue answers sooner.
    ///
    /// # Errors
    /// Gives the command back: there is no room.
    #[inline]
    fn send_at_once(
        &mut self,
        resources: &mut Resources,
        paths: &mut [Path],
        line: usize,
        command: Box<Command>,
    ) -> Result<bool, Box<Command>> {
        let chosen = self.waiting.lines.chooser(line).choose(paths, Path::io);
        let Some(io) = chosen.and_then(|path| paths[path].io_mut()) else { return Err(command) };
        let Some(queue) = io.queue_with_room() else { return Err(command) };
        send(self.id, self.options.timeouts.io, resources, io, queue, command)
    }

    /// Sends what waits, as far as there is room. Says whether a path has to look for overdue answers sooner.
    #[inline]
    pub(crate) fn dispatch(&mut self, resources: &mut Resources, paths: &mut [Path]) -> bool {
        if self.waiting.lines.is_empty() || self.subsystem.is_rescanning() {
            return false;
        }
        self.send_lines(resources, paths)
    }

    fn send_lines(&mut self, resources: &mut Resources, paths: &mut [Path]) -> bool {
        let limit = self.options.timeouts.io;
        let (mut sooner, mut busy) = (false, None);
        loop {
            let has_room = |path: &usize| {
                Some(*path) != busy && paths[*path].io().is_some_and(|io| io.queue_with_room().is_some())
            };
            let path_of = |chooser: &mut Chooser| chooser.choose(paths, Path::io).filter(has_room);
            let Some(turn) = self.waiting.lines.turn(path_of) else { return sooner };
            let Some(io) = paths[turn.path].io_mut() else { return sooner };
            while let Some(queue) = io.queue_with_room() {
                let Some(command) = self.waiting.lines.pop(turn.line, turn.until) else { break };
                match send(self.id, limit, resources, io, queue, command) {
                    Ok(earlier) => sooner |= earlier,
                    Err(command) => {
                        self.waiting.lines.put_first(turn.line, command);
                        if busy.replace(turn.path).is_some() {
                            return sooner;
                        }
                        break;
                    }
                }
            }
            // No other line could go on.
            if turn.until == u64::MAX {
                return sooner;
            }
        }
    }

    /// Commands that a path was sent on a connection and has not answered. They are held, and so are all that wait and
    /// change the same blocks.
    pub(crate) fn take_back(&mut self, path: PathId, connection: u32, commands: &mut Vec<BoxedCommand>) {
        if commands.is_empty() {
            return;
        }
        let unprotected = !self.options.protections.hold_changes;
        for command in commands.drain(..) {
            debug_assert!(matches!(command.owner, Owner::Io(_)), "I/O only");
            self.waiting.held.push(path, connection, command, unprotected);
        }
        self.subsystem.set_blocks_may_change(!self.waiting.held.is_clear());
        let waiting = self.waiting.lines.take_all();
        self.waiting.put_back(&self.subsystem, waiting);
    }

    /// The connections of a path have ended on this engine: no buffer is in use there any more. What changes nothing
    /// goes on.
    pub(crate) fn path_has_closed(&mut self, resources: &mut Resources, path: PathId) {
        let (go_on, gone) = (self.waiting.held.have_ended(path), self.waiting.held.take_gone());
        replaced::end_gone(self.id, resources, gone);
        self.waiting.put_back(&self.subsystem, go_on);
        self.fail_if_failing(resources, IoError::NoPath);
    }

    /// Nothing of these connections of a path is executed any more: what was held for that goes on. Returns how many
    /// commands that are.
    pub(crate) fn instance_is_over(
        &mut self,
        resources: &mut Resources,
        path: PathId,
        first: u32,
        last: u32,
    ) -> usize {
        let mut go_on = self.waiting.held.are_over(path, first, last);
        self.subsystem.set_blocks_may_change(!self.waiting.held.is_clear());
        go_on.append(&mut self.waiting.behind);
        let before = self.waiting.lines.len();
        self.waiting.put_back(&self.subsystem, go_on);
        let gone_on = self.waiting.lines.len() - before;
        self.fail_if_failing(resources, IoError::NoPath);
        gone_on
    }

    /// I/O no longer waits for a path.
    pub(crate) fn fail_fast(&mut self, resources: &mut Resources, path: PathId) {
        self.subsystem.path_is_overdue(path);
        self.choose_again(resources.now());
        self.give_up(resources, path, IoError::NoPath);
    }

    /// A path will not come back. Says whether it was the last one.
    pub(crate) fn path_has_ended(&mut self, resources: &mut Resources, path: PathId, error: IoError) -> bool {
        self.subsystem.path_has_ended(path);
        self.choose_again(resources.now());
        self.give_up(resources, path, error);
        self.subsystem.has_ended()
    }

    /// A path is being left. If all are, no new I/O is taken; what is here is sent without waiting for delays.
    pub(crate) fn leave_path(&mut self, now: Time, path: PathId) {
        self.subsystem.leave_path(path);
        self.choose_again(now);
        self.waiting.release_of(&self.subsystem, path);
        if self.state() == State::Leaving {
            self.waiting.release_due(&self.subsystem, Time::MAX);
        }
    }

    /// A path is not waited for: everything that waits ends if there is no other one. Otherwise what was held for it
    /// goes on by another one when it can, unless all of it is being left.
    fn give_up(&mut self, resources: &mut Resources, path: PathId, error: IoError) {
        self.waiting.release_of(&self.subsystem, path);
        if self.state() == State::Leaving {
            for command in self.waiting.held.release(Some(path)) {
                resources.done(self.id, command, Err(error));
            }
        }
        self.fail_if_failing(resources, error);
    }

    /// Ends everything that waits, if there is no path to wait for. The connections of all paths have ended then. What
    /// may still change blocks is remembered.
    fn fail_if_failing(&mut self, resources: &mut Resources, error: IoError) {
        if !self.subsystem.is_failing() {
            return;
        }
        for command in self.waiting.take_all(&self.subsystem) {
            resources.done(self.id, command, Err(error));
        }
    }

    /// Namespaces that were written to and are still there.
    pub(crate) fn written(&self) -> Vec<u32> {
        let is_there = |nsid: &u32| namespace::find(self.namespaces(), *nsid).is_some();
        self.written.iter().filter(is_there).collect()
    }
}

/// Sends a command of a controller on a queue that has room. It may take so long. Says whether the path has to look for
/// overdue answers sooner.
///
/// # Errors
/// Gives the command back: there is no room after all.
#[inline]
fn send(
    id: ControllerId,
    limit: Duration,
    resources: &mut Resources,
    io: &mut IoQueues,
    queue: usize,
    mut command: Box<Command>,
) -> Result<bool, Box<Command>> {
    let now = resources.now();
    let deadline = now + limit;
    (command.sent, command.deadline) = (now, deadline);
    match io.send(&mut resources.transports, queue, command) {
        Ok(()) => {}
        Err((command, NotSent::Busy)) if io.outstanding() == 0 => {
            // Nothing will come free: the RNIC cannot do it at all.
            resources.done(id, command, Err(IoError::Refused(SubmitError::Transport)));
        }
        Err((command, _)) => return Err(command),
    }
    // The first look is early, to speak of what is slow.
    Ok(io.scan_by(deadline.min(now + SLOW_IO)))
}
