//! The model itself: what it allows and what it catches.

use super::checker::{Checker, Outcome};
use super::content::{SECTOR_BYTES, Stamp, fill};

fn sector(stamp: Stamp) -> Vec<u8> {
    let mut bytes = vec![0; SECTOR_BYTES];
    fill(&mut bytes, stamp, 0);
    bytes
}

fn written(stamps: &[(Stamp, bool)]) -> Checker {
    let mut checker = Checker::new(0..1);
    for (stamp, durable) in stamps {
        checker.begin_write(*stamp, 0..1, *stamp, *durable);
        checker.end(*stamp, Outcome::Done);
    }
    checker
}

fn shows(checker: &mut Checker, stamp: Stamp) -> bool {
    checker.begin_look(1000, 0..1, Vec::new());
    checker.end_read(1000, Some(&sector(stamp))).is_ok()
}

#[test]
fn an_acknowledged_write_is_the_only_content_until_power_is_lost() {
    for shown in [0, 1, 2] {
        assert_eq!(shows(&mut written(&[(1, false), (2, false)]), shown), shown == 2);
        let mut checker = written(&[(1, false), (2, false)]);
        checker.power_lost();
        assert!(shows(&mut checker, shown), "any of them may be left");
    }
}

#[test]
fn a_write_with_fua_outlives_everything_before_it() {
    for shown in [0, 1, 2] {
        let mut checker = written(&[(1, false), (2, true)]);
        checker.power_lost();
        assert_eq!(shows(&mut checker, shown), shown == 2);
    }
}

#[test]
fn a_flush_covers_what_was_acknowledged_before_it_and_not_what_came_later() {
    for shown in [0, 1, 2, 3] {
        let mut checker = written(&[(1, false), (2, false)]);
        checker.begin_flush(9);
        checker.begin_write(3, 0..1, 3, false);
        checker.end(3, Outcome::Done);
        checker.end(9, Outcome::Done);
        checker.power_lost();
        assert_eq!(shows(&mut checker, shown), shown >= 2);
    }
}

#[test]
fn a_flush_that_failed_or_that_a_crash_preceded_promises_nothing_about_what_was_before() {
    for crash in [false, true] {
        let mut checker = written(&[(1, false), (2, false)]);
        checker.begin_flush(9);
        if crash {
            checker.power_lost();
        }
        checker.end(9, if crash { Outcome::Done } else { Outcome::Unknown });
        checker.power_lost();
        assert!(shows(&mut checker, 1));
    }
}

#[test]
fn an_answer_that_was_on_its_way_while_the_power_went_promises_only_what_fua_does() {
    for durable in [false, true] {
        for shown in [1, 2] {
            let mut checker = written(&[(1, true)]);
            checker.begin_write(2, 0..1, 2, durable);
            checker.power_lost();
            checker.end(2, Outcome::Done);
            assert_eq!(shows(&mut checker, shown), shown == 2 || !durable);
        }
    }
}

#[test]
fn a_failed_write_leaves_either_and_a_read_settles_which() {
    let mut checker = written(&[(1, true)]);
    checker.begin_write(2, 0..1, 2, true);
    checker.end(2, Outcome::Unknown);
    assert_eq!(checker.certain(&(0..1)), None);
    assert!(shows(&mut checker, 1));
    assert_eq!(checker.certain(&(0..1)), Some(vec![1]));
    assert!(!shows(&mut checker, 2));
}

#[test]
fn a_read_beside_a_write_may_show_either_and_settles_nothing() {
    for shown in [0, 1, 2] {
        let mut checker = written(&[(1, true)]);
        checker.begin_look(7, 0..1, Vec::new());
        checker.begin_write(2, 0..1, 2, false);
        assert_eq!(checker.end_read(7, Some(&sector(shown))).is_ok(), shown != 0);
        assert_eq!(checker.certain(&(0..1)), None);
    }
}

#[test]
fn a_compare_is_right_or_it_is_found_out() {
    let mut checker = written(&[(1, true)]);
    for (expected, equal) in [(1, true), (1, false), (2, true), (2, false)] {
        checker.begin_look(7, 0..1, vec![expected]);
        assert_eq!(checker.end_compare(7, Some(equal)).is_ok(), (expected == 1) == equal);
    }
}

#[test]
fn a_ghost_of_an_older_write_on_the_disk_is_found_out() {
    let checker = written(&[(1, false), (2, true)]);
    assert!(checker.check_disk(&sector(2), &sector(2)).is_ok());
    assert!(checker.check_disk(&sector(1), &sector(2)).is_err());
    assert!(checker.check_disk(&sector(2), &sector(1)).is_err());
}

#[test]
fn a_flush_that_succeeds_after_a_loss_that_nobody_was_told_of_says_that_nothing_was_lost() {
    for (told, flushed) in [(false, false), (false, true), (true, false), (true, true)] {
        for shown in [0, 1, 2] {
            let mut checker = written(&[(1, false), (2, false)]);
            checker.lost_silently();
            assert!(shows(&mut checker, shown), "any of them may be left");
            if told {
                checker.told_of_loss();
            }
            if flushed {
                checker.begin_flush(9);
                checker.end(9, Outcome::Done);
            }
            // What was seen after that is there.
            let possible = if told { true } else { !flushed || shown == 2 };
            assert_eq!(shows(&mut checker, shown), possible, "{told}, {flushed}, {shown}");
        }
    }
}
