//! Asks a target that runs.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt};
use ringfab_base::VisiblePath as _;
use serde_json::Value;

use super::Request;

/// How long an answer may take: cores may be busy, and others may be asking.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Bytes of an answer; one for a thousand namespaces and hosts is far shorter.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The target cannot be reached.
    #[error("cannot ask the target at {}: {source}; does it run, and may you open the socket?", path.visible())]
    Unreachable {
        /// Its socket.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The target refuses.
    #[error("{0}")]
    Refused(String),
    /// What was to be run meanwhile has failed, or was not run.
    #[error("{0}")]
    Command(String),
    /// Nobody takes the answer.
    #[error("cannot write the answer: {0}")]
    Output(io::Error),
    /// What came is no answer.
    #[error("the target's answer cannot be parsed: {0}")]
    Nonsense(String),
}

/// Sends a request to the target behind a socket, and waits for its answer.
///
/// # Errors
/// When it cannot be reached or refuses.
pub fn ask(path: &Path, request: &Request) -> Result<Value, AskError> {
    Session::connect(path)?.ask(request)
}

/// A connection to a target, for several requests.
#[derive(Debug)]
pub struct Session {
    path: PathBuf,
    stream: BufReader<UnixStream>,
}

impl Session {
    /// Connects to the target behind a socket.
    ///
    /// # Errors
    /// When it cannot be reached.
    pub fn connect(path: &Path) -> Result<Self, AskError> {
        let connect = || {
            let stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
            stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
            Ok(Self { path: path.to_owned(), stream: BufReader::new(stream) })
        };
        connect().map_err(|source| AskError::Unreachable { path: path.to_owned(), source })
    }

    /// Sends a request, and waits for its answer.
    ///
    /// # Errors
    /// When the target cannot be reached any more or refuses.
    pub fn ask(&mut self, request: &Request) -> Result<Value, AskError> {
        let answer = self.exchange(&request.to_line());
        let path = self.path.clone();
        result_of(&answer.map_err(|source| AskError::Unreachable { path, source })?)
    }

    fn exchange(&mut self, line: &str) -> io::Result<String> {
        self.stream.get_mut().write_all(line.as_bytes())?;
        let mut answer = String::new();
        self.stream.by_ref().take(ANSWER_BYTES_MAX).read_line(&mut answer)?;
        Ok(answer)
    }
}

fn result_of(answer: &str) -> Result<Value, AskError> {
    let answer: Value =
        serde_json::from_str(answer).map_err(|error| AskError::Nonsense(error.to_string()))?;
    match (answer.get("ok"), answer.get("error").and_then(Value::as_str)) {
        (Some(value), None) => Ok(value.clone()),
        (_, Some(error)) => Err(AskError::Refused(error.to_owned())),
        (None, None) => Err(AskError::Nonsense("neither a result nor an error".to_owned())),
    }
}

/// The user as whom the process behind a socket runs.
///
/// # Errors
/// When it cannot be reached.
pub fn user_of(path: &Path) -> Result<u32, AskError> {
    let unreachable = |source| AskError::Unreachable { path: path.to_owned(), source };
    let stream = UnixStream::connect(path).map_err(unreachable)?;
    let credentials = getsockopt(&stream, sockopt::PeerCredentials);
    credentials.map(|credentials| credentials.uid()).map_err(|error| unreachable(error.into()))
}
