//! Asymmetric Namespace Access: the log page, the event and the statuses.

use ringfab_spec::log::{AnaState, LogId};
use ringfab_spec::{Status, SubmissionEntry};

use ringfab_tests::TestTarget;
use ringfab_tests::raw_host::RawHost;

use crate::bench::Bench;

/// What the page has at most: 128 groups, and 4096 namespaces in them.
const PAGE_BYTES: usize = 16 + 128 * 32 + 4096 * 4;

#[test]
fn the_log_of_access_groups_is_one_group_that_is_optimized_where_nothing_is_said() {
    let (mut bench, attached) = Bench::attached();
    let mut page = |bytes: usize, offset: u64, groups_only: bool| {
        let mut entry = SubmissionEntry::get_log_page(
            bench.host.next_cid(),
            LogId::ANA.0,
            0,
            offset,
            bytes as u32,
            false,
        );
        entry.cdw10 = (entry.cdw10.get() | u32::from(groups_only) << 8).into();
        let (completion, page) = bench.host.fetch(attached.admin, &entry, bytes);
        assert_eq!(completion.status(), Status::SUCCESS);
        page
    };
    let whole = page(PAGE_BYTES, 0, false);
    let namespaces = whole[20];
    let mut expected = vec![0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
    expected.extend([1, 0, 0, 0, namespaces, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, AnaState::OPTIMIZED.0]);
    expected.extend([0; 15]);
    expected.extend([1, 0, 0, 0]);
    assert!(namespaces > 0);
    assert_eq!(whole[..expected.len()], expected);
    // A part of it, and without the namespaces.
    assert_eq!(page(8, 8, false), whole[8..16]);
    let groups = page(64, 0, true);
    assert_eq!(groups[20], 0);
    assert_eq!(groups[48..], [0; 16]);
}

#[test]
fn each_state_that_allows_no_io_has_its_status_and_the_host_may_try_another_path() {
    for (state, status) in [
        ("inaccessible", Status::ANA_INACCESSIBLE),
        ("persistent-loss", Status::ANA_PERSISTENT_LOSS),
        ("change", Status::ANA_TRANSITION),
        ("non-optimized", Status::SUCCESS),
    ] {
        let target = TestTarget::start(&format!(
            "[[subsystem.ana]]\ngroup = 7\nstate = \"{state}\"\n[[subsystem.namespace]]\nmemory = \"1MiB\"\n\
             [[subsystem.namespace]]\nmemory = \"1MiB\"\nana_group = 7\n"
        ));
        let mut host = RawHost::new(target.address());
        let association = host.attach();
        let io = host.attach_io(association, 1, 32);
        let flush = SubmissionEntry::flush(host.next_cid(), 1);
        assert_eq!(host.command(io, &flush).status(), Status::SUCCESS, "another group");
        let flush = SubmissionEntry::flush(host.next_cid(), 2);
        // Do Not Retry is clear: the host is to try another path.
        assert_eq!(host.command(io, &flush).status(), status, "{state}");
    }
}

#[test]
fn identify_says_what_access_groups_there_may_be_and_which_a_namespace_is_in() {
    let (mut bench, attached) = Bench::attached();
    let entry = SubmissionEntry::identify(bench.host.next_cid(), 1, 0, 0, 0);
    let (_, page) = bench.host.fetch(attached.admin, &entry, 4096);
    assert_ne!(page[76] & 1 << 3, 0, "CMIC");
    assert_ne!(page[93] & 1 << 3, 0, "OAES");
    assert_eq!((page[342], page[343]), (10, 0x1f), "ANATT and ANACAP");
    assert_eq!((&page[344..348], &page[348..352]), (&[128, 0, 0, 0][..], &[128, 0, 0, 0][..]));
    let entry = SubmissionEntry::identify(bench.host.next_cid(), 0, 1, 0, 0);
    let (_, page) = bench.host.fetch(attached.admin, &entry, 4096);
    assert_eq!(page[92..96], [1, 0, 0, 0], "ANAGRPID");
}
