//! OSDs that do not answer, or die: operations wait for them, and nothing else does.

use std::sync::Arc;
use std::time::Duration;

use ringfab_block::Operation;
use ringfab_rbd::Cluster;

use crate::cluster::{Paused, TestCluster};
use crate::core::{Core, detail, look};
use crate::{driver_of, end};

/// How long it must be seen that nothing happens.
const WHILE: Duration = Duration::from_millis(300);

#[test]
fn operations_wait_for_a_cluster_that_hangs_and_neither_the_core_nor_a_look_does() {
    let Some(ceph) = TestCluster::get() else { return };
    ceph.create("rbd/hangs", &["--size", "8M"]);
    let cluster = ceph.connect();
    let driver = driver_of(&cluster, "rbd/hangs", false);
    look(&driver);
    let mut core = Core::new();
    let mut disk = core.open(&driver);
    core.write(&mut disk, 0, &[1; 4096]).expect("written");
    let paused = Paused::new(&ceph);
    for index in 0..16 {
        let operation = core.write_operation(u64::from(index) * 4096, &[2; 4096], false);
        core.start(&mut disk, operation, index);
    }
    let operation = core.read_operation(0, 4096);
    core.start(&mut disk, operation, 16);
    core.start(&mut disk, Operation::Flush, 17);
    // The timer of the core strikes meanwhile.
    let finished = core.turn_for(&mut disk, WHILE);
    assert!(finished.is_empty(), "{finished:?}");
    let error = driver.look().expect_err("nobody answers").to_string();
    assert!(error.starts_with("the cluster has not answered for "), "{error}");
    assert!(detail(&driver, "image").is_some(), "what was known is shown");
    drop(paused);
    let finished = core.finish(&mut disk, 18);
    assert!(finished.values().all(|finished| finished.result == Ok(())), "{finished:?}");
    look(&driver);
    assert_eq!(core.read(&mut disk, 15 * 4096, 4096), Ok(vec![2; 4096]));
    core.close(disk);
    end(&cluster, driver);
}

#[test]
fn a_disk_is_closed_while_its_operations_hang_and_the_image_when_they_have_ended() {
    let Some(ceph) = TestCluster::get() else { return };
    ceph.create("rbd/closed", &["--size", "8M"]);
    let cluster = ceph.connect();
    let driver = driver_of(&cluster, "rbd/closed", false);
    look(&driver);
    let mut core = Core::new();
    let mut disk = core.open(&driver);
    core.write(&mut disk, 0, &[1; 4096]).expect("written");
    let paused = Paused::new(&ceph);
    for index in 0..8 {
        let operation = core.write_operation(u64::from(index) << 20, &[5; 131_072], false);
        core.start(&mut disk, operation, index);
    }
    let operation = core.read_operation(0, 131_072);
    core.start(&mut disk, operation, 8);
    let finished = core.turn_for(&mut disk, WHILE);
    assert!(finished.is_empty(), "{finished:?}");
    // All of this returns although nothing can end.
    let taken = core.pool.usage().taken;
    core.close(disk);
    drop(driver);
    assert!(!cluster.close(WHILE), "the image is open for as long as librbd works for it");
    assert_eq!(core.pool.usage().taken, taken, "no memory went back that librbd may still use");
    drop(core);
    drop(paused);
    assert!(cluster.close(crate::core::PATIENCE), "the image is closed when all has ended");

    let cluster = ceph.connect();
    let driver = driver_of(&cluster, "rbd/closed", false);
    look(&driver);
    let mut core = Core::new();
    let mut disk = core.open(&driver);
    assert_eq!(core.read(&mut disk, 1 << 20, 131_072), Ok(vec![5; 131_072]), "what had begun was done");
    core.close(disk);
    end(&cluster, driver);
}

#[test]
fn an_image_is_served_while_no_monitor_runs_and_who_connects_then_hears_that_none_answers() {
    let Some(ceph) = TestCluster::get() else { return };
    ceph.create("rbd/unmonitored", &["--size", "8M"]);
    let cluster = ceph.connect();
    let driver = driver_of(&cluster, "rbd/unmonitored", false);
    let seen = look(&driver);
    let mut core = Core::new();
    let mut disk = core.open(&driver);
    core.write(&mut disk, 0, &[1; 4096]).expect("written");
    ceph.monitor("stop");
    core.write(&mut disk, 0, &[2; 4096]).expect("written without a monitor");
    assert_eq!(look(&driver), seen);
    let late = ceph.connect();
    let refused = driver_of(&late, "rbd/unmonitored", false);
    let error = refused.look().expect_err("nobody is there").to_string();
    ceph.monitor("start");
    assert_eq!(error, "no monitor of cluster ceph has answered within 8 s");
    assert_eq!(look(&refused), seen);
    end(&late, refused);
    core.close(disk);
    end(&cluster, driver);
}

#[test]
fn an_osd_that_dies_and_comes_back_under_load_fails_nothing() {
    let Some(ceph) = TestCluster::get() else { return };
    ceph.create("rbd/killed", &["--size", "64M"]);
    let cluster = ceph.connect();
    let driver = driver_of(&cluster, "rbd/killed", false);
    look(&driver);
    let mut core = Core::new();
    let mut disk = core.open(&driver);
    let rounds = 40_u8;
    for round in 1..=rounds {
        match round {
            10 => ceph.osd("kill", 1),
            25 => ceph.osd("start", 1),
            _ => {}
        }
        for index in 0..64_u32 {
            let operation = core.write_operation(u64::from(index) << 20, &[round; 4096], index % 8 == 0);
            core.start(&mut disk, operation, index);
        }
        let finished = core.finish(&mut disk, 64);
        let failed = finished.values().find(|finished| finished.result != Ok(()));
        assert!(failed.is_none(), "round {round}: {failed:?}");
    }
    for index in 0..64_u64 {
        assert_eq!(core.read(&mut disk, index << 20, 4096), Ok(vec![rounds; 4096]), "object {index}");
    }
    core.close(disk);
    end(&cluster, driver);
}

#[test]
fn an_image_without_a_watch_can_be_removed_and_the_next_look_says_so() {
    let Some(ceph) = TestCluster::get() else { return };
    ceph.create("rbd/removed", &["--size", "4M"]);
    let readers = Arc::new(Cluster::new(ceph.config("reader")));
    let driver = driver_of(&readers, "rbd/removed", true);
    look(&driver);
    let mut core = Core::new();
    let disk = core.open(&driver);
    ceph.rbd(&["rm", "--no-progress", "rbd/removed"]);
    let error = driver.look().expect_err("it is gone").to_string();
    assert_eq!(error, "there is no image rbd/removed");
    core.close(disk);
    end(&readers, driver);
}
