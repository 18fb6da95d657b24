//! Instructions, where perf counts them: most virtual machines have no counters.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// What is counted: in user mode, since the kernel's part is not ours and needs rights.
const EVENT: &str = "instructions:u";

/// Whether there is a perf here that counts instructions.
pub(crate) fn counts() -> bool {
    static COUNTS: OnceLock<bool> = OnceLock::new();
    *COUNTS.get_or_init(|| {
        let mut command = Command::new("perf");
        command.args(["stat", "-x", ",", "-e", EVENT, "true"]).stdin(Stdio::null());
        let output = command.output();
        output.is_ok_and(|output| instructions(&String::from_utf8_lossy(&output.stderr)).is_some())
    })
}

/// The same command, with perf counting all that a process does meanwhile into a file.
pub(crate) fn counting(command: &Command, process: u32, file: &Path) -> Command {
    let mut counted = Command::new("perf");
    counted.args(["stat", "-x", ",", "-e", EVENT, "-p", &process.to_string(), "-o"]).arg(file).arg("--");
    counted.arg(command.get_program()).args(command.get_args());
    counted
}

/// How many instructions perf has written down.
pub(crate) fn counted(file: &Path) -> Option<f64> {
    instructions(&fs::read_to_string(file).ok()?)
}

/// The count on the line of the event: its first field, unless that says why there is none.
fn instructions(text: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.split(',').any(|field| field == EVENT))?;
    line.split(',').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_found_behind_comments_and_none_where_it_is_not_supported() {
        let text = "# started on Mon\n\n123456,,instructions:u,1000,100.00,,\n";
        assert_eq!(instructions(text), Some(123_456.0));
        assert_eq!(instructions("<not supported>,,instructions:u,0,100.00,,\n"), None);
        assert_eq!(instructions("no such event\n"), None);
    }

    #[test]
    fn perf_runs_the_command_with_its_arguments() {
        let mut command = Command::new("ringfab");
        command.args(["bench", "URL"]);
        let counted = counting(&command, 7, Path::new("/tmp/count"));
        let arguments: Vec<_> = counted.get_args().map(|argument| argument.to_string_lossy()).collect();
        assert_eq!(
            arguments.join(" "),
            "stat -x , -e instructions:u -p 7 -o /tmp/count -- ringfab bench URL"
        );
    }
}
