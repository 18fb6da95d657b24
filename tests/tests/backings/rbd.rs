//! Images of a Ceph cluster.

use std::path::PathBuf;

use ringfab_initiator::IoError;
use ringfab_spec::Status;
use ringfab_tests::world::content::Random;
use ringfab_tests::{NQN, free_port, wait_until};

use crate::ceph::TestCluster;
use crate::load::{IMAGE_BYTES, Load, PATIENT, seed};
use crate::{Target, check, exercise};

const MIB: u64 = 1 << 20;

/// A namespace of an image, and the cluster that has it.
fn tables(ceph: &TestCluster, image: &str, more: &str, user: &str) -> String {
    let conf = ceph.folder().join("ceph.conf");
    format!(
        "[[subsystem.namespace]]\nrbd = {image:?}\n{more}\n[ceph]\nconf = {conf:?}\nuser = {user:?}\n\
         keyring = {:?}\n",
        ceph.folder().join("keyring")
    )
}

/// The bytes of an image, read by another client.
fn exported(ceph: &TestCluster, image: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("image");
    ceph.rbd(&["export", "--no-progress", image, file.to_str().expect("a path")]);
    (folder, file)
}

#[test]
fn an_image_is_a_namespace_of_a_confined_target_on_two_cores() {
    let Some(ceph) = TestCluster::get() else { return };
    ceph.create("rbd/served", &["--size", "16M", "--object-size", "64K"]);
    let target = Target::start(&tables(&ceph, "rbd/served", "block_bytes = 4096", "admin"));
    exercise(&target);
    let namespace = target.namespace();
    assert_eq!(namespace["source"], "rbd:rbd/served");
    let details = namespace["details"].to_string();
    assert!(details.contains("exclusive-lock") && details.contains("features"), "{details}");
    let log = target.service.log();
    assert!(log.contains("confined") && !log.contains("not wholly confined"), "{log}");
    // Discarded blocks give their space back.
    let host = target.attach();
    host.write_at(1, 0, &vec![7; MIB as usize], true).expect("written");
    let used = || ceph.rbd(&["diff", "rbd/served"]).lines().count();
    let before = used();
    host.write_zeroes(1, 0, MIB, true).expect("zeroed");
    assert!(used() < before, "{} pieces are used as before", used());
}

#[test]
fn nothing_is_lost_when_an_osd_dies_and_when_the_target_does() {
    let Some(ceph) = TestCluster::get() else { return };
    let size = format!("{IMAGE_BYTES}B");
    // With the feature exclusive-lock, the next target would wait until the cluster takes the last one for dead.
    ceph.create("rbd/loaded", &["--size", &size, "--image-feature", "layering"]);
    let (port, seed) = (free_port(), seed("OSDs and targets killed"));
    let mut random = Random::new(seed, 99);
    let folder = tempfile::tempdir().expect("a folder");
    let start = || Target::start_at(port, Some(folder.path()), &tables(&ceph, "rbd/loaded", "", "admin"));
    let mut target = start();
    let controller = target.attach_with(PATIENT);
    let load = Load::start(&controller, seed);
    for round in 0..4 {
        load.wait_for_a_moment(&mut random, round);
        if round % 2 == 0 {
            // Always the same: it has lost its objects, and the other one is to keep them.
            ceph.osd("kill", 0);
            ceph.osd("start", 0);
        } else {
            target.service.kill();
            target = start();
        }
    }
    load.stop();
    let (_folder, image) = exported(&ceph, "rbd/loaded");
    load.finish(&image);
    controller.detach().expect("detached");
}

#[test]
fn a_snapshot_is_read_and_an_image_that_grows_is_seen() {
    let Some(ceph) = TestCluster::get() else { return };
    ceph.create("rbd/grows", &["--size", "8M"]);
    let target = Target::start(&tables(&ceph, "rbd/grows", "", "admin"));
    let host = target.attach();
    host.write_at(1, 0, &[1; 4096], true).expect("written");
    ceph.rbd(&["snap", "create", "--no-progress", "rbd/grows@before"]);
    host.write_at(1, 0, &[2; 4096], true).expect("written");
    target.service.ask(&["namespace", "add", "--rbd", "rbd/grows@before", "--read-only"]);
    wait_until("the host finds it", || host.namespaces().iter().any(|one| one.nsid == 2));
    let mut block = [0; 4096];
    host.read_at(2, 0, &mut block).expect("read");
    assert_eq!(block, [1; 4096], "as it was");
    let refused = host.write_at(2, 0, &block, false).expect_err("nobody writes to a snapshot");
    let IoError::Status(status) = refused else { panic!("{refused}") };
    assert_eq!(status.code(), Status::NAMESPACE_WRITE_PROTECTED);
    ceph.rbd(&["resize", "--no-progress", "--size", "16M", "rbd/grows"]);
    let bytes = || host.namespaces().iter().find(|one| one.nsid == 1).map(|one| one.bytes());
    wait_until("the host sees it", || bytes() == Some(16 * MIB));
    host.write_at(1, 16 * MIB - 512, &[3; 512], false).expect("the last block");
}

#[test]
fn what_is_wrong_with_a_cluster_is_a_sentence() {
    let Some(ceph) = TestCluster::get() else { return };
    ceph.create("rbd/checked", &["--size", "8M"]);
    let said = |image: &str, user: &str| check(&tables(&ceph, image, "", user));
    assert_eq!(said("rbd/checked", "admin"), "");
    let expected =
        format!("warning: namespace 1 of {NQN}: cannot open rbd:rbd/none: there is no image rbd/none; ");
    assert!(said("rbd/none", "admin").contains(&expected), "{}", said("rbd/none", "admin"));
    assert!(said("none/checked", "admin").contains("no pool"), "{}", said("none/checked", "admin"));
    assert!(said("rbd/checked", "nobody").contains("client.nobody"), "{}", said("rbd/checked", "nobody"));
    let snapshot = check(&tables(&ceph, "rbd/checked@none", "", "admin"));
    assert!(snapshot.contains("add read_only = true"), "{snapshot}");
    let elsewhere = check(&tables(&ceph, "rbd/checked", "cluster = \"other\"", "admin"));
    assert!(elsewhere.contains("no cluster is named other"), "{elsewhere}");
}
