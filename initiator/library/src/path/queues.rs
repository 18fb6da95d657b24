//! The queue pairs of a path that one engine has: the admin queue, if it leads, and I/O queues.

use std::io;
use std::time::Duration;

use ringfab_reactor::Time;

use super::admin::AdminQueue;
use super::connector::Connector;
use super::io_queues::IoQueues;
use super::liveness::Activity;
use crate::command::{BoxedCommand, Command};
use crate::options::Timeouts;
use crate::queue::Queue;
use crate::resources::Resources;
use crate::transport::NotSent;

/// Entries of the admin queue, as other hosts have it.
pub(super) const ADMIN_QUEUE_SIZE: u16 = 32;

/// When to look again whether a queue has room for a command of the sequence.
const HELD_AGAIN: Duration = Duration::from_millis(1);

/// The queues, and how they are connected. Number zero is the admin queue; I/O queues count from one.
#[derive(Debug)]
pub(super) struct Queues {
    pub(super) connector: Connector,
    pub(super) admin: AdminQueue,
    pub(super) io: IoQueues,
    /// How long a command of the sequence may take, on any of them.
    sequence_timeout: Duration,
    /// The queue that takes no I/O until a command of the sequence has found room there.
    held: Option<u16>,
}

impl Queues {
    /// None yet.
    pub(super) fn new(connector: Connector, timeouts: &Timeouts) -> Self {
        let (admin, io) = (AdminQueue::new(timeouts.admin), IoQueues::new(timeouts.io));
        Self { connector, admin, io, sequence_timeout: timeouts.admin, held: None }
    }

    /// The queue with a number.
    #[inline]
    pub(super) fn get_mut(&mut self, number: u16) -> Option<&mut Queue> {
        if number == 0 { self.admin.queue_mut() } else { self.io.get_mut(number) }
    }

    /// The NVMe queue identifier of the queue with a number.
    pub(super) fn qid(&self, number: u16) -> u16 {
        self.connector.share().qid(number)
    }

    /// Starts to connect the admin queue.
    ///
    /// # Errors
    /// When there is no connection left or the system has no socket.
    pub(super) fn connect_admin(&mut self, resources: &mut Resources) -> io::Result<()> {
        let queue = self.connector.connect(resources, 0, ADMIN_QUEUE_SIZE)?;
        self.admin.set_queue(queue);
        Ok(())
    }

    /// Starts to connect an I/O queue.
    ///
    /// # Errors
    /// When there is no connection left or the system has no socket.
    pub(super) fn connect_io(
        &mut self,
        resources: &mut Resources,
        number: u16,
        size: u16,
        in_capsule_bytes_max: u32,
    ) -> io::Result<()> {
        let mut queue = self.connector.connect(resources, number, size)?;
        queue.set_in_capsule(in_capsule_bytes_max);
        self.io.push(queue);
        Ok(())
    }

    /// Commands of the caller without an answer.
    pub(super) fn outstanding(&self) -> usize {
        self.io.outstanding() + self.admin.outstanding()
    }

    /// What they have done.
    pub(super) fn activity(&self) -> Activity {
        Activity { io_answered: self.io.answered(), outstanding: self.outstanding() }
    }

    /// When they have something to do.
    pub(super) fn due(&self) -> Time {
        self.admin.due().min(self.io.due())
    }

    /// Sends a command of the sequence.
    ///
    /// # Errors
    /// Gives the command back, as it was.
    pub(super) fn send(
        &mut self,
        resources: &mut Resources,
        number: u16,
        mut command: Box<Command>,
    ) -> Result<(), (Box<Command>, NotSent)> {
        if let Some(held) = self.held.take().and_then(|held| self.get_mut(held)) {
            held.release();
        }
        command.deadline = resources.now() + self.sequence_timeout;
        if number == 0 {
            self.admin.scan_by(command.deadline);
        } else {
            self.io.scan_by(command.deadline);
        }
        let Some(queue) = self.get_mut(number) else { return Err((command, NotSent::Ended)) };
        queue.send(&mut resources.transports, command).map(drop)
    }

    /// A command of the sequence has found no room on a queue: nothing else is sent there until it has. A command that
    /// is outstanding there has an answer or is aborted some time. Returns when to try again.
    pub(super) fn hold(&mut self, now: Time, number: u16) -> Time {
        if let Some(queue) = self.get_mut(number) {
            queue.hold();
            self.held = Some(number);
        }
        now + HELD_AGAIN
    }

    /// Commands answered on all of them.
    pub(super) fn answered(&self) -> u64 {
        self.iter().map(Queue::answered).sum()
    }

    /// Whether a connection has not ended.
    pub(super) fn are_alive(&self) -> bool {
        self.iter().any(Queue::is_alive)
    }

    fn iter(&self) -> impl Iterator<Item = &Queue> {
        self.admin.queue().into_iter().chain(self.io.iter())
    }

    /// Ends all connections, in order or at once. Returns the commands that will have no answer: the controller no
    /// longer reaches their memory.
    pub(super) fn close(&mut self, resources: &mut Resources, orderly: bool) -> Vec<BoxedCommand> {
        for queue in self.iter() {
            if orderly {
                queue.disconnect(&mut resources.transports, &mut resources.reactor);
            } else {
                queue.abort(&mut resources.transports, &mut resources.reactor);
            }
        }
        let mut unanswered = Vec::new();
        for number in 0..=self.io.len() as u16 {
            while let Some(command) =
                self.get_mut(number).and_then(|queue| queue.pop(&mut resources.transports))
            {
                unanswered.push(command);
            }
        }
        self.admin.stop();
        self.io.stop();
        unanswered
    }

    /// Forgets the queues, whose connections have ended.
    pub(super) fn forget(&mut self, resources: &mut Resources) {
        for queue in self.admin.take_queue().into_iter().chain(self.io.drain()) {
            resources.routes.remove(queue.endpoint());
        }
        self.held = None;
    }
}
