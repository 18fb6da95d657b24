//! Commands that wait for a path: a line for each access group, since the namespaces of a group have the same paths.
//!
//! Each line goes on by its own path, in its order. Where lines go by the same path, the command that was submitted
//! first has the next turn. All lines share their places, so that none allocates, however many there are.

use std::time::Duration;

use ringfab_reactor::Time;

use crate::chooser::Chooser;
use crate::command::{BoxedCommand, Command};

/// The lines.
#[derive(Debug)]
pub(super) struct Lines {
    /// By their groups, ascending. There is at least one.
    lines: Vec<Line>,
    places: Vec<Place>,
    /// The first place without a command.
    free: u32,
    /// Commands in all lines.
    len: usize,
}

/// The commands of one group, linked by their places.
#[derive(Debug)]
struct Line {
    group: u32,
    chooser: Chooser,
    /// While access states close all paths that are there: until when its commands wait for another state.
    closed: Option<Closed>,
    /// `None` while nothing waits.
    ends: Option<Ends>,
}

/// A group that no path leads to, though there are paths.
#[derive(Clone, Copy, Debug)]
struct Closed {
    since: Time,
    /// When its commands fail.
    until: Time,
}

#[derive(Clone, Copy, Debug)]
struct Ends {
    first: u32,
    last: u32,
}

/// Where a command waits, or nothing.
#[derive(Debug)]
struct Place {
    command: Option<BoxedCommand>,
    /// The next one of the line, or the next one without a command.
    next: u32,
}

/// No place.
const END: u32 = u32::MAX;

/// Whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Turn {
    /// Index of the line.
    pub(super) line: usize,
    /// Index of the path that it goes by.
    pub(super) path: usize,
    /// Number of the command, in another line, that has the turn after this line's: see [`Command::order`].
    pub(super) until: u64,
}

impl Lines {
    /// Room for so many commands, and more if need be.
    pub(super) fn new(capacity: usize) -> Self {
        let line = Line { group: 0, chooser: Chooser::default(), closed: None, ends: None };
        Self { lines: vec![line], places: Vec::with_capacity(capacity), free: END, len: 0 }
    }

    /// Commands in all lines.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing waits.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All commands that wait.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Command> {
        self.places.iter().filter_map(|place| place.command.as_deref())
    }

    /// The index of a group's line; a group that is not known any more has the first.
    #[inline]
    pub(super) fn of_group(&self, group: u32) -> usize {
        self.lines.binary_search_by_key(&group, |line| line.group).unwrap_or(0)
    }

    /// What chooses the path of a line.
    #[inline]
    pub(super) fn chooser(&mut self, line: usize) -> &mut Chooser {
        &mut self.lines[line].chooser
    }

    /// The groups and what chooses their paths.
    pub(super) fn choosers(&mut self) -> impl Iterator<Item = (u32, &mut Chooser)> {
        self.lines.iter_mut().map(|line| (line.group, &mut line.chooser))
    }

    /// Begins or ends the waits of groups for another access state. `limit` says how long one may take, if the group is
    /// closed though paths are there.
    pub(super) fn note_closed(&mut self, now: Time, limit: impl Fn(u32) -> Option<Option<Duration>>) {
        for line in &mut self.lines {
            let limit = if line.chooser.is_closed() { limit(line.group) } else { None };
            line.closed = limit.map(|limit| {
                let since = line.closed.map_or(now, |closed| closed.since);
                Closed { since, until: limit.map_or(Time::MAX, |limit| since + limit) }
            });
        }
    }

    /// When the first of those waits is over that something waits for.
    pub(super) fn closed_until(&self) -> Time {
        let waits = self.lines.iter().filter(|line| line.ends.is_some());
        waits.filter_map(|line| line.closed).map(|closed| closed.until).min().unwrap_or(Time::MAX)
    }

    /// Whether the commands of a line do not wait any more.
    pub(super) fn has_waited(&self, line: usize, now: Time) -> bool {
        self.lines[line].closed.is_some_and(|closed| now >= closed.until)
    }

    /// Takes the commands that have waited for an access state for too long.
    pub(super) fn take_closed(&mut self, now: Time) -> Vec<BoxedCommand> {
        let mut taken = Vec::new();
        for line in 0..self.lines.len() {
            while self.has_waited(line, now) {
                let Some(command) = self.pop(line, u64::MAX) else { break };
                taken.push(command);
            }
        }
        taken
    }

    /// The line whose first command was submitted first, of those that can go on. `path_of` says by which path one can.
    pub(super) fn turn(&mut self, mut path_of: impl FnMut(&mut Chooser) -> Option<usize>) -> Option<Turn> {
        let (mut turn, mut first): (Option<Turn>, u64) = (None, u64::MAX);
        for (index, line) in self.lines.iter_mut().enumerate() {
            let Some(ends) = line.ends else { continue };
            let Some(path) = path_of(&mut line.chooser) else { continue };
            let order = order_at(&self.places, ends.first);
            match &mut turn {
                Some(turn) if first < order => turn.until = turn.until.min(order),
                _ => turn = Some(Turn { line: index, path, until: std::mem::replace(&mut first, order) }),
            }
        }
        turn
    }

    /// Lets a command wait at the end of a line.
    #[inline]
    pub(super) fn push(&mut self, line: usize, command: BoxedCommand) {
        let place = self.occupy(command, END);
        let ends = &mut self.lines[line].ends;
        match ends {
            Some(Ends { last, .. }) => {
                self.places[*last as usize].next = place;
                *last = place;
            }
            None => *ends = Some(Ends { first: place, last: place }),
        }
    }

    /// Lets a command wait at the start of a line, from where it was taken.
    pub(super) fn put_first(&mut self, line: usize, command: BoxedCommand) {
        let ends = self.lines[line].ends;
        let place = self.occupy(command, ends.map_or(END, |ends| ends.first));
        self.lines[line].ends = Some(Ends { first: place, last: ends.map_or(place, |ends| ends.last) });
    }

    /// Takes the first command of a line, unless its number is `until` or above.
    #[inline]
    pub(super) fn pop(&mut self, line: usize, until: u64) -> Option<BoxedCommand> {
        let line = &mut self.lines[line];
        let Ends { first, last } = line.ends?;
        let place = &mut self.places[first as usize];
        let command = place.command.take_if(|command| command.order < until)?;
        line.ends = (first != last).then_some(Ends { first: place.next, last });
        (place.next, self.free) = (self.free, first);
        self.len -= 1;
        Some(command)
    }

    /// Takes all commands of all lines, in the order of their submission.
    pub(super) fn take_all(&mut self) -> Vec<BoxedCommand> {
        let mut all: Vec<_> = self.places.drain(..).filter_map(|place| place.command).collect();
        self.lines.iter_mut().for_each(|line| line.ends = None);
        (self.free, self.len) = (END, 0);
        all.sort_unstable_by_key(|command| command.order);
        all
    }

    /// Has the commands wait that are given back, among the others by the order of their submission.
    pub(super) fn put_back(&mut self, commands: Vec<BoxedCommand>, group_of: impl Fn(&Command) -> u32) {
        if commands.is_empty() {
            return;
        }
        let mut all = self.take_all();
        all.extend(commands);
        all.sort_unstable_by_key(|command| command.order);
        for mut command in all {
            command.aborted = false;
            self.push(self.of_group(group_of(&command)), command);
        }
    }

    /// There are these groups from here on, and commands may be of another one than before.
    pub(super) fn regroup(&mut self, mut groups: Vec<u32>, group_of: impl Fn(&Command) -> u32) {
        groups.sort_unstable();
        groups.dedup();
        if groups.is_empty() {
            groups.push(0);
        }
        let commands = self.take_all();
        let mut known = std::mem::take(&mut self.lines);
        self.lines.extend(groups.into_iter().map(|group| {
            let before = known.iter_mut().find(|line| line.group == group);
            let closed = before.as_ref().and_then(|line| line.closed);
            let chooser = before.map(|line| std::mem::take(&mut line.chooser)).unwrap_or_default();
            Line { group, chooser, closed, ends: None }
        }));
        self.put_back(commands, group_of);
    }

    /// Puts a command into a place.
    #[inline]
    fn occupy(&mut self, command: BoxedCommand, next: u32) -> u32 {
        self.len += 1;
        let occupied = Place { command: Some(command), next };
        match self.places.get_mut(self.free as usize) {
            Some(place) => {
                let index = self.free;
                self.free = place.next;
                *place = occupied;
                index
            }
            None => {
                self.places.push(occupied);
                self.places.len() as u32 - 1
            }
        }
    }
}

/// The number of the command at a place.
fn order_at(places: &[Place], place: u32) -> u64 {
    let command = places.get(place as usize).and_then(|place| place.command.as_ref());
    command.map_or(u64::MAX, |command| command.order)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::chooser::Way;
    use crate::command::Owner;
    use crate::options::PathChooser;
    use crate::wire;

    /// An open path with room for so many commands.
    struct Room(usize);

    fn open(room: &Room) -> Option<&Room> {
        Some(room)
    }

    impl Way for Room {
        fn has_room(&self) -> bool {
            self.0 > 0
        }

        fn outstanding(&self) -> usize {
            0
        }
    }

    /// A command of the namespace with the number of its group.
    fn command(group: u32, order: u64) -> BoxedCommand {
        let mut command = Command::new(wire::flush(group), Owner::Io(order));
        command.order = order;
        command
    }

    fn group_of(command: &Command) -> u32 {
        command.entry.nsid.get()
    }

    /// Lines of these groups, each of which goes by one of three paths.
    fn lines(groups: &[(u32, usize)]) -> Lines {
        let mut lines = Lines::new(8);
        lines.regroup(groups.iter().map(|(group, _)| *group).collect(), group_of);
        for (group, path) in groups {
            let line = lines.of_group(*group);
            lines.chooser(line).set(vec![*path], PathChooser::OneInUse);
        }
        lines
    }

    /// Sends what waits, as far as the paths have room: the numbers of the commands, in the order in which they go.
    fn send(lines: &mut Lines, room: &mut [usize; 3]) -> Vec<u64> {
        let mut sent = Vec::new();
        loop {
            let ways = room.map(Room);
            let path_of = |chooser: &mut Chooser| chooser.choose(&ways, open).filter(|path| room[*path] > 0);
            let Some(turn) = lines.turn(path_of) else { return sent };
            while room[turn.path] > 0 {
                let Some(command) = lines.pop(turn.line, turn.until) else { break };
                room[turn.path] -= 1;
                sent.push(command.order);
            }
        }
    }

    #[test]
    fn a_group_whose_path_has_no_room_holds_no_other_up() {
        let mut lines = lines(&[(1, 0), (2, 1)]);
        for (order, group) in [1, 2, 1, 2].into_iter().enumerate() {
            lines.push(lines.of_group(group), command(group, order as u64));
        }
        assert_eq!(send(&mut lines, &mut [0, 9, 0]), [1, 3]);
        assert_eq!((lines.len(), lines.iter().map(group_of).collect::<Vec<_>>()), (2, vec![1, 1]));
        assert_eq!(send(&mut lines, &mut [9, 9, 0]), [0, 2]);
    }

    #[test]
    fn what_is_given_back_and_what_changes_its_group_is_in_its_order() {
        let mut lines = lines(&[(1, 0), (2, 0)]);
        for order in [1, 4] {
            lines.push(lines.of_group(1), command(1, order));
        }
        lines.put_back(vec![command(2, 3), command(1, 0), command(2, 2)], group_of);
        let first = lines.of_group(1);
        let taken = lines.pop(first, u64::MAX).expect("the first one");
        assert_eq!(taken.order, 0);
        lines.put_first(first, taken);
        // Namespace 2 has gone over to the group of namespace 1, and there is no group 2 any more.
        lines.regroup(vec![1, 1], |_| 1);
        assert_eq!(lines.lines.len(), 1);
        assert_eq!(send(&mut lines, &mut [9; 3]), [0, 1, 2, 3, 4]);
        assert!(lines.is_empty() && lines.pop(0, u64::MAX).is_none());
    }

    proptest! {
        /// Where all groups have one path, commands go as if there was one line for all, with any room at any time.
        #[test]
        fn by_one_path_commands_go_in_the_order_of_their_submission(
            steps in proptest::collection::vec((1_u32..5, 0_usize..3), 1..60),
        ) {
            let mut lines = lines(&[1, 2, 3, 4].map(|group| (group, 0)));
            let mut sent = Vec::new();
            for (order, (group, room)) in steps.iter().enumerate() {
                lines.push(lines.of_group(*group), command(*group, order as u64));
                sent.extend(send(&mut lines, &mut [*room, 0, 0]));
            }
            let places = lines.places.len();
            sent.extend(send(&mut lines, &mut [usize::MAX, 0, 0]));
            prop_assert!(sent.into_iter().eq(0..steps.len() as u64));
            prop_assert!(lines.is_empty());
            for order in 0..places as u64 {
                lines.push(0, command(1, order));
            }
            prop_assert_eq!(lines.places.len(), places, "a place is used again");
        }
    }
}
