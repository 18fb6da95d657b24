//! What the kernel works on for a ring: operations, what they work on, and what they have completed.

use std::collections::VecDeque;
use std::io;
use std::mem::ManuallyDrop;

use ringfab_base::SlotId;

use super::descriptors::{Descriptors, Owner, Role};
use super::operations::{NO_DESCRIPTOR, Operation, OperationKind, Operations, Outcome};
use super::progress::Progress;
use super::queues::Queues;
use super::timers::{Alarm, Timers};
use super::wake::WakeState;
use crate::{Completion, Payload, ReactorConfig, Time, Token};

/// Everything that is in flight, and the queues that it goes through.
pub(crate) struct InFlight {
    // These two are leaked when the kernel does not give everything back at the end.
    pub(super) queues: ManuallyDrop<Queues>,
    pub(super) operations: ManuallyDrop<Operations>,
    /// Receives that were started and are not in the ring.
    pub(super) receives: Vec<u64>,
    /// The same of sends.
    pub(super) sends: Vec<u64>,
    pub(super) descriptors: Descriptors,
    pub(super) timers: Timers,
    /// The kernel's timer for a program that waits on the ring's descriptor: its name, and when it fires.
    alarm: Option<(u64, Time)>,
    pub(super) ready: VecDeque<Completion>,
    /// No operation is started or continued any more.
    pub(super) draining: bool,
}

impl InFlight {
    pub(super) fn new(config: &ReactorConfig) -> io::Result<Self> {
        let queues = Queues::new(config.entries)?;
        let descriptors = Descriptors::new(config.descriptors_max, queues.submitter());
        let in_flight_usual = config.entries as usize * 4;
        Ok(Self {
            queues: ManuallyDrop::new(queues),
            operations: ManuallyDrop::new(Operations::new(in_flight_usual)),
            receives: Vec::with_capacity(config.descriptors_max as usize),
            sends: Vec::with_capacity(config.descriptors_max as usize),
            descriptors,
            timers: Timers::new(),
            alarm: None,
            ready: VecDeque::with_capacity(in_flight_usual),
            draining: false,
        })
    }

    /// Reads wake-ups from now on.
    pub(super) fn read_wakes(&mut self, wake: &WakeState) {
        let held = OperationKind::Wake(wake.eventfd(), Box::new([0; 8]));
        self.start(INTERNAL, NO_DESCRIPTOR, held);
    }

    /// Completes the timers that are due, and has listeners accept again that have rested.
    pub(super) fn fire_timers(&mut self, now: Time) {
        if self.timers.next() > now {
            return;
        }
        while let Some(alarm) = self.timers.pop_due(now) {
            match alarm {
                Alarm::User(token) => {
                    self.ready.push_back(Completion { token, result: Ok(0), payload: Payload::None });
                }
                Alarm::Accept(listener) => self.resume_accept(listener),
            }
        }
    }

    /// Has the kernel complete an operation when the next timer is due, or before that.
    pub(super) fn set_alarm(&mut self, now: Time) {
        let at = self.timers.next();
        if at == Time::MAX || self.alarm.is_some_and(|(_, earlier)| earlier <= at) {
            return;
        }
        if let Some((name, _)) = self.alarm {
            self.start(INTERNAL, NO_DESCRIPTOR, OperationKind::CancelOne(name));
        }
        let held = OperationKind::Alarm(Box::new((at - now).into()));
        let name = self.operations.insert(Operation { token: INTERNAL, descriptor: NO_DESCRIPTOR, held });
        self.descriptors.begin(NO_DESCRIPTOR);
        self.push(name);
        self.alarm = Some((name, at));
    }

    /// Adopts a descriptor: its handle.
    pub(super) fn add_descriptor(&mut self, descriptor: impl Into<Owner>, role: Role) -> io::Result<SlotId> {
        self.descriptors.insert(self.queues.submitter(), descriptor, role)
    }

    /// Puts an operation into the table and its entry into the queue.
    pub(super) fn start(&mut self, token: Token, descriptor: u32, held: OperationKind) {
        self.descriptors.begin(descriptor);
        let name = self.operations.insert(Operation { token, descriptor, held });
        self.push(name);
    }

    /// Queues an entry for what remains of an operation.
    pub(super) fn push(&mut self, name: u64) {
        let Some(operation) = self.operations.get_mut(name) else { return };
        let target = self.descriptors.target(operation.descriptor);
        let entry = operation.entry(target).user_data(name);
        // SAFETY: the entry points only at memory that the operation owns (on the heap, or a pool's through a buffer or
        // shared buffer). The operation leaves the table only when its last completion was taken from the queue; when
        // that cannot be waited for, `Drop` leaks table and queues. A buffer is the only handle of its memory and moved
        // into the operation; a shared buffer promises nothing about who writes.
        unsafe { self.queues.push(entry) };
    }

    /// Ends an operation that never started.
    pub(super) fn refuse(&mut self, token: Token, errno: i32, payload: Payload) {
        self.ready.push_back(Completion { token, result: Err(io::Error::from_raw_os_error(errno)), payload });
    }

    /// Takes everything from the completion queue.
    pub(super) fn reap(&mut self) {
        while self.queues.has_completions() {
            while let Some(entry) = self.queues.next() {
                self.finish(entry.user_data(), Outcome::new(&entry));
            }
        }
    }

    /// Handles one completion: continues the operation, or takes it out of the table and hands it to its owner.
    pub(super) fn finish(&mut self, name: u64, outcome: Outcome) {
        let Some(operation) = self.operations.get_mut(name) else {
            tracing::error!(name, "the kernel completed an operation that is not in flight");
            return;
        };
        if matches!(operation.held, OperationKind::Accept) {
            return self.accepted(name, outcome);
        }
        let ending = self.draining || self.descriptors.is_closing(operation.descriptor);
        let result = match operation.progress(outcome, ending, &self.descriptors) {
            Progress::Continue => return self.push(name),
            Progress::Done(result) => result,
        };
        let Some(operation) = self.operations.remove(name) else { return };
        self.conclude(operation, result, outcome);
    }

    pub(super) fn conclude(&mut self, operation: Operation, result: Result<u32, i32>, outcome: Outcome) {
        let (token, descriptor) = (operation.token, operation.descriptor);
        match &operation.held {
            OperationKind::Send { .. } => self.sent(descriptor),
            OperationKind::Receive { .. } => self.descriptors.set_drained(descriptor, !outcome.left_data),
            // One that was cancelled has been replaced.
            OperationKind::Alarm(_) if result != Err(libc::ECANCELED) => self.alarm = None,
            _ => {}
        }
        let internal = matches!(
            operation.held,
            OperationKind::Wake(..)
                | OperationKind::StopPolling(_)
                | OperationKind::Alarm(_)
                | OperationKind::CancelOne(_)
                | OperationKind::Cancel
                | OperationKind::CancelAll
        );
        self.descriptors.end(self.queues.submitter(), descriptor);
        if !internal {
            let result = result.map_err(io::Error::from_raw_os_error);
            self.ready.push_back(Completion { token, result, payload: operation.into_payload() });
        }
    }

    /// Cancels everything in flight on a descriptor, which is then closed when the last of it has ended.
    pub(super) fn close(&mut self, index: u32) {
        if self.descriptors.close(self.queues.submitter(), index) {
            // A cancellation only finds what was queued before it.
            self.queue_sends();
            self.queue_receives();
            self.start(INTERNAL, index, OperationKind::Cancel);
        }
    }
}

/// The token of operations whose completion nobody is told of.
pub(super) const INTERNAL: Token = Token::new(u8::MAX, u8::MAX, u16::MAX, u32::MAX);
