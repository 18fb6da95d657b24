//! Targets that answer admin commands with fewer bytes than there is room for. That is allowed wherever a length is an
//! allocation length. What came is taken if it is enough, and otherwise it is said how much is missing.

use ringfab_initiator::blocking::{Controller, EngineOptions};
use ringfab_initiator::discovery::discover;
use ringfab_initiator::{ConnectOptions, HostIdentity, IoError, Url};
use ringfab_spec::SubmissionEntry;
use ringfab_spec::features::FeatureId;
use ringfab_tests::NQN;
use ringfab_tests::fake_target::{BLOCK, FakeTarget, Fault, Script};

/// Opcode, low byte of dword 10, bytes that are enough, and the command's name.
const ATTACHING: [(u8, u8, usize, &str); 3] = [
    (0x06, 1, 1806, "Identify Controller"),
    (0x06, 2, 4, "Identify (active namespaces)"),
    (0x06, 0, 132, "Identify Namespace"),
];
const IDENTIFY: u8 = 0x06;
const LOG_PAGE: u8 = 0x02;
const DISCOVERY_LOG: u8 = 0x70;

fn target(cuts: Vec<(u8, u8, usize)>, success: bool) -> FakeTarget {
    FakeTarget::with_script(Fault::None, Script { cuts, success, ..Script::default() })
}

fn options(target: &FakeTarget, path: &str) -> ConnectOptions {
    let url: Url = format!("nvme+tcp://{}{path}", target.address).parse().expect("a URL");
    let host = HostIdentity::for_url(&url).expect("an identity");
    ConnectOptions::new(url, host)
}

fn connect(target: &FakeTarget) -> Result<Controller, String> {
    let options = options(target, &format!("/{NQN}"));
    Controller::connect(options, EngineOptions::default()).map_err(|error| error.to_string())
}

fn enough() -> Vec<(u8, u8, usize)> {
    ATTACHING.map(|(opcode, select, bytes, _)| (opcode, select, bytes)).to_vec()
}

#[test]
fn a_target_that_says_no_more_than_it_must_is_attached_and_used() {
    for success in [false, true] {
        let target = target(enough(), success);
        let controller = connect(&target).expect("attached");
        let namespaces = controller.namespaces();
        assert_eq!((namespaces.len(), namespaces[0].blocks), (1, 4096));
        let mut read = vec![0; BLOCK];
        controller.read_at(1, 0, &mut read).expect("read");
        assert!(read.iter().all(|byte| *byte == 0x5a));
        let identify = controller.identify_controller().expect("enough");
        assert_eq!((identify.len(), &identify[4..8]), (4096, &b"S123"[..]), "the rest is zero");
        assert_eq!(controller.identify_namespace(1).expect("enough").len(), 4096);
        controller.detach().expect("in order");
    }
}

#[test]
fn of_each_answer_in_attaching_that_is_too_short_one_sentence_says_what_is_missing() {
    for success in [false, true] {
        for (opcode, select, needed, name) in ATTACHING {
            let less = needed - 1;
            let mut cuts = enough();
            cuts.retain(|cut| (cut.0, cut.1) != (opcode, select));
            cuts.push((opcode, select, less));
            let error = connect(&target(cuts, success)).expect_err("it is too short");
            let said =
                format!("the target answered {name} with {less} bytes of data, of which {needed} are needed");
            assert!(error.contains(&said), "{error}, not {said}");
        }
    }
}

#[test]
fn a_program_gets_what_came_of_any_admin_command() {
    let mut directive = SubmissionEntry::get_features(0, 0, 0, 1);
    directive.opcode = 0x1a;
    let mut allocated = directive;
    allocated.opcode = 0x86;
    let timestamp = SubmissionEntry::get_features(0, FeatureId::TIMESTAMP.0, 0, 0);
    for success in [false, true] {
        for (entry, opcode, select) in
            [(timestamp, 0x0a, FeatureId::TIMESTAMP.0), (directive, 0x1a, 0), (allocated, 0x86, 0)]
        {
            for bytes in [4096, 4095, 8, 1, 0] {
                let target = target(vec![(opcode, select, bytes)], success);
                let controller = connect(&target).expect("attached");
                let (completion, data) = controller.admin_read(entry, 4096).expect("an answer");
                assert!(completion.status().is_success());
                assert_eq!(data, vec![opcode; bytes], "opcode {opcode:#x}");
                controller.detach().expect("in order");
            }
        }
    }
}

#[test]
fn log_pages_and_identify_data_that_are_too_short_are_errors_and_not_zeroes() {
    for success in [false, true] {
        let target = target(Vec::new(), success);
        let controller = connect(&target).expect("attached");
        let cut = |opcode, select, bytes| target.script(|script| script.cuts = vec![(opcode, select, bytes)]);
        let short = |command, received, needed| Err(IoError::Short { command, received, needed });
        cut(LOG_PAGE, 2, 192);
        assert_eq!(controller.smart(), Ok(vec![0; 512]), "the counters have come");
        cut(LOG_PAGE, 2, 191);
        assert_eq!(controller.smart(), short("Get Log Page", 191, 192));
        cut(LOG_PAGE, 5, 100);
        assert_eq!(controller.log_page(5, u32::MAX, 0, 8192), Ok(vec![0; 100]), "and no more is asked for");
        assert_eq!(controller.log_page_start(5, u32::MAX, 4096, 101), short("Get Log Page", 100, 101));
        cut(IDENTIFY, 1, 1805);
        assert_eq!(controller.identify_controller(), short("Identify Controller", 1805, 1806));
        cut(IDENTIFY, 0, 131);
        assert_eq!(controller.identify_namespace(1), short("Identify Namespace", 131, 132));
        controller.detach().expect("in order");
    }
}

#[test]
fn a_discovery_log_page_is_as_long_as_it_says_or_an_error() {
    for success in [false, true] {
        let whole = target(enough(), success);
        let log = discover(options(&whole, ""), EngineOptions::default()).expect("a log page");
        assert_eq!((log.generation, log.entries.len()), (1, 1));
        let short = target(vec![(LOG_PAGE, DISCOVERY_LOG, 1023)], success);
        let error = discover(options(&short, ""), EngineOptions::default()).expect_err("a byte is missing");
        let said =
            "the target answered Get Log Page (discovery) with 1023 bytes of data, of which 1024 are needed";
        assert!(error.to_string().contains(said), "{error}");
    }
}
