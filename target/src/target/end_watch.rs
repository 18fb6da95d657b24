//! Who waits for the end of controllers.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::controller::Controller;

/// Controllers whose hosts wait for the end of others of their controllers.
#[derive(Debug, Default)]
pub(crate) struct EndWatch(Mutex<Vec<Weak<Controller>>>);

impl EndWatch {
    /// A controller waits: from now on it is woken when a queue or a controller has ended.
    pub(crate) fn add(&self, waiting: &Arc<Controller>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !all.iter().any(|known| known.as_ptr() == Arc::as_ptr(waiting)) {
            all.push(Arc::downgrade(waiting));
        }
    }

    /// A queue or a controller has ended: wakes those that wait for that.
    pub(crate) fn something_has_ended(&self) {
        let waiting: Vec<Arc<Controller>> = {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            all.retain(|one| one.upgrade().is_some_and(|one| one.state().awaits_others()));
            all.iter().filter_map(Weak::upgrade).collect()
        };
        waiting.iter().for_each(|one| one.events().wake());
    }
}
