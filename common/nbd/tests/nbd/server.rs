//! Servers of other people, which end with the test.

use std::ffi::OsString;
use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How long a server may take to begin.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where a server listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Unix,
    Tcp,
}

pub(crate) struct Server {
    folder: tempfile::TempDir,
    program: &'static str,
    arguments: Vec<OsString>,
    address: String,
    port: Option<u16>,
    child: Option<Child>,
}

/// Whether a program is there. Where all tools are required, one that is not is a failure; else it is said here and in
/// the file that `RINGFAB_NOT_RUN` names, if it does.
#[expect(clippy::print_stderr, reason = "whoever runs the tests must see what did not run")]
pub(crate) fn require(program: &str) -> Option<()> {
    let found = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .chain([PathBuf::from("/usr/sbin")])
        .any(|folder| folder.join(program).is_file());
    if found {
        return Some(());
    }
    let why = format!("exports of NBD servers: {program} is not installed (tests/scripts/install.sh test)");
    assert!(std::env::var_os("RINGFAB_REQUIRE_TOOLS").is_none(), "NOT RUN: {why}");
    eprintln!("NOT RUN: {why}");
    if let Some(path) = std::env::var_os("RINGFAB_NOT_RUN") {
        let mut file = std::fs::File::options().append(true).create(true).open(path).expect("the file");
        writeln!(file, "{why}").expect("it can be written");
    }
    None
}

impl Server {
    /// nbdkit with such a plugin.
    pub(crate) fn nbdkit(place: Place, plugin: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let (place, address, port) = match place {
            Place::Unix => {
                let socket = folder.path().join("s");
                let address = format!("nbd+unix:///?socket={}", socket.display());
                (vec!["-U".into(), socket.into_os_string()], address, None)
            }
            Place::Tcp => {
                let port = free_port();
                let arguments = ["-i", "127.0.0.1", "-p", &port.to_string()].map(OsString::from).to_vec();
                (arguments, format!("nbd://127.0.0.1:{port}/"), Some(port))
            }
        };
        let mut arguments: Vec<OsString> = vec!["-f".into(), "--exit-with-parent".into()];
        arguments.extend(place);
        arguments.extend(plugin.iter().map(OsString::from));
        Self::run(Self { folder, program: "nbdkit", arguments, address, port, child: None })
    }

    /// nbdkit with a file, which stays when the server goes.
    pub(crate) fn nbdkit_with_file(bytes: u64, filters: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let (socket, file) = (folder.path().join("s"), folder.path().join("disk"));
        std::fs::File::create(&file).and_then(|file| file.set_len(bytes)).expect("a file");
        let address = format!("nbd+unix:///?socket={}", socket.display());
        let (filters, settings): (Vec<&str>, Vec<&str>) =
            filters.iter().partition(|word| word.starts_with('-'));
        let mut arguments: Vec<OsString> = vec!["-f".into(), "--exit-with-parent".into(), "-U".into()];
        arguments.push(socket.into_os_string());
        arguments.extend(filters.iter().map(OsString::from));
        arguments.extend(["file".into(), file.into_os_string()]);
        arguments.extend(settings.iter().map(OsString::from));
        Self::run(Self { folder, program: "nbdkit", arguments, address, port: None, child: None })
    }

    /// nbdkit with shell commands that read and write, and nothing else: no flush, no zeroes, one client at a time.
    pub(crate) fn of_shell_commands(bytes: u64) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let (socket, file) = (folder.path().join("s"), folder.path().join("disk"));
        std::fs::File::create(&file).and_then(|file| file.set_len(bytes)).expect("a file");
        let address = format!("nbd+unix:///?socket={}", socket.display());
        let file = file.display();
        let mut arguments: Vec<OsString> = vec!["-f".into(), "--exit-with-parent".into(), "-U".into()];
        arguments.push(socket.into_os_string());
        arguments.extend(["--filter=nozero", "eval", "can_write=exit 0"].map(OsString::from));
        arguments.extend([
            format!("get_size=echo {bytes}").into(),
            format!("pread=dd status=none if={file} skip=$4 count=$3 iflag=count_bytes,skip_bytes").into(),
            format!("pwrite=dd status=none of={file} seek=$4 conv=notrunc oflag=seek_bytes").into(),
        ]);
        Self::run(Self { folder, program: "nbdkit", arguments, address, port: None, child: None })
    }

    /// An image of qemu.
    pub(crate) fn qemu(bytes: u64) -> Self {
        Self::qemu_named(bytes, "")
    }

    /// The same under a name.
    pub(crate) fn qemu_named(bytes: u64, name: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let (socket, image) = (folder.path().join("s"), folder.path().join("disk.qcow2"));
        let mut make = Command::new("qemu-img");
        make.args(["create", "-q", "-f", "qcow2"]).arg(&image).arg(bytes.to_string());
        assert!(make.status().expect("qemu-img").success());
        let address = format!("nbd+unix:///{name}?socket={}", socket.display());
        let words = ["-t", "-f", "qcow2", "-x", name, "-k"].map(OsString::from);
        let mut arguments = words.to_vec();
        arguments.extend([socket.into_os_string(), image.into_os_string()]);
        Self::run(Self { folder, program: "qemu-nbd", arguments, address, port: None, child: None })
    }

    fn run(mut self) -> Self {
        self.start();
        self
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Starts it, again if it was killed, and waits until somebody can connect.
    pub(crate) fn start(&mut self) {
        // What a killed server has left behind.
        let socket = self.folder.path().join("s");
        let _nothing = std::fs::remove_file(&socket);
        let mut command = Command::new(self.program);
        let child = command.args(&self.arguments).stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        self.child = Some(child.expect("a server"));
        let begun = Instant::now();
        loop {
            let connected = match self.port {
                Some(port) => TcpStream::connect(("127.0.0.1", port)).is_ok(),
                None => UnixStream::connect(&socket).is_ok(),
            };
            if connected {
                return;
            }
            let ended = self.child.as_mut().and_then(|child| child.try_wait().expect("a child"));
            assert!(ended.is_none(), "{} {:?}: {ended:?}", self.program, self.arguments);
            assert!(begun.elapsed() < PATIENCE, "{} does not listen", self.program);
            thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("killed");
            child.wait().expect("ended");
        }
    }

    pub(crate) fn restart(&mut self) {
        self.kill();
        self.start();
    }

    /// The file of [`Server::nbdkit_with_file`].
    pub(crate) fn image(&self) -> PathBuf {
        self.folder.path().join("disk")
    }

    /// Gives the file of [`Server::nbdkit_with_file`] another size.
    pub(crate) fn resize(&self, bytes: u64) {
        let file = std::fs::File::options().write(true).open(self.folder.path().join("disk"));
        file.and_then(|file| file.set_len(bytes)).expect("another size");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("its address").port()
}
