//! The private data of NVMe/RDMA connections: a host's request, a controller's answers.
#![cfg_attr(feature = "libfuzzer", no_main)]

use std::hint::black_box;

use ringfab_fuzz::fuzz_target;
use ringfab_spec::FromBytes;
use ringfab_spec::rdma_cm::{Accept, Reject, Request};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(request) = Request::parse(bytes) {
        assert!((1..=65536).contains(&request.entries()));
    }
    if let Ok((accept, _)) = Accept::read_from_prefix(bytes) {
        black_box(format!("{accept:?}"));
    }
    if let Ok((reject, _)) = Reject::read_from_prefix(bytes) {
        black_box(format!("{:?}", reject.status()));
    }
});
