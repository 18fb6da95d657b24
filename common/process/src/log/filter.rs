//! Which events are logged.

use std::str::FromStr as _;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;

/// All parts of our programs begin so, and nothing else that is linked into them logs.
const OURS: &str = "ringfab";

/// A log filter that cannot be used; the end of a sentence that begins with its key.
#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    /// It is no filter.
    #[error("is not a log filter: {0}")]
    Form(String),
    /// It names a part that no program of ours has, so that nothing would be logged.
    #[error(
        "names {0:?}, which is neither a level (error, warn, info, debug, trace, off) nor a part of this program \
         (\"info,ringfab_target=debug\")"
    )]
    Unknown(String),
}

/// Makes a filter of a text: levels and parts of the program, separated by commas.
///
/// # Errors
/// When it is no filter, or names what is no part of our programs: that would silence everything.
pub fn check_filter(text: &str) -> Result<EnvFilter, FilterError> {
    let filter = EnvFilter::try_new(text).map_err(|error| FilterError::Form(error.to_string()))?;
    for directive in text.split(',').filter(|directive| !directive.is_empty()) {
        let part = directive.split(['=', '[']).next().unwrap_or(directive);
        let level = part == directive && LevelFilter::from_str(part).is_ok();
        if !level && !part.starts_with(OURS) {
            return Err(FilterError::Unknown(part.to_owned()));
        }
    }
    Ok(filter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_parts_of_ours_are_filters() {
        for text in ["info", "OFF", "debug,ringfab_target=trace", "warn,ringfab_fabric::stream=off", "3"] {
            assert!(check_filter(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn what_would_silence_everything_is_refused() {
        let error = |text: &str| check_filter(text).expect_err(text).to_string();
        assert!(error("loud").starts_with("names \"loud\", which is neither a level"));
        assert!(error("info,nvme=debug").starts_with("names \"nvme\""));
        assert!(error("ringfab_target=loud").starts_with("is not a log filter"));
    }
}
