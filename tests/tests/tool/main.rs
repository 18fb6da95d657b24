//! Both programs as tools of a shell: exit codes, pipes, terminals, and JSON whose shape is documented.

mod codes;
mod json;
mod manual;
mod mistakes;
mod pipes;
mod places;
mod progress;
mod reset;
mod screen;
mod terminal;

use std::process::{Command, Output};

use ringfab_tests::{TestTarget, program};

/// A target with two namespaces over NVMe/TCP, and the address of its subsystem.
fn target() -> (TestTarget, String) {
    let namespace = "[[subsystem.namespace]]\nmemory = \"1MiB\"\n";
    let target = TestTarget::with_listener("transport = \"tcp\"", &namespace.repeat(2));
    let url = target.url("").to_string();
    (target, url)
}

fn ringfab(arguments: &[&str]) -> Command {
    let mut command = Command::new(program("ringfab"));
    command.args(arguments).env_remove("RUST_LOG");
    command
}

fn ringfab_target(arguments: &[&str]) -> Command {
    let mut command = Command::new(program("ringfab-target"));
    command.args(arguments).env_remove("RUST_LOG");
    command
}

fn output(command: &mut Command) -> Output {
    command.output().expect("it runs")
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("text")
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("text")
}
