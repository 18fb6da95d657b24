//! Freezes: for a moment nothing changes the disks of some namespaces. So whatever copies them meanwhile (`lvcreate
//! --snapshot`, `rbd snap create`) has all of them as they were at one instant.
//!
//! New changes wait, those that run end, and what was written is flushed. Reads go on. A freeze belongs to the
//! connection that has asked for it. It ends when that says so or ends, and in any case after its time: hosts give up
//! commands that wait for long.

use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ringfab_base::counted;
use ringfab_process::log::NEVER_FOLDED;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::status::View;
use crate::core::{AllCores as _, ControlClaim};
use crate::disks::DiskHandle;
use crate::model::{Namespace, Subsystem};
use crate::resources::scope::Scope;

/// The longest freeze. A core holds commands back for a little longer before hosts have to try again.
pub const FREEZE_MAX: Duration = Duration::from_secs(10);

/// Which namespace is to be frozen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamespaceName {
    /// NQN of its subsystem. Where it is left out, there must be only one.
    #[serde(default)]
    pub subsystem: Option<String>,
    /// Its identifier.
    pub nsid: u32,
}

/// Namespaces that are frozen until this is dropped, or their time is over.
#[derive(Debug)]
pub(super) struct Frozen {
    begun: Instant,
    until: Instant,
    /// Held by who has asked. The thread ends when it is dropped.
    asker: mpsc::Sender<()>,
    /// Has the claims.
    holder: JoinHandle<Held>,
}

/// How a freeze has ended.
#[derive(Debug, Default)]
struct Held {
    /// Whether it lasted until who had asked for it ended it.
    in_time: bool,
    /// For how long it lasted.
    time: Duration,
}

impl Frozen {
    /// Freezes namespaces. `limit` counts from the moment in which the first of them is held.
    ///
    /// # Errors
    /// Why they are not frozen; nothing is held then.
    pub(super) fn freeze(view: &View, names: &[NamespaceName], limit: Duration) -> Result<Self, String> {
        if limit.is_zero() || limit > FREEZE_MAX {
            return Err(format!("a freeze lasts more than nothing and at most {} s", FREEZE_MAX.as_secs()));
        }
        let chosen = chosen(view, names)?;
        let (begun, until) = (Instant::now(), Instant::now() + limit);
        let left = || until.saturating_duration_since(Instant::now());
        let mut claims = Vec::new();
        for (subsystem, namespace) in &chosen {
            let claim = view.cores().claim(Scope::ChangesOf(namespace.index()), left());
            let unheld = || {
                let (nsid, nqn) = (namespace.nsid(), subsystem.nqn());
                format!(
                    "not frozen: after {limit:?}, namespace {nsid} of {nqn} is still written to, or frozen by \
                     somebody else"
                )
            };
            claims.push(claim.ok_or_else(unheld)?);
        }
        for (subsystem, namespace) in &chosen {
            view.cores().flush(namespace.index(), left()).map_err(|why| {
                format!(
                    "not frozen: namespace {} of {} is not flushed: {why}",
                    namespace.nsid(),
                    subsystem.nqn()
                )
            })?;
        }
        let (asker, ended) = mpsc::channel();
        let what = counted(chosen.len(), "namespace");
        tracing::info!(name: NEVER_FOLDED, what, took = ?begun.elapsed(), left = ?left(), "frozen");
        let hold = move || hold(claims, &ended, begun, until);
        let holder = thread::Builder::new().name("freeze".to_owned()).spawn(hold);
        let holder = holder.map_err(|error| format!("not frozen: no thread for it: {error}"))?;
        Ok(Self { begun, until, asker, holder })
    }

    /// For how long it lasts from now on, at most.
    pub(super) fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// What is told of it when it begins.
    pub(super) fn state(&self) -> Value {
        json!({ "took_ms": millis(self.begun.elapsed()), "left_ms": millis(self.left()) })
    }

    /// Ends it. The answer says whether nothing has changed until now.
    pub(super) fn thaw(self) -> Value {
        let Self { asker, holder, .. } = self;
        drop(asker);
        let Held { in_time, time } = holder.join().unwrap_or_default();
        json!({ "in_time": in_time, "held_ms": millis(time) })
    }
}

fn millis(time: Duration) -> u64 {
    time.as_millis() as u64
}

/// Holds claims until who has asked for them ends that, or until their time is over.
fn hold(claims: Vec<ControlClaim>, ended: &mpsc::Receiver<()>, begun: Instant, until: Instant) -> Held {
    let left = until.saturating_duration_since(Instant::now());
    let in_time = ended.recv_timeout(left) == Err(mpsc::RecvTimeoutError::Disconnected);
    drop(claims);
    let time = begun.elapsed();
    if in_time {
        tracing::info!(name: NEVER_FOLDED, held = ?time, "thawed");
    } else {
        tracing::warn!(name: NEVER_FOLDED, held = ?time, "thawed, because the time was over");
    }
    Held { in_time, time }
}

/// A namespace with its subsystem.
type Chosen = (Arc<Subsystem>, Arc<Namespace>);

/// The namespaces with these names, in the order in which all who freeze several of them claim them.
fn chosen(view: &View, names: &[NamespaceName]) -> Result<Vec<Chosen>, String> {
    if names.is_empty() {
        return Err("no namespace is named".to_owned());
    }
    let mut chosen = Vec::new();
    for NamespaceName { subsystem, nsid } in names {
        let (subsystem, namespace) = view.namespace(subsystem.as_deref(), *nsid)?;
        if !namespace.is_ready() {
            return Err(format!("namespace {nsid} of {} is not ready", subsystem.nqn()));
        }
        // No flush says any more that all is there.
        if let Some(why) = namespace.needs_reopen() {
            return Err(format!("namespace {nsid} of {} has to be reopened first: {why}", subsystem.nqn()));
        }
        chosen.push((subsystem, namespace));
    }
    chosen.sort_by_key(|(_, namespace)| namespace.index());
    chosen.dedup_by_key(|(_, namespace)| namespace.index());
    let is_chosen = |index| chosen.iter().any(|(_, namespace)| namespace.index() == index);
    let served = view.target().served();
    for (subsystem, other) in served.namespaces().filter(|(_, other)| !is_chosen(other.index())) {
        let shares = |(_, one): &&Chosen| have_one_disk(view, one, other);
        if let Some((nqn, one)) =
            chosen.iter().find(shares).map(|(subsystem, one)| (subsystem.nqn(), one.nsid()))
        {
            return Err(format!(
                "namespace {one} of {nqn} and namespace {} of {} have one disk: name both",
                other.nsid(),
                subsystem.nqn()
            ));
        }
    }
    Ok(chosen)
}

/// Whether two namespaces have the same file, device or image.
fn have_one_disk(view: &View, one: &Namespace, other: &Namespace) -> bool {
    let of_file = |namespace| view.cores().disk_handles().with(namespace, DiskHandle::identity);
    let of_driver = |namespace: &Namespace| namespace.opened_disk().identity();
    let is_same_file = of_file(one).is_some_and(|identity| of_file(other) == Some(identity));
    let is_same_device = of_driver(one).is_some_and(|identity| of_driver(other) == Some(identity));
    let has_driver = one.backing().driver().is_some() && other.backing().driver().is_some();
    is_same_file || is_same_device || has_driver && one.source() == other.source()
}
