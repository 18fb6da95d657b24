//! Which path the next command of a group takes.
//!
//! What paths a group can take at all, and which of them are the best, is decided when something changes
//! ([`Chooser::set`]), not for each command. Where that leaves one path, choosing it is one look at whether it is open.

use crate::options::PathChooser;

/// What a path has for I/O, as far as a choice goes by it.
pub(crate) trait Way {
    /// Whether it has room for a command now.
    fn has_room(&self) -> bool;
    /// Commands without an answer.
    fn outstanding(&self) -> usize;
}

/// Chooses among the best paths of a group.
#[derive(Debug)]
pub(crate) struct Chooser {
    /// The index of the only path to take; [`NONE`] where there are several, or none.
    only: usize,
    /// Indices of the best paths, ascending.
    best: Vec<usize>,
    /// The path that was taken last, of several.
    last: usize,
    by: PathChooser,
}

/// No index of a path.
const NONE: usize = usize::MAX;

impl Default for Chooser {
    fn default() -> Self {
        Self { only: NONE, best: Vec::new(), last: NONE, by: PathChooser::default() }
    }
}

impl Chooser {
    /// These are the best paths from here on, ascending.
    pub(crate) fn set(&mut self, best: Vec<usize>, by: PathChooser) {
        (self.best, self.by) = (best, by);
        self.only = match (self.best.as_slice(), by) {
            ([one], _) => *one,
            (several, PathChooser::OneInUse) if several.contains(&self.last) => self.last,
            ([first, ..], PathChooser::OneInUse) => *first,
            _ => NONE,
        };
        if self.only != NONE {
            self.last = self.only;
        }
    }

    /// Whether there is no path to take.
    pub(crate) fn is_closed(&self) -> bool {
        self.best.is_empty()
    }

    /// Whether this is one of the best.
    pub(crate) fn has(&self, path: usize) -> bool {
        self.best.contains(&path)
    }

    /// The index of the path to take; `None` while there is none. `io` is what a path has for I/O, while it takes any.
    #[inline]
    pub(crate) fn choose<P, W: Way>(&mut self, paths: &[P], io: fn(&P) -> Option<&W>) -> Option<usize> {
        if paths.get(self.only).is_some_and(|path| io(path).is_some()) {
            return Some(self.only);
        }
        self.choose_of_several(paths, io)
    }

    #[inline(never)]
    fn choose_of_several<P, W: Way>(&mut self, paths: &[P], io: fn(&P) -> Option<&W>) -> Option<usize> {
        let last = self.last;
        let after = self.best.iter().position(|path| *path > last && last != NONE).unwrap_or(0);
        let (before, behind) = self.best.split_at(after);
        let open = |path: usize| Some((path, io(paths.get(path)?)?));
        let in_turn = || behind.iter().chain(before).filter_map(|path| open(*path));
        let mut with_room = in_turn().filter(|(_, io)| io.has_room());
        let chosen = match self.by {
            PathChooser::LeastOutstanding => with_room.min_by_key(|(_, io)| io.outstanding()),
            PathChooser::RoundRobin | PathChooser::OneInUse => with_room.next(),
        };
        let (path, _) = chosen.or_else(|| in_turn().next())?;
        self.last = path;
        Some(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Commands outstanding, of at most four; `None` for a path that is not open.
    #[derive(Clone, Copy)]
    struct Fake(Option<usize>);

    impl Way for Fake {
        fn has_room(&self) -> bool {
            self.0.is_some_and(|outstanding| outstanding < 4)
        }

        fn outstanding(&self) -> usize {
            self.0.unwrap_or(0)
        }
    }

    fn open(fake: &Fake) -> Option<&Fake> {
        fake.0.map(|_| fake)
    }

    const SHUT: Fake = Fake(None);
    const IDLE: Fake = Fake(Some(0));
    const FULL: Fake = Fake(Some(4));

    #[test]
    fn the_path_in_use_is_kept_until_it_closes_and_another_open_one_follows() {
        let mut chooser = Chooser::default();
        assert_eq!(chooser.choose(&[IDLE, IDLE], open), None, "none is known to be good");
        chooser.set(vec![0, 1], PathChooser::OneInUse);
        assert_eq!(chooser.choose(&[IDLE, IDLE], open), Some(0));
        assert_eq!(chooser.choose(&[FULL, IDLE], open), Some(0), "it has room again some time");
        assert_eq!(chooser.choose(&[SHUT, IDLE], open), Some(1), "before it is known to be lost");
        chooser.set(vec![1], PathChooser::OneInUse);
        assert_eq!(chooser.choose(&[SHUT, IDLE], open), Some(1));
        chooser.set(vec![0, 1], PathChooser::OneInUse);
        assert_eq!(
            chooser.choose(&[IDLE, IDLE], open),
            Some(1),
            "the first one being back is no reason to leave"
        );
        assert_eq!(chooser.choose(&[SHUT, SHUT], open), None);
        chooser.set(Vec::new(), PathChooser::OneInUse);
        assert_eq!((chooser.choose(&[IDLE, IDLE], open), chooser.is_closed()), (None, true));
        assert_eq!(chooser.choose(&[], open), None);
    }

    #[test]
    fn the_best_paths_take_turns_and_one_without_room_is_left_out() {
        let mut chooser = Chooser::default();
        chooser.set(vec![0, 2, 3], PathChooser::RoundRobin);
        let mut choose = |paths: &[Fake; 4]| chooser.choose(paths, open);
        let all: Vec<_> = (0..4).map(|_| choose(&[IDLE; 4])).collect();
        assert_eq!(all, [Some(0), Some(2), Some(3), Some(0)]);
        assert_eq!(choose(&[IDLE, IDLE, FULL, IDLE]), Some(3));
        assert_eq!(choose(&[SHUT, IDLE, FULL, FULL]), Some(2), "where none has room, one that will");
        assert_eq!(choose(&[SHUT, IDLE, SHUT, SHUT]), None, "the other one is not of the best");
    }

    #[test]
    fn the_path_with_the_fewest_commands_has_the_next_one() {
        let mut chooser = Chooser::default();
        chooser.set(vec![0, 1, 2], PathChooser::LeastOutstanding);
        let paths = [Fake(Some(2)), Fake(Some(1)), Fake(Some(3))];
        assert_eq!([chooser.choose(&paths, open), chooser.choose(&paths, open)], [Some(1), Some(1)]);
        let equal: Vec<_> = (0..3).map(|_| chooser.choose(&[IDLE; 3], open)).collect();
        assert_eq!(equal, [Some(2), Some(0), Some(1)], "equal ones take turns");
    }
}
