//! Commands that a lost path was sent and has not answered.
//!
//! Its controller may still execute them. Sent by another path as well, a command could be executed once more after a
//! later one, and undo it. So those that change something go nowhere until something says that they are over: here it is the path that comes
//! back, because a controller first ends or fences what it had of a host's earlier connections. If it does not come
//! back, they fail with it.

use ringfab_reactor::Time;
use ringfab_spec::IoOpcode;

use crate::command::{BoxedCommand, Command};

/// Whether a command can be sent by another path while its lost path may still execute it: it changes nothing, so that
/// nobody sees how often it is executed.
pub(super) fn may_go_elsewhere(command: &Command) -> bool {
    matches!(
        IoOpcode(command.entry.opcode),
        IoOpcode::READ | IoOpcode::COMPARE | IoOpcode::VERIFY | IoOpcode::FLUSH
    )
}

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
