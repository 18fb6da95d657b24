//! The address of the metrics and of the page: HTTP for reading only.
//!
//! A client gets one answer and is hung up on. What it may send is bounded, how long it may take for its request and
//! for taking its answer, and how many there may be at once: for one more, the oldest goes.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use httparse::{EMPTY_HEADER, Request, Status};

use super::families::{Format, encode};
use super::snapshot::Snapshots;
use super::{page, spawn};

/// How long a client may take for its request, and for taking its answer.
const CLIENT_LIMIT: Duration = Duration::from_secs(5);

/// Bytes of a request, and its header fields.
const REQUEST_BYTES_MAX: usize = 8 << 10;
const HEADERS_MAX: usize = 64;

/// Clients at a time.
const CLIENTS_MAX: usize = 16;

/// How long nobody is listened to after the system refused a connection.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// Serves an address on threads of its own.
pub(super) fn start(address: SocketAddr, snapshots: Arc<Snapshots>, queues: bool) -> io::Result<()> {
    let listener = TcpListener::bind(address)?;
    let address = listener.local_addr()?;
    let server = Arc::new(Server { snapshots, queues, clients: Mutex::default() });
    spawn("metrics", move || server.run(&listener))?;
    tracing::info!(%address, "metrics");
    Ok(())
}

struct Server {
    snapshots: Arc<Snapshots>,
    queues: bool,
    clients: Mutex<Clients>,
}

/// Who is connected, by the order of coming.
#[derive(Default)]
struct Clients {
    next: u64,
    connected: BTreeMap<u64, TcpStream>,
}

impl Server {
    fn run(self: Arc<Self>, listener: &TcpListener) {
        loop {
            match listener.accept().and_then(|(stream, _)| self.take_in(stream)) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::warn!(%error, "no connection for metrics");
                    thread::sleep(ACCEPT_PAUSE);
                }
            }
        }
    }

    fn take_in(self: &Arc<Self>, stream: TcpStream) -> io::Result<()> {
        let mut clients = self.clients();
        if clients.connected.len() >= CLIENTS_MAX
            && let Some((_, oldest)) = clients.connected.pop_first()
        {
            // Its thread ends with the next read or write.
            let _gone = oldest.shutdown(Shutdown::Both);
        }
        let number = clients.next;
        clients.next += 1;
        clients.connected.insert(number, stream.try_clone()?);
        drop(clients);
        let this = Arc::clone(self);
        let spawned = spawn("metrics-client", move || {
            if let Err(error) = this.serve(stream) {
                tracing::debug!(%error, "a connection for metrics has ended");
            }
            this.clients().connected.remove(&number);
        });
        if spawned.is_err() {
            self.clients().connected.remove(&number);
        }
        spawned
    }

    fn serve(&self, mut stream: TcpStream) -> io::Result<()> {
        let (asked, body) = read_request(&mut stream)?;
        let answer = match asked {
            Asked::Metrics(format) => {
                let kind = match format {
                    Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
                    Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
                };
                Answer::of("200 OK", kind, encode(&self.snapshots.get().now, self.queues, format))
            }
            Asked::Page => {
                Answer::of("200 OK", "text/html; charset=utf-8", page::page(&self.snapshots.get()))
            }
            Asked::Refused(status) => Answer::of(status, "text/plain; charset=utf-8", format!("{status}\n")),
        };
        answer.send(&mut stream, body)
    }

    fn clients(&self) -> MutexGuard<'_, Clients> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Metrics(Format),
    Page,
    /// Nothing that there is: the status line says why.
    Refused(&'static str),
}

/// Whether the answer has its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Body {
    Whole,
    /// The client asks for the head alone (HEAD).
    LeftOut,
}

/// Reads the head of a request. A body is of no use here.
fn read_request(stream: &mut TcpStream) -> io::Result<(Asked, Body)> {
    let deadline = Instant::now() + CLIENT_LIMIT;
    let (mut head, mut chunk) = (Vec::new(), [0; 1024]);
    loop {
        if let Some(asked) = parse(&head) {
            return Ok(asked);
        }
        stream.set_read_timeout(Some(left(deadline)?))?;
        match stream.read(&mut chunk)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            length => head.extend_from_slice(&chunk[..length]),
        }
    }
}

/// What a request asks for; none while it is not whole.
fn parse(head: &[u8]) -> Option<(Asked, Body)> {
    let mut headers = [EMPTY_HEADER; HEADERS_MAX];
    let mut request = Request::new(&mut headers);
    let refused = |status| Some((Asked::Refused(status), Body::Whole));
    match request.parse(head) {
        Ok(Status::Complete(_)) => {
            let body = if request.method == Some("HEAD") { Body::LeftOut } else { Body::Whole };
            Some((asked(&request), body))
        }
        Ok(Status::Partial) if head.len() <= REQUEST_BYTES_MAX => None,
        Ok(Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            refused("431 Request Header Fields Too Large")
        }
        Err(_) => refused("400 Bad Request"),
    }
}

fn asked(request: &Request<'_, '_>) -> Asked {
    if !matches!(request.method, Some("GET" | "HEAD")) {
        return Asked::Refused("405 Method Not Allowed");
    }
    match request.path.map(path) {
        Some("") => Asked::Page,
        Some("/metrics") => {
            let accept = request.headers.iter().find(|field| field.name.eq_ignore_ascii_case("accept"));
            let accept = accept.map(|field| String::from_utf8_lossy(field.value));
            Asked::Metrics(accept.map_or(Format::Prometheus, |accept| preferred(&accept)))
        }
        _ => Asked::Refused("404 Not Found"),
    }
}

/// What a request asks for, without what is behind a question mark and without a slash at the end. In the absolute form
/// (RFC 9112, 3.2.2), which proxies send and servers must take, the scheme and the name of the server go before it.
fn path(target: &str) -> &str {
    let scheme = "http://";
    let absolute = target.get(..scheme.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(scheme));
    let path = if absolute {
        let rest = &target[scheme.len()..];
        &rest[rest.find(['/', '?']).unwrap_or(rest.len())..]
    } else {
        target
    };
    let path = path.split('?').next().unwrap_or(path);
    path.strip_suffix('/').unwrap_or(path)
}

/// The format that a client would rather have. Who says nothing of OpenMetrics gets that of Prometheus.
fn preferred(accept: &str) -> Format {
    let weight = |kind: &str| {
        let of_range = |range: &str| {
            let mut parts = range.split(';').map(str::trim);
            parts.next().filter(|name| name.eq_ignore_ascii_case(kind))?;
            let weight = parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
            Some(weight.map_or(Some(1.0), |text| text.parse::<f32>().ok()).unwrap_or(0.0))
        };
        accept.split(',').filter_map(of_range).fold(0.0, f32::max)
    };
    let open = weight("application/openmetrics-text");
    if open > 0.0 && open >= weight("text/plain") { Format::OpenMetrics } else { Format::Prometheus }
}

struct Answer {
    head: String,
    body: String,
}

impl Answer {
    fn of(status: &str, kind: &str, body: String) -> Self {
        // The page has styles of its own and nothing else: no script of whoever gets text into it runs.
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\
             Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nAllow: GET, HEAD\r\n\
             Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'\r\n\r\n",
            body.len()
        );
        Self { head, body }
    }

    fn send(&self, stream: &mut TcpStream, body: Body) -> io::Result<()> {
        let deadline = Instant::now() + CLIENT_LIMIT;
        let body = if body == Body::Whole { self.body.as_str() } else { "" };
        for part in [&self.head, body] {
            let mut rest = part.as_bytes();
            while !rest.is_empty() {
                stream.set_write_timeout(Some(left(deadline)?))?;
                match stream.write(rest)? {
                    0 => return Err(io::ErrorKind::WriteZero.into()),
                    length => rest = &rest[length..],
                }
            }
        }
        stream.shutdown(Shutdown::Write)
    }
}

fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_whole_or_refused() {
        let parse = |head: &[u8]| super::parse(head).map(|(asked, _)| asked);
        let get = |path: &str, fields: &str| parse(format!("GET {path} HTTP/1.1\r\n{fields}\r\n").as_bytes());
        assert_eq!(get("/", ""), Some(Asked::Page));
        assert_eq!(get("/?refresh=1", "Host: x\r\n"), Some(Asked::Page));
        assert_eq!(get("/metrics", ""), Some(Asked::Metrics(Format::Prometheus)));
        let accept = "aCCept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\n";
        assert_eq!(get("/metrics", accept), Some(Asked::Metrics(Format::OpenMetrics)));
        for accept in ["application/openmetrics-text;q=0.2, text/plain;version=0.0.4;q=0.3", "*/*", "x;q=y"] {
            let asked = get("/metrics", &format!("Accept: {accept}\r\n"));
            assert_eq!(asked, Some(Asked::Metrics(Format::Prometheus)), "{accept}");
        }
        assert_eq!(super::parse(b"HEAD / HTTP/1.0\r\n\r\n"), Some((Asked::Page, Body::LeftOut)));
        assert_eq!(get("/../etc/passwd", ""), Some(Asked::Refused("404 Not Found")));
        for (target, asked) in [
            ("/metrics/", Asked::Metrics(Format::Prometheus)),
            ("/metrics/?x=/", Asked::Metrics(Format::Prometheus)),
            ("http://10.0.0.5:9600/metrics", Asked::Metrics(Format::Prometheus)),
            ("HTTP://[::1]:9600/metrics/?x", Asked::Metrics(Format::Prometheus)),
            ("http://host.example:9600/", Asked::Page),
            ("http://host.example", Asked::Page),
            ("http://host.example?refresh=1", Asked::Page),
            ("http://host.example/other", Asked::Refused("404 Not Found")),
            ("http:/metrics", Asked::Refused("404 Not Found")),
            ("/metrics//", Asked::Refused("404 Not Found")),
            ("/http://x/metrics", Asked::Refused("404 Not Found")),
        ] {
            assert_eq!(get(target, "Host: x\r\n"), Some(asked), "{target}");
        }
        assert_eq!(parse(b"POST / HTTP/1.1\r\n\r\n"), Some(Asked::Refused("405 Method Not Allowed")));
        assert_eq!(parse(b"\x16\x03\x01 hello\r\n\r\n"), Some(Asked::Refused("400 Bad Request")));
        assert_eq!(parse(b"GET / HTTP/1.1\r\nHost:"), None);
        assert_eq!(parse(b""), None);
        let fields = "X: y\r\n".repeat(HEADERS_MAX + 1);
        let refused = Some(Asked::Refused("431 Request Header Fields Too Large"));
        assert_eq!(get("/", &fields), refused);
        let long = format!("GET /{}", "x".repeat(REQUEST_BYTES_MAX));
        assert_eq!(parse(long.as_bytes()), refused);
        let below = format!("GET /{}", "x".repeat(REQUEST_BYTES_MAX - 5));
        assert_eq!(parse(below.as_bytes()), None);
    }
}
