//! Requests and answers as they may be logged: without the keys that somebody has put where a reference belongs.

use serde_json::Value;

/// How texts of keys begin, in lower case.
const MARKERS: [&str; 3] = ["dhhc-1:", "nvmetlskey-0:", "nvmetlskey-1:"];

/// How a reference to a key begins, which is no secret.
const REFERENCES: [&str; 3] = ["file:", "credential:", "keyring:"];

/// What stands instead.
const MASK: &str = "(hidden)";

/// The text without what follows the beginning of a key.
pub(super) fn masked(text: &str) -> String {
    let (lower, mut masked, mut at) = (text.to_ascii_lowercase(), String::with_capacity(text.len()), 0);
    let next = |from: usize| {
        let found =
            MARKERS.into_iter().filter_map(|marker| Some((lower[from..].find(marker)?, marker.len())));
        found.min().map(|(start, length)| from + start + length)
    };
    while let Some(start) = next(at) {
        masked.push_str(&text[at..start]);
        let is_of_key = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/=:".contains(byte);
        at = start + text.as_bytes()[start..].iter().take_while(|byte| is_of_key(byte)).count();
        // Messages say how a key begins.
        if at > start {
            masked.push_str(MASK);
        }
    }
    masked + &text[at..]
}

/// The JSON as text. Whatever is called a key is a reference, or hidden.
pub(super) fn masked_json(mut value: Value) -> String {
    hide_keys(&mut value);
    masked(&value.to_string())
}

fn hide_keys(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                match field {
                    Value::String(text) if name.contains("key") && !is_reference(text) => {
                        MASK.clone_into(text);
                    }
                    field => hide_keys(field),
                }
            }
        }
        Value::Array(fields) => fields.iter_mut().for_each(hide_keys),
        _ => {}
    }
}

fn is_reference(text: &str) -> bool {
    REFERENCES.into_iter().any(|start| text.starts_with(start))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const KEY: &str = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:";

    #[test]
    fn a_key_is_hidden_wherever_it_stands() {
        for (text, expected) in [
            ("nothing", "nothing".to_owned()),
            ("must begin with \"DHHC-1:\"", "must begin with \"DHHC-1:\"".to_owned()),
            (KEY, "DHHC-1:(hidden)".to_owned()),
            (&format!("a \"{KEY}\", and {KEY} é"), "a \"DHHC-1:(hidden)\", and DHHC-1:(hidden) é".to_owned()),
            (&KEY.to_ascii_lowercase(), "dhhc-1:(hidden)".to_owned()),
            ("NVMeTLSkey-1:01:abc=:x y", "NVMeTLSkey-1:(hidden) y".to_owned()),
        ] {
            assert_eq!(masked(text), expected);
        }
    }

    #[test]
    fn what_is_called_a_key_is_a_reference_or_hidden() {
        let host = json!({ "dhchap_key": "ia6zGodOr4S", "tls_key": "file:/etc/key", "nqn": "nqn.x", "other": [KEY] });
        assert_eq!(
            masked_json(json!({ "command": "host-set", "host": host })),
            "{\"command\":\"host-set\",\"host\":{\"dhchap_key\":\"(hidden)\",\"nqn\":\"nqn.x\",\
             \"other\":[\"DHHC-1:(hidden)\"],\"tls_key\":\"file:/etc/key\"}}"
        );
    }
}
