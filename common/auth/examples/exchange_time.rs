//! How long a worker computes for one authentication, by group: `cargo run --release --example exchange_time`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ringfab_auth::{
    Computation, Computed, Concatenation, ControllerTransaction, DhchapKey, Group, Hash, HostStep,
    HostTransaction, Parties, Policy, Received, SequenceNumbers, system_random,
};
use ringfab_spec::Nqn;
use ringfab_spec::auth::SecureChannel;

/// How often each group is measured; the shortest time counts.
const ROUNDS: usize = 10;

fn timed(computation: Computation, time: &mut Duration) -> Computed {
    let start = Instant::now();
    let computed = computation.run();
    *time = start.elapsed();
    computed
}

/// One authentication; the times of the controller's value, of the host's answer, and of the controller's secret.
fn authenticate(parties: &Arc<Parties>, group: Group) -> [Duration; 3] {
    let (mut random, mut times) = (system_random(), [Duration::ZERO; 3]);
    let sequence = SequenceNumbers::new(&mut random);
    let policy = Arc::new(Policy::new(&[Hash::Sha256], &[group]).expect("a policy"));
    let mut controller =
        ControllerTransaction::new(Some(parties.clone()), policy.clone(), Concatenation::Refused);
    let (mut host, negotiate) =
        HostTransaction::start(parties.clone(), policy, SecureChannel::NONE, 1).expect("the policy suffices");
    let received = |controller: &mut ControllerTransaction| match controller.on_receive(4096) {
        Received::Message(message) => message,
        other => panic!("{other:?}"),
    };
    let offer = controller.on_send(&negotiate, &sequence, &mut random).expect("a computation");
    controller.on_computed(timed(offer, &mut times[0]));
    let challenge = received(&mut controller);
    let HostStep::Compute(answer) = host.on_message(&challenge, &sequence, &mut random) else {
        panic!("none")
    };
    let HostStep::Exchange(reply) = host.on_computed(timed(answer, &mut times[1])) else {
        panic!("no reply")
    };
    let conclude = controller.on_send(&reply, &sequence, &mut random).expect("a computation");
    controller.on_computed(timed(conclude, &mut times[2]));
    host.on_message(&received(&mut controller), &sequence, &mut random);
    assert!(matches!(host.outcome(), Some(Ok(_))));
    times
}

#[expect(clippy::print_stdout, reason = "this is what the example is for")]
fn main() {
    let key = DhchapKey::generate(Hash::Sha256, None, &mut system_random());
    let (host, subsystem) = (Nqn::new("host").expect("a name"), Nqn::new("subsystem").expect("a name"));
    let parties = Parties::new(host, subsystem, &key, None);
    println!("group                       controller's value, host's answer, controller's secret");
    for group in &Group::ALL[1..] {
        let mut best = [Duration::MAX; 3];
        for _ in 0..ROUNDS {
            let times = authenticate(&parties, *group);
            best = std::array::from_fn(|i| best[i].min(times[i]));
        }
        println!("{:<27} {:.2?} {:.2?} {:.2?}", group.to_string(), best[0], best[1], best[2]);
    }
}
