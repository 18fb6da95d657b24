//! `ringfab reset`: has a controller that this machine has attached be connected again.
//!
//! The process that has it does that, when it is asked over the socket of its entry. A host resets its own controllers
//! only, so an address that nothing here is attached by is refused.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::{ArgGroup, Args};
use ringfab_base::{shell_word, visible};
use ringfab_initiator::Url;
use ringfab_process::log;
use serde_json::{Value, json};

use crate::context::{Context, Usage};
use crate::fuse::mount_point;
use crate::mounts::holders::Mount;
use crate::nbd::uri;
use crate::output;
use crate::quantity::Span;
use crate::registry::{self, Facts, Found, Status};
use crate::volumes::others;

/// The options of `ringfab reset`.
#[derive(Args, Debug)]
#[command(group(ArgGroup::new("what").required(true).multiple(true).args(["target", "all"])))]
pub struct ResetArgs {
    /// What `ringfab list` shows: a directory, a device, the name of a volume, an NBD URI, the number of a process, or
    /// the address or NQN that it is attached by
    pub target: Option<String>,
    /// Reset every controller that matches TARGET; without TARGET, all that are attached
    #[arg(long)]
    pub all: bool,
    /// How long to wait until it is connected again. The reset goes on afterwards
    #[arg(long, value_name = "TIME", default_value = "60s")]
    pub timeout: Span,
}

const POLL: Duration = Duration::from_millis(2);
/// A wait that takes longer is explained.
const SAY: Duration = Duration::from_secs(2);

/// What came of a reset.
struct Outcome {
    facts: Facts,
    time: Duration,
    /// How it is now, or why it was not connected again.
    result: Result<Status>,
}

/// Runs the command.
///
/// # Errors
/// What is not attached, or not connected again.
pub fn run(args: &ResetArgs, context: &Context) -> Result<()> {
    let found = find(args)?;
    let mut outcomes = Vec::new();
    for one in found {
        let begun = Instant::now();
        let result = reset(&one, args.timeout.0, context);
        context.interrupt.check()?;
        outcomes.push(Outcome { facts: one.facts, time: begun.elapsed(), result });
    }
    let failed = outcomes.iter().find_map(|outcome| {
        let error = outcome.result.as_ref().err()?;
        Some(format!("{}: {error:#}", visible(place(&outcome.facts))))
    });
    output::either(
        context.json,
        || json!({ "reset": outcomes.iter().map(Outcome::json).collect::<Vec<_>>() }),
        || outcomes.iter().filter_map(Outcome::line).collect::<Vec<_>>().join("\n"),
    )?;
    match failed {
        Some(failed) => bail!("{failed}"),
        None => Ok(()),
    }
}

impl Outcome {
    fn json(&self) -> Value {
        let facts = &self.facts;
        let status = self.result.as_ref().ok();
        json!({
            "kind": facts.kind,
            "pid": facts.pid,
            "where": place(facts),
            "address": facts.address,
            "nqn": facts.nqn,
            "time_us": u64::try_from(self.time.as_micros()).unwrap_or(u64::MAX),
            "reconnects": status.map(|status| status.reconnects),
            "error": self.result.as_ref().err().map(|error| format!("{error:#}")),
        })
    }

    fn line(&self) -> Option<String> {
        self.result.as_ref().ok()?;
        let (ms, shown) = (self.time.as_secs_f64() * 1000.0, shell_word(place(&self.facts)));
        Some(format!("{shown}: the controller was reset and is connected again, {ms:.1} ms"))
    }
}

/// Where something attached is.
fn place(facts: &Facts) -> String {
    let directory = facts.directory.as_ref().map(|path| path.to_string_lossy().into_owned());
    directory.or_else(|| facts.uri.clone()).unwrap_or_else(|| facts.address.clone())
}

/// What is said of a directory on which another user has mounted what is meant.
fn of_other_user(target: &str) -> Option<String> {
    let directory = mount_point::absolute(Path::new(target)).ok()?;
    others::described(&Mount::at(&directory)?, &others::sudo("reset", &directory))
}

/// What is meant.
fn find(args: &ResetArgs) -> Result<Vec<Found>> {
    registry::ensure_noted()?;
    let mut found: Vec<Found> = registry::entries()?;
    if let Some(target) = &args.target {
        found.retain(|one| is_meant(&one.facts, target));
    }
    // What a killed process has left has no controller any more.
    let dead =
        found.iter().find(|one| !one.is_living()).map(|one| (one.facts.pid, visible(place(&one.facts))));
    found.retain(Found::is_living);
    match (found.len(), &args.target, dead) {
        (0, _, Some((pid, place))) => bail!(
            "{place}: process {pid} was killed, so there is no controller to reset; `ringfab list` says what to do"
        ),
        (0, Some(target), None) if target.contains("://") => bail!(
            "nothing on this machine is attached by {}, and a host resets only controllers of its own; {}; \
             `ringfab doctor ADDRESS` tries an address",
            shell_word(target),
            others::where_to_look()
        ),
        (0, Some(target), None) => match of_other_user(target) {
            Some(of_other) => bail!("{of_other} resets it"),
            None => bail!("{} is not attached; {}", visible(target), others::where_to_look()),
        },
        (0, None, None) => bail!("nothing is attached"),
        (1, ..) => Ok(found),
        (_, target, _) if !args.all => {
            let places: Vec<String> = found
                .iter()
                .map(|one| format!("{} (process {})", visible(place(&one.facts)), one.facts.pid))
                .collect();
            Err(Usage(format!(
                "{} are {} that are attached: {}; name one of them, or add --all",
                target.as_deref().unwrap_or_default(),
                found.len(),
                places.join(", ")
            ))
            .into())
        }
        _ => Ok(found),
    }
}

/// Whether a user who says this means it.
fn is_meant(facts: &Facts, target: &str) -> bool {
    let text = [facts.volume.as_deref(), facts.uri.as_deref(), Some(&facts.nqn), Some(&facts.address)];
    if text.contains(&Some(target)) || facts.pid.to_string() == target {
        return true;
    }
    if let Ok(url) = target.parse::<Url>() {
        return facts.address.parse::<Url>().is_ok_and(|ours| is_at(&ours, &url));
    }
    let path = mount_point::absolute(Path::new(target)).ok();
    let is_path = |ours: Option<&Path>| ours.is_some() && (ours == path.as_deref());
    is_path(facts.directory.as_deref())
        || is_path(facts.device.as_deref())
        || facts.uri.as_deref().and_then(uri::socket).is_some_and(|ours| {
            let real = mount_point::absolute(&ours).ok();
            is_path(Some(&ours)) || is_path(real.as_deref()) || uri::socket(target).as_ref() == Some(&ours)
        })
}

/// Whether an address is of what a user names: with the same namespace, if the user names one.
fn is_at(ours: &Url, named: &Url) -> bool {
    let same = (ours.transport, &ours.host, ours.port) == (named.transport, &named.host, named.port);
    let subsystem = named.is_discovery() || ours.subsystem_nqn() == named.subsystem_nqn();
    same && subsystem && (named.namespace.is_none() || named.namespace == ours.namespace)
}

/// Resets one, and waits until it is connected again.
fn reset(found: &Found, limit: Duration, context: &Context) -> Result<Status> {
    let answer = found.reset()?;
    let given_up = || format!("the controller was given up: {}", found.facts.remedy());
    if answer.before.is_given_up() {
        bail!("{}", given_up());
    }
    if let Some(refused) = answer.refused {
        bail!("{refused}");
    }
    if !answer.begun {
        bail!("process {} is of an older version, which cannot reset", found.facts.pid);
    }
    let (begun, mut said) = (Instant::now(), false);
    loop {
        context.interrupt.check()?;
        let status = found.status();
        match &status {
            Some(status) if status.is_connected() && status.reconnects > answer.before.reconnects => {
                return Ok(status.clone());
            }
            Some(status) if status.is_given_up() => bail!("{}", given_up()),
            None if found.wait_for_end(POLL) => {
                bail!("process {} has ended meanwhile", found.facts.pid)
            }
            _ => {}
        }
        if begun.elapsed() >= limit {
            bail!(
                "not connected again after {} s; that goes on, and `ringfab list` shows how it is",
                limit.as_secs_f64()
            );
        }
        if !said && begun.elapsed() >= SAY {
            said = true;
            let place = place(&found.facts);
            log::say(&format!(
                "ringfab: {place}: the target is away; reconnecting goes on, and ctrl-C ends the wait only ..."
            ));
        }
        std::thread::sleep(POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::Kind;

    #[test]
    fn what_is_attached_is_found_by_all_of_its_names() {
        let url: Url =
            "nvme+tcp://192.0.2.5:4420/nqn.2026-01.org.example:a?ns=2".parse().expect("an address");
        let mut facts = Facts::new(Kind::Nbd, &url, "nqn.2026-01.org.example:a", &[]);
        facts.uri = Some("nbd+unix:///?socket=/run/x.sock".to_owned());
        facts.device = Some("/dev/loop7".into());
        facts.directory = Some("/srv/a".into());
        facts.volume = Some("data".to_owned());
        let pid = std::process::id().to_string();
        for target in [
            "data",
            "/srv/a",
            "/dev/loop7",
            "/run/x.sock",
            "nbd+unix:///?socket=/run/x.sock",
            "nbd+unix:///ns2?socket=%2Frun/x.sock",
            "nqn.2026-01.org.example:a",
            &pid,
            "nvme+tcp://192.0.2.5/nqn.2026-01.org.example:a",
            "nvme+tcp://192.0.2.5",
            "nvme+tcp://192.0.2.5/nqn.2026-01.org.example:a?ns=2",
        ] {
            assert!(is_meant(&facts, target), "{target}");
        }
        for target in [
            "dat",
            "/srv",
            "/dev/loop70",
            "nbd+unix:///?socket=/run/y.sock",
            "nvme+tcp://192.0.2.5/nqn.2026-01.org.example:a?ns=1",
            "nvme+tcp://192.0.2.5:4421/nqn.2026-01.org.example:a",
            "nvme+rdma://192.0.2.5/nqn.2026-01.org.example:a",
            "nvme+tcp://192.0.2.5/nqn.2026-01.org.example:b",
        ] {
            assert!(!is_meant(&facts, target), "{target}");
        }
    }
}
