//! The tables of `status` and `top`: what a target answers, as rows.

use ringfab_process::table::Column;
use serde_json::Value;

use super::table::{Cell, Table};
use super::{amount, list, text};

/// Where hosts connect.
pub(super) fn listeners(status: &Value) -> Table {
    let mut table = Table::new(&[
        Column::text("LISTENER"),
        Column::text("TRANSPORT"),
        Column::text("PROVIDER").spare(2),
        Column::text("TLS").spare(1),
        Column::number("CONTROLLERS").spare(3),
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
    let columns = [
        Column::name("SUBSYSTEM"),
        Column::text("SERIAL").spare(4),
        Column::text("MODEL").spare(5),
        Column::text("ALLOWED HOSTS").spare(3),
        Column::number("NAMESPACES").spare(2),
        Column::number("CONTROLLERS").spare(1),
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
    let names = [Column::name("HOST"), Column::name("SUBSYSTEM").spare(2), Column::name("ADDRESS").spare(5)];
    let more = [
        Column::text("VIA").spare(8),
        Column::text("SECURITY").spare(9),
        Column::number("SINCE").spare(10),
        Column::number("QUEUES").spare(11),
    ];
    let ends =
        [Column::number("P50").spare(6), Column::number("P99").spare(6), Column::number("ERRORS").spare(4)];
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
    let mut table = Table::new(&[
        Column::name("SUBSYSTEM"),
        Column::number("NSID"),
        Column::text("STATE"),
        Column::number("SIZE"),
        Column::number("BLOCK"),
        Column::name("DISK"),
        Column::text("HOSTS"),
        Column::text("NGUID"),
        Column::text("UUID"),
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
    let names = [
        Column::name("SUBSYSTEM"),
        Column::number("NSID"),
        Column::text("STATE"),
        Column::number("SIZE").spare(5),
        Column::name("DISK").spare(2),
    ];
    let users = [Column::text("HOSTS").spare(8), Column::number("USERS").spare(9)];
    let ends = [
        Column::number("P50").spare(6),
        Column::number("P99").spare(6),
        Column::number("ERRORS").spare(4),
        Column::number("MEDIA ERRORS").spare(10),
    ];
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
    let columns = [
        Column::name("HOST"),
        Column::name("SUBSYSTEM").spare(2),
        Column::number("QUEUE"),
        Column::number("CORE").spare(4),
        Column::number("ENTRIES").spare(6),
        Column::name("PEER").spare(5),
        Column::number("READS"),
        Column::number("WRITES"),
        Column::number("OTHERS").spare(7),
        Column::number("READ").spare(3),
        Column::number("WRITTEN").spare(3),
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
    let keys = ["queues", "commands", "queue_pairs", "tcp_connections", "regions", "disks"];
    let buffers = ["io_buffers", "admin_buffers", "compare_buffers"];
    let columns = [
        Column::number("CORE"),
        Column::number("QUEUES"),
        Column::number("COMMANDS"),
        Column::number("QUEUE PAIRS").spare(3),
        Column::number("TCP").spare(3),
        Column::number("REGIONS").spare(6),
        Column::number("DISKS").spare(2),
        Column::text("I/O BUFFERS (MOST)").spare(1),
        Column::text("ADMIN").spare(5),
        Column::text("COMPARE").spare(7),
        Column::number("COPIED").spare(4),
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
    Column::number("READS/S"),
    Column::number("WRITES/S").spare(1),
    Column::number("READ/S").spare(3),
    Column::number("WRITTEN/S").spare(3),
    Column::number("READ").spare(7),
    Column::number("WRITTEN").spare(7),
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
