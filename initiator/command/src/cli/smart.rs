//! `ringfab smart`.

use anyhow::{Context as _, Result, anyhow};
use ringfab_spec::FromBytes;
use ringfab_spec::log::Smart;
use serde_json::{Value, json};

use ringfab_front_ends::context::Context;
use ringfab_front_ends::options::ConnectArgs;
use ringfab_front_ends::output;

use super::with_controller;

/// Shows the SMART / Health Information log page of the controller.
pub(crate) fn run(args: &ConnectArgs, context: &Context) -> Result<()> {
    let bytes = with_controller(args, context, |controller| controller.smart().context("Get Log Page"))?;
    let smart = Smart::read_from_prefix(&bytes).map_err(|_| anyhow!("the log page is too short"))?.0;
    output::either(context.json, || document(&smart), || output::pairs(&rows(&smart)))
}

fn document(smart: &Smart) -> Value {
    // JSON numbers end at 64 bits; no counter gets there.
    let count = |value: u128| u64::try_from(value).unwrap_or(u64::MAX);
    json!({
        "critical_warning": smart.critical_warning.bits(),
        "composite_temperature_k": smart.composite_temperature.get(),
        "available_spare_percent": smart.available_spare,
        "available_spare_threshold_percent": smart.available_spare_threshold,
        "percentage_used": smart.percentage_used,
        "data_units_read": count(smart.data_units_read.get()),
        "data_units_written": count(smart.data_units_written.get()),
        "host_reads": count(smart.host_reads.get()),
        "host_writes": count(smart.host_writes.get()),
        "controller_busy_time_min": count(smart.controller_busy_time.get()),
        "power_cycles": count(smart.power_cycles.get()),
        "power_on_hours": count(smart.power_on_hours.get()),
        "unsafe_shutdowns": count(smart.unsafe_shutdowns.get()),
        "media_errors": count(smart.media_errors.get()),
        "error_log_entries": count(smart.error_log_entries.get()),
    })
}

fn rows(smart: &Smart) -> Vec<(&'static str, String)> {
    // A data unit is a thousand blocks of 512 bytes.
    let units = |value: u128| format!("{value} units of 512,000 bytes");
    vec![
        ("critical warning", format!("{:#x}", smart.critical_warning.bits())),
        ("temperature", format!("{} K", smart.composite_temperature.get())),
        ("available spare", format!("{} %", smart.available_spare)),
        ("spare threshold", format!("{} %", smart.available_spare_threshold)),
        ("used", format!("{} %", smart.percentage_used)),
        ("read", units(smart.data_units_read.get())),
        ("written", units(smart.data_units_written.get())),
        ("read commands", smart.host_reads.get().to_string()),
        ("write commands", smart.host_writes.get().to_string()),
        ("busy", format!("{} min", smart.controller_busy_time.get())),
        ("power cycles", smart.power_cycles.get().to_string()),
        ("power on", format!("{} h", smart.power_on_hours.get())),
        ("unsafe shutdowns", smart.unsafe_shutdowns.get().to_string()),
        ("media errors", smart.media_errors.get().to_string()),
        ("error log entries", smart.error_log_entries.get().to_string()),
    ]
}
