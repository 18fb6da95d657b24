//! Commands that a lost path was sent and has not answered.
//!
//! Its controller may still execute them: what was sent may lie in a socket or in a network. Sent again while it does,
//! a command that changes blocks could be executed once more after a later one, and undo it. So those wait until the
//! lost *instance* of the controller is over, which the leader of the path says: see [`crate::fences`]. What changes
//! nothing goes on as soon as the connections have ended, and their buffers are back.
//!
//! A command that fails meanwhile, because its program does not want to wait, leaves its blocks here: nobody knows
//! whether it will still be executed, and later changes of these blocks wait as they would for the command itself.
//!
//! # Buffers
//! No buffer goes back to a program, or out by another path, before the connections of this engine have
//! ended. Then nobody uses it any more. A stream reports its end only when the kernel has given back each send and
//! each receive; no send is without a copy in the kernel, and what TLS sends is a copy, too. An RDMA queue pair
//! reports its end only when no work of it is left, and before that the command's region was revoked, so that nobody
//! reaches it from outside.

use super::extents::{Extents, changes_blocks};
use crate::command::{BoxedCommand, Command};
use crate::request::PathId;

/// The commands of the lost instances of all controllers.
#[derive(Debug, Default)]
pub(super) struct Held(Vec<Batch>);

/// Those that were sent on the queues of one connection.
#[derive(Debug)]
struct Batch {
    path: PathId,
    /// Number of its connection.
    connection: u32,
    commands: Vec<BoxedCommand>,
    /// Commands whose namespace is gone, which fail once the connections have ended.
    gone: Vec<BoxedCommand>,
    /// Blocks that the lost instance may still change.
    extents: Extents,
    /// Whether the connections of this engine have ended, and no buffer is in use there.
    ended: bool,
    /// Whether the instance executes nothing any more.
    over: bool,
}

impl Batch {
    /// Those that can go on.
    fn go_on(&mut self) -> Vec<BoxedCommand> {
        if !self.ended {
            return Vec::new();
        }
        let over = self.over;
        self.commands.extract_if(.., |command| over || !changes_blocks(command)).collect()
    }
}

impl Held {
    /// Holds a command that was sent on a connection of a path. `unprotected`: as if it changed nothing.
    pub(super) fn push(&mut self, path: PathId, connection: u32, command: BoxedCommand, unprotected: bool) {
        let is_its = |batch: &Batch| (batch.path, batch.connection) == (path, connection);
        let index = self.0.iter().position(is_its).unwrap_or_else(|| {
            self.0.push(Batch {
                path,
                connection,
                commands: Vec::new(),
                gone: Vec::new(),
                extents: Extents::default(),
                ended: false,
                over: unprotected,
            });
            self.0.len() - 1
        });
        let batch = &mut self.0[index];
        if changes_blocks(&command) && !batch.over {
            batch.extents.add(&command);
        }
        batch.commands.push(command);
    }

    /// How many commands there are.
    pub(super) fn len(&self) -> usize {
        self.0.iter().map(|batch| batch.commands.len() + batch.gone.len()).sum()
    }

    /// How many a path has.
    pub(super) fn of_path(&self, path: PathId) -> usize {
        self.0.iter().filter(|batch| batch.path == path).map(|batch| batch.commands.len()).sum()
    }

    /// All of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Command> {
        self.0.iter().flat_map(|batch| batch.commands.iter().map(|command| &**command))
    }

    /// Whether nothing is held, and no block may still change.
    pub(super) fn is_clear(&self) -> bool {
        self.0.iter().all(|batch| batch.extents.is_empty())
    }

    /// Whether a command changes blocks that a lost instance may still change, too.
    pub(super) fn overlap(&mut self, command: &Command) -> bool {
        self.0.iter_mut().any(|batch| batch.extents.overlap(command))
    }

    /// The connections of a path have ended on this engine: what can go on. See also [`Held::take_gone`].
    pub(super) fn have_ended(&mut self, path: PathId) -> Vec<BoxedCommand> {
        let of_path = self.0.iter_mut().filter(|batch| batch.path == path);
        of_path.for_each(|batch| batch.ended = true);
        self.go_on()
    }

    /// The instances of these connections of a path are over: what can go on.
    pub(super) fn are_over(&mut self, path: PathId, first: u32, last: u32) -> Vec<BoxedCommand> {
        let is_meant = |batch: &&mut Batch| batch.path == path && (first..=last).contains(&batch.connection);
        for batch in self.0.iter_mut().filter(is_meant) {
            batch.over = true;
            batch.extents.clear();
        }
        self.go_on()
    }

    fn go_on(&mut self) -> Vec<BoxedCommand> {
        let commands = self.0.iter_mut().flat_map(Batch::go_on).collect();
        self.0.retain(|batch| {
            !batch.ended || !batch.commands.is_empty() || !batch.gone.is_empty() || !batch.extents.is_empty()
        });
        commands
    }

    /// Takes all commands, or those of a path, which fail. The connections have ended. Their blocks stay.
    pub(super) fn release(&mut self, path: Option<PathId>) -> Vec<BoxedCommand> {
        let all = |batch: &mut Batch| {
            batch.commands.append(&mut batch.gone);
            std::mem::take(&mut batch.commands)
        };
        let is_meant = |batch: &&mut Batch| path.is_none_or(|path| batch.path == path);
        let commands = self.0.iter_mut().filter(is_meant).flat_map(all).collect();
        self.0.retain(|batch| !batch.ended || !batch.commands.is_empty() || !batch.extents.is_empty());
        commands
    }

    /// Takes those that `which` names, whose namespace is gone. They fail; those whose connections have not ended do so
    /// when [`Held::take_gone`] says that they have.
    pub(super) fn take_if(&mut self, which: impl Fn(&Command) -> bool) -> Vec<BoxedCommand> {
        for batch in &mut self.0 {
            batch.gone.extend(batch.commands.extract_if(.., |command| which(command)));
        }
        self.take_gone()
    }

    /// Takes those whose namespace is gone and whose connections have ended.
    pub(super) fn take_gone(&mut self) -> Vec<BoxedCommand> {
        let ended = self.0.iter_mut().filter(|batch| batch.ended);
        ended.flat_map(|batch| std::mem::take(&mut batch.gone)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Owner;
    use crate::wire;

    const ONE: PathId = PathId::first(0);
    const OTHER: PathId = PathId::first(1);

    fn write(order: u64) -> BoxedCommand {
        Command::new(wire::write(1, order, 1, false), Owner::Io(order))
    }

    fn read(order: u64) -> BoxedCommand {
        Command::new(wire::read(1, order, 1), Owner::Io(order))
    }

    fn owners(commands: &[BoxedCommand]) -> Vec<Owner> {
        commands.iter().map(|command| command.owner).collect()
    }

    /// A write and a read of the third connection of a path.
    fn held() -> Held {
        let mut held = Held::default();
        held.push(ONE, 3, write(1), false);
        held.push(ONE, 3, read(2), false);
        held
    }

    #[test]
    fn no_buffer_goes_back_before_the_connections_have_ended() {
        let mut held = held();
        assert!(held.are_over(ONE, 3, 3).is_empty(), "though the instance is over");
        assert!(held.is_clear() && held.len() == 2);
        assert!(held.take_if(|_| true).is_empty(), "though their namespace is gone");
        assert!(held.have_ended(OTHER).is_empty() && held.take_gone().is_empty(), "of another path");
        assert!(held.have_ended(ONE).is_empty());
        assert_eq!(owners(&held.take_gone()), [Owner::Io(1), Owner::Io(2)]);
        assert_eq!(held.len(), 0);
    }

    #[test]
    fn what_changes_nothing_goes_on_then_and_what_changes_blocks_when_the_instance_is_over() {
        let mut held = held();
        held.push(ONE, 4, write(5), false);
        assert_eq!(owners(&held.have_ended(ONE)), [Owner::Io(2)]);
        assert!(held.are_over(OTHER, 0, 9).is_empty() && held.overlap(&write(1)) && held.overlap(&write(5)));
        assert_eq!(owners(&held.are_over(ONE, 0, 3)), [Owner::Io(1)]);
        assert!(!held.overlap(&write(1)) && held.overlap(&write(5)), "that was another connection");
        assert_eq!(owners(&held.are_over(ONE, 4, 4)), [Owner::Io(5)]);
        assert!(held.is_clear() && held.0.is_empty());
    }

    #[test]
    fn what_fails_leaves_its_blocks_behind() {
        let mut held = held();
        held.have_ended(ONE);
        assert_eq!(owners(&held.release(Some(ONE))), [Owner::Io(1)]);
        assert!(held.overlap(&write(1)) && !held.overlap(&read(1)) && !held.is_clear());
        assert!(held.are_over(ONE, 3, 3).is_empty() && held.is_clear());
    }

    #[test]
    fn unprotected_it_goes_on_when_the_connections_have_ended() {
        let mut held = Held::default();
        held.push(ONE, 3, write(1), true);
        assert!(!held.overlap(&write(1)));
        assert_eq!(owners(&held.have_ended(ONE)), [Owner::Io(1)]);
    }
}
