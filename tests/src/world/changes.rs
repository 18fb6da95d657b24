//! What is served changes while hosts use it.

use std::collections::BTreeSet;
use std::time::Duration;

use ringfab_spec::Status;
use ringfab_target::Identity;
use ringfab_target::config::{Access, ListenerConfig};

use super::client::Client;
use super::rival::Rival;
use super::scenario::Scenario;
use super::server::{Change, NQN, SPARE, SPARE_NSID};
use super::{CALM_MAX, Simulation, WORKLOAD_MAX};

/// Changes while the workload runs, and the time between two.
const CHANGES: u64 = 72;
const PAUSE: Duration = Duration::from_millis(20);

/// Runs a world in which nothing goes wrong, while everything that its hosts do not use comes and goes, and their disk
/// is limited: none of them may notice. Then what they use goes, and comes back: who loses its right is ended, and
/// nobody else; nothing that was written is lost.
///
/// # Panics
/// When something is lost, leaked, never answered or against the protocol; or when a host is disturbed that has nothing
/// to do with a change.
pub fn run_changes(scenario: Scenario) {
    let mut this = Simulation::new(scenario, false);
    this.stop_chaos();
    this.run_until(CALM_MAX, "attaching", |this| this.clients.iter().all(Client::is_connected));
    this.clients.iter_mut().for_each(Client::set_strict);
    this.change_what_nobody_uses();
    this.withdraw_rights();
    this.close_the_listener();
    this.exchange_listeners();
    this.remove_the_subsystem();
    this.check_everything();
    this.leave();
}

/// Runs a world in which nothing goes wrong but that a core cannot open a disk which is to be served: then none serves
/// it, or has it open. Once all can, each queue of a host serves it, on whichever core it is, from the moment that the
/// change is done; and when it was removed, none does.
///
/// # Panics
/// When a change is made on some cores only.
pub fn run_all_or_none(scenario: Scenario) {
    let mut this = Simulation::new(scenario, false);
    this.stop_chaos();
    this.run_until(CALM_MAX, "attaching", |this| this.rivals.iter().all(Rival::is_connected));
    for cores in 0..this.scenario.machines.cores as u32 {
        this.make(Change::Unservable { cores });
        this.probe(Status::INVALID_NAMESPACE);
    }
    for _ in 0..3 {
        this.make(Change::Spare);
        assert_eq!(
            this.world.open_files(this.servers[0].host, SPARE),
            this.scenario.machines.cores,
            "each core has it"
        );
        this.probe(Status::SUCCESS);
        this.make(Change::Spare);
        this.probe(Status::INVALID_NAMESPACE);
        assert_eq!(this.world.open_files(this.servers[0].host, SPARE), 0, "no core has it");
    }
}

impl Simulation {
    /// What every queue of every rival says about the namespace that comes and goes.
    fn probe(&mut self, expected: Status) {
        let Self { rivals, trace, .. } = self;
        rivals.iter_mut().for_each(|rival| rival.probe(SPARE_NSID, trace));
        let is_over = |this: &Self| this.rivals.iter().all(Rival::is_idle);
        self.run_until(CALM_MAX, "answers on every queue", is_over);
        for rival in &mut self.rivals {
            let answers = rival.take_probed();
            assert!(answers.len() > self.scenario.machines.cores, "it has a queue on each core");
            assert!(answers.iter().all(|status| *status == expected), "{answers:?} instead of {expected}");
        }
    }

    fn change_what_nobody_uses(&mut self) {
        for choice in 0..CHANGES {
            self.make(match choice % 6 {
                5 => Change::Limits(choice / 6),
                _ => Change::Others(choice * 7 + choice / 4),
            });
            self.pass(PAUSE);
        }
        self.run_until(WORKLOAD_MAX, "the workload", |this| this.clients.iter().all(Client::is_finished));
        let losses: u32 = self.clients.iter().map(Client::losses).sum();
        assert_eq!(losses, 0, "nobody has to do with these changes");
    }

    /// Only the first host may use the subsystem, and then all of them again.
    fn withdraw_rights(&mut self) {
        self.clients.iter_mut().for_each(Client::set_may_be_refused);
        let first: BTreeSet<String> = [self.clients[0].host_nqn().to_owned()].into();
        let others = self.clients.len() - 1;
        self.change_access(Access::Hosts(first));
        let are_out = |this: &Self| this.clients[1..].iter().all(|client| !client.is_connected());
        self.run_until(CALM_MAX, "the others to be ended", are_out);
        self.pass(Duration::from_secs(2));
        let losses: Vec<u32> = self.clients.iter().map(Client::losses).collect();
        assert!(are_out(self) && self.clients[0].is_connected() && losses[0] == 0, "{losses:?}");
        assert!(losses[1..].iter().filter(|losses| **losses > 0).count() == others, "{losses:?}");
        self.change_access(Access::AnyHost);
        self.everybody_is_back();
    }

    fn close_the_listener(&mut self) {
        let config = self.servers[0].config().listeners[0].clone();
        let removed = self.change(|target, draft| {
            let served = target.served();
            let is_meant = |one: &ListenerConfig| one.port == config.port && one.address == config.address;
            let listener = served.listeners().iter().find(|one| is_meant(one.config()));
            draft.remove_listener(listener.expect("it is there").port_id()).expect("it is there");
        });
        assert_eq!(removed, Ok(()));
        let nobody = |this: &Self| this.clients.iter().all(|client| !client.is_connected());
        self.run_until(CALM_MAX, "everybody to be ended", nobody);
        self.pass(Duration::from_secs(2));
        assert!(nobody(self));
        assert_eq!(
            self.change(|_, draft| {
                draft.add_listener(config);
            }),
            Ok(())
        );
        self.everybody_is_back();
    }

    /// A listener gives way to another one in one change, which then has its number. When that one cannot be bound, the
    /// first stays.
    fn exchange_listeners(&mut self) {
        let config = self.servers[0].config().listeners[0].clone();
        let elsewhere = ListenerConfig { port: config.port + 5, ..config.clone() };
        let exchange = |this: &mut Self, from: &ListenerConfig, to: &ListenerConfig| {
            this.change(|target, draft| {
                let served = target.served();
                let is_meant = |one: &ListenerConfig| one.port == from.port && one.address == from.address;
                let old = served.listeners().iter().find(|one| is_meant(one.config()));
                let number = old.expect("it is there").port_id();
                draft.remove_listener(number).expect("it is there");
                assert_eq!(draft.add_listener(to.clone()), number);
            })
        };
        let taken = self.world.socket_address(self.hosts[0], config.port).ip();
        let not_ours =
            ListenerConfig { address: taken.to_string().parse().expect("an address"), ..elsewhere.clone() };
        exchange(self, &config, &not_ours).expect_err("it is another host's address");
        let losses = |this: &Self| this.clients.iter().map(Client::losses).sum::<u32>();
        let before = losses(self);
        self.pass(Duration::from_secs(2));
        assert_eq!(losses(self), before, "nobody has to do with it");
        for host in self.hosts.clone() {
            self.world.cut_links(host, self.servers[0].host);
        }
        self.run_until(CALM_MAX, "the cut to be noticed", |this| losses(this) > before);
        self.everybody_is_back();
        assert_eq!(exchange(self, &config, &elsewhere), Ok(()));
        let nobody = |this: &Self| this.clients.iter().all(|client| !client.is_connected());
        self.run_until(CALM_MAX, "everybody to be ended", nobody);
        assert_eq!(exchange(self, &elsewhere, &config), Ok(()));
        self.everybody_is_back();
    }

    /// With the subsystem its disk is closed; it comes back with what was on it.
    fn remove_the_subsystem(&mut self) {
        let removed = self.change(|_, draft| draft.remove_subsystem(NQN).expect("it is there"));
        assert_eq!(removed, Ok(()));
        let nobody = |this: &Self| this.clients.iter().all(|client| !client.is_connected());
        self.run_until(CALM_MAX, "everybody to be ended", nobody);
        self.run_until(CALM_MAX, "the target to forget", |this| this.servers[0].leftovers().is_none());
        let config = self.servers[0].config().subsystems[0].clone();
        let added = self.change(|target, draft| {
            let identity = Identity::from_seed([7; 32]);
            target.add_subsystem(draft, &config, &identity).expect("no memory is needed");
        });
        assert_eq!(added, Ok(()));
        self.everybody_is_back();
    }

    fn change_access(&mut self, access: Access) {
        let changed = self.change(|_, draft| draft.set_access(NQN, access).expect("it is there"));
        assert_eq!(changed, Ok(()));
    }

    fn everybody_is_back(&mut self) {
        self.run_until(CALM_MAX, "the return", |this| this.clients.iter().all(Client::is_connected));
    }

    /// Lets some time pass.
    pub(super) fn pass(&mut self, time: Duration) {
        let until = self.world.now() + time;
        self.run_until(CALM_MAX, "time to pass", |this| this.world.now() >= until);
    }
}
