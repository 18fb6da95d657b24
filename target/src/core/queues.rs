//! The table of a core's queues: which queue is on which connection, whose they are, and how they end.
//!
//! [`waiting`](super::waiting) lets their requests go on that have waited.

use std::sync::Arc;
use std::time::Duration;

use ringfab_block::{Finished, Started};
use ringfab_memory::trim_heap;
use ringfab_reactor::Time;

use super::trim::Trimming;
use crate::controller::Controller;
use crate::nvm::Kind;
use crate::queue::{Owner, Queue, Remainder, log_keep_alive_expired};
use crate::resources::messages::QueueMessage;
use crate::resources::operations::DeferredOperation;
use crate::resources::{HostId, Resources};
use crate::target::Instances;
use crate::transport::Endpoint;
use crate::worker::Task;

/// How long the trimming of the heap takes at most before it is shown as hanging.
const TRIM_LIMIT: Duration = Duration::from_secs(60);

/// The queues of a core.
#[derive(Debug, Default)]
pub(super) struct Queues {
    /// By number; the number is in the tags of a queue's disk operations.
    by_number: Vec<Option<Box<Queue>>>,
    /// Number of the queue on each connection, by the connection's place.
    by_endpoint: [Vec<Option<u16>>; Endpoint::KINDS],
    trimming: Trimming,
}

impl Queues {
    /// The queue on a connection.
    #[inline]
    pub(super) fn on(&mut self, endpoint: Endpoint) -> Option<&mut Queue> {
        let (kind, index) = endpoint.place();
        let number = (*self.by_endpoint[kind].get(index)?)?;
        let queue = self.by_number[usize::from(number)].as_mut()?;
        (queue.endpoint() == endpoint).then_some(&mut **queue)
    }

    /// The queue with a number, if there is one still.
    pub(super) fn get_mut(&mut self, number: u16) -> Option<&mut Queue> {
        self.by_number.get_mut(usize::from(number))?.as_deref_mut()
    }

    /// All of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Queue> {
        self.by_number.iter().flatten().map(|queue| &**queue)
    }

    /// All of them.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Queue> {
        self.by_number.iter_mut().flatten().map(|queue| &mut **queue)
    }

    /// All of them, with their numbers.
    fn numbered(&self) -> impl Iterator<Item = (u16, &Queue)> {
        let queues = self.by_number.iter().enumerate();
        queues.filter_map(|(number, queue)| Some((number as u16, queue.as_deref()?)))
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.by_number.iter().all(Option::is_none)
    }

    /// A free number for a queue, in the table or at its end.
    pub(super) fn free_number(&mut self) -> Option<u16> {
        if let Some(index) = self.by_number.iter().position(Option::is_none) {
            return Some(index as u16);
        }
        // The last one is nobody's.
        let number = u16::try_from(self.by_number.len()).ok().filter(|number| *number < u16::MAX)?;
        self.by_number.push(None);
        Some(number)
    }

    /// Enters a queue under its number, which is free.
    pub(super) fn insert(&mut self, number: u16, queue: Queue) {
        let (kind, index) = queue.endpoint().place();
        let numbers = &mut self.by_endpoint[kind];
        if numbers.len() <= index {
            numbers.resize(index + 1, None);
        }
        numbers[index] = Some(number);
        self.by_number[usize::from(number)] = Some(Box::new(queue));
    }

    /// The connection of a queue is gone, as the queue knows.
    pub(super) fn disconnected(&mut self, resources: &mut Resources, endpoint: Endpoint) {
        let (kind, index) = endpoint.place();
        if let Some(number) = self.by_endpoint[kind][index].take() {
            self.reap(resources, number);
        }
    }

    /// A disk has finished an operation. The tag says for which request of which queue.
    #[inline(always)]
    pub(super) fn disk_finished(&mut self, resources: &mut Resources, finished: Finished) {
        resources.disk_operations.end();
        let number = finished.tag.index >> 16;
        if number as usize >= self.by_number.len() {
            return resources.flushed_for_control(&finished);
        }
        self.waiting_for_disk(number).on_disk(resources, finished);
        self.reap(resources, number as u16);
    }

    /// Starts operations that were deferred, the oldest first, until so many are left. Asked after each event, and
    /// mostly there is nothing to do.
    #[inline(always)]
    pub(super) fn start_deferred(&mut self, resources: &mut Resources, left: usize) {
        while resources.disk_operations.deferred() > left {
            self.start_first_deferred(resources);
        }
    }

    fn start_first_deferred(&mut self, resources: &mut Resources) {
        let Some(DeferredOperation { disk, operation, tag }) = resources.disk_operations.next_deferred()
        else {
            return;
        };
        let number = tag.index >> 16;
        let open = resources.disks.get_mut(disk).expect("a disk stays open while requests refer to it");
        let Started::Finished(finished) = open.disk.start(&mut resources.reactor, operation, tag) else {
            unreachable!("only disks in memory are deferred, and these are done at once")
        };
        self.waiting_for_disk(number).on_disk(resources, finished);
        self.reap(resources, number as u16);
    }

    #[inline(always)]
    fn waiting_for_disk(&mut self, number: u32) -> &mut Queue {
        let queue = self.by_number[number as usize].as_mut();
        queue.expect("a queue stays while its requests wait for disks")
    }

    /// After something of a queue has ended: a queue whose connection is gone leaves its controller, and is freed when
    /// nothing of it is in flight any more.
    #[inline]
    pub(super) fn reap(&mut self, resources: &mut Resources, number: u16) {
        if self.by_number[usize::from(number)].as_ref().is_some_and(|queue| queue.is_closed()) {
            self.reap_closed(resources, number);
        }
    }

    #[cold]
    fn reap_closed(&mut self, resources: &mut Resources, number: u16) {
        let entry = &mut self.by_number[usize::from(number)];
        let Some(queue) = entry else { return };
        let (id, left) = (queue.id(), queue.leave(resources.reactor.now()));
        let is_finished = queue.is_finished();
        if left.is_some() && !is_finished {
            // What the disks hold for it may stay with them.
            resources.hosts.exempt_held(queue.owner().host);
        }
        if is_finished && let Some(queue) = entry.take() {
            let Owner { address, host, is_opening } = queue.owner();
            resources.hosts.leave(address, host, is_opening);
            if !resources.hosts.is_here(host) {
                resources.turns.leave(host);
                resources.limited.leave(host);
            }
            self.trimming.queue_ended();
            debug_assert!(
                !self.is_empty() || !resources.disk_operations.any(),
                "each operation of a disk ends once"
            );
            if queue.finish() {
                // Commands of other controllers may wait for its disks, on any core.
                resources.cores.iter().for_each(|core| core.send(QueueMessage::CheckControllers));
            }
        }
        // Who is woken looks at all queues again: a queue that only waits for its disk must wake nobody.
        let something_has_ended = is_finished || left.is_some();
        if let Some(controller) = left {
            left_controller(resources, id, &controller);
        }
        if something_has_ended {
            resources.target.end_watch.something_has_ended();
        }
    }

    /// From time to time: deadlines, events to report, and the end of controllers whose hosts are silent.
    pub(super) fn tick(&mut self, resources: &mut Resources) {
        let now = resources.reactor.now();
        for number in 0..self.by_number.len() {
            let Some(queue) = &mut self.by_number[number] else { continue };
            queue.tick(resources, now);
            if queue.id() == 0
                && let Some(controller) = queue.controller().filter(|controller| controller.expired(now))
            {
                log_keep_alive_expired(controller);
                resources.lose(controller);
            }
            self.reap(resources, number as u16);
        }
    }

    /// Ends the queues of a controller, the admin queue only when asked.
    pub(super) fn end_all_of(
        &mut self,
        resources: &mut Resources,
        controller: &Arc<Controller>,
        admin: bool,
    ) {
        for queue in self.iter_mut().filter(|queue| queue.belongs_to(controller)) {
            if admin || queue.id() != 0 {
                queue.abandon(resources, Remainder::MayBeSent);
            }
        }
    }

    /// Ends the queues of a controller, with whatever lies in their connections.
    pub(super) fn fence_all_of(&mut self, resources: &mut Resources, controller: &Arc<Controller>) {
        for queue in self.iter_mut().filter(|queue| queue.belongs_to(controller)) {
            queue.abandon(resources, Remainder::IsDropped);
        }
    }

    /// Ends a queue at once.
    pub(super) fn evict(&mut self, resources: &mut Resources, number: u16, reason: &str) {
        if let Some(queue) = self.get_mut(number) {
            queue.evict(resources, reason);
        }
    }

    /// Ends the queues of a controller at once.
    pub(super) fn evict_all_of(&mut self, resources: &mut Resources, controller: &Arc<Controller>) {
        for queue in self.iter_mut().filter(|queue| queue.belongs_to(controller)) {
            queue.evict(resources, "its controller gives way to another one");
        }
    }

    /// The queues without a Connect whose hosts are asked for it, or for what comes after it: since when, and which.
    pub(super) fn asked(&self) -> impl Iterator<Item = (Time, u16)> {
        self.numbered().filter_map(|(number, queue)| Some((queue.opening()?.asked?, number)))
    }

    /// The queue that has been without a Connect longest, of a host or of all, and since when it is there.
    pub(super) fn oldest_opening(&self, host: Option<HostId>) -> Option<(u16, Time)> {
        let queues = self.numbered();
        let queues = queues.filter(|(_, queue)| host.is_none_or(|host| queue.owner().address == host));
        let waiting = queues.filter_map(|(number, queue)| Some((number, queue.opening()?.since)));
        waiting.min_by_key(|(_, since)| *since)
    }

    /// A queue from an address whose host has yet to be let in.
    pub(super) fn a_candidate(&self, address: HostId) -> Option<u16> {
        let is_one = |queue: &Queue| {
            let owner = queue.owner();
            owner.address == address && owner.host == address && queue.is_open()
        };
        self.numbered().find(|(_, queue)| is_one(queue)).map(|(number, _)| number)
    }

    /// Of a host's controllers with a queue here, one of discovery, or the one that came last.
    pub(super) fn least_missed(&self, host: HostId) -> Option<Arc<Controller>> {
        let queues = self.iter().filter(|queue| queue.owner().address == host && queue.is_open());
        let controllers = queues.filter_map(|queue| queue.controller());
        controllers.max_by_key(|one| (one.is_discovery(), one.created())).cloned()
    }

    /// What a disk works on, and for whom.
    pub(super) fn at_disk(&self, disk: usize) -> impl Iterator<Item = (HostId, &'static Kind)> {
        self.iter().flat_map(move |queue| queue.at_disk(disk).map(|one| (queue.owner().host, one)))
    }

    /// Whether memory of queues is still to be given back.
    pub(super) fn trimming_is_wanted(&self) -> bool {
        self.trimming.is_wanted()
    }

    /// Gives back memory that queues have not used for some time.
    pub(super) fn trim(&mut self, resources: &Resources) {
        let Self { by_number, trimming, .. } = self;
        let (count, rest) =
            (by_number.len(), |number: usize| by_number[number].as_mut().is_some_and(|queue| queue.trim()));
        if trimming.round(count, rest) {
            // It may take milliseconds.
            let task = Task::new("trimming", "the heap", TRIM_LIMIT);
            if let Err(error) = resources.workers.submit(task, trim_heap, |_| ()) {
                tracing::debug!(%error, "the heap is not trimmed");
            }
        }
    }
}

/// A queue has left its controller.
fn left_controller(resources: &Resources, id: u16, controller: &Arc<Controller>) {
    let admin_core = controller.state().queues.core_of(0);
    if id == 0 {
        if !controller.has_ended() && !controller.state().registers.is_left() {
            Instances(&resources.target).tell_loss(controller);
        }
        resources.target.admin_ended(controller);
        // Without its admin queue an association is over (NVMe over Fabrics: section 3.3.2.2 of Base 2.0).
        resources.end_queues(controller, false);
    } else if let Some(core) = admin_core {
        resources.cores[core].send(QueueMessage::CheckControllers);
    }
}

#[cfg(test)]
mod tests {
    use ringfab_fabric::{rdma, tcp};

    use super::*;
    use crate::model::Way;
    use crate::queue::QueueParameters;

    fn rdma(index: u32) -> Endpoint {
        Endpoint::Rdma(rdma::QueuePairId { index, generation: 1 })
    }

    /// A queue on a connection, from an address, at a time.
    fn enter(queues: &mut Queues, endpoint: Endpoint, address: usize, since: u64) -> u16 {
        let number = queues.free_number().expect("room");
        let parameters = QueueParameters {
            number,
            endpoint,
            id: 0,
            entries: 32,
            peer: "192.0.2.2:40000".parse().unwrap(),
            way: Way::at("192.0.2.1:4420"),
            tls: None,
            address: HostId::at(address),
            place: None,
        };
        queues.insert(number, Queue::new(parameters, Time::from_nanos(since)));
        number
    }

    #[test]
    fn a_queue_is_found_by_its_connection_and_by_no_other_that_has_its_place() {
        let mut queues = Queues::default();
        assert!(queues.is_empty());
        let tcp = |generation| Endpoint::Tcp(tcp::ConnectionId { index: 3, generation });
        let numbers = [enter(&mut queues, rdma(3), 0, 0), enter(&mut queues, tcp(1), 0, 0)];
        assert_eq!(numbers, [0, 1]);
        assert_eq!(queues.on(rdma(3)).map(|queue| queue.endpoint()), Some(rdma(3)));
        assert_eq!(queues.on(tcp(1)).map(|queue| queue.endpoint()), Some(tcp(1)));
        assert!(queues.on(tcp(2)).is_none(), "another life of the place");
        assert!(queues.on(rdma(2)).is_none() && queues.on(rdma(4)).is_none());
        assert!(queues.get_mut(1).is_some() && queues.get_mut(2).is_none());
        assert_eq!((queues.iter().count(), queues.is_empty()), (2, false));
    }

    #[test]
    fn a_number_that_is_free_again_is_the_next() {
        let mut queues = Queues::default();
        for index in 0..3 {
            enter(&mut queues, rdma(index), 0, 0);
        }
        queues.by_number[1] = None;
        assert_eq!(enter(&mut queues, rdma(7), 0, 0), 1);
        assert_eq!(enter(&mut queues, rdma(8), 0, 0), 3);
    }

    #[test]
    fn the_oldest_without_a_connect_is_that_of_an_address_or_of_all() {
        let mut queues = Queues::default();
        for (index, (address, since)) in [(0, 30), (1, 20), (1, 10)].into_iter().enumerate() {
            enter(&mut queues, rdma(index as u32), address, since);
        }
        let oldest = |host| queues.oldest_opening(host);
        assert_eq!(oldest(None), Some((2, Time::from_nanos(10))));
        assert_eq!(oldest(Some(HostId::at(0))), Some((0, Time::from_nanos(30))));
        assert_eq!(oldest(Some(HostId::at(2))), None);
        assert_eq!(queues.a_candidate(HostId::at(1)), Some(1));
        assert!(queues.least_missed(HostId::at(1)).is_none(), "none of them has a controller");
        let asked: Vec<u16> = queues.asked().map(|(_, number)| number).collect();
        assert_eq!(asked, [0, 1, 2]);
    }
}
