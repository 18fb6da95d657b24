//! A directory whose name a terminal would obey: `mount`, `list` and `umount` show it, and forge nothing.

use std::fs;

use ringfab_base::shell_quoted;

use super::machine::Machine;
use super::{target, url};

#[test]
fn a_name_with_escape_codes_is_shown_by_mount_list_and_umount() {
    let Some(machine) = Machine::new("a directory with an odd name") else { return };
    let target = target();
    let evil = format!("{}/a/\u{1b}[2J\nmount  forged\u{202e}", machine.text("."));
    fs::create_dir_all(&evil).expect("a directory");
    let evil = fs::canonicalize(&evil).expect("its name").to_str().expect("text").to_owned();
    let shown = "\\u{1b}[2J\\nmount  forged\\u{202e}";
    let harmless = |what: &str, text: &str| {
        assert!(text.contains(shown), "{what}: {text:?}");
        assert!(!text.contains(['\u{1b}', '\u{202e}']), "{what}: {text:?}");
        assert!(!text.lines().any(|line| line.starts_with("mount  forged")), "{what}: {text:?}");
    };
    harmless("mount", &machine.ok(&["mount", &url(&target, 1), &evil, "--mkfs", "ext4"]));
    // What it shows can be pasted.
    let pasted = shell_quoted(&evil).into_owned();
    let listed = |text: &str| {
        assert!(text.contains(&format!("  {pasted}  ")), "{text:?}");
        assert!(!text.contains(['\u{1b}', '\u{202e}']) && text.lines().count() == 2, "{text:?}");
    };
    listed(&machine.ok(&["list"]));
    assert_eq!(machine.only()["directory"].as_str(), Some(evil.as_str()), "programs get it as it is");
    let again = machine.run(&["mount", &url(&target, 1), &machine.text("b")]);
    harmless("a second mount", &again.stderr);
    machine.kill_keeper();
    let dead = machine.ok(&["list"]);
    listed(&dead);
    // And so can what is to be done.
    assert!(dead.contains(&format!("`ringfab umount {pasted}`")), "{dead}");
    let gone = machine.run(&["umount", &evil, "--lazy"]);
    harmless("umount", &(gone.stdout + &gone.stderr));
    let never = machine.run(&["umount", &format!("{evil}/none\u{1b}")]);
    assert!(!never.stderr.contains('\u{1b}'), "{never:?}");
}
