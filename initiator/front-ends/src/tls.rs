//! The options for connections over TLS.

use std::env;

use anyhow::Result;
use clap::{Args, ValueEnum};
use ringfab_initiator::auth::{ConfiguredPsk, Derivation, KeySource};
use ringfab_initiator::{Tls, TlsKey, Url};

use crate::authentication::KeyText;
use crate::context::Usage;

/// In the environment: what the option for the key says.
const KEY_VARIABLE: &str = "RINGFAB_TLS_KEY";

/// How connections over NVMe/TCP are protected.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "TLS")]
pub(crate) struct TlsArgs {
    /// Use TLS 1.3. A key says so, too; `tls=off` in the address does not use it
    #[arg(long)]
    tls: bool,
    /// The key of this host for TLS over NVMe/TCP: file:/path, credential:NAME of the service, or
    /// keyring:DESCRIPTION of the kernel. The key itself,
    /// NVMeTLSkey-1:..., is taken, too, but others see command lines. Without it, $RINGFAB_TLS_KEY
    #[arg(long, value_name = "KEY")]
    tls_key: Option<KeyText>,
    /// How keys are derived: as specified, or as libnvme did before July 2025, for targets with keys from there
    #[arg(long, value_name = "NAME", default_value = "specified")]
    tls_derivation: DerivationName,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DerivationName {
    Specified,
    #[value(name = "libnvme-before-2025-07")]
    LibnvmeBefore202507,
}

impl TlsArgs {
    /// Whether TLS is asked for.
    pub(crate) fn is_asked_for(&self) -> bool {
        self.tls
    }

    /// What the library needs; none without a key. What the address says of the key wins.
    ///
    /// # Errors
    /// What is wrong with an option, or a key that cannot be read.
    pub(crate) fn tls(&self, url: &Url) -> Result<Option<Tls>> {
        let (key, what) = match (&url.tls_key, &self.tls_key, env::var(KEY_VARIABLE)) {
            (Some(source), ..) => (TlsKey::At(source.clone()), "tls_key in the address".to_owned()),
            (None, Some(text), _) => {
                let what = "--tls-key".to_owned();
                let key = parse(text, &what)?;
                if matches!(key, TlsKey::Known(_)) {
                    tracing::warn!(
                        "others on this machine can read the key in {what}; put it into a file, and write \
                         {what}=file:/path"
                    );
                }
                (key, what)
            }
            (None, None, Ok(text)) if !text.is_empty() => {
                let what = format!("${KEY_VARIABLE}");
                let Ok(text) = text.parse::<KeyText>();
                (parse(&text, &what)?, what)
            }
            _ => return Ok(None),
        };
        // What cannot be read is told now, and not by the target.
        key.get().map_err(|why| anyhow::anyhow!("{what}: {why}"))?;
        let derivation = match self.tls_derivation {
            DerivationName::Specified => Derivation::Specified,
            DerivationName::LibnvmeBefore202507 => Derivation::LibnvmeBefore202507,
        };
        Ok(Some(Tls { key, derivation }))
    }
}

/// The key, or where it is. `what`: how it was given.
fn parse(text: &KeyText, what: &str) -> Result<TlsKey> {
    let text = text.expose();
    let wrong = |why: String| Usage(format!("{what}: {why}"));
    if text.starts_with("NVMeTLSkey-1:") || text.starts_with("DHHC-1:") {
        return Ok(TlsKey::Known(ConfiguredPsk::parse(text).map_err(|error| wrong(error.to_string()))?));
    }
    Ok(TlsKey::At(KeySource::parse(text).map_err(wrong)?))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    const KEY: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";

    #[derive(Parser, Debug)]
    struct Cli {
        #[command(flatten)]
        tls: TlsArgs,
    }

    fn parsed(arguments: &[&str], parameters: &str) -> Result<Option<Tls>> {
        let cli = Cli::try_parse_from([&["test"], arguments].concat()).expect("valid options");
        assert!(!format!("{cli:?}").contains("VRL"));
        cli.tls.tls(&format!("nvme+tcp://192.0.2.1/a{parameters}").parse().expect("an address"))
    }

    #[test]
    fn a_key_is_the_key_or_where_it_is_and_the_address_wins() {
        assert!(parsed(&[], "").expect("nothing to do").is_none());
        let tls = parsed(&["--tls-key", KEY], "").expect("a key").expect("a key");
        assert!(matches!(tls.key, TlsKey::Known(_)) && tls.derivation == Derivation::Specified);
        assert!(!format!("{tls:?}").contains("VRL"));
        let old = parsed(&["--tls-key", KEY, "--tls-derivation=libnvme-before-2025-07"], "");
        assert_eq!(old.expect("a key").expect("a key").derivation, Derivation::LibnvmeBefore202507);
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), KEY).expect("written");
        let at = format!("?tls_key=file:{}", file.path().display());
        let tls = parsed(&["--tls-key", KEY], &at).expect("a key").expect("a key");
        assert_eq!(tls.key, TlsKey::At(KeySource::File(file.path().into())));
    }

    #[test]
    fn what_is_wrong_with_a_key_is_said_without_it() {
        for (text, said) in [
            (KEY.replace("VRL", "WRL"), "the checksum of the key is wrong"),
            ("DHHC-1:00:VRLbtn:".to_owned(), "this is a key for authentication (DHHC-1)"),
            ("/etc/key".to_owned(), "must be \"file:/path\", \"credential:NAME\" or \"keyring:DESCRIPTION\""),
            ("file:/nowhere".to_owned(), "cannot read /nowhere"),
        ] {
            let error = format!("{:#}", parsed(&["--tls-key", &text], "").expect_err("refused"));
            assert!(error.contains(said) && error.starts_with("--tls-key: "), "{error}");
            assert!(!error.contains("VRL") && !error.contains("WRL"), "{error}");
        }
    }
}
