//! What a person types so that a host has its keys and uses them: with our initiator, or with nvme-cli.

use std::fmt::Write as _;

use ringfab_base::shell_quoted;

/// What the steps are about.
#[derive(Clone, Copy, Debug)]
pub struct HostSteps<'a> {
    /// NQN of the host.
    pub host: &'a str,
    /// NQN of the subsystem.
    pub subsystem: &'a str,
    /// Where the file with the keys is now.
    pub file: &'a str,
    /// Its name on the host, which a shell takes as it is.
    pub name: &'a str,
    /// `tcp` or `rdma`.
    pub transport: &'a str,
    /// Where the host connects, as an address of the system has it; none where that is not known.
    pub address: Option<&'a str>,
    /// The port there.
    pub port: u16,
    /// Whether the file has keys for authentication.
    pub dhchap: bool,
    /// Whether the file has a key for TLS.
    pub tls: bool,
}

/// The folder on the host. It is another one than that of the target's keys, which are another user's: both ends may be
/// on one machine.
const HOST_FOLDER: &str = "/etc/ringfab";

/// What stands for an address that is not known.
const ADDRESS: &str = "ADDRESS";

impl HostSteps<'_> {
    /// The place of the file on the host.
    pub fn place(&self) -> String {
        format!("{HOST_FOLDER}/{}", self.name)
    }

    /// Numbered steps for a new host.
    pub fn text(&self) -> String {
        let place = self.place();
        format!(
            "1. Copy the file to the host, for root alone (HOST is its address):\n\n   {}\n\n\
             2. Use it there, with ringfab:\n\n   ringfab list {} --keys {place}\n\n   \
             or in volumes.toml as keys = \"{place}\", or among the options of a line of fstab as keys={place}.\n   \
             Or with nvme-cli, whose command lines others can read while it runs:\n\n{}\n",
            self.copy(),
            shell_quoted(&self.url()),
            indented(&self.nvme_cli()),
        )
    }

    /// Numbered steps for a host that gets other keys, up to the end of its old ones. `one_by_one`: whether they can be
    /// taken as Linux takes them, one after the other.
    pub fn changed(&self, revoke: &str, one_by_one: bool) -> String {
        let kernel = match one_by_one {
            true => format!(
                "For the kernel's own host, whose controller is nvme0 here:\n\n{}",
                indented(&self.nvme_changed())
            ),
            false => {
                "The kernel's own host takes one key after the other: for it, give --keep-controller-key."
                    .to_owned()
            }
        };
        format!(
            "1. Copy the file to the host, over the one before (HOST is its address):\n\n   {}\n\n   \
             ringfab takes it from there when it connects or authenticates the next time.\n   {kernel}\n\n\
             2. When `ringfab-target status` shows no `old key` any more, take the old keys away:\n\n{}\n",
            self.copy(),
            indented(revoke),
        )
    }

    /// The commands for a target of the kernel, on the machine with the file.
    pub fn linux_target(&self) -> String {
        let place = |name: &str| format!("/sys/kernel/config/nvmet/hosts/{}/{name}", self.host);
        let [host, controller] = ["dhchap_key", "dhchap_ctrl_key"].map(place);
        let mut text = read_key(self.file);
        if self.tls {
            text += "modprobe -a nvme-keyring tls && systemctl start tlshd\n";
        }
        text += &self.insert_psk();
        let [host, controller] = [&host, &controller].map(|place| shell_quoted(place));
        text + &format!("key dhchap_key > {host}\nkey dhchap_controller_key > {controller}\n")
    }

    /// Nobody else can read the file, at no moment: `install` makes it with its mode.
    fn copy(&self) -> String {
        let place = self.place();
        format!("ssh root@HOST install -D -m 600 /dev/stdin {place} <{}", shell_quoted(self.file))
    }

    fn url(&self) -> String {
        let address = self.address.unwrap_or(ADDRESS);
        let address = if address.contains(':') { format!("[{address}]") } else { address.to_owned() };
        let (transport, port, subsystem) = (self.transport, self.port, percent_encoded(self.subsystem));
        format!("nvme+{transport}://{}:{port}/{subsystem}", address.replace('%', "%25"))
    }

    /// The kernel has the key for TLS in a keyring, where tlshd finds it, until the machine ends.
    fn insert_psk(&self) -> String {
        if !self.tls {
            return String::new();
        }
        let [host, subsystem] = [self.host, self.subsystem].map(shell_quoted);
        format!(
            "nvme check-tls-key --hostnqn={host} --subsysnqn={subsystem} \\\n  \
             --keydata=\"$(key tls_key)\" --identity=1 --insert\n"
        )
    }

    fn nvme_cli(&self) -> String {
        let [host, subsystem] = [self.host, self.subsystem].map(shell_quoted);
        let (transport, port, address) = (self.transport, self.port, self.address.unwrap_or(ADDRESS));
        let mut text = read_key(&self.place());
        if self.tls {
            text += "modprobe -a nvme-keyring tls && systemctl start tlshd\n";
        }
        text += &self.insert_psk();
        let _in_memory = write!(
            text,
            "nvme connect --transport={transport} --traddr={} --trsvcid={port} \\\n  \
             --hostnqn={host} --nqn={subsystem} \\\n  \
             --dhchap-secret=\"$(key dhchap_key)\" --dhchap-ctrl-secret=\"$(key dhchap_controller_key)\"{}",
            shell_quoted(address),
            if self.tls { " --tls" } else { "" },
        );
        text
    }

    fn nvme_changed(&self) -> String {
        if !self.dhchap {
            return read_key(&self.place()) + self.insert_psk().trim_end();
        }
        let key = "printf %s \"$(key dhchap_key)\" >/sys/class/nvme/nvme0/dhchap_secret";
        format!("{}{}{key}", read_key(&self.place()), self.insert_psk())
    }
}

/// What prints a key of the file: it needs nothing but a shell.
fn read_key(file: &str) -> String {
    format!("key() {{ sed -n \"s/^$1 = \\\"\\(.*\\)\\\"\\$/\\1/p\" {}; }}\n", shell_quoted(file))
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("   {line}")).collect::<Vec<_>>().join("\n")
}

/// As a part of an address has it (RFC 3986).
fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~:".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            let _in_memory = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_address_and_the_names_as_a_shell_takes_them() {
        let steps = HostSteps {
            host: "nqn.2026-11.org.example:a b",
            subsystem: "nqn.2026-11.org.example:$(x)",
            file: "/srv/a b/h.keys",
            name: "h.keys",
            transport: "tcp",
            address: Some("fe80::1%eth0"),
            port: 4421,
            dhchap: true,
            tls: true,
        };
        let text = steps.text();
        for part in [
            "ssh root@HOST install -D -m 600 /dev/stdin /etc/ringfab/h.keys <'/srv/a b/h.keys'",
            "ringfab list 'nvme+tcp://[fe80::1%25eth0]:4421/nqn.2026-11.org.example:%24%28x%29' --keys ",
            "--hostnqn='nqn.2026-11.org.example:a b' --nqn='nqn.2026-11.org.example:$(x)'",
            "--traddr=fe80::1%eth0 --trsvcid=4421",
            "--identity=1 --insert",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let plain = HostSteps { tls: false, transport: "rdma", address: None, ..steps };
        let text = plain.text();
        assert!(!text.contains("tls") && text.contains("nvme+rdma://ADDRESS:4421/"), "{text}");
    }
}
