//! What a user is told who has made a mistake: the option, the value, what there is instead, and an example.

use std::time::{Duration, Instant};

use ringfab_tests::{NQN, free_port};

use super::{err, output, ringfab, ringfab_target, target};

const URL: &str = "nvme+tcp://192.0.2.5/nqn.2026-11.com.example:a";

#[test]
fn wrong_values_name_the_option_the_value_and_what_is_allowed() {
    for (arguments, words) in [
        (&["list", "192.0.2.5"][..], "write for instance nvme+tcp://192.0.2.5/nqn.2026-11.com.example:a"),
        (&["list", URL, "--queues", "0"], "'0' for '--queues <N>': 0 is not one from 1 to 128"),
        (&["list", URL, "--queues", "many"], "'many' for '--queues <N>': it is not a whole number"),
        (&["list", URL, "--depth", "99999999"], "99999999 is not one from 1 to 1024"),
        (&["list", URL, "--hostid", "5"], "'5' for '--hostid <UUID>': it is not a UUID such as f81d4fae-"),
        (&["list", URL, "--keep-alive", "5x"], "`5x` is not a time like 10s, 500ms, 50us or 2m"),
        (&["--color", "red", "list"], "[possible values: auto, always, never]"),
        (&["lst"], "a similar subcommand exists: 'list'"),
        (&["reset"], "<TARGET|--all>"),
        (&["list", URL, "--hostnqn", ""], "invalid value '' for '--hostnqn <NQN>': the NQN is empty"),
        (&["discover"], "<URL|--mdns>"),
    ] {
        let wrong = output(&mut ringfab(arguments));
        assert_eq!(wrong.status.code(), Some(2), "{arguments:?}");
        assert!(err(&wrong).contains(words), "{arguments:?}: {}", err(&wrong));
    }
    for (arguments, words) in [
        (&["--color", "red", "status"][..], "[possible values: auto, always, never]"),
        (&["namespace", "add"], "<PATH|--nbd <ADDRESS>|--rbd <IMAGE>|--memory <SIZE>|--null <SIZE>>"),
        (&["namespace", "add", "/x", "--null", "1G"], "cannot be used with"),
    ] {
        let wrong = output(&mut ringfab_target(arguments));
        assert_eq!(wrong.status.code(), Some(2), "{arguments:?}");
        assert!(err(&wrong).contains(words), "{arguments:?}: {}", err(&wrong));
    }
    for (arguments, words) in [
        (
            &["umount", "no-such-volume"][..],
            "`no-such-volume` is neither a directory nor the name of a volume",
        ),
        (&["keys", "check", "/dev/null"], "one for authentication begins with \"DHHC-1:\", one for TLS with"),
    ] {
        let wrong = output(&mut ringfab(arguments));
        assert_eq!(wrong.status.code(), Some(1), "{arguments:?}");
        assert!(err(&wrong).contains(words), "{arguments:?}: {}", err(&wrong));
    }
}

#[test]
fn an_address_without_a_subsystem_is_told_from_one_without_namespaces() {
    let (_target, url) = target();
    let discovery = url.rsplit_once('/').expect("a subsystem").0;
    for command in ["smart", "effects-log", "read"] {
        let wrong = output(&mut ringfab(&[command, discovery]));
        let words = "the address names no subsystem, and `ringfab discover nvme+tcp://";
        // A discovery controller may have some of the log pages.
        assert!(wrong.status.success() || err(&wrong).contains(words), "{command}: {}", err(&wrong));
        assert!(command == "effects-log" || !wrong.status.success(), "{command}");
    }
}

#[test]
fn a_port_where_nobody_listens_fails_at_once() {
    let port = free_port();
    for transport in ["nvme+tcp", "nvme+rdma"] {
        let url = format!("{transport}://127.0.0.1:{port}/{NQN}");
        for command in ["list", "smart", "bench"] {
            let begun = Instant::now();
            let refused = output(&mut ringfab(&[command, &url]));
            assert_eq!(refused.status.code(), Some(1), "{command}");
            assert!(err(&refused).contains("check that a target listens there"), "{}", err(&refused));
            assert!(begun.elapsed() < Duration::from_secs(10), "{command}: {:?}", begun.elapsed());
        }
    }
}
