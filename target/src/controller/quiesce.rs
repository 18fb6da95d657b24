//! How long a controller that has lost its host may still change something.

use std::time::Duration;

/// Command Quiesce Time: within this time after a controller has lost its host, every command of it is done, or never
/// will be. That holds for disks that work. Nothing else keeps a command:
///
/// | what a command waits for | what becomes of it when the controller ends |
/// | --- | --- |
/// | limits, turns, buffers, claims, the other half of a pair, a hung or fenced disk | it ends at once |
/// | the host's data, or room to send | it ends with its connection, which is reset; none of its data reaches a disk |
/// | a disk, which has its last operation | the disk ends that |
/// | a disk, and more operations would follow (Copy, Dataset Management, Verify) | the disk ends that one, and no other follows |
///
/// A disk that works ends an operation within five seconds. One that does not is found to hang within another second
/// (`core::watch`). A lost host is noticed up to 250 ms late, and its queues on other cores end up to 250 ms later.
///
/// With a disk that hangs the time cannot be kept. Until that disk has ended what it has of a lost controller, it is
/// fenced: no command of any controller of the host reaches it (`controller::fence`). So what the host writes next
/// still comes last.
pub(crate) const COMMAND_QUIESCE_TIME: Duration = Duration::from_millis(6500);
