//! The target is killed, or told to stop, and started again at the same place: nothing that was acknowledged is gone.

use std::fs::File;
use std::time::Duration;

use ringfab_tests::world::content::Random;
use ringfab_tests::{Caching, Service, file_target_with, free_port};

use crate::load::{IMAGE_BYTES, Load, PATIENT, attach, seed};

/// How often the target goes away in each test.
const ROUNDS: u32 = 5;

/// More than its drain timeout of 5 s and the grace after it.
const STOP_MAX: Duration = Duration::from_secs(8);

/// Lets the target go away again and again under load. What was acknowledged has to be there each time it is back,
/// flushed or not: the machine keeps running, and with it the page cache.
fn goes_away(what: &str, caching: Caching, mut leave: impl FnMut(&mut Service)) {
    let (port, seed) = (free_port(), seed(what));
    let mut random = Random::new(seed, 99);
    let folder = tempfile::tempdir().expect("a folder");
    let image = folder.path().join("image");
    File::create(&image).and_then(|file| file.set_len(IMAGE_BYTES)).expect("an image");
    let mut target = file_target_with(port, &image, caching);
    let controller = attach(port, PATIENT);
    let load = Load::start(&controller, seed);
    for round in 0..ROUNDS {
        load.wait_for_a_moment(&mut random, round);
        leave(&mut target);
        // Away for any time.
        std::thread::sleep(Duration::from_millis(random.below(100)));
        target = file_target_with(port, &image, caching);
    }
    load.finish(&image);
    controller.detach().expect("detached");
    target.signal("TERM");
    assert!(target.wait(STOP_MAX).success(), "{}", target.log());
}

#[test]
fn killed_over_a_file_without_the_page_cache_it_has_every_acknowledged_write_when_it_is_back() {
    goes_away("kill, direct", Caching::Direct, Service::kill);
}

#[test]
fn killed_over_a_file_in_the_page_cache_it_has_every_acknowledged_write_when_it_is_back() {
    goes_away("kill, cached", Caching::Page, Service::kill);
}

#[test]
fn told_to_stop_under_load_it_drains_in_time_with_exit_code_zero_and_loses_nothing() {
    goes_away("stop", Caching::Direct, |target| {
        target.signal("TERM");
        let status = target.wait(STOP_MAX);
        assert_eq!(status.code(), Some(0), "{}", target.log());
    });
}
