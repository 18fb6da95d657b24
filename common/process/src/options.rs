//! All commands and options of a program as tables for a document, made of its own command line.

use std::collections::BTreeMap;

use clap::{Arg, Command};

/// Calls `look` with each command that can be run, and its name without the program's.
fn each(command: &Command, name: &str, look: &mut impl FnMut(&str, &Command)) {
    let below: Vec<&Command> = command.get_subcommands().filter(|one| one.get_name() != "help").collect();
    if below.is_empty() || !name.is_empty() && !command.is_subcommand_required_set() {
        look(name, command);
    }
    for one in below.into_iter().filter(|one| !one.is_hide_set()) {
        each(one, format!("{name} {}", one.get_name()).trim_start(), look);
    }
}

/// The arguments of a command that are its own.
fn arguments(command: &Command) -> impl Iterator<Item = &Arg> {
    let common = ["help", "version", "color"];
    command.get_arguments().filter(move |one| !common.contains(&one.get_id().as_str()) && !one.is_hide_set())
}

fn value(argument: &Arg) -> String {
    let names = argument.get_value_names().unwrap_or_default();
    names.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(" ")
}

/// How an argument is written.
fn form(argument: &Arg) -> String {
    let takes = argument.get_action().takes_values();
    let name = match (argument.get_long(), argument.get_short()) {
        (Some(long), _) => format!("--{long}"),
        (None, Some(short)) => format!("-{short}"),
        (None, None) => return value(argument),
    };
    if takes { format!("{name} {}", value(argument)) } else { name }
}

/// Two tables: the commands with their arguments, and the options with what each means. Those that the help has below a
/// heading of their own are shown with a command as that heading.
pub fn tables(program: &Command) -> String {
    let mut program = program.clone();
    program.build();
    let mut commands = String::from("| command | arguments |\n| --- | --- |\n");
    let mut options: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    each(&program, "", &mut |name, command| {
        // Many commands have what is below a heading, all of it.
        let shown = |one: &Arg| match one.get_help_heading() {
            Some(heading) => format!("_{heading}_"),
            None => format!("`{}`", form(one)),
        };
        let mut forms: Vec<String> = arguments(command).map(shown).collect();
        forms.dedup();
        commands += &format!("| `{name}` | {} |\n", forms.join(" "));
        for one in arguments(command).filter(|one| one.get_long().is_some()) {
            let help = one.get_help().map(ToString::to_string).unwrap_or_default();
            options.entry((form(one), help)).or_default().push(format!("`{name}`"));
        }
    });
    let mut meanings = String::from("| option | meaning | of |\n| --- | --- | --- |\n");
    for ((form, help), users) in options {
        let help = help.lines().next().unwrap_or_default().replace('|', "\\|");
        let users = if users.len() > 6 { format!("{} commands", users.len()) } else { users.join(", ") };
        meanings += &format!("| `{form}` | {help} | {users} |\n");
    }
    format!("{commands}\n{meanings}")
}

/// Options that are written in several ways: one with a value here, and without there, or with another kind of value.
pub fn contradictions(program: &Command) -> Vec<String> {
    let mut program = program.clone();
    program.build();
    let mut forms: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    each(&program, "", &mut |name, command| {
        for one in arguments(command) {
            let Some(long) = one.get_long() else { continue };
            let seen = forms.entry(long.to_owned()).or_default();
            if !seen.iter().any(|(known, _)| *known == form(one)) {
                seen.push((form(one), name.to_owned()));
            }
        }
    });
    let several = forms.into_values().filter(|seen| seen.len() > 1);
    several
        .map(|seen| seen.iter().map(|(form, name)| format!("{form} ({name})")).collect::<Vec<_>>().join(", "))
        .collect()
}

/// Compares the tables with a document, which has them between two lines `<!-- PROGRAM -->`. With `RINGFAB_WRITE_DOCS`
/// in the environment they are written there first.
///
/// # Panics
/// When the document has something else, or cannot be read.
pub fn assert_documented(program: &Command, document: &std::path::Path) {
    let mark = format!("<!-- {} -->\n", program.get_name());
    let text = std::fs::read_to_string(document).expect("the document can be read");
    let parts: Vec<&str> = text.split(&mark).collect();
    let [before, found, after] = parts[..] else { panic!("{mark} is twice in {}", document.display()) };
    let wanted = format!("\n{}\n", tables(program));
    if std::env::var_os("RINGFAB_WRITE_DOCS").is_some() {
        let text = [before, &wanted, after].join(&mark);
        std::fs::write(document, text).expect("the document can be written");
        return;
    }
    assert_eq!(found, wanted, "{}: RINGFAB_WRITE_DOCS=1 writes it", document.display());
}
