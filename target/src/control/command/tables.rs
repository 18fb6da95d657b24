//! The tables of `status` and `top`: what a target answers, as rows.

use serde_json::Value;

use super::table::{Cell, Column, Table};
use super::{amount, list, text};

/// Where hosts connect.
pub(super) fn listeners(status: &Value) -> Table {
    use Column::{Number, Text};
    let mut table = Table::new(&[
        Text("LISTENER"),
        Text("TRANSPORT"),
        Text("PROVIDER"),
        Text("TLS"),
        Number("CONTROLLERS"),
    ]);
    for one in list(status, "listeners") {
        let [address, transport, provider, tls] =
            ["address", "transport", "provider", "tls"].map(|key| text(one, key));
        let provider = if transport == "tcp" { "-".to_owned() } else { provider };
        table.rows.push(vec![
            Cell::text(address),
            Cell::text(transport),
            Cell::text(provider),
            Cell::text(tls),
            number(&one["controllers"]),
        ]);
    }
    table
}

/// What hosts connect to.
pub(super) fn subsystems(status: &Value) -> Table {
    use Column::{Name, Number, Text};
    let columns = [
        Name("SUBSYSTEM"),
        Text("SERIAL"),
        Text("MODEL"),
        Text("ALLOWED HOSTS"),
        Number("NAMESPACES"),
        Number("CONTROLLERS"),
    ];
    let mut table = Table::new(&columns);
    for one in list(status, "subsystems") {
        let hosts = match one["allow_any_host"] == true {
            true => "any".to_owned(),
            false => list(one, "allowed_hosts").len().to_string(),
        };
        let mut row: Vec<Cell> = ["nqn", "serial", "model"].map(|key| Cell::text(text(one, key))).into();
        row.extend([Cell::text(hosts), number(&one["namespaces"]), number(&one["controllers"])]);
        table.rows.push(row);
    }
    table
}

/// Who is connected: a row for each controller.
pub(super) fn hosts(status: &Value) -> Table {
    use Column::{Extra, Name, Number};
    let names = [Name("HOST"), Name("SUBSYSTEM"), Name("ADDRESS")];
    let more = [Extra("VIA"), Extra("SECURITY"), Extra("SINCE"), Extra("QUEUES")];
    let ends = [Extra("P50"), Extra("P99"), Number("ERRORS")];
    let mut table = Table::new(&[&names[..], &more, &WORK_COLUMNS, &ends].concat());
    for one in list(status, "controllers") {
        let mut row: Vec<Cell> =
            ["host", "subsystem", "address", "transport"].map(|key| Cell::text(text(one, key))).into();
        row.push(Cell::text(security(one)));
        row.push(Cell::number(one["connected_seconds"].as_u64().unwrap_or(0), amount::age));
        row.push(Cell::number(list(one, "queues").len() as u64, amount::count));
        row.extend(work(one));
        row.extend(latency(one));
        row.push(number(&one["errors"]));
        table.rows.push(row);
    }
    table
}

/// What a host has shown of itself, and whether others can read what it sends. One that has yet to authenticate could
/// be anybody.
fn security(controller: &Value) -> String {
    let authentication = &controller["authentication"];
    let authenticated = match (authentication.is_object(), authentication["both_ways"] == true) {
        (false, _) if controller["state"] == "authenticating" => Some("authenticating"),
        (false, _) => None,
        (true, false) => Some("host"),
        (true, true) => Some("both ends"),
    };
    let tls = controller["tls"].is_object().then_some("TLS");
    // One that ought to have the new key by now.
    let ages = [&controller["authentication"]["key"], &controller["tls"]["key"]];
    let has = |age: &str| ages.iter().any(|key| **key == *age);
    let old = if has("replaced") { Some("replaced key") } else { has("old").then_some("old key") };
    let parts: Vec<&str> = tls.into_iter().chain(authenticated).chain(old).collect();
    if parts.is_empty() { "-".to_owned() } else { parts.join(", ") }
}

/// Which hosts of the subsystem see a namespace: how many, or all of them.
fn shown(namespace: &Value) -> Cell {
    Cell::text(
        namespace["hosts"].as_array().map_or_else(|| "all".to_owned(), |hosts| hosts.len().to_string()),
    )
}

/// A namespace's file or device.
fn disk(namespace: &Value) -> Cell {
    let disk = text(namespace, "source");
    Cell::text(if namespace["read_only"] == true { format!("{disk} (read-only)") } else { disk })
}

/// Namespaces with what a configuration says of them.
pub(super) fn listed_namespaces(namespaces: &Value) -> Table {
    use Column::{Name, Number, Text};
    let mut table = Table::new(&[
        Name("SUBSYSTEM"),
        Number("NSID"),
        Text("STATE"),
        Number("SIZE"),
        Number("BLOCK"),
        Name("DISK"),
        Text("HOSTS"),
        Text("NGUID"),
        Text("UUID"),
    ]);
    for one in namespaces.as_array().into_iter().flatten() {
        table.rows.push(vec![
            Cell::text(text(one, "subsystem")),
            number(&one["nsid"]),
            Cell::text(text(one, "state")),
            size(&one["bytes"]),
            number(&one["block_bytes"]),
            disk(one),
            shown(one),
            Cell::text(text(one, "nguid")),
            Cell::text(text(one, "uuid")),
        ]);
    }
    table
}

/// What is served: a row for each namespace.
pub(super) fn namespaces(status: &Value) -> Table {
    use Column::{Extra, Name, Number, Text};
    let names = [Name("SUBSYSTEM"), Number("NSID"), Text("STATE"), Number("SIZE"), Name("DISK")];
    let users = [Text("HOSTS"), Extra("USERS")];
    let ends = [Extra("P50"), Extra("P99"), Number("ERRORS"), Extra("MEDIA ERRORS")];
    let mut table = Table::new(&[&names[..], &users, &WORK_COLUMNS, &ends].concat());
    for one in list(status, "namespaces") {
        let mut row = vec![
            Cell::text(text(one, "subsystem")),
            Cell::number(one["nsid"].as_u64().unwrap_or(0), |nsid| nsid.to_string()),
            Cell::text(text(one, "state")),
            size(&one["bytes"]),
            disk(one),
            shown(one),
            number(&one["controllers"]),
        ];
        row.extend(work(one));
        row.extend(latency(one));
        row.extend([number(&one["errors"]), number(&one["media_errors"])]);
        table.rows.push(row);
    }
    table
}

/// Queues by controller.
pub(super) fn queues(status: &Value) -> Table {
    use Column::{Name, Number};
    let columns = [
        Name("HOST"),
        Name("SUBSYSTEM"),
        Number("QUEUE"),
        Number("CORE"),
        Number("ENTRIES"),
        Name("PEER"),
        Number("READS"),
        Number("WRITES"),
        Number("OTHERS"),
        Number("READ"),
        Number("WRITTEN"),
    ];
    let mut table = Table::new(&columns);
    for controller in list(status, "controllers") {
        for queue in list(controller, "queues") {
            let (commands, bytes) = (&queue["total"]["commands"], &queue["total"]["bytes"]);
            table.rows.push(vec![
                Cell::text(text(controller, "host")),
                Cell::text(text(controller, "subsystem")),
                number(&queue["id"]),
                number(&queue["core"]),
                number(&queue["entries"]),
                Cell::text(text(queue, "peer")),
                number(&commands["read"]),
                number(&commands["write"]),
                number(&commands["other"]),
                size(&bytes["read"]),
                size(&bytes["written"]),
            ]);
        }
    }
    table
}

/// What each core has in use.
pub(super) fn cores(status: &Value) -> Table {
    use Column::{Number, Text};
    let keys = ["queues", "commands", "queue_pairs", "tcp_connections", "regions", "disks"];
    let buffers = ["io_buffers", "admin_buffers", "compare_buffers"];
    let columns = [
        Number("CORE"),
        Number("QUEUES"),
        Number("COMMANDS"),
        Number("QUEUE PAIRS"),
        Number("TCP"),
        Number("REGIONS"),
        Number("DISKS"),
        Text("I/O BUFFERS (MOST)"),
        Text("ADMIN"),
        Text("COMPARE"),
        Number("COPIED"),
    ];
    let mut table = Table::new(&columns);
    for (core, usage) in list(status, "cores").iter().enumerate() {
        let mut row = vec![Cell::number(core as u64, amount::count)];
        row.extend(keys.map(|key| number(&usage[key])));
        row.extend(buffers.map(|key| {
            let [taken, most, total] = ["taken", "taken_max", "total"].map(|part| text(&usage[key], part));
            Cell::text(format!("{taken} of {total} ({most})"))
        }));
        let copied =
            ["received", "sent", "disks"].map(|part| usage["copied_bytes"][part].as_u64().unwrap_or(0));
        row.push(Cell::number(copied.iter().sum(), amount::bytes));
        table.rows.push(row);
    }
    table
}

/// What is done each second, and what has been done in all.
const WORK_COLUMNS: [Column; 6] = [
    Column::Number("READS/S"),
    Column::Number("WRITES/S"),
    Column::Number("READ/S"),
    Column::Number("WRITTEN/S"),
    Column::Extra("READ"),
    Column::Extra("WRITTEN"),
];

fn work(one: &Value) -> [Cell; 6] {
    let (rate, bytes) = (&one["per_second"], &one["total"]["bytes"]);
    [
        number(&rate["commands"]["read"]),
        number(&rate["commands"]["write"]),
        size(&rate["bytes"]["read"]),
        size(&rate["bytes"]["written"]),
        size(&bytes["read"]),
        size(&bytes["written"]),
    ]
}

/// How long sampled commands took.
fn latency(one: &Value) -> [Cell; 2] {
    let latency = &one["latency"];
    let sampled = latency["sampled"].as_u64().is_some_and(|sampled| sampled > 0);
    ["p50_us", "p99_us"].map(|key| match latency[key].as_u64() {
        Some(micros) if sampled => Cell::number(micros.saturating_mul(1000), amount::nanos),
        _ => Cell::text("-"),
    })
}

fn number(value: &Value) -> Cell {
    value.as_u64().map_or_else(|| Cell::text("-"), |number| Cell::number(number, amount::count))
}

fn size(value: &Value) -> Cell {
    value.as_u64().map_or_else(|| Cell::text("-"), |bytes| Cell::number(bytes, amount::bytes))
}
