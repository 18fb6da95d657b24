//! Clients of the address: odd ones, slow ones, many.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use ringfab_tests::wait_until;

use crate::target::{HOST, OPEN_METRICS, Seen};

#[test]
fn the_format_is_what_the_client_asks_for_and_nothing_can_be_changed() {
    let target = Seen::start();
    let open = target.get("/metrics", OPEN_METRICS);
    assert!(open.ends_with("# EOF\n") && open.contains("# UNIT ringfab_namespace_size_bytes bytes\n"));
    let text = target.get("/metrics", "text/plain");
    assert!(
        !text.contains("# EOF") && text.contains("# TYPE ringfab_namespace_media_errors_total counter\n")
    );
    for (request, status) in [
        ("POST / HTTP/1.1\r\nContent-Length: 1\r\n\r\nx", "405"),
        ("GET /x HTTP/1.1\r\n\r\n", "404"),
        ("\u{16}\u{3}\u{1}\r\n\r\n", "400"),
    ] {
        let (head, _) = target.request(request);
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
    }
    let (head, body) = target.request("HEAD /metrics HTTP/1.1\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 ") && body.is_empty(), "{head}");
    let (head, _) = target.request("GET / HTTP/1.1\r\n\r\n");
    assert!(head.contains("Content-Security-Policy: default-src 'none'"), "{head}");
}

/// What is said to a client that sends this, and then no more.
fn hung_up_on(mut stream: TcpStream, sent: &[u8]) -> Duration {
    let begun = Instant::now();
    // It may be hung up on before it has sent everything.
    let _refused = stream.write_all(sent);
    let _answered = stream.read_to_end(&mut Vec::new());
    begun.elapsed()
}

#[test]
fn slow_clients_and_many_clients_keep_nobody_from_the_metrics() {
    let target = Seen::start();
    let host = target.attach(HOST);
    let silent: Vec<TcpStream> = (0..100).map(|_| target.connect()).collect();
    let begun = Instant::now();
    assert!(target.get("/metrics", "").contains("ringfab_build_info"));
    assert!(begun.elapsed() < Duration::from_secs(2), "others give way");
    host.write_at(1, 0, &[1; 4096], false).expect("hosts are served");
    // The first of them have given way, the last are hung up on after a while.
    for stream in silent {
        assert!(hung_up_on(stream, b"") < Duration::from_secs(10));
    }
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(1 << 20));
    assert!(hung_up_on(target.connect(), long.as_bytes()) < Duration::from_secs(10));
    assert!(hung_up_on(target.connect(), b"GET / HTTP/1.1\r\nHost:") < Duration::from_secs(10));
    let threads = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", target.service.id()));
        let status = status.expect("the process");
        let line = status.lines().find_map(|line| line.strip_prefix("Threads:")).expect("a line");
        line.trim().parse::<u32>().expect("a number")
    };
    wait_until("their threads have ended", || threads() < 16);
}

#[test]
fn what_a_host_calls_itself_is_text_and_nothing_else() {
    let target = Seen::start();
    let name = "nqn.2026-11.org.ringfab:<script>alert(\"1\")</script>\\";
    let _host = target.attach(name);
    let escaped = "nqn.2026-11.org.ringfab:&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt;\\";
    // What the target was a moment ago is good enough for a client.
    wait_until("the page has it", || target.get("/", "text/html").contains(escaped));
    let page = target.get("/", "text/html");
    assert!(!page.contains("<script"));
    let metrics = target.get("/metrics", OPEN_METRICS);
    let escaped = "host=\"nqn.2026-11.org.ringfab:<script>alert(\\\"1\\\")</script>\\\\\"";
    assert!(metrics.contains(escaped), "{metrics}");
}
