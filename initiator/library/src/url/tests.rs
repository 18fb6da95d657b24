//! Addresses that are right, and what is said of those that are not.

use super::*;

fn parse(text: &str) -> Result<Url, UrlError> {
    text.parse()
}

#[test]
fn every_part_of_an_address_is_read() {
    let text = "nvme+rdma://disks.example:4421/nqn.2026-01.org.example:a%2Fb?ns=7&provider=iwarp\
                &hostnqn=nqn.2026-01.org.example:me&hostid=01234567-89ab-cdef-0123-456789abcdef\
                &queues=4&depth=64&keepalive=0&crc=off";
    let url = parse(text).expect("a valid address");
    assert_eq!(url.host, HostName::Name("disks.example".into()));
    assert_eq!(url.port, 4421);
    assert_eq!(url.subsystem.as_deref(), Some("nqn.2026-01.org.example:a/b"));
    assert_eq!(url.namespace, Some(7));
    assert_eq!(
        (url.queues, url.depth, url.keep_alive_s, url.rdma.crc),
        (Some(4), Some(64), Some(0), Some(false))
    );
    assert_eq!(url.host_nqn.as_deref(), Some("nqn.2026-01.org.example:me"));
    assert_eq!(parse(&url.to_string()), Ok(url));
}

#[test]
fn an_address_of_tcp_has_options_of_its_own_that_another_transport_does_not_take_over() {
    let text = "nvme+tcp://10.0.0.1:8009/nqn.2026-01.org.example:a?ns=2&tls=on&tls_key=file:%2Fk\
                &hdgst=on&ddgst=on&congestion=cubic&dscp=26\
                &usertimeout=30&tcpkeepalive=15";
    let url = parse(text).expect("a valid address");
    assert_eq!(url.transport, Transport::Tcp);
    assert_eq!((url.tls, url.tls_key.clone()), (Some(true), Some(KeySource::File("/k".into()))));
    let congestion = Some("cubic".to_owned());
    assert_eq!(url.digests, DigestOptions { header: true, data: true });
    let expected =
        TcpOptions { congestion, dscp: Some(26), user_timeout_s: Some(30), keep_alive_s: Some(15) };
    assert_eq!(url.tcp, expected);
    assert_eq!(url.to_string(), text);
    assert_eq!(url.with_transport(Transport::Tcp), url);
    let other = url.with_transport(Transport::Rdma).to_string();
    // Below the software RNIC there is TCP, too.
    let tcp = "congestion=cubic&dscp=26&usertimeout=30&tcpkeepalive=15";
    assert_eq!(other, format!("nvme+rdma://10.0.0.1:8009/nqn.2026-01.org.example:a?ns=2&{tcp}"));
}

#[test]
fn an_address_of_tcp_may_ask_for_a_key_that_authentication_makes() {
    let text = "nvme+tcp://10.0.0.1:4420/nqn.2026-01.org.example:a?dhchap_key=file:%2Fk&tls=on&concat=on";
    let url = parse(text).expect("a valid address");
    assert_eq!((url.concatenation, url.to_string().as_str()), (Some(true), text));
    assert_eq!(url.with_transport(Transport::Rdma).concatenation, None);
    assert_eq!(parse("nvme+tcp://a/?concat=off&tls=off").expect("valid").concatenation, Some(false));
}

#[test]
fn an_address_says_where_keys_are_and_never_has_one() {
    let address = "nvme+tcp://10.0.0.1:4420/nqn.2026-01.org.example:a";
    let text =
        format!("{address}?dhchap_key=file:/etc/keys/host&dhchap_controller_key=credential:controller");
    let url = parse(&text).expect("a valid address");
    assert_eq!(url.dhchap_key, Some(KeySource::File("/etc/keys/host".into())));
    assert_eq!(url.dhchap_controller_key, Some(KeySource::Credential("controller".to_owned())));
    assert_eq!(parse(&url.to_string()), Ok(url));
    let refused =
        parse(&format!("{address}?dhchap_key=DHHC-1:00:ycnJycnJ:")).expect_err("refused").to_string();
    assert!(refused.starts_with("option dhchap_key is a key; put it into a file"), "{refused}");
    assert!(!refused.contains("ycnJ"), "{refused}");
}

#[test]
fn a_short_address_stands_for_discovery_at_the_usual_port() {
    for text in ["nvme+rdma://10.0.0.1", "nvme+rdma://10.0.0.1/", "nvme+rdma://10.0.0.1:4420/?"] {
        let url = parse(text).expect("a valid address");
        assert_eq!(url.to_string(), "nvme+rdma://10.0.0.1:4420/");
        assert!(url.is_discovery());
    }
}

#[test]
fn a_link_local_address_has_its_interface_with_either_percent_sign() {
    for text in ["nvme+tcp://[fe80::1%25eth0]:1/", "nvme+tcp://[fe80::1%eth0]:1"] {
        let url = parse(text).expect("valid");
        assert_eq!(url.to_string(), "nvme+tcp://[fe80::1%25eth0]:1/");
        assert_eq!(url.peer(), "discovery at [fe80::1%eth0]:1", "as people write it");
        assert_eq!(parse(&url.to_string()), Ok(url));
    }
    let index = parse("nvme+tcp://[fe80::1%25]").expect("an interface by its index");
    assert_eq!(index.host.to_string(), "[fe80::1%25]");
    assert_eq!(parse(&index.to_string()), Ok(index));
    let missing = parse("nvme+tcp://[fe80::1]/").expect_err("which link is it?").to_string();
    assert!(missing.contains("needs the name of an interface, as in fe80::1%eth0"), "{missing}");
    assert!(matches!(parse("nvme+tcp://[fd00::1%eth0]"), Err(UrlError::Zone { .. })));
    assert!(matches!(parse("nvme+tcp://[fe80::1%]"), Err(UrlError::Zone { .. })));
}

#[test]
fn an_ipv6_address_stands_in_brackets_with_or_without_a_port() {
    assert_eq!(parse("nvme+rdma://[::1]").expect("valid").port, 4420);
    let url = parse("nvme+rdma://[fd00::1]:1/nqn.2026-01.org.example:a").expect("valid");
    assert_eq!(url.to_string(), "nvme+rdma://[fd00::1]:1/nqn.2026-01.org.example:a");
    assert_eq!(parse("nvme+rdma://[::1]4420"), Err(UrlError::Host("[::1]4420".into())));
}

#[test]
fn a_subsystem_may_have_a_name_without_the_usual_form() {
    let url = parse("nvme+rdma://a/testnqn").expect("what Linux serves");
    assert_eq!(url.subsystem_nqn(), "testnqn");
}

#[test]
fn a_scheme_in_upper_case_and_a_slash_at_the_end_change_nothing() {
    let nqn = "nqn.2026-01.org.example:a";
    let plain = parse(&format!("nvme+tcp://a/{nqn}?ns=1"));
    for text in [
        format!("NVMe+TCP://a/{nqn}?ns=1"),
        format!("nvme+tcp://a/{nqn}/?ns=1"),
        format!("NVME+tcp://a/{nqn}//?ns=1"),
    ] {
        assert_eq!(parse(&text), plain, "{text}");
    }
    let encoded = parse(&format!("nvme+tcp://a/{nqn}%2F")).expect("a slash that is meant");
    assert_eq!(encoded.subsystem_nqn(), format!("{nqn}/"));
    assert_eq!(parse(&encoded.to_string()), Ok(encoded));
}

#[test]
fn each_mistake_has_its_own_sentence() {
    for (text, sentence) in [
        (
            "http://x/",
            "an address begins with nvme+rdma:// or nvme+tcp://, this one with `http://`; write for instance \
             nvme+tcp://192.0.2.5/nqn.2026-11.com.example:a",
        ),
        ("nvme+tcp://a/?concat=yes", "option concat: `yes` is not `on` or `off`"),
        ("nvme+tcp://a/?tls=off&concat=on", "option concat: `on` does not go with tls=off"),
        ("nvme+tcp://a/?concat=on&tls_key=file:/k", "option concat: `on` does not go with tls_key"),
        ("nvme+rdma:///", "`` is neither a host name, nor an IPv4 address, nor an IPv6 address in brackets"),
        ("nvme+rdma://10.0.0.256/", "`10.0.0.256` is neither"),
        ("nvme+rdma://a:0/", "`0` is not a port number"),
        ("nvme+rdma://a:65536/", "`65536` is not a port number"),
        ("nvme+rdma://a:+1/", "`+1` is not a port number"),
        (
            "nvme+rdma://a/di%0Ask",
            "`di\\nsk` is not a subsystem: the NQN has a character that cannot be seen at byte 2, U+000A",
        ),
        ("nvme+rdma://a/nqn.%zz", "`nqn.%zz` is not percent-encoded text"),
        ("nvme+rdma://a/nqn.%f", "`nqn.%f` is not percent-encoded text"),
        ("nvme+rdma://a/?ns=1&ns=2", "option `ns` is given twice"),
        ("nvme+rdma://a/?ns=0", "option ns: `0` is not a namespace identifier"),
        ("nvme+rdma://a/?depth=1025", "option depth: `1025` is not a number from 1 to 1024"),
        ("nvme+rdma://a/?provider=rxe", "option provider: `rxe` is not `auto`, `iwarp` or `verbs`"),
        ("nvme+tcp://a/?tls=yes", "option tls: `yes` is not `on` or `off`"),
        (
            "nvme+tcp://a/?tls_key=k",
            "option tls_key must be \"file:/path\", \"credential:NAME\" or \"keyring:DESCRIPTION\"",
        ),
        ("nvme+tcp://a/?hdgst=1", "option hdgst: `1` is not `on` or `off`"),
        ("nvme+rdma://a/?tcpkeepalive=0", "option tcpkeepalive: `0` is not a number of seconds"),
        ("nvme+tcp://a/?usertimeout=0", "option usertimeout: `0` is not a number of seconds from 1 to 3600"),
        ("nvme+tcp://a/?tcpkeepalive=3601", "option tcpkeepalive: `3601` is not a number of seconds"),
        ("nvme+tcp://a/?congestion=", "option congestion: `` is not the name"),
        (
            "nvme+rdma://a/?hostnqn=foo",
            "option hostnqn: `foo` is not the name of a host: an NQN has the form",
        ),
        (
            "nvme+rdma://a/%E2%80%AEx",
            "`\\u{202e}x` is not a subsystem: the NQN has a character that cannot be seen",
        ),
        ("nvme+rdma://a/?hostid=7", "option hostid: `7` is not a UUID"),
    ] {
        let error = parse(text).expect_err(text).to_string();
        assert!(error.starts_with(sentence), "{text}: {error}");
    }
}

#[test]
fn the_longest_name_is_taken_and_none_that_is_longer() {
    let nqn = "nqn.2026-01.org.example:a";
    let long = format!("nvme+rdma://a/{nqn}{}", "x".repeat(223 - nqn.len()));
    assert!(parse(&long).is_ok());
    assert!(parse(&format!("{long}x")).is_err());
}

#[test]
fn an_option_that_is_none_is_told_what_it_may_be_meant_for() {
    for (text, sentence) in [
        (
            "nvme+rdma://a/?speed=9",
            "there is no option `speed`; there are ns, hostnqn, hostid, keys, dhchap_key, dhchap_controller_key, \
             queues, depth, keepalive, replaydelay, congestion, dscp, usertimeout, tcpkeepalive, provider, crc",
        ),
        ("nvme+rdma://a/?nsid=1", "there is no option `nsid`; did you mean ns?"),
        ("nvme+rdma://a/?ns=1&keep_alive=1", "there is no option `keep_alive`; did you mean keepalive?"),
        ("nvme+rdma://a/?Depth=1", "there is no option `Depth`; did you mean depth?"),
        ("nvme+rdma://a/?provder=auto", "there is no option `provder`; did you mean provider?"),
        ("nvme+tcp://a/?tls-key=file:/k", "there is no option `tls-key`; did you mean tls_key?"),
        ("nvme+rdma://a/?concat=on", "there is no option `concat`"),
        ("nvme+tcp://a/?crc=on", "there is no option `crc` for nvme+tcp://, only for nvme+rdma://"),
        ("nvme+rdma://a/?ddgst=on", "there is no option `ddgst` for nvme+rdma://, only for nvme+tcp://"),
        ("nvme+rdma://a/?tls=on", "there is no option `tls`"),
    ] {
        let error = parse(text).expect_err(text).to_string();
        assert!(error.starts_with(sentence), "{text}: {error}");
    }
    for (scheme, own) in
        [("nvme+rdma", Transport::Rdma.own_options()), ("nvme+tcp", Transport::Tcp.own_options())]
    {
        for name in Url::OPTIONS.iter().chain(own) {
            let parsed = parse(&format!("{scheme}://a/?{name}=:"));
            assert!(!matches!(parsed, Err(UrlError::Option { .. })), "{name} is in the list");
        }
    }
}

proptest::proptest! {
    #[test]
    fn any_text_is_an_address_that_is_written_as_it_is_read_or_is_refused(
        text in ".{0,60}",
        tail in "[a-z0-9.:%/?&=+\\[\\]-]{0,60}",
    ) {
        let heads = ["nvme+rdma://", "nvme+tcp://a/", "nvme+rdma://[::1]:4420/"];
        let urls = heads.map(|head| format!("{head}{tail}"));
        for text in [text].into_iter().chain(urls) {
            if let Ok(url) = parse(&text) {
                proptest::prop_assert_eq!(parse(&url.to_string()), Ok(url));
            }
        }
    }
}
