//! Images of a Ceph cluster.

use std::path::PathBuf;

use ringfab_initiator::IoError;
use ringfab_spec::Status;
use ringfab_spec::log::LogId;
use ringfab_tests::world::content::Random;
use ringfab_tests::{NQN, free_port, wait_until};

use crate::ceph::TestCluster;
use crate::clock::{ClockLoad, VOLUME_BYTES};
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

/// How often a snapshot is tried, where the cluster is slower than a freeze lasts.
const TRIES: u32 = 10;

#[test]
fn snapshots_of_two_images_under_a_load_are_of_one_instant() {
    let Some(ceph) = TestCluster::get() else { return };
    let size = format!("{VOLUME_BYTES}B");
    for image in ["rbd/one", "rbd/two"] {
        ceph.create(image, &["--size", &size]);
    }
    let two = "[[subsystem.namespace]]\nrbd = \"rbd/two\"\n";
    let target = Target::start(&tables(&ceph, "rbd/one", two, "admin"));
    let host = target.attach();
    let load = ClockLoad::start(&host);
    let number = (1..=TRIES).find(|number| {
        load.wait_until_it_runs();
        let snap = |image| format!("rbd snap create --no-progress {image}@try{number}");
        let both = format!("{} && {}", snap("rbd/one"), snap("rbd/two"));
        let words = ["freeze", "1", "2", "--for", "10s"];
        let mut command = target.service.command(&words);
        command.args(["--", "sh", "-c", &both]).env("CEPH_CONF", ceph.folder().join("ceph.conf"));
        command.status().expect("it runs").success()
    });
    let number = number.expect("one is fast enough");
    let written = load.finish();
    let copies = ["one", "two"].map(|image| exported(&ceph, &format!("rbd/{image}@try{number}")));
    let [one, two] = copies.each_ref().map(|(_, file)| std::fs::read(file).expect("an image"));
    assert_eq!(written.check([&one, &two]), Ok(()));
}

#[test]
fn an_image_has_one_namespace_by_whatever_name_and_a_clone_is_another_disk() {
    let Some(ceph) = TestCluster::get() else { return };
    ceph.create("rbd/parent", &["--size", "8M"]);
    ceph.rbd(&["snap", "create", "--no-progress", "rbd/parent@base"]);
    ceph.rbd(&["clone", "--rbd-default-clone-format", "2", "rbd/parent@base", "rbd/child"]);
    let conf = format!("conf = {:?}\n", ceph.folder().join("ceph.conf"));
    let namespace = |image: &str, more: &str| format!("[[subsystem.namespace]]\nrbd = {image:?}\n{more}\n");
    let clusters = format!("[[ceph]]\n{conf}[[ceph]]\nname = \"again\"\n{conf}");
    let again = "cluster = \"again\"";
    let three =
        [namespace("rbd/parent", ""), namespace("rbd/parent", again), namespace("rbd/child", "")].concat();
    let folder = tempfile::tempdir().expect("a folder");
    let port = free_port();
    let mut seen = Vec::new();
    for _ in 0..2 {
        let target = Target::start_at(port, Some(folder.path()), &format!("{three}{clusters}"));
        let all = target.namespaces();
        assert_eq!([0, 2].map(|index| &all[index]["state"]), ["ready", "ready"], "{all}");
        let reason = all[1]["reason"].as_str().expect("a reason");
        let expected = format!("rbd:rbd/parent is the disk of namespace 1 of {NQN} already");
        assert!(all[1]["state"] == "not ready" && reason.contains(&expected), "{all}");
        seen.push([0, 2].map(|index| all[index]["nguid"].clone()));
    }
    assert_ne!(seen[0][0], seen[0][1], "a clone is no copy of the same disk");
    assert_eq!(seen[0], seen[1], "they are the same after a restart");
    let shared = "shared = true";
    let both =
        [namespace("rbd/parent", shared), namespace("rbd/parent", &format!("{again}\n{shared}"))].concat();
    let target = Target::start(&format!("{both}{clusters}"));
    let all = target.namespaces();
    assert_eq!([0, 1].map(|index| &all[index]["state"]), ["ready", "ready"], "{all}");
}

#[test]
fn a_full_pool_is_capacity_exceeded_and_a_warning() {
    let Some(ceph) = TestCluster::get() else { return };
    ceph.create("rbd/filled", &["--size", "64G", "--image-feature", "layering"]);
    let target = Target::start(&tables(&ceph, "rbd/filled", "", "admin"));
    let host = target.attach();
    // What has its place is written there, also in a full pool; an object more needs some.
    let write = |object: u64| host.write_at(1, object * 4 * MIB, &[1; 4096], true);
    write(0).expect("written");
    let smart = || host.log_page(LogId::SMART.0, u32::MAX, 0, 512).expect("the page");
    assert_eq!((smart()[0] & 1, smart()[3]), (0, 100));
    ceph.osd_is_full(true);
    // An OSD may not know of it yet.
    let (mut objects, mut refused) = (0, None);
    wait_until("there is no space", || {
        objects += 1;
        refused = write(objects).err();
        refused.is_some()
    });
    let Some(IoError::Status(status)) = refused else { panic!("{refused:?}") };
    assert_eq!(status.code(), Status::CAPACITY_EXCEEDED);
    assert_eq!(target.state(), "full");
    assert_eq!((smart()[0] & 1, smart()[3]), (1, 0), "spare below its threshold");
    write(0).expect("written where it was");
    ceph.osd_is_full(false);
    write(objects).expect("written again");
    host.flush(1).expect("nothing was lost");
}

#[test]
fn blocks_are_read_and_written_while_the_monitor_is_away() {
    let Some(ceph) = TestCluster::get() else { return };
    ceph.create("rbd/alone", &["--size", "8M"]);
    let target = Target::start(&tables(&ceph, "rbd/alone", "", "admin"));
    let host = target.attach();
    host.write_at(1, 0, &[1; 4096], true).expect("written");
    ceph.monitor("stop");
    let away = std::env::var("MONITOR_AWAY_SECONDS").map_or(3, |text| text.parse().expect("seconds"));
    let begun = std::time::Instant::now();
    let mut rounds = 0_u64;
    while rounds < 50 || begun.elapsed().as_secs() < away {
        host.write_at(1, rounds % 1000 * 4096, &[2; 4096], rounds.is_multiple_of(2)).expect("written");
        host.read_at(1, rounds % 1000 * 4096, &mut [0; 4096]).expect("read");
        rounds += 1;
    }
    ceph.monitor("start");
    wait_until("all is well", || target.state() == "ready");
    host.write_at(1, 0, &[3; 4096], true).expect("written");
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
