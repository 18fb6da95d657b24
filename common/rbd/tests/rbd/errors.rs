//! What cannot be served is said in a sentence.

use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;

use ringfab_rbd::{Cluster, ClusterConfig, RbdError, check};

use crate::cluster::TestCluster;

/// What a look at an image says, as a user of a cluster.
fn error_of(config: ClusterConfig, image: &str) -> RbdError {
    let cluster = Arc::new(Cluster::new(config));
    let error = check(&cluster, &image.parse().expect("an image"), false).expect_err(image);
    assert!(cluster.close(crate::core::PATIENCE), "something is still open");
    error
}

#[test]
fn what_is_missing_in_a_cluster_is_named() {
    let Some(ceph) = TestCluster::get() else { return };
    ceph.create("rbd/there", &["--size", "4M"]);
    ceph.create("rbd/empty", &["--size", "0"]);
    for (image, sentence) in [
        ("rbd/empty", "image rbd/empty is empty: give it a size first, with rbd resize"),
        ("nowhere/disk", "there is no pool nowhere"),
        ("rbd/disk", "there is no image rbd/disk"),
        ("rbd/nobody/disk", "pool rbd has no namespace nobody"),
        ("rbd/there@monday", "image rbd/there has no snapshot monday"),
    ] {
        assert_eq!(error_of(ceph.config("admin"), image).to_string(), sentence);
    }
}

#[test]
fn a_user_without_a_key_with_a_wrong_one_or_without_rights_is_told_which() {
    let Some(ceph) = TestCluster::get() else { return };
    ceph.create("rbd/secret", &["--size", "4M"]);
    let error = |config| error_of(config, "rbd/secret").to_string();
    let unknown = error(ceph.config("unknown"));
    assert_eq!(unknown, "no keyring has a key of client.unknown: name one that has (keyring)");

    let keyring = ceph.folder().join("wrong.keyring");
    let key = "AQAAAAAAAAAAABAAAAAAAAAAAAAAAAAAAAAAAA==";
    fs::write(&keyring, format!("[client.admin]\n\tkey = {key}\n")).expect("a keyring");
    let wrong = error(ClusterConfig { keyring: Some(keyring), ..ceph.config("admin") });
    assert!(wrong.starts_with("cluster ceph does not accept client.admin: it has no such user"), "{wrong}");

    let missing = ClusterConfig { keyring: Some(PathBuf::from("/nonexistent")), ..ceph.config("admin") };
    assert!(error(missing).starts_with("/nonexistent cannot be read: No such file"));

    let stranger = error(ceph.config("stranger"));
    assert_eq!(stranger, "client.stranger may not use rbd:rbd/secret: check its capabilities");
    let reader = error(ceph.config("reader"));
    assert_eq!(reader, "client.reader may not use rbd:rbd/secret: check its capabilities");
}

#[test]
fn a_cluster_that_is_not_there_or_not_described_is_named() {
    let Some(ceph) = TestCluster::get() else { return };
    let conf = ceph.folder().join("other.conf");
    let config = ClusterConfig { conf: Some(conf.clone()), ..ceph.config("admin") };
    let missing = error_of(config.clone(), "rbd/disk").to_string();
    assert!(
        missing.ends_with("/other.conf cannot be read: No such file or directory (os error 2)"),
        "{missing}"
    );

    fs::write(&conf, "[global]\n").expect("a configuration");
    let empty = error_of(config.clone(), "rbd/disk").to_string();
    assert!(empty.ends_with("/other.conf names no monitor (mon_host)"), "{empty}");

    // It takes connections, and answers nothing.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    let text = fs::read_to_string(ceph.folder().join("ceph.conf")).expect("the configuration");
    let hosts = |line: &str| {
        if line.starts_with("mon host") { format!("mon host = v2:{address}") } else { line.to_owned() }
    };
    let text: Vec<String> = text.lines().map(hosts).collect();
    fs::write(&conf, text.join("\n") + "\n").expect("a configuration");
    let silent = error_of(config, "rbd/disk").to_string();
    assert_eq!(silent, "no monitor of cluster ceph has answered within 8 s");
}
