//! Which namespaces a controller has.

use ringfab_spec::CompletionEntry;

use super::facts::Facts;
use super::steps::SequenceStep;
use crate::error::Cause;
use crate::namespace::Namespace;
use crate::wire::data::{AnswerData, Short};
use crate::wire::{self, answers};

/// Namespaces at most.
const NAMESPACES_MAX: usize = 4096;
/// The last namespace identifier; a list after it may not be asked for.
const NSID_MAX: u32 = wire::NSID_ALL - 1;

/// One look at the namespaces.
#[derive(Debug, Default)]
pub(super) struct NamespaceScan {
    /// The namespaces to identify, ascending.
    list: Vec<u32>,
    /// Those of them that have a size.
    found: Vec<Namespace>,
    /// Whether namespaces have changed meanwhile.
    pub(super) again: bool,
}

impl NamespaceScan {
    /// Begins with this one, or with the controller's list. Returns the first step.
    pub(super) fn begin(&mut self, only: Option<u32>) -> SequenceStep {
        self.list.clear();
        self.found.clear();
        self.list.extend(only);
        if only.is_some() { SequenceStep::Namespace(0) } else { SequenceStep::List(0) }
    }

    /// The namespace at an index of the list.
    pub(super) fn nsid(&self, index: usize) -> u32 {
        self.list[index]
    }

    /// Namespaces listed.
    pub(super) fn list(&self) -> &[u32] {
        &self.list
    }

    /// Remembers what an answer says.
    pub(super) fn learn(
        &mut self,
        step: SequenceStep,
        entry: &CompletionEntry,
        data: AnswerData<'_>,
        facts: &Facts,
    ) -> Result<(), Cause> {
        let success = entry.status().is_success();
        let short = |short: Short| short.cause(step.command());
        match step {
            SequenceStep::ChangedLog => {
                self.list.clear();
                if success {
                    answers::parse_active(data, &mut self.list).map_err(short)?;
                }
            }
            SequenceStep::List(_) | SequenceStep::Listed(_) => {
                answers::parse_active(data, &mut self.list).map_err(short)?;
            }
            SequenceStep::Namespace(index) if success => {
                self.found.extend(facts.namespace(self.list[index], data)?);
            }
            SequenceStep::Descriptors(_) if success => {
                if let Some(namespace) = self.found.last_mut() {
                    namespace.identity.uuid = answers::parse_uuid(data).map_err(short)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The step after a part of the list; `None` when nothing is listed.
    ///
    /// # Errors
    /// The list is too long.
    pub(super) fn after_list(&mut self, after: u32) -> Result<Option<SequenceStep>, Cause> {
        let list = &mut self.list;
        if list.len() > NAMESPACES_MAX {
            let text = format!("more than {NAMESPACES_MAX} namespaces; name one with ns=");
            return Err(Cause::Unsupported(text));
        }
        // The part that came may have been empty, since the one before it was just full.
        let is_full = list.len().is_multiple_of(wire::ACTIVE_LIST_ENTRIES);
        if let Some(&last) = list.last()
            && is_full
            && last > after
            && last < NSID_MAX
        {
            return Ok(Some(SequenceStep::List(last)));
        }
        // They ascend (Base 2.0, section 5.17.2.2), unless somebody is wrong; searching relies on it.
        list.sort_unstable();
        list.dedup();
        Ok((!list.is_empty()).then_some(SequenceStep::Namespace(0)))
    }

    /// Whether the namespace at an index is active, as its Identify data said.
    pub(super) fn is_active(&self, index: usize) -> bool {
        self.found.last().is_some_and(|last| last.nsid == self.list[index])
    }

    /// The step after a namespace; `None` when all were looked at. `only` is the one of the address.
    pub(super) fn after_namespace(&mut self, index: usize, only: Option<u32>) -> Option<SequenceStep> {
        if index + 1 < self.list.len() {
            return Some(SequenceStep::Namespace(index + 1));
        }
        // Without a size it is not active, or has a disk that is not ready: only the list tells these apart.
        let nsid = only.filter(|_| self.found.is_empty())?;
        self.list.clear();
        Some(SequenceStep::Listed(nsid))
    }

    /// What was found, and what was listed.
    pub(super) fn take(&mut self) -> (Vec<Namespace>, Vec<u32>) {
        (std::mem::take(&mut self.found), std::mem::take(&mut self.list))
    }
}
