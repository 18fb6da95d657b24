//! Volumes: the namespaces of one subsystem as a program sees them, whichever path leads there.
//!
//! Volumes own the commands that are on no path: those that wait, in the order of submission, and those that wait for
//! another try. A path that is lost gives back its unanswered commands, and the next open path gets them again. The
//! volumes of a subsystem share the paths, so they share the commands that wait.

mod replaced;
mod retries;
mod written;

use std::collections::VecDeque;
use std::sync::Arc;

use ringfab_reactor::Time;
use ringfab_spec::{CompletionEntry, Status};

use crate::allowed;
use crate::chooser::Chooser;
use crate::command::{BoxedCommand, Command, Owner};
use crate::delayed::Delayed;
use crate::error::{IoError, SubmitError};
use crate::namespace::{self, Namespace, NamespaceIdentity};
use crate::options::ConnectOptions;
use crate::path::{Path, SLOW_IO};
use crate::request::{ControllerId, IoOperation, IoRequest, Refused};
use crate::resources::Resources;
use crate::transport::NotSent;
use written::WrittenNamespaces;

/// The namespaces of a subsystem, and the I/O for them that no path has.
pub(crate) struct Volumes {
    id: ControllerId,
    options: Arc<ConnectOptions>,
    state: State,
    namespaces: Vec<Namespace>,
    /// I/O that waits for room or for a path, in order.
    waiting: VecDeque<Box<Command>>,
    /// I/O that waits for another try.
    delayed: Delayed,
    chooser: Chooser,
    /// Submissions so far: the order of a replay.
    order: u64,
    /// Whether I/O fails instead of waiting for a path.
    failing: bool,
    /// Whether a namespace may be another one than it was: see [`replaced`].
    rescanning: bool,
    /// What was written to since it was attached.
    written: WrittenNamespaces,
    /// When commands that wait for another try may be logged again.
    delayed_logged: Time,
}

/// What is done with new I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// There was no path yet.
    New,
    /// It is sent, or waits.
    Usable,
    /// It is refused: the subsystem is being left.
    Leaving,
}

impl Volumes {
    /// Those of a subsystem whose paths are still to come.
    pub(crate) fn new(id: ControllerId, options: Arc<ConnectOptions>, capacity: usize) -> Self {
        Self {
            id,
            options,
            state: State::New,
            namespaces: Vec::new(),
            waiting: VecDeque::with_capacity(capacity),
            delayed: Delayed::default(),
            chooser: Chooser::default(),
            order: 0,
            failing: false,
            rescanning: false,
            written: WrittenNamespaces::default(),
            delayed_logged: Time::ZERO,
        }
    }

    /// The namespaces in use.
    pub(crate) fn namespaces(&self) -> &[Namespace] {
        &self.namespaces
    }

    /// Commands that no path has.
    pub(crate) fn outstanding(&self) -> usize {
        self.waiting.len() + self.delayed.len()
    }

    /// Commands that wait for another try.
    pub(crate) fn delayed(&self) -> usize {
        self.delayed.len()
    }

    /// Whether new I/O is refused, and what is here has to end.
    #[inline]
    pub(crate) fn is_leaving(&self) -> bool {
        self.state == State::Leaving
    }

    /// When a command gets its next try.
    pub(crate) fn due(&self) -> Time {
        self.delayed.due()
    }

    /// Starts an I/O command, or lets it wait. Where a disk is named, its namespace has to be that one.
    pub(crate) fn submit(
        &mut self,
        resources: &mut Resources,
        paths: &mut [Path],
        disk: Option<&NamespaceIdentity>,
        mut request: IoRequest,
    ) -> Result<bool, Refused<IoRequest>> {
        let block_bytes = match self.check(paths, disk, &mut request) {
            Ok(block_bytes) => block_bytes,
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
        if self.failing {
            resources.done(self.id, command, Err(IoError::NoPath));
            return Ok(false);
        }
        self.waiting.push_back(command);
        Ok(self.dispatch(resources, paths))
    }

    /// Whether a request can be a command, which it is made to fit; returns the bytes of a block.
    fn check(
        &self,
        paths: &[Path],
        disk: Option<&NamespaceIdentity>,
        request: &mut IoRequest,
    ) -> Result<u32, SubmitError> {
        match self.state {
            State::New => return Err(SubmitError::NotReady),
            State::Usable => {}
            State::Leaving => return Err(SubmitError::Gone),
        }
        if self.outstanding() >= self.options.waiting_max && !self.has_room(paths) {
            return Err(SubmitError::Full);
        }
        let nsid = request.nsid;
        let namespace = namespace::find(&self.namespaces, nsid);
        let meant = namespace.filter(|found| disk.is_none_or(|disk| disk.agrees_with(&found.identity)));
        let namespace = meant.ok_or(SubmitError::NoNamespace(nsid))?;
        allowed::fit(namespace, &mut request.operation).map(|()| namespace.block_bytes)
    }

    /// Whether a command could be sent at once.
    fn has_room(&self, paths: &[Path]) -> bool {
        self.waiting.is_empty()
            && !self.rescanning
            && paths.iter().filter_map(Path::io).any(|io| io.queue_with_room().is_some())
    }

    /// Sends what waits, in order, as far as there is room. Says whether a path has to look for overdue answers sooner.
    #[inline]
    pub(crate) fn dispatch(&mut self, resources: &mut Resources, paths: &mut [Path]) -> bool {
        if self.waiting.is_empty() || self.rescanning {
            return false;
        }
        let Some(chosen) = self.chooser.choose(paths, |path| path.io().is_some()) else { return false };
        let Some(io) = paths[chosen].io_mut() else { return false };
        let now = resources.now();
        let deadline = now + self.options.timeouts.io;
        while let Some(queue) = io.queue_with_room() {
            let Some(mut command) = self.waiting.pop_front() else { break };
            (command.deadline, command.aborted) = (deadline, false);
            match io.send(&mut resources.transports, queue, command) {
                Ok(()) => {}
                Err((command, NotSent::Busy)) if io.outstanding() == 0 => {
                    // Nothing will come free: the RNIC cannot do it at all.
                    resources.done(self.id, command, Err(IoError::Status(Status::DATA_TRANSFER_ERROR)));
                }
                Err((command, _)) => {
                    self.waiting.push_front(command);
                    break;
                }
            }
        }
        // The first look is early, to speak of what is slow.
        io.scan_by(deadline.min(now + SLOW_IO))
    }

    /// An I/O command was answered with something else than success.
    pub(crate) fn refused(
        &mut self,
        resources: &mut Resources,
        path: &mut Path,
        command: Box<Command>,
        entry: &CompletionEntry,
    ) {
        let status = entry.status();
        if command.aborted && status.code() == Status::ABORT_REQUESTED {
            return resources.done(self.id, command, Err(IoError::TimedOut));
        }
        self.try_again(resources, path, command, status);
    }

    /// A path leads here. I/O goes on.
    pub(crate) fn path_is_ready(&mut self) {
        if self.state == State::New {
            self.state = State::Usable;
        }
        self.failing = false;
    }

    /// A path was lost. What it has not answered waits for the next one.
    pub(crate) fn path_is_lost(&mut self) {
        self.rescanning = false;
        self.release_all();
    }

    /// Commands that a path was sent and has not answered.
    pub(crate) fn take_back(&mut self, resources: &mut Resources, commands: &mut Vec<BoxedCommand>) {
        if commands.is_empty() {
            return;
        }
        for command in commands.drain(..) {
            if self.failing {
                resources.done(self.id, command, Err(IoError::NoPath));
            } else {
                self.waiting.push_back(command);
            }
        }
        self.sort();
    }

    /// I/O no longer waits for a path.
    pub(crate) fn fail_fast(&mut self, resources: &mut Resources) {
        self.failing = true;
        self.end_all(resources, IoError::NoPath);
    }

    /// No new I/O is taken; what is here is sent without waiting for delays.
    pub(crate) fn leave(&mut self) {
        self.state = State::Leaving;
        self.release_all();
    }

    /// Answers everything that waits.
    pub(crate) fn end_all(&mut self, resources: &mut Resources, error: IoError) {
        self.release_all();
        while let Some(command) = self.waiting.pop_front() {
            resources.done(self.id, command, Err(error));
        }
    }

    /// Namespaces that were written to and are still there.
    pub(crate) fn written(&self) -> Vec<u32> {
        let is_there = |nsid: &u32| namespace::find(&self.namespaces, *nsid).is_some();
        self.written.iter().filter(is_there).collect()
    }

    /// Namespaces that have commands waiting, ascending.
    pub(crate) fn needed(&self) -> Vec<u32> {
        let commands = self.waiting.iter().map(|command| &**command).chain(self.delayed.iter());
        let mut needed: Vec<u32> = commands.map(|command| command.entry.nsid.get()).collect();
        needed.sort_unstable();
        needed.dedup();
        needed
    }

    /// Back into the order in which they were submitted.
    fn sort(&mut self) {
        debug_assert!(self.waiting.iter().all(|command| matches!(command.owner, Owner::Io(_))), "I/O only");
        self.waiting.make_contiguous().sort_unstable_by_key(|command| command.order);
    }
}
