//! The mistakes of a configuration: all of them, each with its position.

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::PathBuf;

use ringfab_base::VisiblePath as _;

/// One mistake in a configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// Line, from one.
    pub line: usize,
    /// Column in characters, from one.
    pub column: usize,
    /// The key, with its tables: `subsystem[0].namespace[1].path`. Empty for a mistake of the syntax.
    pub key: String,
    /// What is wrong, and what would be right.
    pub message: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: ", self.line, self.column)?;
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.message)
    }
}

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigErrors {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.visible())]
    Read {
        /// Which file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// All mistakes in it, in the order of the file.
    #[error("{}", lines(file, errors))]
    Invalid {
        /// The file's name, for the messages.
        file: String,
        /// At least one.
        errors: Vec<ConfigError>,
    },
}

impl ConfigErrors {
    /// The mistakes, when the file could be read.
    pub fn errors(&self) -> &[ConfigError] {
        match self {
            Self::Read { .. } => &[],
            Self::Invalid { errors, .. } => errors,
        }
    }
}

fn lines(file: &str, errors: &[ConfigError]) -> String {
    errors.iter().map(|error| format!("{file}:{error}")).collect::<Vec<_>>().join("\n")
}

/// Whether keys that are credentials of the service must be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Credentials {
    /// The configuration is to be served.
    Needed,
    /// It is only looked at: to a process that has no credentials, those of the service are out of sight.
    MayBeUnseen,
}

/// Collects mistakes while a file is read.
#[derive(Debug)]
pub(super) struct Errors<'a> {
    text: &'a str,
    found: Vec<(usize, ConfigError)>,
    /// What is a mistake of keys.
    pub(super) credentials: Credentials,
}

impl<'a> Errors<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, found: Vec::new(), credentials: Credentials::Needed }
    }

    pub(super) fn add(&mut self, span: &Range<usize>, key: impl Into<String>, message: impl Into<String>) {
        let (line, column) = self.position(span.start);
        let error = ConfigError { line, column, key: key.into(), message: message.into() };
        self.found.push((span.start, error));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Line of a place, from one, to name it in the message of another.
    pub(super) fn line(&self, span: &Range<usize>) -> usize {
        self.position(span.start).0
    }

    /// All mistakes in the order of the file.
    pub(super) fn into_sorted(mut self) -> Vec<ConfigError> {
        self.found.sort_by_key(|(offset, _)| *offset);
        self.found.into_iter().map(|(_, error)| error).collect()
    }

    fn position(&self, offset: usize) -> (usize, usize) {
        let before = self.text.get(..offset).unwrap_or(self.text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().map_or(0, |last| last.chars().count()) + 1;
        (line, column)
    }
}
