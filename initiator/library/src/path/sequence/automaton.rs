//! Which step follows which.
//!
//! ```text
//! attach    Connect, [authenticate], [over TLS], Capabilities, Version, Enable, ReadyStatus*, Identify, Limits,
//!           [HostBehavior], [AccessLog*], QueueCount, EventConfig, (EstablishQueue, ConnectQueue, [authenticate])*,
//!           Followers, namespaces
//! discovery Connect, [authenticate], [over TLS], Capabilities, Version, Enable, ReadyStatus*, Identify, [EventConfig]
//! follower  (EstablishQueue, ConnectQueue, [authenticate])*
//! rescan    ChangedLog, [AccessLog*], namespaces, once more if namespaces have changed meanwhile
//! access    AccessLog*
//! again     authenticate, for each queue that has; over TLS with a key that was made so, the first makes another one
//! shutdown  Flush*, Disconnect*, ShutdownSet, ShutdownStatus*
//! namespaces: List*, (Namespace, [Descriptors])*, [Listed]
//! authenticate: Authenticate of its stages, as `authentication` says
//! over TLS: if that has made a key, a new connection with it, and from Connect on again
//! ```

use std::time::Duration;

use ringfab_fabric::tcp::Psk;
use ringfab_reactor::Time;

use super::facts::Facts;
use super::{Context, Purpose, Sequence, SequenceStep};
use crate::error::Cause;
use crate::options::ConnectOptions;
use crate::path::PathEvent;

/// Between two looks at CSTS.
const POLL: Duration = Duration::from_millis(10);
/// What each namespace adds to the time that attaching may take.
const NAMESPACE_TIME: Duration = Duration::from_millis(250);

/// What comes after a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// This step.
    Step(SequenceStep),
    /// The same step, at this time.
    Again(Time),
    /// Nothing: the volumes were told.
    End,
    /// Connect, over TLS with this key.
    Secure(Psk),
    /// Nothing: the controller has shut down.
    Leave,
}

impl Sequence {
    /// What comes after a step that was answered: a queue that is asked to authenticates first.
    pub(super) fn next(&mut self, context: &mut Context<'_>, ended: SequenceStep) -> Result<Next, Cause> {
        match ended {
            SequenceStep::Connect if self.asked => Ok(Next::Step(self.authentication.first_step(0))),
            SequenceStep::ConnectQueue(number) if self.asked => {
                Ok(Next::Step(self.authentication.first_step(number)))
            }
            SequenceStep::Authenticate(number, stage) => match self.authentication.after(number, stage)? {
                Some(stage) => Ok(Next::Step(SequenceStep::Authenticate(number, stage))),
                None => self.after_authentication(context, number),
            },
            _ => self.after(context, ended),
        }
    }

    /// What comes after a step on a queue that has authenticated, or need not.
    fn after(&mut self, context: &mut Context<'_>, ended: SequenceStep) -> Result<Next, Cause> {
        let discovery = self.options.url.is_discovery() || self.facts.controller.discovery;
        let queues = self.share.count(self.facts.queues);
        let only = self.options.url.namespace;
        Ok(Next::Step(match ended {
            // What follows that is decided by the queue that it was for.
            SequenceStep::Connect | SequenceStep::Authenticate(..) => SequenceStep::Capabilities,
            SequenceStep::Capabilities => SequenceStep::Version,
            SequenceStep::Version => SequenceStep::Enable,
            SequenceStep::Enable => SequenceStep::ReadyStatus,
            SequenceStep::ReadyStatus => return after_ready_status(&self.facts, &self.options, context),
            SequenceStep::Identify if discovery && self.facts.wants_log_events(&self.options) => {
                SequenceStep::EventConfig
            }
            SequenceStep::Identify | SequenceStep::EventConfig if discovery => {
                return Ok(self.all_scanned(context));
            }
            SequenceStep::Identify => SequenceStep::Limits,
            SequenceStep::Limits if self.facts.has_retry_delays() => SequenceStep::HostBehavior,
            SequenceStep::Limits | SequenceStep::HostBehavior if self.facts.controller.access_states => {
                SequenceStep::AccessLog(0)
            }
            SequenceStep::Limits | SequenceStep::HostBehavior => SequenceStep::QueueCount,
            SequenceStep::AccessLog(from) => return self.after_access_log(context, from),
            SequenceStep::QueueCount => SequenceStep::EventConfig,
            SequenceStep::EventConfig => {
                self.facts.decide_queues(&self.options, self.share.engines)?;
                SequenceStep::EstablishQueue(1)
            }
            SequenceStep::EstablishQueue(number) => SequenceStep::ConnectQueue(number),
            SequenceStep::ConnectQueue(number) if number < queues => SequenceStep::EstablishQueue(number + 1),
            SequenceStep::ConnectQueue(_) if self.share.leads() => SequenceStep::Followers,
            SequenceStep::ConnectQueue(_) => return Ok(queues_connected(context)),
            SequenceStep::Followers => self.namespaces.begin(only),

            SequenceStep::ChangedLog => self.after_changed_log(context),
            SequenceStep::List(after) => return self.after_list(context, after),
            // Identification descriptors came with NVMe 1.3.
            SequenceStep::Namespace(index)
                if self.namespaces.is_active(index) && self.facts.version >= (1, 3, 0) =>
            {
                SequenceStep::Descriptors(index)
            }
            SequenceStep::Namespace(index) | SequenceStep::Descriptors(index) => {
                let next = self.namespaces.after_namespace(index, only);
                let Some(next) = next else { return Ok(self.all_scanned(context)) };
                next
            }
            SequenceStep::Listed(_) => return Ok(self.all_scanned(context)),

            SequenceStep::Flush(nsid) => after_flush(&self.flushes, &self.facts, context, nsid),
            SequenceStep::Disconnect(number) => after_queue(&self.facts, context, number),
            SequenceStep::ShutdownSet => SequenceStep::ShutdownStatus,
            SequenceStep::ShutdownStatus => return after_shutdown_status(&self.facts, context.now),
        }))
    }

    /// A queue has authenticated: the commands that have waited for that go out on it, or it is the next one's turn.
    fn after_authentication(&mut self, context: &mut Context<'_>, number: u16) -> Result<Next, Cause> {
        self.asked = false;
        match (self.purpose, number) {
            (Purpose::Reauthenticate, _) => {
                context.replacement = self.authentication.take_psk()?.or(context.replacement.take());
                if let Some(next) = self.authentication.queue_after(Some(number)) {
                    return Ok(Next::Step(self.authentication.first_step(next)));
                }
                let keys = self.authentication.accept_keys();
                context.reports.push(PathEvent::Reauthenticated(Ok(keys)));
                Ok(Next::End)
            }
            (_, 0) => match self.authentication.take_psk()? {
                Some(psk) => Ok(Next::Secure(psk)),
                None => self.after(context, SequenceStep::Connect),
            },
            _ => self.after(context, SequenceStep::ConnectQueue(number)),
        }
    }

    /// A part of the log page of access states.
    fn after_access_log(&mut self, context: &mut Context<'_>, from: u32) -> Result<Next, Cause> {
        if let Some(next) = self.access.after(from, &self.facts.controller)? {
            return Ok(Next::Step(next));
        }
        context.reports.push(PathEvent::Access(self.access.states()));
        Ok(match self.purpose {
            Purpose::Attach => Next::Step(SequenceStep::QueueCount),
            Purpose::Rescan => Next::Step(self.namespaces.begin(self.options.url.namespace)),
            _ => Next::End,
        })
    }

    /// The namespaces that have changed. If others have meanwhile, the list is not all.
    fn after_changed_log(&mut self, context: &mut Context<'_>) -> SequenceStep {
        if !self.namespaces.again {
            context.reports.push(PathEvent::Changes(self.namespaces.list().to_vec()));
        }
        // A namespace may be in a group that was not there before.
        if self.facts.controller.access_states {
            return SequenceStep::AccessLog(0);
        }
        self.namespaces.begin(self.options.url.namespace)
    }

    /// A part of the list of namespaces.
    fn after_list(&mut self, context: &mut Context<'_>, after: u32) -> Result<Next, Cause> {
        let Some(next) = self.namespaces.after_list(after)? else { return Ok(self.all_scanned(context)) };
        if next == SequenceStep::Namespace(0) {
            self.extra_time += NAMESPACE_TIME * self.namespaces.list().len() as u32;
        }
        Ok(Next::Step(next))
    }

    /// All namespaces were looked at. While attaching, the volumes say whether this is the right subsystem.
    fn all_scanned(&mut self, context: &mut Context<'_>) -> Next {
        let (found, listed) = self.namespaces.take();
        if self.purpose == Purpose::Attach {
            let subsystem = self.facts.controller.names.subsystem.clone();
            context.reports.push(PathEvent::Identified { found, listed, subsystem });
            return Next::End;
        }
        let again = std::mem::take(&mut self.namespaces.again);
        context.reports.push(PathEvent::NamespacesFound { found, final_look: !again });
        if again { Next::Step(SequenceStep::ChangedLog) } else { Next::End }
    }
}

/// An orderly shutdown first flushes what was written to and is still there, one after the other.
pub(super) fn after_flush(flushes: &[u32], facts: &Facts, context: &Context<'_>, nsid: u32) -> SequenceStep {
    let next = flushes.iter().find(|next| **next > nsid);
    next.map_or_else(|| after_queue(facts, context, 0), |next| SequenceStep::Flush(*next))
}

/// Then it ends the I/O queues one by one, where the controller can, and then the controller.
pub(super) fn after_queue(facts: &Facts, context: &Context<'_>, number: u16) -> SequenceStep {
    let next = context.io.alive_after(number).filter(|_| facts.controller.disconnect);
    next.map_or(SequenceStep::ShutdownSet, SequenceStep::Disconnect)
}

/// A follower has its queues, and waits for the leader.
fn queues_connected(context: &mut Context<'_>) -> Next {
    context.reports.push(PathEvent::QueuesConnected);
    Next::End
}

/// CSTS while the controller is being enabled.
fn after_ready_status(
    facts: &Facts,
    options: &ConnectOptions,
    context: &mut Context<'_>,
) -> Result<Next, Cause> {
    let status = facts.last_status;
    if status.fatal {
        return Err(Cause::ControllerFatal);
    }
    if status.ready {
        // The controller's timer runs from its enabling, and before that it takes no Keep Alive.
        context.keep_alive.start(options.keep_alive_wanted(), context.now);
        return Ok(Next::Step(SequenceStep::Identify));
    }
    if context.now >= facts.ready_until {
        let limit = facts.capabilities.timeout;
        return Err(Cause::TimedOut { what: "enabling the controller (CSTS.RDY)", limit });
    }
    Ok(Next::Again(context.now + POLL))
}

/// CSTS while the controller shuts down. One that has failed will not complete that.
fn after_shutdown_status(facts: &Facts, now: Time) -> Result<Next, Cause> {
    match facts.last_status {
        status if status.shutdown_complete => Ok(Next::Leave),
        status if status.fatal => Err(Cause::ControllerFatal),
        _ => Ok(Next::Again(now + POLL)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::identity::HostIdentity;
    use crate::path::connector::QueueShare;
    use crate::path::io_queues::IoQueues;
    use crate::path::keep_alive::KeepAlive;
    use crate::path::reports::Reports;
    use crate::path::sequence::authentication::Stage;
    use crate::retry::RetryDelays;
    use crate::wire::answers::ControllerStatus;

    /// A sequence of one engine of some, which has learned all that there is to learn.
    fn sequence(engine: u16, url: &str, prepare: impl FnOnce(&mut Sequence)) -> Sequence {
        let host =
            HostIdentity { nqn: "nqn.2026-01.org.example:me".to_owned(), id: uuid::Uuid::from_u128(1) };
        let url = url.parse().expect("an address");
        let mut sequence =
            Sequence::new(Arc::new(ConnectOptions::new(url, host)), QueueShare { engine, engines: 2 });
        (sequence.facts.queues, sequence.facts.version) = (4, (1, 4, 0));
        sequence.facts.capabilities.queue_entries_max = 128;
        sequence.facts.last_status = ControllerStatus { ready: true, fatal: false, shutdown_complete: true };
        prepare(&mut sequence);
        sequence
    }

    /// The steps from `first` on, each of which succeeds, by their names, and what the volumes are told.
    fn walk(sequence: &mut Sequence, first: SequenceStep) -> (Vec<String>, Vec<String>) {
        let (mut keep_alive, mut reports) = (KeepAlive::default(), Reports::default());
        let io = IoQueues::new(Duration::from_secs(1));
        let pool = ringfab_memory::Pool::new(&[ringfab_memory::ClassLayout { buffer_bytes: 4096, count: 1 }])
            .expect("a pool");
        let mut context = Context {
            now: Time::ZERO,
            pool: &pool,
            io: &io,
            secured: false,
            replacement: None,
            keep_alive: &mut keep_alive,
            reports: &mut reports,
        };
        let (mut step, mut steps) = (first, vec![format!("{first:?}")]);
        while let Next::Step(next) = sequence.next(&mut context, step).expect("it goes on") {
            steps.push(format!("{next:?}"));
            step = next;
            assert!(steps.len() < 100, "{steps:?}");
        }
        let name = |event| format!("{event:?}").split([' ', '(']).next().unwrap_or_default().to_owned();
        (steps, std::iter::from_fn(|| reports.next()).map(name).collect())
    }

    fn psk() -> Psk {
        let secret = ringfab_auth::Secret::copy_of(&[7; 32]);
        Psk { identity: b"id".to_vec(), secret, suite: ringfab_auth::CipherSuite::Aes128GcmSha256 }
    }

    const URL: &str = "nvme+tcp://192.0.2.1/nqn.2026-01.org.example:disk";
    const ATTACH: &str = "Connect Capabilities Version Enable ReadyStatus Identify";
    const QUEUES: &str =
        "QueueCount EventConfig EstablishQueue(1) ConnectQueue(1) EstablishQueue(2) ConnectQueue(2)";

    #[test]
    fn a_leader_attaches_its_queues_then_those_of_followers_and_looks_at_the_namespaces() {
        let (steps, told) = walk(&mut sequence(0, URL, |_| {}), SequenceStep::Connect);
        assert_eq!(steps.join(" "), format!("{ATTACH} Limits {QUEUES} Followers List(0)"));
        assert_eq!(told, ["Identified"], "no namespace is listed");
        let delays = |sequence: &mut Sequence| {
            let delays = &mut sequence.facts.controller.retry_delays;
            *delays = RetryDelays { crdt: [Duration::from_secs(1); 3], ..*delays };
        };
        let one = format!("{URL}?ns=3");
        let (steps, told) = walk(&mut sequence(0, &one, delays), SequenceStep::Connect);
        let namespaces = "Followers Namespace(0) Listed(3)";
        assert_eq!(steps.join(" "), format!("{ATTACH} Limits HostBehavior {QUEUES} {namespaces}"));
        assert_eq!(told, ["Identified"], "without a size it is looked for in the list");
    }

    #[test]
    fn a_discovery_controller_has_no_queues_and_a_follower_has_nothing_else() {
        let discovery = |sequence: &mut Sequence| sequence.facts.controller.discovery = true;
        let (steps, told) = walk(&mut sequence(0, URL, discovery), SequenceStep::Connect);
        assert_eq!((steps.join(" ").as_str(), told), (ATTACH, vec!["Identified".to_owned()]));
        let stays = |sequence: &mut Sequence| {
            discovery(sequence);
            sequence.facts.controller.discovery_log_notices = true;
            Arc::make_mut(&mut sequence.options).persistent_discovery = true;
        };
        let (steps, _) = walk(&mut sequence(0, URL, stays), SequenceStep::Connect);
        assert_eq!(steps.join(" "), format!("{ATTACH} EventConfig"));
        let (steps, told) = walk(&mut sequence(1, URL, |_| {}), SequenceStep::EstablishQueue(1));
        assert_eq!(steps.join(" "), &QUEUES[QUEUES.find("Establish").expect("there")..]);
        assert_eq!(told, ["QueuesConnected"]);
    }

    #[test]
    fn a_scan_is_repeated_when_namespaces_have_changed_meanwhile() {
        let again = |sequence: &mut Sequence| {
            (sequence.purpose, sequence.namespaces.again) = (Purpose::Rescan, true);
        };
        let (steps, told) = walk(&mut sequence(0, URL, again), SequenceStep::ChangedLog);
        assert_eq!(steps.join(" "), "ChangedLog List(0) ChangedLog List(0)");
        assert_eq!(told, ["NamespacesFound", "Changes", "NamespacesFound"]);
    }

    #[test]
    fn a_shutdown_flushes_each_namespace_that_was_written_to_and_then_shuts_down() {
        let written = |sequence: &mut Sequence| {
            (sequence.purpose, sequence.flushes) = (Purpose::Shutdown, vec![2, 5]);
        };
        let (steps, told) = walk(&mut sequence(0, URL, written), SequenceStep::Flush(2));
        assert_eq!(steps.join(" "), "Flush(2) Flush(5) ShutdownSet ShutdownStatus");
        assert!(told.is_empty());
    }

    #[test]
    fn a_queue_that_is_asked_to_authenticates_first() {
        let asked = |sequence: &mut Sequence| sequence.asked = true;
        for (step, number) in [(SequenceStep::Connect, 0), (SequenceStep::ConnectQueue(2), 2)] {
            let mut sequence = sequence(0, URL, asked);
            let (mut keep_alive, mut reports) = (KeepAlive::default(), Reports::default());
            let io = IoQueues::new(Duration::from_secs(1));
            let layout = ringfab_memory::ClassLayout { buffer_bytes: 4096, count: 1 };
            let pool = ringfab_memory::Pool::new(&[layout]).expect("a pool");
            let mut context = Context {
                now: Time::ZERO,
                pool: &pool,
                io: &io,
                secured: false,
                replacement: None,
                keep_alive: &mut keep_alive,
                reports: &mut reports,
            };
            let next = sequence.next(&mut context, step).expect("it goes on");
            assert_eq!(next, Next::Step(SequenceStep::Authenticate(number, Stage::Keys)));
            let next = sequence.next(&mut context, SequenceStep::Authenticate(number, Stage::Keys));
            assert_eq!(next.expect("keys"), Next::Step(SequenceStep::Authenticate(number, Stage::Send)));
            if number == 0 {
                let psk = psk();
                sequence.authentication.set_psk(psk.clone());
                let after = sequence.after_authentication(&mut context, 0).expect("it goes on");
                assert_eq!(after, Next::Secure(psk), "with concatenation it connects again");
            }
            let after = sequence.after_authentication(&mut context, number).expect("it goes on");
            let expected = if number == 0 { SequenceStep::Capabilities } else { SequenceStep::Followers };
            assert_eq!(after, Next::Step(expected));
        }
    }
}
