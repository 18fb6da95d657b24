//! Namespaces that become other disks: a target may give the number of a removed namespace to another disk.
//!
//! A command carries only the number of its namespace. So after the controller's notice that namespaces have changed,
//! I/O waits until they have been identified again, or until it is known that only new namespaces have changed. I/O
//! that waits for a disk that is gone then fails. Between the change and its notice, a command may reach the new disk.
//! Only a controller that does not reuse numbers at once can prevent that.

use ringfab_reactor::Time;

use super::Volumes;
use crate::command::{BoxedCommand, Command};
use crate::error::{Cause, IoError, SubmitError};
use crate::namespace::{self, Namespace};
use crate::request::{ControllerId, HostEvent, PathId};
use crate::resources::Resources;

impl Volumes {
    /// A path says which namespaces it leads to. At first these are the volumes. Later it must lead to the same ones,
    /// or those that I/O waits for: a namespace without any may have been removed.
    ///
    /// # Errors
    /// Another one has the number of one that is known, or one that is needed is missing.
    pub(crate) fn identify(
        &mut self,
        now: Time,
        path: PathId,
        subsystem: &str,
        identified: Identified,
        needed: &[u32],
    ) -> Result<(), Cause> {
        let Identified { found, listed } = identified;
        let first = self.subsystem.name(subsystem);
        if first != subsystem && self.records.len() > 1 {
            let text = format!("it leads to the subsystem {subsystem}, and the other paths to {first}");
            return Err(Cause::Unsupported(text));
        }
        let wanted = self.options.url.namespace.filter(|_| !self.options.url.is_discovery());
        if self.subsystem.is_known_by_others(path) {
            check_path(self.namespaces(), &found, &listed)?;
            let merged = merged(self.namespaces(), found);
            self.set_namespaces(now, merged);
            return Ok(());
        }
        if self.subsystem.is_known() {
            let own = self.waiting.namespaces();
            let is_needed = |nsid| {
                self.options.url.namespace == Some(nsid)
                    || [&own[..], needed].iter().any(|list| list.contains(&nsid))
            };
            check_same(self.namespaces(), &found, &listed, is_needed)?;
        } else if let (Some(nsid), true) = (wanted, found.is_empty()) {
            if listed.contains(&nsid) {
                return Err(Cause::NotReady { nsid });
            }
            return Err(Cause::Unsupported(format!("the subsystem has no active namespace {nsid}")));
        }
        self.set_namespaces(now, found);
        Ok(())
    }

    /// The namespaces are these from here on, as the engine that leads has found.
    pub(crate) fn adopt(&mut self, resources: &mut Resources, found: Vec<Namespace>) {
        let known = self.set_namespaces(resources.now(), found);
        let is_there = |old: &Namespace| {
            namespace::find(self.namespaces(), old.nsid)
                .is_some_and(|now| now.identity.agrees_with(&old.identity))
        };
        let gone: Vec<u32> = known.iter().filter(|old| !is_there(old)).map(|old| old.nsid).collect();
        if !gone.is_empty() {
            let is_meant = |command: &Command| gone.binary_search(&command.entry.nsid.get()).is_ok();
            let ended = self.waiting.take_if(&self.subsystem, is_meant);
            end_gone(self.id, resources, ended);
        }
    }

    /// The namespaces are these from here on, and each has its line. Returns those before.
    fn set_namespaces(&mut self, now: Time, found: Vec<Namespace>) -> Vec<Namespace> {
        let groups = found.iter().map(|namespace| namespace.ana_group).collect();
        let known = self.subsystem.set_namespaces(found);
        let subsystem = &self.subsystem;
        self.waiting.lines.regroup(groups, |command| subsystem.group_of(command));
        self.choose_again(now);
        known
    }

    /// The controller of a path tells that namespaces have changed, and I/O waits until it has looked at them; or it
    /// has looked, and I/O goes on unless another path still does.
    pub(crate) fn set_rescanning(&mut self, path: PathId, rescanning: bool) {
        self.subsystem.set_rescanning(path, rescanning);
    }

    /// The namespaces were looked at again: from here on they are what was found.
    pub(crate) fn take_namespaces(&mut self, resources: &mut Resources, found: Vec<Namespace>) {
        self.adopt(resources, found);
        resources.events.push_with(|| HostEvent::NamespacesChanged { controller: self.id });
    }

    /// Whether these are all new to us. Nobody has anything to do with what is new.
    pub(crate) fn are_only_new(&self, changed: &[u32]) -> bool {
        let is_new = |nsid: &u32| namespace::find(self.namespaces(), *nsid).is_none();
        let too_many = changed.first() == Some(&u32::MAX);
        !changed.is_empty() && !too_many && changed.iter().all(is_new)
    }
}

/// One more path leads to the namespaces that are known, and perhaps to others. What is in use keeps its limits;
/// a namespace may have grown, or have changed its group.
fn merged(known: &[Namespace], found: Vec<Namespace>) -> Vec<Namespace> {
    let mut merged = known.to_vec();
    for new in found {
        match merged.binary_search_by_key(&new.nsid, |known| known.nsid) {
            Ok(index) => {
                let known = &mut merged[index];
                (known.blocks, known.ana_group) = (new.blocks.max(known.blocks), new.ana_group);
            }
            Err(index) => merged.insert(index, new),
        }
    }
    merged
}

/// Ends commands whose namespace is gone.
pub(super) fn end_gone(id: ControllerId, resources: &mut Resources, ended: Vec<BoxedCommand>) {
    for command in ended {
        let gone = SubmitError::NoNamespace(command.entry.nsid.get());
        resources.done(id, command, Err(IoError::Refused(gone)));
    }
}

/// The namespaces of a controller.
#[derive(Debug)]
pub(crate) struct Identified {
    /// With a size.
    pub(crate) found: Vec<Namespace>,
    /// All that the controller lists, if it was asked.
    pub(crate) listed: Vec<u32>,
}

/// Compares with what another path leads to, which is in use: a command must mean the same by both.
fn check_path(known: &[Namespace], found: &[Namespace], listed: &[u32]) -> Result<(), Cause> {
    for old in known {
        let Some(new) = namespace::find(found, old.nsid) else { continue };
        let changed = |what: String| Err(Cause::OtherDisk { nsid: old.nsid, what });
        if !new.identity.is_known_by(&old.identity) {
            let identity = new.identity;
            return changed(format!("it has {identity} here, and {} by the other paths", old.identity));
        }
        if new.transfer_blocks_max < old.transfer_blocks_max {
            let (here, others) = (new.transfer_bytes_max(), old.transfer_bytes_max());
            return changed(format!("a command takes {here} bytes here, and {others} by the other paths"));
        }
    }
    check_same(known, found, listed, |_| true)
}

/// Compares with what was known before a loss: whoever comes back must be whom we left, and no smaller.
fn check_same(
    known: &[Namespace],
    found: &[Namespace],
    listed: &[u32],
    is_needed: impl Fn(u32) -> bool,
) -> Result<(), Cause> {
    for old in known {
        let nsid = old.nsid;
        let changed = |what: String| Err(Cause::Changed { nsid, what });
        let Some(new) = namespace::find(found, nsid) else {
            if !is_needed(nsid) {
                continue;
            }
            let is_listed = listed.contains(&nsid);
            return Err(if is_listed { Cause::NotReady { nsid } } else { Cause::Missing { nsid } });
        };
        if !new.identity.agrees_with(&old.identity) {
            return changed("its NGUID, EUI64 or UUID differs".to_owned());
        }
        if new.block_bytes != old.block_bytes {
            return changed(format!("its blocks have {} bytes, not {}", new.block_bytes, old.block_bytes));
        }
        if new.blocks < old.blocks {
            return changed(format!("it has {} blocks, not {}", new.blocks, old.blocks));
        }
    }
    Ok(())
}
