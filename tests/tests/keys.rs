//! `ringfab keys`, and nvme-cli, which takes our keys and whose keys we take.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use ringfab_tests::{NQN, not_run, program};

const HOST: &str = "nqn.psk-test-host";
/// A host whose keys are in a file.
const PAIR: &str = "nqn.2026-11.org.ringfab:pair";
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
    let text = said(&["pair", "--host", PAIR, "--subsystem", SUBSYSTEM, "--tls", "--json"], "");
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
    let identity = said(&["identity", "--host", PAIR, "--subsystem", SUBSYSTEM], &key("tls_key"));
    assert_eq!(identity.trim_end(), key("tls_identity"));
    let lines = said(&["pair", "--host", PAIR, "--subsystem", SUBSYSTEM], "");
    assert!(lines.contains("--hostnqn=nqn.2026-11.org.ringfab:pair --nqn=nqn.psk-test-subsys"), "{lines}");
    assert!(
        lines.contains("> /sys/kernel/config/nvmet/hosts/nqn.2026-11.org.ringfab:pair/dhchap_ctrl_key"),
        "{lines}"
    );
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
    let told = complaint(&["pair", "--host", HOST, "--subsystem", SUBSYSTEM], "", 2);
    assert!(told.contains("the host: ") && told.contains("nqn.yyyy-mm"), "{told}");
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

/// The target takes the lines for its configuration.
fn check_configuration(folder: &Path, lines: &str) {
    let table =
        lines.split_once("[[host]]").expect("a configuration").1.split_once("\n\n").expect("it ends").0;
    let file = folder.join("target.toml");
    let text = format!(
        "[target]\nstate_dir = {:?}\n[[listener]]\naddress = \"127.0.0.1\"\n[[subsystem]]\n\
         nqn = {NQN:?}\nallow_any_host = true\n[[subsystem.namespace]]\nmemory = \"1MiB\"\n[[host]]{table}\n",
        folder
    );
    std::fs::write(&file, text).expect("written");
    let checked = Command::new(program("ringfab-target")).arg("check").arg(&file).output();
    let checked = checked.expect("it runs");
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
}

/// Hosts choose their names, and a folder may have any. A shell takes each as one word.
#[test]
fn a_name_is_one_word_in_every_line_of_a_pair() {
    let folder = tempfile::tempdir().expect("a folder");
    let host = "nqn.2026-11.org.example:a\"b'c $(touch pwned) d\\e";
    let subsystem = "nqn.2026-11.org.example:`touch pwned`;touch pwned";
    let place = folder.path().join("keys 1's").display().to_string();
    let lines = said(&["pair", "--host", host, "--subsystem", subsystem, "--tls", "--directory", &place], "");
    let made: Vec<_> = std::fs::read_dir(&place).expect("a folder").flatten().collect();
    let [made] = made.as_slice() else { panic!("{made:?}") };
    let name = made.file_name().into_string().expect("text");
    check_configuration(folder.path(), &lines);
    // The commands: each argument that has a name has all of it, and nothing else runs.
    let shell = |script: &str| {
        let done =
            Command::new("sh").args(["-c", script]).current_dir(folder.path()).output().expect("a shell");
        assert!(done.status.success(), "{script}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).expect("text")
    };
    let arguments = |begin: &str| {
        let rest = lines.split_once(begin).expect("a command").1;
        let mut command = String::new();
        for line in rest.lines() {
            command += line.trim_end_matches('\\');
            if !line.ends_with('\\') {
                break;
            }
        }
        shell(&format!("key() {{ :; }}; printf '%s\\n' {command}"))
    };
    for (begin, word) in [
        ("nvme connect", format!("--hostnqn={host}")),
        ("nvme connect", format!("--nqn={subsystem}")),
        ("nvme check-tls-key", format!("--hostnqn={host}")),
        ("nvme check-tls-key", format!("--subsysnqn={subsystem}")),
        ("key dhchap_key >", format!("/sys/kernel/config/nvmet/hosts/{host}/dhchap_key")),
        ("ringfab list", format!("/etc/ringfab/{name}")),
    ] {
        let said = arguments(begin);
        assert!(said.lines().any(|line| line == word), "{begin}: {word}: {said}");
    }
    let url = arguments("ringfab list").lines().next().expect("an address").to_owned();
    let url: ringfab_initiator::Url = url.parse().expect("valid");
    assert_eq!(url.subsystem_nqn(), subsystem);
    // What reads a key, on the machine with the file.
    let target = lines.split_once("On a Linux target:\n").expect("a target").1;
    let key = shell(&format!("{}\nkey tls_key", target.lines().next().expect("what reads a key")));
    assert!(said(&["check"], &key).starts_with("a valid key for TLS"));
    let all = said(&["check", &made.path().display().to_string()], "");
    assert_eq!(all, format!("valid keys of host {host}: dhchap_key, dhchap_controller_key, tls_key\n"));
    assert!(!folder.path().join("pwned").exists());
}

#[test]
fn the_keys_of_several_hosts_are_in_one_folder() {
    let folder = tempfile::tempdir().expect("a folder");
    let keys = folder.path().join("keys");
    let place = keys.to_str().expect("a name");
    for (host, name) in [(PAIR, "pair.keys"), (NQN, "other.keys"), (PAIR, "pair.2.keys")] {
        let name = name.replace("pair", PAIR).replace("other", NQN);
        let text =
            said(&["pair", "--host", host, "--subsystem", SUBSYSTEM, "--directory", place, "--json"], "");
        let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let path = keys.join(name);
        assert_eq!(value["keys"], path.display().to_string());
        assert_eq!(
            (&value["host_key"], &value["tls_key"]),
            (&format!("file:{}", path.display()).into(), &serde_json::Value::Null)
        );
        assert_eq!(std::fs::metadata(&path).expect("a file").permissions().mode() & 0o777, 0o600);
        let all = said(&["check", &path.display().to_string()], "");
        assert_eq!(all, format!("valid keys of host {host}: dhchap_key, dhchap_controller_key\n"));
    }
}
