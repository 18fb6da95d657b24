use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::config::{Access, HostConfig, RateLimits, Source};

const WRITTEN: &str = r#"# Disks of the laboratory. Ask Ann before you change anything.

[target]
state_dir = '/var/lib/ringfab'   # on the SSD
# drain_timeout_s = 60

[[listener]]    # the storage network
address = "192.0.2.1"
transport = "tcp"

# Ann's
[[subsystem]]
nqn = "nqn.2026-11.org.example:ann"
allowed_hosts = [
    "nqn.2026-11.org.example:host-1", # her desk
    # the old one
    "nqn.2026-11.org.example:host-2",
]

# her first disk
[[subsystem.namespace]]
path = "/srv/ann-1.img"
# direct = false
limits = { read_iops = 500 } # asked for in May

[[subsystem.namespace]] # her second disk
path = '/srv/ann-2.img'

# Bob's
[[subsystem]]
nqn = "nqn.2026-11.org.example:bob"
allow_any_host = true

[[subsystem.namespace]]
memory = "1GiB"
# the end
"#;

fn parsed(text: &str) -> Config {
    Config::parse(text, "test").unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Changes the text, and checks what always holds.
fn edit(text: &str, change: impl FnOnce(&mut Config)) -> String {
    let mut wanted = parsed(text);
    change(&mut wanted);
    let edited = edited(text, &wanted).unwrap_or_else(|error| panic!("{error}\n{text}"));
    for comment in comments(text) {
        assert_eq!(comments(&edited).filter(|one| *one == comment).count(), 1, "{comment}\n{edited}");
    }
    assert_eq!(super::edited(&edited, &wanted).as_deref(), Ok(edited.as_str()), "once more");
    edited
}

fn comments(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| Some(&line[line.find('#')?..]))
}

/// What is in one text and not in the other, as `diff` has it.
fn difference(old: &str, new: &str) -> Vec<String> {
    let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let gone = old.iter().filter(|line| !new.contains(line)).map(|line| format!("-{line}"));
    let come = new.iter().filter(|line| !old.contains(line)).map(|line| format!("+{line}"));
    gone.chain(come).collect()
}

fn namespace(text: &str) -> crate::config::NamespaceConfig {
    Config::parse_namespace(text).expect("a namespace")
}

#[test]
fn an_added_namespace_is_a_table_with_what_it_needs() {
    let edited = edit(WRITTEN, |config| {
        let added = "nsid = 3\npath = \"/srv/new.img\"\nuuid = \"6c2a4c0e-31f5-4c5e-8f5e-6f7f1d8f0a01\"\n\
                     nguid = \"6c2a4c0e31f54c5e8f5e6f7f1d8f0a02\"";
        config.subsystems[0].namespaces.push(namespace(added));
    });
    let expected = WRITTEN.replace(
        "\n# Bob's\n",
        "\n[[subsystem.namespace]]\nnsid = 3\npath = \"/srv/new.img\"\n\
         nguid = \"6c2a4c0e31f54c5e8f5e6f7f1d8f0a02\"\nuuid = \"6c2a4c0e-31f5-4c5e-8f5e-6f7f1d8f0a01\"\n\n# Bob's\n",
    );
    assert_eq!(edited, expected);
}

#[test]
fn a_comment_that_follows_a_table_stays_with_it() {
    let edited = edit(WRITTEN, |config| {
        config.subsystems[1].namespaces.push(namespace("nsid = 2\nnull = \"1GiB\""));
    });
    assert_eq!(edited, format!("{WRITTEN}\n[[subsystem.namespace]]\nnsid = 2\nnull = \"1GiB\"\n"));
}

#[test]
fn the_last_host_leaves_an_empty_list_and_the_first_one_fills_it() {
    let bob = "nqn = \"nqn.2026-11.org.example:bob\"\nallowed_hosts = [";
    let one = WRITTEN.replace(
        "bob\"\nallow_any_host = true",
        "bob\"\nallowed_hosts = [\"nqn.2026-11.org.example:h\"]  # his",
    );
    let none = edit(&one, |config| config.subsystems[1].access = Access::Hosts(BTreeSet::new()));
    assert!(none.contains(&format!("{bob}]  # his\n")), "{none}");
    let host = BTreeSet::from(["nqn.2026-11.org.example:h".to_owned()]);
    let again = edit(&none, |config| config.subsystems[1].access = Access::Hosts(host));
    assert_eq!(again, one);
}

#[test]
fn the_next_namespaces_keep_their_numbers_when_one_is_removed() {
    let edited = edit(WRITTEN, |config| drop(config.subsystems[0].namespaces.remove(0)));
    let told = difference(WRITTEN, &edited);
    let expected = [
        "-path = \"/srv/ann-1.img\"",
        "-limits = { read_iops = 500 } # asked for in May",
        "+# asked for in May",
        "+nsid = 2",
    ];
    assert_eq!(told, expected, "{edited}");
    // The last one of a subsystem that has none is said so.
    let edited = edit(WRITTEN, |config| config.subsystems[1].namespaces.clear());
    assert!(edited.contains("allow_any_host = true\nnamespace = []\n"), "{edited}");
    let again = edit(&edited, |config| {
        config.subsystems[1].namespaces.push(namespace("nsid = 1\nmemory = \"2GiB\""));
    });
    let end = "allow_any_host = true\n# the end\n\n[[subsystem.namespace]]\nnsid = 1\nmemory = \"2GiB\"\n";
    assert!(again.contains(end), "{again}");
}

#[test]
fn hosts_are_added_and_removed_in_the_list_as_it_is_written() {
    let edited = edit(WRITTEN, |config| {
        let Access::Hosts(hosts) = &mut config.subsystems[0].access else { panic!("hosts") };
        hosts.remove("nqn.2026-11.org.example:host-1");
        hosts.insert("nqn.2026-11.org.example:host-3".to_owned());
    });
    let told = difference(WRITTEN, &edited);
    assert_eq!(told.len(), 4, "{told:#?}");
    assert!(edited.contains("\n    \"nqn.2026-11.org.example:host-3\",\n]"), "{edited}");
    let short =
        WRITTEN.replace("allow_any_host = true", "allowed_hosts = [\"nqn.2026-11.org.example:x\"] # one");
    let edited = edit(&short, |config| {
        let Access::Hosts(hosts) = &mut config.subsystems[1].access else { panic!("hosts") };
        hosts.insert("nqn.2026-11.org.example:y".to_owned());
    });
    let line = "allowed_hosts = [\"nqn.2026-11.org.example:x\", \"nqn.2026-11.org.example:y\"] # one";
    assert!(edited.contains(line), "{edited}");
}

#[test]
fn keys_that_are_there_are_changed_in_place_and_others_are_added() {
    let edited = edit(WRITTEN, |config| {
        config.target.log = "debug".to_owned();
        config.subsystems[0].namespaces[0].limits.all =
            RateLimits { write_iops: Some(9), ..RateLimits::default() };
        config.subsystems[0].namespaces[1].hosts =
            Access::Hosts(BTreeSet::from(["nqn.2026-11.org.example:host-1".to_owned()]));
        config
            .hosts
            .push(HostConfig { shares: 7, ..HostConfig::new("nqn.2026-11.org.example:h".to_owned()) });
    });
    let expected = [
        "-limits = { read_iops = 500 } # asked for in May",
        "+log = \"debug\"",
        "+limits = { write_iops = 9 } # asked for in May",
        "+hosts = [\"nqn.2026-11.org.example:host-1\"]",
        "+[[host]]",
        "+nqn = \"nqn.2026-11.org.example:h\"",
        "+shares = 7",
    ];
    assert_eq!(difference(WRITTEN, &edited), expected, "{edited}");
}

#[test]
fn subsystems_and_listeners_come_after_the_others_and_go_without_a_trace() {
    let added = "nqn = \"nqn.2026-11.org.example:new\"\nallowed_hosts = [\"nqn.2026-11.org.example:h\"]\n\
                 namespace = []";
    let edited = edit(WRITTEN, |config| {
        config.subsystems.push(Config::parse_subsystem(added).expect("a subsystem"));
        config.listeners.push(Config::parse_listener("address = \"192.0.2.9\"\nport = 4421").expect("one"));
    });
    assert!(edited.ends_with(&format!("# the end\n\n[[subsystem]]\n{added}\n")), "{edited}");
    assert!(
        edited.contains("\"tcp\"\n\n[[listener]]\naddress = \"192.0.2.9\"\nport = 4421\n\n# Ann's"),
        "{edited}"
    );
    let back = edit(&edited, |config| {
        config.subsystems.pop();
        config.listeners.pop();
    });
    assert_eq!(back, WRITTEN);
    let without = edit(WRITTEN, |config| drop(config.subsystems.remove(0)));
    assert!(without.contains("\n# her second disk\n") && !without.contains("ann-"), "{without}");
}

#[test]
fn a_file_is_changed_in_the_style_that_it_has() {
    let tight = "[[listener]]\naddress='127.0.0.1'\n[[subsystem]]\n  nqn='nqn.2026-11.org.example:a'\n  \
                 serial='A' # old\n  allow_any_host=true\n[[subsystem.namespace]]\n  null='1GiB'\n";
    let change = |config: &mut Config| {
        config.subsystems[0].serial = "B".to_owned();
        config.subsystems[0].model = "M".to_owned();
        config.subsystems[0].namespaces.push(namespace("nsid = 2\nnull = \"1MiB\""));
    };
    let expected = tight.replace("'A'", "'B'").replace("host=true\n", "host=true\n  model=\"M\"\n")
        + "[[subsystem.namespace]]\nnsid = 2\nnull = \"1MiB\"\n";
    assert_eq!(edit(tight, change), expected);
    assert_eq!(edit(&tight.replace('\n', "\r\n"), change), expected.replace('\n', "\r\n"));
    assert_eq!(edit(tight.trim_end(), change), expected.trim_end());
}

#[test]
fn values_in_one_line_are_changed_too() {
    let inline = "listener = [{ address = \"127.0.0.1\" }] # one\n\
                  subsystem = [{ nqn = \"nqn.2026-11.org.example:a\", allow_any_host = true, \
                  namespace = [{ null = \"1GiB\" }] }]\n";
    let edited = edit(inline, |config| {
        config.listeners.push(Config::parse_listener("address = \"127.0.0.2\"").expect("a listener"));
        config.subsystems[0].namespaces[0].limits.all.read_iops = Some(5);
    });
    let expected = "listener = [{ address = \"127.0.0.1\" }, { address = \"127.0.0.2\" }] # one\n";
    assert!(edited.starts_with(expected), "{edited}");
    let limits = "namespace = [{ null = \"1GiB\", limits = { read_iops = 5 } }] }]\n";
    assert!(edited.ends_with(limits), "{edited}");
}

#[test]
fn what_cannot_be_changed_stays_and_what_is_different_can_be_written_by_hand() {
    let lines = "[[listener]]\naddress = \"127.0.0.1\"\n[[subsystem]]\nnqn = \"nqn.2026-11.org.example:a\"\n\
                 allow_any_host = true\n[[subsystem.namespace]]\nnull = \"1GiB\"\nlimits = { # why\n  \
                 read_iops = 5\n}\n";
    let filed = parsed(lines);
    let mut wanted = filed.clone();
    wanted.subsystems[0].namespaces[0].limits.all.read_iops = Some(6);
    assert_eq!(edited(lines, &wanted), Err("limits is one value in several lines".to_owned()));
    let parts = parts(&filed, &wanted);
    assert!(
        parts.starts_with("[[subsystem]]\nnqn = ")
            && parts.contains("null = \"1GiB\"\nlimits = { read_iops = 6 }"),
        "{parts}"
    );
    assert!(!parts.contains("[[listener]]") && !parts.contains("[target]"), "{parts}");
    let mixed = lines.replacen('\n', "\r\n", 1);
    assert!(edited(&mixed, &wanted).is_err_and(|why| why.contains("as on Windows")));
}

#[test]
fn a_new_file_has_no_defaults() {
    let text = "[[listener]]\naddress = \"127.0.0.1\"\n\n[[subsystem]]\nnqn = \"nqn.2026-11.org.example:a\"\n\
                allow_any_host = true\n\n[[subsystem.namespace]]\nnsid = 1\nnull = \"1GiB\"\n";
    assert_eq!(written(&parsed(text)).as_deref(), Ok(text));
    let full = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../configs/full.toml")).unwrap();
    let text = written(&parsed(&full)).unwrap();
    assert!(!text.contains("spin_us") && text.contains("[[discovery.referral]]"), "{text}");
}

/// A file as people write them, by tables; and what each one is.
fn any_file() -> impl Strategy<Value = Vec<(String, String)>> {
    let noise = proptest::collection::vec((0..4_u8, any::<bool>()), 40);
    let shape = proptest::collection::vec(proptest::collection::vec(0..5_u8, 0..4), 1..4);
    (noise, shape, 1..4_usize, any::<bool>()).prop_map(|(noise, shape, listeners, has_target)| {
        let mut noise = noise.into_iter().cycle().enumerate();
        let mut file = Vec::new();
        let mut table = |id: String, header: &str, lines: Vec<String>| {
            let mut text = String::new();
            for line in [header.to_owned()].into_iter().chain(lines) {
                let (number, (kind, gap)) = noise.next().unwrap();
                let above = if kind == 1 { format!("# above {number}\n") } else { String::new() };
                let gap = if gap && line.starts_with('[') { "\n" } else { "" };
                let after = if kind == 2 { format!("   # after {number}") } else { String::new() };
                text += &format!("{gap}{above}{line}{after}\n");
            }
            file.push((id, text));
        };
        if has_target {
            table("target".to_owned(), "[target]", vec!["drain_timeout_s = 0x10".to_owned()]);
        }
        for index in 0..listeners {
            let lines = vec![format!("address = '127.0.0.{}'", index + 1), "transport = \"tcp\"".to_owned()];
            table(format!("listener {index}"), "[[listener]]", lines);
        }
        for (index, namespaces) in shape.iter().enumerate() {
            let mut lines = vec![
                format!("nqn = \"nqn.2026-11.org.example:s{index}\""),
                "allowed_hosts = [\n  'nqn.2026-11.org.example:h0',\n  'nqn.2026-11.org.example:h1' ]"
                    .to_owned(),
            ];
            if namespaces.is_empty() {
                lines.push("namespace = []".to_owned());
            }
            table(format!("subsystem {index}"), "[[subsystem]]", lines);
            for (number, kind) in namespaces.iter().enumerate() {
                let nsid = number as u64 + 1;
                let mut lines = vec![format!("path = \"/srv/{index}-{nsid}.img\"")];
                lines.extend(match kind {
                    0 => Some(format!("nsid = {nsid}")),
                    1 => Some("limits = { read_iops = 1_000, burst_ms = 20 }".to_owned()),
                    2 => Some("limits.write_bytes_per_s = \"1MiB\"".to_owned()),
                    3 => Some(
                        "host_limits = [{ host = 'nqn.2026-11.org.example:h0', read_iops = 3 }]".to_owned(),
                    ),
                    _ => None,
                });
                table(format!("namespace {index} {nsid}"), "[[subsystem.namespace]]", lines);
            }
        }
        file
    })
}

fn host_name(number: usize) -> String {
    format!("nqn.2026-11.org.example:h{}", number % 3)
}

/// Which change it is, and two numbers that choose what it concerns.
#[derive(Clone, Copy, Debug)]
struct Random {
    kind: u8,
    one: usize,
    two: usize,
}

/// A change as the control commands make them, and the tables that it touches.
fn change(config: &mut Config, random: Random, touched: &mut BTreeSet<String>) {
    let Random { kind, one, two } = random;
    let host = host_name(two);
    let count = config.subsystems.len();
    let subsystem = &mut config.subsystems[one % count];
    let index = subsystem.nqn.rsplit('s').next().unwrap_or_default().to_owned();
    let namespaces = subsystem.namespaces.len();
    touched.insert(format!("subsystem {index}"));
    match kind {
        0 => {
            let nsid = subsystem.namespaces.iter().map(|one| one.nsid).max().unwrap_or(0) + 1;
            let mut new = namespace(&format!("nsid = {nsid}\nnull = \"1MiB\""));
            // Nobody else's: numbers of namespaces are those of their subsystem.
            let owner = index.bytes().fold(0, |sum, byte| sum << 8 | u128::from(byte));
            new.uuid = Some(uuid::Uuid::from_u128(owner << 64 | (one as u128) << 32 | u128::from(nsid)));
            subsystem.namespaces.push(new);
        }
        1 if namespaces > 0 => {
            for later in &subsystem.namespaces {
                touched.insert(format!("namespace {index} {}", later.nsid));
            }
            subsystem.namespaces.remove(two % namespaces);
        }
        2..=4 if namespaces > 0 => {
            let namespace = &mut subsystem.namespaces[two % namespaces];
            touched.insert(format!("namespace {index} {}", namespace.nsid));
            match kind {
                2 => namespace.limits.all.read_iops = (one % 2 == 0).then_some(one as u64 + 1),
                3 if one % 2 == 0 => drop(namespace.limits.hosts.remove(&host)),
                3 => {
                    let limits = RateLimits { write_iops: Some(4), ..RateLimits::default() };
                    namespace.limits.hosts.insert(host, limits);
                }
                _ => namespace.hosts = Access::Hosts(BTreeSet::from([host])),
            }
        }
        5 => {
            let Access::Hosts(hosts) = &mut subsystem.access else { return };
            if !hosts.insert(host.clone()) && hosts.len() > 1 {
                hosts.remove(&host);
            }
        }
        6 if count > 1 => {
            let gone = config.subsystems.remove(one % count);
            touched.extend(gone.namespaces.iter().map(|one| format!("namespace {index} {}", one.nsid)));
        }
        _ => change_elsewhere(config, random, touched),
    }
}

/// A change to something else than a subsystem that is there.
fn change_elsewhere(config: &mut Config, random: Random, touched: &mut BTreeSet<String>) {
    let Random { kind, one, two } = random;
    match kind {
        7 => {
            let text =
                format!("nqn = \"nqn.2026-11.org.example:new{one}\"\nallow_any_host = true\nnamespace = []");
            let new = Config::parse_subsystem(&text).expect("a subsystem");
            if config.subsystem(&new.nqn).is_none() {
                config.subsystems.push(new);
            }
        }
        8 => {
            let host = host_name(two);
            config.hosts.retain(|one| one.nqn != host);
            config.hosts.push(HostConfig { shares: one as u32 + 1, ..HostConfig::new(host) });
        }
        9 if config.listeners.len() > 1 => {
            let gone = config.listeners.remove(two % config.listeners.len());
            touched.insert(format!(
                "listener {}",
                gone.address.to_string().rsplit('.').next().unwrap().parse::<usize>().unwrap() - 1
            ));
        }
        10 => {
            let text = format!("address = \"192.0.2.{}\"\nport = {}", one % 200 + 1, 5000 + two);
            config.listeners.push(Config::parse_listener(&text).expect("a listener"));
        }
        _ => {
            config.target.log = ["debug", "warn", "info,ringfab_target=debug"][one % 3].to_owned();
            touched.insert("target".to_owned());
        }
    }
}

/// Whether all lines are in the text, in their order.
fn has_lines(text: &str, lines: &str) -> bool {
    let mut there = text.lines();
    lines.lines().filter(|line| !line.is_empty()).all(|line| there.any(|other| other == line))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_change_keeps_the_comments_and_what_it_does_not_touch(
        file in any_file(),
        changes in proptest::collection::vec((0..12_u8, 0..50_usize, 0..50_usize), 1..4),
        end in any::<bool>(),
    ) {
        let mut text: String = file.iter().map(|(_, text)| text.as_str()).collect();
        if end {
            text += "# the end\n";
        }
        let mut touched = BTreeSet::new();
        let edited = edit(&text, |config| {
            for &(kind, one, two) in &changes {
                change(config, Random { kind, one, two }, &mut touched);
            }
            // A disk of another kind does not occur by command without a number.
            config.subsystems.iter().flat_map(|one| &one.namespaces).for_each(|one| {
                assert!(!matches!(one.source, Source::Memory(_)));
            });
        });
        let untouched: String =
            file.iter().filter(|(id, _)| !touched.contains(id)).map(|(_, text)| text.as_str()).collect();
        prop_assert!(has_lines(&edited, &untouched), "{touched:?}\n{text}\n---\n{edited}");
        for default in ["burst_ms = 50", "block_bytes", "read_only", "spin_us", "in_capsule_bytes", "serial"] {
            prop_assert!(!edited.contains(default), "{default} in {edited}");
        }
    }
}

#[test]
fn a_time_is_written_as_one_and_changed_in_its_place() {
    use std::os::unix::fs::PermissionsExt as _;

    use ringfab_auth::{DhchapKey, Hash, system_random};

    let folder = tempfile::tempdir().expect("a folder");
    let places = ["new", "old"].map(|name| {
        let (path, key) =
            (folder.path().join(name), DhchapKey::generate(Hash::Sha256, None, &mut system_random()));
        std::fs::write(&path, key.to_text().expose()).expect("a key");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("for few eyes");
        format!("file:{}", path.display())
    });
    let text =
        format!("{WRITTEN}[[host]]\nnqn = \"nqn.2026-11.org.example:host-1\"\ndhchap_keys = {places:?}\n");
    let until = |time: &'static str| {
        move |config: &mut Config| config.hosts[0].old_keys_until = Some(time.parse().expect("a time"))
    };
    let first = edit(&text, until("2099-12-31T00:00:00Z"));
    assert!(first.ends_with("old_keys_until = 2099-12-31T00:00:00Z\n"), "{first}");
    let second = edit(&first, until("2098-01-01T00:00:00+01:00"));
    assert_eq!(second, first.replace("2099-12-31T00:00:00Z", "2098-01-01T00:00:00+01:00"));
}
