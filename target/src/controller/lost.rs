//! Other controllers of a host that have lost it, as their host is told by one that has not (NVM Express Base 2.3,
//! section 5.2.12.3.2).

use ringfab_spec::log::{ControllerInstance, LostPathsHeader};

/// An entry of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LostController {
    pub(crate) instance: ControllerInstance,
    /// Whether nothing of it can be executed any more.
    pub(crate) has_quiesced: bool,
}

/// Those of one host, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct LostControllers(Vec<LostController>);

impl LostControllers {
    /// One more has lost the host. When there are too many, the oldest is forgotten.
    pub(crate) fn add(&mut self, instance: ControllerInstance) {
        if self.0.len() >= LostPathsHeader::ENTRIES_MAX {
            self.0.remove(0);
        }
        self.0.push(LostController { instance, has_quiesced: false });
    }

    /// Those that have not quiesced, as far as is known.
    pub(crate) fn busy(&self) -> Vec<ControllerInstance> {
        self.0.iter().filter(|one| !one.has_quiesced).map(|one| one.instance).collect()
    }

    /// Whether there are any of these.
    pub(crate) fn are_any_busy(&self) -> bool {
        self.0.iter().any(|one| !one.has_quiesced)
    }

    /// These have quiesced.
    pub(crate) fn quiesced(&mut self, instances: &[ControllerInstance]) {
        self.0.iter_mut().for_each(|one| one.has_quiesced |= instances.contains(&one.instance));
    }

    /// The entries of the log.
    pub(crate) fn entries(&self) -> impl Iterator<Item = LostController> {
        self.0.iter().copied()
    }

    /// The host has read the log: what is over is no news any more.
    pub(crate) fn read(&mut self) {
        self.0.retain(|one| !one.has_quiesced);
    }

    /// The controller becomes ready again.
    pub(crate) fn renew(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(cntlid: u16) -> ControllerInstance {
        ControllerInstance { cntlid, ciu: 3, cirn: 77 }
    }

    #[test]
    fn a_lost_controller_is_told_of_until_its_end_was_read() {
        let mut lost = LostControllers::default();
        lost.add(instance(1));
        lost.add(instance(2));
        lost.read();
        assert_eq!(lost.busy(), [instance(1), instance(2)]);
        lost.quiesced(&[instance(1)]);
        let entries: Vec<(u16, bool)> =
            lost.entries().map(|one| (one.instance.cntlid, one.has_quiesced)).collect();
        assert_eq!(entries, [(1, true), (2, false)]);
        lost.read();
        assert_eq!((lost.entries().count(), lost.are_any_busy()), (1, true));
        lost.renew();
        assert!(!lost.are_any_busy());
    }

    #[test]
    fn the_oldest_makes_room() {
        let mut lost = LostControllers::default();
        let most = u16::try_from(LostPathsHeader::ENTRIES_MAX).unwrap();
        (1..=most + 1).for_each(|cntlid| lost.add(instance(cntlid)));
        assert_eq!(lost.entries().count(), usize::from(most));
        assert_eq!(lost.entries().next().map(|one| one.instance.cntlid), Some(2));
    }
}
