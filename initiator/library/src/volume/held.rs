//! Commands that a lost path was sent and has not answered.
//!
//! Its controller may still execute them. Sent by another path as well, a command could be executed once more after a
//! later one, and undo it. So they go nowhere until something says that they are over: here it is the path that comes
//! back, because a controller first ends or fences what it had of a host's earlier connections. If it does not come
//! back, they fail with it.

use ringfab_reactor::Time;

use crate::command::{BoxedCommand, Command};

/// The commands of one lost path.
#[derive(Debug, Default)]
pub(super) struct Held(Vec<BoxedCommand>);

impl Held {
    /// Holds a command.
    pub(super) fn push(&mut self, command: BoxedCommand) {
        self.0.push(command);
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// All of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Command> {
        self.0.iter().map(|command| &**command)
    }

    /// When the first of them was sent.
    pub(super) fn since(&self) -> Option<Time> {
        self.0.iter().map(|command| command.sent).min()
    }

    /// Takes all of them: they are over, or fail.
    pub(super) fn release(&mut self) -> Vec<BoxedCommand> {
        std::mem::take(&mut self.0)
    }

    /// Takes those out that `which` names.
    pub(super) fn take_if(&mut self, which: impl Fn(&Command) -> bool) -> Vec<BoxedCommand> {
        self.0.extract_if(.., |command| which(command)).collect()
    }
}
