//! Whether an instance of a controller is over, which a host asks by Cross-Controller Reset.
//!
//! An instance is over when nothing of it can be executed any more. That is one question, with one answer for all
//! cores: no controller has these numbers now, and no queue of the subsystem does. A controller that ends takes no
//! queue from then on, and it ends before it is forgotten. A queue is counted before its first command, until its
//! connection is gone with all that lay in it, and no disk works for it. So the answer never changes back.

use std::sync::Arc;
use std::{mem, ptr};

use ringfab_reactor::Time;
use ringfab_spec::log::ControllerInstance;

use super::Target;
use crate::controller::{Controller, Event, ResetNews, are_of_one_host};

/// The instances of the controllers of a target.
#[derive(Clone, Copy)]
pub(crate) struct Instances<'a>(pub(crate) &'a Target);

impl Instances<'_> {
    /// The controller that is this instance now.
    pub(crate) fn find(&self, instance: ControllerInstance) -> Option<Arc<Controller>> {
        let found = self.0.table().find(instance.cntlid);
        found.filter(|controller| controller.instance() == instance)
    }

    /// Of these instances in the subsystem of a controller, those that are over. Not under the controller's lock: what
    /// is looked at has locks of its own.
    fn over_of(&self, asker: &Controller, mut instances: Vec<ControllerInstance>) -> Vec<ControllerInstance> {
        if !asker.subsystem().protections().ends_connections {
            return instances;
        }
        // In this order: who is not found any more takes no queue.
        instances.retain(|one| self.find(*one).is_none() && !asker.subsystem().has_queues_of(*one));
        instances
    }

    /// What has become of the resets that a controller was asked for.
    pub(crate) fn look_at_resets(&self, asker: &Controller, now: Time) -> ResetNews {
        let in_progress = asker.state().resets.in_progress();
        let over = self.over_of(asker, in_progress);
        asker.state().resets.look(now, |instance| over.contains(&instance))
    }

    /// A controller has lost its host: the host is told by its other controllers of the subsystem.
    pub(crate) fn tell_loss(&self, lost: &Controller) {
        if mem::replace(&mut lost.state().loss_is_told, true) {
            return;
        }
        let instance = lost.instance();
        for other in self.others_of_host(lost) {
            other.state().lost.add(instance);
            self.0.end_watch.add(&other);
            other.events().post(Event::LostHostCommunication);
        }
    }

    /// Looks whether other controllers that have lost the host of this one have quiesced. If so, the host is told.
    pub(crate) fn look_at_lost(&self, controller: &Controller) {
        let busy = controller.state().lost.busy();
        let quiesced = self.over_of(controller, busy);
        if !quiesced.is_empty() {
            controller.state().lost.quiesced(&quiesced);
            controller.events().post(Event::LostHostCommunication);
        }
    }

    /// Disks still work for a controller that has ended, or is reset: the host's others wait for these.
    pub(crate) fn fence_others(&self, ended: &Controller) {
        self.others_of_host(ended).iter().for_each(|other| other.begin_fence());
    }

    fn others_of_host(&self, controller: &Controller) -> Vec<Arc<Controller>> {
        let mut others = self.0.controllers();
        others.retain(|other| !ptr::eq(Arc::as_ptr(other), controller) && are_of_one_host(other, controller));
        others
    }
}
