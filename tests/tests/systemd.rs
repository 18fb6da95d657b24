//! The systemd files, checked by systemd's own tools.

use std::path::Path;
use std::process::Command;

use ringfab_tests::{not_run, program};

/// The script's exit status for a machine without the tools.
const NOT_RUN: i32 = 77;

#[test]
fn the_unit_verifies_and_is_little_exposed() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/systemd.sh");
    let output = Command::new(script).arg(program("ringfab-target")).output().expect("the script runs");
    let said = String::from_utf8_lossy(&output.stdout);
    if output.status.code() == Some(NOT_RUN) {
        return not_run("systemd-analyze is missing");
    }
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("Overall exposure level"), "{said}");
}
