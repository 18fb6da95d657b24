//! Discovery by mDNS: our target tells where it is, and our host hears of it, in a network namespace with an interface
//! of its own. python-zeroconf is the other end of both.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use ringfab_tests::{NQN, PATIENCE, Service, not_run, program, run_bounded};

const OWN: &str = "nqn.2026-11.org.ringfab:discovery";
const ADDRESS: &str = "192.0.2.1";

/// Prints what it hears of discovery controllers, a line each. With arguments, it says that there is one: the service,
/// the address, the port and the key `p`.
const ZEROCONF: &str = r#"
import ipaddress, sys
from zeroconf import ServiceBrowser, ServiceInfo, Zeroconf
KINDS = ["_nvme-disc._tcp.local.", "_nvme-disc._udp.local."]
class Heard:
    def add_service(self, zeroconf, kind, name):
        info = zeroconf.get_service_info(kind, name)
        text = {key.decode(): value.decode() for key, value in info.properties.items()}
        print("+", kind, info.parsed_addresses()[0], info.port, text["p"], text["nqn"], flush=True)
    def update_service(self, zeroconf, kind, name):
        pass
    def remove_service(self, zeroconf, kind, name):
        print("-", kind, flush=True)
zeroconf = Zeroconf(interfaces=["192.0.2.1"])
if len(sys.argv) > 1:
    kind, address, port, p = sys.argv[1:]
    info = ServiceInfo(kind, "other." + kind, addresses=[ipaddress.ip_address(address).packed], port=int(port),
                       properties={"p": p, "nqn": "nqn.2014-08.org.nvmexpress.discovery"}, server="other.local.")
    zeroconf.register_service(info)
    print("told", flush=True)
else:
    ServiceBrowser(zeroconf, KINDS, Heard())
sys.stdin.read()
zeroconf.close()
"#;

/// A network namespace, which goes with the process that holds it.
struct Network {
    holder: Child,
    _stdin: ChildStdin,
}

impl Network {
    /// `None` where this process may not make one, or python-zeroconf is missing.
    fn new() -> Option<Self> {
        let python =
            Command::new("/usr/bin/python3").args(["-c", "import zeroconf"]).stderr(Stdio::null()).status();
        if !python.is_ok_and(|status| status.success()) {
            not_run("python3-zeroconf is missing");
            return None;
        }
        let setup = format!(
            "echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6 && ip link set lo up && \
             ip link add v0 type veth peer name v1 && ip link set v0 up && ip link set v1 up && \
             ip addr add {ADDRESS}/24 dev v0 && ip route add 224.0.0.0/4 dev v0 && echo ready && exec cat"
        );
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", &setup]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut holder = command.stderr(Stdio::null()).spawn().expect("unshare runs");
        let mut said = String::new();
        let stdout = holder.stdout.take().expect("a pipe");
        BufReader::new(stdout).read_line(&mut said).expect("it says something or ends");
        let stdin = holder.stdin.take().expect("a pipe");
        let this = Self { holder, _stdin: stdin };
        if said.trim() != "ready" {
            not_run("a network namespace with an interface of its own needs root");
            return None;
        }
        Some(this)
    }

    /// A program in this network.
    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.holder.id())).arg("--").arg(program);
        command
    }

    /// A target, whose folder has its configuration and control socket.
    fn target(&self, mdns: bool) -> Service {
        let folder = tempfile::tempdir().expect("a folder");
        let config = folder.path().join("target.toml");
        configure(&config, mdns);
        let log = fs::File::create(folder.path().join("log")).expect("a log");
        let mut command = self.command(&program("ringfab-target"));
        command.args(["serve", "--config"]).arg(config);
        Service::start_command(folder, command, log.into())
    }

    /// A program whose lines are read one by one.
    fn talker(&self, program: &Path, arguments: &[&str]) -> Talker {
        let mut command = self.command(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        Talker::new(command)
    }

    fn zeroconf(&self, arguments: &[&str]) -> Talker {
        let arguments: Vec<&str> = ["-c", ZEROCONF].iter().chain(arguments).copied().collect();
        self.talker(Path::new("/usr/bin/python3"), &arguments)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _gone = self.holder.kill();
        let _ended = self.holder.wait();
    }
}

fn configure(config: &Path, mdns: bool) {
    let folder = config.parent().expect("a folder").display();
    let text = format!(
        "[target]\nstate_dir = \"{folder}/state\"\ncores = 1\n[control]\nsocket = \"{folder}/control\"\n\
         [discovery]\nnqn = {OWN:?}\nmdns = {mdns}\n\
         [[listener]]\naddress = {ADDRESS:?}\ntransport = \"tcp\"\n\
         [[listener]]\naddress = {ADDRESS:?}\nport = 8009\ntransport = \"tcp\"\ndiscovery_only = true\n\
         [[subsystem]]\nnqn = {NQN:?}\nallow_any_host = true\n[[subsystem.namespace]]\nmemory = \"1MiB\"\n"
    );
    let draft = config.with_extension("new");
    fs::File::create(&draft).and_then(|mut file| file.write_all(text.as_bytes())).expect("written");
    fs::rename(draft, config).expect("in place");
}

/// Has the target read its file again: what is different.
fn reload(target: &Service) -> String {
    let socket = target.path("control").display().to_string();
    let command = program("ringfab-target").display().to_string();
    run_bounded(20, &command, &["reload", "--socket", &socket])
}

/// A program that says something, and is ended whatever happens.
struct Talker {
    child: Child,
    lines: Receiver<String>,
}

impl Talker {
    fn new(mut command: Command) -> Self {
        let mut child = command.spawn().expect("it runs");
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Self { child, lines }
    }

    fn line(&self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("it says something")
    }

    /// The first line that contains this.
    fn line_with(&self, text: &str) -> String {
        loop {
            let line = self.line();
            if line.contains(text) {
                return line;
            }
        }
    }
}

impl Drop for Talker {
    fn drop(&mut self) {
        // It ends with its input, in order; a program that does not read any is told by a signal.
        drop(self.child.stdin.take());
        let pid = self.child.id().to_string();
        let _told = Command::new("kill").arg(&pid).status();
        let _ended = self.child.wait();
    }
}

#[test]
fn another_implementation_hears_where_the_target_is_and_when_it_stops_to_say_so() {
    let Some(network) = Network::new() else { return };
    let target = network.target(true);
    let python = network.zeroconf(&[]);
    let told = format!("+ _nvme-disc._tcp.local. {ADDRESS} 8009 tcp {OWN}");
    assert_eq!(python.line(), told, "the listener for discovery only");
    configure(&target.path("target.toml"), false);
    assert!(reload(&target).contains("~ discovery.mdns: true -> false"));
    assert_eq!(python.line(), "- _nvme-disc._tcp.local.");
    configure(&target.path("target.toml"), true);
    reload(&target);
    assert_eq!(python.line(), told);
    // It says goodbye at its end.
    drop(target);
    assert_eq!(python.line(), "- _nvme-disc._tcp.local.");
}

#[test]
fn our_host_hears_of_our_target_and_of_others_and_attaches_what_they_show() {
    let Some(network) = Network::new() else { return };
    let ringfab = program("ringfab");
    let target = network.target(true);
    let found = network.command(&ringfab).args(["discover", "--mdns"]).output().expect("it runs");
    let said = String::from_utf8_lossy(&found.stdout).into_owned();
    assert!(found.status.success(), "{said}{}", String::from_utf8_lossy(&found.stderr));
    assert!(said.contains(&format!("nvme+tcp://{ADDRESS}:8009/\n")), "{said}");
    assert!(said.contains(&format!("nvme+tcp://{ADDRESS}:4420/{NQN}\n")), "{said}");
    // Somebody else tells of the same target, which says nothing itself.
    configure(&target.path("target.toml"), false);
    reload(&target);
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path().display().to_string();
    let all = network.talker(&ringfab, &["connect-all", "--mdns", "--follow", "--nbd", &at]);
    let python = network.zeroconf(&["_nvme-disc._tcp.local.", ADDRESS, "8009", "tcp"]);
    assert_eq!(python.line(), "told");
    assert!(all.line_with("+ ").starts_with(&format!("+ {NQN} at 'nbd+unix://")));
    // What is attached stays when nobody says any more where its discovery controller is.
    drop(python);
    let watch = network.talker(&ringfab, &["discover", "--follow", &format!("nvme+tcp://{ADDRESS}:8009")]);
    watch.line_with(NQN);
    assert!(folder.path().join(format!("{NQN}.sock")).exists());
    assert!(all.lines.try_recv().is_err(), "nothing has gone");
}
