//! Completions for shells, made of a program's own command line. Hidden commands and options are offered by none.
//!
//! Some values only the program knows, such as the names of what is mounted. The shell asks it for them:
//! `PROGRAM complete LIST` prints one a line. The generator that is used here cannot say that in its static files, so
//! the files get functions that do.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

use clap::builder::PossibleValuesParser;
use clap::{Arg, Command, ValueHint};
use clap_complete::Shell;
use clap_complete::generate;

/// An argument whose values the program prints.
#[derive(Clone, Copy, Debug)]
pub struct Words {
    /// The command that has it.
    pub command: &'static str,
    /// The name of the argument, the first one of the command.
    pub argument: &'static str,
    /// What the program is asked for.
    pub list: &'static str,
}

/// The command that prints them.
pub const COMMAND: &str = "complete";

/// Hints that no argument of ours has, and what the generator makes of them for zsh. They mark the places of the words.
const MARKS: [(ValueHint, &str); 3] = [
    (ValueHint::Username, ":_users'"),
    (ValueHint::Hostname, ":_hosts'"),
    (ValueHint::EmailAddress, ":_email_addresses'"),
];

/// Writes a file for each shell, by the name that the shell looks for.
pub(crate) fn write(command: &Command, words: &[Words], folder: &Path) -> io::Result<()> {
    assert!(words.len() <= MARKS.len(), "each list of words has a mark of its own");
    let shown = visible(command, words);
    let name = command.get_name();
    for (shell, file) in [
        (Shell::Bash, format!("{name}.bash")),
        (Shell::Zsh, format!("_{name}")),
        (Shell::Fish, format!("{name}.fish")),
    ] {
        let mut script = Vec::new();
        generate(shell, &mut shown.clone(), name, &mut script);
        let script = String::from_utf8(script).map_err(io::Error::other)?;
        let script = match shell {
            _ if words.is_empty() => script,
            Shell::Bash => script + &bash(name, &shown, words),
            Shell::Zsh => zsh(name, &script, words),
            _ => script + &fish(name, words),
        };
        fs::write(folder.join(file), script)?;
    }
    Ok(())
}

/// A name that lasts as long as the program, as clap wants it. The program ends when the files are written.
fn lasting(text: &str) -> &'static str {
    Box::leak(text.to_owned().into_boxed_str())
}

/// An argument with what a shell has to know of it. What it excludes or needs may be hidden.
fn visible_argument(argument: &Arg, hint: Option<ValueHint>) -> Arg {
    let mut shown = Arg::new(lasting(argument.get_id().as_str()))
        .action(argument.get_action().clone())
        .global(argument.is_global_set())
        .required(argument.is_required_set())
        .last(argument.is_last_set())
        .value_hint(hint.unwrap_or_else(|| argument.get_value_hint()));
    if let Some(index) = argument.get_index() {
        shown = shown.index(index);
    }
    if let Some(long) = argument.get_long() {
        shown = shown.long(lasting(long));
    }
    if let Some(short) = argument.get_short() {
        shown = shown.short(short);
    }
    if let Some(help) = argument.get_help() {
        shown = shown.help(help.clone());
    }
    if let Some(several) = argument.get_num_args() {
        shown = shown.num_args(several);
    }
    let names = argument.get_value_names().unwrap_or_default().iter();
    let names: Vec<&'static str> = names.map(|name| lasting(name.as_str())).collect();
    if !names.is_empty() {
        shown = shown.value_names(names);
    }
    let values = argument.get_possible_values();
    if !values.is_empty() && argument.get_action().takes_values() {
        shown = shown.value_parser(PossibleValuesParser::new(values));
    }
    let aliases = argument.get_visible_aliases().unwrap_or_default();
    shown.visible_aliases(aliases.into_iter().map(lasting).collect::<Vec<_>>())
}

/// A command without what is hidden, since the generator does not look at that, and with marks for words.
fn visible(command: &Command, words: &[Words]) -> Command {
    let mut arguments: Vec<&Arg> = command.get_arguments().filter(|one| !one.is_hide_set()).collect();
    // The generator takes them as they come.
    arguments.sort_by_key(|one| one.get_index());
    let mark = |argument: &Arg| {
        let is_it =
            |one: &Words| (one.command, one.argument) == (command.get_name(), argument.get_id().as_str());
        words.iter().zip(MARKS).find(|(one, _)| is_it(one)).map(|(_, (hint, _))| hint)
    };
    let mut shown = Command::new(lasting(command.get_name()))
        .args(arguments.into_iter().map(|one| visible_argument(one, mark(one))))
        .allow_missing_positional(command.is_allow_missing_positional_set())
        .subcommands(
            command.get_subcommands().filter(|one| !one.is_hide_set()).map(|one| visible(one, words)),
        )
        .visible_aliases(command.get_visible_aliases().map(lasting).collect::<Vec<_>>())
        .subcommand_required(command.is_subcommand_required_set());
    if let Some(about) = command.get_about() {
        shown = shown.about(about.clone());
    }
    if let Some(version) = command.get_version() {
        shown = shown.version(lasting(version));
    }
    shown
}

/// The options of all commands that take a value.
fn options_with_values(command: &Command, found: &mut BTreeSet<String>) {
    let takes = |one: &&Arg| one.get_action().takes_values() && !one.is_positional();
    for one in command.get_arguments().filter(takes) {
        found.extend(one.get_long().map(|long| format!("--{long}")));
        found.extend(one.get_short().map(|short| format!("-{short}")));
    }
    command.get_subcommands().for_each(|one| options_with_values(one, found));
}

fn bash(name: &str, command: &Command, words: &[Words]) -> String {
    let function = name.replace('-', "__");
    let mut options = BTreeSet::new();
    options_with_values(command, &mut options);
    let options = options.into_iter().collect::<Vec<_>>().join("|");
    let lists: String =
        words.iter().map(|one| format!("        \"{} 0\") list={} ;;\n", one.command, one.list)).collect();
    format!(
        r#"
# What only the program knows comes from it.
_{function}_words() {{
    _{function} "$@"
    local IFS=$'\n' i word command="" arguments=0 skip=0 list
    for ((i = 1; i < COMP_CWORD; i++)); do
        word=${{COMP_WORDS[i]}}
        case "$word" in
        =) skip=1 && continue ;;
        esac
        if ((skip)); then
            skip=0
            continue
        fi
        case "$word" in
        {options}) skip=1 ;;
        -*) ;;
        *) if [[ -z $command ]]; then command=$word; else arguments=$((arguments + 1)); fi ;;
        esac
    done
    [[ $skip = 0 && ${{COMP_WORDS[COMP_CWORD]}} != [-=]* ]] || return 0
    case "$command $arguments" in
{lists}        *) return 0 ;;
    esac
    COMPREPLY=()
    for word in $("$1" {COMMAND} "$list" 2>/dev/null); do
        [[ $word != "$2"* ]] || COMPREPLY+=("$(printf %q "$word")")
    done
}}

if [[ "${{BASH_VERSINFO[0]}}" -eq 4 && "${{BASH_VERSINFO[1]}}" -ge 4 || "${{BASH_VERSINFO[0]}}" -gt 4 ]]; then
    complete -F _{function}_words -o nosort -o bashdefault -o default {name}
else
    complete -F _{function}_words -o bashdefault -o default {name}
fi
"#
    )
}

fn zsh(name: &str, script: &str, words: &[Words]) -> String {
    let function = format!("_{name}_words");
    let marked = words.iter().zip(MARKS).fold(script.to_owned(), |script, (one, (_, mark))| {
        script.replace(mark, &format!(":{function} {}'", one.list))
    });
    let ours = format!(
        r#"
# What only the program knows comes from it. What it does not know may be a path.
{function}() {{
    local -a found
    found=("${{(@f)$(_call_program words {name} {COMMAND} "${{@[-1]}}" 2>/dev/null)}}")
    found=("${{(@)found:#}}")
    compadd "${{@[1,-2]}}" -a found || _files
}}

if [ "$funcstack[1]""#
    );
    marked.replacen("\nif [ \"$funcstack[1]\"", &ours, 1)
}

fn fish(name: &str, words: &[Words]) -> String {
    let lines = words.iter().map(|one| {
        let Words { command, list, .. } = one;
        format!(
            "complete -c {name} -n \"__fish_seen_subcommand_from {command}\" \
             -a \"({name} {COMMAND} {list} 2>/dev/null)\"\n"
        )
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(words: &[Words]) -> [String; 3] {
        let folder = tempfile::tempdir().expect("a folder");
        let step = Command::new("step").hide(true).arg(Arg::new("what"));
        let inner = Command::new("use").about("Use it").arg(Arg::new("place").index(2));
        let inner = inner.arg(Arg::new("what").help("A thing").index(1).required(true));
        // What is seen may exclude what is hidden.
        let inner =
            inner.arg(Arg::new("seen").long("seen").value_parser(["red", "blue"]).conflicts_with("secret"));
        let inner = inner.arg(Arg::new("secret").long("secret").hide(true).action(clap::ArgAction::SetTrue));
        let inner = inner.arg(Arg::new("level").long("level").value_name("N"));
        let command = Command::new("some-tool").subcommand(step).subcommand(inner);
        write(&command, words, folder.path()).expect("written");
        let read = |name| fs::read_to_string(folder.path().join(name)).expect("a file");
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 3);
        ["some-tool.bash", "_some-tool", "some-tool.fish"].map(read)
    }

    #[test]
    fn no_shell_offers_what_is_hidden() {
        for script in written(&[]) {
            for shown in ["use", "level", "seen", "red"] {
                assert!(script.contains(shown), "{shown}: {script}");
            }
            assert!(!script.contains("step") && !script.contains("secret"), "{script}");
            assert!(!script.contains(&format!("some-tool {COMMAND}")), "{script}");
        }
    }

    #[test]
    fn every_shell_asks_the_program_for_words() {
        let words = [Words { command: "use", argument: "what", list: "things" }];
        let [bash, zsh, fish] = written(&words);
        assert!(
            bash.contains("\"use 0\") list=things ;;") && bash.contains("--level|--seen) skip=1 ;;"),
            "{bash}"
        );
        assert!(zsh.contains(":_some-tool_words things'") && zsh.contains("_some-tool_words() {"), "{zsh}");
        let place = |what: &str| zsh.find(what).unwrap_or_else(|| panic!("{what}: {zsh}"));
        assert!(place("':what -- ") < place("'::place"), "{zsh}");
        assert!(fish.contains("from use\" -a \"(some-tool complete things 2>/dev/null)\""), "{fish}");
    }
}
