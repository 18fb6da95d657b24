//! The options with which a host proves who it is.

use std::convert::Infallible;
use std::env;
use std::fmt;
use std::str::FromStr;

use anyhow::Result;
use clap::Args;
use ringfab_initiator::auth::{DhchapKey, Group, Hash, KeySource, Policy, SecretText};
use ringfab_initiator::{Authentication, Key, Keys, Url};

use crate::context::Usage;
use crate::quantity::Span;

/// In the environment: what the option for the key of this host says.
const HOST_KEY_VARIABLE: &str = "RINGFAB_DHCHAP_KEY";
/// The same for the key of the controller.
const CONTROLLER_KEY_VARIABLE: &str = "RINGFAB_DHCHAP_CONTROLLER_KEY";

/// How this host proves who it is, and controllers do.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Authentication")]
pub struct AuthenticationArgs {
    /// The key of this host, for targets that ask for it (DH-HMAC-CHAP): file:/path, credential:NAME of the service, or
    /// keyring:DESCRIPTION of the kernel.
    /// The key itself, DHHC-1:..., is taken, too, but others see command lines. Without it,
    /// $RINGFAB_DHCHAP_KEY
    #[arg(long, alias = "dhchap-secret", value_name = "KEY")]
    dhchap_key: Option<KeyText>,
    /// The key of the controller, given in the same ways, or $RINGFAB_DHCHAP_CONTROLLER_KEY. With it, the target has to
    /// prove who it is
    #[arg(long, alias = "dhchap-ctrl-secret", alias = "dhchap-ctrl-key", value_name = "KEY")]
    dhchap_controller_key: Option<KeyText>,
    /// Hash functions to offer
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "sha256,sha384,sha512")]
    dhchap_hashes: Vec<Hash>,
    /// DH groups to offer; null, which is none, only if it is named
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "ffdhe3072,ffdhe4096,ffdhe6144,ffdhe8192,ffdhe2048"
    )]
    dhchap_groups: Vec<Group>,
    /// Authenticate again after this time, and again. I/O goes on meanwhile
    #[arg(long, value_name = "TIME")]
    reauthenticate: Option<Span>,
}

/// What an option says of a key, which may be the key. It is parsed later: what the parser of options says of a wrong
/// value has that value.
#[derive(Clone)]
pub(crate) struct KeyText(SecretText);

impl FromStr for KeyText {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        let mut secret = SecretText::with_capacity(text.len());
        secret.expose_mut().push_str(text);
        Ok(Self(secret))
    }
}

impl fmt::Debug for KeyText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyText")
    }
}

impl KeyText {
    /// What was given.
    pub(crate) fn expose(&self) -> &str {
        self.0.expose()
    }

    /// The key, or where it is. `what`: how it was given.
    fn parse(&self, what: &str) -> Result<Key> {
        let text = self.0.expose();
        let wrong = |why: String| Usage(format!("{what}: {why}"));
        if text.starts_with("DHHC-1:") {
            return Ok(Key::Known(DhchapKey::parse(text).map_err(|error| wrong(error.to_string()))?));
        }
        if text.starts_with("NVMeTLSkey-1:") {
            return Err(wrong(
                "is a key for TLS, and a key for authentication (DHHC-1) is needed".to_owned(),
            )
            .into());
        }
        Ok(Key::At(KeySource::parse(text).map_err(wrong)?))
    }
}

impl AuthenticationArgs {
    /// What the library needs; none without a key. What the address says of keys wins.
    ///
    /// # Errors
    /// What is wrong with an option, or a key that cannot be read.
    pub(crate) fn authentication(&self, url: &Url) -> Result<Option<Authentication>> {
        let controller = self.key(
            &self.dhchap_controller_key,
            url.dhchap_controller_key.as_ref(),
            "dhchap-controller-key",
            CONTROLLER_KEY_VARIABLE,
        )?;
        let Some(host) =
            self.key(&self.dhchap_key, url.dhchap_key.as_ref(), "dhchap-key", HOST_KEY_VARIABLE)?
        else {
            return match controller {
                Some(_) => Err(Usage(
                    "--dhchap-controller-key has no meaning without --dhchap-key: a host that asks a target who it \
                     is has to prove who it is itself"
                        .to_owned(),
                )
                .into()),
                None => Ok(None),
            };
        };
        let policy = Policy::new(&self.dhchap_hashes, &self.dhchap_groups);
        let mut authentication = Authentication::new(Keys { host, controller });
        authentication.policy = policy.map_err(|error| Usage(error.to_string()))?;
        authentication.repeat = self.reauthenticate.map(|span| span.0.max(std::time::Duration::from_secs(1)));
        Ok(Some(authentication))
    }

    /// A key, or where it is: by the address, an option or the environment.
    fn key(
        &self,
        option: &Option<KeyText>,
        address: Option<&KeySource>,
        name: &str,
        variable: &str,
    ) -> Result<Option<Key>> {
        let (key, what) = match (address, option, env::var(variable)) {
            (Some(source), ..) => {
                (Key::At(source.clone()), format!("{} in the address", name.replace('-', "_")))
            }
            (None, Some(text), _) => {
                let what = format!("--{name}");
                let key = text.parse(&what)?;
                if matches!(key, Key::Known(_)) {
                    tracing::warn!(
                        "others on this machine can read the key in {what}; put it into a file, and write \
                         {what}=file:/path"
                    );
                }
                (key, what)
            }
            (None, None, Ok(text)) if !text.is_empty() => {
                let what = format!("${variable}");
                let Ok(text) = text.parse::<KeyText>();
                (text.parse(&what)?, what)
            }
            _ => return Ok(None),
        };
        // What cannot be read is told now, and not once a target asks for it.
        key.get().map_err(|why| anyhow::anyhow!("{what}: {why}"))?;
        Ok(Some(key))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    const KEY: &str = "DHHC-1:00:ycnJycnJycnJycnJycnJycnJycnJycnJycnJycnJyclx132H:";

    #[derive(Parser, Debug)]
    struct Cli {
        #[command(flatten)]
        authentication: AuthenticationArgs,
    }

    fn parsed(arguments: &[&str]) -> Result<Option<Authentication>> {
        let cli = Cli::try_parse_from([&["test"], arguments].concat()).expect("valid options");
        assert!(!format!("{cli:?}").contains("ycnJ"));
        cli.authentication.authentication(&"nvme+tcp://192.0.2.1/a".parse().expect("an address"))
    }

    #[test]
    fn a_key_is_taken_by_each_of_its_names_and_never_printed() {
        assert!(parsed(&[]).expect("nothing to do").is_none());
        for name in ["--dhchap-key", "--dhchap-secret"] {
            let authentication = parsed(&[name, KEY]).expect("a key").expect("a key");
            assert!(authentication.keys.controller.is_none() && authentication.repeat.is_none());
            assert!(!format!("{authentication:?}").contains("ycnJ"));
        }
        for name in ["--dhchap-controller-key", "--dhchap-ctrl-secret", "--dhchap-ctrl-key"] {
            let both = parsed(&["--dhchap-key", KEY, name, KEY]).expect("keys").expect("keys");
            assert!(both.keys.controller.is_some());
            assert!(parsed(&[name, KEY]).expect_err("refused").to_string().contains("no meaning without"));
        }
    }

    #[test]
    fn what_is_wrong_with_a_key_is_said_without_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("key");
        std::fs::write(&path, KEY).expect("a file");
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o644)).expect("open");
        for (text, said) in [
            (KEY.replace('y', "z"), "the checksum of the key is wrong"),
            ("NVMeTLSkey-1:01:ycnJ:".to_owned(), "is a key for TLS"),
            ("/etc/key".to_owned(), "must be \"file:/path\", \"credential:NAME\" or \"keyring:DESCRIPTION\""),
            ("file:/nowhere".to_owned(), "cannot read /nowhere"),
            ("credential:key".to_owned(), "is a credential"),
            (format!("file:{}", path.display()), "everybody may read or change it"),
        ] {
            let error = format!("{:#}", parsed(&["--dhchap-key", &text]).expect_err("refused"));
            assert!(error.contains(said) && error.starts_with("--dhchap-key: "), "{error}");
            assert!(!error.contains("ycnJ") && !error.contains("zcnJ"), "{error}");
        }
    }

    #[test]
    fn hashes_and_groups_are_lists_of_names() {
        let arguments = ["--dhchap-key", KEY, "--dhchap-hashes=sha512", "--dhchap-groups=null,ffdhe2048"];
        let policy = parsed(&arguments).expect("valid").expect("a key").policy;
        assert_eq!(policy.accepted_hashes(), [Hash::Sha512]);
        assert_eq!(policy.accepted_groups(), [Group::Null, Group::Ffdhe2048]);
        let twice = parsed(&["--dhchap-key", KEY, "--dhchap-hashes=sha512,sha512"]).expect_err("refused");
        assert!(twice.to_string().contains("named twice"), "{twice}");
        assert!(Cli::try_parse_from(["test", "--dhchap-groups=modp"]).is_err());
        let again = parsed(&["--dhchap-key", KEY, "--reauthenticate=1h"]).expect("valid").expect("a key");
        assert_eq!(again.repeat, Some(std::time::Duration::from_secs(3600)));
    }
}
