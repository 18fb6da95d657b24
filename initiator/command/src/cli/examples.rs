//! What stands at the end of each command's help: examples that can be pasted, and how sizes and times are written.
//!
//! A test parses every example, so they cannot be out of date. Lines are short: on a terminal of 80 columns none is
//! broken.

/// The end of a help text, of lines of examples and notes.
macro_rules! examples {
    ($($line:literal),+ $(; $($note:ident),+)?) => {
        concat!("Examples:", $("\n  ", $line),+ $(, $("\n\n", note!($note)),+)?)
    };
}

macro_rules! note {
    (TIME) => {
        "TIME is a number of seconds, or has a unit: 50us, 500ms, 10s, 2m, 1h."
    };
    (SIZE) => {
        "SIZE is a number of bytes, or has a unit: 4k, 1MiB, 2GiB (powers of 1024), 2GB (of 1000)."
    };
}

pub(crate) const DISCOVER: &str = examples!(
    "ringfab discover nvme+tcp://192.0.2.5",
    "ringfab discover --referrals --json nvme+rdma://192.0.2.5:4420",
    "ringfab discover --mdns --follow"; TIME
);

pub(crate) const CONNECT_ALL: &str = examples!(
    "ringfab connect-all --nbd /run/ringfab/disks nvme+tcp://192.0.2.5 &",
    "ringfab connect-all --fuse /mnt/fabric --mdns --follow &"; TIME
);

pub(crate) const DOCTOR: &str = examples!(
    "ringfab doctor nvme+tcp://192.0.2.5",
    "ringfab doctor nvme+tcp://192.0.2.5/nqn.2026-11.com.example:a"; TIME
);

pub(crate) const MOUNT: &str = examples!(
    "ringfab mount nvme+tcp://192.0.2.5/nqn.2026-11.com.example:a /mnt/a",
    "ringfab mount nvme+tcp://192.0.2.5/nqn.2026-11.com.example:a /mnt/a \\\n      \
     --nsid 1 --mkfs ext4 -o noatime,nodev",
    "ringfab mount data"; TIME
);

pub(crate) const UMOUNT: &str = examples!("ringfab umount /mnt/a", "ringfab umount data");

pub(crate) const RESET: &str = examples!(
    "ringfab reset /mnt/a",
    "ringfab reset nvme+tcp://192.0.2.5/nqn.2026-11.com.example:a",
    "ringfab reset --all"; TIME
);

pub(crate) const PATH: &str = examples!(
    "ringfab path list",
    "ringfab path list /mnt/a --interval 2s",
    "ringfab path add /mnt/a nvme+tcp://192.0.2.6",
    "ringfab path remove /mnt/a 2"
);

pub(crate) const METRICS: &str = examples!("ringfab metrics");

pub(crate) const VOLUME: &str = examples!("ringfab volume list", "ringfab volume check");

pub(crate) const SHOW_HOSTNQN: &str = examples!("ringfab show-hostnqn", "ringfab show-hostnqn --json");

pub(crate) const LIST: &str = examples!(
    "ringfab list",
    "ringfab list nvme+tcp://192.0.2.5/nqn.2026-11.com.example:a",
    "ringfab list --json 'nvme+rdma://[2001:db8::5]/nqn.2026-11.com.example:a'"; TIME
);

pub(crate) const ID_CTRL: &str = examples!(
    "ringfab id-ctrl nvme+tcp://192.0.2.5/nqn.2026-11.com.example:a"; TIME
);

pub(crate) const ID_NS: &str = examples!(
    "ringfab id-ns nvme+tcp://192.0.2.5/nqn.2026-11.com.example:a --nsid 1",
    "ringfab id-ns --json 'nvme+tcp://192.0.2.5/nqn.2026-11.com.example:a?ns=1'"; TIME
);

pub(crate) const SMART: &str = examples!(
    "ringfab smart nvme+tcp://192.0.2.5/nqn.2026-11.com.example:a"; TIME
);

pub(crate) const ANA_LOG: &str = examples!(
    "ringfab ana-log nvme+tcp://192.0.2.5/nqn.2026-11.com.example:a"; TIME
);

pub(crate) const ERROR_LOG: &str = examples!(
    "ringfab error-log nvme+tcp://192.0.2.5/nqn.2026-11.com.example:a -e 16"; TIME
);

pub(crate) const EFFECTS_LOG: &str = examples!(
    "ringfab effects-log nvme+tcp://192.0.2.5/nqn.2026-11.com.example:a -H"; TIME
);

pub(crate) const CHANGED_NS_LIST_LOG: &str = examples!(
    "ringfab changed-ns-list-log nvme+tcp://192.0.2.5/nqn.2026-11.com.example:a"; TIME
);

pub(crate) const GET_FEATURE: &str = examples!(
    "ringfab get-feature nvme+tcp://192.0.2.5/nqn.2026-11.com.example:a",
    "ringfab get-feature nvme+tcp://192.0.2.5/nqn.2026-11.com.example:a -f 0x07 -H"; TIME
);

pub(crate) const TRIM: &str = examples!(
    "ringfab trim nvme+tcp://192.0.2.5/nqn.2026-11.com.example:a \\\n      \
     --offset 1GiB --length 64MiB --destroy-data 1",
    "ringfab trim nvme+tcp://192.0.2.5/nqn.2026-11.com.example:a --all --force",
    "ringfab trim nvme+tcp://192.0.2.5/nqn.2026-11.com.example:a -s 0,100 -b 8,8 -f"; SIZE, TIME
);

#[cfg(feature = "verbs")]
pub(crate) const DEVICES: &str = examples!("ringfab devices", "ringfab devices --json");

pub(crate) const READ: &str = examples!(
    "ringfab read nvme+tcp://192.0.2.5/nqn.2026-11.com.example:a -o disk.img",
    "ringfab read nvme+tcp://192.0.2.5/nqn.2026-11.com.example:a | gzip > disk.gz",
    "ringfab read nvme+tcp://192.0.2.5/nqn.2026-11.com.example:a --nsid 2 \\\n      \
     --offset 1GiB --length 64MiB -o part.img"; SIZE, TIME
);

pub(crate) const WRITE: &str = examples!(
    "ringfab write nvme+tcp://192.0.2.5/nqn.2026-11.com.example:a -i disk.img \\\n      \
     --destroy-data 1",
    "zcat disk.gz | ringfab write nvme+tcp://192.0.2.5/nqn.2026-11.com.example:a \\\n      \
     --destroy-data 1"; SIZE, TIME
);

pub(crate) const NBD: &str = examples!(
    "ringfab nbd nvme+tcp://192.0.2.5/nqn.2026-11.com.example:a \\\n      \
     --socket /run/disk.sock &",
    "ringfab nbd nvme+tcp://192.0.2.5/nqn.2026-11.com.example:a \\\n      \
     --listen 127.0.0.1:10809 &"; TIME
);

pub(crate) const FUSE: &str = examples!(
    "ringfab fuse nvme+tcp://192.0.2.5/nqn.2026-11.com.example:a /mnt/fabric &",
    "ringfab fuse --read-only nvme+tcp://192.0.2.5/nqn.2026-11.com.example:a \\\n      \
     /mnt/fabric &"; TIME
);

pub(crate) const KEYS: &str = examples!("ringfab keys generate --tls > key");

pub(crate) const KEYS_GENERATE: &str = examples!(
    "ringfab keys generate > /etc/ringfab/keys/host",
    "ringfab keys generate --tls --hmac sha384 > /etc/ringfab/keys/tls"
);

pub(crate) const KEYS_CHECK: &str =
    examples!("ringfab keys check /etc/ringfab/nqn.2026-11.com.example:host-1.keys");

pub(crate) const KEYS_IDENTITY: &str = examples!(
    "ringfab keys identity --host nqn.2026-11.com.example:host-1 \\\n      \
     --subsystem nqn.2026-11.com.example:a \\\n      \
     /etc/ringfab/nqn.2026-11.com.example:host-1.keys"
);

pub(crate) const KEYS_PAIR: &str = examples!(
    "ringfab keys pair --tls --directory /etc/ringfab/keys \\\n      \
     --host nqn.2026-11.com.example:host-1 \\\n      \
     --subsystem nqn.2026-11.com.example:a"
);

pub(crate) const BENCH: &str = examples!(
    "ringfab bench nvme+tcp://192.0.2.5/nqn.2026-11.com.example:a \\\n      \
     --depth 32 --time 30s",
    "ringfab bench nvme+tcp://192.0.2.5/nqn.2026-11.com.example:a --rw randrw \\\n      \
     --rwmix 70 --bs 8k --queues 4 --cores 2 --destroy-data 1"; SIZE, TIME
);

#[cfg(test)]
mod tests {
    use clap::{Command, CommandFactory as _, Parser as _};
    use ringfab_base::shell_words;

    use crate::cli::Cli;

    /// Calls `look` with every command that can be run, and its name.
    fn each(command: &Command, name: &str, look: &mut impl FnMut(&str, &Command)) {
        for one in command.get_subcommands().filter(|one| one.get_name() != "help" && !one.is_hide_set()) {
            let name = format!("{name} {}", one.get_name());
            look(&name, one);
            each(one, &name, look);
        }
    }

    fn help(command: &Command) -> String {
        let width = 80;
        command.clone().term_width(width).render_long_help().to_string()
    }

    #[test]
    fn every_command_has_examples_that_parse() {
        let mut count = 0;
        each(&Cli::command(), "ringfab", &mut |name, command| {
            let help = help(command);
            let examples = help.split_once("Examples:\n").unwrap_or_else(|| panic!("{name} has none")).1;
            let examples = examples.split("\n\n").next().expect("a first part").replace("\\\n", "");
            for line in examples.lines() {
                let from = line.find("ringfab ").unwrap_or_else(|| panic!("{name}: {line}"));
                let words = shell_words(&line[from..]);
                assert!(words.join(" ").starts_with(name), "{name}: {line}");
                Cli::try_parse_from(&words).unwrap_or_else(|error| panic!("{line}: {error}"));
                count += 1;
            }
        });
        assert!(count > 25, "{count}");
    }

    #[test]
    fn every_command_says_how_sizes_and_times_are_written_that_it_takes() {
        each(&Cli::command(), "ringfab", &mut |name, command| {
            let help = help(command);
            for unit in ["SIZE", "TIME"] {
                let takes = help.contains(&format!("<{unit}>"));
                assert_eq!(help.contains(&format!("\n{unit} is a number of ")), takes, "{name}: {unit}");
            }
        });
    }

    #[test]
    fn a_line_of_an_example_fits_a_terminal() {
        each(&Cli::command(), "ringfab", &mut |name, command| {
            let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            for line in after.lines().filter(|line| line.starts_with("  ")) {
                assert!(line.len() <= 80 && help(command).contains(line), "{name}: {line}");
            }
        });
    }
}
