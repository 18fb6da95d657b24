//! A discovery log page from a discovery controller.
#![cfg_attr(feature = "libfuzzer", no_main)]

use std::hint::black_box;

use ringfab_fuzz::fuzz_target;
use ringfab_spec::log::split_discovery_log;

fuzz_target!(|input: &[u8]| {
    // Mutations of short inputs hardly ever make a page: its length is a number of the input.
    let [high, low, start @ ..] = input else { return };
    let mut page = start.to_vec();
    page.resize(usize::from(u16::from_be_bytes([*high, *low])) % 5000, *low);
    let Some((header, entries)) = split_discovery_log(&page) else { return };
    assert!(entries.len() as u64 <= header.numrec.get());
    assert!(size_of_val(header) + size_of_val(entries) <= page.len());
    for entry in entries {
        black_box(format!("{entry:?}"));
    }
});
