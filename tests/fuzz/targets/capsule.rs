//! A command capsule from a host: the submission queue entry, its SGL descriptor, and the data of a Connect behind it.
#![cfg_attr(feature = "libfuzzer", no_main)]

use std::hint::black_box;

use ringfab_fuzz::fuzz_target;
use ringfab_spec::sqe::{ConnectCommand, ConnectData};
use ringfab_spec::{FromBytes, IntoBytes, SubmissionEntry};

fuzz_target!(|capsule: &[u8]| {
    let Ok((entry, data)) = SubmissionEntry::read_from_prefix(capsule) else { return };
    assert_eq!(entry.as_bytes(), &capsule[..size_of::<SubmissionEntry>()]);
    black_box((entry.sgl.parse().is_ok(), format!("{entry:?}")));
    black_box((entry.slba(), entry.nlb(), entry.dsm_ranges(), entry.log_length(), entry.lpo()));
    black_box((entry.fabrics_type(), entry.property_size(), entry.property_offset()));
    black_box(ConnectCommand::of(&entry).sqsize());
    // The names in the data of a Connect lie behind 256 bytes that mutations hardly ever make.
    let mut connect =
        ConnectData::read_from_bytes(&[0; size_of::<ConnectData>()]).expect("any bytes are one");
    let names = &mut connect.as_mut_bytes()[256..];
    let length = data.len().min(names.len());
    names[..length].copy_from_slice(&data[..length]);
    for name in [connect.subnqn.parse(), connect.hostnqn.parse()].into_iter().flatten() {
        assert!(!name.as_str().contains('\0'));
    }
});
