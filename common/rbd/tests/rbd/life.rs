//! What happens to an image while it is served: it grows, another one gets its name, snapshots come and go, somebody
//! fences this client.

use ringfab_block::{BlockError, DriverHandle};
use ringfab_rbd::check;

use crate::cluster::TestCluster;
use crate::core::{Core, detail, look};
use crate::{driver_of, end};

fn identity(driver: &DriverHandle) -> String {
    look(driver).identity.expect("it knows itself").as_str().to_owned()
}

#[test]
fn an_image_that_grows_is_longer_for_who_writes_it_and_for_who_may_only_read() {
    let Some(ceph) = TestCluster::get() else { return };
    ceph.create("rbd/grows", &["--size", "4M"]);
    let cluster = ceph.connect();
    let readers = std::sync::Arc::new(ringfab_rbd::Cluster::new(ceph.config("reader")));
    let (writer, reader) = (driver_of(&cluster, "rbd/grows", false), driver_of(&readers, "rbd/grows", true));
    let (before, read_before) = (look(&writer), look(&reader));
    assert_eq!((before.bytes, &before), (Some(4 << 20), &read_before));
    let mut core = Core::new();
    let (mut disk, mut read) = (core.open(&writer), core.open(&reader));
    assert!(read.properties().read_only);
    assert_eq!(detail(&reader, "watch").as_deref(), Some("none: the key may only read"));
    ceph.rbd(&["resize", "--no-progress", "--size", "6M", "rbd/grows"]);
    let (after, read_after) = (look(&writer), look(&reader));
    assert_eq!((after.bytes, after.identity.as_ref()), (Some(6 << 20), before.identity.as_ref()));
    assert_eq!(after, read_after);
    disk.resize(6 << 20);
    read.resize(6 << 20);
    core.write(&mut disk, (6 << 20) - 4096, &[9; 4096]).expect("written");
    assert_eq!(core.read(&mut read, (6 << 20) - 4096, 4096), Ok(vec![9; 4096]));
    assert_eq!(core.write(&mut read, 0, &[1; 512]), Err(BlockError::ReadOnly));
    core.close(disk);
    core.close(read);
    end(&cluster, writer);
    end(&readers, reader);
}

#[test]
fn a_snapshot_is_as_the_image_was_and_read_only_and_another_one_of_its_name_is_another_disk() {
    let Some(ceph) = TestCluster::get() else { return };
    ceph.create("rbd/snapped", &["--size", "4M"]);
    let cluster = ceph.connect();
    let image = driver_of(&cluster, "rbd/snapped", false);
    look(&image);
    let mut core = Core::new();
    let mut disk = core.open(&image);
    core.write(&mut disk, 0, &[1; 4096]).expect("written");
    ceph.rbd(&["snap", "create", "--no-progress", "rbd/snapped@monday"]);
    core.write(&mut disk, 0, &[2; 4096]).expect("written");
    let snapshot = driver_of(&cluster, "rbd/snapped@monday", false);
    let first = identity(&snapshot);
    assert_ne!(first, identity(&image));
    let mut snapped = core.open(&snapshot);
    assert!(snapped.properties().read_only);
    assert_eq!(core.read(&mut snapped, 0, 4096), Ok(vec![1; 4096]));
    assert_eq!(core.write(&mut snapped, 0, &[3; 4096]), Err(BlockError::ReadOnly));
    assert!(detail(&snapshot, "snapshot").is_some_and(|text| text.starts_with("monday (")));

    ceph.rbd(&["snap", "rm", "--no-progress", "rbd/snapped@monday"]);
    let error = snapshot.look().expect_err("it is gone").to_string();
    assert_eq!(error, "image rbd/snapped has no snapshot monday");
    ceph.rbd(&["snap", "create", "--no-progress", "rbd/snapped@monday"]);
    assert_ne!(identity(&snapshot), first);
    snapped.reopen(&mut core.reactor).expect("reopened");
    assert_eq!(core.read(&mut snapped, 0, 4096), Ok(vec![2; 4096]));

    ceph.rbd(&["clone", "--rbd-default-clone-format", "2", "rbd/snapped@monday", "rbd/clone"]);
    let clone = driver_of(&cluster, "rbd/clone", false);
    look(&clone);
    assert_eq!(detail(&clone, "clone").as_deref(), Some("yes: up to 4194304 bytes are its parent's"));
    let mut cloned = core.open(&clone);
    core.write(&mut cloned, 512, &[7; 512]).expect("written over its parent");
    assert_eq!(core.read(&mut cloned, 0, 1024), Ok([[2; 512], [7; 512]].concat()));
    [disk, snapped, cloned].into_iter().for_each(|disk| core.close(disk));
    drop((image, snapshot));
    end(&cluster, clone);
}

#[test]
fn another_image_of_the_same_name_is_another_disk_and_served_when_it_is_reopened() {
    let Some(ceph) = TestCluster::get() else { return };
    ceph.create("rbd/replaced", &["--size", "4M"]);
    let cluster = ceph.connect();
    let driver = driver_of(&cluster, "rbd/replaced", false);
    let first = identity(&driver);
    let words: Vec<&str> = first.split(' ').collect();
    let fsid = ceph.ceph(&["fsid"]);
    assert_eq!((words.len(), words[0], words[1]), (5, "rbd", fsid.trim()), "{first}");
    let mut core = Core::new();
    let mut disk = core.open(&driver);
    core.write(&mut disk, 0, &[1; 4096]).expect("written");
    ceph.rbd(&["mv", "rbd/replaced", "rbd/replaced-before"]);
    let gone = driver.look().expect_err("no image has the name").to_string();
    assert_eq!(gone, "there is no image rbd/replaced");
    assert_eq!(core.read(&mut disk, 0, 4096), Ok(vec![1; 4096]), "cores still have it");
    ceph.create("rbd/replaced", &["--size", "8M"]);
    let seen = look(&driver);
    assert_eq!(seen.bytes, Some(8 << 20));
    assert_ne!(identity(&driver), first);
    assert_eq!(core.read(&mut disk, 0, 4096), Ok(vec![1; 4096]), "nobody has reopened it");
    disk.reopen(&mut core.reactor).expect("reopened");
    assert_eq!(disk.properties().bytes, 8 << 20);
    assert_eq!(core.read(&mut disk, 0, 4096), Ok(vec![0; 4096]));
    ceph.rbd(&["mv", "rbd/replaced", "rbd/replaced-after"]);
    ceph.rbd(&["mv", "rbd/replaced-before", "rbd/replaced"]);
    assert_eq!(identity(&driver), first, "the first one is back");
    core.close(disk);
    end(&cluster, driver);
}

#[test]
fn an_image_in_a_namespace_is_another_one_than_its_namesake_and_a_check_says_what_is_there() {
    let Some(ceph) = TestCluster::get() else { return };
    ceph.rbd(&["namespace", "create", "rbd/tenant"]);
    ceph.create("rbd/namesake", &["--size", "4M"]);
    ceph.create("rbd/tenant/namesake", &["--size", "8M"]);
    let cluster = ceph.connect();
    let drivers = ["rbd/namesake", "rbd/tenant/namesake"].map(|image| driver_of(&cluster, image, false));
    let [outside, inside] = drivers.each_ref().map(identity);
    assert!(!outside.contains('[') && inside.contains(" [tenant] "), "{outside}, {inside}");
    assert_eq!(drivers.each_ref().map(|driver| look(driver).bytes), [Some(4 << 20), Some(8 << 20)]);
    let spec = "rbd/tenant/namesake".parse().expect("an image");
    let sentence = check(&cluster, &spec, false).expect("it is there");
    assert!(sentence.starts_with("rbd:rbd/tenant/namesake is image "), "{sentence}");
    assert!(sentence.contains(" 8388608 bytes, features layering, exclusive-lock"), "{sentence}");
    let [outside, inside] = drivers;
    drop(outside);
    end(&cluster, inside);
}

/// The address of the only client that has an image open.
fn client_of(ceph: &TestCluster, image: &str) -> String {
    let status = ceph.rbd(&["status", image]);
    let rest = status.split("watcher=").nth(1).expect("a watcher");
    rest.split_whitespace().next().expect("an address").to_owned()
}

#[test]
fn a_client_that_was_blocklisted_says_so_and_goes_on_as_another_only_when_the_image_is_reopened() {
    let Some(ceph) = TestCluster::get() else { return };
    ceph.create("rbd/fenced", &["--size", "4M"]);
    let cluster = ceph.connect();
    let driver = driver_of(&cluster, "rbd/fenced", false);
    let first = identity(&driver);
    let mut core = Core::new();
    let mut disk = core.open(&driver);
    core.write(&mut disk, 0, &[1; 4096]).expect("written");
    ceph.ceph(&["osd", "blocklist", "add", &client_of(&ceph, "rbd/fenced")]);
    let operation = core.write_operation(0, &[2; 4096], false);
    let finished = core.run(&mut disk, operation);
    assert_eq!(finished.result, Err(BlockError::Removed));
    assert_eq!(finished.errno.map(i32::from), Some(libc::ESHUTDOWN));
    assert!(detail(&driver, "fenced").is_some_and(|text| text.starts_with("this client was blocklisted")));
    let error = driver.look().expect_err("it is fenced").to_string();
    assert!(error.starts_with("this client was blocklisted"), "{error}");
    assert_eq!(identity(&driver), first, "another client sees the same image");
    assert_eq!(core.write(&mut disk, 0, &[2; 4096]), Err(BlockError::Removed), "nobody has reopened it");
    disk.reopen(&mut core.reactor).expect("reopened");
    core.write(&mut disk, 0, &[3; 4096]).expect("written as another client");
    assert_eq!(detail(&driver, "fenced"), None);
    core.close(disk);
    end(&cluster, driver);
}

#[test]
fn a_cache_that_somebody_has_set_for_an_image_makes_its_writes_volatile() {
    let Some(ceph) = TestCluster::get() else { return };
    ceph.create("rbd/cached", &["--size", "4M"]);
    ceph.rbd(&["config", "image", "set", "rbd/cached", "rbd_cache", "true"]);
    let cluster = ceph.connect();
    let driver = driver_of(&cluster, "rbd/cached", false);
    look(&driver);
    assert!(detail(&driver, "cache").is_some());
    let mut core = Core::new();
    let mut disk = core.open(&driver);
    assert!(disk.properties().volatile_cache);
    let operation = core.write_operation(0, &[4; 4096], true);
    core.run(&mut disk, operation).result.expect("written and flushed");
    assert_eq!(core.read(&mut disk, 0, 4096), Ok(vec![4; 4096]));
    core.close(disk);
    end(&cluster, driver);
}

#[test]
fn a_full_cluster_refuses_what_needs_space_instead_of_waiting_for_it() {
    let Some(ceph) = TestCluster::get() else { return };
    ceph.create("rbd/full", &["--size", "16M"]);
    let cluster = ceph.connect();
    let driver = driver_of(&cluster, "rbd/full", false);
    look(&driver);
    let mut core = Core::new();
    let mut disk = core.open(&driver);
    core.write(&mut disk, 0, &[1; 4096]).expect("written");
    ceph.osd_is_full(true);
    assert_eq!(core.write(&mut disk, 4 << 20, &[1; 4096]), Err(BlockError::NoSpace));
    core.write(&mut disk, 0, &[3; 4096]).expect("what is there can be written");
    ceph.osd_is_full(false);
    core.write(&mut disk, 8 << 20, &[2; 4096]).expect("there is space again");
    core.close(disk);
    end(&cluster, driver);
}

#[test]
fn a_cluster_is_closed_while_drivers_are_there_and_the_lock_is_released_at_once() {
    let Some(ceph) = TestCluster::get() else { return };
    ceph.create("rbd/ended", &["--size", "4M"]);
    let cluster = ceph.connect();
    let driver = driver_of(&cluster, "rbd/ended", false);
    look(&driver);
    let mut core = Core::new();
    let mut disk = core.open(&driver);
    core.write(&mut disk, 0, &[1; 4096]).expect("written");
    assert!(ceph.rbd(&["lock", "ls", "rbd/ended"]).contains("client."));
    core.close(disk);
    assert!(cluster.close(crate::core::PATIENCE), "the image is still open");
    assert_eq!(ceph.rbd(&["lock", "ls", "rbd/ended"]), "");
    assert_eq!(driver.look().expect_err("it is closed").to_string(), "the cluster was closed");
}
