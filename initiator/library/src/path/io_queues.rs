//! The I/O queues of a path that one engine has.

use ringfab_reactor::Time;

use crate::command::Command;
use crate::queue::Queue;
use crate::transport::{NotSent, Transports};

/// Which of the controller's I/O queues an engine has. Several engines share them in turn, so that each has as many as
/// another, or one less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    /// Number of this engine, from zero.
    pub(crate) engine: u16,
    /// Engines that share the controller.
    pub(crate) engines: u16,
}

impl Share {
    /// How many queues that is of `total`.
    pub(crate) fn count(self, total: u16) -> u16 {
        total.saturating_sub(self.engine).div_ceil(self.engines)
    }

    /// NVMe queue identifier of this engine's queue with a number, which counts from one.
    pub(crate) fn qid(self, number: u16) -> u16 {
        1 + self.engine + (number - 1) * self.engines
    }
}

/// The queues, and whose turn it is.
#[derive(Debug, Default)]
pub(crate) struct IoQueues {
    queues: Vec<Queue>,
    /// Where the search for a queue with room begins.
    next: usize,
}

impl IoQueues {
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

    /// All of them.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Queue> {
        self.queues.iter_mut()
    }

    /// Forgets them.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Queue> + '_ {
        self.queues.drain(..)
    }

    /// Commands outstanding in all of them.
    pub(super) fn outstanding(&self) -> usize {
        self.queues.iter().map(Queue::outstanding).sum()
    }

    /// Commands answered since they were connected, without each one's Connect.
    pub(super) fn answered(&self) -> u64 {
        self.queues.iter().map(|queue| queue.answered().saturating_sub(1)).sum()
    }

    /// Sends a command on a queue; the next one has the next turn.
    ///
    /// # Errors
    /// Gives the command back, as it was.
    #[inline]
    pub(super) fn send(
        &mut self,
        transports: &mut Transports,
        index: usize,
        command: Box<Command>,
    ) -> Result<(), (Box<Command>, NotSent)> {
        self.queues[index].send(transports, command)?;
        self.next = if index + 1 < self.queues.len() { index + 1 } else { 0 };
        Ok(())
    }

    /// The next queue in turn that can take a command: most often the one whose turn it is.
    #[inline]
    pub(super) fn queue_with_room(&self) -> Option<usize> {
        if self.queues.get(self.next).is_some_and(Queue::has_room) {
            return Some(self.next);
        }
        let next = self.next.min(self.queues.len());
        let mut indices = (next..self.queues.len()).chain(0..next);
        indices.find(|index| self.queues[*index].has_room())
    }

    /// Asks for each overdue command what to do, which sets its next deadline. Ends with the first error.
    pub(super) fn overdue<E>(
        &mut self,
        now: Time,
        mut act: impl FnMut(u16, u16, &mut Command) -> Result<(), E>,
    ) -> Result<(), E> {
        for queue in &mut self.queues {
            let qid = queue.qid();
            while let Some((cid, command)) = queue.overdue(now) {
                act(qid, cid, command)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Share;

    #[test]
    fn engines_share_all_queues_and_none_twice() {
        for (engines, total) in [(1, 1), (1, 7), (2, 4), (2, 5), (3, 5), (4, 4), (3, 2)] {
            let shares = (0..engines).map(|engine| Share { engine, engines });
            let mut all: Vec<u16> = shares
                .flat_map(|share| (1..=share.count(total)).map(move |number| share.qid(number)))
                .collect();
            all.sort_unstable();
            assert_eq!(all, (1..=total).collect::<Vec<_>>(), "{engines} engines, {total} queues");
        }
    }
}
