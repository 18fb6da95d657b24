//! Lost instances of the controllers of a subsystem: does what [`crate::fences`] decides, and tells the volumes and the
//! other engines what is over.

use ringfab_reactor::Time;

use super::Attachment;
use crate::fences::{Act, Helper, How, Over};
use crate::messages::ToFollower;
use crate::path::{self, LostEntry, PathEvent, seconds};
use crate::request::PathId;
use crate::resources::Resources;

impl Attachment {
    /// Takes an event of a path that is about lost instances. Gives any other one back.
    pub(super) fn on_instance_event(
        &mut self,
        resources: &mut Resources,
        path: PathId,
        event: PathEvent,
    ) -> Option<PathEvent> {
        let now = resources.now();
        match event {
            PathEvent::InstanceLost(_) if !self.options.protections.hold_changes => {}
            PathEvent::InstanceLost(instance) => {
                let connection = self.paths[path.index()].instances.connection();
                self.fences.lost(now, path, connection, instance);
            }
            PathEvent::Closed => {
                self.fences.closed(now, path);
                self.volumes.path_has_closed(resources, path);
            }
            PathEvent::Over { first, last } => {
                self.volumes.instance_is_over(resources, path, first, last);
            }
            PathEvent::ResetAnswered { number, answer } => {
                if let Some(act) = self.fences.answered(now, number, answer) {
                    self.act(resources, act);
                }
            }
            PathEvent::ResetDone => self.fences.reset_done(now, path),
            PathEvent::ResetLog(entries) => {
                for over in self.fences.log(now, path, &entries) {
                    self.end_instance(resources, over);
                }
            }
            PathEvent::LostHosts(entries) => self.lose_hosts(resources, path, &entries),
            event @ PathEvent::Ready { reconnected: true } => {
                self.log_clock(now, path);
                return Some(event);
            }
            event => return Some(event),
        }
        None
    }

    /// Does what is to be done about lost instances. Says whether there was anything.
    pub(super) fn fence(&mut self, resources: &mut Resources) -> bool {
        if self.fences.is_empty() {
            return false;
        }
        let helpers = self.helpers();
        let mut acted = false;
        while let Some(act) = self.fences.next(resources.now(), &helpers) {
            self.act(resources, act);
            acted = true;
        }
        acted
    }

    fn helpers(&self) -> Vec<Helper> {
        let helper = |path: &path::Path| {
            let instance = path.instances.current().filter(|_| path.io().is_some());
            let resets_max = instance.map_or(0, |instance| instance.resets_max);
            Helper { path: path.life.handle().path, connection: path.instances.connection(), resets_max }
        };
        self.paths.iter().map(helper).collect()
    }

    fn act(&mut self, resources: &mut Resources, act: Act) {
        match act {
            Act::Reset { by, number, impacted } => {
                let path = &mut self.paths[by.index()];
                let (peer, cntlid, ciu) = (path.peer(), impacted.cntlid, impacted.ciu);
                tracing::debug!(peer, cntlid, ciu, "Cross-Controller Reset of a lost controller");
                path::instance::reset(path, resources, number, impacted);
            }
            Act::Look { by } => {
                if !path::instance::look_at_resets(&mut self.paths[by.index()], resources) {
                    let over = self.fences.log(resources.now(), by, &[]);
                    debug_assert!(over.is_empty(), "nothing was read");
                }
            }
            Act::Over(over) => self.end_instance(resources, over),
        }
    }

    /// Lost instances are over: what is held for that goes on, on every engine.
    fn end_instance(&mut self, resources: &mut Resources, over: Over) {
        let Over { path: id, first, last, how, after, risks } = over;
        let path = &self.paths[id.index()];
        path.role.tell_followers(&ToFollower::Over { first, last });
        let commands = self.volumes.instance_is_over(resources, id, first, last);
        let (peer, after) = (path.peer(), seconds(after));
        match (how, risks) {
            (How::Reset(by), _) => {
                let by = self.paths[by.index()].peer();
                tracing::info!(
                    "{peer}: the lost controller is over after {after}, by Cross-Controller Reset through {by}; \
                     {commands} commands go on"
                );
            }
            (How::Clock, None) => tracing::info!(
                "{peer}: the lost controller is over after {after}, by the clock; {commands} commands go on"
            ),
            (How::Clock, Some(rule)) => {
                let rule = seconds(rule);
                tracing::warn!(
                    "{peer}: {commands} commands go on {after} after the loss, by the replay delay that was chosen; \
                     only after {rule} it is sure that nothing that was sent before undoes a later write"
                );
            }
        }
    }

    /// A path is back, and its controller cannot say that the lost one is over.
    fn log_clock(&self, now: Time, path: PathId) {
        if self.helpers().iter().any(|helper| helper.resets_max > 0) {
            return;
        }
        if let Some(until) = self.fences.clock_of(path).filter(|until| *until > now && *until != Time::MAX) {
            let (peer, left) = (self.paths[path.index()].peer(), seconds(until.since(now)));
            tracing::warn!(
                "{peer}: it has no Cross-Controller Reset: writes that had no answer, and later ones of the same \
                 blocks, wait for another {left}"
            );
        }
    }

    /// Controllers have lost this host, as a path's controller tells: if one of them is that of another path now, that
    /// is lost.
    fn lose_hosts(&mut self, resources: &mut Resources, told_by: PathId, entries: &[LostEntry]) {
        for index in 0..self.paths.len() {
            let path = &mut self.paths[index];
            let current = path.instances.current().and_then(|instance| instance.id);
            let is_lost = current.is_some_and(|id| {
                entries.iter().any(|entry| entry.cntlid.get() == id.cntlid && entry.ciu == id.ciu)
            });
            if is_lost && index != told_by.index() {
                path::instance::lose_host(path, resources);
            }
        }
    }
}
