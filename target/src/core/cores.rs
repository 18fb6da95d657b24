//! Messages to the cores of a running target, for the control side.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use super::message::{AwaitedEnd, CoreMessage, CoreSender, ServeMessage, TakenAway};
use super::usage::CoreUsage;
use crate::controller::Controller;
use crate::disks::DiskHandles;
use crate::resources::ClaimId;
use crate::resources::claims::{Asker, ClaimMessage};
use crate::resources::messages::QueueMessage;
use crate::resources::scope::Scope;

/// How long cores may take to answer; a turn of a loop takes far less.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

const NO_ANSWER: &str = "a core does not answer";

/// How long whoever tries something again waits before that.
const PAUSE: Duration = Duration::from_millis(5);

/// The way to all cores, for whoever changes what they serve.
pub(crate) trait AllCores {
    /// How many there are.
    fn count(&self) -> usize;

    /// Has every core do the same, and waits until all have.
    ///
    /// # Errors
    /// What the first core says that cannot; the others may have done it.
    fn broadcast(&self, message: ServeMessage) -> Result<(), String>;

    /// Ends a controller with all its queues.
    fn end_controller(&self, controller: &Arc<Controller>, reason: &str);

    /// Lets some milliseconds pass before something is tried again.
    fn pause(&self);

    /// Waits until no core needs any more what a change has taken away, for so long at most. Says whether that is so.
    fn await_end(&self, taken_away: TakenAway, limit: Duration) -> bool;

    /// Waits until every core has let go of what is in a scope, for so long at most. From then on nothing runs there
    /// until the claim is dropped: commands wait, without buffers, and hosts are told to try them again after a while.
    /// Only the flush of a controller that is shut down does not wait: it changes no block, and its host may be gone.
    /// Nothing when some core still works there; then nobody waits any more.
    fn claim(&self, scope: Scope, limit: Duration) -> Option<ControlClaim>;
}

/// What the control side has claimed. It gives that back when it is dropped.
#[derive(Debug)]
#[must_use = "a claim is given back when it is dropped"]
pub struct ControlClaim {
    id: ClaimId,
    /// The core that orders the claims of its disk.
    orderer: CoreSender,
}

impl Drop for ControlClaim {
    fn drop(&mut self) {
        let released = QueueMessage::Claim(self.id, ClaimMessage::Released);
        self.orderer.send(CoreMessage::Queues(released));
    }
}

/// The way to all cores of a target.
#[derive(Clone, Debug, Default)]
pub struct Cores {
    pub(super) senders: Vec<CoreSender>,
    pub(super) disk_handles: Arc<DiskHandles>,
}

impl Cores {
    /// What each has in use.
    ///
    /// # Errors
    /// When one does not answer.
    pub fn usage(&self) -> Result<Vec<CoreUsage>, String> {
        let usage = self.usage_within(ANSWER_TIMEOUT).into_iter().collect::<Option<Vec<CoreUsage>>>();
        usage.ok_or_else(|| NO_ANSWER.to_owned())
    }

    /// The same, without those that do not answer within a limit.
    pub fn usage_within(&self, limit: Duration) -> Vec<Option<CoreUsage>> {
        let deadline = Instant::now() + limit;
        let (reply, replies) = mpsc::channel();
        for core in &self.senders {
            core.send(CoreMessage::ReportUsage(reply.clone()));
        }
        drop(reply);
        let mut usage = vec![None; self.senders.len()];
        for _ in &self.senders {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok((core, told)) = replies.recv_timeout(left) else { break };
            usage[core] = Some(told);
        }
        usage
    }

    /// Asks every core to do the same. Where their answers come, in any order.
    fn ask(&self, message: &ServeMessage) -> mpsc::Receiver<Result<(), String>> {
        let (reply, replies) = mpsc::channel();
        for core in &self.senders {
            core.send(CoreMessage::Serve(message.clone(), reply.clone()));
        }
        replies
    }

    /// Has every core say when it needs no more what a change has taken away. One that still does after so long says
    /// nothing. Where their answers come, in any order.
    fn ask_for_end(&self, taken_away: TakenAway, limit: Duration) -> mpsc::Receiver<()> {
        let taken_away = Arc::new(taken_away);
        let (reply, replies) = mpsc::channel();
        for core in &self.senders {
            let (taken_away, reply) = (Arc::clone(&taken_away), reply.clone());
            core.send(CoreMessage::AwaitEnd(AwaitedEnd { taken_away, limit, reply }));
        }
        replies
    }

    /// Asks for a claim. Something comes to the receiver when it is granted.
    fn ask_for_claim(&self, scope: Scope) -> (ControlClaim, mpsc::Receiver<()>) {
        static CLAIMS: AtomicU64 = AtomicU64::new(0);
        let id = ClaimId::of_control(CLAIMS.fetch_add(1, Ordering::Relaxed), &scope);
        let orderer = self.senders[id.orderer(self.senders.len())].clone();
        let (granted, grant) = mpsc::channel();
        let request = ClaimMessage::Request { scope, asker: Asker::Control(granted) };
        orderer.send(CoreMessage::Queues(QueueMessage::Claim(id, request)));
        (ControlClaim { id, orderer }, grant)
    }

    /// Flushes the disk at a position by one core, for so long at most. All of a disk is flushed then, whichever core
    /// has written it.
    ///
    /// # Errors
    /// Why it is not flushed, as the end of a sentence.
    pub(crate) fn flush(&self, disk: usize, limit: Duration) -> Result<(), String> {
        let (reply, flushed) = mpsc::channel();
        self.senders.first().ok_or(NO_ANSWER)?.send(CoreMessage::Flush(disk, reply));
        match flushed.recv_timeout(limit) {
            Ok(outcome) => outcome,
            Err(RecvTimeoutError::Timeout) => Err("its disk takes too long".to_owned()),
            Err(RecvTimeoutError::Disconnected) => Err(NO_ANSWER.to_owned()),
        }
    }

    /// The disks that they serve.
    pub(crate) fn disk_handles(&self) -> &Arc<DiskHandles> {
        &self.disk_handles
    }
}

impl AllCores for Cores {
    fn count(&self) -> usize {
        self.senders.len()
    }

    fn broadcast(&self, message: ServeMessage) -> Result<(), String> {
        let replies = self.ask(&message);
        // What the message holds is the cores' alone now.
        drop(message);
        let mut outcome = Ok(());
        for _ in &self.senders {
            let answer = replies.recv_timeout(ANSWER_TIMEOUT);
            outcome = outcome.and(answer.unwrap_or_else(|_| Err(NO_ANSWER.to_owned())));
        }
        outcome
    }

    fn end_controller(&self, controller: &Arc<Controller>, reason: &str) {
        controller.log_ended(reason);
        controller.end();
        for core in &self.senders {
            let message = QueueMessage::EndQueues { controller: Arc::clone(controller), admin: true };
            core.send(CoreMessage::Queues(message));
        }
    }

    fn await_end(&self, taken_away: TakenAway, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        let replies = self.ask_for_end(taken_away, limit);
        // A core that has ended needs nothing.
        self.senders.iter().all(|_| {
            let left = deadline.saturating_duration_since(Instant::now());
            replies.recv_timeout(left) != Err(RecvTimeoutError::Timeout)
        })
    }

    fn claim(&self, scope: Scope, limit: Duration) -> Option<ControlClaim> {
        let (claim, grant) = self.ask_for_claim(scope);
        grant.recv_timeout(limit).is_ok().then_some(claim)
    }

    fn pause(&self) {
        thread::sleep(PAUSE);
    }
}

/// Cores in the caller's thread, which turns them while it waits for their answers; for simulations.
pub(crate) struct CoresInTurns<'a> {
    cores: &'a Cores,
    turn: RefCell<&'a mut dyn FnMut()>,
}

impl<'a> CoresInTurns<'a> {
    /// The way to them. `turn` has each of them turn that can, and lets time pass.
    pub(crate) fn new(cores: &'a Cores, turn: &'a mut dyn FnMut()) -> Self {
        Self { cores, turn: RefCell::new(turn) }
    }

    fn turn(&self) {
        (self.turn.borrow_mut())();
    }
}

impl fmt::Debug for CoresInTurns<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CoresInTurns").field("cores", self.cores).finish_non_exhaustive()
    }
}

impl AllCores for CoresInTurns<'_> {
    fn count(&self) -> usize {
        self.cores.count()
    }

    /// The limit on an answer is the caller's: it decides how often it turns them.
    fn broadcast(&self, message: ServeMessage) -> Result<(), String> {
        let replies = self.cores.ask(&message);
        drop(message);
        let mut outcome = Ok(());
        for _ in 0..self.count() {
            let answer = loop {
                match replies.try_recv() {
                    Err(mpsc::TryRecvError::Empty) => self.turn(),
                    answer => break answer,
                }
            };
            outcome = outcome.and(answer.unwrap_or_else(|_| Err(NO_ANSWER.to_owned())));
        }
        outcome
    }

    fn end_controller(&self, controller: &Arc<Controller>, reason: &str) {
        self.cores.end_controller(controller, reason);
    }

    fn pause(&self) {
        self.turn();
    }

    /// The cores know when the limit is reached: they forget whoever asked, and that ends the wait.
    fn await_end(&self, taken_away: TakenAway, limit: Duration) -> bool {
        let replies = self.cores.ask_for_end(taken_away, limit);
        let mut left = self.count();
        while left > 0 {
            match replies.try_recv() {
                Ok(()) => left -= 1,
                Err(mpsc::TryRecvError::Empty) => self.turn(),
                Err(mpsc::TryRecvError::Disconnected) => return false,
            }
        }
        true
    }
    /// The limit is the caller's: it decides how often it turns them.
    fn claim(&self, scope: Scope, _limit: Duration) -> Option<ControlClaim> {
        let (claim, grant) = self.cores.ask_for_claim(scope);
        loop {
            match grant.try_recv() {
                Ok(()) => return Some(claim),
                Err(mpsc::TryRecvError::Empty) => self.turn(),
                Err(mpsc::TryRecvError::Disconnected) => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ringfab_reactor::{MailboxReceiver, Reactor, ReactorConfig, mailbox};

    use super::*;

    /// What has come to the core next about a claim.
    fn next(inbox: &mut MailboxReceiver<CoreMessage>) -> (ClaimId, ClaimMessage) {
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        while Instant::now() < deadline {
            match inbox.try_receive() {
                Some(CoreMessage::Queues(QueueMessage::Claim(id, message))) => return (id, message),
                Some(other) => panic!("{other:?}"),
                None => thread::yield_now(),
            }
        }
        panic!("nothing has come");
    }

    #[test]
    fn a_claim_is_given_back_when_it_is_dropped_or_not_granted_in_time() {
        let config = ReactorConfig { entries: 8, spin: Duration::ZERO, descriptors_max: 8 };
        let reactor = Reactor::new(&config).expect("a ring");
        let (sender, mut inbox) = mailbox(reactor.waker());
        let cores = Cores { senders: vec![CoreSender(sender)], ..Cores::default() };
        assert!(cores.claim(Scope::Disk(3), Duration::ZERO).is_none(), "nobody grants it");
        let (late, _request) = next(&mut inbox);
        assert!(matches!(next(&mut inbox), (id, ClaimMessage::Released) if id == late));
        thread::scope(|scope| {
            let claimed = scope.spawn(|| cores.claim(Scope::Disk(3), ANSWER_TIMEOUT));
            let (id, request) = next(&mut inbox);
            assert_ne!(id, late);
            let ClaimMessage::Request { asker: Asker::Control(reply), .. } = request else {
                panic!("{request:?}")
            };
            reply.send(()).expect("somebody waits");
            let claim = claimed.join().expect("no panic").expect("it is granted");
            assert!(inbox.try_receive().is_none(), "it is held");
            drop(claim);
            assert!(matches!(next(&mut inbox), (released, ClaimMessage::Released) if released == id));
        });
    }
}
