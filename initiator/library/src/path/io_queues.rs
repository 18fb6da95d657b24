//! The I/O queues of a path that one engine has.

use std::time::Duration;

use ringfab_reactor::Time;

use crate::command::{Command, Owner};
use crate::error::Cause;
use crate::queue::Queue;
use crate::transport::{NotSent, Transports};

/// An I/O command that has no answer for this long is logged.
pub(crate) const SLOW_IO: Duration = Duration::from_secs(5);

/// An overdue command for whose abort there was no room is looked at again after this time.
const ABORT_AGAIN: Duration = Duration::from_millis(100);

/// The queues, and whose turn it is.
#[derive(Debug)]
pub(crate) struct IoQueues {
    queues: Vec<Queue>,
    /// Where the search for a queue with room begins.
    next: usize,
    /// How long a command may take before it is aborted, and again before the connection is given up.
    timeout: Duration,
    /// When to look for overdue answers. That takes a pass over all slots, so it is done when the oldest could be
    /// overdue, not for each command.
    scan_at: Time,
    /// Commands answered on queues that are gone.
    answered_before: u64,
    /// Bytes of data of the commands that were sent, since the path was added.
    bytes: u64,
    /// Commands of the sequence that were answered: those that connect a queue, and authenticate it.
    sequence_answered: u64,
}

/// What a scan has found.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// Overdue commands, which are to be aborted: queue and command identifier.
    pub(super) overdue: Vec<(u16, u16)>,
    /// Commands without an answer for longer than is usual, and how long the oldest has waited.
    pub(super) slow: usize,
    pub(super) longest: Duration,
}

impl IoQueues {
    /// None yet.
    pub(super) fn new(timeout: Duration) -> Self {
        Self {
            queues: Vec::new(),
            next: 0,
            timeout,
            scan_at: Time::MAX,
            answered_before: 0,
            bytes: 0,
            sequence_answered: 0,
        }
    }

    /// One more.
    pub(super) fn push(&mut self, queue: Queue) {
        self.queues.push(queue);
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.queues.len()
    }

    /// The queue with this number, which counts from one.
    #[inline]
    pub(super) fn get_mut(&mut self, number: u16) -> Option<&mut Queue> {
        self.queues.get_mut(usize::from(number).wrapping_sub(1))
    }

    /// All of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Queue> {
        self.queues.iter()
    }

    /// The number of the first one after `number` whose connection has not ended.
    pub(super) fn alive_after(&self, number: u16) -> Option<u16> {
        let mut queues = self.queues.iter().zip(1..).skip(number.into());
        queues.find(|(queue, _)| queue.is_alive()).map(|(_, number)| number)
    }

    /// Forgets them.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Queue> + '_ {
        self.answered_before += self.answered();
        self.sequence_answered = 0;
        self.queues.drain(..)
    }

    /// Commands outstanding in all of them.
    pub(crate) fn outstanding(&self) -> usize {
        self.queues.iter().map(Queue::outstanding).sum()
    }

    /// A command of the sequence was answered on one of them.
    pub(super) fn note_sequence_answer(&mut self) {
        self.sequence_answered += 1;
    }

    /// Commands answered since they were connected, without those of the sequence.
    pub(super) fn answered(&self) -> u64 {
        self.queues.iter().map(Queue::answered).sum::<u64>().saturating_sub(self.sequence_answered)
    }

    /// Commands answered, and bytes of data of those that were sent, since the path was added.
    pub(super) fn counters(&self) -> (u64, u64) {
        (self.answered_before + self.answered(), self.bytes)
    }

    /// Sends a command on a queue; the next one has the next turn.
    ///
    /// # Errors
    /// Gives the command back, as it was.
    #[inline]
    pub(crate) fn send(
        &mut self,
        transports: &mut Transports,
        index: usize,
        command: Box<Command>,
    ) -> Result<(), (Box<Command>, NotSent)> {
        let length = command.length;
        self.queues[index].send(transports, command)?;
        self.bytes += u64::from(length);
        self.next = if index + 1 < self.queues.len() { index + 1 } else { 0 };
        Ok(())
    }

    /// The next queue in turn that can take a command: most often the one whose turn it is.
    #[inline]
    pub(crate) fn queue_with_room(&self) -> Option<usize> {
        if self.queues.get(self.next).is_some_and(Queue::has_room) {
            return Some(self.next);
        }
        let next = self.next.min(self.queues.len());
        let mut indices = (next..self.queues.len()).chain(0..next);
        indices.find(|index| self.queues[*index].has_room())
    }

    /// When to look for overdue answers.
    pub(super) fn due(&self) -> Time {
        self.scan_at
    }

    /// Makes sure that answers that are overdue by then are noticed; whether that is sooner than it would have been.
    #[inline]
    pub(crate) fn scan_by(&mut self, at: Time) -> bool {
        let sooner = at < self.scan_at;
        if sooner {
            self.scan_at = at;
        }
        sooner
    }

    /// Their connections end.
    pub(super) fn stop(&mut self) {
        self.scan_at = Time::MAX;
    }

    /// Looks for overdue answers when it is time. An overdue command is aborted first, if `aborts_left` allows it. It
    /// costs the connection only when that does not help.
    ///
    /// # Errors
    /// An abort has not helped.
    pub(super) fn scan(&mut self, now: Time, mut aborts_left: usize) -> Result<Scan, Cause> {
        let mut scan = Scan::default();
        if now < self.scan_at {
            return Ok(scan);
        }
        for queue in &mut self.queues {
            let qid = queue.qid();
            while let Some((cid, command)) = queue.overdue(now) {
                if command.aborted || command.owner == Owner::Sequence {
                    let what = "an I/O command and its abort";
                    return Err(Cause::TimedOut { what, limit: self.timeout });
                }
                if aborts_left == 0 {
                    command.deadline = now + ABORT_AGAIN;
                    continue;
                }
                aborts_left -= 1;
                (command.aborted, command.deadline) = (true, now + self.timeout);
                scan.overdue.push((qid, cid));
            }
        }
        self.scan_at = self.find_slow(now, &mut scan);
        Ok(scan)
    }

    /// Looks for commands that have no answer for longer than is usual, and says when to look again.
    fn find_slow(&self, now: Time, scan: &mut Scan) -> Time {
        let limit = self.timeout;
        let mut next = Time::MAX;
        for command in self.queues.iter().flat_map(Queue::commands) {
            // A deadline is that long after the command was sent, or its abort. `Time` does not go below zero.
            let left = command.deadline.since(now);
            let is_slow = left + SLOW_IO <= limit;
            if limit > SLOW_IO && (is_slow || command.aborted) {
                scan.slow += 1;
                scan.longest = scan.longest.max(limit.saturating_sub(left));
            }
            let later = if is_slow { left } else { (left + SLOW_IO).saturating_sub(limit).min(left) };
            next = next.min(now + later);
        }
        next
    }
}
