//! The programs of the project, for tests that start them as users do.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// Path of `ringfab-target`, `ringfab`, or a program of the tests' own, built from the sources as they are, in the
/// profile of this test. Where `RINGFAB_BIN_DIR` names a folder, whoever set it has built them there.
///
/// # Panics
/// When it does not build.
pub fn program(name: &str) -> PathBuf {
    if let Some(folder) = std::env::var_os("RINGFAB_BIN_DIR") {
        return PathBuf::from(folder).join(name);
    }
    // One build at a time, so that tests in threads do not print over each other, and one of each program: sources do
    // not change while a test runs.
    static BUILT: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let mut built_before = BUILT.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let package = match name {
        "ringfab-target" => "ringfab-target",
        "ringfab" => "ringfab",
        "ringfab-stuck-fs" | "ringfab-confined" => "ringfab-tests",
        other => panic!("{other} is not a program of this project"),
    };
    let folder = profile_folder();
    if built_before.iter().any(|built| built == name) {
        return folder.join(name);
    }
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--locked", "--package", package, "--bin", name]);
    if folder.ends_with("release") {
        cargo.arg("--release");
    }
    // What cargo tells this test of its own package. Build scripts that look at these variables (the one of `ring`
    // does) would run again, and all that depends on them would be compiled again, here and at the next build outside.
    for (variable, _) in std::env::vars_os() {
        let name = variable.to_string_lossy();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(variable);
        }
    }
    let build_folder = folder.parent().expect("a profile's folder lies in the build folder");
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let built = cargo.current_dir(workspace).env("CARGO_TARGET_DIR", build_folder).status();
    assert!(built.expect("cargo runs").success(), "{name} does not build");
    built_before.push(name.to_owned());
    folder.join(name)
}

/// Says that a test could not run, here and in the file that `RINGFAB_NOT_RUN` names, if it does. It is no pass: where
/// tools are required (`RINGFAB_REQUIRE_TOOLS`), it fails.
///
/// # Panics
/// Where tools are required.
#[expect(clippy::print_stderr, reason = "whoever runs the tests must see what did not run")]
pub fn not_run(why: &str) {
    assert!(std::env::var_os("RINGFAB_REQUIRE_TOOLS").is_none(), "NOT RUN: {why}");
    eprintln!("NOT RUN: {why}");
    // What a test that passes says is not shown.
    if let Some(path) = std::env::var_os("RINGFAB_NOT_RUN") {
        let mut notes = File::options().append(true).create(true).open(path).expect("a file for notes");
        writeln!(notes, "{why}").expect("a file for notes can be written");
    }
}

/// The folder of the profile that this executable was built in: test executables lie in its `deps`.
fn profile_folder() -> PathBuf {
    let executable = std::env::current_exe().expect("this executable");
    let folder = executable.ancestors().find(|folder| folder.ends_with("deps")).and_then(Path::parent);
    folder.expect("a test executable lies in deps").to_path_buf()
}
