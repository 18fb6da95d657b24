//! Which life of a controller identifier this is (NVM Express Base 2.3, section 8.3.3).

use ringfab_spec::log::ControllerInstance;

/// The instance of one controller: another one each time that it becomes ready. A host names by it what it has lost,
/// and nothing that has come after it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Instance {
    cntlid: u16,
    ciu: u8,
    cirn: u64,
}

impl Instance {
    /// That of a new controller.
    pub(super) fn new(cntlid: u16) -> Self {
        let ciu = (random() % u64::from(u8::MAX)) as u8 + 1;
        Self { cntlid, ciu, cirn: random() }
    }

    /// The controller becomes ready.
    pub(super) fn renew(&mut self) {
        // 0 would say that there is no such number.
        self.ciu = self.ciu.checked_add(1).unwrap_or(1);
        self.cirn = random();
    }

    /// Its numbers.
    pub(super) fn numbers(&self) -> ControllerInstance {
        let Self { cntlid, ciu, cirn } = *self;
        ControllerInstance { cntlid, ciu, cirn }
    }
}

/// A number that nobody guesses. 0 is none: it would be that of a controller without instances.
fn random() -> u64 {
    getrandom::u64().expect("the system has random numbers").max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_readiness_makes_another_instance_and_none_has_the_number_zero() {
        let mut instance = Instance::new(7);
        let mut before = instance.numbers();
        for _ in 0..=u16::from(u8::MAX) {
            instance.renew();
            let now = instance.numbers();
            assert_eq!(now.ciu, if before.ciu == u8::MAX { 1 } else { before.ciu + 1 });
            assert!(now.ciu != 0 && now.cirn != 0 && now.cirn != before.cirn && now.cntlid == 7);
            before = now;
        }
    }
}
