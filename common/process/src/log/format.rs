//! What of the look of its lines a program chooses.

/// Whether lines name the part of the program that they come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parts {
    /// They do.
    Named,
    /// They do not.
    Unnamed,
}

/// How events are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Records for the journal, if the standard error is its; text otherwise.
    #[default]
    Auto,
    /// Text.
    Text,
    /// JSON, an event a line.
    Json,
}

impl Format {
    /// All, by their names.
    pub const NAMES: [(&'static str, Self); 3] =
        [("auto", Self::Auto), ("text", Self::Text), ("json", Self::Json)];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, format)| *format == self).map_or("auto", |(name, _)| name)
    }
}

impl std::str::FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::NAMES.iter().find(|(name, _)| *name == text).map(|(_, format)| *format);
        found.ok_or_else(|| format!("`{text}` is not auto, text or json"))
    }
}
