//! What is served is changed while everybody uses it: the control side waits for its cores, and they have their turns
//! meanwhile.

use std::sync::Arc;

use ringfab_target::Target;
use ringfab_target::control::{change_in_turns, reopen_in_turns};
use ringfab_target::core::Cores;
use ringfab_target::model::Draft;

use super::server::{Change, SPARE};
use super::{CALM_MAX, Simulation};

impl Simulation {
    /// Changes what is served by the target that runs.
    ///
    /// # Errors
    /// Why that cannot be served.
    ///
    /// # Panics
    /// When it does not run.
    pub(super) fn change(&mut self, edit: impl FnOnce(&Target, &mut Draft)) -> Result<(), String> {
        let (target, cores) = self.servers[0].serving().expect("it runs");
        let mut draft = target.served().draft();
        edit(&target, &mut draft);
        self.apply(&target, &cores, draft)
    }

    /// Makes a change as soon as none is under way.
    pub(super) fn make(&mut self, change: Change) {
        self.changes.push_back(change);
        self.make_changes();
    }

    /// Makes the changes that wait, unless one is under way.
    pub(super) fn make_changes(&mut self) {
        while !self.is_changing
            && let Some(change) = self.changes.pop_front()
        {
            // Its process is gone, and what was to be changed with it.
            let Some((target, cores)) = self.servers[0].serving() else { continue };
            let mut draft = target.served().draft();
            let said = self.servers[0].edit(change, &target, &mut draft);
            self.trace.tell(self.world.now(), &said);
            let boots = self.servers[0].boots();
            let outcome = self.apply(&target, &cores, draft);
            self.world.set_opens_left(self.servers[0].host, SPARE, None);
            if !self.servers[0].is_running() || self.servers[0].boots() != boots {
                continue;
            }
            if matches!(change, Change::Unservable { .. }) {
                assert!(outcome.is_err(), "a core cannot open it");
                let open = self.world.open_files(self.servers[0].host, SPARE);
                assert_eq!(open, 0, "no core keeps what one of them cannot open: {outcome:?}");
            } else {
                assert_eq!(outcome, Ok(()), "{said}");
            }
        }
    }

    fn apply(&mut self, target: &Arc<Target>, cores: &Cores, draft: Draft) -> Result<(), String> {
        let deadline = self.world.now() + CALM_MAX;
        self.is_changing = true;
        let outcome = change_in_turns(cores, target, draft, &mut || self.pass_on("a change", deadline));
        self.is_changing = false;
        outcome
    }

    /// What an administrator does about a target's disk that has lost something: has it opened anew, on every core.
    /// Returns whether that was needed.
    ///
    /// # Panics
    /// When a core cannot.
    pub(super) fn reopen_when_lost(&mut self, number: usize) -> bool {
        let (Some(namespace), Some((target, cores)), false) =
            (self.servers[number].lost_disk(), self.servers[number].serving(), self.is_changing)
        else {
            return false;
        };
        self.tell_of_loss();
        let (boots, deadline) = (self.servers[number].boots(), self.world.now() + CALM_MAX);
        self.is_changing = true;
        let mut turn = || self.pass_on("an exchange of a disk", deadline);
        let outcome = reopen_in_turns(&cores, &target, &namespace, &mut turn);
        self.is_changing = false;
        let same = self.servers[number].is_running() && self.servers[number].boots() == boots;
        assert!(outcome.is_ok() || !same, "the disk is there: {outcome:?}");
        self.tell_of_loss();
        true
    }
}
