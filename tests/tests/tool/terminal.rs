//! Width and colours.

use super::screen::Screen;
use super::{err, out, output, ringfab, ringfab_target, target};

const ESCAPE: char = '\x1b';

/// A text without what turns colours on and off.
fn plain(text: &str) -> String {
    let mut parts = text.split("\x1b[");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        plain.push_str(part.split_once('m').expect("a colour").1);
    }
    plain
}

fn shown(columns: u16, command: &mut std::process::Command) -> String {
    let (status, text) = Screen::start(columns, command).end();
    assert!(status.success(), "{text}");
    text
}

#[test]
fn tables_are_as_wide_as_the_terminal_and_whole_elsewhere() {
    let (_target, url) = target();
    let whole = out(&output(&mut ringfab(&["list", &url])));
    let uuid = whole.lines().find_map(|line| line.split("uuid ").nth(1)).expect("an identifier");
    assert_eq!(uuid.len(), 36, "{whole}");
    assert!(!whole.contains('…'));
    let rows = |text: &str| -> Vec<String> {
        plain(text).lines().skip_while(|line| !line.starts_with("namespace")).map(str::to_owned).collect()
    };
    let wide = shown(200, &mut ringfab(&["list", &url]));
    assert_eq!(rows(&wide), rows(&whole));
    let narrow = rows(&shown(60, &mut ringfab(&["list", &url])));
    assert_eq!(narrow.len(), 3);
    assert!(narrow.iter().all(|line| line.chars().count() <= 60), "{narrow:?}");
    assert!(narrow[1].contains('…') && narrow[1].ends_with(&uuid[uuid.len() - 4..]), "{narrow:?}");
    // Whoever sets it knows better than the terminal.
    let mut named = ringfab(&["list", &url]);
    let (_, text) = {
        let mut screen = std::process::Command::new("env");
        screen.arg("COLUMNS=55").arg(named.get_program()).args(named.get_args());
        Screen::start(200, &mut screen).end()
    };
    assert!(rows(&text).iter().all(|line| line.chars().count() <= 55), "{text}");
    // Not a terminal: nothing is shortened, whatever is set.
    assert_eq!(rows(&out(&output(named.env("COLUMNS", "20")))), rows(&whole));
}

#[test]
fn an_address_is_never_shortened() {
    let (_target, url) = target();
    let text = shown(30, &mut ringfab(&["discover", &url]));
    assert!(text.contains(&url), "{text}");
}

#[test]
fn colours_are_where_they_were_asked_for() {
    let (_target, url) = target();
    let has_colour = |text: &str| text.contains(ESCAPE);
    let list = |more: &[&str]| {
        let mut command = ringfab(&["list", &url]);
        command.args(more);
        command
    };
    assert!(has_colour(&shown(80, &mut list(&[]))));
    assert!(!has_colour(&shown(80, &mut list(&["--color", "never"]))));
    assert!(!has_colour(&out(&output(&mut list(&[])))));
    assert!(has_colour(&out(&output(&mut list(&["--color=always"])))));
    // An option goes before the environment.
    assert!(has_colour(&out(&output(list(&["--color=always"]).env("NO_COLOR", "1")))));
    for (name, value, coloured) in [("NO_COLOR", "1", false), ("NO_COLOR", "", true), ("TERM", "dumb", false)]
    {
        let mut command = std::process::Command::new("env");
        let listing = list(&[]);
        command.arg(format!("{name}={value}")).arg(listing.get_program()).args(listing.get_args());
        assert_eq!(has_colour(&shown(80, &mut command)), coloured, "{name}={value}");
    }
}

#[test]
fn help_and_mistakes_have_colours_on_terminals_only() {
    for (command, code) in [
        (ringfab as fn(&[&str]) -> std::process::Command, 2),
        (ringfab_target as fn(&[&str]) -> std::process::Command, 2),
    ] {
        let help = out(&output(&mut command(&["--help"])));
        let wrong = output(&mut command(&["nonsense"]));
        assert_eq!(wrong.status.code(), Some(code));
        assert!(!help.contains(ESCAPE) && !err(&wrong).contains(ESCAPE));
        assert!(out(&output(&mut command(&["--color=always", "--help"]))).contains(ESCAPE));
        assert!(err(&output(&mut command(&["--color=always", "nonsense"]))).contains(ESCAPE));
        let (_, text) = Screen::start(80, &mut command(&["nonsense"])).end();
        assert!(text.contains(ESCAPE), "{text}");
        let (_, text) = Screen::start(80, &mut command(&["nonsense", "--color", "never"])).end();
        assert!(!text.contains(ESCAPE), "{text}");
        let (status, text) = Screen::start(60, &mut command(&["--help"])).end();
        assert!(status.success() && plain(&text).lines().all(|line| line.chars().count() <= 60), "{text}");
    }
}
