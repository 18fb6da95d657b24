//! The controller of a command, whose engine threads run the command's clients.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use ringfab_initiator::ConnectOptions;
use ringfab_initiator::blocking::{Controller, EngineOptions};

use crate::advice::Advised;
use crate::interrupt::Interrupt;
use crate::progress::Connecting;

/// Attaches the controller of a command. A signal ends every wait: for the controller now, and for its end later.
pub(crate) fn attach(
    options: ConnectOptions,
    mut engine: EngineOptions,
    interrupt: &Interrupt,
) -> Result<Controller> {
    engine.cancel = interrupt.token();
    let connecting = Connecting::start(&options);
    let controller = Controller::connect(options, engine);
    drop(connecting);
    interrupt.check()?;
    controller.map_err(|error| Advised(error).into())
}

/// Attaches the controller of a service. A signal ends the wait for that. It ends no wait later: the service flushes
/// and detaches before it ends.
pub(crate) fn attach_service(
    options: ConnectOptions,
    engine: EngineOptions,
    interrupt: &Interrupt,
) -> Result<Controller> {
    let connecting = Arc::new(AtomicBool::new(true));
    let (cancel, armed) = (engine.cancel.clone(), connecting.clone());
    interrupt.call(move || {
        if armed.load(Ordering::Acquire) {
            cancel.cancel();
        }
    });
    let shown = Connecting::start(&options);
    let controller = Controller::connect(options, engine);
    drop(shown);
    connecting.store(false, Ordering::Release);
    interrupt.check()?;
    controller.map_err(|error| Advised(error).into())
}
