//! An NVMe queue pair as the host sees it: the commands outstanding, and the way to the controller.

use ringfab_reactor::{Reactor, Time};
use ringfab_spec::CompletionEntry;

use crate::command::Command;
use crate::flow::SubmissionRing;
use crate::slots::SlotTable;
use crate::transport::{Arrival, Connect, Endpoint, NotSent, Transport, Transports};

/// A queue pair of one controller.
#[derive(Debug)]
pub(crate) struct Queue {
    qid: u16,
    slots: SlotTable<Box<Command>>,
    ring: SubmissionRing,
    transport: Transport,
    /// Commands that the controller can receive before it has answered one.
    credits: usize,
    /// The same, while the queue is held.
    held_credits: Option<usize>,
    /// Whether the transport has not yet reported the end of the connection.
    alive: bool,
    /// Commands answered since the queue was connected.
    answered: u64,
}

/// Why a response was not one.
pub(crate) type Violation = &'static str;

impl Queue {
    /// Starts to connect a queue with `to.size` entries, of which one less can be outstanding.
    ///
    /// # Errors
    /// When there is no connection left or the system has no socket.
    pub(crate) fn connect(
        transports: &mut Transports,
        reactor: &mut Reactor,
        to: &Connect<'_>,
    ) -> std::io::Result<Self> {
        Ok(Self {
            qid: to.qid,
            slots: SlotTable::new(usize::from(to.size) - 1),
            ring: SubmissionRing::new(to.size),
            transport: Transport::connect(transports, reactor, to)?,
            credits: usize::MAX,
            held_credits: None,
            alive: true,
            answered: 0,
        })
    }

    /// Queue identifier, zero for the admin queue.
    pub(crate) fn qid(&self) -> u16 {
        self.qid
    }

    /// Its connection.
    pub(crate) fn endpoint(&self) -> Endpoint {
        self.transport.endpoint()
    }

    /// Lets short writes travel in the capsule.
    pub(crate) fn set_in_capsule(&mut self, bytes_max: u32) {
        self.transport.set_in_capsule(bytes_max);
    }

    /// Limits the commands outstanding to those that the controller said it can receive (CRQSIZE).
    pub(crate) fn set_credits(&mut self, credits: u16) {
        self.credits = usize::from(credits);
    }

    /// Takes no command until it is released.
    pub(crate) fn hold(&mut self) {
        if self.held_credits.is_none() {
            self.held_credits = Some(std::mem::take(&mut self.credits));
        }
    }

    /// Takes commands again.
    pub(crate) fn release(&mut self) {
        self.credits = self.held_credits.take().unwrap_or(self.credits);
    }

    /// Commands outstanding.
    pub(crate) fn outstanding(&self) -> usize {
        self.slots.len()
    }

    /// Those commands.
    pub(crate) fn commands(&self) -> impl Iterator<Item = &Command> {
        self.slots.iter().map(|command| &**command)
    }

    /// Outstanding commands of a kind.
    pub(crate) fn count(&self, kind: impl Fn(&Command) -> bool) -> usize {
        self.slots.iter().filter(|command| kind(command)).count()
    }

    /// Commands answered so far.
    pub(crate) fn answered(&self) -> u64 {
        self.answered
    }

    /// Whether a command can be sent now, as far as slots and flow control go.
    pub(crate) fn has_room(&self) -> bool {
        self.alive && !self.slots.is_full() && self.slots.len() < self.credits && self.ring.has_room()
    }

    /// Sends a command.
    ///
    /// # Errors
    /// Gives the command back, as it was.
    pub(crate) fn send(
        &mut self,
        transports: &mut Transports,
        command: Box<Command>,
    ) -> Result<u16, (Box<Command>, NotSent)> {
        if !self.has_room() {
            return Err((command, if self.alive { NotSent::Busy } else { NotSent::Ended }));
        }
        let cid = self.slots.insert(command).map_err(|command| (command, NotSent::Busy))?;
        let command = self.slots.get_mut(cid).expect("it was just put there");
        command.clear_room();
        if let Err(reason) = self.transport.send(transports, command, cid) {
            let command = self.slots.take(cid).expect("it was just put there");
            return Err((command, reason));
        }
        self.ring.push();
        Ok(cid)
    }

    /// Takes a response: the command that it answers, with its memory back.
    ///
    /// # Errors
    /// The rule that the controller broke; the queue is of no further use.
    pub(crate) fn answer(
        &mut self,
        transports: &mut Transports,
        entry: &CompletionEntry,
        arrival: Arrival,
    ) -> Result<Box<Command>, (Option<Box<Command>>, Violation)> {
        let Some(mut command) = self.slots.take(entry.cid.get()) else {
            return Err((None, "a response to a command that is not outstanding"));
        };
        if !self.transport.reclaim(transports, &mut command, arrival.invalidated) {
            return Err((Some(command), "a response that invalidated the memory of another command"));
        }
        if !self.ring.advance(entry.sqhd.get(), self.slots.len()) {
            return Err((Some(command), "a submission queue head beyond the queue's size"));
        }
        // A response that overtook its data would let the controller write into memory that is the caller's already.
        if command.direction.is_to_host() && command.memory.as_ref().is_some_and(|buffer| !buffer.is_unique())
        {
            return Err((Some(command), "a response before its data had arrived"));
        }
        command.received = arrival.received.unwrap_or(command.length).min(command.length);
        self.transport.replenish(transports);
        self.answered += 1;
        Ok(command)
    }

    /// Takes a command that will have no answer; the controller reaches its memory no more.
    pub(crate) fn pop(&mut self, transports: &mut Transports) -> Option<Box<Command>> {
        let mut command = self.slots.pop()?;
        self.transport.withdraw(transports, &mut command);
        Some(command)
    }

    /// The earliest time at which an answer is overdue.
    pub(crate) fn deadline(&mut self) -> Time {
        self.slots.iter_mut().map(|(_, command)| command.deadline).min().unwrap_or(Time::MAX)
    }

    /// A command whose answer is overdue.
    pub(crate) fn overdue(&mut self, now: Time) -> Option<(u16, &mut Command)> {
        self.slots
            .iter_mut()
            .map(|(cid, command)| (cid, &mut **command))
            .find(|(_, command)| command.deadline <= now)
    }

    /// Ends the connection.
    pub(crate) fn disconnect(&self, transports: &mut Transports, reactor: &mut Reactor) {
        if self.alive {
            self.transport.disconnect(transports, reactor);
        }
    }

    /// Ends the connection without sending what was posted: a command that will be sent again on another connection
    /// must not be on its way on this one for longer than can be helped.
    pub(crate) fn abort(&self, transports: &mut Transports, reactor: &mut Reactor) {
        if self.alive {
            self.transport.abort(transports, reactor);
        }
    }

    /// The transport reported the end of the connection.
    pub(crate) fn ended(&mut self) {
        self.alive = false;
    }

    /// Whether the transport has not yet done so.
    pub(crate) fn is_alive(&self) -> bool {
        self.alive
    }
}
