//! A configuration file. One that is accepted means the same when it is written out and read again.
#![cfg_attr(feature = "libfuzzer", no_main)]

use ringfab_fuzz::fuzz_target;
use ringfab_target::Config;

fuzz_target!(|text: &str| {
    match Config::parse(text, "fuzz.toml") {
        Ok(config) => {
            let again = Config::parse(&config.to_toml(), "again.toml").expect("what it writes, it reads");
            assert_eq!(again, config);
        }
        Err(errors) => assert!(!errors.to_string().is_empty()),
    }
});
