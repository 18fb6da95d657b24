//! The options of several paths to one subsystem.

use clap::Args;
use ringfab_base::shell_word;
use ringfab_initiator::{ConnectOptions, PathChooser, Url};

use crate::context::Usage;

/// Further ways to the same subsystem, and how they are used.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Paths")]
pub struct PathArgs {
    /// Another address of the same subsystem, which becomes another path; it may leave out the NQN. May be given
    /// several times
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    pub(crate) path: Vec<Url>,
    /// Use each address of a host name as a path of its own
    #[arg(long)]
    pub(crate) all_addresses: bool,
    /// Which of the best paths has the next command: round-robin, one after the other; least-outstanding, the one with
    /// the fewest commands; one-in-use, always the same until it is lost. Access states (ANA) go before it
    #[arg(long, value_name = "NAME", default_value_t)]
    pub(crate) path_policy: PathChooser,
}

impl PathArgs {
    /// The addresses, each with the name of the subsystem that `first` has.
    ///
    /// # Errors
    /// One is of another subsystem, or a discovery controller has several.
    pub(crate) fn addresses(&self, first: &Url) -> Result<Vec<Url>, Usage> {
        if first.is_discovery() && !self.path.is_empty() {
            return Err(Usage(format!(
                "{} names no subsystem, so there is nothing that --path is another path to",
                shell_word(first)
            )));
        }
        self.path.iter().map(|url| beside(url, first)).collect()
    }

    /// Says how several paths are used.
    pub(crate) fn apply(&self, options: &mut ConnectOptions) {
        options.paths.chooser = self.path_policy;
        options.paths.all_addresses = self.all_addresses;
    }
}

/// Another address of the subsystem that `first` leads to. It may name no subsystem, and then means the same.
///
/// # Errors
/// It is of another subsystem.
pub(crate) fn beside(url: &Url, first: &Url) -> Result<Url, Usage> {
    let mut url = url.clone();
    if url.is_discovery() {
        url.subsystem.clone_from(&first.subsystem);
    }
    if url.subsystem_nqn() != first.subsystem_nqn() {
        return Err(Usage(format!(
            "{} is an address of another subsystem than {}; paths lead to one",
            shell_word(&url),
            shell_word(first)
        )));
    }
    if url.namespace.is_some() && first.namespace.is_some() && url.namespace != first.namespace {
        return Err(Usage(format!("{} has another namespace than {}", shell_word(&url), shell_word(first))));
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        paths: PathArgs,
    }

    const FIRST: &str = "nvme+tcp://192.0.2.1/nqn.2026-11.com.example:a";

    fn addresses(arguments: &[&str]) -> Result<Vec<String>, String> {
        let cli = Cli::try_parse_from([&["test"], arguments].concat()).map_err(|error| error.to_string())?;
        let urls =
            cli.paths.addresses(&FIRST.parse().expect("an address")).map_err(|error| error.to_string())?;
        Ok(urls.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn paths_lead_to_the_same_subsystem_and_need_not_say_so() {
        let other = "nvme+rdma://192.0.2.3/nqn.2026-11.com.example:a?provider=iwarp";
        let found = addresses(&["--path", "nvme+tcp://192.0.2.2", "--path", other]).expect("two");
        assert_eq!(found.len(), 2);
        assert!(found[0].starts_with("nvme+tcp://192.0.2.2") && found[0].ends_with("example:a"), "{found:?}");
        assert!(found[1].starts_with("nvme+rdma://192.0.2.3"), "{found:?}");
        let list = format!("--path=nvme+tcp://192.0.2.2,{other}");
        assert_eq!(addresses(&[&list]).expect("a list"), found);
        let error =
            addresses(&["--path", "nvme+tcp://192.0.2.2/nqn.2026-11.com.example:b"]).expect_err("another");
        assert!(error.contains("another subsystem"), "{error}");
        assert!(addresses(&["--path", "192.0.2.2"]).expect_err("no address").contains("an address begins"));
        let error = addresses(&["--path-policy", "fastest"]).expect_err("no policy");
        assert!(error.contains("round-robin, least-outstanding, one-in-use"), "{error}");
    }

    #[test]
    fn a_discovery_controller_has_no_paths() {
        let cli = Cli::try_parse_from(["test", "--path", "nvme+tcp://192.0.2.2"]).expect("valid");
        let first = "nvme+tcp://192.0.2.1".parse().expect("an address");
        let error = cli.paths.addresses(&first).expect_err("no subsystem").to_string();
        assert!(error.contains("names no subsystem"), "{error}");
    }
}
