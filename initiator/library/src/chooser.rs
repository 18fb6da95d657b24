//! Which path the next command takes.

/// What a chooser looks at.
pub(crate) trait Candidate {
    /// Whether it takes I/O, though perhaps not at this moment.
    fn is_open(&self) -> bool;
}

/// Stays on the path in use as long as that takes I/O, then goes on to the next one that does.
#[derive(Debug, Default)]
pub(crate) struct Chooser {
    in_use: usize,
}

impl Chooser {
    /// The index of the path to take; `None` while there is none.
    #[inline]
    pub(crate) fn choose(&mut self, paths: &[impl Candidate]) -> Option<usize> {
        if paths.get(self.in_use).is_some_and(Candidate::is_open) {
            return Some(self.in_use);
        }
        self.change(paths)
    }

    #[cold]
    fn change(&mut self, paths: &[impl Candidate]) -> Option<usize> {
        let after = self.in_use.saturating_add(1).min(paths.len());
        let mut order = (after..paths.len()).chain(0..after);
        self.in_use = order.find(|index| paths[*index].is_open())?;
        Some(self.in_use)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Candidate for bool {
        fn is_open(&self) -> bool {
            *self
        }
    }

    #[test]
    fn the_path_in_use_is_kept_until_it_closes_and_the_next_open_one_follows() {
        let mut chooser = Chooser::default();
        assert_eq!(chooser.choose(&[true, true]), Some(0));
        assert_eq!(chooser.choose(&[false, true]), Some(1));
        assert_eq!(chooser.choose(&[true, true]), Some(1), "the first one being back is no reason to leave");
        assert_eq!(chooser.choose(&[true, false]), Some(0));
        assert_eq!(chooser.choose(&[false, false]), None);
        assert_eq!(chooser.choose(&[false, false, true]), Some(2));
        assert_eq!(chooser.choose(&[] as &[bool]), None);
    }
}
