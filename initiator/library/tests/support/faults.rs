//! What the controller does wrong.

use ringfab_spec::Status;

/// How the controller misbehaves.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    /// Closes all connections instead of answering the I/O command after so many.
    pub(crate) cut_after: Option<u32>,
    /// Answers I/O commands twice.
    pub(crate) answer_twice: bool,
    /// Does not answer I/O commands.
    pub(crate) mute: bool,
    /// Refuses connections with No Resources.
    pub(crate) reject: bool,
    /// Answers the Connect of this queue with a status and a result.
    pub(crate) connect: Option<(u16, Status, u64)>,
    /// Its namespace has another NGUID.
    pub(crate) other_nguid: bool,
    /// Never becomes ready.
    pub(crate) never_ready: bool,
    /// Does not answer Keep Alive.
    pub(crate) mute_keep_alive: bool,
    /// Does not answer Get Log Page.
    pub(crate) mute_log: bool,
    /// Does not answer Abort.
    pub(crate) mute_abort: bool,
    /// Its namespace is removed before the Flush of a host that leaves, which is not told of that.
    pub(crate) namespace_removed: bool,
}

/// What the controller does with Disconnect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Disconnects {
    /// It says that it has no such command.
    #[default]
    Unknown,
    /// It answers with this status and, if that is success, closes the connection.
    Answer(Status),
    /// It closes the connection without an answer.
    Close,
}
