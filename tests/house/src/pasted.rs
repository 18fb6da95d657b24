//! A command that a message shows can be pasted: what it has of names and paths went through the one function for words
//! of a shell.

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::files;

/// Programs whose commands messages show.
const PROGRAMS: [&str; 17] = [
    "modprobe",
    "ringfab",
    "ringfab-target",
    "sudo",
    "mount",
    "umount",
    "fusermount3",
    "mkdir",
    "rm",
    "chown",
    "chmod",
    "install",
    "losetup",
    "nvme",
    "systemctl",
    "resize2fs",
    "apt",
];

/// What makes a word of a shell.
const FUNCTIONS: [&str; 2] = ["shell_word", "shell_quoted"];

/// Names of what is a word already, or cannot need quotes, and why.
const WORDS: [(&str, &str); 9] = [
    ("quoted", "went through the function"),
    ("command", "a word of ours, or made of words"),
    ("sudo", "made of words"),
    ("socket", "an option, made of words"),
    ("more", "options, made of words"),
    ("subsystem", "went through the function, or is a placeholder"),
    ("nsid", "a number"),
    ("device", "the kernel's name of a device"),
    ("package", "a name of the table of packages"),
];

/// A macro that is called with a text to format: the text, and what follows it.
struct Formatted {
    text: String,
    arguments: Vec<String>,
}

impl Formatted {
    /// All macros in these tokens whose arguments have a text.
    fn all(tokens: TokenStream, found: &mut Vec<Self>) {
        let mut before: Option<TokenTree> = None;
        for token in tokens {
            if let TokenTree::Group(group) = &token {
                let is_macro = matches!(&before, Some(TokenTree::Punct(mark)) if mark.as_char() == '!');
                if is_macro && group.delimiter() != Delimiter::Brace {
                    found.extend(Self::of(group.stream()));
                }
                // An attribute of an error has a text, too.
                if group.stream().to_string().starts_with("error (") {
                    let inner = group.stream().into_iter().nth(1);
                    found.extend(inner.and_then(|inner| match inner {
                        TokenTree::Group(inner) => Self::of(inner.stream()),
                        _ => None,
                    }));
                }
                Self::all(group.stream(), found);
            }
            before = Some(token);
        }
    }

    fn of(arguments: TokenStream) -> Option<Self> {
        let mut parts: Vec<Vec<TokenTree>> = vec![Vec::new()];
        for token in arguments {
            match &token {
                TokenTree::Punct(mark) if mark.as_char() == ',' => parts.push(Vec::new()),
                _ => parts.last_mut().expect("one at least").push(token),
            }
        }
        let literal = |part: &Vec<TokenTree>| {
            let [TokenTree::Literal(literal)] = part.as_slice() else { return None };
            let stream = TokenStream::from(TokenTree::Literal(literal.clone()));
            syn::parse2::<syn::LitStr>(stream).ok().map(|text| text.value())
        };
        let place = parts.iter().position(|part| literal(part).is_some())?;
        let text = literal(&parts[place])?;
        let shown = |part: Vec<TokenTree>| part.into_iter().collect::<TokenStream>().to_string();
        Some(Self { text, arguments: parts.into_iter().skip(place + 1).map(shown).collect() })
    }

    /// What stands in commands of the text, and is no word of a shell for sure.
    fn unquoted(&self) -> Vec<String> {
        let (mut wrong, mut positional) = (Vec::new(), 0);
        let text = self.text.replace("{{", "").replace("}}", "");
        for (number, part) in text.split('`').enumerate() {
            let program = part.split_whitespace().next().unwrap_or_default();
            let inside = number % 2 == 1 && PROGRAMS.contains(&program);
            for placeholder in part.split('{').skip(1) {
                let name = placeholder.split(['}', ':']).next().unwrap_or_default();
                let value = match name {
                    "" => {
                        positional += 1;
                        self.arguments.get(positional - 1).cloned().unwrap_or_default()
                    }
                    name => {
                        let given = format!("{name} = ");
                        let argument = self.arguments.iter().find_map(|one| one.strip_prefix(&given));
                        argument.unwrap_or(name).to_owned()
                    }
                };
                let is_word = FUNCTIONS.iter().any(|function| value.starts_with(&format!("{function} (")))
                    || WORDS.iter().any(|(word, _)| value == *word);
                if inside && !is_word {
                    wrong.push(value);
                }
            }
        }
        wrong
    }
}

fn unquoted(text: &str) -> Vec<String> {
    let tokens: TokenStream = text.parse().unwrap_or_else(|error| panic!("{error}"));
    let mut found = Vec::new();
    Formatted::all(tokens, &mut found);
    found.iter().flat_map(Formatted::unquoted).collect()
}

#[test]
fn what_a_command_of_a_message_names_is_a_word_of_a_shell() {
    let (mut wrong, mut commands) = (Vec::new(), 0);
    for (path, text) in files(".rs") {
        let is_ours = ["target/src/", "initiator/", "common/"].iter().any(|part| path.starts_with(part));
        if is_ours && path.contains("/src/") {
            commands += text.matches("`ringfab").count();
            wrong.extend(unquoted(&text).into_iter().map(|value| format!("{path}: {value}")));
        }
    }
    assert!(wrong.is_empty(), "not by shell_word or shell_quoted: {wrong:#?}");
    assert!(commands > 30, "{commands}");
}

#[test]
fn a_name_that_is_pasted_as_it_is_is_found() {
    for (text, expected) in [
        (r#"format!("`ringfab discover {url}` lists them")"#, vec!["url"]),
        (r#"bail!("{a}: {}; `umount {}`", b, path)"#, vec!["path"]),
        (r#"bail!("{}; `umount {}`", b, shell_word(path))"#, vec![]),
        (r#"format!("`ringfab umount {at}`", at = shell_quoted(&path))"#, vec![]),
        (r#"format!("{url} is `{kind}`")"#, vec![]),
        (r##"#[error("{0}: `mkdir -p {0}`")] struct A(String);"##, vec!["0"]),
    ] {
        assert_eq!(unquoted(text), expected, "{text}");
    }
}
