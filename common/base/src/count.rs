//! Numbers of things, as people read them.

use std::fmt::Display;

/// A number of things: `1 listener`, `2 listeners`, `0 entries`. `one` is the word for one of them.
pub fn counted(count: impl Display, one: &str) -> String {
    let count = count.to_string();
    let consonant = |letter: char| !"aeiou".contains(letter);
    let words = match one.strip_suffix('y').filter(|stem| stem.ends_with(consonant)) {
        _ if count == "1" => one.to_owned(),
        Some(stem) => format!("{stem}ies"),
        None if one.ends_with(['s', 'x']) => format!("{one}es"),
        None => format!("{one}s"),
    };
    format!("{count} {words}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_singular_and_all_else_is_plural() {
        for (count, one, expected) in [
            (0, "listener", "0 listeners"),
            (1, "listener", "1 listener"),
            (2, "listener", "2 listeners"),
            (1, "entry", "1 entry"),
            (21, "entry", "21 entries"),
            (3, "key", "3 keys"),
            (2, "address", "2 addresses"),
        ] {
            assert_eq!(counted(count, one), expected);
        }
    }
}
