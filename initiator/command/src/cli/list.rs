//! `ringfab list`.

use anyhow::Result;
use clap::Args;
use ringfab_base::{counted, shell_quoted};
use ringfab_initiator::{ControllerInfo, Namespace, Url};
use ringfab_process::table::Column;
use serde_json::{Value, json};

use ringfab_front_ends::context::Context;
use ringfab_front_ends::options::{ConnectArgs, Tuning};
use ringfab_front_ends::output;
use ringfab_front_ends::quantity::Bytes;
use ringfab_front_ends::volumes;

use super::with_controller;

/// The options of `ringfab list`.
#[derive(Args, Debug)]
pub(crate) struct ListArgs {
    /// Where the controller is, as of other commands
    pub(crate) url: Option<Url>,
    /// The namespace to use, instead of all; ?ns=N in the address says the same
    #[arg(long, alias = "namespace-id", value_name = "NSID", value_parser = clap::value_parser!(u32).range(1..))]
    nsid: Option<u32>,
    #[command(flatten)]
    pub(crate) tuning: Tuning,
}

/// Shows the controller and its namespaces, or what this machine has attached.
pub(crate) fn run(args: &ListArgs, context: &Context) -> Result<()> {
    let Some(url) = args.url.clone() else { return volumes::list(context) };
    let args = &ConnectArgs { nsid: args.nsid, ..ConnectArgs::new(url, args.tuning.clone()) };
    let (info, namespaces) =
        with_controller(args, context, |controller| Ok((controller.info(), controller.namespaces())))?;
    output::either(
        context.json,
        || {
            let namespaces: Vec<_> = namespaces.iter().map(namespace).collect();
            json!({ "controller": controller(&info), "namespaces": namespaces })
        },
        || lines(&info, &namespaces) + &hint(&args.url),
    )
}

/// What to do with an address that names no subsystem: behind it is the discovery controller, which has no namespaces.
fn hint(url: &Url) -> String {
    if !url.is_discovery() {
        return String::new();
    }
    let command = format!("ringfab discover {}", shell_quoted(url.to_string().trim_end_matches('/')));
    format!(
        "\nThe address names no subsystem, so this is the discovery controller. `{command}` lists the subsystems.\n"
    )
}

/// A controller for programs.
pub(crate) fn controller(info: &ControllerInfo) -> Value {
    let (major, minor, tertiary) = info.version;
    json!({
        "cntlid": info.cntlid,
        "subsystem": info.subsystem,
        "serial": info.serial,
        "model": info.model,
        "firmware": info.firmware,
        "version": format!("{major}.{minor}.{tertiary}"),
        "transfer_bytes_max": info.transfer_bytes_max,
        "volatile_write_cache": info.volatile_write_cache,
        "in_capsule_bytes_max": info.in_capsule_bytes_max,
        "queues": info.queues,
        "queue_size": info.queue_size,
        "keep_alive_s": info.keep_alive.map(|time| time.as_secs_f64()),
    })
}

/// A namespace for programs.
pub(crate) fn namespace(namespace: &Namespace) -> Value {
    json!({
        "nsid": namespace.nsid,
        "bytes": namespace.bytes(),
        "blocks": namespace.blocks,
        "block_bytes": namespace.block_bytes,
        "read_only": namespace.read_only,
        "nguid": namespace.identity.nguid.map(hex),
        "eui64": namespace.identity.eui64.map(hex),
        "uuid": namespace.identity.uuid.map(|uuid| uuid.to_string()),
    })
}

fn lines(info: &ControllerInfo, namespaces: &[Namespace]) -> String {
    let (major, minor, _) = info.version;
    let mut text = output::pairs(&[
        ("subsystem", info.subsystem.clone()),
        (
            "controller",
            format!(
                "{}, {} of {}",
                info.cntlid,
                counted(info.queues, "I/O queue"),
                counted(info.queue_size, "entry")
            ),
        ),
        ("model", format!("{} (serial {}, firmware {})", info.model, info.serial, info.firmware)),
        ("version", format!("NVMe {major}.{minor}")),
    ]);
    let row = |namespace: &Namespace| {
        let access = if namespace.read_only { "read only" } else { "read and write" };
        vec![
            namespace.nsid.to_string(),
            Bytes(namespace.bytes()).to_string(),
            namespace.block_bytes.to_string(),
            access.to_owned(),
            identifier(namespace),
        ]
    };
    let rows: Vec<Vec<String>> = namespaces.iter().map(row).collect();
    text.push('\n');
    let columns = [
        Column::text("namespace"),
        Column::text("size"),
        Column::text("block").spare(1),
        Column::text("access"),
        Column::name("identifier"),
    ];
    text.push_str(&output::table(&columns, &rows));
    text
}

/// The identifier that people compare.
fn identifier(namespace: &Namespace) -> String {
    let identity = &namespace.identity;
    let uuid = identity.uuid.map(|uuid| format!("uuid {uuid}"));
    let nguid = || identity.nguid.map(|bytes| format!("nguid {}", hex(bytes)));
    let eui64 = || identity.eui64.map(|bytes| format!("eui64 {}", hex(bytes)));
    uuid.or_else(nguid).or_else(eui64).unwrap_or_else(|| "none".to_owned())
}

/// Bytes as digits.
pub(crate) fn hex<const N: usize>(bytes: [u8; N]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
