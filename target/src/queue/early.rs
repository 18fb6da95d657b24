//! Commands of a host that is not let in: before its Connect has succeeded, and before it has proved who it is, if it
//! has to. There is a bound on their number, as on their time: a host that wants to be let in needs few.

use super::authentication::Authentication;
use super::connection::Connection;
use super::log;

/// Commands that may come. A host needs one to connect, and five to authenticate.
pub(super) const EARLY_MAX: u16 = 64;

/// A command has come. False: it is one too many, which the log says.
#[inline(always)]
pub(super) fn may_come(connection: &mut Connection) -> bool {
    let is_let_in = connection.attached.is_some()
        && connection.authentication.as_deref().is_none_or(Authentication::is_over);
    is_let_in || count(connection)
}

#[cold]
fn count(connection: &mut Connection) -> bool {
    connection.early += 1;
    let may = connection.early <= EARLY_MAX;
    if !may {
        log::too_many_commands(connection);
    }
    may
}
