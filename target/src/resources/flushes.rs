//! Flushes of disks that the control side asks for; `flushing` starts and ends them.

use std::sync::mpsc;

use ringfab_block::Tag;

/// What tags of these flushes have in the place of the number of a queue. No queue has it.
const NO_QUEUE: u16 = u16::MAX;

/// Where a core says that a disk is flushed, or why it is not.
pub(crate) type Flushed = mpsc::Sender<Result<(), String>>;

/// The flushes of a core that the control side waits for.
#[derive(Debug, Default)]
pub(crate) struct ControlFlushes {
    in_flight: Vec<ControlFlush>,
    serial: u16,
}

/// One of them.
#[derive(Debug)]
pub(super) struct ControlFlush {
    tag: Tag,
    /// The position of the disk.
    pub(super) disk: usize,
    pub(super) reply: Flushed,
}

impl ControlFlushes {
    /// Whether one is in flight at a disk.
    pub(crate) fn use_disk(&self, disk: usize) -> bool {
        self.in_flight.iter().any(|flush| flush.disk == disk)
    }

    /// One begins; the tag for its operation.
    pub(super) fn begin(&mut self, disk: usize, reply: Flushed) -> Tag {
        self.serial = self.serial.wrapping_add(1);
        let index = u32::from(NO_QUEUE) << 16 | u32::from(self.serial);
        let tag = Tag { kind: 0, generation: 0, index };
        self.in_flight.push(ControlFlush { tag, disk, reply });
        tag
    }

    /// The one with this tag has ended.
    pub(super) fn end(&mut self, tag: Tag) -> Option<ControlFlush> {
        let index = self.in_flight.iter().position(|flush| flush.tag == tag)?;
        Some(self.in_flight.swap_remove(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_ended_once_by_its_tag_and_uses_its_disk_until_then() {
        let (reply, _replies) = mpsc::channel();
        let mut flushes = ControlFlushes::default();
        let [one, two] = [3, 4].map(|disk| flushes.begin(disk, reply.clone()));
        assert_ne!(one, two);
        assert_eq!(one.index >> 16, 0xffff, "of no queue");
        assert!(flushes.use_disk(3) && flushes.use_disk(4) && !flushes.use_disk(5));
        assert_eq!(flushes.end(two).map(|flush| flush.disk), Some(4));
        assert!(flushes.end(two).is_none() && flushes.use_disk(3) && !flushes.use_disk(4));
    }
}
