//! Private data of the connection that is wrong: it is rejected with the status that the RDMA transport names.

use ringfab_spec::rdma_cm::{Reject, RejectStatus, Request};
use ringfab_spec::{FromBytes, IntoBytes};
use ringfab_tests::raw_host::Refusal;

use crate::bench::Bench;

fn rejected(bench: &mut Bench, private_data: &[u8], status: RejectStatus) {
    match bench.host.connect(private_data) {
        Err(Refusal::Rejected(words)) => {
            let reject = Reject::read_from_bytes(&words).expect("four bytes");
            assert_eq!(reject.recfmt.get(), 0);
            assert_eq!(reject.status(), status, "for {private_data:02x?}");
        }
        other => panic!("{other:?} for {private_data:02x?}"),
    }
}

#[test]
fn private_data_that_are_short_are_of_an_invalid_length() {
    let mut bench = Bench::new();
    let good = Request::new(0, 32, 32, 0);
    for length in 0..32 {
        rejected(&mut bench, &good.as_bytes()[..length], RejectStatus::INVALID_PRIVATE_DATA_LENGTH);
    }
    bench.host.connect(good.as_bytes()).expect("the whole of it is good");
}

#[test]
fn private_data_of_another_format_are_refused() {
    let mut bench = Bench::new();
    for format in [1, 0x100, u16::MAX] {
        let mut request = Request::new(0, 32, 32, 0);
        request.recfmt.set(format);
        rejected(&mut bench, request.as_bytes(), RejectStatus::INVALID_RECFMT);
    }
}

#[test]
fn a_queue_identifier_that_no_controller_has_is_refused() {
    let mut bench = Bench::new();
    for queue_id in [129, 1000, u16::MAX] {
        let request = Request::new(queue_id, 32, 32, 0);
        rejected(&mut bench, request.as_bytes(), RejectStatus::INVALID_QID);
    }
    bench.host.connect(Request::new(128, 32, 32, 0).as_bytes()).expect("the last one is good");
}

#[test]
fn a_send_queue_of_one_entry_or_too_many_is_refused() {
    let mut bench = Bench::new();
    for entries in [1, 1025, u16::MAX] {
        let request = Request::new(1, entries, u16::MAX, 0);
        rejected(&mut bench, request.as_bytes(), RejectStatus::INVALID_HSQSIZE);
    }
    let mut most = Request::new(1, 2, u16::MAX, 0);
    most.hsqsize_z.set(u16::MAX);
    rejected(&mut bench, most.as_bytes(), RejectStatus::INVALID_HSQSIZE);
    for entries in [2, 1024] {
        bench.host.connect(Request::new(1, entries, entries, 0).as_bytes()).expect("a good size");
    }
}

#[test]
fn a_receive_queue_that_cannot_hold_the_responses_is_refused() {
    let mut bench = Bench::new();
    for receive_entries in [0, 1, 30] {
        let request = Request::new(0, 32, receive_entries, 0);
        rejected(&mut bench, request.as_bytes(), RejectStatus::INVALID_HRQSIZE);
    }
    bench.host.connect(Request::new(0, 32, 31, 0).as_bytes()).expect("one for each outstanding command");
}
