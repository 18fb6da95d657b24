//! The names of hosts and subsystems (NVM Express Base 2.0, section 4.5).

use ringfab_spec::Nqn;

/// Checks the name of a subsystem of ours: its form, and what only a person gets wrong: spaces, the month, the domain.
///
/// # Errors
/// What is wrong, as the end of a sentence that begins with the key.
pub fn check_nqn(text: &str) -> Result<(), String> {
    let nqn = Nqn::with_form(text).map_err(|error| format!("is {text:?}: {error}"))?;
    let (date, name) = nqn.as_str()["nqn.".len()..].split_at("yyyy-mm".len());
    let month = date["yyyy-".len()..].parse().is_ok_and(|month: u8| (1..=12).contains(&month));
    let domain = name[".".len()..].split(':').next().unwrap_or_default();
    let named = !domain.is_empty() && !domain.starts_with('.') && !domain.ends_with('.');
    if !month || !named || text.contains(char::is_whitespace) {
        return Err(format!("is {text:?}, but an NQN looks like \"nqn.2024-01.org.example:disk\""));
    }
    Ok(())
}

/// Checks the name of a host, which is not ours to give: any that a host may connect with (see [`ringfab_spec::nqn`]).
///
/// # Errors
/// What is wrong, as the end of a sentence that begins with the key.
pub fn check_host_nqn(text: &str) -> Result<(), String> {
    Nqn::with_form(text).map(|_| ()).map_err(|error| format!("is {text:?}: {error}"))
}

#[cfg(test)]
mod tests {
    use ringfab_spec::nqn::NQN_BYTES_MAX;

    use super::*;

    #[test]
    fn names_of_the_specified_forms_are_accepted() {
        for nqn in [
            "nqn.2014-08.org.nvmexpress.discovery",
            "nqn.2014-08.org.nvmexpress:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6",
            "nqn.2024-12.org.example:disk",
        ] {
            assert_eq!(check_nqn(nqn), Ok(()), "{nqn}");
        }
    }

    #[test]
    fn other_names_are_refused() {
        for nqn in [
            "",
            "nqn",
            "nqn.",
            "disk",
            "iqn.2024-01.org.example:a",
            "nqn.2024-13.org.e:a",
            "nqn.2024-00.org.e:a",
        ] {
            assert!(check_nqn(nqn).is_err(), "{nqn}");
        }
        for nqn in
            ["nqn.20x4-01.org.e:a", "nqn.2024-01", "nqn.2024-01.:a", "nqn.2024-01.org.e:a b", "nqn.äääää"]
        {
            assert!(check_nqn(nqn).is_err(), "{nqn}");
        }
    }

    #[test]
    fn a_host_has_a_name_with_which_it_may_connect() {
        assert_eq!(check_host_nqn("nqn.2014-08.org.nvmexpress:uuid:4C4C4544"), Ok(()));
        assert!(check_host_nqn("testhost").is_err());
        assert!(check_host_nqn("nqn.2026-11.org.example:\u{202e}a").is_err());
        assert!(check_host_nqn("").is_err());
        assert!(check_host_nqn("test\nhost").is_err());
        assert!(check_host_nqn(&"x".repeat(NQN_BYTES_MAX + 1)).is_err());
    }

    #[test]
    fn the_longest_name_has_223_bytes() {
        let prefix = "nqn.2024-01.org.example:";
        let longest = format!("{prefix}{}", "x".repeat(NQN_BYTES_MAX - prefix.len()));
        assert!(check_nqn(&longest).is_ok());
        assert!(check_nqn(&format!("{longest}x")).is_err());
    }
}
