//! An address. One that is accepted means the same when it is written out and read again.
#![cfg_attr(feature = "libfuzzer", no_main)]

use ringfab_fuzz::fuzz_target;
use ringfab_initiator::Url;

fuzz_target!(|text: &str| {
    match text.parse::<Url>() {
        Ok(url) => {
            let written = url.to_string();
            assert_eq!(written.parse::<Url>().as_ref(), Ok(&url), "{written}");
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
