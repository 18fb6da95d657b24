//! Reads the log page of access states, in parts if it is long.

use std::sync::Arc;

use super::SCRATCH_BYTES;
use super::steps::SequenceStep;
use crate::access::{AccessStates, GROUPS_MAX};
use crate::error::Cause;
use crate::wire::answers::ControllerFacts;
use crate::wire::data::AnswerData;

/// The states as they were read last, and the page that is being read.
#[derive(Debug, Default)]
pub(super) struct AccessLog {
    states: Arc<AccessStates>,
    page: Vec<u8>,
    /// Whether it is to be read once the step that runs is over.
    pub(super) again: bool,
}

impl AccessLog {
    /// The states as they were read last.
    pub(super) fn states(&self) -> Arc<AccessStates> {
        self.states.clone()
    }

    /// Remembers a part of the page; nothing came where the controller has refused to tell it.
    pub(super) fn learn(&mut self, from: u32, data: AnswerData<'_>) {
        self.page.truncate(from as usize);
        self.page.extend_from_slice(data.received());
    }

    /// The step after a part; `None` when the page has been read.
    ///
    /// # Errors
    /// What no page can say.
    pub(super) fn after(
        &mut self,
        from: u32,
        facts: &ControllerFacts,
    ) -> Result<Option<SequenceStep>, Cause> {
        let count_max = facts.access_groups_max;
        if count_max > GROUPS_MAX {
            let text =
                format!("the controller has {count_max} access groups; {GROUPS_MAX} at most can be used");
            return Err(Cause::Unsupported(text));
        }
        let needed = AccessStates::page_bytes(&self.page, count_max);
        let is_full = self.page.len() == from as usize + SCRATCH_BYTES;
        if is_full && self.page.len() < needed {
            return Ok(Some(SequenceStep::AccessLog(self.page.len() as u32)));
        }
        let page = std::mem::take(&mut self.page);
        if page.is_empty() {
            self.states = Arc::default();
            return Ok(None);
        }
        let page = &page[..needed.min(page.len())];
        let states = AccessStates::parse(page, count_max, facts.retry_delays.anatt);
        let refused = |why| Cause::Unsupported(format!("its log page of access states is refused: {why}"));
        self.states = Arc::new(states.map_err(refused)?);
        Ok(None)
    }
}
