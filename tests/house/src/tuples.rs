//! No limit shapes a type. A list of parameters that takes a tuple apart lacks a type, or hides parameters from Clippy,
//! which counts them. `tests/tuples.toml` would have the files in which there are some: there are none.

use crate::files;
use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Known {
    /// Parameters that are tuples taken apart, by file.
    files: BTreeMap<String, usize>,
}

/// The lines with parameters of functions that are tuples taken apart. A closure may have them: it has no types to
/// name.
fn tuples_taken_apart(code: &TokenStream) -> Vec<usize> {
    let tokens: Vec<TokenTree> = code.clone().into_iter().collect();
    let mut found = Vec::new();
    for (place, token) in tokens.iter().enumerate() {
        match token {
            TokenTree::Ident(word) if word == "fn" => {
                found.extend(parameters(&tokens[place + 1..]).iter().flat_map(in_parameters));
            }
            TokenTree::Group(group) => found.extend(tuples_taken_apart(&group.stream())),
            _ => {}
        }
    }
    found
}

/// The list of parameters behind `fn`; a type has no name there, and so no list.
fn parameters(behind: &[TokenTree]) -> Option<Group> {
    matches!(behind.first(), Some(TokenTree::Ident(_))).then_some(())?;
    let mut generics = 0;
    let mut before = ' ';
    for token in &behind[1..] {
        match token {
            TokenTree::Group(group) if generics == 0 => return Some(group.clone()),
            TokenTree::Punct(sign) => {
                match sign.as_char() {
                    '<' => generics += 1,
                    // Not the arrow of a bound.
                    '>' if before != '-' => generics -= 1,
                    _ => {}
                }
                before = sign.as_char();
                continue;
            }
            _ => {}
        }
        before = ' ';
    }
    None
}

/// The lines of those parameters of a list that are tuples, and go on with a type.
fn in_parameters(list: &Group) -> Vec<usize> {
    let tokens: Vec<TokenTree> = list.stream().into_iter().collect();
    // A structure with a name may be taken apart.
    let is_named = |place: usize| match place.checked_sub(1).map(|before| &tokens[before]) {
        Some(TokenTree::Ident(name)) => name != "mut",
        _ => false,
    };
    let has_type = |place: usize| match tokens.get(place + 1) {
        Some(TokenTree::Punct(colon)) => colon.as_char() == ':',
        _ => false,
    };
    let tuples = tokens.iter().enumerate().filter_map(|(place, token)| match token {
        TokenTree::Group(group) if group.delimiter() == Delimiter::Parenthesis => {
            (has_type(place) && !is_named(place)).then(|| group.span_open().start().line)
        }
        _ => None,
    });
    tuples.collect()
}

#[test]
fn parameters_are_no_tuples_taken_apart() {
    let text = fs::read_to_string(crate::root().join("tests/tuples.toml")).expect("the list of files");
    let Known { files: mut known } = toml::from_str(&text).expect("a list of files");
    let mut wrong = Vec::new();
    for (path, text) in files(".rs") {
        let code = text.parse().unwrap_or_else(|error| panic!("{path}: {error}"));
        let (found, allowed) = (tuples_taken_apart(&code), known.remove(&path).unwrap_or(0));
        if found.len() > allowed {
            wrong.push(format!("{path} has {} (lines {found:?}), {allowed} are allowed", found.len()));
        } else if found.len() < allowed {
            wrong
                .push(format!("{path} has {}: write that instead of {allowed}, or take it off", found.len()));
        }
    }
    wrong.extend(known.keys().map(|path| format!("{path} is gone: take it off")));
    assert!(
        wrong.is_empty(),
        "tests/tuples.toml: these tuples are taken apart in lists of parameters. Find the type that is missing, or \
         name the parameters:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn tuples_are_found_in_functions_and_nowhere_else() {
    let code = "
        fn plain(both: (u8, u8), many: [(u8, u8); 2]) { for (one, other) in many {} }
        fn first((one, other): (u8, u8)) {}
        fn named(Pair(one, other): Pair, &mut (two, three): &mut (u8, u8)) {}
        fn with<F: Fn((u8, u8)) -> u8, const N: usize>(call: F, &(one, _): &(u8, u8)) {}
        trait Has { fn later(&self, last: bool, (one, (two, three)): (u8, (u8, u8))); }
        fn closures(act: fn((u8, u8)) -> u8) { let one = |(one, other): (u8, u8)| one + other; }
        made! { fn inside(number in 0..3, (one, other): (u8, u8)) {} }
        struct Holds { held: fn((u8, u8)) }
        fn outer() { fn inner(
            one: u8,
            (two, three): (u8, u8),
        ) {} }
    ";
    assert_eq!(tuples_taken_apart(&code.parse().expect("code")), [3, 4, 5, 6, 8, 12]);
}
