//! Which events are logged.

use std::str::FromStr as _;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;

/// The parts of our programs: nothing else that is linked into them logs. A part has modules, as `::` says.
const PARTS: [&str; 18] = [
    "ringfab",
    "ringfab_auth",
    "ringfab_base",
    "ringfab_block",
    "ringfab_crc",
    "ringfab_fabric",
    "ringfab_front_ends",
    "ringfab_fuse",
    "ringfab_initiator",
    "ringfab_memory",
    "ringfab_nbd",
    "ringfab_process",
    "ringfab_proto",
    "ringfab_rbd",
    "ringfab_reactor",
    "ringfab_spec",
    "ringfab_target",
    "ringfab_tls",
];

const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];

/// How alike a name has to be to one that there is, for that to be suggested.
const LIKENESS_MIN: f64 = 0.8;

/// A log filter that cannot be used; the end of a sentence that begins with its key.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// It is no filter.
    #[error("is not a log filter: {0}")]
    Form(String),
    /// It says nothing, and nothing would be logged.
    #[error("is empty: a filter has a level (error, warn, info, debug, trace, off), or parts with levels")]
    Empty,
    /// It names a part that no program of ours has, so that nothing would be logged.
    #[error(
        "names `{name}`, which is neither a level (error, warn, info, debug, trace, off) nor a part of these programs \
         (`info,ringfab_target=debug`){}",
        .meant.map(|meant| format!("; did you mean {meant}?")).unwrap_or_default()
    )]
    Unknown {
        /// What it names.
        name: String,
        /// What it may mean.
        meant: Option<&'static str>,
    },
}

/// Makes a filter of a text: levels and parts of the program, separated by commas.
///
/// # Errors
/// When it is no filter, or names what is no part of our programs, or nothing: that would silence everything.
pub fn check_filter(text: &str) -> Result<EnvFilter, FilterError> {
    if text.split(',').all(|directive| directive.trim().is_empty()) {
        return Err(FilterError::Empty);
    }
    let filter = EnvFilter::try_new(text).map_err(|error| FilterError::Form(error.to_string()))?;
    for directive in text.split(',').filter(|directive| !directive.is_empty()) {
        let name = directive.split(['=', '[']).next().unwrap_or(directive);
        let is_level = name == directive && LevelFilter::from_str(name).is_ok();
        // Only whole names: the filter itself would take any beginning of one, and also what begins none.
        let part = name.split("::").next().unwrap_or(name);
        if !is_level && !PARTS.contains(&part) {
            return Err(FilterError::Unknown { name: name.to_owned(), meant: meant_by(part) });
        }
    }
    Ok(filter)
}

/// The level or part that somebody may have meant.
fn meant_by(name: &str) -> Option<&'static str> {
    let name = name.trim().to_ascii_lowercase();
    let names = PARTS.into_iter().chain(LEVELS).map(|known| (known, strsim::jaro_winkler(known, &name)));
    let (best, likeness) = names.max_by(|one, other| one.1.total_cmp(&other.1))?;
    (likeness >= LIKENESS_MIN).then_some(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_parts_of_ours_are_filters() {
        let parts = "ringfab=debug,ringfab_tls";
        for text in
            ["info", "OFF", "debug,ringfab_target=trace", "warn,ringfab_fabric::stream=off", "3", parts]
        {
            assert!(check_filter(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn what_would_silence_everything_is_refused() {
        let error = |text: &str| check_filter(text).expect_err(text).to_string();
        assert!(error("loud").starts_with("names `loud`, which is neither a level"));
        assert!(error("info,nvme=debug").starts_with("names `nvme`"));
        assert!(error("ringfab_target=loud").starts_with("is not a log filter"));
        for text in ["", " ", ",", " , "] {
            assert!(error(text).starts_with("is empty"), "{text:?}");
        }
    }

    #[test]
    fn what_is_almost_the_name_of_a_part_is_refused_with_the_name() {
        for (text, meant) in [
            ("ringfab_targt=debug", Some("ringfab_target")),
            ("info,ringfabtarg_t=debug", Some("ringfab_target")),
            ("ringfab-target=debug", Some("ringfab_target")),
            ("ringfab_t=debug", Some("ringfab_tls")),
            ("ringfab_targt::queue=debug", Some("ringfab_target")),
            ("inof", Some("info")),
            ("loud", None),
        ] {
            let error = check_filter(text).expect_err(text);
            let FilterError::Unknown { meant: found, .. } = &error else { panic!("{text}: {error}") };
            assert_eq!(*found, meant, "{text}");
            assert_eq!(error.to_string().contains("did you mean"), meant.is_some(), "{error}");
        }
    }

    #[test]
    fn the_parts_are_the_crates_of_our_programs() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let read = |path: &str| std::fs::read_to_string(root.join(path)).expect(path);
        let manifest = read("Cargo.toml");
        let (_, members) = manifest.split_once("members = [").expect("the members");
        let members = members.split(']').next().expect("their end").split('"').skip(1).step_by(2);
        let mut crates: Vec<String> = members
            .filter(|member| !member.starts_with("tests"))
            .map(|member| {
                let manifest = read(&format!("{member}/Cargo.toml"));
                let (_, name) = manifest.split_once("name = \"").expect("a name");
                name.split('"').next().expect("its end").replace('-', "_")
            })
            .collect();
        crates.sort();
        assert_eq!(crates, PARTS);
    }
}
