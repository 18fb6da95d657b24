//! Namespaces that become other disks: the number of one that was removed may be given to the next.
//!
//! A command carries the number, and nothing else says which disk it is meant for. So from the controller's notice that namespaces
//! have changed until they were looked at, I/O waits; if all that changed is new to us, no longer than it takes to hear that. What
//! waits for a disk that is gone then ends. Between the change and its notice a command may reach the new disk: only a controller
//! that does not give numbers away at once can prevent that.

use ringfab_spec::Status;

use super::Controller;
use crate::command::Command;
use crate::core::Core;
use crate::error::IoError;
use crate::namespace;
use crate::request::HostEvent;

impl Controller {
    /// The namespaces were looked at again: from here on they are what was found.
    pub(super) fn take_namespaces(&mut self, core: &mut Core) {
        let found = std::mem::take(&mut self.facts.namespaces);
        let known = std::mem::replace(&mut self.namespaces, found);
        let is_there = |nsid, identity: &namespace::NamespaceIdentity| {
            namespace::find(&self.namespaces, nsid).is_some_and(|now| now.identity.agrees_with(identity))
        };
        let gone = known.iter().filter(|old| !is_there(old.nsid, &old.identity)).map(|old| old.nsid);
        let gone: Vec<u32> = gone.collect();
        if !gone.is_empty() {
            self.end_waiting(core, &gone);
        }
        core.events.push_with(|| HostEvent::NamespacesChanged { controller: self.id });
    }

    /// Ends what waits for one of these, which ascend.
    fn end_waiting(&mut self, core: &mut Core, gone: &[u32]) {
        let is_meant = |command: &Command| gone.binary_search(&command.entry.nsid.get()).is_ok();
        let mut ended: Vec<Box<Command>> = self.held.extract_if(.., |command| is_meant(command)).collect();
        for _ in 0..self.waiting.len() {
            match self.waiting.pop_front() {
                Some(command) if is_meant(&command) => ended.push(command),
                command => self.waiting.extend(command),
            }
        }
        for command in ended {
            core.done(self.id, command, Err(IoError::Status(Status::INVALID_NAMESPACE.with_dnr())));
        }
    }

    /// The list of what has changed is there. Nobody has anything to do with what is new.
    pub(super) fn settle_if_only_new(&mut self, core: &mut Core) {
        let changed = &self.facts.list;
        let is_new = |nsid: &u32| namespace::find(&self.namespaces, *nsid).is_none();
        let too_many = changed.first() == Some(&u32::MAX);
        if !changed.is_empty() && !too_many && changed.iter().all(is_new) && !self.refresh_again {
            self.settle(core);
        }
    }

    /// I/O goes on.
    pub(super) fn settle(&mut self, core: &mut Core) {
        self.unsettled = false;
        self.dispatch(core);
    }
}
