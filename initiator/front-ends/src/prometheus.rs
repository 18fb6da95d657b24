//! `ringfab metrics`: everything that this machine has attached, as Prometheus reads it.
//!
//! It is printed once. A collector of text files, such as that of node_exporter, reads it from a file:
//! docs/monitoring.md.

use std::fmt::Write as _;

use anyhow::Result;
use ringfab_base::visible;

use crate::context::{Context, Usage};
use crate::meant::place;
use crate::output;
use crate::registry::{self, Facts, Found, PathReport, Status};

/// The states of a path, each of which has a sample.
const STATES: [&str; 5] = ["attaching", "ready", "recovering", "lost", "leaving"];
/// The access states of a group, each of which has a sample.
const ACCESS: [&str; 5] = ["optimized", "non-optimized", "inaccessible", "persistent loss", "change"];

/// Something that is attached, and how it is if its process says so.
struct Attached {
    facts: Facts,
    status: Option<Status>,
}

/// Prints the metrics.
///
/// # Errors
/// When it cannot be known what is attached.
pub fn run(context: &Context) -> Result<()> {
    if context.json {
        return Err(Usage(
            "metrics have a format of their own; `ringfab list --json` has the same".to_owned(),
        )
        .into());
    }
    registry::ensure_noted()?;
    let found = registry::entries()?.into_iter().filter(Found::is_living);
    let all: Vec<_> = found.map(|found| Attached { status: found.status(), facts: found.facts }).collect();
    output::write_all(text(&all).as_bytes())
}

/// A sample: its labels behind those of what it is about, and its value.
type Sample = (Vec<(&'static str, String)>, f64);

/// A family of metrics.
struct Family {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    samples: fn(&Attached) -> Vec<Sample>,
}

const FAMILIES: [Family; 14] = [
    Family {
        name: "ringfab_attached_info",
        kind: "gauge",
        help: "What is attached, and by which process.",
        samples: |one| {
            let facts = &one.facts;
            let labels = vec![
                ("kind", facts.kind.name().to_owned()),
                ("nqn", facts.nqn.clone()),
                ("address", facts.address.clone()),
                ("volume", facts.volume.clone().unwrap_or_default()),
            ];
            vec![(labels, 1.0)]
        },
    },
    Family {
        name: "ringfab_attached_start_time_seconds",
        kind: "gauge",
        help: "Since when it is attached, in seconds since 1970.",
        samples: |one| plain(one.facts.started_s),
    },
    Family {
        name: "ringfab_attached_connected",
        kind: "gauge",
        help: "Whether a controller is connected.",
        samples: |one| plain(one.status.as_ref().is_some_and(Status::is_connected).into()),
    },
    Family {
        name: "ringfab_attached_reconnects_total",
        kind: "counter",
        help: "How often it was connected again.",
        samples: |one| one.status.as_ref().map(|status| plain(status.reconnects)).unwrap_or_default(),
    },
    Family {
        name: "ringfab_attached_failed_commands_total",
        kind: "counter",
        help: "I/O commands of a mount that have failed.",
        samples: |one| {
            one.status.as_ref().and_then(|status| status.failed_commands).map(plain).unwrap_or_default()
        },
    },
    Family {
        name: "ringfab_attached_size_bytes",
        kind: "gauge",
        help: "Bytes of a namespace.",
        samples: |one| {
            let disks = one.status.as_ref().map_or(&one.facts.namespaces, |status| &status.namespaces);
            disks.iter().map(|disk| (vec![("nsid", disk.nsid.to_string())], disk.bytes as f64)).collect()
        },
    },
    Family {
        name: "ringfab_path_info",
        kind: "gauge",
        help: "A path, and where it leads.",
        samples: |one| {
            each_path(one, |path| {
                let labels = vec![
                    ("address", path.address.clone()),
                    ("connected_to", path.connected_to.clone().unwrap_or_default()),
                    ("cntlid", path.cntlid.map(|id| id.to_string()).unwrap_or_default()),
                ];
                vec![(labels, 1.0)]
            })
        },
    },
    Family {
        name: "ringfab_path_state",
        kind: "gauge",
        help: "The state of a path: 1 for the one that it has.",
        samples: |one| each_path(one, |path| states("state", &STATES, &path.state)),
    },
    Family {
        name: "ringfab_path_access_state",
        kind: "gauge",
        help: "The access state (ANA) of a group of namespaces by a path: 1 for the one that it has.",
        samples: |one| {
            each_path(one, |path| {
                let of_group = |group: &registry::GroupReport| {
                    let number = group.group.to_string();
                    let states = states("state", &ACCESS, &group.state).into_iter();
                    states
                        .map(move |(labels, value)| {
                            ([vec![("group", number.clone())], labels].concat(), value)
                        })
                        .collect::<Vec<_>>()
                };
                path.groups.iter().flat_map(of_group).collect()
            })
        },
    },
    Family {
        name: "ringfab_path_commands_total",
        kind: "counter",
        help: "I/O commands that a path has answered.",
        samples: |one| each_path(one, |path| plain(path.commands)),
    },
    Family {
        name: "ringfab_path_data_bytes_total",
        kind: "counter",
        help: "Bytes of data of the I/O commands that a path was sent.",
        samples: |one| each_path(one, |path| plain(path.bytes)),
    },
    Family {
        name: "ringfab_path_outstanding_commands",
        kind: "gauge",
        help: "I/O commands that a path was sent and has not answered.",
        samples: |one| each_path(one, |path| plain(path.outstanding)),
    },
    Family {
        name: "ringfab_path_losses_total",
        kind: "counter",
        help: "How often a path was lost.",
        samples: |one| each_path(one, |path| plain(path.losses)),
    },
    Family {
        name: "ringfab_path_last_failover_seconds",
        kind: "gauge",
        help: "How long I/O stood still when a path was lost last: until the first answer by another one.",
        samples: |one| {
            each_path(one, |path| {
                let last = path.last_failover_us.map(|us| (Vec::new(), us as f64 / 1e6));
                last.into_iter().collect()
            })
        },
    },
];

fn plain(value: u64) -> Vec<Sample> {
    vec![(Vec::new(), value as f64)]
}

/// A sample for each state that there is, the one that counts with 1.
fn states(label: &'static str, all: &[&str], state: &str) -> Vec<Sample> {
    all.iter().map(|one| (vec![(label, (*one).to_owned())], f64::from(u8::from(*one == state)))).collect()
}

fn each_path(one: &Attached, samples: impl Fn(&PathReport) -> Vec<Sample>) -> Vec<Sample> {
    let paths = one.status.iter().flat_map(|status| &status.paths);
    let labelled = paths.flat_map(|path| {
        let number = path.path.clone();
        let all = samples(path).into_iter();
        all.map(move |(labels, value)| ([vec![("path", number.clone())], labels].concat(), value))
    });
    labelled.collect()
}

/// All families in the text format, each with the samples of all that is attached.
fn text(all: &[Attached]) -> String {
    let mut text = String::new();
    for family in &FAMILIES {
        let mut lines = String::new();
        for one in all {
            let of = [("where", place(&one.facts)), ("pid", one.facts.pid.to_string())];
            for (labels, value) in (family.samples)(one) {
                let labels: Vec<String> =
                    of.iter().cloned().chain(labels).map(|(name, value)| label(name, &value)).collect();
                // Writing to a string cannot fail.
                let _written = writeln!(lines, "{}{{{}}} {value}", family.name, labels.join(","));
            }
        }
        if !lines.is_empty() {
            let (name, kind) = (family.name, family.kind);
            let _written = write!(text, "# HELP {name} {}\n# TYPE {name} {kind}\n{lines}", family.help);
        }
    }
    text
}

/// A label as the format has it, and with nothing that turns or hides a line of a terminal.
fn label(name: &str, value: &str) -> String {
    let value = visible(value).to_string().replace('\\', "\\\\").replace('"', "\\\"");
    format!("{name}=\"{value}\"")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::{GroupReport, Kind};

    #[test]
    fn every_family_has_its_help_and_samples_and_a_label_cannot_end_its_line() {
        let url = "nvme+tcp://192.0.2.5:4420/nqn.2026-01.org.example:a".parse().expect("an address");
        let mut facts = Facts::new(Kind::Mount, &url, "nqn.2026-01.org.example:a", &[]);
        facts.directory = Some("/mnt/\"a\"\n".into());
        let path = PathReport {
            path: "2.1".to_owned(),
            address: url.to_string(),
            connected_to: Some("192.0.2.5:4420".to_owned()),
            cntlid: Some(3),
            state: "ready".to_owned(),
            groups: vec![GroupReport { group: 4, state: "optimized".to_owned() }],
            commands: 10,
            bytes: 40960,
            outstanding: 1,
            losses: 2,
            last_loss_s: None,
            last_loss: None,
            last_failover_us: Some(2500),
        };
        let status = Status {
            state: "connected".to_owned(),
            since_s: None,
            reconnects: 1,
            failed_commands: Some(0),
            namespaces: vec![registry::Disk { nsid: 1, bytes: 4096, block_bytes: 512 }],
            paths: vec![path],
        };
        let text = text(&[Attached { facts, status: Some(status) }]);
        for family in &FAMILIES {
            assert!(text.contains(&format!("# TYPE {} {}\n", family.name, family.kind)), "{}", family.name);
            let is_counter = family.kind == "counter";
            assert_eq!(family.name.ends_with("_total"), is_counter, "{}", family.name);
        }
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            assert!(line.starts_with("ringfab_") && line.contains("where=\"/mnt/\\\"a\\\"\\\\n\""), "{line}");
        }
        assert!(text.contains("path=\"2.1\",state=\"ready\"} 1\n"), "{text}");
        assert!(text.contains("path=\"2.1\",group=\"4\",state=\"inaccessible\"} 0\n"), "{text}");
        assert!(text.contains("} 0.0025\n") && text.contains("path=\"2.1\"} 40960\n"), "{text}");
    }
}
