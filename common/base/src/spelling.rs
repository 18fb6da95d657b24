//! Names that a misspelt word may be meant for.

/// Which of these names a word may be meant for: the nearest one, if any is near.
pub fn meant<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let near = names.into_iter().filter_map(|name| Some((distance(word, name)?, name)));
    near.min().map(|(_, name)| name)
}

/// How far a word is from a name that it may be meant for: letters that are wrong, lack, are too many or have changed
/// places, or a part of the name. None when it is some other word.
fn distance(word: &str, name: &str) -> Option<usize> {
    let letters = strsim::osa_distance(&word.to_lowercase(), name);
    let most = if name.len() <= 4 { 1 } else { 2 };
    let part = word.len() >= 4 && (name.starts_with(word) || word.starts_with(name));
    (letters <= most || part).then_some(letters)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_meant_and_another_word_means_none() {
        let names = ["ns", "queues", "depth", "keepalive", "tcpkeepalive"];
        for (word, expected) in [
            ("nsid", Some("ns")),
            ("Queues", Some("queues")),
            ("queus", Some("queues")),
            ("queeus", Some("queues")),
            ("iodepth", Some("depth")),
            ("keep_alive", Some("keepalive")),
            ("keep", Some("keepalive")),
            ("speed", None),
            ("", None),
        ] {
            assert_eq!(meant(word, names), expected, "{word}");
        }
    }
}
