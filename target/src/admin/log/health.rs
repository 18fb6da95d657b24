//! SMART / Health Information. What this software cannot know (temperature, wear) is reported as the specification's
//! "not reported" or as healthy; what it counts is real.

use ringfab_spec::log::{CriticalWarning, Smart};

use super::{AdminContext, Page};
use crate::controller::Controller;

pub(super) fn page(controller: &Controller, context: &AdminContext<'_>) -> Page {
    let mut page = Smart::zeroed();
    let subsystem = controller.subsystem();
    let counters = subsystem.counters();
    let namespaces = || context.served.namespaces_for(subsystem, &controller.host().nqn);
    let read_only = namespaces().next().is_some() && namespaces().all(|one| one.read_only());
    let lost = namespaces().any(|one| one.is_lost());
    let full = namespaces().any(|one| one.with_failures(|log| log.found_no_space(context.now)));
    page.critical_warning = CriticalWarning::default()
        .with_read_only(read_only)
        .with_reliability_degraded(lost)
        .with_spare_low(full);
    // Nobody knows how much a pool has left before it has none.
    page.available_spare = if full { 0 } else { 100 };
    page.available_spare_threshold = 10;
    page.data_units_read.set(Smart::data_units(counters.bytes_read.into()));
    page.data_units_written.set(Smart::data_units(counters.bytes_written.into()));
    page.host_reads.set(counters.commands_read.into());
    page.host_writes.set(counters.commands_write.into());
    // Of the disks, whichever host met them: a controller that came later is told of them, too.
    let now: u64 = namespaces().map(|namespace| namespace.media_errors()).sum();
    let media_errors = subsystem.media_errors_before() + now;
    let state = controller.state();
    page.power_on_hours.set((context.now.since(controller.created()).as_secs() / 3600).into());
    page.media_errors.set(media_errors.into());
    page.error_log_entries.set(state.errors.count().into());
    drop(state);
    Page::of(&page)
}
