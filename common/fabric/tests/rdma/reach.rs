//! What a peer cannot reach, tried by the example that tries the same with devices.

use std::process::Command;

#[test]
fn a_peer_of_the_software_rnic_reaches_what_is_exposed_to_it_and_nothing_else() {
    let test = std::env::current_exe().expect("the path of this test");
    let build = test.parent().and_then(|deps| deps.parent()).expect("tests lie in a folder of the build");
    let example = build.join("examples").join("rdma_reach");
    let tried = Command::new(&example).args(["127.0.0.1", "iwarp"]).output();
    let tried = tried.unwrap_or_else(|error| panic!("{}: {error}", example.display()));
    let said = String::from_utf8_lossy(&tried.stdout);
    assert!(tried.status.success() && said.contains("13 of 13"), "{said}");
}
