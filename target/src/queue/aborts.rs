//! What ends commands that wait, or lets them go on, from outside of their own lives: an Abort or a Cancel of their
//! host, a reset, an event, a change of what is served.
//!
//! An Abort or a Cancel ends a command according to the state in which it finds it:
//!
//! | state | what becomes of the command |
//! | --- | --- |
//! | `AwaitLimit`, `AwaitTurn`, `HeldBack`, `NeedBuffer` | it ends at once: it holds nothing, or what its capsule brought |
//! | `AwaitFused` | it ends at once; the other half is told, if it comes |
//! | `FetchRoom` | it ends at once, and gives back its buffers |
//! | `DataIn` | it ends with the last piece of its data, which the transport still brings; none of it reaches a disk |
//! | `AwaitPartner`, `AwaitClaim` | both halves end at once, unless a disk works on the other one |
//! | `BlocksClaimed` | it ends at once |
//! | `AtDisk` | it goes on: a disk has it |
//! | `AtWorker`, `Computing` | it ends at once, and nobody waits for the worker's answer |
//! | `Parked`, `Resetting` | it ends at once |
//! | `Aborting` | it goes on: the answer is on its way |
//! | `DataOut` | it goes on: its outcome is known |
//!
//! Abort says whether the command has ended at once. Cancel counts those that have, and those that end with their data.

use ringfab_spec::Status;
use ringfab_spec::sqe::{CancelAction, CancelResult};

use super::automaton::{Event, Step, next};
use super::commands::Commands;
use super::connection::Connection;
use super::request::Slot;
use crate::command::dword_offset;
use crate::failure::Failure;
use crate::limits::NSID_BROADCAST;
use crate::resources::Resources;
use crate::resources::states::State;

const REQUESTED: Failure = Failure::transient(Status::ABORT_REQUESTED);

/// What came of an attempt to end a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Aborted {
    /// It has ended.
    AtOnce,
    /// It ends when its data has come.
    Later,
    /// It goes on, or there is no such command.
    Not,
}

/// The commands of a queue, for whoever ends them while they wait.
pub(super) struct WaitingCommands<'a> {
    pub(super) commands: &'a mut Commands,
    pub(super) connection: &'a mut Connection,
    pub(super) resources: &'a mut Resources,
}

impl WaitingCommands<'_> {
    /// The host asks for the end of a command.
    pub(super) fn abort(&mut self, command_id: u16) -> Aborted {
        self.commands.table.find_cid(command_id).map_or(Aborted::Not, |slot| self.abort_slot(slot))
    }

    /// The host asks by the command in a slot for the end of another command, or of many.
    pub(super) fn cancel(&mut self, own: Slot) -> Result<CancelResult, Failure> {
        let command = self.commands.table[own].command;
        let target = command.aborted_command();
        if target.sqid() != self.connection.id {
            return Err(Failure::invalid_field(dword_offset(10)));
        }
        let nsid = command.nsid.get();
        let is_meant = |one: Slot| {
            let other = &self.commands.table[one];
            let is_single = command.cancel_action() == CancelAction::SINGLE;
            one != own
                && (!is_single || other.cid() == target.cid())
                && (nsid == NSID_BROADCAST || other.command.nsid.get() == nsid)
        };
        let meant: Vec<Slot> = self.commands.table.waiting().filter(|slot| is_meant(*slot)).collect();
        let (mut aborted, mut deferred) = (0, 0);
        for slot in meant {
            match self.abort_slot(slot) {
                Aborted::AtOnce => aborted += 1,
                Aborted::Later => deferred += 1,
                Aborted::Not => {}
            }
        }
        Ok(CancelResult::default().with_aborted(aborted).with_deferred(deferred))
    }

    fn abort_slot(&mut self, slot: Slot) -> Aborted {
        let request = &mut self.commands.table[slot];
        match request.state() {
            State::DataIn if request.has_failed() => return Aborted::Not,
            State::DataIn => {
                request.fail(REQUESTED);
                return Aborted::Later;
            }
            state if next(state, Event::Aborted) != Step::Answer => return Aborted::Not,
            State::AwaitPartner if self.commands.partner_is_at_disk(slot) => return Aborted::Not,
            State::FetchRoom => self.commands.wait_for_room.retain(|other| *other != slot),
            _ => {}
        }
        self.forget_at_controller(slot);
        self.commands.table[slot].fail(REQUESTED);
        self.on_event(slot, Event::Aborted);
        self.commands.room_freed(self.connection, self.resources);
        Aborted::AtOnce
    }

    /// The controller knows of some commands that wait.
    fn forget_at_controller(&self, slot: Slot) {
        let Some(controller) = self.connection.controller() else { return };
        let request = &self.commands.table[slot];
        match request.state() {
            State::Parked => {
                controller.events().unpark(request.cid());
            }
            State::Resetting => controller.state().resets.forget_command(request.cid()),
            _ => {}
        }
    }

    /// Ends what waits and may not run any more, as a command would end that comes now. Commands of which something is
    /// in flight are judged when that is over.
    pub(super) fn end_refused(&mut self) {
        let slots: Vec<Slot> = self.commands.table.waiting().collect();
        for slot in slots {
            let request = &mut self.commands.table[slot];
            if next(request.state(), Event::Refused) == Step::Answer
                && request.judge_again(self.connection, self.resources).is_err()
            {
                self.on_event(slot, Event::Refused);
            }
        }
    }

    /// A command has the identifier of an Asynchronous Event Request that waits: its host has forgotten the request, as
    /// some do before they shut down. The command takes its place. Returns whether there was such a request.
    pub(super) fn forget_parked(&mut self, command_id: u16) -> bool {
        let slot = self.commands.table.find_cid(command_id);
        let parked = slot.filter(|slot| self.commands.table[*slot].state() == State::Parked);
        let (Some(slot), Some(controller)) = (parked, self.connection.controller()) else { return false };
        controller.events().unpark(command_id);
        self.on_event(slot, Event::Forgotten);
        self.connection.skip_answer(self.resources);
        true
    }

    /// A reset ends without completions what waits for events: Asynchronous Event Requests, and resets of others.
    pub(super) fn forget_all_parked(&mut self) {
        let table = &self.commands.table;
        let parked = |slot: &Slot| matches!(table[*slot].state(), State::Parked | State::Resetting);
        let slots: Vec<Slot> = table.waiting().filter(parked).collect();
        for slot in slots {
            self.on_event(slot, Event::Forgotten);
            self.connection.skip_answer(self.resources);
        }
    }

    /// Completes parked event requests for which something has happened.
    pub(super) fn report_events(&mut self) {
        let Some(controller) = self.connection.controller().cloned() else { return };
        while let Some((command_id, dw0)) = controller.events().next() {
            let Some(slot) = self.commands.table.find_cid(command_id) else { continue };
            self.commands.table[slot].result = u64::from(dw0);
            self.on_event(slot, Event::HostNotified);
        }
    }

    fn on_event(&mut self, slot: Slot, event: Event) {
        self.commands.on_event(self.connection, self.resources, slot, event);
    }
}
