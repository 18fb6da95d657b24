//! Both ends on one link, by addresses that mean something on that link only.

use std::io::{BufRead as _, BufReader};
use std::process::Child;

use ringfab_tests::not_run;

use super::*;

/// Two network namespaces, joined by a link: `far` has `fe80::1`, `near` has `fe80::2`. The interface has the same name
/// in both.
struct Link {
    far: Holder,
    near: Holder,
}

/// A process that keeps a network namespace alive, for two minutes at most.
struct Holder(Child);

impl Holder {
    /// Runs `wraps`, which make the namespace.
    fn start(wraps: &[&str]) -> Option<Self> {
        let mut command = Command::new(wraps[0]);
        command.args(&wraps[1..]).args(["bash", "-c", "ip link set lo up && echo up && exec sleep 120"]);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().ok()?;
        let mut said = String::new();
        let read = BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut said);
        let this = Self(child);
        (read.is_ok() && said == "up\n").then_some(this)
    }

    /// How a program is started there.
    fn enter(&self) -> Vec<String> {
        let target = format!("--target={}", self.0.id());
        ["nsenter", &target, "--user", "--preserve-credentials", "--net"].map(str::to_owned).to_vec()
    }

    fn ip(&self, arguments: &str) {
        let mut command = command_in(&self.enter(), "ip", &[]);
        let done = command.args(arguments.split(' ')).status().expect("nsenter runs");
        assert!(done.success(), "ip {arguments}");
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let killed = self.0.kill().and_then(|()| self.0.wait());
        assert!(killed.is_ok() || std::thread::panicking(), "{killed:?}");
    }
}

impl Link {
    fn make() -> Option<Self> {
        let far = Holder::start(&["unshare", "--map-root-user", "--net"])?;
        let mut wraps = far.enter();
        wraps.extend(["unshare", "--net"].map(str::to_owned));
        let near = Holder::start(&wraps.iter().map(String::as_str).collect::<Vec<_>>())?;
        far.ip(&format!("link add disks type veth peer name disks netns {}", near.0.id()));
        for (holder, address) in [(&far, "fe80::1"), (&near, "fe80::2")] {
            // Without looking whether somebody has it already, which takes a second.
            holder.ip("link set disks addrgenmode none");
            holder.ip(&format!("addr add {address}/64 dev disks nodad"));
            holder.ip("link set disks up");
        }
        Some(Self { far, near })
    }

    /// Runs the command ringfab at the near end.
    fn ringfab(&self, arguments: &[&str]) -> Output {
        Self::ringfab_at(&self.near, arguments)
    }

    fn ringfab_at(holder: &Holder, arguments: &[&str]) -> Output {
        let mut wraps = holder.enter();
        wraps.extend(["timeout", "--kill-after=5", "30"].map(str::to_owned));
        let program = program("ringfab");
        command_in(&wraps, program.to_str().expect("UTF-8"), arguments).output().expect("it runs")
    }
}

fn command_in(wraps: &[String], name: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(&wraps[0]);
    command.args(&wraps[1..]).arg(name).args(arguments).stdin(Stdio::null());
    command
}

#[test]
fn a_link_local_address_with_its_interface_works_at_both_ends() {
    let Some(link) = Link::make() else {
        return not_run("link-local addresses: network namespaces cannot be made");
    };
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("target.toml");
    let text = format!(
        "[target]\nstate_dir = {:?}\n[control]\nenabled = false\n\
         [[listener]]\naddress = \"fe80::1%disks\"\ntransport = \"tcp\"\n\
         [[listener]]\naddress = \"[fe80::1%disks]\"\nport = 4421\n\
         [[listener]]\naddress = \"::1\"\ntransport = \"tcp\"\n\
         [[subsystem]]\nnqn = {NQN:?}\nallow_any_host = true\n[[subsystem.namespace]]\nmemory = \"4MiB\"\n",
        folder.path().join("state"),
    );
    fs::write(&config, text).expect("a configuration");
    let wraps = link.far.enter();
    let wraps: Vec<&str> = wraps.iter().map(String::as_str).collect();
    let command = wrapped(&wraps, "ringfab-target", &["serve", "--config", config.to_str().expect("UTF-8")]);
    let log = log_file(folder.path());
    let target = Service::start_command(folder, command, log);

    for url in ["nvme+tcp://[fe80::1%disks]", "nvme+rdma://[fe80::1%25disks]:4421"] {
        let read = link.ringfab(&["read", &format!("{url}/{NQN}?ns=1"), "--length", "4096"]);
        assert!(read.status.success() && read.stdout.len() == 4096, "{url}: {read:?}\n{}", target.log());
        // What a discovery finds can be used as it is printed: the interface is ours, which the target cannot know.
        let found = link.ringfab(&["--json", "discover", url]);
        let found: serde_json::Value = serde_json::from_slice(&found.stdout).expect("JSON");
        let found = found.to_string();
        for port in [4420, 4421] {
            let text = format!("//[fe80::1%25disks]:{port}/{NQN}");
            assert!(found.contains(&text), "{text} is not in {found}");
        }
    }
    // Whoever does not come over that link has nothing of its addresses.
    let elsewhere = Link::ringfab_at(&link.far, &["--json", "discover", "nvme+tcp://[::1]"]);
    let found = String::from_utf8_lossy(&elsewhere.stdout).into_owned();
    assert!(found.contains("//[::1]:4420/") && !found.contains("fe80"), "{found}");
    assert!(target.log().contains("[fe80::2%"), "{}", target.log());
    let missing = link.ringfab(&["list", &format!("nvme+tcp://[fe80::1%other]/{NQN}")]);
    let said = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(said.contains("this machine has no network interface other"), "{said}");
    ends_in_order(target);
}
