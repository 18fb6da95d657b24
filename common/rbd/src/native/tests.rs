//! The list of answers, which `tests/tests/interleavings.rs` compiles once more: so its tests are not in its file.

use std::sync::Arc;

use super::answers::{Answer, Answers};

#[test]
fn answers_are_taken_youngest_first_and_only_the_first_needs_a_signal() {
    let (list, answers) = (Answers::new(), [0, 1, 2].map(|slot| Arc::new(Answer::new(slot))));
    let firsts: Vec<bool> = answers.iter().map(|one| list.put(Arc::clone(one), -5)).collect();
    assert_eq!(firsts, [true, false, false]);
    let mut taken = Vec::new();
    list.take(|answer| taken.push((answer.slot(), answer.result())));
    assert_eq!(taken, [(2, -5), (1, -5), (0, -5)]);
    assert!(list.put(Arc::clone(&answers[1]), 7), "it is empty again");
    list.close(|answer| taken.push((answer.slot(), answer.result())));
    assert_eq!(taken.last(), Some(&(1, 7)));
    assert!(!list.put(Arc::clone(&answers[2]), 0), "nobody is to be signalled");
    assert!(answers.iter().all(|answer| Arc::strong_count(answer) == 1), "none is held by the list");
}

#[test]
fn nothing_is_lost_or_taken_twice_while_several_threads_answer() {
    const EACH: u32 = if cfg!(miri) { 20 } else { 10_000 };
    let list = Answers::new();
    let mut times = vec![0; 3 * EACH as usize];
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let list = &list;
            scope.spawn(move || {
                for slot in thread * EACH..(thread + 1) * EACH {
                    list.put(Arc::new(Answer::new(slot)), i64::from(slot));
                }
            });
        }
        while times.iter().sum::<u32>() < 3 * EACH {
            list.take(|answer| {
                assert_eq!(answer.result(), i64::from(answer.slot()));
                times[answer.slot() as usize] += 1;
            });
            std::thread::yield_now();
        }
    });
    assert!(times.iter().all(|times| *times == 1));
}
