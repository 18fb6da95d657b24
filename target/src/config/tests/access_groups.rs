//! The keys of access groups, of ranges of controller identifiers, and of what discovery names.

use ringfab_spec::log::AnaState;

use super::*;

/// The minimal configuration with these lines in its subsystem, which begin at line 1 of them.
fn with_subsystem(lines: &str) -> String {
    let (before, after) = MINIMAL.split_once("[[subsystem.namespace]]").expect("a namespace");
    format!("{before}{lines}\n[[subsystem.namespace]]{after}")
}

fn parsed(lines: &str) -> SubsystemConfig {
    Config::parse(&with_subsystem(lines), "test.toml").unwrap().subsystems[0].clone()
}

fn refused(lines: &str) -> (String, String) {
    let error = mistake(&with_subsystem(lines));
    (error.key, error.message)
}

#[test]
fn without_a_word_there_is_one_access_group_and_any_identifier_and_listener() {
    let subsystem = parsed("");
    assert_eq!((subsystem.controller_ids, subsystem.namespaces[0].ana_group), (None, 1));
    assert!(subsystem.ana_groups.is_empty() && subsystem.discovery_listeners.is_empty());
    // What is so by default means the same.
    assert_eq!(
        parsed("[[subsystem.ana]]\ngroup = 1\nstate = \"optimized\"").ana_groups,
        subsystem.ana_groups
    );
}

#[test]
fn a_group_has_a_state_others_by_some_ways_and_a_word_for_lost_disks() {
    let subsystem = parsed(
        "[[subsystem.ana]]\ngroup = 128\nstate = \"non-optimized\"\non_lost_disk = \"persistent-loss\"\n\
         way = [{ listener = \"[2001:db8::1]:4420\", state = \"change\" }]",
    );
    let group = &subsystem.ana_groups[&128];
    assert_eq!((group.state, group.on_lost_disk), (AnaState::NON_OPTIMIZED, OnLostDisk::PersistentLoss));
    assert_eq!(group.ways, [("[2001:db8::1]:4420".parse().unwrap(), AnaState::CHANGE)].into());
    for (word, state) in ANA_STATES.iter().skip(1) {
        let subsystem = parsed(&format!("[[subsystem.ana]]\ngroup = 2\nstate = \"{word}\""));
        assert_eq!(subsystem.ana_groups[&2].state, *state);
    }
}

#[test]
fn what_is_no_group_state_or_way_is_a_mistake_at_its_key() {
    for (lines, key) in [
        ("[[subsystem.ana]]\ngroup = 0", "subsystem[0].ana[0].group"),
        ("[[subsystem.ana]]\ngroup = 129", "subsystem[0].ana[0].group"),
        ("[[subsystem.ana]]\nstate = \"optimized\"", "subsystem[0].ana[0]"),
        ("[[subsystem.ana]]\ngroup = 2\nstate = \"fast\"", "subsystem[0].ana[0].state"),
        ("[[subsystem.ana]]\ngroup = 2\non_lost_disk = \"wait\"", "subsystem[0].ana[0].on_lost_disk"),
        ("[[subsystem.ana]]\ngroup = 2\n[[subsystem.ana]]\ngroup = 2", "subsystem[0].ana[1].group"),
        (
            "[[subsystem.ana]]\ngroup = 2\nway = [{ listener = \"192.0.2.1\", state = \"change\" }]",
            "subsystem[0].ana[0].way[0].listener",
        ),
    ] {
        assert_eq!(refused(lines).0.trim_end_matches(".group"), key.trim_end_matches(".group"), "{lines}");
    }
    for group in [0, 129] {
        let error = mistake(&with_namespace(&format!("null = \"1MiB\"\nana_group = {group}")));
        assert!(error.key.ends_with("ana_group"), "{error}");
    }
}

#[test]
fn a_range_of_controller_identifiers_is_within_those_that_there_are() {
    for (text, range) in [("1-1", (1, 1)), ("1-65519", (1, 65519)), (" 7 - 9 ", (7, 9))] {
        assert_eq!(parsed(&format!("controller_ids = \"{text}\"")).controller_ids, Some(range));
    }
    for text in ["0-9", "9-8", "1-65520", "7", "a-b", "", "1-2-3"] {
        let (key, message) = refused(&format!("controller_ids = \"{text}\""));
        assert_eq!(key, "subsystem[0].controller_ids");
        assert!(message.starts_with("must be \"FIRST-LAST\", of 1 to 65519"), "{message}");
    }
}

#[test]
fn discovery_names_the_listeners_that_are_listed() {
    let subsystem = parsed("discovery_listeners = [\"192.0.2.2:4420\", \"192.0.2.1:4420\"]");
    let expected = ["192.0.2.1:4420", "192.0.2.2:4420"].map(|one| one.parse().unwrap());
    assert_eq!(subsystem.discovery_listeners, expected);
    for list in ["[]", "[\"192.0.2.1\"]", "[\"192.0.2.1:4420\", \"192.0.2.1:4420\"]"] {
        assert!(
            refused(&format!("discovery_listeners = {list}")).0.contains("discovery_listeners"),
            "{list}"
        );
    }
}
