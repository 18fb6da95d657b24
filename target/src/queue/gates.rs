//! What may keep a command from its disk.
//!
//! A command is judged when it is parsed: its namespace is ready, its host sees it and may do that to it. Before it has
//! buffers it may have to wait: for limits, for the turn of its host, or because something holds it back. Whenever it
//! has waited, it is [judged again](Request::judge_again) if anything has changed since: one comparison says whether.
//!
//! What refuses a command belongs into [`Attachment::judge`], and begins a new [epoch](crate::model::Epoch) when it
//! changes. What has a command wait belongs into [`Connection::holds_back`].

use ringfab_spec::Status;

use super::attachment::Attachment;
use super::automaton::Step;
use super::commands::Stop;
use super::connection::Connection;
use super::request::Request;
use crate::controller::IoAccess;
use crate::failure::Failure;
use crate::model::Direction;
use crate::nvm::{self, Access, Action, NamespaceView};
use crate::resources::Resources;
use crate::resources::limited::FlowKey;
use crate::resources::states::State;

impl Request {
    /// An I/O command waits while a limit is reached, then for the turn of its host. The halves of a fused pair wait
    /// for each other, and have no turns.
    #[inline(never)]
    pub(super) fn await_begin(
        &self,
        connection: &Connection,
        resources: &mut Resources,
        from: Step,
    ) -> Result<(), Stop> {
        if connection.id == 0 || self.action == Action::Controller || self.has_failed() {
            return Ok(());
        }
        if from == Step::Begin
            && let Some((flow, bytes)) = limited_as(self, connection)
            && !resources.passes_limits(flow, self.id(), bytes)
        {
            return Err(Stop::Wait(State::AwaitLimit));
        }
        if self.is_fused || resources.turns.is_alone(connection.host) {
            return Ok(());
        }
        let kind = self.pool_kind(connection.id);
        match resources.turns.admit(connection.host, kind, self.length.0, self.id()) {
            true => Ok(()),
            false => Err(Stop::Wait(State::AwaitTurn)),
        }
    }

    /// It has waited, and something may have changed meanwhile that keeps it from running. It fails if so.
    #[inline(always)]
    pub(super) fn judge_again(&mut self, connection: &Connection, resources: &Resources) -> Result<(), Stop> {
        let epoch = resources.target.epoch.now();
        if self.epoch == epoch {
            return Ok(());
        }
        self.judge(connection, resources, epoch)
    }

    #[cold]
    fn judge(&mut self, connection: &Connection, resources: &Resources, epoch: u32) -> Result<(), Stop> {
        self.epoch = epoch;
        let attached = connection.attached.as_ref().filter(|_| connection.id != 0 && !self.has_failed());
        let Some(attached) = attached else { return Ok(()) };
        let judged = match self.action.disk() {
            // Nobody waits for its answer, but others wait for its end.
            _ if attached.controller.has_ended() => Err(Failure::new(Status::ABORTED_SQ_DELETION)),
            Some(disk) => attached.judge(resources, self.command.nsid.get(), disk, self.action.access()),
            None => Ok(()),
        };
        judged.map_err(|failure| {
            self.fail(failure);
            Stop::Answer
        })
    }

    /// What has failed is answered, and what the disk can answer without I/O. What is held back waits, and holds no
    /// buffers that it needs from the pool.
    #[inline(always)]
    pub(super) fn admit(&mut self, connection: &Connection, resources: &mut Resources) -> Result<(), Stop> {
        if self.has_failed() || self.peek(resources) {
            return Err(Stop::Answer);
        }
        if connection.holds_back(resources, &self.action) {
            resources.held_back.push(self.id(), resources.states.now());
            return Err(Stop::Wait(State::HeldBack));
        }
        Ok(())
    }

    /// A command that was claimed for somebody else while it got its data waits with them.
    #[inline(always)]
    pub(super) fn check_claims(
        &self,
        connection: &Connection,
        resources: &mut Resources,
    ) -> Result<(), Stop> {
        let attached = connection.attached.as_ref().filter(|_| resources.claims.any_held());
        if attached.is_some_and(|attached| attached.is_forbidden(resources, &self.action)) {
            resources.claims.delay(self.id());
            return Err(Stop::Wait(State::BlocksClaimed));
        }
        Ok(())
    }
}

impl Connection {
    /// Whether a command has to wait, without buffers: its disk is hung, or still works on what the host has left
    /// behind, or somebody else has claimed what it is in.
    #[inline(always)]
    pub(super) fn holds_back(&self, resources: &Resources, action: &Action) -> bool {
        let Some(attached) = self.attached.as_ref().filter(|_| self.id != 0) else { return false };
        let fenced = attached.controller.io_access() == IoAccess::Fenced;
        (fenced || resources.disks.any_hung() || resources.claims.any_held())
            && attached.holds_back(resources, action, fenced)
    }
}

impl Attachment {
    /// Whether the host still sees the namespace at this place of the table, and may use it so.
    fn judge(&self, resources: &Resources, nsid: u32, disk: usize, access: Access) -> Result<(), Failure> {
        let seen = self.namespace(resources, nsid).filter(|namespace| namespace.index() == disk);
        self.check_access(resources, nsid)?;
        let checked = NamespaceView::of(seen.ok_or(nvm::NO_NAMESPACE)?).check(access);
        checked.map_err(|failure| self.explained(resources, nsid, failure))
    }

    /// Whether somebody else has claimed what a command is in.
    #[cold]
    fn is_forbidden(&self, resources: &Resources, action: &Action) -> bool {
        resources.claims.forbid(action, self.host_id())
    }

    #[cold]
    fn holds_back(&self, resources: &Resources, action: &Action, fenced: bool) -> bool {
        let is_hung_or_fenced = |disk| {
            let is_hung = resources.disks.get(disk).is_some_and(|open| open.progress.is_hung());
            is_hung || (fenced && self.controller.is_fenced(disk))
        };
        resources.claims.concern(action, self.host_id()) || action.disk().is_some_and(is_hung_or_fenced)
    }
}

/// What limits take a request for, and how many bytes it is about. A pair is its Write. What a Copy is about is not
/// known before its list of ranges is here.
fn limited_as(request: &Request, connection: &Connection) -> Option<(FlowKey, u64)> {
    let direction = match request.action.access() {
        Access::Reads => Direction::Read,
        // A disk may have to write zeroes, so they cost what a Write of them does.
        Access::Writes | Access::Changes => Direction::Write,
        Access::Flushes | Access::None => return None,
    };
    let namespace = request.action.disk()?;
    Some((FlowKey { host: connection.host, namespace, direction }, request.action.bytes().0))
}
