//! Which path the next command takes.

/// Stays on the path in use as long as that takes I/O, then goes on to the next one that does.
#[derive(Debug, Default)]
pub(crate) struct Chooser {
    in_use: usize,
}

impl Chooser {
    /// The index of the path to take; `None` while there is none. `is_open`: whether a path takes I/O, though perhaps
    /// not at this moment.
    #[inline]
    pub(crate) fn choose<P>(&mut self, paths: &[P], is_open: impl Fn(&P) -> bool) -> Option<usize> {
        if paths.get(self.in_use).is_some_and(&is_open) {
            return Some(self.in_use);
        }
        self.change(paths, is_open)
    }

    #[cold]
    fn change<P>(&mut self, paths: &[P], is_open: impl Fn(&P) -> bool) -> Option<usize> {
        let after = self.in_use.saturating_add(1).min(paths.len());
        let mut order = (after..paths.len()).chain(0..after);
        self.in_use = order.find(|index| is_open(&paths[*index]))?;
        Some(self.in_use)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_in_use_is_kept_until_it_closes_and_the_next_open_one_follows() {
        let mut chooser = Chooser::default();
        let mut choose = |open: &[bool]| chooser.choose(open, |open| *open);
        assert_eq!(choose(&[true, true]), Some(0));
        assert_eq!(choose(&[false, true]), Some(1));
        assert_eq!(choose(&[true, true]), Some(1), "the first one being back is no reason to leave");
        assert_eq!(choose(&[true, false]), Some(0));
        assert_eq!(choose(&[false, false]), None);
        assert_eq!(choose(&[false, false, true]), Some(2));
        assert_eq!(choose(&[]), None);
    }
}
