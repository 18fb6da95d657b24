//! What is attached: `ringfab list` without an address.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use nix::unistd::geteuid;
use ringfab_base::{shell_quoted, shell_word};
use ringfab_process::table::Column;
use serde_json::{Value, json};

use super::file::{Volume, Volumes};
use super::leftovers;
use crate::context::Context;
use crate::mounts::device;
use crate::output;
use crate::quantity::Bytes;
use crate::registry::{self, Disk, Facts, Found, Kind, Standing, Status};

/// The directory is what the next command takes. An address that is shortened is whole in the paragraphs of a terminal
/// that is narrower still, and as JSON.
const COLUMNS: [Column; 9] = [
    Column::text("KIND").spare(2),
    Column::name("NAME"),
    Column::text("NSID").spare(1),
    Column::text("SIZE").spare(3),
    Column::text("DEVICE").spare(4),
    Column::text("WHERE"),
    Column::text("PID").spare(5),
    Column::name("ADDRESS"),
    Column::text("STATE"),
];

/// One thing that is attached.
struct Row {
    facts: Facts,
    /// How the file system is, of what lives and has one.
    standing: Option<Standing>,
    state: String,
    is_given_up: bool,
    since_s: Option<u64>,
    reconnects: Option<u64>,
    failed_commands: Option<u64>,
    paths: Option<Paths>,
    namespaces: Vec<Disk>,
}

/// How many paths it has, and how many of them take I/O.
#[derive(Clone, Copy)]
struct Paths {
    all: usize,
    ready: usize,
}

impl Paths {
    fn of(status: &Status) -> Self {
        let ready = status.paths.iter().filter(|path| path.is_ready()).count();
        Self { all: status.paths.len(), ready }
    }

    /// In words. How a single path is, the state says.
    fn shown(self) -> Option<String> {
        match self {
            Self { all: 0 | 1, .. } => None,
            Self { all, ready } if all == ready => Some(format!("{all} paths")),
            Self { all, ready } => Some(format!("{ready} of {all} paths")),
        }
    }
}

pub(super) fn run(context: &Context) -> Result<()> {
    registry::ensure_noted()?;
    if let Err(error) = leftovers::sweep() {
        tracing::warn!("{error:#}");
    }
    let rows: Vec<Row> = registry::entries()?.into_iter().map(Row::new).collect();
    output::either(
        context.json,
        || json!({ "attached": rows.iter().map(Row::json).collect::<Vec<_>>() }),
        || lines(&rows),
    )
}

/// Volumes, with the state of those that are mounted.
pub(super) fn volumes(volumes: &Volumes, context: &Context) -> Result<()> {
    let attached: Vec<Row> = registry::entries()?.into_iter().map(Row::new).collect();
    let state = |volume: &Volume| {
        let is_it = |row: &&Row| row.facts.volume.as_deref() == Some(volume.name());
        attached.iter().find(is_it).map(Row::state)
    };
    let all: Vec<_> = volumes.all().iter().map(|volume| (volume, state(volume))).collect();
    let document = |(volume, state): &(&Volume, Option<String>)| {
        json!({
            "name": volume.name(), "address": volume.url(), "where": volume.directory(),
            "mounted": state.is_some(), "state": state,
        })
    };
    let row = |(volume, state): &(&Volume, Option<String>)| {
        let place = volume.directory().to_string_lossy().into_owned();
        let state = state.clone().unwrap_or_else(|| "not mounted".to_owned());
        vec![volume.name().to_owned(), place, volume.url().to_owned(), state]
    };
    let columns = [
        Column::text("NAME"),
        Column::text("WHERE"),
        Column::name("ADDRESS").spare(1),
        Column::text("STATE"),
    ];
    output::either(
        context.json,
        || json!({ "volumes": all.iter().map(document).collect::<Vec<_>>() }),
        || output::table(&columns, &all.iter().map(row).collect::<Vec<_>>()),
    )
}

impl Row {
    fn new(found: Found) -> Self {
        let status = found.is_living().then(|| found.status()).flatten();
        let has_file_system = found.facts.device.is_some();
        let standing = (found.is_living() && has_file_system).then(|| found.standing());
        let state = match (&status, found.is_living()) {
            (Some(status), _) => status.state.clone(),
            (None, true) if found.facts.kind == Kind::Mount && found.facts.device.is_none() => {
                "mounting".to_owned()
            }
            (None, true) => "not known".to_owned(),
            (None, false) => "dead".to_owned(),
        };
        let mut namespaces = found.facts.namespaces.clone();
        if let Some(Status { namespaces: now, .. }) = &status {
            if found.facts.kind == Kind::Mount {
                // It has one of them, which may have grown.
                namespaces.retain(|disk| !now.iter().any(|now| now.nsid == disk.nsid));
                namespaces.extend(now.iter().filter(|now| found.facts.has(now.nsid)).cloned());
            } else {
                namespaces.clone_from(now);
            }
        }
        let is_given_up = status.as_ref().is_some_and(Status::is_given_up);
        let since_s = status.as_ref().and_then(|status| status.since_s);
        let failed_commands = status.as_ref().and_then(|status| status.failed_commands);
        let paths = status.as_ref().map(Paths::of);
        let reconnects = status.map(|status| status.reconnects);
        Self {
            state,
            standing,
            is_given_up,
            since_s,
            reconnects,
            failed_commands,
            paths,
            namespaces,
            facts: found.facts,
        }
    }

    fn json(&self) -> Value {
        let mut value = self.facts.document();
        value["state"] = json!(self.state);
        value["since_s"] = json!(self.since_s);
        value["reconnects"] = json!(self.reconnects);
        value["failed_commands"] = json!(self.failed_commands);
        value["paths"] = json!(self.paths.map(|paths| paths.all));
        value["paths_ready"] = json!(self.paths.map(|paths| paths.ready));
        value["namespaces"] = json!(self.namespaces);
        value["mounted_at"] = json!(self.places());
        value
    }

    /// Where the file system is mounted.
    fn places(&self) -> Vec<PathBuf> {
        match &self.standing {
            Some(Standing::Mounted(places)) => places.clone(),
            Some(_) => Vec::new(),
            None => self.facts.device.as_deref().map(device::mounts).unwrap_or_default(),
        }
    }

    /// Where it is: where it was mounted, unless it is to be found at other places only.
    fn place(&self) -> Option<PathBuf> {
        let directory = self.facts.directory.clone();
        let mounts = self.places();
        if self.state == "dead" || directory.as_ref().is_some_and(|directory| mounts.contains(directory)) {
            return directory;
        }
        mounts.into_iter().next().or(directory)
    }

    fn state(&self) -> String {
        let mut state = self.state.clone();
        if let Some(since) = self.since_s {
            state = format!("{state} for {}", ago(since));
        }
        if let Some(paths) = self.paths.and_then(Paths::shown) {
            state = format!("{state}, {paths}");
        }
        if let Some(count) = self.reconnects.filter(|count| *count > 0) {
            state = format!("{state}, {count} reconnect{}", if count == 1 { "" } else { "s" });
        }
        if let Some(count) = self.failed_commands.filter(|count| *count > 0) {
            state = format!("{state}, {count} command{} failed", if count == 1 { "" } else { "s" });
        }
        if self.state == "dead" {
            let hint =
                self.facts.directory.as_deref().unwrap_or(Path::new("")).to_string_lossy().into_owned();
            return format!("dead: `ringfab umount {}`", shell_quoted(&hint));
        }
        if self.is_given_up {
            return format!("{state}: {}", self.facts.remedy());
        }
        if self.facts.read_only {
            state.push_str(", read only");
        }
        match &self.standing {
            Some(Standing::InUse(_)) => state.push_str(", unmounted but in use"),
            Some(Standing::Ends(_) | Standing::Over) => state.push_str(", being unmounted"),
            _ => {}
        }
        state
    }

    fn cells(&self) -> Vec<String> {
        let ids: Vec<String> = self.namespaces.iter().map(|disk| disk.nsid.to_string()).collect();
        let sizes: Vec<String> = self.namespaces.iter().map(|disk| Bytes(disk.bytes).to_string()).collect();
        let place = self.place().map(|path| path.to_string_lossy().into_owned());
        let device = self.facts.device.as_ref().map(|path| path.to_string_lossy().into_owned());
        let name = self.facts.volume.clone();
        let or_dash =
            |text: Option<String>| text.filter(|text| !text.is_empty()).unwrap_or_else(|| "-".to_owned());
        vec![
            self.facts.kind.name().to_owned(),
            or_dash(name),
            or_dash(Some(ids.join(","))),
            or_dash(Some(sizes.join(","))),
            or_dash(device),
            // As the next command takes them.
            or_dash(place.or_else(|| self.facts.uri.clone()).map(shell_word)),
            self.facts.pid.to_string(),
            shell_word(&self.facts.address),
            self.state(),
        ]
    }
}

/// A time that has passed, in words.
fn ago(since_s: u64) -> String {
    let passed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = passed.saturating_sub(Duration::from_secs(since_s)).as_secs();
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3600),
    }
}

fn lines(rows: &[Row]) -> String {
    if rows.is_empty() {
        // What others have attached is theirs to see.
        let by_whom = match geteuid().is_root() {
            true => "",
            false => " by this user (`sudo ringfab list` shows what root has attached)",
        };
        return format!("nothing is attached{by_whom}; `ringfab list ADDRESS` asks a target");
    }
    output::table(&COLUMNS, &rows.iter().map(Row::cells).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_told_in_a_unit_that_fits() {
        let now = registry::seconds(SystemTime::now());
        assert!(["5 s", "6 s"].contains(&ago(now - 5).as_str()));
        assert_eq!((ago(now - 600).as_str(), ago(now - 7200).as_str()), ("10 min", "2 h"));
    }

    #[test]
    fn several_paths_are_counted_and_one_is_not_worth_a_word() {
        let shown = |all, ready| Paths { all, ready }.shown();
        assert_eq!([shown(0, 0), shown(1, 1), shown(1, 0)], [None, None, None]);
        assert_eq!(shown(2, 2).as_deref(), Some("2 paths"));
        assert_eq!(shown(3, 1).as_deref(), Some("1 of 3 paths"));
    }

    #[test]
    fn what_is_attached_fits_every_terminal_with_its_whole_state() {
        let row = |name: &str, state: &str| -> Vec<String> {
            let address = format!("nvme+tcp://192.0.2.7:4420/nqn.2026-11.com.example:disks-{name}?ns=1");
            let directory = format!("/mnt/{name}");
            let cells = ["mount", name, "1", "10 GiB", "/dev/loop7", &directory, "123456", &address, state];
            cells.map(str::to_owned).into()
        };
        let state = "connected for 12 min, 2 reconnects";
        let rows = [row("first", state), row("other", "dead: `ringfab umount /mnt/other`")];
        for width in [40, 60, 80, 100, 160, 400] {
            let text = ringfab_process::table::text(&COLUMNS, &rows, width);
            assert!(rows.iter().all(|row| text.contains(&row[8])), "{width}:\n{text}");
            for column in COLUMNS {
                assert!(text.contains(column.title()), "{} at {width}:\n{text}", column.title());
            }
            // Only what has no room in any line is longer.
            let too_long: Vec<_> = text.lines().filter(|line| line.chars().count() > width).collect();
            assert!(too_long.iter().all(|line| line.starts_with("nvme+tcp://")), "{width}:\n{text}");
            assert!(too_long.is_empty() || width < rows[0][7].len(), "{width}:\n{text}");
            // No two addresses, names or directories look alike.
            assert!(text.contains("first") && text.contains("other"), "{width}:\n{text}");
        }
    }
}
