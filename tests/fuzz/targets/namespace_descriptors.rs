//! The list of namespace identification descriptors from a controller.
#![cfg_attr(feature = "libfuzzer", no_main)]

use ringfab_fuzz::fuzz_target;
use ringfab_spec::identify::NamespaceDescriptors;

fuzz_target!(|list: &[u8]| {
    let mut bytes = 0;
    let mut errors = 0;
    for descriptor in NamespaceDescriptors::new(list) {
        match descriptor {
            Ok(descriptor) => bytes += descriptor.nid().len(),
            Err(_) => errors += 1,
        }
    }
    assert!(bytes <= list.len());
    assert!(errors <= 1, "the first error ends the list");
});
