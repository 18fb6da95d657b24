//! Events for programs: as records of the journal's native protocol, and as JSON.
//!
//! A record of the journal is a datagram with a line `NAME=value` for each field. Values have no line breaks: whatever
//! could end a line is escaped.

use std::fmt;

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata};

use super::line::{self, MESSAGE};

/// What the names of our own fields begin with in the journal.
const PREFIX: &str = "RINGFAB_";

/// The longest name of a field that the journal takes.
const NAME_BYTES_MAX: usize = 64;

/// A record of the journal with the fields of an event. Its message is the line that people read elsewhere.
pub(super) fn journal_event(event: &Event<'_>, program: &str) -> String {
    let metadata = event.metadata();
    let mut record = journal_line(*metadata.level(), metadata.target(), &line::text_of(event), program);
    place(&mut record, metadata);
    event.record(&mut JournalFields(&mut record));
    record
}

/// A record of the journal with a text.
pub(super) fn journal_line(level: Level, part: &str, text: &str, program: &str) -> String {
    let priority = priority(level);
    format!(
        "PRIORITY={priority}\nSYSLOG_IDENTIFIER={program}\n{PREFIX}PART={part}\nMESSAGE={}\n",
        line::escaped(text)
    )
}

/// The priorities of syslog.
pub(super) fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    }
}

/// Where in the program an event comes from, by the names that the journal has for that.
fn place(record: &mut String, metadata: &Metadata<'_>) {
    if let (Some(file), Some(line)) = (metadata.file(), metadata.line()) {
        record.push_str(&format!("CODE_FILE={}\nCODE_LINE={line}\n", line::escaped(file)));
    }
}

struct JournalFields<'a>(&'a mut String);

impl JournalFields<'_> {
    fn push(&mut self, field: &Field, value: &str) {
        if field.name() == MESSAGE {
            return;
        }
        let mut name = PREFIX.to_owned();
        let letters = field.name().chars().map(|letter| letter.to_ascii_uppercase());
        name.extend(letters.filter(|letter| letter.is_ascii_alphanumeric() || *letter == '_'));
        name.truncate(NAME_BYTES_MAX);
        self.0.push_str(&format!("{name}={}\n", line::escaped(value)));
    }
}

impl Visit for JournalFields<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.push(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.push(field, &format!("{value:?}"));
    }
}

/// An event as JSON in a line.
pub(super) fn json_event(event: &Event<'_>, time: &str) -> String {
    let metadata = event.metadata();
    let mut fields = JsonFields::default();
    event.record(&mut fields);
    json(time, *metadata.level(), metadata.target(), &fields.message, fields.values)
}

/// A text as JSON in a line.
pub(super) fn json_line(time: &str, level: Level, part: &str, text: &str) -> String {
    json(time, level, part, text, Map::new())
}

fn json(time: &str, level: Level, part: &str, message: &str, fields: Map<String, Value>) -> String {
    let text = |text: &str| Value::from(text).to_string();
    let level = level.as_str().to_ascii_lowercase();
    let (part, message, fields) = (text(part), text(message), Value::from(fields));
    format!(
        "{{\"time\":\"{time}\",\"level\":\"{level}\",\"part\":{part},\"message\":{message},\"fields\":{fields}}}\n"
    )
}

#[derive(Default)]
struct JsonFields {
    message: String,
    values: Map<String, Value>,
}

impl JsonFields {
    fn put(&mut self, field: &Field, value: impl Into<Value>) {
        self.values.insert(field.name().to_owned(), value.into());
    }
}

impl Visit for JsonFields {
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, line::bounded(value));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = line::bounded(&format!("{value:?}"));
        if field.name() == MESSAGE {
            self.message = text;
        } else {
            self.put(field, text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_forge_a_field_of_the_journal_is_escaped() {
        let record = journal_line(Level::ERROR, "part", "one\nPRIORITY=7", "ringfab");
        assert_eq!(
            record,
            "PRIORITY=3\nSYSLOG_IDENTIFIER=ringfab\nRINGFAB_PART=part\nMESSAGE=one\\nPRIORITY=7\n"
        );
    }

    #[test]
    fn a_text_as_json_is_one_line() {
        let line = json_line("T", Level::WARN, "part", "a \"b\"\nc");
        let expected = r#"{"time":"T","level":"warn","part":"part","message":"a \"b\"\nc","fields":{}}"#;
        assert_eq!(line, expected.to_owned() + "\n");
    }
}
