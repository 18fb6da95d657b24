//! What the fuzz targets share: the macro that makes a program of one.
//!
//! `make fuzz` builds them with libFuzzer, which brings their `main`. Without it each is a program that runs the files
//! that it is given, so that lints and a debugger have them as they have everything else.

#[cfg(feature = "libfuzzer")]
pub use libfuzzer_sys;

/// Makes a program of a fuzz target, which is a closure that takes `&[u8]` or `&str`.
#[cfg(feature = "libfuzzer")]
#[macro_export]
macro_rules! fuzz_target {
    (|$input:ident: $kind:ty| $body:block) => {
        $crate::libfuzzer_sys::fuzz_target!(|$input: $kind| $body);
    };
}

/// Makes a program of a fuzz target, which is a closure that takes `&[u8]` or `&str`.
#[cfg(not(feature = "libfuzzer"))]
#[macro_export]
macro_rules! fuzz_target {
    (|$input:ident: $kind:ty| $body:block) => {
        fn run_input($input: $kind) $body

        fn main() -> std::io::Result<()> {
            $crate::run_files(|bytes| {
                if let Some(input) = $crate::Input::from_bytes(bytes) {
                    run_input(input);
                }
            })
        }
    };
}

/// What a fuzz target takes.
pub trait Input<'a>: Sized {
    /// The input that these bytes are, if they are one.
    fn from_bytes(bytes: &'a [u8]) -> Option<Self>;
}

impl<'a> Input<'a> for &'a [u8] {
    fn from_bytes(bytes: &'a [u8]) -> Option<Self> {
        Some(bytes)
    }
}

impl<'a> Input<'a> for &'a str {
    fn from_bytes(bytes: &'a [u8]) -> Option<Self> {
        std::str::from_utf8(bytes).ok()
    }
}

/// Runs a fuzz target on each file that the command line names.
///
/// # Errors
///
/// A file cannot be read.
pub fn run_files(target: impl Fn(&[u8])) -> std::io::Result<()> {
    for path in std::env::args_os().skip(1) {
        target(&std::fs::read(path)?);
    }
    Ok(())
}
