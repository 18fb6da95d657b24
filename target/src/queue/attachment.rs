//! What a queue is attached to, and which namespaces its host sees there.

use std::sync::Arc;

use ringfab_spec::Status;

use crate::controller::{Access, Controller};
use crate::failure::Failure;
use crate::model::{Namespace, QueueRecord, ana_status};
use crate::resources::Resources;

/// What a queue belongs to, once its Connect succeeded.
#[derive(Debug)]
pub(super) struct Attachment {
    pub(super) controller: Arc<Controller>,
    pub(super) record: Arc<QueueRecord>,
    /// The namespaces that its host sees and others do not, by ascending identifier.
    own: Vec<Arc<Namespace>>,
    /// Whether some access group allows its host no I/O, whatever its disks do.
    is_restricted: bool,
}

impl Attachment {
    /// What a queue belongs to from now on.
    pub(super) fn new(controller: Arc<Controller>, record: Arc<QueueRecord>, resources: &Resources) -> Self {
        let mut this = Self { controller, record, own: Vec::new(), is_restricted: false };
        this.refresh_namespaces(resources);
        this
    }

    /// The Host Identifier of its host.
    pub(super) fn host_id(&self) -> &[u8; 16] {
        &self.controller.host().id
    }

    /// Its core serves something else: the host may see other namespaces.
    pub(super) fn refresh_namespaces(&mut self, resources: &Resources) {
        let served = resources.served.of(self.controller.subsystem());
        let shown = served.into_iter().flat_map(|one| one.shown_only_to_some(&self.controller.host().nqn));
        self.own = shown.cloned().collect();
        self.is_restricted = served.is_some_and(|served| Access(&self.controller).is_restricted(served));
    }

    /// Whether the access group of a namespace allows I/O, whatever its disks do.
    #[inline(always)]
    pub(super) fn check_access(&self, resources: &Resources, nsid: u32) -> Result<(), Failure> {
        if self.is_restricted { self.access(resources, nsid) } else { Ok(()) }
    }

    #[cold]
    fn access(&self, resources: &Resources, nsid: u32) -> Result<(), Failure> {
        let served = resources.served.of(self.controller.subsystem());
        let state = served.filter(|one| one.namespace(nsid).is_some()).map(|served| {
            let group = served.groups().of(nsid);
            Access(&self.controller).state(served, group)
        });
        state.and_then(ana_status).map_or(Ok(()), |status| Err(Failure::transient(status)))
    }

    /// The failure of a command for a namespace that is not ready: its group may follow its disks.
    #[cold]
    pub(super) fn explained(&self, resources: &Resources, nsid: u32, failure: Failure) -> Failure {
        if failure.status.code() != Status::NAMESPACE_NOT_READY {
            return failure;
        }
        self.access(resources, nsid).err().unwrap_or(failure)
    }

    /// A namespace that its host sees and others do not.
    #[cold]
    fn own_namespace(&self, nsid: u32) -> Option<&Arc<Namespace>> {
        let index = self.own.binary_search_by_key(&nsid, |namespace| namespace.nsid());
        index.ok().map(|index| &self.own[index])
    }

    /// A namespace that its host sees.
    #[inline(always)]
    pub(super) fn namespace<'a>(&'a self, resources: &'a Resources, nsid: u32) -> Option<&'a Arc<Namespace>> {
        let found = resources.namespaces.find(self.controller.subsystem(), nsid);
        found.or_else(|| self.own_namespace(nsid))
    }
}
