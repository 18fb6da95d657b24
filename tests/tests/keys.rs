//! `ringfab keys`, and nvme-cli, which takes our keys and whose keys we take.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use ringfab_tests::{NQN, not_run, program};

const HOST: &str = "nqn.psk-test-host";
const SUBSYSTEM: &str = "nqn.psk-test-subsys";

/// A key of libnvme's own tests.
const TLS_KEY: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";

/// `ringfab keys`, with something on its standard input.
fn keys(arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new(program("ringfab"))
        .arg("keys")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    // Not every command reads it.
    let _ = child.stdin.take().expect("a pipe").write_all(input.as_bytes());
    child.wait_with_output().expect("it ends")
}

fn said(arguments: &[&str], input: &str) -> String {
    let output = keys(arguments, input);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn complaint(arguments: &[&str], input: &str, code: i32) -> String {
    let output = keys(arguments, input);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}");
    assert!(output.stdout.is_empty());
    String::from_utf8(output.stderr).expect("text")
}

/// Where nvme-cli is.
fn nvme() -> Option<&'static str> {
    ["/usr/sbin/nvme", "/usr/bin/nvme", "/sbin/nvme"].into_iter().find(|path| Path::new(path).exists())
}

fn nvme_says(nvme: &str, arguments: &[&str]) -> String {
    let output = Command::new(nvme).args(arguments).output().expect("it runs");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text").trim_end().to_owned()
}

#[test]
fn nvme_cli_takes_our_keys() {
    let Some(nvme) = nvme() else { return not_run("keys against nvme-cli: it is not installed") };
    for (hmac, number, length) in [("none", 0, 32), ("sha256", 1, 32), ("sha384", 2, 48), ("sha512", 3, 64)] {
        let key = said(&["generate", "--hmac", hmac], "");
        let valid = nvme_says(nvme, &["check-dhchap-key", &format!("--key={}", key.trim_end())]);
        assert!(valid.contains(&format!("HMAC {number}, length {length}")), "{valid}");
    }
    for (hmac, number, length) in [("sha256", 1, 32), ("sha384", 2, 48)] {
        let key = said(&["generate", "--tls", "--hmac", hmac], "");
        let valid = nvme_says(nvme, &["check-tls-key", &format!("--key={}", key.trim_end())]);
        assert!(valid.contains(&format!("HMAC {number}, length {length}")), "{valid}");
    }
}

#[test]
fn we_take_the_keys_of_nvme_cli() {
    let Some(nvme) = nvme() else { return not_run("keys against nvme-cli: it is not installed") };
    for (number, length, hash) in [
        ("0", "32", "none"),
        ("0", "64", "none"),
        ("1", "32", "SHA-256"),
        ("2", "48", "SHA-384"),
        ("3", "64", "SHA-512"),
    ] {
        let arguments = ["gen-dhchap-key", "--hmac", number, "--key-length", length, "--nqn", HOST];
        let valid = said(&["check"], &nvme_says(nvme, &arguments));
        assert_eq!(valid, format!("a valid key for authentication: {length} bytes, hash {hash}\n"));
    }
    for (number, length, hash) in [("1", 32, "SHA-256"), ("2", 48, "SHA-384")] {
        let valid = said(&["check", "-"], &nvme_says(nvme, &["gen-tls-key", "--hmac", number]));
        assert_eq!(valid, format!("a valid key for TLS: {length} bytes, hash {hash}\n"));
    }
}

#[test]
fn an_identity_is_that_of_libnvme() {
    let names = ["identity", "--host", HOST, "--subsystem", SUBSYSTEM];
    let identity = |more: &[&str]| said(&[&names[..], more].concat(), TLS_KEY);
    let of_names = format!("{HOST} {SUBSYSTEM}");
    assert_eq!(identity(&[]), format!("NVMe1R01 {of_names} iSbjiStwJ/1TrTvDlt2fjFmzvsytOJelidNnA+X5lEU=\n"));
    assert_eq!(
        identity(&["--libnvme-before-2025-07"]),
        format!("NVMe1R01 {of_names} 66GuqV08TsAGII39teWUfwQwizjv06Jy8jOcX3NAAzM=\n")
    );
    assert_eq!(identity(&["--identity-version", "0"]), format!("NVMe0R01 {of_names}\n"));
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), format!("{TLS_KEY}\n")).expect("it is written");
    let json = said(&[&names[..], &["--json", file.path().to_str().expect("a name")]].concat(), "");
    assert!(json.contains("\"suite\": \"TLS_AES_128_GCM_SHA256\""), "{json}");
}

#[test]
fn a_pair_has_keys_for_both_ends_that_are_valid_and_differ() {
    let text = said(&["pair", "--host", HOST, "--subsystem", SUBSYSTEM, "--json"], "");
    let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let key = |name: &str| value[name].as_str().expect("a text").to_owned();
    assert_ne!(key("host_key"), key("controller_key"));
    for (name, purpose) in
        [("host_key", "authentication"), ("controller_key", "authentication"), ("tls_key", "TLS")]
    {
        assert_eq!(
            said(&["check"], &key(name)).split(':').next(),
            Some(&*format!("a valid key for {purpose}"))
        );
    }
    let identity = said(&["identity", "--host", HOST, "--subsystem", SUBSYSTEM], &key("tls_key"));
    assert_eq!(identity.trim_end(), key("tls_identity"));
    let lines = said(&["pair", "--host", HOST, "--subsystem", SUBSYSTEM], "");
    assert!(lines.contains("nvme connect --hostnqn=nqn.psk-test-host --nqn=nqn.psk-test-subsys"), "{lines}");
    assert!(lines.contains("> /sys/kernel/config/nvmet/hosts/nqn.psk-test-host/dhchap_ctrl_key"), "{lines}");
}

#[test]
fn what_is_wrong_is_said_without_the_key() {
    let changed = TLS_KEY.replace("VRL", "WRL");
    let told = complaint(&["check"], &changed, 1);
    assert_eq!(told, "ringfab: the checksum of the key is wrong: a character was changed\n");
    let names = ["identity", "--host", HOST, "--subsystem", SUBSYSTEM];
    let told = complaint(&names, &said(&["generate"], ""), 1);
    assert!(told.contains("this is a key for authentication (DHHC-1)"), "{told}");
    let told = complaint(&["generate", "--tls", "--hmac", "sha512"], "", 2);
    assert!(told.contains("no cipher suite of NVMe/TCP has SHA-512"), "{told}");
    let told = complaint(&["identity", "--host", "", "--subsystem", SUBSYSTEM], TLS_KEY, 2);
    assert!(told.contains("the host: the NQN is empty"), "{told}");
    let told = complaint(&["check", "/nonexistent"], "", 1);
    assert!(told.contains("read /nonexistent"), "{told}");
    // Somebody gives the key itself, and does not read it in what is kept of the standard error.
    for key in [TLS_KEY, said(&["generate"], "").trim_end()] {
        let told = complaint(&["check", key], "", 2);
        assert!(told.contains("give it on the standard input") && !told.contains(&key[16..]), "{told}");
    }
}

#[test]
fn a_key_that_neither_end_takes_from_its_file_is_said_to_be_readable_for_everybody() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), format!("{TLS_KEY}\n")).expect("it is written");
    for (mode, is_warned_of) in [(0o600, false), (0o644, true)] {
        std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(mode)).expect("a mode");
        let output = keys(&["check", &format!("file:{}", file.path().display())], "");
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success()
                && String::from_utf8_lossy(&output.stdout).contains("a valid key for TLS")
        );
        assert_eq!(told.contains("(mode 0644)") && told.contains("chmod o= "), is_warned_of, "{told}");
    }
}

/// In a folder whose name a shell has to be given in quotes.
/// Hosts choose their names.
#[test]
fn a_name_is_one_word_in_every_line_of_a_pair() {
    let folder = tempfile::tempdir().expect("a folder");
    let host = "nqn.2026-11.org.example:a\"b'c $(touch pwned) d\\e";
    let subsystem = "nqn.2026-11.org.example:`touch pwned`;touch pwned";
    let place = folder.path().join("keys").display().to_string();
    let lines = said(&["pair", "--host", host, "--subsystem", subsystem, "--tls", "--directory", &place], "");
    // The configuration.
    let table =
        lines.split_once("[[host]]").expect("a configuration").1.split_once("\n#").expect("it ends").0;
    let file = folder.path().join("target.toml");
    let text = format!(
        "[target]\nstate_dir = {:?}\n[[listener]]\naddress = \"127.0.0.1\"\n[[subsystem]]\n\
         nqn = {NQN:?}\nallow_any_host = true\n[[subsystem.namespace]]\nmemory = \"1MiB\"\n[[host]]{table}\n",
        folder.path()
    );
    std::fs::write(&file, text).expect("written");
    let checked = Command::new(program("ringfab-target")).arg("check").arg(&file).output();
    let checked = checked.expect("it runs");
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    // The commands: each argument that has a name has all of it, and nothing else runs.
    let arguments = |begin: &str| {
        let rest = lines.split_once(begin).expect("a command").1;
        let command = rest.split_once("\n\n").map_or(rest, |(command, _)| command);
        let command = command.split("\nOn a ").next().expect("a command").replace(" > ", " ");
        let command = command.lines().map(|line| line.strip_prefix("nvme").unwrap_or(line));
        let command = command.map(|line| line.strip_prefix("echo").unwrap_or(line)).collect::<Vec<_>>();
        let script = format!("printf '%s\\n' {}", command.join("\n").replace("\\\n", " ").replace('\n', " "));
        let done = Command::new("sh").args(["-c", &script]).current_dir(folder.path()).output();
        String::from_utf8(done.expect("a shell").stdout).expect("text")
    };
    for (begin, word) in [
        ("ringfab list", format!("--hostnqn={host}")),
        ("nvme connect", format!("--hostnqn={host}")),
        ("nvme connect", format!("--nqn={subsystem}")),
        ("nvme check-tls-key", format!("--subsysnqn={subsystem}")),
        ("echo ", format!("/sys/kernel/config/nvmet/hosts/{host}/dhchap_key")),
    ] {
        let said = arguments(begin);
        assert!(said.lines().any(|line| line == word), "{begin}: {word}: {said}");
    }
    let url = arguments("ringfab list").lines().next().expect("an address").to_owned();
    let url: ringfab_initiator::Url = url.parse().expect("valid");
    assert_eq!(url.subsystem_nqn(), subsystem);
    assert!(!folder.path().join("pwned").exists());
}

#[test]
fn a_pair_is_written_whole_or_not_at_all_and_its_lines_can_be_used_as_they_are() {
    let folder = tempfile::tempdir().expect("a folder");
    let keys = folder.path().join("host 1's");
    let place = keys.to_str().expect("a name");
    let pair = ["pair", "--host", HOST, "--subsystem", SUBSYSTEM, "--tls", "--directory", place];
    std::fs::create_dir(&keys).expect("a folder");
    std::fs::write(keys.join("tls"), "there").expect("an older key");
    let told = complaint(&pair, "", 1);
    assert!(told.contains("/tls is there already") && told.contains("remove its old keys"), "{told}");
    assert_eq!(std::fs::read_dir(&keys).expect("a folder").count(), 1, "nothing was written");
    std::fs::remove_file(keys.join("tls")).expect("it was there");
    let lines = said(&pair, "");
    let command = lines.split_once("ringfab list").expect("a command for the host").1;
    let command = command.split_once("\n\n").expect("it ends").0;
    let said =
        Command::new("sh").args(["-c", &format!("printf '%s\\n' {command}")]).output().expect("a shell");
    let words = String::from_utf8(said.stdout).expect("text");
    for name in ["dhchap-key=file:", "dhchap-controller-key=file:", "tls-key=file:"] {
        let found = words.lines().find_map(|word| word.strip_prefix("--")?.strip_prefix(name));
        assert!(Path::new(found.expect("an option")).is_file(), "{words}");
    }
}
