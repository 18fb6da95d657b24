//! Which controllers may not go on after a change of what is served.

use std::sync::Arc;

use super::Target;
use super::psk::is_of_any;
use crate::config::ListenerTls;
use crate::controller::Controller;
use crate::model::{Difference, Listener, Served, ServedSubsystem, TlsChannel};

impl Target {
    /// The controllers that may not go on with what is served now, and why: their subsystem is not served any more,
    /// their host may not use it any more or not in this way, or the listener is gone on which it came.
    pub fn controllers_without_right(
        &self,
        served: &Served,
        difference: &Difference,
    ) -> Vec<(Arc<Controller>, &'static str)> {
        let without = |controller: &Arc<Controller>| {
            key_trouble(controller, served, difference)
                .or_else(|| discovery_trouble(controller, served))
                .or_else(|| subsystem_trouble(controller, served.of(controller.subsystem())))
                .or_else(|| listener_trouble(controller, served, difference))
        };
        let all = self.controllers().into_iter();
        all.filter_map(|controller| without(&controller).map(|why| (controller, why))).collect()
    }

    /// Listeners that take the place of others have the controllers, too, that came there.
    pub fn move_to_listeners(&self, served: &Served, difference: &Difference) {
        if difference.unbound.is_empty() {
            return;
        }
        for controller in self.controllers() {
            let way = controller.way();
            let gone = difference.unbound.iter().any(|one| Arc::ptr_eq(one, &way.listener));
            if let Some(now) = served.successor_of(&way).filter(|_| gone) {
                controller.set_listener(Arc::clone(now));
            }
        }
    }
}

/// Whether its host has shown a key that is revoked, has not shown the one that it has now, or may not show it in that
/// way any more. A key that another one replaces counts until the host shows one again.
fn key_trouble(controller: &Controller, served: &Served, difference: &Difference) -> Option<&'static str> {
    let host = &controller.host().nqn;
    let tls = controller.host().tls.as_ref();
    let generated = tls.is_some_and(|tls| tls.is_generated());
    if !controller.is_discovery() || served.discovery_authenticates() || generated {
        let shown = controller.state().authenticated.as_ref().map(|one| one.key);
        match shown {
            Some(key) if difference.revoked.get(host).is_some_and(|keys| keys.contains(&key)) => {
                return Some("the key that its host has shown is revoked");
            }
            None if difference.first_keys.contains(host) => {
                return Some("its host has a key now, which it has not shown");
            }
            _ => {}
        }
        if difference.narrowed.contains(host) {
            return Some("its host may not use a hash function or a group any more that it could use");
        }
    }
    let revoked = difference.revoked_tls.get(host);
    let uses = |tls: &TlsChannel| !tls.is_generated() && revoked.is_some_and(|keys| is_of_any(tls, keys));
    tls.is_some_and(|tls| uses(tls)).then_some("the key of its TLS is revoked")
}

fn discovery_trouble(controller: &Controller, served: &Served) -> Option<&'static str> {
    let required = controller.is_discovery() && served.discovery_authenticates();
    (required && controller.state().authenticated.is_none())
        .then_some("its host has not proved who it is, which discovery requires")
}

fn subsystem_trouble(controller: &Controller, served: Option<&Arc<ServedSubsystem>>) -> Option<&'static str> {
    let Some(served) = served else {
        return (!controller.is_discovery()).then_some("its subsystem is not served any more");
    };
    let demands = served.demands();
    if demands.authentication && controller.state().authenticated.is_none() {
        return Some("its host has not proved who it is, which the subsystem requires");
    }
    if demands.tls && controller.host().tls.is_none() {
        return Some("its connections are in clear text, and the subsystem requires TLS");
    }
    if !demands.concatenation && controller.host().tls.as_ref().is_some_and(|tls| tls.is_generated()) {
        return Some("authentication has made its key for TLS, which the subsystem refuses");
    }
    (!served.allows(&controller.host().nqn)).then_some("its host may not use the subsystem any more")
}

fn listener_trouble(
    controller: &Controller,
    served: &Served,
    difference: &Difference,
) -> Option<&'static str> {
    let way = controller.way();
    let gone = difference.unbound.iter().find(|one| Arc::ptr_eq(one, &way.listener))?;
    let Some(now) = served.successor_of(&way) else {
        return Some("the listener on which it came is gone");
    };
    if now.config().discovery_only && !controller.is_discovery() {
        return Some("the listener on which it came is for discovery only");
    }
    let requires = |listener: &Listener| listener.config().tls == ListenerTls::Required;
    (requires(now) && !requires(gone) && controller.host().tls.is_none())
        .then_some("its connections are in clear text, and the listener on which it came requires TLS")
}
