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
    let refused = "cluster ceph does not accept client.";
    let unknown = error(ceph.config("unknown"));
    assert!(unknown.starts_with(refused) && unknown.contains("unknown: there is no such user"), "{unknown}");

    let keyring = ceph.folder().join("wrong.keyring");
    let key = "AQAAAAAAAAAAABAAAAAAAAAAAAAAAAAAAAAAAA==";
    fs::write(&keyring, format!("[client.admin]\n\tkey = {key}\n")).expect("a keyring");
    let wrong = error(ClusterConfig { keyring: Some(keyring), ..ceph.config("admin") });
    assert!(
        wrong.starts_with(refused) && wrong.ends_with("the keyring has no key or another one"),
        "{wrong}"
    );

    // The configuration names a keyring that is not there.
    let conf = ceph.changed_conf("keyring", "keyring = /nonexistent");
    let none = error(ClusterConfig { conf: Some(conf), ..ceph.config("admin") });
    assert_eq!(none, "no keyring has a key of client.admin: name one that has (keyring)");

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
    let conf = ceph.changed_conf("mon host", &format!("mon host = v2:{address}"));
    let config = ClusterConfig { conf: Some(conf), ..config };
    let silent = error_of(config, "rbd/disk").to_string();
    assert_eq!(silent, "no monitor of cluster ceph has answered within 8 s");
}
