//! Commands of a host that is not let in: before its Connect has succeeded, and before it has proved who it is, if it
//! has to. There is a bound on their number, as on their time: a host that wants to be let in needs few.

use super::connection::{Connection, Phase};
use super::log;

/// Commands that may come. A host needs one to connect, and five to authenticate.
pub(super) const EARLY_MAX: u16 = 64;

/// Such a command has come. One that is too many is the last: the log says so, and the connection ends once it is
/// answered.
#[cold]
pub(super) fn count(connection: &mut Connection) {
    connection.early += 1;
    if connection.early > EARLY_MAX && connection.is_open() {
        connection.phase = Phase::Ending;
        log::too_many_commands(connection);
    }
}
