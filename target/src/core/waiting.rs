//! Requests that have waited go on: for buffers, for a limit, for the turn of their host, or because something held
//! them back.

use std::time::Duration;

use ringfab_reactor::Time;

use super::queues::Queues;
use crate::queue::Gate;
use crate::resources::claims::{ClaimId, ClaimMessage};
use crate::resources::held_back::HeldBack;
use crate::resources::hosts::PoolKind;
use crate::resources::operations::DEFERRED_MAX;
use crate::resources::{HostId, Resources};

/// How long a command is held back before its host is told to try again. Hosts give up a command after 30 s and their
/// connections with it.
const HELD_BACK_MAX: Duration = Duration::from_secs(15);

impl Queues {
    /// Requests that wait for buffers get them, host by host.
    pub(super) fn serve_buffers(&mut self, resources: &mut Resources) {
        for _ in 0..resources.hosts.begin_round() {
            let Some(host) = resources.hosts.take_next() else { return };
            for line in PoolKind::ALL {
                self.serve_line(resources, host, line);
            }
            resources.hosts.served(host);
        }
    }

    /// In order; the first that gets none stops the line.
    fn serve_line(&mut self, resources: &mut Resources, host: HostId, line: PoolKind) {
        while let Some(waiter) = resources.hosts.first_waiting(host, line) {
            let queue = self.get_mut(waiter.queue);
            if queue.is_some_and(|queue| queue.retry_buffers(resources, waiter)) {
                return;
            }
            resources.hosts.drop_waiting(host, line);
        }
    }

    /// Commands begin that their limits let pass.
    pub(super) fn serve_limits(&mut self, resources: &mut Resources) {
        let now = resources.states.now();
        while let Some(request) = resources.limited.next(now) {
            if let Some(queue) = self.get_mut(request.queue) {
                queue.pass(resources, request, Gate::Limits);
            }
            self.start_deferred(resources, DEFERRED_MAX);
        }
        self.start_deferred(resources, 0);
    }

    /// Commands begin whose hosts have their turn. Behind one that waits for buffers, those that need some have none,
    /// so that buffers that are given back bring about one command at a time. Answers that are ready leave first.
    pub(super) fn serve_turns(&mut self, resources: &mut Resources) {
        if resources.turns.take_at_once() {
            self.start_deferred(resources, 0);
            resources.transports.flush(&mut resources.reactor);
            resources.end_borrows();
        }
        loop {
            let Resources { turns, hosts, .. } = &mut *resources;
            let blocked = |host, kind| hosts.first_waiting(host, kind).is_some();
            let Some(request) = turns.next(blocked) else { return self.start_deferred(resources, 0) };
            if let Some(queue) = self.get_mut(request.queue) {
                queue.pass(resources, request, Gate::Turn);
            }
            self.start_deferred(resources, DEFERRED_MAX);
        }
    }

    /// Commands that nothing holds back any more go on; those that have waited too long end.
    pub(super) fn serve_held_back(&mut self, resources: &mut Resources, now: Time) {
        for _ in 0..resources.held_back.count() {
            let Some(held) = resources.held_back.take_next() else { return };
            let HeldBack { request, since } = held;
            let late = now >= since + HELD_BACK_MAX;
            let queue = self.get_mut(request.queue);
            if queue.is_some_and(|queue| queue.retry_held_back(resources, request, late)) {
                resources.held_back.put_back(held);
            }
        }
    }

    /// A core or the control side says something about a claim; see [`crate::resources::claims`].
    pub(super) fn on_claim(&mut self, resources: &mut Resources, id: ClaimId, message: ClaimMessage) {
        match message {
            ClaimMessage::Request { scope, asker } => resources.order_claim(id, scope, asker),
            ClaimMessage::Hold(scope) => {
                resources.claims.hold(id, scope);
                self.report_held(resources);
            }
            ClaimMessage::Held => resources.count_held(id),
            ClaimMessage::Granted { compare } => {
                let queue = self.get_mut(compare.queue);
                if !queue.is_some_and(|queue| queue.claimed(resources, id)) {
                    resources.release(id);
                }
            }
            ClaimMessage::Released => resources.end_claim(id),
            ClaimMessage::Unhold => self.serve_delayed(resources, id),
        }
    }

    /// Reports the claims in whose scope no disk of this core works any more. Called in every turn while one is held.
    pub(super) fn report_held(&self, resources: &mut Resources) {
        resources.report_held(|scope| self.iter().any(|queue| queue.is_working_in(scope)));
    }

    /// A claim is over: who waited for it tries again, in order. Those that hold their data go first.
    fn serve_delayed(&mut self, resources: &mut Resources, id: ClaimId) {
        for _ in 0..resources.claims.unhold(id) {
            let Some(request) = resources.claims.next_delayed() else { break };
            if let Some(queue) = self.get_mut(request.queue) {
                queue.blocks_released(resources, request);
            }
        }
        self.serve_held_back(resources, resources.states.now());
    }
}
