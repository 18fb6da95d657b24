//! Commands that wait for another try. They hold nothing else up.

use ringfab_reactor::Time;

use crate::command::{BoxedCommand, Command};

/// Commands with a time at which each is sent again: [`Command::deadline`].
#[derive(Debug)]
pub(crate) struct Delayed {
    commands: Vec<BoxedCommand>,
    /// The earliest of those times; [`Time::MAX`] for none.
    due: Time,
}

impl Default for Delayed {
    fn default() -> Self {
        Self { commands: Vec::new(), due: Time::MAX }
    }
}

impl Delayed {
    /// Keeps a command until `at`.
    pub(crate) fn push(&mut self, mut command: Box<Command>, at: Time) {
        command.deadline = at;
        self.due = self.due.min(at);
        self.commands.push(command);
    }

    /// When the first is due; [`Time::MAX`] for none.
    pub(crate) fn due(&self) -> Time {
        self.due
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.commands.len()
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Command> {
        self.commands.iter().map(|command| &**command)
    }

    /// Takes those out that are due; with [`Time::MAX`] all.
    pub(crate) fn take_due(&mut self, now: Time) -> Vec<BoxedCommand> {
        self.take_if(|command| command.deadline <= now)
    }

    /// Takes those out that `which` names.
    pub(crate) fn take_if(&mut self, which: impl Fn(&Command) -> bool) -> Vec<BoxedCommand> {
        let taken = self.commands.extract_if(.., |command| which(command)).collect();
        self.due = self.commands.iter().map(|command| command.deadline).min().unwrap_or(Time::MAX);
        taken
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::command::Owner;
    use crate::wire;

    #[test]
    fn a_command_comes_out_when_it_is_due_and_the_next_time_is_known() {
        let at = |ms| Time::ZERO + Duration::from_millis(ms);
        let mut delayed = Delayed::default();
        for ms in [30, 10, 20] {
            delayed.push(Command::new(wire::flush(1), Owner::Io(ms)), at(ms));
        }
        assert_eq!((delayed.due(), delayed.len()), (at(10), 3));
        assert!(delayed.take_due(at(9)).is_empty());
        let owners = |taken: Vec<BoxedCommand>| taken.iter().map(|one| one.owner).collect::<Vec<_>>();
        assert_eq!(owners(delayed.take_due(at(20))), [Owner::Io(10), Owner::Io(20)]);
        assert_eq!(delayed.due(), at(30));
        assert_eq!(owners(delayed.take_due(Time::MAX)), [Owner::Io(30)]);
        assert_eq!((delayed.due(), delayed.len()), (Time::MAX, 0));
    }
}
