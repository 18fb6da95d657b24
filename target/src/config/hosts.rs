//! Changes of what is said of a host: a host that comes with keys, and one that gets others.

use super::{Access, Config, HostConfig, ListenerTls, Transport};

impl Config {
    /// Lets a host use a subsystem, with what is said of it. Whoever has a key for TLS needs a listener that has TLS:
    /// where none has, those of NVMe/TCP allow it from then on. It keeps its shares and limits.
    ///
    /// # Errors
    /// Why it cannot be so.
    pub(crate) fn add_host(
        &mut self,
        subsystem: &str,
        host: HostConfig,
        tls_required: bool,
    ) -> Result<(), String> {
        let before = self.host(&host.nqn);
        let nqn = host.nqn.clone();
        let has_key = |host: &HostConfig| host.authentication.is_some() || host.tls.is_some();
        let brings_key = has_key(&host);
        if brings_key && has_key(&before) {
            return Err(format!(
                "{nqn} has keys already: `host rekey` gives it others, and `host allow` lets it use one more subsystem"
            ));
        }
        if tls_required && host.tls.is_none() && before.tls.is_none() {
            return Err(format!("{nqn} has no key for TLS, and so could not use {subsystem} any more"));
        }
        if host.tls.is_some() {
            self.allow_tls()?;
        }
        let subsystem = self.subsystems.iter_mut().find(|one| one.nqn == subsystem);
        let subsystem = subsystem.ok_or("there is no such subsystem")?;
        subsystem.demands.tls |= tls_required;
        let is_new = match &mut subsystem.access {
            Access::AnyHost => false,
            Access::Hosts(hosts) => hosts.insert(nqn.clone()),
        };
        if !is_new && !brings_key {
            return Err(format!("{nqn} may use {} already", subsystem.nqn));
        }
        if brings_key {
            let next = HostConfig { shares: before.shares, limits: before.limits, ..host };
            self.hosts.retain(|one| one.nqn != nqn);
            self.hosts.push(next);
        }
        Ok(())
    }

    fn allow_tls(&mut self) -> Result<(), String> {
        let of_tcp =
            || self.listeners.iter().filter(|one| one.transport == Transport::Tcp && !one.discovery_only);
        if of_tcp().next().is_none() {
            return Err(
                "TLS is for NVMe/TCP, and no listener has that: `listener add ADDRESS --transport tcp --tls \
                        allowed` adds one"
                    .to_owned(),
            );
        }
        if of_tcp().all(|one| one.tls == ListenerTls::Off) {
            let of_tcp =
                |one: &&mut super::ListenerConfig| one.transport == Transport::Tcp && !one.discovery_only;
            self.listeners.iter_mut().filter(of_tcp).for_each(|one| one.tls = ListenerTls::Allowed);
        }
        Ok(())
    }

    /// Gives a host other keys; those that it has are its old ones, as `host` says. It keeps all else.
    ///
    /// # Errors
    /// Why it cannot be so.
    pub(crate) fn rekey_host(&mut self, host: HostConfig) -> Result<(), String> {
        let found = self.hosts.iter_mut().find(|one| one.nqn == host.nqn);
        let before = found.filter(|one| one.authentication.is_some() || one.tls.is_some());
        let before = before
            .ok_or_else(|| format!("{} has no key yet: `host add --with-keys` gives it some", host.nqn))?;
        if before.has_old_keys() {
            return Err(format!(
                "{} has old keys still: `host revoke` takes them away, once it has its new ones",
                host.nqn
            ));
        }
        if let (Some(now), Some(mut next)) = (&before.authentication, host.authentication) {
            next.hashes.clone_from(&now.hashes);
            next.groups.clone_from(&now.groups);
            before.authentication = Some(next);
        }
        if let (Some(now), Some(mut next)) = (&before.tls, host.tls) {
            next.derivation = now.derivation;
            before.tls = Some(next);
        }
        before.old_keys_until = host.old_keys_until;
        Ok(())
    }
}
